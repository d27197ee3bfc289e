"""Sizes: plain integers on the fast path, sympy expressions where a dimension is symbolic.

Every size, stride and offset in the compiler has type `Size`. The questions below answer from
integer arithmetic at once and ask sympy only when a symbol is involved; "known" means provable
without a guard, so a False answer for symbols is never a claim that the opposite holds.

Symbolic sizes are polynomials over `SizeSymbol`s and over expressions that are none (a floor
division, say), kept expanded, so that equal sizes are equal objects. A symbol carries the range
that the tracer guards and one example value, its hint. Proofs use ranges; hints only choose between
programs that are all right for every size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import sympy

Size = int | sympy.Expr

#: How symbols of the tracer are called while a graph is lowered; see `naming`.
_rename: ContextVar[Callable[[sympy.Expr], Size] | None] = ContextVar("rename", default=None)

_REMEMBERED = 1 << 14


class SizeSymbol(sympy.Symbol):
    """A size that is known when the program runs: ``lower <= it <= upper`` (None: no limit).

    ``hint`` is an example value. Two symbols are the same only if all of this is.
    """

    lower: int | None
    upper: int | None
    hint: int

    def __new__(cls, name: str, lower: int | None, upper: int | None, hint: int) -> SizeSymbol:
        assumptions: dict[str, bool] = {"integer": True}
        if lower is not None and lower >= 0:
            assumptions["positive" if lower > 0 else "nonnegative"] = True
        self: SizeSymbol = sympy.Symbol.__xnew__(cls, name, **assumptions)  # type: ignore[attr-defined]
        self.lower, self.upper, self.hint = lower, upper, hint
        return self

    def _hashable_content(self) -> tuple:
        # as text, because sympy also sorts by these
        return (*super()._hashable_content(), f"{self.lower} {self.upper} {self.hint}")


@contextmanager
def naming(rename: Callable[[sympy.Expr], Size]) -> Iterator[None]:
    """While inside, `as_size` gives the tracer's expressions in terms of `SizeSymbol`s."""
    token = _rename.set(rename)
    try:
        yield
    finally:
        _rename.reset(token)


def is_static(*sizes: Size) -> bool:
    """Whether all of these are plain integers."""
    return all(isinstance(s, int) for s in sizes)


def as_size(value: object) -> Size:
    """Turn an int, a torch.SymInt or a sympy number into a `Size`."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    node = getattr(value, "node", None)
    expr: Any = node.expr if node is not None else value
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if isinstance(expr, sympy.Expr):
        rename = _rename.get()
        return settled(expr) if rename is None or node is None else rename(expr)
    raise TypeError(f"not a size: {value!r}")


def strides_of(tensor: Any) -> tuple[Size, ...]:
    """A traced tensor's strides, in elements.

    The tracer counts a size of zero as one in them. That is left out here: a tensor without
    elements may have any strides, and equal layouts get equal ones.
    """
    strides = tuple(as_size(s) for s in tensor.stride())
    if is_static(*strides):
        return strides
    sizes = {as_size(s) for s in tensor.shape}
    return tuple(s if isinstance(s, int) else _nonzero(s, sizes) for s in strides)


def _nonzero(stride: sympy.Expr, sizes: set[Size]) -> Size:
    """A stride with ``Max(1, size)`` replaced by the size."""
    values = {}
    for atom in atoms(stride):
        if type(atom).__name__ == "Max" and len(atom.args) == 2 and sympy.Integer(1) in atom.args:
            (rest,) = (settled(a) for a in atom.args if a != 1)
            if rest in sizes:
                values[atom] = rest
    return settled(stride.xreplace(values)) if values else stride


@lru_cache(_REMEMBERED)
def settled(expr: sympy.Expr) -> Size:
    """The expanded form of an expression, a plain int where it is a number."""
    expanded = sympy.expand(expr)
    return int(expanded) if isinstance(expanded, sympy.Integer) else expanded


def plus(a: Size, b: Size) -> Size:
    """``a + b``."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return settled(a + b)


