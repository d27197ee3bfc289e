"""Fusion: loop nests that share data become one group, and each group becomes one kernel.

Two groups fuse if their loops align (`loops.align`), every value that one reads from the other is
read exactly where it was written (so it can stay in a register), and no third node lies between
them. Greedy, by bytes of memory traffic saved. Library calls are groups of their own and never
fuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .body import Body, Recorder, Stmt, prune, stmt_index
from .index import Index
from .ir import Buffer, Compute, Extern, LoweredGraph, View
from .loops import Alignment, Substitution, align, simplify, substitute
from .ops import ITEMSIZE
from .sym import Size

#: A kernel with more pointers than this gains nothing and takes registers.
MAX_BUFFERS = 40
#: A kernel longer than this is slow to compile and spills.
MAX_STMTS = 1500
#: Groups that only share inputs fuse if they stand this close in program order; farther apart,
#: holding one group's output alive costs more than reading the input again.
HORIZONTAL_REACH = 24
#: A pointwise nest does not join a reduction of so few rows, each so long: every row is one
#: program, and what filled the GPU alone would run on a corner of it.
FEW_ROWS, LONG_ROW = 64, 4096


@dataclass(slots=True)
class Group:
    """Nodes that run as one kernel (or one library call), with their loops aligned.

    ``members`` are (program position, node name, body over this group's loops).
    """

    number: int
    members: list[tuple[int, str, Body]]
    extern: Extern | None
    reads: set[str]
    writes: set[str]
    origin: tuple[str, ...]
    deps: set[int] = field(default_factory=set)
    position: int = 0

    @property
    def shape(self) -> Body:
        """The group's loops (the statements are the first member's)."""
        return self.members[0][2]


def _bytes(buffer: Buffer) -> int:
    total = ITEMSIZE.get(buffer.dtype, 4)
    for size in buffer.sizes:
        total *= size if isinstance(size, int) else 1024
    return total


def _stores(body: Body) -> list[tuple[str, Index]]:
    return [(s.attrs[0], s.attrs[1]) for s in body.stmts if s.op == "store"]


def _renamed(body: Body, sizes: Sequence[Size], rsizes: Sequence[Size], values: object) -> Body:
    return Body(tuple(sizes), tuple(rsizes), substitute(body.stmts, values))  # type: ignore[arg-type]


class Fuser:
    """One greedy run over a lowered graph."""

    def __init__(self, graph: LoweredGraph) -> None:
        self.graph = graph
        self.groups: dict[int, Group] = {}
        self.writer: dict[str, int] = {}
        self.readers: dict[str, set[int]] = {}
        for position, node in enumerate(graph.nodes):
            self._add(position, node)
        self._order_random(graph)

    def _add(self, position: int, node: Compute | Extern) -> None:
        if isinstance(node, Extern):
            group = Group(
                position,
                [],
                node,
                node.reads(),
                {o.buffer.name for o in node.outputs},
                node.origin,
                position=position,
            )
        else:
            body = simplify(node.body)
            group = Group(
                position,
                [(position, node.name, body)],
                None,
                body.reads(),
                body.writes(),
                node.origin,
                position=position,
            )
        self.groups[position] = group
        # Two library calls may fill one buffer, part by part: the later one follows the earlier.
        touched = group.reads | group.writes
        group.deps = {self.writer[b] for b in touched if b in self.writer}
        for name in group.writes:
            self.writer[name] = position
        for name in group.reads:
            self.readers.setdefault(name, set()).add(position)

    def _order_random(self, graph: LoweredGraph) -> None:
        """Library calls that draw random numbers keep their order: each advances the generator."""
        last: int | None = None
        for position, node in enumerate(graph.nodes):
            if isinstance(node, Extern) and _is_random(node.op):
                if last is not None:
                    self.groups[position].deps.add(last)
                last = position

    def run(self) -> list[Group]:
        """Fuse until nothing fuses; groups in an order that respects every dependency."""
        while self._round():
            pass
        return self._ordered()

    def _round(self) -> bool:
        changed = False
        tried: set[tuple[int, int]] = set()
        for _, a, b in self._candidates():
            if a not in self.groups or b not in self.groups or (a, b) in tried:
                continue
            tried.add((a, b))
            alignment = self._legal(self.groups[a], self.groups[b])
            if alignment is not None:
                self._fuse(self.groups[a], self.groups[b], alignment)
                changed = True
        return changed

    def _candidates(self) -> list[tuple[float, int, int]]:
        """Pairs (saved bytes, earlier, later) worth trying, best first."""
        saved: dict[tuple[int, int], float] = {}
        for name, readers in self.readers.items():
            size = _bytes(self.graph.buffers[name])
            kernels = sorted(r for r in readers if self.groups[r].extern is None)
            writer = self.writer.get(name)
            if writer is not None and self.groups[writer].extern is None:
                for r in kernels:
                    if r != writer:
                        pair = (writer, r)
                        saved[pair] = saved.get(pair, 0) + 2 * size
            for i, r in enumerate(kernels):
                for s in kernels[i + 1 : i + 9]:
                    saved[(r, s)] = saved.get((r, s), 0) + size
        ranked = []
        for (a, b), score in saved.items():
            distance = abs(self.groups[a].position - self.groups[b].position)
            ranked.append((-score / (1 + 0.01 * distance), a, b))
        ranked.sort()
        return ranked

    def _legal(self, a: Group, b: Group) -> Alignment | None:
        linked = a.number in b.deps or b.number in a.deps
        if not linked and abs(a.position - b.position) > HORIZONTAL_REACH:
            return None
        if len(a.reads | b.reads | a.writes | b.writes) > MAX_BUFFERS:
            return None
        if sum(len(m[2].stmts) for m in (*a.members, *b.members)) > MAX_STMTS:
            return None
        alignment = align(a.shape, b.shape)
        if alignment is None or not self._in_registers(a, b, alignment):
            return None
        if a.shape.numel != b.shape.numel:
            # a pointwise nest would run along the rows of a reduction
            if alignment.rnumel > LONG_ROW and alignment.numel < FEW_ROWS:
                return None
            if not linked and not _same_reads(a, b, alignment):
                return None
        if self._between(a, b) or self._between(b, a):
            return None
        return alignment

    def _in_registers(self, a: Group, b: Group, alignment: Alignment) -> bool:
        """Whether each value that crosses is read where it was written."""
        for source, sink, of, at in (
            (a, b, alignment.first, alignment.second),
            (b, a, alignment.second, alignment.first),
        ):
            shared = source.writes & sink.reads
            if not shared:
                continue
            written: dict[str, Index] = {}
            for _, _, body in source.members:
                for name, index in _stores(body):
                    if name not in shared:
                        continue
                    if name in written or index.indirects():
                        return False  # written in parts, or at positions that are data
                    written[name] = index.substitute(of)
            for _, _, body in sink.members:
                for stmt in body.stmts:
                    if stmt.op == "load" and stmt.attrs[0] in shared:
                        if stmt.attrs[2] != self.graph.buffers[stmt.attrs[0]].dtype:
                            return False  # read back as another dtype: needs the bytes
                        if stmt.attrs[1].substitute(at) != written[stmt.attrs[0]]:
                            return False
        return True

    def _between(self, a: Group, b: Group) -> bool:
        """Whether ``b`` depends on ``a`` through some third group."""
        stack = [d for d in b.deps if d != a.number]
        seen = set(stack)
        while stack:
            group = self.groups[stack.pop()]
            if a.number in group.deps:
                return True
            for d in group.deps:
                if d not in seen and d != a.number:
                    seen.add(d)
                    stack.append(d)
        return False

    def _fuse(self, a: Group, b: Group, alignment: Alignment) -> None:
        members = [
            (p, n, _renamed(body, alignment.sizes, alignment.rsizes, values))
            for group, values in ((a, alignment.first), (b, alignment.second))
            for p, n, body in group.members
        ]
        members.sort(key=lambda m: m[0])
        a.members = members
        a.reads |= b.reads
        a.writes |= b.writes
        a.origin = tuple(dict.fromkeys((*a.origin, *b.origin)))
        a.deps = (a.deps | b.deps) - {a.number, b.number}
        a.position = max(a.position, b.position)
        del self.groups[b.number]
        for name in b.writes:
            self.writer[name] = a.number
        for readers in self.readers.values():
            if b.number in readers:
                readers.discard(b.number)
                readers.add(a.number)
        for group in self.groups.values():
            if b.number in group.deps:
                group.deps.discard(b.number)
                group.deps.add(a.number)

    def _ordered(self) -> list[Group]:
        out: list[Group] = []
        placed: set[int] = set()
        waiting = sorted(self.groups.values(), key=lambda g: g.position)
        while waiting:
            rest: list[Group] = []
            for group in waiting:
                if group.deps <= placed:
                    out.append(group)
                    placed.add(group.number)
                else:
                    rest.append(group)
            if len(rest) == len(waiting):
                raise AssertionError("fusion made a cycle")
            waiting = rest
        return out


def _same_reads(a: Group, b: Group, alignment: Alignment) -> bool:
    """Whether two groups read some element of one buffer in the same iteration.

    A pointwise nest runs along a reduction's loops in one of several orders; without a common
    read the order at hand may be the one that reads across the rows.
    """

    def addresses(group: Group, values: Substitution) -> set[tuple[str, Index]]:
        loads = (s for _, _, body in group.members for s in body.stmts if s.op == "load")
        return {(s.attrs[0], s.attrs[1].substitute(values)) for s in loads}

    return not addresses(a, alignment.first).isdisjoint(addresses(b, alignment.second))


def _is_random(op: str) -> bool:
    import torch

    namespace, name, overload = op.split(".")
    found = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return torch.Tag.nondeterministic_seeded in found.tags


def fuse(graph: LoweredGraph) -> list[Group]:
    """Group a lowered graph's nodes into kernels and library calls, in a valid order."""
    return Fuser(graph).run()


