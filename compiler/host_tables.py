"""The fixed vocabulary of host programs: dtypes, devices, formats, size heads, names and bounds.

The order of ``DTYPES``, ``DEVICES``, ``FORMATS`` and ``SIZE_OPS`` is part of the encoding
(`host_codec` writes positions): append, never reorder, or raise ``host.HOST_SCHEMA``.
"""

from __future__ import annotations

import builtins
import keyword
import re


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text: tables of names read better so."""
    return tuple(text.split())


#: torch's dtype names and their item sizes in bytes.
DTYPES: dict[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float64": 8,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "complex64": 8,
    "complex128": 16,
    "complex32": 4,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}

DEVICES: tuple[str, ...] = ("target", "cpu")

#: Memory formats and layouts share one table: both are torch attributes of that name.
FORMATS: tuple[str, ...] = (
    "contiguous_format",
    "preserve_format",
    "channels_last",
    "channels_last_3d",
    "strided",
)

#: Heads of size expressions and how many arguments each takes (fewest, most).
SIZE_OPS: dict[str, tuple[int, int]] = {
    "sym": (1, 1),
    "add": (1, 64),
    "mul": (1, 64),
    "floordiv": (2, 2),
    "mod": (2, 2),
    "ceildiv": (2, 2),
    "max": (1, 64),
    "min": (1, 64),
}

_POINTEES = words(
    "i1 i8 i16 i32 i64 u1 u8 u16 u32 u64 fp16 bf16 fp32 fp64 "
    "fp8e4nv fp8e5 fp8e4b8 fp8e5b16 fp8e4b15"
)

#: Scalar launch arguments, by Triton's signature type.
SCALAR_KINDS = frozenset(words("i1 i8 i16 i32 i64 u1 u8 u16 u32 u64 fp16 bf16 fp32 f32 fp64"))

#: Pointer launch arguments; ``*k`` marks a pointer that the kernel only reads.
POINTER_KINDS = frozenset(f"*{k}{t}" for k in ("", "k") for t in _POINTEES)

ARG_KINDS = SCALAR_KINDS | POINTER_KINDS

#: What an integer launch argument of each type can hold; beyond it launchers may wrap silently.
INTEGER_RANGES: dict[str, tuple[int, int]] = {
    "i1": (0, 1),
    "u1": (0, 1),
    **{f"i{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"u{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}

# Bounds. Generous for honest programs (the largest graphs seen have a few thousand lines), small
# enough that a hostile record cannot take the reader's memory or its Python stack.
MAX_PROGRAM_BYTES = 64 << 20
MAX_LINES = 200_000
MAX_NAMES = 200_000
MAX_KERNELS = 50_000
MAX_ARGS = 20_000
MAX_RANK = 64
MAX_DEPTH = 32
MAX_TEXT = 4096
MAX_NAME = 256
MAX_CONSTANT_BYTES = 16 << 20
MAX_ELEMENTS = 1 << 48
GRID_LIMITS = (2**31 - 1, 65535, 65535)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

#: Names that the printed program uses itself; the rest of them all match ``_RESERVED``.
PRINTER_NAMES = frozenset(
    words(
        "_index _stream _device _result _empty _empty_cpu _view _view_as _realign _check_layout "
        "_out_of_range _current_device _on_device _raw_stream _device_of _kernels _constants _max "
        "_min _inf _nan call args self"
    )
)
_RESERVED = re.compile(r"_(k\d+|op\d+|dt_\w+|mf_\w+|given_\w+)\Z", re.ASCII)
_BUILTINS = frozenset(dir(builtins))


def label_problem(label: object) -> str | None:
    """Like `name_problem`, for names that never become a variable: kernels and keywords."""
    if type(label) is not str or len(label) > MAX_NAME or _NAME.match(label) is None:
        return f"{label!r} is no name: letters, digits and underscores only"
    if keyword.iskeyword(label) or label.startswith("__"):
        return f"{label!r} means something to Python"
    return None


def name_problem(name: object) -> str | None:
    """Say what is wrong with ``name`` as a program's name, or None when nothing is."""
    problem = None
    if type(name) is not str:
        problem = f"a name must be text, found {type(name).__name__}"
    elif len(name) > MAX_NAME:
        problem = f"a name of {len(name)} characters is too long (limit {MAX_NAME})"
    elif _NAME.match(name) is None:
        problem = f"{name!r} is no name: letters, digits and underscores only"
    elif keyword.iskeyword(name) or name in _BUILTINS or name.startswith("__"):
        problem = f"{name!r} means something to Python"
    elif name in PRINTER_NAMES or _RESERVED.match(name) is not None:
        problem = f"{name!r} is a name that printed programs keep for themselves"
    return problem
