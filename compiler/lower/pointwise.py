"""Elementwise operators: one table row each; type promotion is torch's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import Expr
from torch import fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

from ..body import Recorder
from ..index import Index
from ..ir import Lazy, Tensor, cost_of
from ..ops import OPS, is_float
from ..sym import Size, product
from .context import Lowering, broadcast_index, dtype_name, wrapped
from .registry import lower
from .symbolic import number_value

aten = torch.ops.aten

#: Records an element from its operands' values (all of the computation dtype).
Emit = Callable[[Recorder, list[int]], int]


def promoted(
    ctx: Lowering,
    kind: KIND,
    positions: Sequence[int] | None = None,
    named: Sequence[str] = (),
) -> str:
    """The dtype in which the node being lowered computes, by torch's promotion rules.

    Operands are all positional arguments, or those at ``positions``, and the keywords ``named``.
    """
    assert ctx.node is not None
    given = [a for i, a in enumerate(ctx.node.args) if positions is None or i in positions]
    given += [ctx.node.kwargs[name] for name in named if name in ctx.node.kwargs]
    operands = [a.meta["val"] if isinstance(a, fx.Node) else a for a in given]
    kinds = {torch.SymInt: 0, torch.SymFloat: 0.0}  # only the type counts
    operands = [kinds.get(type(a), a) for a in operands]
    operands = [a for a in operands if isinstance(a, (torch.Tensor, int, float, bool))]
    compute, _ = elementwise_dtypes(*operands, type_promotion_kind=kind)
    return dtype_name(compute)


def elementwise(
    ctx: Lowering,
    operands: Sequence[Tensor | Size | float | bool],
    emit: Emit,
    *,
    compute: str | Sequence[str],
    cost: int = 1,
    sizes: tuple | None = None,
    dtype: str | None = None,
) -> Lazy:
    """A lazy tensor of the node's output size and dtype: broadcast, convert, apply ``emit``.

    ``compute`` is the dtype every operand is converted to, or one for each.
    """
    out_sizes = ctx.out_sizes() if sizes is None else sizes
    out_dtype = dtype or ctx.out_dtype()
    wanted = [compute] * len(operands) if isinstance(compute, str) else list(compute)

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        values = []
        for operand, want in zip(operands, wanted, strict=True):
            if isinstance(operand, Tensor):
                at = broadcast_index(index, operand.sizes, out_sizes)
                value = operand.load(recorder, at)
                is_flag = want == "bool"
                values.append(truth(recorder, value) if is_flag else recorder.cast(value, want))
            elif isinstance(operand, Expr):
                values.append(number_value(recorder, operand, want))
            else:
                values.append(recorder.const(wrapped(operand, want), want))
        return recorder.cast(emit(recorder, values), out_dtype)

    tensors = [o for o in operands if isinstance(o, Tensor)]
    total_cost = cost + sum(cost_of(t)[0] for t in tensors)
    total_reads = sum(cost_of(t)[1] for t in tensors if not _is_small(t, out_sizes))
    return Lazy(out_sizes, out_dtype, fn, total_cost, total_reads)


def _is_small(tensor: Tensor, out_sizes: Sequence[Size]) -> bool:
    """Whether an operand is broadcast from so few elements that reading it again is free."""
    whole = product(out_sizes)
    known = isinstance(tensor.numel, int) and isinstance(whole, int)
    return known and tensor.numel * 16 <= whole


def plain(name: str) -> Emit:
    return lambda recorder, values: recorder.op(name, *values)


#: (ATen packet, operation, promotion): the operand order is ATen's.
_TABLE: tuple[tuple[Any, str, KIND], ...] = (
    (aten.mul, "mul", KIND.DEFAULT),
    (aten.neg, "neg", KIND.DEFAULT),
    (aten.abs, "abs", KIND.DEFAULT),
    (aten.maximum, "maximum", KIND.DEFAULT),
    (aten.minimum, "minimum", KIND.DEFAULT),
    (aten.remainder, "remainder", KIND.DEFAULT),
    (aten.fmod, "fmod", KIND.DEFAULT),
    (aten.sign, "sign", KIND.DEFAULT),
    (aten.bitwise_and, "and", KIND.DEFAULT),
    (aten.bitwise_or, "or", KIND.DEFAULT),
    (aten.bitwise_xor, "xor", KIND.DEFAULT),
    (aten.bitwise_not, "not", KIND.DEFAULT),
    (aten.eq, "eq", KIND.ALWAYS_BOOL),
    (aten.ne, "ne", KIND.ALWAYS_BOOL),
    (aten.lt, "lt", KIND.ALWAYS_BOOL),
    (aten.le, "le", KIND.ALWAYS_BOOL),
    (aten.gt, "gt", KIND.ALWAYS_BOOL),
    (aten.ge, "ge", KIND.ALWAYS_BOOL),
    (aten.atan2, "atan2", KIND.INT_TO_FLOAT),
    (aten.hypot, "hypot", KIND.DEFAULT),
    (aten.copysign, "copysign", KIND.INT_TO_FLOAT),
    *(
        (getattr(aten, name), name, KIND.INT_TO_FLOAT)
        for name in (
            "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "tanh",
            "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc",
            "erfinv", "lgamma", "sqrt", "rsqrt", "sigmoid",
        )
    ),
)  # fmt: skip


def _register_table() -> None:
    for packet, name, kind in _TABLE:

        def fn(ctx: Lowering, *args: Any, _name: str = name, _kind: KIND = kind) -> Any:
            compute = promoted(ctx, _kind)
            if compute == "bool" and _name not in (
                "and",
                "or",
                "xor",
                "not",
                "maximum",
                "minimum",
                "eq",
                "ne",
                "mul",
            ):
                return _bool_as_int(ctx, _name, args)
            if compute == "bool" and _name == "mul":
                _name = "and"
            return elementwise(ctx, args, plain(_name), compute=compute, cost=OPS[_name].cost)

        lower(packet)(fn)


def _bool_as_int(ctx: Lowering, name: str, args: Sequence[Any]) -> Any:
    """Order comparisons of booleans run on int32; other arithmetic on them is torch's business."""
    if name in ("lt", "le", "gt", "ge"):
        return elementwise(ctx, args, plain(name), compute="int32")
    return NotImplemented


