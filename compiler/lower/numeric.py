"""Elementwise operators that need more than a table row: signs, NaN-blind extremes, shifts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND

from ..body import Recorder
from ..ir import Tensor
from ..ops import INTS, ITEMSIZE, is_float
from .context import Lowering
from .pointwise import elementwise, plain, promoted
from .registry import lower

aten = torch.ops.aten


@lower(aten.signbit)
def signbit(ctx: Lowering, a: Tensor) -> Any:
    """Whether the sign bit is set: true for -0.0 and for a negative NaN."""
    if a.dtype in ("bool", "uint8"):
        return elementwise(ctx, (a,), lambda r, v: r.const(False, "bool"), compute=a.dtype)
    return elementwise(ctx, (a,), plain("signbit"), compute=a.dtype)


@lower(aten.fmax, aten.fmin)
def blind_extreme(ctx: Lowering, a: Any, b: Any) -> Any:
    """The larger or smaller operand; NaN loses."""
    assert ctx.node is not None
    largest = ctx.node.target.overloadpacket is aten.fmax  # type: ignore[union-attr]
    name = "maximum" if largest else "minimum"
    compute = promoted(ctx, KIND.DEFAULT)

    def emit(recorder: Recorder, values: list[int]) -> int:
        x, y = values
        result = recorder.op(name, x, y)
        if not is_float(compute):
            return result
        result = recorder.op("where", recorder.op("isnan", x), y, result)
        return recorder.op("where", recorder.op("isnan", y), x, result)

    return elementwise(ctx, (a, b), emit, compute=compute, cost=5)


@lower(aten.angle)
def angle(ctx: Lowering, a: Tensor) -> Any:
    """Zero for positive numbers, pi for negative ones, NaN for NaN."""
    compute = promoted(ctx, KIND.INT_TO_FLOAT)

    def emit(recorder: Recorder, values: list[int]) -> int:
        x = values[0]
        negative = recorder.op("lt", x, recorder.const(0.0, compute))
        turned = recorder.const(math.pi, compute)
        result = recorder.op("where", negative, turned, recorder.const(0.0, compute))
        return recorder.op("where", recorder.op("isnan", x), x, result)

    return elementwise(ctx, (a,), emit, compute=compute, cost=4)


@lower(aten.nextafter)
def nextafter(ctx: Lowering, a: Tensor, b: Tensor) -> Any:
    """The neighbour of ``a`` towards ``b``; narrow floats have other neighbours than float32."""
    compute = promoted(ctx, KIND.NO_OPMATH)
    if compute not in ("float32", "float64"):
        return NotImplemented
    return elementwise(ctx, (a, b), plain("nextafter"), compute=compute, cost=10)


@lower(aten.bitwise_left_shift, aten.bitwise_right_shift, aten.__lshift__, aten.__rshift__)
def shift(ctx: Lowering, a: Any, b: Any) -> Any:
    """Shift bits; by a negative or too large count everything is shifted out, the sign remains."""
    assert ctx.node is not None
    packet = ctx.node.target.overloadpacket  # type: ignore[union-attr]
    left = packet in (aten.bitwise_left_shift, aten.__lshift__)
    compute = promoted(ctx, KIND.DEFAULT)
    if compute not in INTS:
        return NotImplemented
    bits = 8 * ITEMSIZE[compute]

    def emit(recorder: Recorder, values: list[int]) -> int:
        x, count = values
        zero = recorder.const(0, compute)
        sane = recorder.op(
            "and",
            recorder.op("ge", count, zero),
            recorder.op("lt", count, recorder.const(bits, compute)),
        )
        name = "shift_left" if left else "shift_right"
        usual = recorder.op(name, x, recorder.op("where", sane, count, zero))
        if left:
            return recorder.op("where", sane, usual, zero)
        rest = zero
        if compute != "uint8":
            rest = recorder.op("shift_right", x, recorder.const(bits - 1, compute))
        return recorder.op("where", sane, usual, rest)

    return elementwise(ctx, (a, b), emit, compute=compute, cost=6)
