"""What libdevice computes, on NumPy arrays: for kernels that run in Triton's interpreter.

Names are libdevice's without the ``__nv_`` prefix and, where both exist, without the ``f`` of the
single-precision form. Results are those of a correctly working math library at the argument's own
precision; the device's last bit, its fast approximations and flushed denormals are not imitated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..host_tables import words

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


def _torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    def run(x: Array) -> Array:
        result: Array = function(torch.from_numpy(np.ascontiguousarray(x))).numpy()
        return result

    return run


def _flag(function: Function) -> Function:
    return lambda x: function(x).astype(np.int32)


def _round_half_away(x: Array) -> Any:
    return np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x)


def _power_of_two(x: Array, n: Array) -> Any:
    return np.ldexp(x, n.astype(np.int64))


def _fma(x: Array, y: Array, z: Array) -> Any:
    # An exact product in double precision: single-precision results are rounded once, nearly so.
    wide = [value.astype(np.float64) for value in (x, y, z)]
    return (wide[0] * wide[1] + wide[2]).astype(z.dtype)


def _bits(x: Array) -> Array:
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def _popcount(x: Array) -> Array:
    counted: Array = np.bitwise_count(_bits(x)).astype(np.int32)
    return counted


def _leading_zeros(x: Array) -> Array:
    width = x.dtype.itemsize * 8
    bits = _bits(x)
    zeros = np.full(x.shape, width, np.int32)
    for position in range(width):
        found = (bits >> np.array(position, bits.dtype)) & np.array(1, bits.dtype)
        zeros = np.where(found != 0, np.int32(width - 1 - position), zeros)
    return zeros


def _first_set(x: Array) -> Array:
    bits = _bits(x)
    lowest = bits & (~bits + np.array(1, bits.dtype))
    zeros = x.dtype.itemsize * 8 - _leading_zeros(lowest)
    return np.where(bits == 0, np.int32(0), zeros).astype(np.int32)


def _high_half(x: Array, y: Array) -> Any:
    if x.dtype.itemsize == 4:
        wide = np.int64 if x.dtype.kind == "i" else np.uint64
        return (x.astype(wide) * y.astype(wide)) >> wide(32)
    products = [int(a) * int(b) >> 64 for a, b in zip(x.ravel(), y.ravel(), strict=True)]
    return np.array(products, dtype=x.dtype).reshape(x.shape)


_FLAGS: dict[str, Function] = {
    "isnan": _flag(np.isnan),
    "isnand": _flag(np.isnan),
    "isinf": _flag(np.isinf),
    "isinfd": _flag(np.isinf),
    "finite": _flag(np.isfinite),
    "isfinited": _flag(np.isfinite),
    "signbit": _flag(np.signbit),
    "signbitd": _flag(np.signbit),
}

_UNARY: dict[str, Function] = {
    **{
        name: getattr(np, name)
        for name in words(
            "exp exp2 expm1 log log2 log10 log1p sqrt cbrt sin cos tan sinh cosh tanh "
            "floor ceil trunc rint"
        )
    },
    **{
        name: getattr(np, "arc" + name.removeprefix("a"))
        for name in words("asin acos atan asinh acosh atanh")
    },
    **{
        name: _torch(getattr(torch.special, theirs))
        for name, theirs in {
            "erf": "erf",
            "erfc": "erfc",
            "erfcx": "erfcx",
            "erfinv": "erfinv",
            "lgamma": "gammaln",
            "normcdf": "ndtr",
            "normcdfinv": "ndtri",
            "j0": "bessel_j0",
            "j1": "bessel_j1",
            "y0": "bessel_y0",
            "y1": "bessel_y1",
            "cyl_bessel_i0": "i0",
            "cyl_bessel_i1": "i1",
        }.items()
    },
    "abs": np.abs,
    "llabs": np.abs,
    "fabs": np.abs,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "frcp": lambda x: 1 / x,
    "drcp": lambda x: 1 / x,
    "fsqrt": np.sqrt,
    "dsqrt": np.sqrt,
    "frsqrt": lambda x: 1 / np.sqrt(x),
    "saturate": lambda x: np.where(np.isnan(x), x.dtype.type(0), np.clip(x, 0, 1)),
    "nearbyint": np.rint,
    "llrint": lambda x: np.rint(x).astype(np.int64),
    "round": _round_half_away,
    "llround": lambda x: _round_half_away(x).astype(np.int64),
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)),
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "logb": lambda x: np.where(x == 0, -np.inf, np.frexp(np.abs(x))[1] - 1.0),
    "ilogb": lambda x: (np.frexp(x)[1] - 1).astype(np.int32),
    "erfcinv": lambda x: _UNARY["erfinv"](1 - x),
    "tgamma": lambda x: _tgamma(x),
    "popc": _popcount,
    "popcll": _popcount,
    "clz": _leading_zeros,
    "clzll": _leading_zeros,
    "ffs": _first_set,
    "ffsll": _first_set,
    **_FLAGS,
}

_BINARY: dict[str, Function] = {
    "pow": np.power,
    "powi": np.power,
    "fmod": np.fmod,
    "remainder": lambda x, y: x - y * np.rint(x / y),
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "copysign": np.copysign,
    "nextafter": np.nextafter,
    "fdim": lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, np.maximum(x - y, 0)),
    "ldexp": _power_of_two,
    "scalbn": _power_of_two,
    "fadd": np.add,
    "dadd": np.add,
    "fsub": np.subtract,
    "dsub": np.subtract,
    "fmul": np.multiply,
    "dmul": np.multiply,
    "fdiv": np.divide,
    "ddiv": np.divide,
    "fdivide": np.divide,
    "mulhi": _high_half,
    "umulhi": _high_half,
    "mul64hi": _high_half,
    "umul64hi": _high_half,
}

_TERNARY: dict[str, Function] = {"fma": _fma}

_TABLES = (_UNARY, _BINARY, _TERNARY)


def _tgamma(x: Array) -> Any:
    magnitude = np.exp(_UNARY["lgamma"](x))
    negative = (x < 0) & (np.fmod(np.floor(x), 2) != 0)
    result = np.where(negative, -magnitude, magnitude)
    return np.where((x < 0) & (x == np.floor(x)), np.nan, result)


def _conversion(name: str) -> Function | None:
    """Return a conversion or a bit cast, which name their result type in the symbol."""
    if "_as_" in name:
        return lambda x: x.view(
            np.dtype(
                f"f{x.dtype.itemsize}"
                if "as_float" in name or "as_double" in name
                else f"i{x.dtype.itemsize}"
            )
        )
    source, found, rest = name.partition("2")
    if not found or source not in ("int", "uint", "ll", "ull", "float", "double"):
        return None
    mode = rest.rpartition("_")[2]
    rounding = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}.get(mode)
    if rounding is None or rest.rpartition("_")[0] in ("float", "double"):
        return (lambda x: x) if mode == "rn" else None
    return rounding


def lookup(symbol: str, arity: int) -> Function | None:
    """Return the function behind a libdevice symbol, or None when it is not in the table.

    It takes ``arity`` arrays of equal shape; the caller casts the result to the declared type.
    """
    if not 1 <= arity <= len(_TABLES):
        return None
    table = _TABLES[arity - 1]
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    plain = name.removesuffix("_rn")
    for candidate in (name, plain, name.removesuffix("f"), plain.removesuffix("f")):
        if candidate in table:
            return table[candidate]
    return _conversion(name) if arity == 1 else None
