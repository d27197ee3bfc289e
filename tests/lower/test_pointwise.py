"""Elementwise lowerings equal eager in value, dtype and layout."""

from __future__ import annotations

import pytest
import torch
from body_eval import check
from tensors import DTYPES, FLOATS, SPECIAL, layouts, positive, rand

aten = torch.ops.aten

UNARY = (
    "exp", "exp2", "expm1", "sin", "cos", "tan", "tanh", "sinh", "cosh", "atan", "asinh", "erf",
    "erfc", "sigmoid", "neg", "abs", "floor", "ceil", "trunc", "round", "sign", "isnan", "isinf",
    "isfinite", "relu", "signbit", "angle", "logical_not", "square", "frac", "reciprocal", "sgn",
)  # fmt: skip
POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "lgamma")
UNIT = ("asin", "acos", "atanh", "erfinv")
ACTIVATIONS = (
    "silu", "hardswish", "leaky_relu", "elu", "softplus", "mish", "hardtanh", "hardsigmoid",
    "relu6", "gelu", "selu", "celu", "logsigmoid", "softsign", "tanhshrink", "hardshrink",
    "softshrink", "relu",
)  # fmt: skip
BINARY = (
    "add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "copysign",
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "remainder",
    "fmod", "floor_divide", "true_divide", "logaddexp",
)  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary_operators_equal_eager_on_special_values(name: str) -> None:
    """Zeros of both signs, infinities, NaN and ties to even come out as in eager."""
    check(lambda x: getattr(torch, name)(x), SPECIAL)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_unary_operators_equal_eager_in_half_precision(name: str, dtype: torch.dtype) -> None:
    """Half precision is computed in float32 and rounded when stored."""
    check(lambda x: getattr(torch, name)(x), rand(3, 7, dtype=dtype))


@pytest.mark.parametrize("name", (*POSITIVE, *UNIT))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_partial_functions_equal_eager(name: str, dtype: torch.dtype) -> None:
    """Logarithms, roots and inverse functions agree inside their domain and are NaN outside."""
    inside = positive(4, 5) if name in POSITIVE else torch.rand(4, 5) * 1.8 - 0.9
    check(lambda x: getattr(torch, name)(x), inside.to(dtype))
    if name != "lgamma":
        check(lambda x: getattr(torch, name)(x), torch.tensor([-2.0, 0.0]).to(dtype))


@pytest.mark.parametrize("name", ("exp", "sqrt", "sigmoid", "abs", "neg", "floor", "sign", "erf"))
@pytest.mark.parametrize("dtype", (torch.int64, torch.int32, torch.uint8), ids=str)
def test_unary_operators_promote_integers_as_eager(name: str, dtype: torch.dtype) -> None:
    """Integer operands stay integers or become float32, as torch's promotion says."""
    check(lambda x: getattr(torch, name)(x), rand(3, 5, dtype=dtype).abs())


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations_equal_eager(name: str, dtype: torch.dtype) -> None:
    """Every activation of torch.nn.functional agrees, on NaN and infinities too."""
    # the CPU's vectorised gelu makes NaN of an infinity, a GPU's does not
    x = SPECIAL.to(dtype)
    x = x[x.isfinite()] if name == "gelu" else x
    check(lambda x: getattr(torch.nn.functional, name)(x), x)


def test_gelu_with_tanh_equals_eager() -> None:
    """The tanh approximation is not the erf form."""
    check(lambda x: torch.nn.functional.gelu(x, approximate="tanh"), rand(5, 9))


@pytest.mark.parametrize("name", BINARY)
def test_binary_operators_equal_eager_on_all_pairs_of_special_values(name: str) -> None:
    """All pairs of zeros, infinities and NaN agree."""
    # the CPU's vectorised remainders make NaN of the ratio of 3e30 and 1e-30, a GPU's do not
    x = SPECIAL[SPECIAL != 3e30] if name in ("fmod", "remainder") else SPECIAL
    check(lambda a, b: getattr(torch, name)(a[:, None], b), x, x.clone())