_register_table()


@lower(aten.add, aten.sub, aten.rsub)
def add(ctx: Lowering, a: Any, b: Any, *, alpha: Any = 1) -> Any:
    """``a + alpha * b``, ``a - alpha * b`` and ``b - alpha * a``."""
    assert ctx.node is not None
    packet = ctx.node.target.overloadpacket  # type: ignore[union-attr]
    name = "add" if packet is aten.add else "sub"
    if packet is aten.rsub:
        a, b = b, a
    compute = promoted(ctx, KIND.DEFAULT)
    if compute == "bool":
        return (
            NotImplemented
            if alpha != 1 or name == "sub"
            else elementwise(ctx, (a, b), plain("or"), compute="bool")
        )

    def emit(recorder: Recorder, values: list[int]) -> int:
        x, y = values
        if alpha != 1:
            y = recorder.op("mul", y, recorder.const(wrapped(alpha, compute), compute))
        return recorder.op(name, x, y)

    return elementwise(ctx, (a, b), emit, compute=compute)


@lower(aten.div)
def div(ctx: Lowering, a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """True division, or rounded to floor or towards zero."""
    if rounding_mode is None:
        compute = promoted(ctx, KIND.INT_TO_FLOAT)
        if isinstance(b, (int, float)) and not isinstance(b, bool) and _power_of_two(b):
            inverse = 1.0 / b  # exact, and a multiply is a tenth of a division
            return elementwise(
                ctx,
                (a,),
                lambda r, v: r.op("mul", v[0], r.const(inverse, compute)),
                compute=compute,
            )
        return elementwise(ctx, (a, b), plain("div"), compute=compute, cost=OPS["div"].cost)
    compute = promoted(ctx, KIND.DEFAULT)
    if compute == "bool":
        return NotImplemented
    if rounding_mode == "floor":
        return elementwise(ctx, (a, b), plain("floor_div"), compute=compute, cost=16)
    if is_float(compute):
        return elementwise(
            ctx, (a, b), lambda r, v: r.op("trunc", r.op("div", *v)), compute=compute, cost=10
        )
    return elementwise(ctx, (a, b), plain("trunc_div"), compute=compute, cost=16)


@lower(aten.reciprocal)
def reciprocal(ctx: Lowering, a: Any) -> Any:
    """``1 / a``."""
    compute = promoted(ctx, KIND.INT_TO_FLOAT)
    return elementwise(
        ctx, (a,), lambda r, v: r.op("div", r.const(1.0, compute), v[0]), compute=compute, cost=8
    )


def _power_of_two(x: float) -> bool:
    mantissa, exponent = math.frexp(abs(x))
    return mantissa == 0.5 and -120 < exponent < 120


@lower(aten.floor_divide)
def floor_divide(ctx: Lowering, a: Any, b: Any) -> Any:
    """Division rounded down."""
    return div(ctx, a, b, rounding_mode="floor")


@lower(aten.floor, aten.ceil, aten.trunc)
def rounding(ctx: Lowering, a: Any) -> Any:
    """Rounding to an integer value; integers stay as they are."""
    assert ctx.node is not None
    name = ctx.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    compute = promoted(ctx, KIND.DEFAULT)
    emit = plain(name) if is_float(compute) else (lambda r, v: v[0])
    return elementwise(ctx, (a,), emit, compute=compute)


@lower(aten.round.default)
def round_half_even(ctx: Lowering, a: Any) -> Any:
    """Rounding to the nearest even integer value."""
    compute = promoted(ctx, KIND.DEFAULT)
    emit = plain("round") if is_float(compute) else (lambda r, v: v[0])
    return elementwise(ctx, (a,), emit, compute=compute)


@lower(aten.pow)
def power(ctx: Lowering, a: Any, b: Any) -> Any:
    """``a ** b``; small constant integer exponents become multiplications."""
    compute = promoted(ctx, KIND.BOOL_TO_LONG)
    if isinstance(b, (int, float)) and not isinstance(b, bool):
        if b == 0.5 and is_float(compute):
            return elementwise(ctx, (a,), plain("sqrt"), compute=compute, cost=8)
        if float(b).is_integer() and 1 <= b <= 4:

            def emit(recorder: Recorder, values: list[int]) -> int:
                x = values[0]
                square = recorder.op("mul", x, x) if b >= 2 else x
                match int(b):
                    case 3:
                        return recorder.op("mul", square, x)
                    case 4:
                        return recorder.op("mul", square, square)
                    case _:
                        return square

            return elementwise(ctx, (a,), emit, compute=compute)
    if not is_float(compute):
        return NotImplemented
    return elementwise(ctx, (a, b), plain("pow"), compute=compute, cost=40)


@lower(aten.where.self)
def where(ctx: Lowering, condition: Tensor, a: Any, b: Any) -> Any:
    """Choose elements by a condition."""
    compute = promoted(ctx, KIND.DEFAULT, positions=(1, 2))
    return elementwise(ctx, (condition, a, b), plain("where"), compute=("bool", compute, compute))


@lower(aten.logical_and, aten.logical_or, aten.logical_xor, aten.logical_not)
def logical(ctx: Lowering, *args: Any) -> Any:
    """Truth of operands of any dtype, combined."""
    assert ctx.node is not None
    name = ctx.node.target.overloadpacket.__name__.removeprefix("logical_")  # type: ignore[union-attr]
    return elementwise(
        ctx,
        args,
        lambda r, v: r.op(name, *(truth(r, x) for x in v)),
        compute=[a.dtype if isinstance(a, Tensor) else "bool" for a in args],
    )


def truth(recorder: Recorder, value: int) -> int:
    """Whether a value is not zero (NaN is true)."""
    dtype = recorder.dtype(value)
    return value if dtype == "bool" else recorder.op("ne", value, recorder.const(0, dtype))


@lower(aten.isnan, aten.isinf)
def float_class(ctx: Lowering, a: Tensor) -> Any:
    """NaN and infinity tests; integers are neither."""
    assert ctx.node is not None
    name = ctx.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    if not is_float(a.dtype):
        return elementwise(ctx, (a,), lambda r, v: r.const(False, "bool"), compute=a.dtype)
    return elementwise(ctx, (a,), plain(name), compute=a.dtype)


@lower(torch.ops.prims.convert_element_type.default)
def convert(ctx: Lowering, a: Tensor, dtype: torch.dtype) -> Any:
    """Convert to another dtype, rounding as eager does even where the result is not stored."""
    return converted(ctx, a, dtype_name(dtype))


def converted(ctx: Lowering, a: Tensor, dtype: str) -> Any:
    """The tensor in another stored dtype."""

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        value = a.load(recorder, index)
        if dtype == "bool":
            return truth(recorder, value)
        return recorder.round_to(value, dtype)

    cost, reads = cost_of(a)
    return Lazy(a.sizes, dtype, fn, cost + 1, reads)


@lower(aten.copy.default)
def copy(ctx: Lowering, a: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
    """``source`` broadcast and converted to the shape and dtype of ``a``."""
    value = converted(ctx, source, a.dtype)
    return elementwise(ctx, (value,), lambda r, v: v[0], compute=a.dtype)


@lower(aten._to_copy)
def to_copy(ctx: Lowering, a: Tensor, **options: Any) -> Any:
    """Convert dtype or layout on the same device; a copy to another device is a library call."""
    device = options.get("device")
    if device is not None and torch.device(device).type != ctx.device_type:
        return NotImplemented
    return converted(ctx, a, ctx.out_dtype())
