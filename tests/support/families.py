"""Functions of two tensors (a, b, c) and (a, d, c) that are right for every size above two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Family = Callable[..., Any]


def _views(x: torch.Tensor, y: torch.Tensor) -> Any:
    a, b, c = x.shape
    return (
        x.reshape(a * b, c) + 1,
        x.transpose(0, 1).reshape(b, a * c),
        x.permute(2, 0, 1).contiguous(),
        x.flip(1),
        x.expand(2, a, b, c) * 2,
        x.repeat(1, 2, 3),
        x.unsqueeze(1).squeeze(1) - 1,
        x.view(-1)[::3] + 1,
    )


def _parts(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (
        x[1:] + 1,
        x[:, :-1] * 2,
        x[:, -2:].exp(),
        x.select(1, -1) + 1,
        x.select(2, 1) + 1,
        *(p + 1 for p in x.split([2, x.shape[0] - 2], 0)),
        x.narrow(2, 1, 2).sum(),
        x[:, 1::2].contiguous(),
    )


def _joined(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (
        torch.cat([x, y, x], 1),
        torch.cat([x.sin(), x], 2)[:, :, 1:],
        torch.stack([x, x + 1], 1),
        F.pad(x, (1, 2)),
        F.pad(x, (0, 3, 2, 0), value=-1.0),
        F.pad(x, (-1, 1)),
        F.pad(x, (0, x.shape[1])),
    )


def _pointwise(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (
        x * 2 + y[:, :1],
        x * x.shape[0] + x.shape[1],
        (x > 0) & (x < 1),
        torch.where(x > 0, x, x.shape[2] * 1.0),
        x.to(torch.bfloat16) + 1,
        torch.full_like(x, 3.0) + torch.full((x.shape[0], 1, 1), x.shape[1]),
        torch.arange(x.shape[2]) + x,
        torch.arange(1, x.shape[1] + 1, dtype=torch.float32).view(-1, 1) * x,
        x / x.shape[0],
        x * (x.shape[1] / (x.shape[1] - 1)),
        torch.ones(x.shape[2], x.shape[2]).tril(),
    )


def _reduced(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (
        x.sum(-1),
        x.sum((0, 2)),
        x.mean(1),
        x.mean(),
        x.amax(2),
        x.argmax(1),
        x.max(0).values,
        *torch.var_mean(x, 2),
        x.var(0, correction=0),
        x.std(),
        (x > 0).any(1),
        x.prod(2),
        torch.linalg.vector_norm(x, dim=1),
        y.sum(1) + x.sum(1),
    )


def _normalised(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (
        x.softmax(-1),
        x.softmax(1),
        F.log_softmax(x, 2),
        F.layer_norm(x, x.shape[-1:]),
        F.layer_norm(x, x.shape[1:]),
        (x - x.mean(-1, keepdim=True)) / x.amax((1, 2), keepdim=True),
        x.logsumexp(1),
    )


def _indexed(x: torch.Tensor, y: torch.Tensor) -> Any:
    positions = (x.abs() * 7).long()
    rows = positions % x.shape[0]
    table = y.reshape(-1, y.shape[2])
    return (
        F.embedding(positions[:, :, 0] % table.shape[0], table),
        x.gather(0, rows),
        x[rows[0, :, 0]],
        x[:, torch.arange(x.shape[1] - 1)],
        x.index_select(2, torch.arange(2, 0, -1)),
        x[torch.arange(x.shape[0]) - 1],
        torch.zeros_like(x).scatter_add(0, rows, x),
        x.slice_scatter(x[:, 1:] * 2, 1, 0, -1),
        x.index_put((torch.arange(1, 3),), torch.ones(())),
    )


def _products(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (
        x @ x.transpose(1, 2),
        (x @ x.transpose(1, 2)).softmax(-1) @ x,
        F.linear(x, y[0]).relu(),
        torch.addmm(x[0], x[0] @ x[0].t(), x[0]),
        F.scaled_dot_product_attention(x, x, x),
    )


FAMILIES: dict[str, Family] = {
    "views": _views,
    "parts": _parts,
    "joined": _joined,
    "pointwise": _pointwise,
    "reduced": _reduced,
    "normalised": _normalised,
    "indexed": _indexed,
    "products": _products,
}


def family_inputs(sizes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tensors of the sizes (a, b, c, d)."""
    a, b, c, d = sizes
    return torch.randn(a, b, c), torch.randn(a, d, c)
