"""The vocabulary of loop bodies: every operation with its arity, result dtype, cost and spelling.

Dtypes are torch's names without the "torch." prefix. Values inside a body have a *compute* dtype:
float16, bfloat16 and the float8 types are computed in float32 (`compute_dtype`), everything else
in itself. An operation's operands have equal dtypes unless its rule says otherwise; the lowering
casts.

``text`` is how the kernel printer spells it: ``{0}``, ``{1}`` are operand texts. ``kf`` is
`seam.devicelib`. A dict gives one spelling per operand dtype with "" as the default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
INTS = ("int8", "int16", "int32", "int64", "uint8")
ITEMSIZE = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}
#: Dtypes that kernels can load, compute and store; others go through extern calls.
KERNEL_DTYPES = frozenset((*FLOATS, *INTS, "bool"))


def compute_dtype(dtype: str) -> str:
    """The dtype in which values of a stored dtype are computed."""
    return "float32" if dtype in FLOATS and dtype != "float64" else dtype


def is_float(dtype: str) -> bool:
    """Whether this is a floating-point dtype."""
    return dtype in FLOATS


Rule = Callable[[tuple[str, ...]], str]


def _same(dtypes: tuple[str, ...]) -> str:
    return dtypes[0]


def _bool(dtypes: tuple[str, ...]) -> str:
    return "bool"


def _single(dtypes: tuple[str, ...]) -> str:
    return "float32"


def _double(dtypes: tuple[str, ...]) -> str:
    return "float64"


def _second(dtypes: tuple[str, ...]) -> str:
    return dtypes[1]


@dataclass(frozen=True, slots=True)
class OpDef:
    """One operation of the vocabulary; ``cost`` is in rough instruction counts."""

    name: str
    arity: int
    rule: Rule
    text: str | dict[str, str]
    cost: int = 1

    def spelling(self, dtype: str) -> str:
        """The text for operands of this compute dtype."""
        if isinstance(self.text, str):
            return self.text
        return self.text.get(dtype, self.text[""])


OPS: dict[str, OpDef] = {}


def _op(
    name: str, arity: int, text: str | dict[str, str], rule: Rule = _same, cost: int = 1
) -> None:
    OPS[name] = OpDef(name, arity, rule, text, cost)


def _unary_library(*names: str, cost: int = 20) -> None:
    for name in names:
        _op(name, 1, f"libdevice.{name}({{0}})", cost=cost)


# arithmetic; booleans have no +, - or * in a kernel: the lowering casts or uses logic
_op("add", 2, "{0} + {1}")
_op("sub", 2, "{0} - {1}")
_op("mul", 2, "{0} * {1}")
# IEEE division, as eager: Triton's own ``/`` on float32 is an approximation (2 ulp)
_op("div", 2, {"": "tl.div_rn({0}, {1})", "float64": "{0} / {1}"}, cost=8)
_op(
    "floor_div",
    2,
    {
        "": "kf.floor_div({0}, {1})",
        "float32": "kf.floor_div_float({0}, {1})",
        "float64": "kf.floor_div_float({0}, {1})",
    },
    cost=16,
)
_op("trunc_div", 2, "{0} // {1}", cost=16)  # integers: Triton has C semantics
_op(
    "remainder",
    2,
    {
        "": "kf.remainder({0}, {1})",
        "float32": "kf.remainder_float({0}, {1})",
        "float64": "kf.remainder_float({0}, {1})",
    },
    cost=20,
)
_op(
    "fmod",
    2,
    {"": "{0} % {1}", "float32": "libdevice.fmod({0}, {1})", "float64": "libdevice.fmod({0}, {1})"},
    cost=20,
)
# before Triton 3.9 a minus sign is a subtraction from zero, and -(0.0) is then not -0.0
_op("neg", 1, {"": "-{0}", "float32": "{0} * -1.0", "float64": "{0} * -1.0"})
_op("abs", 1, "tl.abs({0})")
_op(
    "maximum",
    2,
    {
        "": "tl.maximum({0}, {1})",
        "float32": "kf.maximum({0}, {1})",
        "float64": "kf.maximum({0}, {1})",
        "bool": "{0} | {1}",
    },
)
_op(
    "minimum",
    2,
    {
        "": "tl.minimum({0}, {1})",
        "float32": "kf.minimum({0}, {1})",
        "float64": "kf.minimum({0}, {1})",
        "bool": "{0} & {1}",
    },
)
_op("fma", 3, "libdevice.fma({0}, {1}, {2})")

# comparison and logic
for _name, _sign in (
    ("eq", "=="),
    ("ne", "!="),
    ("lt", "<"),
    ("le", "<="),
    ("gt", ">"),
    ("ge", ">="),
):
    _op(_name, 2, f"{{0}} {_sign} {{1}}", _bool)
_op("and", 2, "{0} & {1}")
_op("or", 2, "{0} | {1}")
_op("xor", 2, "{0} ^ {1}")
_op("not", 1, {"": "~{0}", "bool": "{0} == 0", "uint8": "{0} ^ 255"})
_op("shift_left", 2, "{0} << {1}")
_op("shift_right", 2, "{0} >> {1}")
_op("where", 3, "tl.where({0}, {1}, {2})", _second)
_op("isnan", 1, "{0} != {0}", _bool)
_op("isinf", 1, "tl.abs({0}) == float('inf')", _bool)
_op("isfinite", 1, "tl.abs({0}) < float('inf')", _bool)
_op(
    "signbit",
    1,
    {"": "{0} < 0", "float32": "kf.signbit32({0})", "float64": "kf.signbit64({0})"},
    _bool,
)

# elementary functions; libdevice is the accurate family (1 ulp or so), as eager's CUDA math
_unary_library(
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sinh",
    "cosh",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "erfinv",
    "lgamma",
)
_unary_library("sqrt", "rsqrt", cost=8)
_op("sigmoid", 1, "kf.sigmoid({0})", cost=24)
_op("floor", 1, "libdevice.floor({0})")
_op("ceil", 1, "libdevice.ceil({0})")
_op("trunc", 1, "libdevice.trunc({0})")
_op("round", 1, "libdevice.nearbyint({0})")
_op("sign", 1, "kf.sign({0})", cost=3)
for _name in ("pow", "atan2", "hypot", "copysign", "nextafter"):
    _op(_name, 2, f"libdevice.{_name}({{0}}, {{1}})", cost=30)

# random numbers of (seed, position), both int64; see trace.random_ops
_op("uniform", 2, "kf.uniform({0}, {1})", _single, cost=70)
_op("uniform64", 2, "kf.uniform64({0}, {1})", _double, cost=75)
_op("uniform_f16", 2, "kf.uniform_f16({0}, {1})", _single, cost=70)
_op("uniform_bf16", 2, "kf.uniform_bf16({0}, {1})", _single, cost=70)
_op("normal", 2, "kf.normal({0}, {1})", _single, cost=110)
_op("normal64", 2, "kf.normal64({0}, {1})", _double, cost=150)
_op("bits", 2, "kf.bits({0}, {1})", cost=70)

#: Names with their own printing: structure rather than arithmetic.
STRUCTURAL = frozenset(
    ("load", "store", "const", "index", "cast", "round_to", "bitcast", "reduce", "part")
)

#: Reduction kinds: name -> number of results. See `emit.reduction` for identity and combination.
REDUCTIONS = {
    "sum": 1,
    "prod": 1,
    "max": 1,
    "min": 1,
    "any": 1,
    "all": 1,
    "argmax": 1,
    "argmin": 1,
    "welford": 2,  # mean and the sum of squared deviations
}
