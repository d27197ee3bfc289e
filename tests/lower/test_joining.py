"""Concatenation, stacking and padding equal eager."""

from __future__ import annotations

import pytest
import torch
from body_eval import check
from tensors import DTYPES, layouts, rand

functional = torch.nn.functional


@pytest.mark.parametrize("dim", (0, 1, -1))
def test_cat_equals_eager_in_every_layout(dim: int) -> None:
    """Parts of every layout, lazy or in memory."""
    for x in layouts(4, 6):
        for y in layouts(4, 6):
            check(lambda a, b: torch.cat([a, b * 2, a.exp()], dim), x, y)


@pytest.mark.parametrize("first", DTYPES, ids=str)
@pytest.mark.parametrize("second", (torch.float32, torch.int64, torch.bool), ids=str)
def test_cat_promotes_as_eager(first: torch.dtype, second: torch.dtype) -> None:
    """Parts of different dtypes promote."""
    check(lambda a, b: torch.cat([a, b]), rand(3, 2, dtype=first), rand(1, 2, dtype=second))


def test_empty_parts_do_not_count() -> None:
    """Parts without elements, also legacy one-dimensional ones, vanish."""
    check(lambda a, b: torch.cat([a, b, a], 1), rand(2, 3), torch.zeros(2, 0))
    check(lambda a, b: torch.cat([b, a], 1), rand(2, 3), torch.zeros(0))
    check(lambda a, b: torch.cat([b, b], 0), rand(2, 3), torch.zeros(0, 3))


def test_cat_of_one_part_is_a_copy() -> None:
    """A single part gets memory of its own."""
    lowering = check(lambda a: torch.cat([a]), rand(2, 3))
    (out,) = lowering.graph.outputs
    assert out.buffer.role == "compute"


def test_many_parts_are_one_library_call() -> None:
    """A long chain of selects would run through all parts for each element."""
    check(
        lambda a: torch.cat([a + k for k in range(20)]),
        rand(2, 3),
        fallbacks=["aten.cat.default"],
    )


@pytest.mark.parametrize("dim", (0, 1, 2, -1))
def test_stack_equals_eager(dim: int) -> None:
    """A new dimension at any place."""
    check(lambda a, b: torch.stack([a, b + 1, a], dim), rand(2, 3), rand(2, 3))


def test_cat_feeds_reductions_and_reshapes() -> None:
    """Masks stay with their parts inside further index arithmetic (pytorch#189896)."""
    check(lambda a, b: torch.cat([a.reshape(-1), b.sum(0)]).reshape(2, 5).sum(1), rand(2, 3),
          rand(6, 4))  # fmt: skip
    check(lambda a, b: torch.cat([a, b]).flip(0).t()[1:].softmax(-1), rand(2, 3), rand(1, 3))
    check(lambda a, i: torch.cat([a[i], a]), rand(4, 3), torch.tensor([3, -4]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pad", ((1, 0), (0, 2), (2, 1, 0, 3), (-1, 2), (-1, -1, 1, -2), (0, 0)))
def test_pad_equals_eager(dtype: torch.dtype, pad: tuple[int, ...]) -> None:
    """Borders of any width, negative ones cut."""
    check(lambda x: functional.pad(x, pad), rand(4, 5, dtype=dtype))
    check(lambda x: functional.pad(x, pad, value=1), rand(4, 5, dtype=dtype))
    if dtype.is_floating_point:
        check(lambda x: functional.pad(x * 2, pad, value=-0.5) + 1, rand(4, 5, dtype=dtype))


def test_padding_nothing_equals_eager() -> None:
    """An empty tensor grows a border of nothing but the number."""
    check(lambda x: functional.pad(x, (1, 2), value=3.0), torch.zeros(2, 0))
    check(lambda x: functional.pad(functional.pad(x, (1, 1)), (1, 1), value=2.0), rand(2, 2))


def test_rope_like_rotation_equals_eager() -> None:
    """Halves swapped with a sign, as rotary embeddings do."""

    def rotate(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * c + torch.cat([-b, a], -1) * s

    check(rotate, rand(2, 3, 5, 8), rand(5, 8), rand(5, 8))
    check(rotate, rand(2, 3, 5, 8).bfloat16(), rand(5, 8).bfloat16(), rand(5, 8).bfloat16())
