"""Turns small tensor literals on the GPU into ``full``, in Dynamo's graph.

``torch.tensor(0.5, device="cuda")`` makes a CPU constant and copies it over, in every call; and
while tracing, torch carries out that copy for constants of at most one element, which needs the
GPU. ``full`` needs neither, and an empty literal (the cache of a transformer starts as one) is a
plain empty tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils._python_dispatch import _disable_current_modes

#: Positional parameters of torch.tensor besides the data: none, all others are keywords.
_KEYWORDS = frozenset({"dtype", "device"})


def replace_literals(graph: Graph) -> int:
    """Replace the literals of one graph, in place; return how many there were."""
    count = 0
    for node in graph.nodes:
        if node.op == "call_function" and node.target is torch.tensor and len(node.args) == 1:
            count += _replace(node)
    return count


def _replace(node: Node) -> bool:
    keywords: dict[str, Any] = {
        name: value for name, value in node.kwargs.items() if value not in (None, False)
    }
    if not keywords.keys() <= _KEYWORDS or not _on_gpu(keywords.get("device")):
        return False
    data = node.args[0]
    if not _is_literal(data):
        return False
    with _disable_current_modes():
        value = torch.tensor(data, dtype=keywords.get("dtype"))
    if value.numel() > 1:
        return False
    where: dict[str, Any] = {"dtype": value.dtype, "device": keywords["device"]}
    if value.numel() == 0:
        node.target, node.args = torch.empty, (tuple(value.shape),)
    else:
        node.target, node.args = torch.full, (tuple(value.shape), value.item())
    node.kwargs = where
    return True


def _on_gpu(device: Any) -> bool:
    return (
        device is not None and not isinstance(device, Node) and torch.device(device).type == "cuda"
    )


def _is_literal(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return all(_is_literal(item) for item in data)
    return isinstance(data, (bool, int, float, complex))