def times(a: Size, b: Size) -> Size:
    """``a * b``."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return settled(a * b)


def product(sizes: Iterable[Size]) -> Size:
    """The number of elements of a shape; 1 for an empty one."""
    total: Size = 1
    for size in sizes:
        total = times(total, size)
    return total


def known_equal(a: Size, b: Size) -> bool:
    """Whether ``a == b`` for every value of their symbols."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return a == b or plus(a, times(-1, b)) == 0


def known_multiple(n: Size, d: Size) -> bool:
    """Whether ``d`` divides ``n`` for every value of their symbols (``d`` is positive)."""
    if isinstance(n, int) and isinstance(d, int):
        return d != 0 and n % d == 0
    return _quotient(n, d) is not None


def exact_div(n: Size, d: Size) -> Size:
    """``n / d`` where `known_multiple` holds."""
    if isinstance(n, int) and isinstance(d, int):
        return n // d
    found = _quotient(n, d)
    if found is None:
        raise ValueError(f"{d} does not divide {n}")
    return found


@lru_cache(_REMEMBERED)
def _quotient(n: Size, d: Size) -> Size | None:
    """``n / d`` if that is a polynomial with integer coefficients."""
    if d == 0:
        return None
    if isinstance(d, int):
        parts = monomials(n)
        if any(c % d for c in parts.values()):
            return None
        return settled(sympy.Add(*(c // d * sympy.Mul(*m) for m, c in parts.items())))
    found = sympy.expand(sympy.cancel((sympy.Integer(n) if isinstance(n, int) else n) / d))
    if any(p.is_Pow and not p.exp.is_positive for p in found.atoms(sympy.Pow)):
        return None
    whole = all(c.is_Integer for c in found.as_coefficients_dict().values())
    return settled(found) if whole else None


@lru_cache(_REMEMBERED)
def monomials(size: Size) -> dict[tuple[sympy.Expr, ...], int]:
    """A size as a polynomial: the factors of each term (sorted, repeated) and its coefficient."""
    if isinstance(size, int):
        return {(): size} if size else {}
    out: dict[tuple[sympy.Expr, ...], int] = {}
    for term in sympy.Add.make_args(size):
        coefficient = 1
        factors: list[Any] = []
        for factor in sympy.Mul.make_args(term):
            if isinstance(factor, sympy.Integer):
                coefficient *= int(factor)
            elif isinstance(factor, sympy.Pow) and factor.exp.is_Integer and factor.exp > 0:
                factors += [factor.base] * int(factor.exp)
            else:
                factors.append(factor)
        key = tuple(sorted(factors, key=str))
        out[key] = out.get(key, 0) + coefficient
    return out


def atoms(size: Size) -> list[sympy.Expr]:
    """What a size is a polynomial over, each once, in a fixed order."""
    return list(dict.fromkeys(f for factors in _in_order(size) for f in factors))


def _in_order(size: Size) -> list[tuple[sympy.Expr, ...]]:
    return sorted(monomials(size), key=lambda m: (len(m), [str(f) for f in m]))


Limits = tuple[int | None, int | None]


def limits(size: Size) -> Limits:
    """Numbers that a size never lies below or above; None where there is no such number."""
    return (size, size) if isinstance(size, int) else _limits(size)


@lru_cache(_REMEMBERED)
def _limits(size: sympy.Expr) -> Limits:
    parts = monomials(size)
    lows: list[int | None] = []
    highs: list[int | None] = []
    for factors, c in parts.items():
        span: Limits = (1, 1)
        for factor in factors:
            span = _product(span, _atom_limits(factor))
        low, high = _product(span, (c, c))
        lows.append(low)
        highs.append(high)
    low, high = _sum(lows), _sum(highs)
    # The terms are not independent: over distances from the lower limits, a polynomial without
    # negative coefficients is smallest where all of them are zero.
    shifted = _shifted(size)
    if shifted is not None:
        base, signs = shifted
        if signs >= 0:
            low = base if low is None else max(low, base)
        if signs <= 0:
            high = base if high is None else min(high, base)
    return low, high


def _shifted(size: sympy.Expr) -> tuple[int, int] | None:
    """The value at the atoms' lower limits, and in which direction it can only go from there.

    The direction is 1, -1 or 0 (nowhere); None if it may go both ways or has no such corner.
    """
    values = {}
    for number, atom in enumerate(atoms(size)):
        low = _atom_limits(atom)[0]
        if low is None:
            return None
        values[atom] = sympy.Symbol(f"above{number}", integer=True, nonnegative=True) + low
    moved = monomials(settled(size.xreplace(values)))
    base = moved.get((), 0)
    signs = {c > 0 for m, c in moved.items() if m}
    return None if len(signs) > 1 else (base, 0 if not signs else 1 if True in signs else -1)


def _sum(values: list[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _product(a: Limits, b: Limits) -> Limits:
    """Limits of a product of two factors with limits."""
    if a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0:
        high = None if a[1] is None or b[1] is None else a[1] * b[1]
        return a[0] * b[0], 0 if a == (0, 0) or b == (0, 0) else high
    if None not in (*a, *b):
        corners = [x * y for x in a for y in b]  # type: ignore[operator]
        return min(corners), max(corners)
    for one, other in ((a, b), (b, a)):
        if one[1] is not None and one[1] <= 0 and one[0] == one[1]:  # a number that turns it
            low, high = other
            n = one[1]
            return (None if high is None else n * high), (None if low is None else n * low)
    return None, None


#: What rounds its first argument down to a multiple of the second, or keeps what that leaves.
_QUOTIENTS, _REMAINDERS = ("FloorDiv", "CleanDiv"), ("Mod", "PythonMod")


@lru_cache(_REMEMBERED)
def _atom_limits(atom: sympy.Expr) -> Limits:
    """Limits of a symbol or of an expression that is no polynomial."""
    if isinstance(atom, SizeSymbol):
        return atom.lower, atom.upper
    kind = type(atom).__name__
    if kind in _QUOTIENTS or kind in _REMAINDERS:
        (low, high), (by, most) = (limits(as_size(a)) for a in atom.args)
        if by is None or by <= 0:
            return None, None
        if kind in _REMAINDERS:
            return 0, None if most is None else most - 1
        if low is not None:
            low = low // by if low < 0 else 0 if most is None else low // most
        return low, None if high is None else high // by if high >= 0 else -1
    spans = [limits(as_size(a)) for a in atom.args]
    lows = [low for low, _ in spans if low is not None]
    highs = [high for _, high in spans if high is not None]
    all_lows, all_highs = len(lows) == len(spans), len(highs) == len(spans)
    if kind == "Max":
        return max(lows, default=None), max(highs) if all_highs else None
    if kind == "Min":
        return min(lows) if all_lows else None, min(highs, default=None)
    return (1 if atom.is_positive else 0 if atom.is_nonnegative else None), None


def known_at_least(size: Size, number: int) -> bool:
    """Whether a size is never below a number."""
    low = limits(size)[0]
    return low is not None and low >= number


def known_at_most(size: Size, number: int) -> bool:
    """Whether a size is never above a number."""
    high = limits(size)[1]
    return high is not None and high <= number


def hint(size: Size) -> int:
    """An example value, for choices between programs that are all right."""
    return size if isinstance(size, int) else _hint(size)


@lru_cache(_REMEMBERED)
def _hint(size: sympy.Expr) -> int:
    values = {s: sympy.Integer(s.hint) for s in size.free_symbols if isinstance(s, SizeSymbol)}
    return int(size.xreplace(values))


def contiguous_strides(sizes: tuple[Size, ...]) -> tuple[Size, ...]:
    """Row-major strides in elements; a dimension of size 0 counts as 1, as in torch."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(sizes):
        strides.append(step)
        if not (isinstance(size, int) and size == 0):
            step = times(step, size)
    return tuple(reversed(strides))


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n`` (1 for n <= 1)."""
    return 1 << max(0, n - 1).bit_length()
