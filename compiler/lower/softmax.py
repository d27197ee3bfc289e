"""Softmax and its logarithm: two reductions and an epilogue that reads the input again.

The statistics stay in float32 (float64 for float64 input) and the input is recorded anew in each of
the three loops; fusion puts them into one kernel, where equal statements are one.
"""

from __future__ import annotations

from typing import Any

import torch

from ..body import Recorder
from ..ir import Lazy, Tensor, cost_of
from .context import Lowering
from .registry import lower

aten = torch.ops.aten


def statistics(ctx: Lowering, a: Tensor, dim: int, compute: str) -> tuple[Tensor, Tensor]:
    """The maximum along ``dim`` and the sum of ``exp(a - maximum)``, both with size 1 there."""
    (peak,) = ctx.reduce("max", a, [dim], compute=compute, out_dtypes=[compute], keepdim=True)
    shifted = Lazy(
        a.sizes,
        compute,
        lambda r, i: r.op("exp", _shift(r, i, a, peak, compute)),
    )
    (total,) = ctx.reduce(
        "sum", shifted, [dim], compute=compute, out_dtypes=[compute], keepdim=True
    )
    return peak, total


def _shift(recorder: Recorder, index: Any, a: Tensor, peak: Tensor, compute: str) -> int:
    value = recorder.cast(a.load(recorder, index), compute)
    return recorder.op("sub", value, _along(recorder, index, peak))


def _along(recorder: Recorder, index: Any, statistic: Tensor) -> int:
    from .context import broadcast_index

    sizes = statistic.sizes
    whole = tuple(-1 if s == 1 else s for s in sizes)  # size 1 is stretched wherever it stands
    return statistic.load(recorder, broadcast_index(index, sizes, whole))


@lower(aten._softmax, aten._log_softmax)
def softmax(ctx: Lowering, a: Tensor, dim: int, half_to_float: bool) -> Any:
    """Softmax or its logarithm along one dimension, which may be any."""
    assert ctx.node is not None
    sizes, out = ctx.out_sizes(), ctx.out_dtype()
    compute = "float64" if a.dtype == "float64" else "float32"
    if any(isinstance(s, int) and s == 0 for s in sizes):
        return Lazy(sizes, out, lambda r, i: r.const(0, out), 0, 0)
    a = ctx.rereadable(a)
    dim = dim % len(sizes) if sizes else 0
    peak, total = statistics(ctx, a, dim, compute)
    logarithm = ctx.node.target.overloadpacket is aten._log_softmax  # type: ignore[union-attr]

    def fn(recorder: Recorder, index: Any) -> int:
        shifted = _shift(recorder, index, a, peak, compute)
        whole = _along(recorder, index, total)
        if logarithm:
            return recorder.op("sub", shifted, recorder.op("log", whole))
        return recorder.op("div", recorder.op("exp", shifted), whole)

    cost, reads = cost_of(a)
    return Lazy(sizes, out, fn, cost + 30, reads + 2)
