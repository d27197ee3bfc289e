"""Whole graphs through fusion, kernel text and the interpreter, on numbers and shapes that bite.

Each case is a function and its inputs; results must equal eager's in value, dtype and sign of zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from body_eval import trace
from interpret import interpret
from on_gpu import run_on_gpu

Case = Callable[..., Any]
INF, NAN = math.inf, math.nan


def same(fn: Case, *inputs: Any, tolerance: float = 1e-5, signs: bool = True) -> None:
    """Compare every output with eager: dtype, shape, value, and the sign of zeros.

    Where there is a GPU the kernels are compiled and run there instead of interpreted.
    """
    if torch.cuda.is_available():
        with torch.device("cuda"):
            inputs = tuple(x.cuda() for x in inputs)
            results, wanted = run_on_gpu(fn, inputs), fn(*inputs)
    else:
        results, wanted = interpret(trace(fn, inputs), inputs)[0], fn(*inputs)
    for number, (got, want) in enumerate(
        zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True)
    ):
        assert got.dtype == want.dtype, f"output {number}"
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
        if want.dtype.is_floating_point:
            zero = (want == 0) & (got == 0)
            assert not signs or torch.equal(torch.signbit(got)[zero], torch.signbit(want)[zero]), (
                f"output {number} has a zero of the wrong sign"
            )


def test_zeros_keep_their_sign() -> None:
    """Negation, constants and products tell 0.0 from -0.0."""
    x = torch.tensor([0.0, -0.0, 2.0])
    same(lambda x: (-x, 1 / -x, x * -1, x + (-0.0), torch.full((3,), -0.0), x * -0.0), x)


def test_kernels_that_differ_in_the_sign_of_a_zero_are_two() -> None:
    """Equal computations with 0.0 and -0.0 are different kernels, though 0.0 == -0.0."""
    same(
        lambda x, y: (
            torch.copysign(x, torch.full((3,), 0.0)).cumsum(0),
            torch.copysign(x, torch.full((3,), 0.0)),
            torch.copysign(y, torch.full((5,), -0.0)),
        ),
        torch.ones(3),
        torch.ones(5),
    )
    same(
        lambda x, y: (
            torch.copysign(x, torch.full((3,), 0.0)),
            torch.mm(x, y),
            torch.copysign(torch.mm(x, y), torch.full((3,), -0.0)),
        ),
        torch.ones(3, 3),
        torch.ones(3, 3),
    )


def test_constants_have_the_precision_of_their_dtype() -> None:
    """A number filled into a tensor is rounded to its dtype, also where it is never stored."""
    x = torch.randn(3)
    same(
        lambda x: (
            torch.full((3,), 0.1).double() + x.double(),
            torch.full((3,), 0.1, dtype=torch.bfloat16).float() + x,
            F.pad(x.bfloat16(), (1, 1), value=0.1).float(),
            x.double() + 0.1,
            torch.full((3,), 0.1, dtype=torch.float64) - x.double(),
        ),
        x,
        tolerance=1e-12,
    )


def test_extreme_constants() -> None:
    """Infinity, NaN and the ends of integers and doubles survive printing."""
    same(
        lambda x: (
            x + INF,
            x * NAN,
            torch.full((2,), -INF),
            torch.full((2,), 2**63 - 1),
            torch.full((2,), -(2**63)),
            torch.full((2,), 1e300, dtype=torch.float64),
            torch.full((2,), 3.4e38) * x,
            torch.full((2,), 1e-45) * x.abs().ceil(),
            torch.full((2,), 255, dtype=torch.uint8),
            torch.full((2,), -128, dtype=torch.int8),
        ),
        torch.tensor([1.5, -2.5]),
    )


def test_values_of_an_index_beyond_32_bits() -> None:
    """Positions used as numbers do not wrap: large starts, large steps."""
    same(
        lambda x: (
            torch.arange(2**40, 2**40 + 5) + x,
            torch.arange(0, 5 * 10**9, 10**9) + x,
            torch.arange(1) + x,
        ),
        torch.arange(5),
    )


@pytest.mark.parametrize("dtype", (torch.uint8, torch.int8, torch.int16, torch.int32), ids=str)
def test_small_integers_wrap(dtype: torch.dtype) -> None:
    """Sums, products and differences wrap around at the width of their dtype, and stay wrapped."""
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.max, limits.min, 3, limits.max // 2 + 1], dtype=dtype)
    y = torch.tensor([limits.max, 7, 5, 2], dtype=dtype)
    same(
        lambda x, y: (
            x + y, x - y, x * y, -x, ~x, x.abs(), (x + y).float(), (x * y).long(), x // y, x % y,
            (x * 200 + 100) // 2, (x + y) > 0,
        ),
        x,
        y,
    )  # fmt: skip


@pytest.mark.parametrize("length", (60, 5000))
@pytest.mark.parametrize("dtype", (torch.int8, torch.int16, torch.uint8), ids=str)
def test_sums_in_small_integers_wrap(dtype: torch.dtype, length: int) -> None:
    """A sum asked for in a small dtype wraps, also where the sum is used before it is stored."""
    x = torch.randint(0, 100, (2, length)).to(dtype)
    same(
        lambda x: (
            x.sum(-1, dtype=dtype),
            x.sum(-1, dtype=dtype).float() + 1,
            x.prod(-1, dtype=dtype).float(),
            x.sum(-1),
        ),
        x,
    )


def test_uint8_any() -> None:
    """Any over uint8 has eager's dtype, and arithmetic on it eager's width."""
    x = torch.tensor([[0, 3, 0], [0, 0, 0]], dtype=torch.uint8)
    same(lambda x: (torch.any(x, 1), torch.any(x) * 200 + 100, torch.all(x, 0)), x)


@pytest.mark.parametrize("length", (37, 5000))
def test_boolean_reductions(length: int) -> None:
    """Any, all and sums of booleans, whole rows and in loops, with padded lanes."""
    x = torch.rand(3, length) < 2 / length
    x[1] = True
    same(lambda x: (x.any(1), x.all(1), x.sum(1), x.any(0), x.all(), x.int().prod(1)), x)


@pytest.mark.parametrize("length", (37, 4096, 5000))
def test_positions_of_extremes(length: int) -> None:
    """Ties, NaN and rows of one infinity give eager's position, whatever is padded or looped."""
    x = torch.full((6, length), -INF)
    x[1, length - 3], x[1, 5] = NAN, 7.0
    x[2, length - 1], x[2, 2] = NAN, NAN
    x[3] = INF
    x[4] = torch.randint(0, 3, (length,)).float()
    x[5] = -0.0
    x[5, length // 2] = 0.0
    same(
        lambda x: (x.argmax(1), x.argmin(1), x.amax(1), x.amin(1), *x.max(1), *x.min(1)),
        x,
        signs=False,  # which zero of several is the largest is nobody's promise
    )


@pytest.mark.parametrize("length", (37, 5000))
@pytest.mark.parametrize("dtype", (torch.int64, torch.int8, torch.uint8, torch.float64), ids=str)
def test_extremes_of_extreme_rows(dtype: torch.dtype, length: int) -> None:
    """A row that holds only the reduction's own identity still has its first position."""
    limits = torch.iinfo(dtype) if not dtype.is_floating_point else torch.finfo(dtype)
    x = torch.stack([torch.full((length,), v, dtype=dtype) for v in (limits.min, limits.max, 3)])
    same(lambda x: (x.argmax(1), x.argmin(1), x.amax(1), x.amin(1)), x)


def test_positions_over_all_dimensions() -> None:
    """A position over a whole tensor counts row by row, whatever its layout."""
    x = torch.randint(0, 4, (6, 700)).float()
    same(lambda x: (x.argmax(), x.t().argmax(), x.t().contiguous().argmin(), x.argmax(0)), x)


@pytest.mark.parametrize("rows, columns", ((3, 5001), (301, 5), (5, 1), (1, 4097)))
def test_moments(rows: int, columns: int) -> None:
    """Means and variances far from zero keep their digits, in every loop structure."""
    x = torch.randn(rows, columns) + 100
    same(
        lambda x: (
            *torch.var_mean(x, 1, correction=0),
            *torch.var_mean(x, 0, correction=0),
            F.layer_norm(x, (columns,), eps=0.1),
        ),
        x,
        tolerance=1e-3,
    )


@pytest.mark.parametrize("shape", ((0, 4), (4, 0), (0,), (), (1,), (5, 1), (1, 5), (1, 1, 1)))
def test_empty_and_tiny_shapes(shape: tuple[int, ...]) -> None:
    """Nothing, one element, and dimensions of size one are no special cases for a result."""
    x = torch.randn(shape)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outs = [x + 1, x.sum(), x.prod(), (x * 2).sum(-1), x.mean(0, keepdim=True) - x]
        if x.numel():
            outs += [x.amax(), x.argmax(), torch.softmax(x, -1), x.var(correction=0)]
        return tuple(outs)

    same(fn, x)


def test_float64() -> None:
    """Doubles keep all their digits through every operation that has a spelling of its own."""
    x, y = torch.rand(50).double() + 0.5, torch.randn(50).double()
    same(
        lambda x, y: (
            x / y, torch.floor_divide(x, y), x % y, torch.fmod(x, y), x.pow(2.5), x.exp(),
            torch.sigmoid(y), torch.tanh(y), torch.maximum(x, y), -y, y.sum(), y.var(),
            torch.softmax(y, 0), y.sign(), y.round(), F.gelu(y), y.prod(), x.rsqrt(),
        ),
        x,
        y,
        tolerance=1e-12,
    )  # fmt: skip


def test_one_buffer_under_two_dtypes() -> None:
    """A tensor and its bits are read by one kernel, each as what it is."""
    same(
        lambda x: (x.view(torch.int32) + x.to(torch.int32), x.view(torch.int32) < 0), torch.randn(9)
    )


def test_values_are_not_read_back_as_another_dtype_from_registers() -> None:
    """The bits of a computed value come from memory, where they are."""
    same(lambda x: ((x * 2).view(torch.int32) ^ 1, x * 2 + 1), torch.randn(40))


def test_forwarded_values_under_a_mask() -> None:
    """A masked read of a value that stays in a register gives zero where the mask is off."""
    x = torch.randn(4, 9)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.log(x)  # NaN for half of the elements
        padded = F.pad(y, (2, 3), value=-1.0)
        return y, padded, torch.cat([y, y * 0 + 1], 1).nan_to_num(), padded.nansum(1)

    same(fn, x)


def test_pad_after_a_reduction() -> None:
    """A border around a reduction's result keeps its choice (pytorch#189895)."""
    same(
        lambda x: F.pad(x.sum(-1, dtype=torch.int32), (1, 0)),
        torch.ones(1, 16384, dtype=torch.bool),
    )


def test_softmax_over_the_first_dimension_in_attention() -> None:
    """Scores normalised over the batch are not attention (pytorch#196468)."""
    q, k, v = torch.randn(4, 4, 2, 8), torch.randn(4, 4, 3, 8), torch.randn(4, 4, 3, 8)
    same(lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 128, 0) @ v, q, k, v)