@pytest.mark.every(4)
@pytest.mark.parametrize("name", BINARY[:-1])
@pytest.mark.parametrize("first", (torch.bfloat16, torch.int32, torch.uint8, torch.bool), ids=str)
@pytest.mark.parametrize("second", (torch.float64, torch.int64, torch.uint8, torch.bool), ids=str)
def test_binary_operators_promote_as_eager(
    name: str, first: torch.dtype, second: torch.dtype
) -> None:
    """Any pair of dtypes gives eager's dtype and values, or eager refuses it."""
    a, b = rand(3, 1, dtype=first), rand(4, dtype=second)
    if second == torch.bool:
        b = torch.ones_like(b)  # no division by zero for integers
    try:
        getattr(torch, name)(a, b)
    except RuntimeError:
        return
    check(lambda a, b: getattr(torch, name)(a, b), a, b, fallbacks=_fallbacks(name, first, second))


def _fallbacks(name: str, first: torch.dtype, second: torch.dtype) -> tuple[str, ...]:
    """Arithmetic on two booleans is rare: torch does it."""
    if first == second == torch.bool and name in ("floor_divide", "fmax", "fmin"):
        return ("aten.floor_divide.default", "aten.fmax.default", "aten.fmin.default",
                "aten.div.Tensor_mode")  # fmt: skip
    return ()


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", (2, -1, 2.5, True, 300), ids=str)
def test_numbers_promote_as_eager(dtype: torch.dtype, number: float) -> None:
    """A Python number takes part in promotion without widening, and wraps around in uint8."""
    x = rand(2, 3, dtype=dtype)
    for fn in (
        lambda x: x + number,
        lambda x: x * number,
        lambda x: number - x if dtype != torch.bool and number is not True else x,
        lambda x: x / number,
        lambda x: x == number,
        lambda x: torch.where(x > 0, x, number),
        lambda x: torch.add(x, x, alpha=number),
        lambda x: x < number,
        lambda x: x.clamp(max=number),
    ):
        try:
            fn(x)
        except RuntimeError:
            continue
        check(fn, x, fallbacks=["aten.add.Tensor"] if dtype == torch.bool else ())


@pytest.mark.parametrize("mode", (None, "floor", "trunc"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.int32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("by", (3, -2, 4, 0.25))
def test_division_modes_equal_eager(mode: str | None, dtype: torch.dtype, by: float) -> None:
    """True, floored and truncated division agree for both signs of both operands."""
    check(lambda x: torch.div(x, by, rounding_mode=mode), rand(4, 6, dtype=dtype))


@pytest.mark.parametrize("exponent", (0, 1, 2, 3, 4, 0.5, -1, -2, 2.5, float("inf")))
def test_powers_equal_eager(exponent: float) -> None:
    """Constant exponents agree, whether they become multiplications or not."""
    check(lambda x: x**exponent, SPECIAL)
    check(lambda x: x**exponent, positive(3, 4, dtype=torch.bfloat16))


def test_powers_of_tensors_equal_eager() -> None:
    """A tensor or a number may be raised to a tensor's power."""
    check(lambda a, b: a**b, positive(4, 1), rand(5))
    check(lambda b: 2.0**b, rand(5))


@pytest.mark.parametrize("low,high", [(0, 1), (None, 0.5), (-0.5, None), (1, 0)])
@pytest.mark.parametrize("dtype", (torch.float32, torch.int64, torch.float16), ids=str)
def test_clamp_equals_eager(low: float | None, high: float | None, dtype: torch.dtype) -> None:
    """Numeric limits, also crossed ones and those that promote, agree."""
    check(lambda x: x.clamp(low, high), rand(20, dtype=dtype))
    check(lambda x: torch.clamp(x, min=low, max=high), rand(20, dtype=dtype))


def test_clamp_by_tensors_equals_eager() -> None:
    """Tensor limits broadcast, NaN wins."""
    check(lambda x, a: torch.clamp(x, a, a + 1), SPECIAL[:, None], SPECIAL[:5])
    check(lambda x, a: x.clamp_min(a), SPECIAL[:, None], SPECIAL[:5])
    check(lambda x, a: x.clamp_max(a), SPECIAL[:, None], SPECIAL[:5])


@pytest.mark.parametrize("dtype", (torch.int32, torch.int64, torch.uint8, torch.int8), ids=str)
def test_shifts_equal_eager_beyond_the_width(dtype: torch.dtype) -> None:
    """Shift counts at and beyond the width agree, and so do negative values."""
    x = torch.tensor([1, 5, 100, 127]).to(dtype)
    if dtype != torch.uint8:
        x = torch.cat([x, -x])
    counts = torch.tensor([0, 1, 3, 7, 8, 31, 32, 63, 64]).to(dtype)[:, None]
    check(lambda a, b: a << b, x, counts)
    check(lambda a, b: a >> b, x, counts)
    check(lambda a: (a << 2) | (a >> 1), x)
    check(lambda a: (a & 6) ^ ~a, x)


@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_conversions_equal_eager(source: torch.dtype, target: torch.dtype) -> None:
    """Every pair of dtypes converts as in eager, also twice in a row."""
    x = rand(4, 5, dtype=source)
    if source.is_floating_point and target == torch.uint8:
        x = x.abs()  # a negative float has no defined value there
    check(lambda x: x.to(target), x)
    check(lambda x: x.to(target).to(torch.float32) * 2, x)


def test_explicit_rounding_is_kept_inside_a_fused_chain() -> None:
    """A conversion to bfloat16 and back loses its bits even though nothing is stored between."""
    check(lambda x: x.to(torch.bfloat16).to(torch.float32) - x, rand(64))


@pytest.mark.parametrize("name", ("addcmul", "addcdiv"))
def test_fused_arithmetic_equals_eager(name: str) -> None:
    """Three-operand forms agree with their scale."""
    fn = getattr(torch, name)
    check(lambda a, b, c: fn(a, b, c, value=0.5), rand(4, 3), rand(3), positive(4, 1))


def test_lerp_and_masked_fill_equal_eager() -> None:
    """Interpolation and conditional constants agree."""
    check(lambda a, b: torch.lerp(a, b, 0.3), rand(6), rand(6))
    check(lambda a, b, w: torch.lerp(a, b, w), rand(6), rand(6), torch.rand(6))
    check(lambda a, m: a.masked_fill(m, -1e9), rand(4, 6), rand(4, 1) > 0)
    check(lambda a: torch.nan_to_num(a, nan=1.0), SPECIAL)


def test_where_takes_any_condition_and_promotes() -> None:
    """Conditions may be bytes; branches of different dtypes promote."""
    check(lambda c, a, b: torch.where(c, a, b), rand(5) > 0, rand(5), rand(5, dtype=torch.int64))
    check(lambda c, a: torch.where(c > 0, a, 0.0), rand(3, 1), rand(4))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64), ids=str)
