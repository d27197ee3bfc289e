"""Convolutions are library calls, without what our kernels do on the way.

The libraries add a bias in a pass of its own over the result, and sum its gradient in another; here
the one fuses with what follows and the other with what made the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..body import Recorder
from ..index import Index
from ..ir import Lazy, Tensor
from ..ops import is_float
from .context import Lowering, dtype_name
from .fallback import extern_arguments
from .registry import lower

aten = torch.ops.aten


@lower(aten.convolution.default)
def convolution(
    ctx: Lowering, a: Tensor, weight: Tensor, bias: Tensor | None, *options: Any
) -> Any:
    """A library call without the bias, which is added to its result."""
    assert ctx.node is not None
    if (
        bias is None
        or len(options) != 6
        or not is_float(a.dtype)
        or len(a.sizes) != len(weight.sizes)
    ):
        return NotImplemented
    args = extern_arguments(ctx, ctx.node, (a, weight, None, *options))
    result = ctx.extern(str(ctx.node.target), args, {}, ctx.meta)

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        value = result.load(recorder, index)
        return recorder.op("add", value, bias.load(recorder, [index[1]]))

    return Lazy(result.sizes, result.dtype, fn, 1, 2)


@lower(aten.convolution_backward.default)
def convolution_backward(
    ctx: Lowering, gradient: Tensor, a: Tensor, weight: Tensor, bias_sizes: Any, *options: Any
) -> Any:
    """Gradients of image and weight from a library call; the bias's is a sum of ours."""
    assert ctx.node is not None
    *shape, mask = options
    if (
        len(ctx.node.args) != 11
        or not mask[2]
        or not is_float(gradient.dtype)
        or len(a.sizes) != len(weight.sizes)
    ):
        return NotImplemented
    out = dtype_name(ctx.meta[2].dtype)
    dims = [d for d in range(len(gradient.sizes)) if d != 1]
    if not (mask[0] or mask[1]):
        (total,) = ctx.reduce("sum", gradient, dims, compute=out, out_dtypes=[out], keepdim=False)
        return None, None, total
    given = (gradient, a, weight, None, *shape, [mask[0], mask[1], False])
    args = extern_arguments(ctx, ctx.node, given)
    (total,) = ctx.reduce("sum", args[0], dims, compute=out, out_dtypes=[out], keepdim=False)
    found = ctx.extern(str(ctx.node.target), args, {}, (*ctx.meta[:2], None))
    return (*found[:2], total)
