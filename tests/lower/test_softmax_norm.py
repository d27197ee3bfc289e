"""Softmax and layer norm equal eager over any dimension, dtype and input chain."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from body_eval import check
from tensors import FLOATS, layouts, rand

functional = torch.nn.functional
INF = float("inf")


@pytest.mark.parametrize("name", ("softmax", "log_softmax"))
@pytest.mark.parametrize("dim", (0, 1, 2, -1))
@pytest.mark.parametrize("dtype", (*FLOATS, torch.float64), ids=str)
def test_softmax_over_any_dimension_equals_eager(name: str, dim: int, dtype: torch.dtype) -> None:
    """Every dimension normalises."""
    fn = getattr(torch, name)
    check(lambda x: fn(x, dim), rand(3, 4, 5, dtype=dtype) * 10)


@pytest.mark.parametrize("name", ("softmax", "log_softmax"))
def test_softmax_edges_equal_eager(name: str) -> None:
    """Masked rows, rows of -inf, NaN, single elements, scalars, empty tensors and layouts."""
    fn = getattr(torch, name)
    x = torch.tensor([[-INF, 1.0, 2.0], [-INF, -INF, -INF], [math.nan, 0.0, 1.0], [INF, 0.0, 1.0]])
    check(lambda x: fn(x, 1), x)
    check(lambda x: fn(x, 0), rand(1, 3))
    check(lambda x: fn(x, 0), torch.tensor(2.0))
    check(lambda x: fn(x, 1), torch.zeros(0, 3))
    check(lambda x: fn(x, 1), torch.zeros(3, 0))
    for y in layouts(4, 6):
        check(lambda x: fn(x, 1) * 2, y)


def test_softmax_of_a_masked_product_is_three_loops() -> None:
    """Scale and mask are recorded inside each of the loops, nothing is stored between."""
    mask = torch.rand(6, 6) < 0.7
    lowering = check(
        lambda s, m: torch.softmax(torch.where(m, s * 0.125, -INF), -1), rand(2, 3, 6, 6), mask
    )
    assert len(lowering.graph.nodes) == 3


def test_softmax_over_the_first_dimension_in_attention_equals_eager() -> None:
    """It is not attention, and nothing rewrites it into one (pytorch#196468)."""
    q, k, v = rand(4, 4, 2, 8), rand(4, 4, 3, 8), rand(4, 4, 3, 8)

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(q @ k.transpose(-1, -2) / 128, 0)
        return functional.dropout(weights, 0.1, False) @ v

    check(fn, q, k, v, fallbacks=["aten.bmm.default"])


def _loss(reduction: str, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(x.float(), target, reduction=reduction)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_cross_entropy_equals_eager(dtype: torch.dtype) -> None:
    """The loss with an ignored target, and its sum and per-row forms."""
    logits = rand(6, 10, dtype=dtype)
    target = torch.tensor([1, 9, 0, -100, 3, 5])
    for reduction in ("mean", "sum", "none"):
        check(functools.partial(_loss, reduction), logits, target)


@pytest.mark.parametrize("dtype", (*FLOATS, torch.float64), ids=str)
@pytest.mark.parametrize("affine", ("both", "weight", "none"))
def test_layer_norm_equals_eager(dtype: torch.dtype, affine: str) -> None:
    """With and without scale and shift; the statistics have eager's dtype."""
    x = rand(3, 4, 16, dtype=dtype) + 3
    w, b = rand(16, dtype=dtype), rand(16, dtype=dtype)
    match affine:
        case "both":
            check(lambda x, w, b: functional.layer_norm(x, (16,), w, b), x, w, b)
        case "weight":
            check(lambda x, w: functional.layer_norm(x, (16,), w), x, w)
        case _:
            check(lambda x: functional.layer_norm(x, (16,)), x)
    check(lambda x: torch.native_layer_norm(x, [16], None, None, 1e-5), x)


def test_layer_norm_of_several_dimensions_and_a_residual_equals_eager() -> None:
    """The normalised shape may have several dimensions; the input may be a chain."""
    w, b = rand(4, 8), rand(4, 8)
    check(
        lambda x, y, w, b: functional.layer_norm(x + y, (4, 8), w, b), rand(3, 4, 8), rand(3, 4, 8),
        w, b,
    )  # fmt: skip
    check(lambda x: functional.layer_norm(x, (1,)), rand(3, 1))
    check(lambda x: functional.layer_norm(x.t(), (4,)), rand(4, 8))


def test_layer_norm_takes_a_mean_far_from_zero() -> None:
    """A large mean does not cancel the variance away."""
    x = rand(4, 64) * 0.1 + 100
    check(lambda x: functional.layer_norm(x, (64,)), x, tolerance=(1e-3, 2e-4))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_other_norms_equal_eager(dtype: torch.dtype) -> None:
    """Group, batch (inference) and root-mean-square norms arrive as parts and agree."""
    x = rand(2, 4, 3, 5, dtype=dtype)
    check(lambda x: functional.group_norm(x, 2), x)
    check(lambda x: x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6), x)
    mean, var = rand(4), rand(4).abs() + 0.5
    check(lambda x, m, v: functional.batch_norm(x.float(), m, v), x, mean, var)
    check(lambda x: functional.normalize(x, dim=1), x)