def test_layouts_follow_eager(dtype: torch.dtype) -> None:
    """Strided, expanded and offset operands are read rightly and the result has eager's strides."""
    for x in layouts(4, 6, dtype):
        for y in layouts(4, 6, dtype):
            check(lambda a, b: a * b + a, x, y)


def test_empty_and_scalar_tensors_equal_eager() -> None:
    """No elements and no dimensions are shapes like any other."""
    check(lambda x: torch.exp(x) + 1, torch.zeros(0, 3))
    check(lambda x: torch.exp(x) + 1, torch.tensor(0.5))
    check(lambda x, y: x + y, torch.tensor(0.5), rand(2, 3))
    check(lambda x, y: x + y, torch.tensor(1, dtype=torch.int64), rand(2, 3))


def test_integers_wrap_around_as_in_eager() -> None:
    """uint8 arithmetic stays in uint8: 1 * 200 + 100 is 44 (pytorch#198081)."""
    flags = torch.tensor([0, 3, 0], dtype=torch.uint8)
    check(lambda x: torch.any(x) * 200 + 100, flags)
    check(lambda x: x * 200 + 100, torch.arange(8, dtype=torch.uint8))
    check(lambda x: x * 2**30 * 4, torch.arange(8, dtype=torch.int32))


def test_nextafter_equals_eager() -> None:
    """Neighbours in float32 and float64; narrow floats go to the library."""
    check(lambda a, b: torch.nextafter(a, b), rand(5), rand(5))
    check(
        lambda a, b: torch.nextafter(a, b),
        rand(5).bfloat16(),
        rand(5).bfloat16(),
        fallbacks=["aten.nextafter.default"],
    )


def test_a_library_call_serves_what_has_no_lowering() -> None:
    """An operator without a lowering runs between two kernels and sees eager's layout."""
    lowering = check(
        lambda x: torch.special.i0((x * 2).t()) + 1,
        rand(3, 4),
        fallbacks=["aten.i0.default", "aten.special_i0.default"],
    )
    assert lowering.fallback_ops
