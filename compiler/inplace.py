"""Results that take the place of an operand: elementwise kernels over memory that dies in them.

A pointwise kernel that reads an element only where it writes one can write it there. ResNet-50's
normalisation then overwrites the convolution's result instead of holding both, 103 MB each in its
first layers. The operand must be memory of our own or of a library call that is known to return
fresh memory, and nobody may look at it any more: no later group, no output, and no library call
that might have handed out a view of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from .body import Body
from .fuse import Group
from .index import Index
from .ir import LoweredGraph, views_in

#: Library calls whose result shares memory with nothing else, their operands included.
FRESH = frozenset(
    (
        *("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default"),
        *("aten.mm.out", "aten.addmm.out", "aten.convolution.default"),
        "aten.convolution_backward.default",
    )
)


def elementwise_pairs(body: Body) -> tuple[tuple[str, str], ...]:
    """(operand, result) buffers of a body that touches both at the same places only.

    And reads the operand for the last time before it writes the result: a body whose results were
    fused one after the other may read it again for a later one.
    """
    if body.rsizes:
        return ()
    loads: dict[str, set[tuple[Index, str]]] = {}
    stores: dict[str, list[tuple[Index, str] | None]] = {}
    read: dict[str, int] = {}  # the last statement that does
    written: dict[str, int] = {}
    for position, stmt in enumerate(body.stmts):
        if stmt.op == "load":
            loads.setdefault(stmt.attrs[0], set()).add((stmt.attrs[1], stmt.attrs[2]))
            read[stmt.attrs[0]] = position
        elif stmt.op == "store":
            written[stmt.attrs[0]] = position
            plain = stmt.attrs[2] == "set" and len(stmt.args) == 1
            stores.setdefault(stmt.attrs[0], []).append(
                (stmt.attrs[1], stmt.attrs[3]) if plain else None
            )
    found = []
    for result, places in stores.items():
        place = places[0]
        if len(places) == 1 and place is not None and not place[0].indirects():
            found += [
                (source, result)
                for source, seen in loads.items()
                if seen == {place} and read[source] < written[result]
            ]
    return tuple(found)


class Places:
    """Which buffer's memory each buffer lies in, decided group by group in program order."""

    def __init__(self, graph: LoweredGraph, groups: Iterable[Group]) -> None:
        self._graph = graph
        self._last: dict[str, int] = {}
        self._barred = {v.buffer.name for v in views_in(tuple(graph.outputs))}
        fresh: set[str] = set()
        for group in groups:
            for name in group.reads | group.writes:
                self._last[name] = group.number
            if group.extern is None or group.extern.op in FRESH:
                fresh |= group.writes
            else:
                self._barred |= group.reads | group.writes
        self._fresh = fresh
        self._place: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The buffer in whose memory ``name`` lies: itself, or the operand that it replaced."""
        return self._place.get(name, name)

    def take(self, result: str, pairs: Iterable[tuple[str, str]], group: int) -> bool:
        """Let ``result`` replace an operand that dies in this group, if there is one."""
        for source, target in pairs:
            dies = self._last[source] == group
            known = source in self._fresh and source not in self._barred
            if target == result and dies and known and self._alike(source, result):
                self._barred.add(source)  # for another result of this group
                self._place[result] = self.of(source)
                return True
        return False

    def _alike(self, source: str, result: str) -> bool:
        a, b = self._graph.buffers[source], self._graph.buffers[result]
        same = (a.sizes, a.strides, a.dtype) == (b.sizes, b.strides, b.dtype)
        return same and a.device == b.device and a.aligned == b.aligned
