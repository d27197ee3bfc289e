"""A loss that torch takes apart wrongly, taken apart here.

torch 2.13 traces `multilabel_margin_loss` by a formula in which the places behind the first -1 of
a row count as the class 0. Every compiler that traces gets that, and other numbers than eager.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn import _reduction


def multilabel_margin_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """Do what F.multilabel_margin_loss does, for (classes,) or (batch, classes).

    Shapes that it refuses, and what is not floating point, are left to it.
    """
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    usual = input.dim() in (1, 2) and input.shape == target.shape and input.is_floating_point()
    if not usual or input.shape[-1] == 0 or reduction not in ("none", "mean", "sum"):
        return F.multilabel_margin_loss(input, target, reduction=reduction)
    classes = input.shape[-1]
    named = (target == -1).cumsum(-1) == 0  # only what stands before the first -1
    at = torch.where(named, target, 0)
    own = (at.unsqueeze(-1) == torch.arange(classes, device=target.device)) & named.unsqueeze(-1)
    counted = named.unsqueeze(-1) & ~own.any(-2).unsqueeze(-2)
    missing = 1 - input.gather(-1, at).unsqueeze(-1) + input.unsqueeze(-2)
    loss = torch.where(counted, missing.relu(), 0).sum((-2, -1)) / classes
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()
