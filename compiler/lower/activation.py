"""Activations that stay whole in a traced graph, and limits; the others arrive as their parts."""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND

from ..body import Recorder
from ..ir import Tensor
from .context import Lowering
from .pointwise import elementwise, promoted
from .registry import lower

aten = torch.ops.aten


@lower(aten.relu)
def relu(ctx: Lowering, a: Tensor) -> Any:
    """``max(a, 0)``, NaN stays NaN."""
    return elementwise(
        ctx,
        (a,),
        lambda r, v: r.op("maximum", v[0], r.const(0, a.dtype)),
        compute=a.dtype,
    )


@lower(aten.clamp, aten.clamp_min, aten.clamp_max)
def clamp(ctx: Lowering, a: Tensor, low: Any = None, high: Any = None, **named: Any) -> Any:
    """Limit to ``low`` and ``high`` (numbers or tensors); NaN in any operand gives NaN."""
    assert ctx.node is not None
    low, high = named.get("min", low), named.get("max", high)
    if ctx.node.target.overloadpacket is aten.clamp_max:  # type: ignore[union-attr]
        low, high = None, low
    compute = promoted(ctx, KIND.DEFAULT, named=("min", "max"))
    if compute == "bool":
        return NotImplemented
    limits = [x for x in (low, high) if x is not None]

    def emit(recorder: Recorder, values: list[int]) -> int:
        x, *rest = values
        if low is not None:
            x = recorder.op("maximum", x, rest.pop(0))
        if high is not None:
            x = recorder.op("minimum", x, rest.pop(0))
        return x

    return elementwise(ctx, (a, *limits), emit, compute=compute, cost=2)


@lower(aten.hardtanh)
def hardtanh(ctx: Lowering, a: Tensor, min_val: Any = -1, max_val: Any = 1) -> Any:
    """Limit to a range of numbers; NaN stays NaN."""
    compute = promoted(ctx, KIND.DEFAULT, positions=(0,))
    if compute == "bool":
        return NotImplemented

    def emit(recorder: Recorder, values: list[int]) -> int:
        return recorder.op("minimum", recorder.op("maximum", values[0], values[1]), values[2])

    return elementwise(ctx, (a, min_val, max_val), emit, compute=compute, cost=2)


@lower(aten.leaky_relu)
def leaky_relu(ctx: Lowering, a: Tensor, negative_slope: Any = 0.01) -> Any:
    """``a`` where it is positive, a fraction of it elsewhere."""
    compute = promoted(ctx, KIND.DEFAULT, positions=(0,))

    def emit(recorder: Recorder, values: list[int]) -> int:
        x = values[0]
        positive = recorder.op("gt", x, recorder.const(0, compute))
        scaled = recorder.op("mul", x, recorder.const(negative_slope, compute))
        return recorder.op("where", positive, x, scaled)

    return elementwise(ctx, (a,), emit, compute=compute, cost=3)


@lower(aten.elu)
def elu(ctx: Lowering, a: Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    """Scaled where positive, a scaled exponential that tends to a constant elsewhere."""
    compute = promoted(ctx, KIND.DEFAULT, positions=(0,))

    def emit(recorder: Recorder, values: list[int]) -> int:
        x = values[0]
        positive = recorder.op("gt", x, recorder.const(0, compute))
        above = recorder.op("mul", x, recorder.const(scale, compute))
        inner = recorder.op("mul", x, recorder.const(input_scale, compute))
        factor = recorder.const(alpha * scale, compute)
        under = recorder.op("mul", recorder.op("expm1", inner), factor)
        return recorder.op("where", positive, above, under)

    return elementwise(ctx, (a,), emit, compute=compute, cost=25)


@lower(aten.gelu)
def gelu(ctx: Lowering, a: Tensor, *, approximate: str = "none") -> Any:
    """Gaussian error linear unit: exact (erf) or the tanh approximation of Hendrycks and Gimpel."""
    compute = promoted(ctx, KIND.DEFAULT)

    def exact(r: Recorder, v: list[int]) -> int:
        scaled = r.op("mul", v[0], r.const(0.7071067811865476, compute))  # 1 / sqrt(2)
        cdf = r.op("add", r.op("erf", scaled), r.const(1.0, compute))
        return r.op("mul", r.op("mul", v[0], r.const(0.5, compute)), cdf)

    def tanh(r: Recorder, v: list[int]) -> int:
        x = v[0]
        cube = r.op("mul", r.op("mul", x, x), x)
        inner = r.op("add", x, r.op("mul", cube, r.const(0.044715, compute)))
        inner = r.op("mul", inner, r.const(0.7978845608028654, compute))  # sqrt(2 / pi)
        half = r.op("mul", x, r.const(0.5, compute))
        return r.op("mul", half, r.op("add", r.op("tanh", inner), r.const(1.0, compute)))

    return elementwise(
        ctx, (a,), exact if approximate == "none" else tanh, compute=compute, cost=30
    )
