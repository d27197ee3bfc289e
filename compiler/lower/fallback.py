"""The generic fallback: any operator without a lowering becomes a library call.

View operators become views of the same memory without a call, from the traced metadata alone.
"""

from __future__ import annotations

from typing import Any

import torch
from sympy import Expr
from torch import fx
from torch.utils._pytree import tree_leaves

from ..errors import GraphError
from ..host import DeviceRef, DType, MemoryFormat
from ..ir import Tensor, View, is_dense, same_layout
from ..sym import as_size, known_at_least, plus, strides_of, times
from .conjugate import computed
from .context import Lowering, dtype_name, is_marked


def fallback(ctx: Lowering, node: fx.Node, args: Any, kwargs: Any) -> Any:
    """Turn a node into a view or a library call; raises `GraphError` for what has no data form."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        raise GraphError(f"node {node.name} calls {op}, which is not an ATen operator")
    if op._schema.is_mutable:
        raise GraphError(f"node {node.name} calls {op}, which mutates its arguments")
    if node.meta.get("val") is None and op._schema.returns:
        raise GraphError(f"node {node.name} ({op}) carries no metadata")
    meta = node.meta.get("val")  # None: an assertion, called for its effect
    conjugate = computed(ctx, node, args[0]) if args else None
    if conjugate is not None:
        return conjugate
    view = as_view(ctx, node, args)
    if view is not None:
        return view
    converted = extern_arguments(ctx, node, args)
    named = {k: _argument(ctx, node, kwargs[k], n) for k, n in node.kwargs.items()}
    if any(is_marked(v) for v in tree_leaves(meta)) and not any(
        is_marked(source.meta.get("val")) for source in node.all_input_nodes
    ):
        raise GraphError(f"node {node.name} ({op}) returns a lazily conjugated or negated view")
    return ctx.extern(str(op), converted, named, meta)


def extern_arguments(ctx: Lowering, node: fx.Node, args: Any) -> tuple[Any, ...]:
    """The positional arguments of a library call; ``args`` are in the places of the node's own."""
    return tuple(_argument(ctx, node, a, n) for a, n in zip(args, node.args, strict=True))


def as_view(ctx: Lowering, node: fx.Node, args: Any) -> View | tuple[View, ...] | None:
    """The result as views of the first argument's memory, if the schema says that it aliases it."""
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    schema = op._schema
    if not schema.arguments or not schema.returns or not node.args:
        return None
    first = schema.arguments[0].alias_info
    if first is None or first.is_write or not isinstance(node.args[0], fx.Node):
        return None
    source = node.args[0].meta.get("val")
    if not isinstance(source, torch.Tensor) or not isinstance(args[0], Tensor):
        return None
    base = ctx.realize(args[0], strides_of(source))
    if not same_layout(base.sizes, base.strides, strides_of(source)):
        return None  # the traced layout has overlaps that our copy of it has not

    def build(val: Any) -> View | None:
        if not isinstance(val, torch.Tensor):
            return None
        if val.untyped_storage()._cdata != source.untyped_storage()._cdata:
            return None  # e.g. aten.reshape that had to copy
        offset = as_size(val.storage_offset())
        start = as_size(source.storage_offset())
        if dtype_name(val.dtype) != base.dtype:
            if val.element_size() != source.element_size():
                return None
            if base.offset != 0 or start != offset:
                return None
        view = View(
            base.buffer,
            tuple(as_size(s) for s in val.shape),
            strides_of(val),
            plus(base.offset, plus(offset, times(-1, start))),
            dtype_name(val.dtype),
        )
        return _contained(node, base, view) if op is torch.ops.aten.as_strided.default else view

    meta = node.meta["val"]
    if isinstance(meta, (tuple, list)):
        views = tuple(build(v) for v in meta)
        return None if any(v is None for v in views) else views  # type: ignore[return-value]
    return build(meta)


def _contained(node: fx.Node, base: View, view: View) -> View | None:
    """A view that may address any memory, if all of it is ours; None if a library call must look.

    `as_strided` is the one view operator that reaches elements its source does not have: neighbours
    in the storage that eager shares. An input's neighbours exist at run time, beyond our window.
    """
    first = view.offset
    last = first
    for size, stride in zip(view.sizes, view.strides, strict=True):
        last = plus(last, times(plus(size, -1), stride))
    empty = any(isinstance(s, int) and s == 0 for s in view.sizes)
    behind = plus(base.buffer.extent(), times(-1, last))
    within = empty or (known_at_least(first, 0) and known_at_least(behind, 1))
    if base.buffer.role == "input":
        return view if within else None
    if within and is_dense(base.buffer.sizes, base.buffer.strides):
        return view
    raise GraphError(
        f"node {node.name} (aten.as_strided) addresses memory beside a computed tensor; "
        "only eager keeps that memory"
    )


def _argument(ctx: Lowering, node: fx.Node, value: Any, source: Any) -> Any:
    """An FX argument as a host argument; tensors are realised with the layout that was traced."""
    match value:
        case Tensor():
            val = source.meta["val"]
            return ctx.realize(value, strides_of(val))
        case None | bool() | int() | float() | str() | Expr():
            return value
        case torch.dtype():
            return DType(dtype_name(value))
        case torch.device():
            return DeviceRef("target" if value.type == ctx.device_type else value.type)
        case torch.layout() | torch.memory_format():
            return MemoryFormat(str(value).removeprefix("torch."))
        case tuple() | list():
            return tuple(_argument(ctx, node, v, s) for v, s in zip(value, source, strict=True))
        case _:
            raise GraphError(
                f"node {node.name} ({node.target}) has an argument of type {type(value).__name__}"
            )
