"""What no program can hold, found before a graph is keyed or lowered.

A program runs on one device and allocates strided tensors of the dtypes that the host program
knows. Keys hold no device ordinal, so a graph over two GPUs must not get as far as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node

from .errors import GraphError
from .host_tables import DTYPES


def admit(gm: GraphModule, device_type: str) -> None:
    """Raise GraphError, which names node, operator and reason, for a graph that cannot be compiled.

    ``device_type`` is torch's name of the target's devices; tensors lie there or on the CPU.
    """
    placed: dict[torch.device, Node] = {}
    for node in gm.graph.nodes:
        if isinstance(node.target, HigherOrderOperator):
            inner = "".join(f" around {a}" for a in node.args if isinstance(a, OpOverload))
            raise _refusal(node, f"it is a higher-order operator{inner}")
        if node.op == "call_function":
            for argument in (*node.args, *node.kwargs.values()):
                if isinstance(argument, complex):
                    raise _refusal(node, "an argument is a complex number")
                if isinstance(argument, torch.dtype) and _name(argument) not in DTYPES:
                    raise _refusal(node, f"an argument is the dtype {_name(argument)}")
        for value in _tensors(node.meta.get("val")):
            reason = _unfit(value, device_type)
            if reason is not None:
                raise _refusal(node, reason)
            if value.device.type == device_type:
                placed.setdefault(value.device, node)
    if len(placed) > 1:
        (first, _), (second, where) = list(placed.items())[:2]
        raise _refusal(where, f"its tensor is on {second}, others are on {first}")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _unfit(value: torch.Tensor, device_type: str) -> str | None:
    """What about a tensor no program can hold; None if nothing is."""
    if value.device.type not in (device_type, "cpu"):
        return f"a tensor is on the device {value.device.type}"
    if value.layout is not torch.strided:
        return f"a tensor has the layout {_name(value.layout)}"
    if _name(value.dtype) not in DTYPES:
        return f"a tensor has the dtype {_name(value.dtype)}"
    return None


def _name(kind: torch.dtype | torch.layout) -> str:
    return str(kind).removeprefix("torch.")


def _refusal(node: Node, reason: str) -> GraphError:
    target = node.target
    name = target.name() if isinstance(target, HigherOrderOperator) else str(target)
    what = node.op if node.op in ("placeholder", "output", "get_attr") else name
    return GraphError(f"node {node.name} ({what}) cannot be compiled: {reason}")
