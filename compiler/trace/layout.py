"""Convolutions, and what surrounds them, in channels-last memory where the target gains by it.

The pass works on functional ATen graphs (the joint graph of a training step before it is split, an
inference graph), where no write can tell a view from a copy. Operands of convolutions get
channels-last strides; each operator behind them that works in any layout is computed anew on fake
tensors, which carries the layout through normalisation, activation, addition and pooling, and
through the backward. Every other operator, and the caller, gets exactly the strides that were
traced: results that are not views are copied back, views are taken again from the copied tensor.

What is converted, where `gains` says that the graph profits:

- 2D and 3D convolutions, transposed ones too, and their gradients. The stem as well: its image has
  three channels, its result many, and converting the small one is cheaper.
- not grouped and depthwise ones: they take what they are given, and give the same layout.
- not 1D ones, which have no such layout, nor float64, for which the libraries have no kernels.

Weights are converted once a step, beside the forward's call; the backward shares them. A 1 x 1
weight has both layouts at once and is never copied. A gradient goes back to its parameter's layout
here, as an output of the graph, so that autograd can keep it as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.utils._mode_utils import no_dispatch

from ..seam.device import DeviceModel

aten = torch.ops.aten
_CONVERT = torch.ops.prims.convert_element_type.default

#: The layout of an image or a volume whose channels lie side by side.
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_POSITIONS = (torch.int64, torch.int32)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
#: With fewer channels on either side a convolution gains nothing from having them side by side.
_CHANNELS = 16

#: Convolutions, with the positions of the tensors that share a layout, and the weight's.
_CONVOLUTIONS: dict[Any, tuple[tuple[int, ...], int]] = {
    aten.convolution.default: ((0, 1), 1),
    aten.convolution_backward.default: ((0, 1, 2), 2),
}

#: Operators whose results often have so few dimensions that there is one layout.
_REDUCTIONS = (
    aten.amax.default,
    aten.amin.default,
    aten.mean.default,
    aten.mean.dim,
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.var.correction,
    aten.var_mean.correction,
)

#: Operators, beside the pointwise ones, that compute the same in every layout.
_ANY_LAYOUT = frozenset(
    (
        *_CONVOLUTIONS,
        *_REDUCTIONS,
        operator.getitem,
        aten._to_copy.default,
        aten._adaptive_avg_pool2d.default,
        aten._adaptive_avg_pool2d_backward.default,
        aten.avg_pool2d.default,
        aten.avg_pool2d_backward.default,
        aten.cat.default,
        aten.clone.default,
        aten.constant_pad_nd.default,
        aten.empty_like.default,
        aten.full_like.default,
        aten.max_pool2d_with_indices.default,
        aten.max_pool2d_with_indices_backward.default,
        aten.ones_like.default,
        aten.zeros_like.default,
        _CONVERT,
    )
)

#: Questions about a tensor that its layout does not change.
_SIZES = (aten.sym_size.int, aten.sym_numel.default)

#: Reads and writes at positions; those at integers are ours, so the layout is what we say.
_AT_POSITIONS = (
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put.default,
    aten._unsafe_index_put.default,
)

#: Views whose result is the operand.
_SAME = (aten.alias.default, aten.detach.default)

#: Views of any tensor. `view` may fail on another layout, and then gets the traced one.
_VIEWS = frozenset(
    (
        aten.alias.default,
        aten.detach.default,
        aten.expand.default,
        aten.permute.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.transpose.int,
        aten.unbind.int,
        aten.unsqueeze.default,
        aten.view.default,
        aten._unsafe_view.default,
    )
)

#: What a new node inherits from the one that it stands beside, for the partitioner and for people.
_MARKS = ("recompute", "ac_graph_id", "custom", "stack_trace", "nn_module_stack", "seq_nr")


def propagate_layout(graph: Graph, model: DeviceModel) -> bool:
    """Make ``graph`` channels-last in place if ``model`` gains by it; say whether it changed."""
    if not model.channels_last or not gains(graph):
        return False
    _Propagation(graph).run()
    return True


def gains(graph: Graph) -> bool:
    """Whether most of a graph's convolution, by elements of the weights, profits.

    A graph with grouped convolutions (other than depthwise) never does: the libraries' grouped
    kernels for channels-last images are the slow ones. Only weights are looked at, so that the
    answer is the same for every size of the image.
    """
    profiting = total = 0
    for node in graph.find_nodes(op="call_function", target=aten.convolution.default):
        weight = node.args[1].meta["val"]
        groups = _argument(node, 8)
        if not _convertible(node):
            continue
        if groups != 1 and weight.shape[1] != 1:
            return False
        elements = _elements(weight)
        total += elements
        if groups == 1 and min(weight.shape[0], weight.shape[1]) >= _CHANNELS:
            profiting += elements
    return 2 * profiting >= total > 0


def _elements(weight: Tensor) -> int:
    count = 1
    for size in weight.shape:
        count *= size if isinstance(size, int) else 1
    return count


def _argument(node: Node, position: int) -> Any:
    return node.args[position] if position < len(node.args) else None


def _convertible(node: Node) -> bool:
    """Whether the tensors of a convolution have a channels-last form that is worth something."""
    places, weight = _CONVOLUTIONS[node.target]
    values = [_value(node.args[place]) for place in places]
    if any(type(size) is int and size == 0 for v in values for size in getattr(v, "shape", ())):
        return False  # the libraries give gradients of an empty batch a layout of their own
    return all(
        isinstance(v, Tensor) and v.dtype in _DTYPES and v.dim() == values[0].dim() for v in values
    ) and (_value(node.args[weight]).dim() in _CHANNELS_LAST)


def _groups(node: Node) -> Any:
    return node.args[8] if node.target is aten.convolution.default else node.args[9]


def _value(argument: Any) -> Any:
    return argument.meta.get("val") if isinstance(argument, Node) else argument


def _is_fake(value: Any) -> bool:
    return isinstance(value, FakeTensor)


class _Propagation:
    """One walk over a graph; nodes whose layout changes remember the value that was traced."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.traced: dict[Node, Any] = {}
        self._copies: dict[tuple[Node, str], Node] = {}

    def run(self) -> None:
        """Visit every node once, in order; new nodes come before the one that needs them."""
        for node in list(self.graph.nodes):
            if node.op == "output":
                self._give_traced(node)
            elif node.op == "call_function":
                self._visit(node)

    def _visit(self, node: Node) -> None:
        converted = node.target in _CONVOLUTIONS and self._convert(node)
        if not converted and not any(source in self.traced for source in node.all_input_nodes):
            return
        if node.target in _SIZES or (node.target in _REDUCTIONS and _is_line(node.meta["val"])):
            return
        value = _recomputed(node) if _any_layout(node) else None
        if value is None or not self._restorable(node):
            self._give_traced(node)
            return
        if not _same_strides(value, node.meta["val"]):
            self.traced[node] = node.meta["val"]
            node.meta["val"] = value
            node.meta.pop("tensor_meta", None)

    def _convert(self, node: Node) -> bool:
        """Give a convolution channels-last operands; returns whether that took a new node."""
        if not _convertible(node) or _groups(node) != 1:
            return False
        changed = False
        for place in _CONVOLUTIONS[node.target][0]:
            source: Any = node.args[place]
            layout = _CHANNELS_LAST[_value(source).dim()]
            if not _value(source).is_contiguous(memory_format=layout):
                node.update_arg(place, self._channels_last(source, node, layout))
                changed = True
        return changed

    def _channels_last(self, source: Node, beside: Node, layout: torch.memory_format) -> Node:
        key = (source, "last")
        if key not in self._copies:
            copy = self._emit(beside, aten.clone.default, source, memory_format=layout)
            value = _recomputed(copy)
            assert value is not None
            copy.meta["val"] = value
            self._copies[key] = copy
        return self._copies[key]

    # -- back to what was traced ------------------------------------------------------------------

    def _give_traced(self, node: Node) -> None:
        """Replace changed operands by tensors with the layout that was traced."""
        for source in node.all_input_nodes:
            if source in self.traced:
                node.replace_input_with(source, self._restored(source, node))

    def _restorable(self, node: Node) -> bool:
        """Whether `_restored` can make the traced layout: of a dense result, or of a view."""
        if node.target in _VIEWS or node.target is operator.getitem:
            return True
        value = node.meta["val"]
        tensors = value if isinstance(value, (tuple, list)) else (value,)
        return all(not isinstance(t, Tensor) or _dense(t) for t in tensors)

    def _restored(self, node: Node, beside: Node) -> Node:
        """A node with the elements of ``node`` and its traced strides."""
        if node not in self.traced:
            return node
        key = (node, "traced")
        if key in self._copies:
            return self._copies[key]
        value = self.traced[node]
        source: Any = node.args[0]
        if node.target in _VIEWS or (node.target is operator.getitem and source.target in _VIEWS):
            base = self._restored(source, beside)
            copy = self._emit(beside, node.target, base, *node.args[1:], **node.kwargs)
            value = _recomputed(copy)
        elif _same_memory(value, node.meta["val"]):
            layout = (list(value.shape), list(value.stride()), value.storage_offset())
            copy = self._emit(beside, aten.as_strided.default, node, *layout)
            value = _recomputed(copy)  # the same memory, for analyses that look at that
        else:
            copy = self._rearranged(node, value, beside)
        copy.meta["val"] = value
        self._copies[key] = copy
        return copy

    def _rearranged(self, node: Node, value: Tensor, beside: Node) -> Node:
        """A copy of ``node`` with the strides of ``value``, which are dense in some order."""
        strides = value.stride()
        order = sorted(range(value.dim()), key=lambda d: (-strides[d], d))
        plain = order == list(range(value.dim()))
        if not plain:
            moved = self._emit(beside, aten.permute.default, node, order)
            moved.meta["val"] = node.meta["val"].permute(order)
            node = moved
        layout = torch.contiguous_format
        copy = self._emit(beside, aten.clone.default, node, memory_format=layout)
        if plain:
            return copy
        copy.meta["val"] = value.permute(order)
        back = sorted(range(value.dim()), key=order.__getitem__)
        return self._emit(beside, aten.permute.default, copy, back)

    def _emit(self, beside: Node, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        with self.graph.inserting_before(beside):
            node = self.graph.call_function(op, args, kwargs)
        marks = (*_MARKS, "partitioner_tag")
        node.meta.update({name: beside.meta[name] for name in marks if name in beside.meta})
        return node


def _any_layout(node: Node) -> bool:
    target = node.target
    if target in _ANY_LAYOUT or target in _VIEWS:
        return True
    if target in _AT_POSITIONS:
        positions = [_value(at) for at in node.args[1] if at is not None]  # type: ignore[union-attr]
        return all(isinstance(at, Tensor) and at.dtype in _POSITIONS for at in positions)
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    pointwise = torch.Tag.pointwise in target.tags
    return pointwise and torch.Tag.nondeterministic_seeded not in target.tags


def _recomputed(node: Node) -> Any:
    """The fake result of a node on its operands as they are now; None if there is none."""
    if any("val" not in source.meta for source in node.all_input_nodes):
        return None
    if node.target in _SAME:
        return _value(node.args[0])
    args: Any
    args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), _value)  # type: ignore[misc]
    if node.target is operator.getitem:
        return args[0][args[1]]
    mode = next((v.fake_mode for v in map(_value, node.all_input_nodes) if _is_fake(v)), None)
    if mode is None:
        return None
    strides = _elementwise(node)
    if strides is not None:
        return _like(node.meta["val"], strides, mode)
    try:
        with mode, torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]
    except (RuntimeError, ValueError):  # a view that this layout does not allow
        if node.target in _VIEWS:
            return None
        raise


