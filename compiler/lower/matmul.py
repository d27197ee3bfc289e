"""Matrix products whose number of columns is not a multiple of 16 bytes.

Library products stay library calls. But a number of columns like GPT-2's vocabulary (50,257 of
bfloat16) rules out Hopper's fast kernels, which want every row of the result aligned and whole
vectors of columns: 3.34 ms against 0.45 ms (H200, torch 2.11). Such a product is split: the columns
up to the last whole vector in one call, the few that are left in another, both into memory whose
rows are padded. Kernels read that in place; only where somebody asks for the dense layout is it
copied (0.22 ms for GPT-2's logits).
"""

from __future__ import annotations

from typing import Any

import torch

from ..ir import Extern, Output, Tensor, View
from ..ops import ITEMSIZE
from ..sym import as_size
from .context import Lowering
from .registry import lower

aten = torch.ops.aten

#: Rows start at multiples of this many bytes: the unit of Hopper's bulk store and of vector loads.
ROW_BYTES = 16
#: Below this many elements the extra copy costs more than the slow product.
WORTHWHILE = 1 << 20


def _unit(dtype: str) -> int:
    return ROW_BYTES // ITEMSIZE[dtype]


def _wants_padding(ctx: Lowering) -> bool:
    sizes, dtype = ctx.out_sizes(), ctx.out_dtype()
    if dtype not in ("bfloat16", "float16") or not all(isinstance(s, int) for s in sizes):
        return False
    rows, columns = (int(s) for s in sizes)
    return rows * columns >= WORTHWHILE and columns % _unit(dtype) != 0 and columns > _unit(dtype)


def _product(
    ctx: Lowering, op: str, bias: Tensor | None, a: Tensor, b: Tensor, scales: dict[str, Any]
) -> View:
    """Add the two library calls, and return the dense part of their padded result."""
    assert ctx.node is not None
    views = [_as_traced(ctx, t, n) for t, n in zip((bias, a, b), _sources(ctx), strict=True) if t]
    left, right = views[-2], views[-1]
    rows, columns = (int(s) for s in ctx.out_sizes())
    unit = _unit(ctx.out_dtype())
    split, width = columns // unit * unit, -(-columns // unit) * unit
    buffer = ctx.buffer((rows, width), ctx.out_dtype(), role="extern")
    for start, stop in ((0, split), (split, columns)):
        operands = [left, _columns(right, start, stop)]
        if bias is not None:
            operands.insert(0, _columns(views[0], start, stop))
        out = View(buffer, (rows, stop - start), (width, 1), start)
        ctx.graph.nodes.append(
            Extern(
                ctx.fresh("ext"),
                op,
                tuple(operands),
                tuple(scales.items()),
                (Output(buffer),),
                ctx.origin(),
                out,
            )
        )
    return View(buffer, (rows, columns), (width, 1))


def _sources(ctx: Lowering) -> tuple[Any, Any, Any]:
    assert ctx.node is not None
    args = ctx.node.args
    return (None, *args) if len(args) == 2 else args  # type: ignore[return-value]


def _as_traced(ctx: Lowering, tensor: Tensor, source: Any) -> View:
    return ctx.realize(tensor, tuple(as_size(s) for s in source.meta["val"].stride()))


def _columns(view: View, start: int, stop: int) -> View:
    """Columns ``start`` to ``stop`` of a matrix or a bias; a bias may have one column for all."""
    if (view.sizes[-1] == 1 and stop - start != 1) or not view.sizes:
        return view
    if view.sizes[-1] == 1:
        start, stop = 0, 1
    sizes = (*view.sizes[:-1], stop - start)
    offset = view.offset + start * view.strides[-1]
    return View(view.buffer, sizes, view.strides, offset, view.dtype)


@lower(aten.mm.default)
def mm(ctx: Lowering, a: Tensor, b: Tensor) -> Any:
    """Matrix product in two calls into padded rows, where that pays."""
    return _product(ctx, "aten.mm.out", None, a, b, {}) if _wants_padding(ctx) else NotImplemented


@lower(aten.addmm.default)
def addmm(ctx: Lowering, bias: Tensor, a: Tensor, b: Tensor, **scales: Any) -> Any:
    """Matrix product plus bias in two calls into padded rows, where that pays."""
    if not _wants_padding(ctx):
        return NotImplemented
    return _product(ctx, "aten.addmm.out", bias, a, b, scales)
