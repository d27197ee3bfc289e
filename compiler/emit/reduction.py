"""How each reduction kind is spelled: its identity, its loop step and its final combination.

A reduction is a monoid: an identity per accumulator, a step that takes one tile in, and a finish
that collapses the reduction axis. Persistent kernels skip the step and finish the masked tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..ops import is_float

_INT_MIN = {"int8": -(2**7), "int16": -(2**15), "int32": -(2**31), "int64": -(2**63), "uint8": 0}
_INT_MAX = {
    "int8": 2**7 - 1,
    "int16": 2**15 - 1,
    "int32": 2**31 - 1,
    "int64": 2**63 - 1,
    "uint8": 255,
}


def lowest(dtype: str) -> str:
    """The text of the smallest value of a compute dtype."""
    if is_float(dtype):
        return "float('-inf')"
    return "False" if dtype == "bool" else str(_INT_MIN[dtype])


def highest(dtype: str) -> str:
    """The text of the largest value of a compute dtype."""
    if is_float(dtype):
        return "float('inf')"
    return "True" if dtype == "bool" else str(_INT_MAX[dtype])


@dataclass(frozen=True, slots=True)
class Simple:
    """A reduction with one accumulator of the operand's dtype: ``step`` combines elementwise."""

    identity: Callable[[str], str]
    step: str
    finish: str


def _zero(dtype: str) -> str:
    return "0.0" if is_float(dtype) else "False" if dtype == "bool" else "0"


def _one(dtype: str) -> str:
    return "1.0" if is_float(dtype) else "True" if dtype == "bool" else "1"


SIMPLE: dict[str, Simple] = {
    "sum": Simple(_zero, "{acc} + {value}", "kf.sum({value}, {axis})"),
    "prod": Simple(_one, "{acc} * {value}", "kf.prod({value}, {axis})"),
    "max": Simple(lowest, "tl.maximum({acc}, {value}, propagate_nan=tl.PropagateNan.ALL)",
                  "kf.max({value}, {axis})"),
    "min": Simple(highest, "tl.minimum({acc}, {value}, propagate_nan=tl.PropagateNan.ALL)",
                  "kf.min({value}, {axis})"),
    "any": Simple(lambda dtype: "False", "{acc} | {value}", "kf.any({value}, {axis})"),
    "all": Simple(lambda dtype: "True", "{acc} & {value}", "kf.all({value}, {axis})"),
}  # fmt: skip

#: Position-valued reductions: the identity of the value they compare.
POSITIONS: dict[str, Callable[[str], str]] = {"argmax": lowest, "argmin": highest}
