"""Matrix products with a dimension that is not a multiple of 16 bytes.

Library products stay library calls. But a size like GPT-2's vocabulary (50,257 of bfloat16) rules
out Hopper's fast kernels, which want every row aligned and whole vectors along it: 3.34 ms against
0.45 ms for the logits, 2.41 against 0.41 and 2.34 against 0.41 for the two products of their
gradient (H200, torch 2.11). Such a product is split at the last whole vector:

columns of the result   one call each, both into memory whose rows are padded
rows of the result      one call each
the summed dimension    the few that are left first, then the rest is added to that

Kernels read padded rows in place; only where somebody asks for the dense layout are they copied
(0.22 ms for GPT-2's logits). What the compiler itself computes for a product to read is stored in
padded rows from the start (`padded_rows`, which `Lowering` asks).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..ir import Extern, Output, Tensor, View
from ..ops import ITEMSIZE
from ..sym import Size, as_size, contiguous_strides, is_static, product, strides_of
from .context import Lowering, dtype_name
from .registry import lower

aten = torch.ops.aten

#: Rows start at multiples of this many bytes: the unit of Hopper's bulk store and of vector loads.
ROW_BYTES = 16
#: Below this many elements the extra copy costs more than the slow product.
WORTHWHILE = 1 << 20
_HALVES = ("bfloat16", "float16")


def _unit(dtype: str) -> int:
    return ROW_BYTES // ITEMSIZE[dtype]


def _wants_padding(ctx: Lowering) -> bool:
    sizes, dtype = ctx.out_sizes(), ctx.out_dtype()
    if dtype not in _HALVES or not all(isinstance(s, int) for s in sizes):
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
        _call(ctx, op, tuple(operands), out, scales)
    return View(buffer, (rows, columns), (width, 1))


def _sources(ctx: Lowering) -> tuple[Any, Any, Any]:
    assert ctx.node is not None
    args = ctx.node.args
    return (None, *args) if len(args) == 2 else args  # type: ignore[return-value]


def _as_traced(ctx: Lowering, tensor: Tensor, source: Any) -> View:
    return ctx.realize(tensor, strides_of(source.meta["val"]))


def _columns(view: View, start: int, stop: int) -> View:
    """Columns ``start`` to ``stop`` of a matrix or a bias; a bias may have one column for all."""
    if (view.sizes[-1] == 1 and stop - start != 1) or not view.sizes:
        return view
    if view.sizes[-1] == 1:
        start, stop = 0, 1
    sizes = (*view.sizes[:-1], stop - start)
    offset = view.offset + start * view.strides[-1]
    return View(view.buffer, sizes, view.strides, offset, view.dtype)


def padded_rows(node: fx.Node) -> tuple[Size, ...] | None:
    """Strides with padded rows for a tensor that products read along an unaligned dimension."""
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor) or val.dim() < 2 or dtype_name(val.dtype) not in _HALVES:
        return None
    sizes = tuple(as_size(s) for s in val.shape)
    if not is_static(*sizes) or int(product(sizes)) < WORTHWHILE or not val.is_contiguous():
        return None
    unit = _unit(dtype_name(val.dtype))
    if int(sizes[-1]) % unit == 0 or int(sizes[-1]) < unit or not _read_by_product(node):
        return None
    return contiguous_strides((*sizes[:-1], -(-int(sizes[-1]) // unit) * unit))


#: Views that keep rows whole.
_RESHAPES = (aten.view.default, aten.permute.default, aten.t.default, aten.transpose.int)


def _read_by_product(node: fx.Node) -> bool:
    waiting = list(node.users)
    while waiting:
        user = waiting.pop()
        if user.target in _RESHAPES:
            waiting += user.users
        elif user.target is aten.mm.default:
            return True
    return False


def _split_rows(ctx: Lowering, a: View, b: View) -> View:
    """The rows up to the last whole vector, then the few that are left, into one dense result."""
    rows, columns = (int(s) for s in ctx.out_sizes())
    split = rows // _unit(a.dtype) * _unit(a.dtype)
    buffer = ctx.buffer((rows, columns), ctx.out_dtype(), role="extern")
    for start, stop in ((0, split), (split, rows)):
        out = View(buffer, (stop - start, columns), buffer.strides, start * columns)
        _call(ctx, "aten.mm.out", (_part(a, 0, start, stop), b), out)
    return ctx.whole(buffer)


def _split_sum(ctx: Lowering, a: View, b: View) -> View:
    """The product over the few that are left, then the one over whole vectors added to it."""
    length = int(a.sizes[1])
    split = length // _unit(a.dtype) * _unit(a.dtype)
    buffer = ctx.buffer(ctx.out_sizes(), ctx.out_dtype(), role="extern")
    out = ctx.whole(buffer)
    _call(ctx, "aten.mm.out", (_part(a, 1, split, length), _part(b, 0, split, length)), out)
    _call(ctx, "aten.addmm.out", (out, _part(a, 1, 0, split), _part(b, 0, 0, split)), out)
    return out


def _call(
    ctx: Lowering, op: str, args: tuple[View, ...], out: View, scales: dict[str, Any] | None = None
) -> None:
    kwargs = tuple((scales or {}).items())
    ctx.graph.nodes.append(
        Extern(ctx.fresh("ext"), op, args, kwargs, (Output(out.buffer),), ctx.origin(), out)
    )


def _part(view: View, dim: int, start: int, stop: int) -> View:
    sizes = tuple(stop - start if d == dim else s for d, s in enumerate(view.sizes))
    offset = view.offset + start * view.strides[dim]
    return View(view.buffer, sizes, view.strides, offset, view.dtype)


def _padded(tensor: Tensor) -> int | None:
    """The unaligned dimension along which a matrix lies in padded rows; None if it does not."""
    if not isinstance(tensor, View) or tensor.dtype not in _HALVES or len(tensor.sizes) != 2:
        return None
    if not is_static(*tensor.sizes, *tensor.strides):
        return None
    unit = _unit(tensor.dtype)
    for dim in (0, 1):
        along, across = int(tensor.strides[dim]), int(tensor.strides[1 - dim])
        size = int(tensor.sizes[dim])
        if along == 1 and across % unit == 0 and size % unit and across >= size >= unit:
            return dim
    return None


@lower(aten.mm.default)
def mm(ctx: Lowering, a: Tensor, b: Tensor) -> Any:
    """Matrix product, in two calls where a dimension is unaligned and that pays."""
    if _wants_padding(ctx):
        return _product(ctx, "aten.mm.out", None, a, b, {})
    dim = _padded(a)
    if dim is None or ctx.out_dtype() != a.dtype:
        return NotImplemented
    assert isinstance(a, View)
    right = b if isinstance(b, View) else _as_traced(ctx, b, _sources(ctx)[2])
    return _split_rows(ctx, a, right) if dim == 0 else _split_sum(ctx, a, right)


@lower(aten.addmm.default)
def addmm(ctx: Lowering, bias: Tensor, a: Tensor, b: Tensor, **scales: Any) -> Any:
    """Matrix product plus bias in two calls into padded rows, where that pays."""
    if not _wants_padding(ctx):
        return NotImplemented
    return _product(ctx, "aten.addmm.out", bias, a, b, scales)
