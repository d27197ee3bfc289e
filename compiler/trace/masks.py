"""Attention masks that say no more than "not the future", found out by computing them.

Models build a mask from positions and hand it to attention, although it is the plain triangle that
``is_causal`` stands for. With a mask attention cannot take the flash form, and pays for scores that
it throws away. Where a mask depends on no input of the graph, its values are known while the graph
is traced: they are computed here, on the CPU, by the same calls, and compared with the triangle
element by element. Only an equal mask is replaced, so nothing is ever dropped that says more.
(Forward and backward of a Llama layer's attention, 4 x 16 x 1024 x 64 in bfloat16 on an H200:
626 us with the mask.)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes

from .attention import is_attention

#: A larger mask takes longer to compute than it saves.
_MOST_ELEMENTS = 1 << 26

#: What a mask may be made with: calls whose result depends on their arguments alone. Names of
#: functions of torch and of Python's operator module, and of methods of tensors.
_KNOWN = frozenset(
    (
        *("arange", "full", "ones", "zeros", "tensor", "scalar_tensor", "tril", "triu"),
        *("new_ones", "new_zeros", "new_full", "ones_like", "zeros_like", "full_like"),
        *("add", "sub", "mul", "neg", "floordiv", "mod", "floor_divide", "remainder", "abs"),
        *("le", "lt", "ge", "gt", "eq", "ne", "where", "masked_fill", "maximum", "minimum"),
        *("and_", "or_", "xor", "invert", "logical_and", "logical_or", "logical_not"),
        *("__and__", "__or__", "__xor__", "__invert__", "__eq__", "__ne__", "__le__", "__lt__"),
        *("__ge__", "__gt__", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__"),
        *("__getitem__", "__neg__", "bitwise_and", "bitwise_or", "bitwise_not"),
        *("getitem", "expand", "expand_as", "view", "reshape", "unsqueeze", "squeeze", "repeat"),
        *("transpose", "permute", "contiguous", "clone", "detach", "flatten", "cat", "stack"),
        *("cumsum", "diff", "index_select", "to", "type", "bool", "int", "long", "float"),
    )
)

#: The arguments of scaled_dot_product_attention, by position.
_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def state_causality(graph: Graph) -> int:
    """Let ``is_causal`` stand for every mask that is the causal triangle; return for how many."""
    known: dict[Node, bool] = {}
    written: set[Node] | None = None
    count = 0
    for node in list(graph.nodes):
        if not is_attention(node):
            continue
        named = dict(zip(_ARGUMENTS, node.args, strict=False)) | node.kwargs
        mask = named.get("attn_mask")
        if not isinstance(mask, Node) or named.get("is_causal", False) is not False:
            continue
        if mask not in known:
            written = _written(graph) if written is None else written
            known[mask] = _is_triangle(mask, written)
        if known[mask]:
            named |= {"attn_mask": None, "is_causal": True}
            node.args = tuple(named.pop(name) for name in _ARGUMENTS[:3])
            node.kwargs = named
            count += 1
    return count


def _is_triangle(mask: Node, written: set[Node]) -> bool:
    """Whether a mask is known while tracing, and keeps exactly keys up to the query."""
    example = mask.meta.get("example_value")
    if not isinstance(example, torch.Tensor) or example.dim() < 2:
        return False
    sizes = example.shape
    if not all(isinstance(size, int) for size in sizes) or math.prod(sizes) > _MOST_ELEMENTS:
        return False
    if sizes[-1] != sizes[-2] or sizes[-1] < 2:
        return False
    order = _made_of(mask, written)
    if order is None:
        return False
    try:
        value = _computed(order)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False  # it cannot be computed here, so nothing is known of it
    return value.shape == sizes and bool(_keeps(value).eq(_triangle(sizes[-1])).all())


def _triangle(size: int) -> torch.Tensor:
    return torch.ones(size, size, dtype=torch.bool, device="cpu").tril()


def _keeps(value: torch.Tensor) -> torch.Tensor:
    """Where a mask keeps a score as it is; everywhere else it must remove it, or nothing holds."""
    if value.dtype == torch.bool:
        return value
    kept = value == 0
    # the lowest number leaves no weight beside a score that is kept, as minus infinity does
    removed = value <= torch.finfo(value.dtype).min if value.dtype.is_floating_point else kept
    return kept if bool((kept | removed).all()) else torch.zeros_like(kept)


def _made_of(mask: Node, written: set[Node]) -> list[Node] | None:
    """The nodes that a mask is computed from, in order; None if one is not known to be constant."""
    needed: set[Node] = set()
    waiting = [mask]
    while waiting:
        node = waiting.pop()
        if node in needed:
            continue
        if not _is_known(node) or node in written:
            return None
        needed.add(node)
        waiting += node.all_input_nodes
    return [node for node in mask.graph.nodes if node in needed]


def _is_known(node: Node) -> bool:
    if "out" in node.kwargs:
        return False
    if node.op == "call_method":
        return node.target in _KNOWN
    if node.op != "call_function":
        return False
    owner = getattr(node.target, "__module__", None) or ""
    ours = owner == "_operator" or owner.partition(".")[0] == "torch"
    return (ours or node.target in _BUILTIN) and _name(node) in _KNOWN


#: torch's own functions that carry no module.
_BUILTIN: frozenset[Callable[..., Any]] = frozenset(
    getattr(torch, name) for name in _KNOWN if callable(getattr(torch, name, None))
)


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


#: Calls whose result is memory of its own; of any other, the result may be a view of an argument.
_FRESH = frozenset(
    (
        *("embedding", "linear", "layer_norm", "rms_norm", "scaled_dot_product_attention", "gelu"),
        *(
            "silu",
            "tanh",
            "cos",
            "sin",
            "pow",
            "rsqrt",
            "mean",
            "matmul",
            "bmm",
            "add",
            "sub",
            "mul",
        ),
        *("truediv", "neg", "eq", "ne", "le", "lt", "ge", "gt", "cumsum", "cat", "stack", "clone"),
        "arange",
    )
)

_AUGMENTED = frozenset(
    ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")
)


def _written(graph: Graph) -> set[Node]:
    """Every node whose memory some node may write into."""
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method") or not _writes(node):
            continue
        waiting = list(node.all_input_nodes)
        while waiting:
            source = waiting.pop()
            if source not in found:
                found.add(source)
                if _name(source) not in _FRESH or _writes(source):
                    waiting += source.all_input_nodes
    return found


def _writes(node: Node) -> bool:
    """Whether a node may write into one of its arguments."""
    name, target = _name(node), node.target
    if target in (operator.and_, operator.or_, operator.not_, operator.is_):
        return False
    if isinstance(target, HigherOrderOperator) or node.kwargs.get("inplace"):
        return True
    if isinstance(target, OpOverload):
        return bool(target._schema.is_mutable)
    # the switch of F.relu and its like may stand at any place
    if getattr(target, "__module__", "") == "torch.nn.functional" and True in node.args:
        return True
    in_place = name.endswith("_") and not name.endswith("__")
    augmented = name.strip("_") in _AUGMENTED
    return in_place or augmented or "setitem" in name or "out" in node.kwargs


def _computed(order: list[Node]) -> torch.Tensor:
    """The value of the last node, all of them run on the CPU."""
    values: dict[Node, Any] = {}

    def here(argument: Any) -> Any:
        if isinstance(argument, Node):
            return values[argument]
        if isinstance(argument, torch.device):
            return torch.device("cpu")
        return "cpu" if isinstance(argument, str) and argument.startswith("cuda") else argument

    with _disable_current_modes(), torch.no_grad(), torch.device("cpu"):
        for node in order:
            args, kwargs = map_aggregate((node.args, node.kwargs), here)
            if node.op == "call_method":
                values[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        result = values[order[-1]]
        if not isinstance(result, torch.Tensor):
            raise TypeError("a mask is a tensor")
        return result.clone()
