"""Tensors made from nothing equal eager."""

from __future__ import annotations

import functools

import pytest
import torch
from body_eval import check
from tensors import DTYPES, rand


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_constants_equal_eager(dtype: torch.dtype) -> None:
    """Full, zeros, ones and their relatives, used at once or returned."""
    x = rand(2, 3, dtype=dtype)
    check(lambda x: torch.full((2, 3), 2, dtype=dtype) + x, x)
    check(lambda x: torch.full_like(x, 1), x)
    check(lambda x: torch.zeros_like(x) + torch.ones(3, dtype=dtype), x)
    check(lambda x: x.new_zeros(2) + x.new_full((2,), 1) + x.new_ones(()), x)
    check(lambda x: torch.scalar_tensor(1, dtype=dtype) + x, x)


@pytest.mark.parametrize("dtype", (None, torch.int32, torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("args", ((5,), (2, 9), (1, 10, 3), (5, -4, -2), (3, 3)))
def test_ranges_equal_eager(dtype: torch.dtype | None, args: tuple[int, ...]) -> None:
    """Integer bounds in integer and float dtypes."""
    check(lambda x: torch.arange(*args, dtype=dtype), rand(1))
    check(lambda x: torch.arange(*args, dtype=dtype) * 2 + x, rand(1))


def test_fractional_ranges_equal_eager() -> None:
    """Float starts and steps."""
    check(lambda x: torch.arange(0.5, 4.0, 0.25) + x, rand(1))
    check(lambda x: torch.arange(0, 1, 0.1, dtype=torch.float64) + x, rand(1))
    check(lambda x: torch.linspace(-1, 1, 7) + x, rand(1), fallbacks=["aten.linspace.default"])


def test_masks_made_of_ranges_equal_eager() -> None:
    """Causal masks, identity matrices and triangles."""

    def causal(x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(6)
        return torch.where(at[None] <= at[:, None], x, float("-inf"))

    check(causal, rand(6, 6))
    check(lambda x: torch.eye(4, 6) + x, rand(6))
    check(lambda x: torch.tril(torch.ones(4, 4, dtype=torch.bool)) & (x > 0), rand(4, 4))
    check(lambda x: torch.triu(x, 1), rand(3, 5))


def test_empty_memory_has_the_right_shape_and_layout() -> None:
    """What empty memory holds is nobody's business; its shape and strides are."""
    check(lambda x: torch.empty(3, 4).fill_(2) + x, rand(4))
    check(lambda x: torch.empty_like(x).copy_(x), rand(3, 4).t())
    check(lambda x: torch.empty_strided((2, 3), (1, 2)).zero_() + x, rand(2, 3))


def _plus(literal: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x + literal


def test_constant_tensors_of_the_graph_are_carried_as_data() -> None:
    """A literal tensor in the function equals eager in every dtype."""
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
        check(functools.partial(_plus, torch.tensor([1, 0, 2]).to(dtype)), rand(2, 3))