def _like(value: Tensor, strides: Sequence[int], mode: Any) -> Tensor:
    """A fake tensor like ``value`` with other strides."""
    with no_dispatch():
        elements = torch.empty_strided(value.shape, strides, dtype=value.dtype, device="meta")
    return FakeTensor(mode, elements, value.device)


def _elementwise(node: Node) -> tuple[int, ...] | None:
    """The strides of a pointwise result whose operands agree on them; None if torch must say.

    Nine operators in ten are such, and asking torch takes ten times as long.
    """
    value = node.meta.get("val")
    if not (isinstance(node.target, OpOverload) and isinstance(value, Tensor)):
        return None
    if torch.Tag.pointwise not in node.target.tags and node.target is not _CONVERT:
        return None
    if 1 in value.shape or not all(type(size) is int for size in value.shape):
        return None
    found = None
    for operand in map(_value, node.all_input_nodes):
        if not isinstance(operand, Tensor):
            return None
        if operand.shape == value.shape:
            if found is not None and operand.stride() != found:
                return None
            found = operand.stride()
        elif sum(size != 1 for size in operand.shape) > 1:
            return None  # a broadcast operand with an order of its own
    return found if found is not None and _dense_strides(value.shape, found) else None


def _same_strides(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)):
        return all(_same_strides(x, y) for x, y in zip(a, b, strict=True))
    return not isinstance(a, Tensor) or a.stride() == b.stride()


def _is_line(value: Any) -> bool:
    """Whether every tensor has at most one dimension of more than one element."""
    if isinstance(value, (tuple, list)):
        return all(_is_line(item) for item in value)
    return isinstance(value, Tensor) and sum(size != 1 for size in value.shape) <= 1


def _same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two known layouts differ only in the strides of dimensions of one element."""
    if not all(type(n) is int for n in (*a.shape, *a.stride(), *b.stride())):
        return False
    places = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(x == y for size, x, y in places if size != 1)


def _dense(value: Tensor) -> bool:
    """Whether the strides are those of a contiguous tensor with its dimensions permuted."""
    return _dense_strides(value.shape, value.stride())


def _dense_strides(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
