"""How kernel text spells dtypes."""

from __future__ import annotations

import functools

import torch
from torch.utils._python_dispatch import _disable_current_modes

#: Pointer types as a signature spells them.
POINTER = {
    "float32": "*fp32", "float64": "*fp64", "float16": "*fp16", "bfloat16": "*bf16",
    "int8": "*i8", "int16": "*i16", "int32": "*i32", "int64": "*i64", "uint8": "*u8", "bool": "*i1",
    "float8_e4m3fn": "*fp8e4nv", "float8_e5m2": "*fp8e5",
}  # fmt: skip
_TL = {
    "bool": "tl.int1", "float8_e4m3fn": "tl.float8e4nv", "float8_e5m2": "tl.float8e5",
}  # fmt: skip


def tl_dtype(dtype: str) -> str:
    """Triton's spelling of a dtype."""
    return _TL.get(dtype, f"tl.{dtype}")


def converted(value: str, dtype: str) -> str:
    """The text of a float32 value in a stored dtype.

    Triton's own conversion to an 8-bit float stops at the largest number; eager's may not.
    """
    if not dtype.startswith("float8"):
        return f"{value}.to({tl_dtype(dtype)})"
    if dtype == "float8_e4m3fn" and saturates():
        return f"kf.to_float8_e4m3fn_saturated({value})"
    return f"kf.to_{dtype}({value})"


@functools.cache
def saturates() -> bool:
    """Whether eager turns what is too large for float8_e4m3fn into 448, and not into NaN.

    torch 2.11 gives NaN, torch 2.13 saturates; a graph's key names the version.
    """
    with _disable_current_modes():
        return bool(torch.tensor(1e5, device="cpu").to(torch.float8_e4m3fn).float() == 448.0)
