"""8-bit floats on NumPy arrays, as a GPU converts them: to nearest, ties to even, saturating."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Format:
    """An 8-bit float: bits of the mantissa, exponent bias, largest number.

    Without ``infinity`` the top exponent holds numbers, and only its last pattern is NaN.
    """

    mantissa: int
    bias: int
    largest: float
    infinity: bool


#: By Triton's name of the type.
FORMATS = {
    "fp8e4nv": Format(mantissa=3, bias=7, largest=448.0, infinity=False),
    "fp8e5": Format(mantissa=2, bias=15, largest=57344.0, infinity=True),
}


def encode(values: Any, kind: Format) -> Any:
    """The bits of the nearest numbers as uint8; NaN is 0x7F, what is too large the largest."""
    exact = np.asarray(values, dtype=np.float64)
    size = np.minimum(np.abs(np.nan_to_num(exact, nan=0.0)), kind.largest)
    # numbers below the least normal one share its exponent, and have no leading one
    least = 1 - kind.bias
    exponent = np.where(size > 0, np.maximum(np.frexp(size)[1] - 1, least), least)
    steps = np.rint(np.ldexp(size, kind.mantissa - exponent)).astype(np.int64)
    # a carry out of the mantissa goes on into the exponent
    bits = ((exponent.astype(np.int64) + kind.bias - 1) << kind.mantissa) + steps
    bits |= np.signbit(exact).astype(np.int64) << 7
    return np.where(np.isnan(exact), 0x7F, bits).astype(np.uint8)


def decode(bits: Any, kind: Format) -> Any:
    """The numbers of uint8 bits as float32."""
    low = np.asarray(bits).astype(np.int32) & 0x7F
    field, rest = low >> kind.mantissa, low & ((1 << kind.mantissa) - 1)
    steps = np.where(field > 0, rest + (1 << kind.mantissa), rest).astype(np.float64)
    numbers = np.ldexp(steps, np.maximum(field, 1) - kind.bias - kind.mantissa)
    numbers = np.where(low == 0x7F, np.nan, numbers)
    if kind.infinity:
        top = low >= (0x7F >> kind.mantissa) << kind.mantissa
        numbers = np.where(top, np.where(rest == 0, np.inf, np.nan), numbers)
    sign = np.where(np.asarray(bits) >> 7, -1.0, 1.0)
    return np.copysign(numbers, sign).astype(np.float32)
