"""Launches that independent nests share: small work on a graph's inputs, done side by side.

A training step of a convolution network counts its batches in 53 tensors of one element, and lays
out 17 weights; each would be a launch that takes longer than its work. Nests that read nothing but
inputs of the graph can run at any time before their results are needed, so those over equal loops
become one kernel, at the place of the first. That keeps the results of the later ones alive for
longer, which a budget bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from .fuse import MAX_BUFFERS, MAX_STMTS, Group
from .ir import LoweredGraph
from .ops import ITEMSIZE
from .sym import hint, product

#: Bytes of results that may wait for their use in one graph.
WAITING_BYTES = 64 << 20


def join_prologues(groups: Sequence[Group], graph: LoweredGraph) -> list[Group]:
    """The groups, in order, with nests over equal loops that read only inputs joined."""
    written = {name for group in groups for name in group.writes}
    waiting = 0
    open_: dict[tuple, Group] = {}
    out: list[Group] = []
    for group in groups:
        if not _is_prologue(group, written):
            out.append(group)
            continue
        size = sum(_bytes(graph, name) for name in group.writes)
        first = open_.get(group.shape.sizes)
        if first is None or not _fits(first, group) or waiting + size > WAITING_BYTES:
            open_[group.shape.sizes] = group
            out.append(group)
            continue
        waiting += size
        first.members += group.members
        first.reads |= group.reads
        first.writes |= group.writes
        first.origin = tuple(dict.fromkeys((*first.origin, *group.origin)))
    return out


def _is_prologue(group: Group, written: set[str]) -> bool:
    """Whether a group is a pointwise nest over inputs of the graph alone."""
    if group.extern is not None or group.shape.rsizes or group.adds or not group.reads:
        return False
    return group.reads.isdisjoint(written)


def _fits(first: Group, group: Group) -> bool:
    buffers = first.reads | first.writes | group.reads | group.writes
    stmts = sum(len(body.stmts) for _, _, body in (*first.members, *group.members))
    return len(buffers) <= MAX_BUFFERS and stmts <= MAX_STMTS


def _bytes(graph: LoweredGraph, name: str) -> int:
    buffer = graph.buffers[name]
    return hint(product(buffer.sizes)) * ITEMSIZE.get(buffer.dtype, 8)
