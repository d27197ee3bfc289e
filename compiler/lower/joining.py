"""Results made of several parts: concatenation and padding.

An element's part is chosen by its position, so each part is read under a mask: a lane outside
a part never touches that part's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..body import Recorder
from ..index import Index
from ..ir import Lazy, Tensor, cost_of
from ..sym import Size, known_at_most, plus
from .context import Lowering, wrapped
from .registry import lower
from .views import remapped

aten = torch.ops.aten

#: More parts than this are one library call: a chain of selects would run through all of them.
MAX_PARTS = 12


def size_value(recorder: Recorder, size: Size) -> int:
    """A size or position as an int64 value."""
    return recorder.index(Index((), size))


def below(recorder: Recorder, at: Index, limit: Size) -> int:
    """Whether an index is less than a size, as a boolean value."""
    return recorder.op("lt", recorder.index(at), size_value(recorder, limit))


def at_least(recorder: Recorder, at: Index, limit: Size) -> int:
    """Whether an index is no less than a size, as a boolean value."""
    return recorder.op("ge", recorder.index(at), size_value(recorder, limit))


def both(recorder: Recorder, a: int | None, b: int | None) -> int | None:
    """The conjunction of two conditions; None is true."""
    if a is None or b is None:
        return b if a is None else a
    return recorder.op("and", a, b)


@lower(aten.cat)
def cat(ctx: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Parts one after another along ``dim``; empty ones do not count."""
    sizes, dtype = ctx.out_sizes(), ctx.out_dtype()
    rank = len(sizes)
    dim %= rank
    parts = [t for t in tensors if len(t.sizes) == rank and t.sizes[dim] != 0]
    if not parts:
        return Lazy(sizes, dtype, lambda r, i: r.const(0, dtype), 0, 0)
    if len(parts) > MAX_PARTS:
        return NotImplemented
    starts: list[Size] = [0]
    for part in parts:
        starts.append(plus(starts[-1], part.sizes[dim]))

    def read(recorder: Recorder, index: Sequence[Index], number: int) -> int:
        at = index[dim] - starts[number]
        moved = [*index[:dim], at, *index[dim + 1 :]]
        return recorder.cast(parts[number].load(recorder, moved), dtype)

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        last = len(parts) - 1
        if last == 0:
            return read(recorder, index, 0)
        result = -1
        for number in range(last, -1, -1):
            before_end = below(recorder, index[dim], starts[number + 1]) if number < last else None
            after_start = at_least(recorder, index[dim], starts[number]) if number else None
            mask = both(recorder, after_start, before_end)
            assert mask is not None
            with recorder.masked(mask):
                value = read(recorder, index, number)
            if before_end is None:
                result = value
            else:
                result = recorder.op("where", before_end, value, result)
        return result

    costs = [cost_of(p) for p in parts]
    return Lazy(
        sizes, dtype, fn, sum(c for c, _ in costs) + 3 * len(parts), sum(r for _, r in costs)
    )


@lower(aten.stack)
def stack(ctx: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Equal shapes side by side along a new dimension."""
    dim %= len(ctx.out_sizes())
    parts = [
        remapped(
            t,
            (*t.sizes[:dim], 1, *t.sizes[dim:]),
            lambda index: [*index[:dim], *index[dim + 1 :]],
        )
        for t in tensors
    ]
    return cat(ctx, parts, dim)


@lower(aten.constant_pad_nd)
def constant_pad_nd(ctx: Lowering, a: Tensor, pad: Sequence[Any], value: Any = 0) -> Any:
    """A border of one number; negative widths cut instead."""
    if not isinstance(value, (bool, int, float)):
        return NotImplemented
    rank = len(a.sizes)
    before: list[Size] = [0] * rank
    after: list[Size] = [0] * rank
    for k in range(len(pad) // 2):
        before[rank - 1 - k], after[rank - 1 - k] = pad[2 * k], pad[2 * k + 1]
    number = wrapped(value, a.dtype)

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        inside: int | None = None
        moved: list[Index] = []
        for d, i in enumerate(index):
            at = i - before[d]
            if not known_at_most(before[d], 0):
                inside = both(recorder, inside, at_least(recorder, at, 0))
            if not known_at_most(after[d], 0):
                inside = both(recorder, inside, below(recorder, at, a.sizes[d]))
            moved.append(at)
        if inside is None:
            return a.load(recorder, moved)
        with recorder.masked(inside):
            element = a.load(recorder, moved)
        border = recorder.round_to(recorder.const(number, a.dtype), a.dtype)
        return recorder.op("where", inside, element, border)

    cost, reads = cost_of(a)
    return Lazy(ctx.out_sizes(), a.dtype, fn, cost + 3, reads)
