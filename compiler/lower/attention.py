"""Attention with a mask that forbids the future: say so, and half of the work is skipped.

A model that builds its mask from positions (``key <= query`` and whatever else) hands attention a
bias tensor, so the library computes all scores and throws half away. Where the loops that compute
the bias prove that it is minus infinity for every key behind the query, the call gets
``is_causal`` as well; the bias is still applied. (GPT-2 inference, 8 x 512, 12 layers, on an H200:
3.35 ms a call without, 3.10 ms with it.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..body import Recorder, Stmt
from ..errors import CodegenError
from ..index import ZERO, Index, floordiv, mod, var
from ..ir import Buffer, Tensor, View, is_dense
from ..sym import strides_of
from .context import Lowering
from .registry import lower

aten = torch.ops.aten

#: Comparisons as (operation, operands swapped), normalised to "left <= right" or stricter.
_ORDER = {"le": False, "lt": False, "ge": True, "gt": True}


class _ThroughMemory(Recorder):
    """Records a tensor's elements with the loops that filled its buffers inlined."""

    def __init__(self, defined: dict[str, Tensor], buffers: dict[str, Buffer]) -> None:
        super().__init__()
        self._defined = defined
        self._buffers = buffers

    def load(self, buffer: str, index: Index, dtype: str) -> int:
        """Read an element, or compute it again where it is known how it was computed."""
        source = self._defined.get(buffer)
        if source is None or source.dtype != dtype:
            return super().load(buffer, index, dtype)
        layout = self._buffers[buffer]
        at = coordinates(index, layout.sizes, layout.strides)
        if at is None:
            return super().load(buffer, index, dtype)
        return source.load(self, at)


def coordinates(address: Index, sizes: Sequence[Any], strides: Sequence[Any]) -> list[Index] | None:
    """The coordinates at a flat address of a dense layout; None for a layout that is not dense."""
    if not is_dense(sizes, strides):
        return None
    return [
        ZERO if size == 1 else mod(floordiv(address, stride), size)
        for size, stride in zip(sizes, strides, strict=True)
    ]


def forbids_future(ctx: Lowering, bias: Tensor) -> bool:
    """Whether ``bias`` (..., query, key) is provably minus infinity wherever key > query."""
    if len(bias.sizes) < 2:
        return False
    index = [var(f"p{d}", s) for d, s in enumerate(bias.sizes)]
    recorder = _ThroughMemory(ctx.defined, ctx.graph.buffers)
    try:
        value = bias.load(recorder, index)
    except CodegenError:
        return False
    return _is_forbidden(recorder.stmts, value, index[-1] - index[-2])


def _is_forbidden(stmts: Sequence[Stmt], value: int, ahead: Index) -> bool:
    """Whether a bias value is minus infinity for every positive ``ahead``."""
    stmt = stmts[value]
    match stmt.op:
        case "cast" | "round_to":
            return _is_forbidden(stmts, stmt.args[0], ahead)
        case "const":
            return stmt.attrs[0] == float("-inf")
        case "where":
            condition, yes, no = stmt.args
            if _is_false(stmts, condition, ahead):
                return _is_forbidden(stmts, no, ahead)
            return _is_forbidden(stmts, yes, ahead) and _is_forbidden(stmts, no, ahead)
        case _:
            return False


def _is_false(stmts: Sequence[Stmt], value: int, ahead: Index) -> bool:
    """Whether a condition is false for every positive ``ahead``."""
    stmt = stmts[value]
    if stmt.op == "and":
        return any(_is_false(stmts, a, ahead) for a in stmt.args)
    if stmt.op == "or":
        return all(_is_false(stmts, a, ahead) for a in stmt.args)
    if stmt.op == "const":
        return stmt.attrs[0] is False
    if stmt.op not in _ORDER:
        return False
    left, right = reversed(stmt.args) if _ORDER[stmt.op] else stmt.args
    return _difference(stmts, left, right) == ahead


def _difference(stmts: Sequence[Stmt], left: int, right: int) -> Index | None:
    """``left - right`` as an index, if both are indices."""
    sides = []
    for value in (left, right):
        stmt = stmts[value]
        while stmt.op == "cast" and stmt.dtype in ("int32", "int64"):
            stmt = stmts[stmt.args[0]]
        if stmt.op == "index":
            sides.append(stmt.attrs[0])
        elif stmt.op == "const" and type(stmt.attrs[0]) is int:
            sides.append(Index((), stmt.attrs[0]))
        else:
            return None
    return sides[0] - sides[1]


@lower(aten._scaled_dot_product_efficient_attention.default)
def efficient_attention(ctx: Lowering, *args: Any, **kwargs: Any) -> Any:
    """The library call, with ``is_causal`` set where the bias proves it."""
    node = ctx.node
    assert node is not None
    bias = args[3]
    causal = args[6] if len(args) > 6 else kwargs.get("is_causal", False)
    if not isinstance(bias, View) or causal or not forbids_future(ctx, bias):
        return NotImplemented
    sources: Any = node.args[:4]
    tensors = tuple(
        ctx.realize(tensor, strides_of(source.meta["val"]))
        for tensor, source in zip(args[:4], sources, strict=True)
    )
    dropout = args[5] if len(args) > 5 else kwargs.get("dropout_p", 0.0)
    scale = {name: value for name, value in kwargs.items() if name == "scale"}
    return ctx.extern(str(node.target), (*tensors, args[4], dropout, True), scale, node.meta["val"])
