"""Merges equal computations of a functional ATen graph and drops the unused ones.

AOTAutograd does this for training graphs, as part of splitting them, and not for inference. There
it matters as much: twelve layers that share a mask convert it twelve times.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node


def tidy(module: GraphModule) -> int:
    """Merge and drop nodes of ``module`` in place; return how many nodes went."""
    before = len(module.graph.nodes)
    if all(_leaves_inputs_alone(node) for node in module.graph.nodes):
        merge_equal(module.graph)
    module.graph.eliminate_dead_code()
    gone = before - len(module.graph.nodes)
    if gone:
        module.recompile()
    return gone


def merge_equal(graph: Graph) -> None:
    """Let one node stand for all that apply the same pure operator to the same arguments.

    Two results that may be, or share memory with, two outputs stay apart: a caller who writes into
    one of them must not change the other.
    """
    apart = _reaching_outputs(graph)
    first: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node in apart or not _is_pure(node.target):
            continue
        key = _key(node)
        if key is None:
            continue
        earlier = first.setdefault(key, node)
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)


def _leaves_inputs_alone(node: Node) -> bool:
    """Is this node known not to write into its arguments? If one may, nothing can be merged."""
    if node.op != "call_function" or node.target is operator.getitem:
        return node.op not in ("call_module", "call_method")
    return isinstance(node.target, OpOverload) and not node.target._schema.is_mutable


def _is_pure(target: Any) -> bool:
    if target is operator.getitem:
        return True
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    return not (
        target._schema.is_mutable
        or torch.Tag.nondeterministic_seeded in target.tags
        or torch.Tag.dynamic_output_shape in target.tags
        # Uninitialised memory that somebody will write into.
        or target.overloadpacket in _UNINITIALISED
    )


_UNINITIALISED = (
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
)


def _key(node: Node) -> Any:
    try:
        key = (node.target, _frozen(node.args), _frozen(node.kwargs))
        hash(key)
    except TypeError:
        return None
    return key


def _frozen(value: Any) -> Any:
    """Return ``value`` hashable, equal only for arguments that mean the same (1 is not 1.0)."""
    match value:
        case list() | tuple():
            return tuple(_frozen(item) for item in value)
        case dict():
            return tuple((name, _frozen(value[name])) for name in sorted(value))
        case slice():
            return ("slice", _frozen(value.start), _frozen(value.stop), _frozen(value.step))
        case bool() | int() | float() | complex():
            return (type(value).__name__, repr(value))  # repr tells 0.0 from -0.0
    return value


def _reaching_outputs(graph: Graph) -> set[Node]:
    """Return the nodes whose memory an output may be: outputs, and what they are views of."""
    (output,) = graph.find_nodes(op="output")
    pending = list(output.all_input_nodes)
    reached: set[Node] = set()
    while pending:
        node = pending.pop()
        if node in reached:
            continue
        reached.add(node)
        if node.op == "call_function" and _may_alias(node.target):
            pending.extend(node.all_input_nodes)
    return reached


def _may_alias(target: Any) -> bool:
    if not isinstance(target, OpOverload):
        return True  # getitem, and anything that we know nothing about
    return any(result.alias_info is not None for result in target._schema.returns)
