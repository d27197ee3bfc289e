"""How kernel text spells dtypes."""

from __future__ import annotations

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

    Triton's own conversion to an 8-bit float stops at the largest number; eager's does not.
    """
    return (
        f"kf.to_{dtype}({value})"
        if dtype.startswith("float8")
        else f"{value}.to({tl_dtype(dtype)})"
    )
