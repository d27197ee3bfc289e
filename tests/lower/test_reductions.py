"""Reductions equal eager for every dimension choice, dtype, layout and edge."""

from __future__ import annotations

import pytest
import torch
from body_eval import check
from tensors import FLOATS, layouts, rand

DIMS = (None, 0, 1, -1, (0, 2), (0, 1, 2), ())
SIMPLE = ("sum", "mean", "amax", "amin", "any", "all", "prod", "std", "var")


def _call(name: str, x: torch.Tensor, dim: object, keepdim: bool) -> torch.Tensor:
    fn = getattr(torch, name)
    if dim is None:
        return fn(x)
    return fn(x, dim=dim, keepdim=keepdim)


@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("keepdim", (False, True))
def test_reductions_over_any_dimensions_equal_eager(name: str, dim: object, keepdim: bool) -> None:
    """One, several, all and no named dimensions, kept or dropped."""
    if name == "prod" and isinstance(dim, tuple):
        pytest.skip("torch.prod takes one dimension")
    check(lambda x: _call(name, x, dim, keepdim), rand(3, 4, 5))


@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize(
    "dtype", (*FLOATS, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool), ids=str
)
def test_reductions_accumulate_in_eagers_dtype(name: str, dtype: torch.dtype) -> None:
    """Halves accumulate in float32, integers and booleans in int64."""
    x = rand(3, 20, dtype=dtype)
    try:
        _call(name, x, 1, False)
    except RuntimeError:
        return
    check(lambda x: _call(name, x, 1, False), x)


@pytest.mark.parametrize("name", ("sum", "amax", "var", "any"))
def test_reductions_in_every_layout_equal_eager(name: str) -> None:
    """Strided inputs are read rightly, and a lazy chain is reduced without being stored."""
    for x in layouts(4, 6):
        check(lambda x: _call(name, x, 1, True), x)
        lowering = check(lambda x: _call(name, (x + 1).t(), 1, False), x)
        assert len(lowering.graph.nodes) == 1


@pytest.mark.parametrize("name", ("sum", "mean", "any", "all", "prod"))
def test_reductions_over_nothing_equal_eager(name: str) -> None:
    """Empty dimensions give the neutral element or NaN; empty results are empty."""
    check(lambda x: _call(name, x, 1, False), torch.zeros(3, 0))
    check(lambda x: _call(name, x, 1, True), torch.zeros(0, 3))


@pytest.mark.parametrize("name", SIMPLE)
def test_reductions_of_scalars_and_single_elements_need_no_loop(name: str) -> None:
    """Zero dimensions and size 1 come out as in eager."""
    if name in ("std", "var"):
        check(lambda x: getattr(torch, name)(x, dim=0, correction=0), rand(1, 3))
    else:
        check(lambda x: getattr(torch, name)(x), torch.tensor(1.5))
        check(lambda x: _call(name, x, 0, False), torch.tensor([[float("nan"), 1.0, 0.0]]))


@pytest.mark.parametrize("name", ("amax", "amin", "max", "min", "argmax", "argmin"))
def test_extremes_let_nan_win(name: str) -> None:
    """NaN is the extreme, and its first position is the one that counts."""
    nan = float("nan")
    x = torch.tensor([[1.0, nan, 3.0, nan], [2.0, 5.0, 5.0, 1.0], [-1.0, -1.0, -1.0, -1.0]])
    check(lambda x: getattr(torch, name)(x), x)
    check(lambda x: getattr(torch, name)(x, dim=1), x)
    check(lambda x: getattr(torch, name)(x + 1, 0), x)


@pytest.mark.parametrize("name", ("max", "min"))
@pytest.mark.parametrize("dtype", (torch.int32, torch.bfloat16, torch.bool, torch.uint8), ids=str)
@pytest.mark.parametrize("keepdim", (False, True))
def test_extremes_with_positions_equal_eager(name: str, dtype: torch.dtype, keepdim: bool) -> None:
    """Values and first positions along a dimension."""
    check(lambda x: tuple(getattr(torch, name)(x, -1, keepdim)), rand(4, 9, dtype=dtype))


def test_extremes_of_scalars_equal_eager() -> None:
    """A tensor without dimensions has its extreme at position 0."""
    check(lambda x: tuple(torch.max(x, 0)), torch.tensor(3.0))
    check(lambda x: torch.argmax(x), torch.tensor(3.0))


def test_argmax_counts_row_major_positions_in_every_layout() -> None:
    """Over all dimensions the position does not depend on strides."""
    for x in layouts(4, 6):
        check(lambda x: torch.argmax(x), x)


@pytest.mark.parametrize("correction", (0, 1, 2))
def test_variance_corrections_equal_eager(correction: int) -> None:
    """Any correction, with and without the mean."""
    check(lambda x: torch.var(x, dim=(0, 2), correction=correction), rand(3, 4, 5))
    check(lambda x: torch.var_mean(x, dim=1, correction=correction, keepdim=True), rand(3, 4, 5))
    check(lambda x: torch.std_mean(x, dim=1, correction=correction), rand(3, 4).bfloat16())


def test_sum_converts_before_it_adds() -> None:
    """An explicit result dtype is the dtype of the accumulation."""
    check(lambda x: x.sum(dtype=torch.float64), rand(3, 40))
    check(lambda x: x.sum(1, dtype=torch.int32), torch.ones(1, 300, dtype=torch.bool))
    check(lambda x: x.mean(dtype=torch.float32), rand(4, 9, dtype=torch.float16))


@pytest.mark.parametrize("order", (2, 1, 0, 3, 0.5, float("inf"), float("-inf")))
@pytest.mark.parametrize("dim", (None, 1, (0, 1)))
def test_vector_norms_equal_eager(order: float, dim: object) -> None:
    """All orders, over any dimensions."""
    check(lambda x: torch.linalg.vector_norm(x, order, dim=dim), rand(3, 7))
    check(lambda x: torch.linalg.vector_norm(x, order, dim=dim), rand(3, 7).bfloat16())


def test_pad_after_a_reduction_keeps_its_choice() -> None:
    """A row of ones summed and padded on the left is [0, 16384] (pytorch#189895)."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x.sum(-1, dtype=torch.int32), (1, 0))

    check(fn, torch.ones(1, 16384, dtype=torch.bool))


def test_reductions_of_reductions_equal_eager() -> None:
    """Results feed further chains and reductions."""
    check(lambda x: (x / x.sum(1, keepdim=True)).amax(0) + x.mean(), rand(4, 6).abs() + 0.1)
    check(lambda x: torch.logsumexp(x, 1), rand(4, 6) * 50)
    check(lambda x: x.norm(dim=0), rand(4, 6))
    check(lambda x: torch.count_nonzero(x > 0, dim=1), rand(4, 6))
    check(lambda x: torch.aminmax(x, dim=1), rand(4, 6))
