"""Numbers that depend on sizes, as values of a kernel."""

from __future__ import annotations

import sympy

from ..body import Recorder
from ..index import Index
from ..ops import is_float
from ..sym import as_size

_CALLS = {"OpaqueUnaryFn_sqrt": "sqrt", "OpaqueUnaryFn_exp": "exp", "OpaqueUnaryFn_log": "log"}


def number_value(recorder: Recorder, number: sympy.Expr, dtype: str) -> int:
    """A symbolic number as a value of a compute dtype.

    What Python computes in double precision is computed so here and rounded once. Raises TypeError,
    which makes the operator a library call, for a function of sizes that kernels do not have.
    """
    if _is_whole(number):
        value = recorder.index(Index((), as_size(number)))
        if dtype == "bool":
            return recorder.op("ne", value, recorder.const(0, "int64"))
        return recorder.cast(value, dtype)
    if not is_float(dtype):
        raise TypeError(f"{number} as {dtype}")
    return recorder.cast(_double(recorder, number), dtype)


def _is_whole(number: sympy.Expr) -> bool:
    """Whether Python computes it in integers."""
    return bool(number.is_integer) and not number.has(sympy.Float)


def _double(recorder: Recorder, number: sympy.Expr) -> int:
    if number.is_Number:
        return recorder.const(float(number), "float64")
    if _is_whole(number):
        return number_value(recorder, number, "float64")
    name = type(number).__name__
    if isinstance(number, sympy.Pow) and number.exp == -1:
        one = recorder.const(1.0, "float64")
        return recorder.op("div", one, _double(recorder, number.base))
    args = [_double(recorder, arg) for arg in number.args]  # type: ignore[arg-type]
    match name:
        case "IntTrueDiv" | "FloatTrueDiv":
            return recorder.op("div", *args)
        case "ToFloat":
            return args[0]
        case "Add" | "Mul":
            total = args[0]
            for arg in args[1:]:
                total = recorder.op("add" if name == "Add" else "mul", total, arg)
            return total
        case "FloatPow" | "PowByNatural":
            return recorder.op("pow", *args)
        case _ if name in _CALLS:
            return recorder.op(_CALLS[name], *args)
    raise TypeError(f"no kernel computes {name}")
