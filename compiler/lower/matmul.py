"""Matrix products whose result has rows that are not a multiple of 16 bytes.

Library products stay library calls. But a row length like GPT-2's vocabulary (50,257 columns of
bfloat16) rules out the fast store of Hopper's kernels: 3.34 ms against 0.45 ms for the same product
(H200, torch 2.11). Such a result gets memory whose rows are padded; kernels read it in place, and
only where somebody asks for the dense layout is it copied.
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


def _padded_columns(columns: int, dtype: str) -> int:
    unit = ROW_BYTES // ITEMSIZE[dtype]
    return -(-columns // unit) * unit


def _wants_padding(ctx: Lowering) -> bool:
    sizes, dtype = ctx.out_sizes(), ctx.out_dtype()
    if dtype not in ("bfloat16", "float16") or not all(isinstance(s, int) for s in sizes):
        return False
    rows, columns = (int(s) for s in sizes)
    return rows * columns >= WORTHWHILE and _padded_columns(columns, dtype) != columns


def _product(ctx: Lowering, op: str, operands: tuple[Tensor, ...], kwargs: dict[str, Any]) -> View:
    """Add the library call with an output whose rows are padded, and return its dense part."""
    assert ctx.node is not None
    sources = ctx.node.args
    args = tuple(
        ctx.realize(t, tuple(as_size(s) for s in n.meta["val"].stride()))  # type: ignore[union-attr]
        for t, n in zip(operands, sources, strict=True)
    )
    rows, columns = (int(s) for s in ctx.out_sizes())
    width = _padded_columns(columns, ctx.out_dtype())
    buffer = ctx.buffer((rows, width), ctx.out_dtype(), role="extern")
    out = View(buffer, (rows, columns), (width, 1))
    ctx.graph.nodes.append(
        Extern(
            buffer.name, op, args, tuple(kwargs.items()), (Output(buffer),), ctx.origin(), out
        )
    )
    return out


@lower(aten.mm.default)
def mm(ctx: Lowering, a: Tensor, b: Tensor) -> Any:
    """Matrix product into padded rows, where that pays."""
    return _product(ctx, "aten.mm.out", (a, b), {}) if _wants_padding(ctx) else NotImplemented


@lower(aten.addmm.default)
def addmm(ctx: Lowering, bias: Tensor, a: Tensor, b: Tensor, **scales: Any) -> Any:
    """Matrix product plus bias into padded rows, where that pays."""
    if not _wants_padding(ctx):
        return NotImplemented
    return _product(ctx, "aten.addmm.out", (bias, a, b), scales)
