"""Layer normalisation: statistics in one reduction, the normalised result from the input again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..body import Recorder
from ..index import ZERO, Index
from ..ir import Lazy, Tensor, cost_of
from .context import Lowering, dtype_name
from .pointwise import converted
from .reductions import moments
from .registry import lower

aten = torch.ops.aten


@lower(aten.native_layer_norm)
def native_layer_norm(
    ctx: Lowering,
    a: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Any:
    """(result, mean, 1 / standard deviation); the statistics are computed in float32 or float64."""
    rank, inner = len(a.sizes), len(normalized_shape)
    out, mean_dtype, rstd_dtype = (dtype_name(m.dtype) for m in ctx.meta)
    compute = "float64" if a.dtype == "float64" else "float32"
    if any(isinstance(s, int) and s == 0 for s in a.sizes):
        return NotImplemented
    a = ctx.rereadable(a)

    def finish(recorder: Recorder, mean: int, variance: int) -> list[int]:
        shifted = recorder.op("add", variance, recorder.const(eps, compute))
        return [mean, recorder.op("rsqrt", shifted)]

    mean, rstd = moments(
        ctx, a, list(range(rank - inner, rank)), 0.0, True, [compute, compute], finish
    )

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        row = [*index[: rank - inner], *([ZERO] * inner)]
        column = index[rank - inner :]
        value = recorder.cast(a.load(recorder, index), compute)
        value = recorder.op("sub", value, mean.load(recorder, row))
        value = recorder.op("mul", value, rstd.load(recorder, row))
        if weight is not None:
            factor = recorder.cast(weight.load(recorder, column), compute)
            value = recorder.op("mul", value, factor)
        if bias is not None:
            shift = recorder.cast(bias.load(recorder, column), compute)
            value = recorder.op("add", value, shift)
        return value

    operands = [a, mean, rstd, *(t for t in (weight, bias) if t is not None)]
    costs = [cost_of(t) for t in operands]
    result = Lazy(a.sizes, out, fn, sum(c for c, _ in costs) + 4, sum(r for _, r in costs))
    return result, _stored(ctx, mean, mean_dtype), _stored(ctx, rstd, rstd_dtype)


def _stored(ctx: Lowering, tensor: Tensor, dtype: str) -> Tensor:
    """A statistic as the dtype that eager returns."""
    return tensor if tensor.dtype == dtype else converted(ctx, tensor, dtype)
