"""Copies with a part replaced, where each element can tell whether it is in the part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..body import Recorder
from ..index import ZERO, Index, floordiv, mod
from ..ir import Lazy, Tensor, cost_of
from ..sym import known_at_least, known_equal, plus, times
from .context import Lowering, wrapped
from .joining import at_least, below, both
from .registry import lower
from .views import slice_start
from .writing import scatter_set

aten = torch.ops.aten


@lower(aten.slice_scatter)
def slice_scatter(
    ctx: Lowering,
    a: Tensor,
    source: Tensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Any:
    """A copy of ``a`` with a slice replaced by ``source``."""
    dim %= len(a.sizes)
    first = slice_start(start, a.sizes[dim])
    count = source.sizes[dim]
    if first is None or not isinstance(step, int):
        return NotImplemented
    span = times(count, step)
    reaches_end = known_at_least(plus(plus(first, span), times(-1, a.sizes[dim])), 0)
    if count == 0:
        return Lazy(a.sizes, a.dtype, lambda r, i: a.load(r, i), *cost_of(a))

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        offset = index[dim] - first
        inside = None if first == 0 else at_least(recorder, offset, 0)
        if not reaches_end:
            inside = both(recorder, inside, below(recorder, offset, span))
        if step != 1:
            rest = recorder.index(mod(offset, step))
            hit = recorder.op("eq", rest, recorder.const(0, "int64"))
            inside = both(recorder, inside, hit)
        moved = [*index[:dim], floordiv(offset, step), *index[dim + 1 :]]
        if inside is None:
            return recorder.cast(source.load(recorder, moved), a.dtype)
        with recorder.masked(inside):
            new = recorder.cast(source.load(recorder, moved), a.dtype)
        return recorder.op("where", inside, new, a.load(recorder, index))

    costs = [cost_of(a), cost_of(source)]
    return Lazy(a.sizes, a.dtype, fn, sum(c for c, _ in costs) + 3, sum(r for _, r in costs))


@lower(aten.scatter.value, aten.scatter.src)
def scatter(ctx: Lowering, a: Tensor, dim: int, indices: Tensor, source: Any) -> Any:
    """A copy with one position of each row replaced; for more positions see `writing`.

    With a single position along ``dim`` every element compares its own position with it, which
    makes the gradient of a loss over classes one elementwise loop. A position outside the
    dimension replaces nothing, where eager stops.
    """
    if not a.sizes or len(indices.sizes) != len(a.sizes):
        return NotImplemented
    dim %= len(a.sizes)
    rows = [d for d in range(len(a.sizes)) if d != dim]
    if not known_equal(indices.sizes[dim], 1) or not all(
        known_equal(a.sizes[d], indices.sizes[d]) for d in rows
    ):
        return scatter_set(ctx, a, dim, indices, source)

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        row = [*index[:dim], ZERO, *index[dim + 1 :]]
        at = recorder.cast(indices.load(recorder, row), "int64")
        hit = recorder.op("eq", recorder.index(index[dim]), at)
        if isinstance(source, Tensor):
            new = recorder.cast(source.load(recorder, row), a.dtype)
        else:
            new = recorder.const(wrapped(source, a.dtype), a.dtype)
        return recorder.op("where", hit, new, a.load(recorder, index))

    costs = [cost_of(t) for t in (a, indices, source) if isinstance(t, Tensor)]
    return Lazy(a.sizes, a.dtype, fn, sum(c for c, _ in costs) + 3, sum(r for _, r in costs))