def live_after(groups: Iterable[Group], outputs: Iterable[object]) -> dict[int, set[str]]:
    """For each group, which of its buffers somebody outside it reads (or the graph returns)."""
    groups = list(groups)
    returned = {v.buffer.name for v in outputs if isinstance(v, View)}
    out: dict[int, set[str]] = {}
    read_by: dict[str, set[int]] = {}
    for group in groups:
        for name in group.reads:
            read_by.setdefault(name, set()).add(group.number)
    for group in groups:
        out[group.number] = {
            n for n in group.writes if n in returned or read_by.get(n, set()) - {group.number}
        }
    return out


def merged_body(group: Group, live: set[str]) -> Body:
    """One body for a group: values that stay inside pass in registers, only ``live`` is stored."""
    recorder = Recorder()
    held: dict[str, int] = {}
    for _, _, body in group.members:
        number: dict[int, int] = {}
        for i, stmt in enumerate(body.stmts):
            number[i] = _copy(recorder, stmt, number, held, live)
    shape = group.shape
    return simplify(prune(Body(shape.sizes, shape.rsizes, tuple(recorder.stmts))))


def _copy(
    recorder: Recorder, stmt: Stmt, number: dict[int, int], held: dict[str, int], live: set[str]
) -> int:
    args = tuple(number[a] for a in stmt.args)
    attrs = stmt.attrs
    index = stmt_index(stmt)
    if index is not None:
        moved = index.renumber(number)
        attrs = (attrs[0], moved, *attrs[2:]) if stmt.op in ("load", "store") else (moved,)
    if stmt.op == "load" and attrs[0] in held:
        value = recorder.cast(held[attrs[0]], attrs[2])
        if args:  # a masked load reads zero where the mask is off
            value = recorder.op("where", args[0], value, recorder.const(0, recorder.dtype(value)))
        return value
    if stmt.op == "store":
        held[attrs[0]] = args[0]
        if attrs[0] not in live:
            return args[0]
    return recorder.emit(stmt.op, args, attrs, stmt.dtype)
