"""Sizes as a host program holds them: typed trees to and from the compiler's own expressions.

Nothing here parses text: a tree is built and read head by head, over the table of `host_tables`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy

from . import host
from .errors import GraphError
from .sym import Size, as_size, monomials

#: Expressions of the tracer that are no polynomials, and the head that stands for each.
_HEADS = {
    "FloorDiv": "floordiv",
    "CleanDiv": "floordiv",
    "Mod": "mod",
    "PythonMod": "mod",
    "Max": "max",
    "Min": "min",
}


def to_host(size: Size) -> host.Size:
    """A size as a tree; raises GraphError for an expression that has none."""
    if isinstance(size, int):
        return size
    terms: list[host.Size] = []
    for factors, c in sorted(monomials(size).items(), key=lambda m: [str(f) for f in m[0]]):
        parts: list[host.SizeExpr | int | str] = [] if c == 1 and factors else [c]
        parts += [_atom(factor) for factor in factors]
        terms.append(_joined("mul", parts))
    return _joined("add", terms)


def _joined(op: str, parts: Any) -> host.Size:
    return parts[0] if len(parts) == 1 else host.SizeExpr(op, tuple(parts))


def _atom(atom: sympy.Expr) -> host.Size:
    if isinstance(atom, sympy.Symbol):
        return host.SizeExpr("sym", (atom.name,))
    head = _HEADS.get(type(atom).__name__)
    if head is None:
        raise GraphError(
            f"size {atom} is computed by {type(atom).__name__}, which has no form here"
        )
    return host.SizeExpr(head, tuple(to_host(as_size(a)) for a in atom.args))


def from_host(size: host.Size, symbols: Mapping[str, sympy.Expr]) -> Size:
    """The expression of a tree over ``symbols``; raises KeyError for a symbol that is not there."""
    if isinstance(size, int):
        return size
    if size.op == "sym":
        return symbols[str(size.args[0])]
    from torch.utils._sympy.functions import FloorDiv, Mod

    args = [from_host(a, symbols) for a in size.args if not isinstance(a, str)]
    match size.op:
        case "add":
            return as_size(sympy.Add(*args))
        case "mul":
            return as_size(sympy.Mul(*args))
        case "floordiv":
            return as_size(FloorDiv(*args))
        case "ceildiv":
            return as_size(-FloorDiv(-args[0], args[1]))
        case "mod":
            return as_size(Mod(*args))
        case "max":
            return as_size(sympy.Max(*args))
        case "min":
            return as_size(sympy.Min(*args))
    raise GraphError(f"size operation {size.op} is not known")


def polynomial(size: host.Size | str) -> dict[tuple[object, ...], int]:
    """A tree multiplied out: the factors of each term and its coefficient; equal for equal sizes.

    Only additions and products are looked into; every other tree is one factor.
    """
    match size:
        case int():
            return {(): size} if size else {}
        case host.SizeExpr("add", args):
            total: dict[tuple[object, ...], int] = {}
            for arg in args:
                for factors, c in polynomial(arg).items():
                    total[factors] = total.get(factors, 0) + c
            return {f: c for f, c in total.items() if c}
        case host.SizeExpr("mul", args):
            whole: dict[tuple[object, ...], int] = {(): 1}
            for arg in args:
                whole = _multiplied(whole, polynomial(arg))
            return whole
        case _:
            return {(size,): 1}


def _multiplied(
    a: dict[tuple[object, ...], int], b: dict[tuple[object, ...], int]
) -> dict[tuple[object, ...], int]:
    out: dict[tuple[object, ...], int] = {}
    for left, c in a.items():
        for right, d in b.items():
            key = tuple(sorted((*left, *right), key=repr))
            out[key] = out.get(key, 0) + c * d
    return {f: c for f, c in out.items() if c}
