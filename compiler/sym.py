"""Sizes: plain integers on the fast path, sympy expressions where a dimension is symbolic.

Every size, stride and offset in the compiler has type `Size`. The questions below answer from
integer arithmetic at once and ask sympy only when a symbol is involved; "known" means provable
without a guard, so a False answer for symbols is never a claim that the opposite holds.
"""

from __future__ import annotations

from collections.abc import Iterable

import sympy

Size = int | sympy.Expr


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
    expr = node.expr if node is not None else value
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if isinstance(expr, sympy.Expr):
        return expr
    raise TypeError(f"not a size: {value!r}")


def product(sizes: Iterable[Size]) -> Size:
    """The number of elements of a shape; 1 for an empty one."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def known_equal(a: Size, b: Size) -> bool:
    """Whether ``a == b`` for every value of their symbols."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(sympy.expand(a - b) == 0)


def known_multiple(n: Size, d: Size) -> bool:
    """Whether ``d`` divides ``n`` for every value of their symbols (sizes are positive)."""
    if isinstance(n, int) and isinstance(d, int):
        return d != 0 and n % d == 0
    return bool(sympy.cancel(n / d).is_integer)


def exact_div(n: Size, d: Size) -> Size:
    """``n / d`` where `known_multiple` holds."""
    if isinstance(n, int) and isinstance(d, int):
        return n // d
    return as_size(sympy.cancel(n / d))


def contiguous_strides(sizes: tuple[Size, ...]) -> tuple[Size, ...]:
    """Row-major strides in elements; a dimension of size 0 counts as 1, as in torch."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(sizes):
        strides.append(step)
        if not (isinstance(size, int) and size == 0):
            step = step * size
    return tuple(reversed(strides))


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n`` (1 for n <= 1)."""
    return 1 << max(0, n - 1).bit_length()
