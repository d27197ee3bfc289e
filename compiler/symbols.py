"""The sizes of one graph that are known only when it runs: their names, their ranges, the guards.

The tracer calls symbols whatever it likes. Here they are s0, s1, .. in order of first appearance,
with the ranges that the tracer guards already. What code generation has to assume beyond that
("this product fits 32 bits") is collected as guards: data of the form ``size <= limit``, kept with
the program, evaluated for the live sizes on every hit and added to the live ShapeEnv.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
from torch.fx import GraphModule
from torch.utils._sympy.functions import (
    CeilToInt,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    ToFloat,
    TruncToInt,
)
from torch.utils._sympy.symbol import SymT, symbol_is_type

from . import host
from .host_sizes import from_host, to_host
from .sym import Size, SizeSymbol, hint, known_at_least, known_at_most, plus, settled, times


class Symbols:
    """The symbols of one graph; empty for a static one."""

    def __init__(self, gm: GraphModule) -> None:
        self.table: dict[sympy.Symbol, SizeSymbol] = {}
        self.shape_env: Any = None
        #: Why the graph cannot be compiled, if it cannot.
        self.refusal = ""
        self._known: dict[sympy.Expr, Size] = {}
        self._guards: list[tuple[Size, int]] = []
        for value, outside in _symbolic_values(gm):
            self._meet(value, outside)

    def __bool__(self) -> bool:
        return bool(self.table) or bool(self.refusal)

    def _meet(self, value: Any, outside: bool) -> None:
        if isinstance(value, torch.SymBool) or (outside and isinstance(value, torch.SymFloat)):
            self.refusal = self.refusal or f"it computes with the {type(value).__name__} {value}"
            return
        self.shape_env = value.node.shape_env
        for symbol in sorted(value.node.expr.free_symbols, key=str):
            if symbol in self.table:
                continue
            if symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)):
                self.refusal = self.refusal or f"its size {symbol} depends on the data"
                continue
            span = self.shape_env.bound_sympy(symbol)
            if span is None:  # the tracer's mark for one ragged dimension, not a number
                reason = f"its size {symbol} is that of a nested tensor's ragged dimension"
                self.refusal = self.refusal or reason
                continue
            self.table[symbol] = SizeSymbol(
                f"s{len(self.table)}",
                _number(span.lower),
                _number(span.upper),
                _hint(self.shape_env, symbol),
            )

    def rename(self, expr: sympy.Expr) -> Size:
        """An expression of the tracer over the symbols of this table."""
        found = self._known.get(expr)
        if found is None:
            plain: Any = expr
            if expr.has(CeilToInt, FloorToInt, TruncToInt):
                plain = plain.replace(CeilToInt, _rounded_up).replace(FloorToInt, _rounded_down)
                plain = plain.replace(TruncToInt, _truncated)
            found = self._known[expr] = settled(plain.xreplace(self.table))
        return found

    def rename_float(self, expr: sympy.Expr) -> sympy.Expr:
        """A floating-point expression over the symbols of this table, not rearranged."""
        return expr.xreplace(self.table)

    def ranges(self) -> str:
        """The symbols and their ranges, a line for each: all that a proof can have used."""
        return "\n".join(f"{s.name} {s.lower} {s.upper}" for s in self.table.values())

    # -- guards ----------------------------------------------------------------------------------

    def allow(self, sizes: Sequence[tuple[Size, int]]) -> bool:
        """Whether each size may be taken to be at most its limit; what is not proven is a guard.

        No guard is added unless all of them hold for the sizes at hand.
        """
        open_ones = [(s, limit) for s, limit in sizes if not known_at_most(s, limit)]
        if any(hint(s) > limit for s, limit in open_ones):
            return False
        self._guards += [g for g in open_ones if g not in self._guards]
        return True

    def guards(self) -> tuple[host.Guard, ...]:
        """The guards so far, without those that others imply."""
        kept: list[tuple[Size, int]] = []
        for number, guard in enumerate(self._guards):
            others = [*kept, *self._guards[number + 1 :]]
            if not any(_implies(other, guard) for other in others):
                kept.append(guard)
        return tuple(host.Guard(to_host(size), limit) for size, limit in kept)

    def holds(self, guards: Sequence[host.Guard]) -> bool:
        """Whether guards hold for the sizes at hand; False for one over an unknown symbol."""
        own = {s.name: s for s in self.table.values()}
        try:
            return all(hint(from_host(g.size, own)) <= g.limit for g in guards)
        except KeyError:
            return False

    def install(self, guards: Sequence[host.Guard]) -> bool:
        """Have the tracer guard these as well; False if it is too late for that."""
        if not guards:
            return True
        if self.shape_env is None or self.shape_env.frozen:
            return False
        original: dict[str, sympy.Expr] = {s.name: t for t, s in self.table.items()}
        for guard in guards:
            size = from_host(guard.size, original)
            if not isinstance(size, int):
                self.shape_env.evaluate_expr(sympy.Le(size, guard.limit))
        return True


def _hint(shape_env: Any, symbol: sympy.Symbol) -> int:
    """The value of a symbol at the call that is traced."""
    # the name since torch 2.12; the older one warns there
    ask = getattr(shape_env, "guarding_hint_or_throw", None) or shape_env.size_hint
    return int(ask(symbol))


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, sympy.Integer)) else None


#: Numbers up to here times a size are exact in double precision, and so are their halves.
_EXACT_FACTOR = 1 << 10


def _rounded_up(number: sympy.Expr) -> sympy.Expr:
    """The next integer above a number, in integers where that is exact."""
    scaled = _scaled(number)
    if scaled is None:
        return CeilToInt(number)
    top, by = scaled
    return FloorDiv(top + by - 1, by)


def _rounded_down(number: sympy.Expr) -> sympy.Expr:
    """The next integer below a number, in integers where that is exact."""
    scaled = _scaled(number)
    return FloorToInt(number) if scaled is None else FloorDiv(*scaled)


def _truncated(number: sympy.Expr) -> sympy.Expr:
    """What Python's ``int`` makes of a number, in integers where that is exact."""
    scaled = _scaled(number)
    if scaled is None or not scaled[0].is_nonnegative:
        return TruncToInt(number)
    return FloorDiv(*scaled)


