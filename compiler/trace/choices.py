"""Every choice that eager makes by looking at the device, made from the target instead.

The rewrites run on Dynamo's graph, before anything is differentiated, so forward and backward
agree, and so do a trace on a machine without a GPU and one with it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule

from ..seam.target import Target
from .attention import choose_attention_everywhere
from .literals import replace_literals
from .losses import multilabel_margin_loss
from .masks import state_causality
from .upsampling import interpolate

aten = torch.ops.aten


def make_choices(module: GraphModule, target: Target) -> None:
    """Rewrite the device-dependent calls of ``module`` and of its sub-graphs, in place."""
    for part in module.modules():
        if isinstance(part, GraphModule) and state_causality(part.graph):
            part.recompile()
    choose_attention_everywhere(module, flash=target.device_model.flash_attention)
    for part in module.modules():
        if isinstance(part, GraphModule):
            changed = replace_calls(part.graph) + replace_literals(part.graph)
            if changed:
                part.recompile()


def batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Do what F.batch_norm does, always by the native operator and never by a vendor library."""
    return aten.native_batch_norm.default(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )[0]


def _batch_norm_builtin(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """The same under the argument order of torch.batch_norm, whose last argument asks for cuDNN."""
    del cudnn_enabled
    return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def _instance_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """Do what torch.instance_norm does, which is a batch norm inside, without asking for cuDNN.

    Without running statistics it is a group norm of one channel a group, which keeps the layout.
    """
    del cudnn_enabled
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    batch, channels = input.shape[:2]
    if running_mean is None and running_var is None:
        return torch.group_norm(input, channels, weight, bias, eps, False)
    each = [
        None if t is None else t.repeat(batch) for t in (running_mean, running_var, weight, bias)
    ]
    mean, var, scale, shift = each
    rows = input.reshape(1, batch * channels, *input.shape[2:])
    result = batch_norm(rows, mean, var, scale, shift, True, momentum, eps)
    for statistic, found in ((running_mean, mean), (running_var, var)):
        if statistic is not None and found is not None:
            statistic.copy_(found.view(batch, channels).mean(0))
    return result.view(input.shape)


#: Functions of torch, and ours that stand for them: batch and instance norm, whose operator would
#: depend on cuDNN, and what torch traces badly (upsampling.py) or wrongly (losses.py).
_REPLACED: tuple[tuple[Any, Any], ...] = (
    (F.batch_norm, batch_norm),
    (torch.batch_norm, _batch_norm_builtin),
    (aten.batch_norm.default, _batch_norm_builtin),
    (torch.instance_norm, _instance_norm),
    (aten.instance_norm.default, _instance_norm),
    (F.interpolate, interpolate),
    (F.multilabel_margin_loss, multilabel_margin_loss),
)


def replace_calls(graph: Graph) -> int:
    """Replace the calls of what `_REPLACED` names by ours; return how many there were."""
    count = 0
    for node in graph.nodes:
        for original, ours in _REPLACED:
            if node.op == "call_function" and node.target is original:
                node.target = ours
                count += 1
    return count
