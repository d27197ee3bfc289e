"""Fusion: loop nests that share data become one group, and each group becomes one kernel.

Two groups fuse if their loops align (`loops.align`), every value that one reads from the other is
read exactly where it was written (so it can stay in a register), and no third node lies between
them. Greedy, by bytes of memory traffic saved. Library calls are groups of their own and never
fuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .body import Body, Recorder, Stmt, prune, stmt_index, varies
from .index import Index
from .ir import Buffer, Compute, Extern, LoweredGraph, View
from .loops import Alignment, Substitution, align, align_whole, memory_order, simplify, substitute
from .ops import ITEMSIZE
from .order import Order
from .split import FILL, pieces_wanted, split
from .sym import Size, hint
from .tile import reduces_inner

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
    position: int = 0
    adds: set[str] = field(default_factory=set)  # written by other groups before

    @property
    def shape(self) -> Body:
        """The group's loops (the statements are the first member's)."""
        return self.members[0][2]


def _bytes(buffer: Buffer) -> int:
    total = ITEMSIZE.get(buffer.dtype, 4)
    for size in buffer.sizes:
        total *= hint(size)
    return total


def _stores(body: Body) -> list[tuple[str, Index]]:
    return [(s.attrs[0], s.attrs[1]) for s in body.stmts if s.op == "store"]


def _renamed(body: Body, sizes: Sequence[Size], rsizes: Sequence[Size], values: object) -> Body:
    return Body(tuple(sizes), tuple(rsizes), substitute(body.stmts, values))  # type: ignore[arg-type]


class Fuser:
    """One greedy run over a lowered graph."""

    def __init__(self, graph: LoweredGraph, fill: int) -> None:
        self.graph = graph
        self.fill = fill
        self.groups: dict[int, Group] = {}
        self.writer: dict[str, int] = {}
        self.readers: dict[str, set[int]] = {}
        self.deps: dict[int, set[int]] = {}
        for position, node in enumerate(graph.nodes):
            self._add(position, node)
        self._order_random(graph)
        self.order = Order(self.deps)

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
        self.deps[position] = {self.writer[b] for b in touched if b in self.writer}
        group.adds = {b for b in group.writes if b in self.writer and group.extern is None}
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
                    self.deps[position].add(last)
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
        if not a.writes.isdisjoint(b.writes):
            return None  # one adds to what the other stored, elsewhere
        deps = self.order.deps
        linked = a.number in deps[b.number] or b.number in deps[a.number]
        if not linked and abs(a.position - b.position) > HORIZONTAL_REACH:
            return None
        if len(a.reads | b.reads | a.writes | b.writes) > MAX_BUFFERS:
            return None
        if sum(len(m[2].stmts) for m in (*a.members, *b.members)) > MAX_STMTS:
            return None
        alignment = self._aligned(a, b, linked)
        if alignment is None:
            return None
        if self.order.detour(a.number, b.number) or self.order.detour(b.number, a.number):
            return None
        return alignment

    def _aligned(self, a: Group, b: Group, linked: bool) -> Alignment | None:
        """The first iteration space in which the two groups may share a kernel."""
        for alignment in _alignments(a, b):
            if not self._in_registers(a, b, alignment) or self._starves(a, b, alignment):
                continue
            if linked or a.shape.numel == b.shape.numel or _same_reads(a, b, alignment):
                return alignment
        return None

    def _starves(self, a: Group, b: Group, alignment: Alignment) -> bool:
        """Whether what could fill the GPU alone would wait for a reduction that cannot.

        Such a reduction is split (see `split`) unless something in its loops needs its results.
        """
        if not a.shape.rsizes and not b.shape.rsizes:
            return False
        bodies = [body for group in (a, b) for _, _, body in group.members if body.rsizes]
        if pieces_wanted(alignment.numel, alignment.rnumel, reduces_inner(bodies), self.fill) > 1:
            return _needs_results(a, b, alignment) or _needs_results(b, a, alignment)
        whole = a.shape.numel != b.shape.numel
        return whole and hint(alignment.rnumel) > LONG_ROW and hint(alignment.numel) < FEW_ROWS

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
                    if name in written or index.indirects() or name in source.adds:
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
        a.adds |= b.adds
        a.origin = tuple(dict.fromkeys((*a.origin, *b.origin)))
        a.position = max(a.position, b.position)
        del self.groups[b.number]
        for name in b.writes:
            if self.writer[name] == b.number:
                self.writer[name] = a.number
        for name in b.reads:
            self.readers[name].discard(b.number)
            self.readers[name].add(a.number)
        self.order.merge(a.number, b.number)

    def _ordered(self) -> list[Group]:
        out: list[Group] = []
        placed: set[int] = set()
        waiting = sorted(self.groups.values(), key=lambda g: g.position)
        while waiting:
            rest: list[Group] = []
            for group in waiting:
                if self.order.deps[group.number] <= placed:
                    out.append(group)
                    placed.add(group.number)
                else:
                    rest.append(group)
            if len(rest) == len(waiting):
                raise AssertionError("fusion made a cycle")
            waiting = rest
        return out


def _alignments(a: Group, b: Group) -> Iterator[Alignment]:
    """Iteration spaces to try: row-major first, then along memory that both of them touch.

    A reduction across rows visits memory column by column; a pointwise nest that walks along the
    rows fits it in the order of the addresses.
    """
    plain = align(a.shape, b.shape)
    if plain is not None:
        yield plain
    if bool(a.shape.rsizes) == bool(b.shape.rsizes):
        return
    reduction, nest = (a, b) if a.shape.rsizes else (b, a)
    shared = (a.writes & b.reads) | (b.writes & a.reads) or a.reads & b.reads
    tried = set()
    for name in sorted(shared):
        for index in _addresses(reduction, name):
            order = memory_order(reduction.shape, index)
            if order is None or tuple(order) in tried:
                continue
            tried.add(tuple(order))
            found = align_whole(reduction.shape, nest.shape, order)
            if found is not None:
                yield found if reduction is a else found.flipped()


def _addresses(group: Group, name: str) -> set[Index]:
    """Where a group reads or writes a buffer."""
    accesses = (s for _, _, body in group.members for s in body.stmts if s.op in ("load", "store"))
    return {s.attrs[1] for s in accesses if s.attrs[0] == name}


def _needs_results(source: Group, sink: Group, alignment: Alignment) -> bool:
    """Whether the reduction loops of ``sink`` read what the reductions of ``source`` give."""
    if not source.shape.rsizes:
        return False
    results: set[str] = set()
    for _, _, body in source.members:
        along = varies(body.stmts)
        for i, stmt in enumerate(body.stmts):
            if stmt.op == "store" and not along[i]:
                results.add(stmt.attrs[0])
    for _, _, body in sink.members:
        if results.isdisjoint(body.reads()):
            continue
        if any(varies(body.stmts)) if sink.shape.rsizes else body.numel != alignment.numel:
            return True
    return False


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


def fuse(graph: LoweredGraph, fill: int = FILL) -> list[Group]:
    """Group a lowered graph's nodes into kernels and library calls, in a valid order.

    ``fill`` is how many programs keep the device busy (see `split`).
    """
    return Fuser(graph, fill).run()


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


def split_groups(groups: Iterable[Group], graph: LoweredGraph, fill: int = FILL) -> list[Group]:
    """The groups with reductions of few long rows split in two; see `split`."""
    groups = list(groups)
    live = live_after(groups, graph.outputs)
    number = max((g.number for g in groups), default=0)
    out: list[Group] = []
    for group in groups:
        halves = None
        if group.extern is None and group.shape.rsizes:
            body = merged_body(group, live[group.number])
            halves = split(body, reduces_inner([body]), fill, f"part{group.number}_")
        if halves is None:
            out.append(group)
            continue
        graph.buffers |= {b.name: b for b in halves.buffers}
        for body in (halves.pieces, halves.finish):
            number += 1
            members = [(group.position, group.members[0][1], simplify(body))]
            reads, writes = body.reads(), body.writes()
            out.append(Group(number, members, None, reads, writes, group.origin))
    return out