@pytest.mark.every(2)
@pytest.mark.parametrize("length", (90, 5000))
def test_levels_of_reductions(length: int) -> None:
    """Reductions of what depends on other reductions, with stores in and between the loops."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean = x.mean(1, keepdim=True)
        off = x - mean
        top = off.abs().amax(1, keepdim=True)
        scaled = off * top
        return (
            mean * 3,
            scaled.sum(1),
            top.squeeze(1) + 1,
            scaled,
            (scaled > 0).any(1),
            off.argmax(1),
        )

    same(fn, torch.randn(64, length), tolerance=1e-3)


@pytest.mark.parametrize("length", (40, 300))
def test_levels_of_reductions_over_an_outer_dimension(length: int) -> None:
    """The same over the first dimension, where columns lie side by side."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean = x.mean(0, keepdim=True)
        top = (x - mean).abs().amax(0, keepdim=True)
        return mean.squeeze(0), ((x - mean) * top).sum(0), x / top

    same(fn, torch.randn(length, 37), tolerance=1e-3)


def test_transposed_consumer() -> None:
    """A consumer that walks the other way reads memory, not registers."""
    same(
        lambda x, y: (x * 2, (x * 2).t() + y, ((x * 2).t() + y).sum(1), (x.t() + y).sum(0)),
        torch.randn(70, 50),
        torch.randn(50, 70),
    )


@pytest.mark.parametrize("dtype", (torch.int64, torch.int32), ids=str)
def test_data_dependent_positions(dtype: torch.dtype) -> None:
    """Reads at positions from data, wrapped, masked and reduced."""
    x, i = torch.randn(9, 9), torch.tensor([0, 8, 3, 3], dtype=dtype)
    same(
        lambda x, i: (
            x[i],
            x[:, i - 4],
            F.embedding(i, x).sum(-1),
            F.pad(x[i], (1, 1)),
            x[i][:, i],
        ),
        x,
        i,
    )


def test_rounding_divisions() -> None:
    """Floor division and remainder of awkward floats follow eager's definition."""
    same(
        lambda x, y: (torch.floor_divide(x, y), x % y, torch.fmod(x, y)),
        torch.tensor([1e8, -7, 7, 0.3, -0.0, 5, INF, 3, -1e-9, 16777217.0]),
        torch.tensor([3, 2, -2, 0.1, 1, 0, 2, INF, 3.0, 3.0]),
    )
