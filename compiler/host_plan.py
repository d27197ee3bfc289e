"""When buffers die and who takes their storage over: pure functions, program in, program out.

``plan`` is the four passes below in order. A name is deleted after its own last use, which is
always safe, because views keep their storage alive. Giving storage to another buffer is not:
that waits until every name that may share it is dead, and never happens to a graph input, a
constant, an operator's result or anything that an output can see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import host
from .host_alias import defines, refs, roots, uses
from .host_tables import DTYPES
from .host_verify import storage_bytes, storage_extent

#: What a size symbol is taken for when memory is estimated; no decision on values depends on it.
_SYMBOL_GUESS = 1024


def plan(program: host.HostProgram) -> host.HostProgram:
    """Return ``program`` with storage reuse and deletions planned, ready to be printed.

    Frees that the program already holds are planned anew; Reuse lines are kept.
    """
    for step in (drop_unused_buffers, insert_frees, reuse_buffers, lower_frees):
        program = step(program)
    return program


def drop_unused_buffers(program: host.HostProgram) -> host.HostProgram:
    """Remove frees, and allocations and views that nothing reads."""
    lines: Sequence[host.Line] = [
        line for line in program.lines if not isinstance(line, (host.Free, host.FreeIfNotReused))
    ]
    needed = set(refs(program.outputs))
    kept: list[host.Line] = []
    # Backwards, so that a view that nobody reads does not keep its source.
    for line in reversed(lines):
        if isinstance(line, (host.Allocate, host.Reinterpret)) and line.name not in needed:
            continue
        needed.update(uses(line))
        kept.append(line)
    return replace(program, lines=tuple(reversed(kept)))


def insert_frees(program: host.HostProgram) -> host.HostProgram:
    """Delete each tensor name after its last use; buffers we own only once no alias is alive.

    A buffer that planning may hand on is marked FreeIfNotReused, everything else Free. Symbols,
    constants and names that an output mentions are left alone.
    """
    shared = roots(program)
    last = {name: -1 for name in shared}
    owner: dict[str, str] = {}
    for i, line in enumerate(program.lines):
        for name in (*uses(line), defines(line)):
            if name in last:
                last[name] = i
        if isinstance(line, host.Allocate):
            owner[line.name] = line.name
        elif isinstance(line, host.Reuse) and line.old in owner.values():
            root = next(r for r, name in owner.items() if name == line.old)
            owner[root] = line.new
    returned = set(refs(program.outputs))
    seen_outside = frozenset().union(*(shared.get(name, frozenset()) for name in returned))
    death = _storage_deaths(shared, last)
    keep = returned | {constant.name for constant in program.constants}
    handed_on = {line.old for line in program.lines if isinstance(line, host.Reuse)}
    at: defaultdict[int, list[host.Line]] = defaultdict(list)
    managed = {name for root, name in owner.items() if root not in seen_outside}
    for root, name in owner.items():
        if root not in seen_outside:
            at[death[root]].append(host.FreeIfNotReused(name))
    for name, index in last.items():
        if name not in keep and name not in managed and name not in handed_on:
            at[index].append(host.Free(name))
    lines: list[host.Line] = list(at[-1])
    for i, line in enumerate(program.lines):
        lines.append(line)
        lines.extend(at[i])
    return replace(program, lines=tuple(lines))


def _storage_deaths(
    shared: dict[str, frozenset[str]], last: dict[str, int]
) -> defaultdict[str, int]:
    death: defaultdict[str, int] = defaultdict(lambda: -1)
    for name, behind in shared.items():
        for root in behind:
            death[root] = max(death[root], last[name])
    return death


def reuse_buffers(program: host.HostProgram) -> host.HostProgram:
    """Turn a free and a later allocation of equal storage into one Reuse where that is harmless.

    The most recently freed buffer of the same device, dtype, bytes and alignment is taken if
    nothing happens between the two lines, or if keeping it alive in between stays within the
    program's estimated peak: reuse saves an allocator call and must not cost memory.
    """
    lines = list(program.lines)
    specs = _specs(program)
    memory = _Memory(_live_bytes(lines, specs))
    pool: defaultdict[tuple[object, ...], list[tuple[int, str]]] = defaultdict(list)
    dropped: set[int] = set()
    busy = 0  # lines so far that do something; equal counts mean nothing lies in between
    busy_at: dict[int, int] = {}
    for i, line in enumerate(lines):
        match line:
            case host.FreeIfNotReused(name):
                pool[_pool_key(specs[name])].append((i, name))
                busy_at[i] = busy
            case host.Allocate(name, spec) if pool[_pool_key(spec)]:
                waiting = pool[_pool_key(spec)]
                freed, old = waiting[-1]
                size = _estimate(spec)
                adjacent = busy_at[freed] == busy
                if adjacent or memory.highest(freed, i) + size <= memory.peak:
                    waiting.pop()
                    dropped.add(freed)
                    memory.add(freed, i, size)
                    lines[i] = host.Reuse(old, name, spec)
            case host.Allocate() | host.Free() | host.Comment() | host.Reinterpret():
                pass
            case _:
                busy += 1
    return replace(program, lines=tuple(line for i, line in enumerate(lines) if i not in dropped))


def lower_frees(program: host.HostProgram) -> host.HostProgram:
    """Turn the marks that nobody reused into deletions; deletions before the return are dropped."""
    lines: list[host.Line] = [
        host.Free(line.name) if isinstance(line, host.FreeIfNotReused) else line
        for line in program.lines
    ]
    while lines and isinstance(lines[-1], host.Free):
        lines.pop()
    return replace(program, lines=tuple(lines))


def _specs(program: host.HostProgram) -> dict[str, host.TensorSpec]:
    specs: dict[str, host.TensorSpec] = {}
    for line in program.lines:
        match line:
            case host.Allocate(name, spec) | host.Reuse(_, name, spec):
                specs[name] = spec
            case _:
                pass
    return specs


def _pool_key(spec: host.TensorSpec) -> tuple[object, ...]:
    size: object = storage_bytes(spec)
    if size is None:
        size = storage_extent(spec)
    return (spec.device, spec.dtype, size, spec.aligned)


def _live_bytes(lines: Sequence[host.Line], specs: dict[str, host.TensorSpec]) -> list[int]:
    """Estimate the bytes of our own buffers that are alive while each line runs."""
    live: list[int] = []
    now = 0
    for line in lines:
        match line:
            case host.Allocate(_, spec):
                now += _estimate(spec)
            case host.FreeIfNotReused(name):
                now -= _estimate(specs[name])
            case _:
                pass
        live.append(now)
    return live


def _estimate(spec: host.TensorSpec) -> int:
    span = 1
    for size, stride in zip(spec.sizes, spec.strides, strict=True):
        span += max(_guess(size) - 1, 0) * _guess(stride)
    return span * DTYPES[spec.dtype]


def _guess(size: host.Size | str) -> int:
    match size:
        case int():
            return size
        case host.SizeExpr("sym", _):
            return _SYMBOL_GUESS
        case host.SizeExpr(op, args):
            values = [_guess(arg) for arg in args]
            return _fold(op, values)
        case _:
            return 1


def _fold(op: str, values: list[int]) -> int:
    result = values[0]
    for value in values[1:]:
        match op:
            case "add":
                result += value
            case "mul":
                result *= value
            case "max":
                result = max(result, value)
            case "min":
                result = min(result, value)
            case "floordiv" | "mod" | "ceildiv" if value == 0:
                result = 0
            case "floordiv":
                result //= value
            case "mod":
                result %= value
            case "ceildiv":
                result = -(result // -value)
    return result


@dataclass(init=False, slots=True)
class _Memory:
    """Live bytes over the lines: range add and range maximum in O(log n) (a segment tree).

    ``peak`` is the maximum over the whole program before any reuse.
    """

    peak: int
    _size: int
    _top: list[int]  # maximum of a node's range, its own pending additions included
    _more: list[int]  # what was added to a node's whole range

    def __init__(self, live: Sequence[int]) -> None:
        self._size = 1
        while self._size < len(live):
            self._size *= 2
        self._top = [0] * self._size + list(live) + [0] * (self._size - len(live))
        self._more = [0] * (2 * self._size)
        for node in range(self._size - 1, 0, -1):
            self._top[node] = max(self._top[2 * node], self._top[2 * node + 1])
        self.peak = self._top[1]

    def add(self, start: int, stop: int, amount: int) -> None:
        """Add ``amount`` to every line in [start, stop)."""
        self._visit(1, 0, self._size, start, stop, amount)

    def highest(self, start: int, stop: int) -> int:
        """Return the maximum over the lines in [start, stop)."""
        return self._visit(1, 0, self._size, start, stop, 0)

    def _visit(self, node: int, low: int, high: int, start: int, stop: int, amount: int) -> int:
        if stop <= low or high <= start:
            return 0
        if start <= low and high <= stop:
            self._top[node] += amount
            self._more[node] += amount
            return self._top[node]
        middle = (low + high) // 2
        left = self._visit(2 * node, low, middle, start, stop, amount)
        right = self._visit(2 * node + 1, middle, high, start, stop, amount)
        children = max(self._top[2 * node], self._top[2 * node + 1])
        self._top[node] = children + self._more[node]
        return max(left, right) + self._more[node]