def _scaled(number: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr | int] | None:
    """A number as one integer by another, if Python rounds it to the integers beside their ratio.

    A quotient of integers is such, and a size times what a double holds exactly: upsampling twice
    (``int(size * 2.0)``). Upsampling by 1.7 is none: 1.7 is rounded, and so is the product.
    """
    if isinstance(number, IntTrueDiv):
        top, by = number.args
        return (top, by) if by.is_Integer and by.is_positive else None
    factor, size = number.as_coeff_Mul()
    if isinstance(size, FloatTrueDiv):
        size, divisor = size.args
        more, size = size.as_coeff_Mul()
        value = float(divisor) if divisor.is_number else 0.0
        if value == 0.0 or math.frexp(value)[0] != 0.5:
            return None  # by a power of two, nothing is rounded
        factor = sympy.Float(float(factor) * float(more) / value)
    if not isinstance(size, ToFloat):
        return None
    value = float(factor)
    if not math.isfinite(value) or value.as_integer_ratio()[1] > _EXACT_FACTOR:
        return None
    top, bottom = value.as_integer_ratio()
    return (top * size.args[0], bottom) if abs(top) <= _EXACT_FACTOR else None


def _implies(a: tuple[Size, int], b: tuple[Size, int]) -> bool:
    """Whether ``a`` holding means that ``b`` does: no smaller a size below no higher a limit."""
    return a[1] <= b[1] and known_at_least(plus(a[0], times(-1, b[0])), 0)


def _symbolic_values(gm: GraphModule) -> Iterator[tuple[Any, bool]]:
    """Every symbolic number in the metadata of a graph, in order, and whether it is an input."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        outside = node.op == "placeholder"
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, torch.Tensor):
                for size in (*item.shape, *_strides(item)):
                    if type(size) is not int:
                        yield size, outside
            elif isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                yield item, outside


def _strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        return ()
    return (*tensor.stride(), tensor.storage_offset())
