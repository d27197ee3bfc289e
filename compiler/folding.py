"""Folding while a body is recorded: what is known of positions and constants is not computed.

Models index tables of positions with positions (`arange(n)[i]`), wrap them and compare them. With
the ranges of the loop variables most of that is known while the loops are written down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .index import Index, Indirect, bounds
from .reach import is_plain, reach

if TYPE_CHECKING:
    from .body import Recorder, Stmt

_LIMITS = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def as_index(stmts: Sequence[Stmt], value: int) -> Index | None:
    """The value as an index, if it is a position or an integer constant."""
    stmt = stmts[value]
    if stmt.dtype not in _LIMITS:
        return None
    if stmt.op == "index":
        index: Index = stmt.attrs[0]
        return index
    if stmt.op == "const":
        return Index((), stmt.attrs[0])
    return None


def direct(stmts: Sequence[Stmt], index: Index) -> Index:
    """An index whose data-dependent atoms are replaced where the data is a known position."""
    known = {v: as_index(stmts, v) for v in index.indirects()}
    if not any(k is not None for k in known.values()):
        return index

    def leaf(atom: object) -> Index:
        if isinstance(atom, Indirect):
            found = known[atom.value]
            if found is not None:
                return found
        return Index(((atom, 1),))  # type: ignore[arg-type]

    return index.map_atoms(leaf)


def fold(recorder: Recorder, name: str, args: tuple[int, ...]) -> int | None:
    """The value of an operation if it is known without computing it."""
    match name:
        case "where":
            return _where(recorder, args)
        case "and" | "or":
            return _logic(recorder, name, args)
        case "add" | "sub" | "mul":
            return _arithmetic(recorder, name, args)
        case "lt" | "le" | "gt" | "ge" | "eq" | "ne":
            return _comparison(recorder, name, args)
        case _:
            return None


def _where(recorder: Recorder, args: tuple[int, ...]) -> int | None:
    condition, yes, no = args
    stmt = recorder.stmts[condition]
    if stmt.op == "const":
        return yes if stmt.attrs[0] else no
    return None


def _logic(recorder: Recorder, name: str, args: tuple[int, ...]) -> int | None:
    for this, other in (args, args[::-1]):
        stmt = recorder.stmts[this]
        if stmt.op == "const" and stmt.dtype == "bool":
            keeps_other = stmt.attrs[0] is (name == "and")
            return other if keeps_other else this
    return args[0] if args[0] == args[1] else None


def _arithmetic(recorder: Recorder, name: str, args: tuple[int, ...]) -> int | None:
    left, right = (as_index(recorder.stmts, a) for a in args)
    if left is None or right is None:
        return None
    if name == "mul":
        if not (left.is_const or right.is_const):
            return None
        result = right.scale(left.const) if left.is_const else left.scale(right.const)
    else:
        result = left + right if name == "add" else left - right
    dtype = recorder.dtype(args[0])
    span = bounds(result)
    low, high = _LIMITS[dtype]
    if span is None:
        # sizes, and positions below them, are far from the ends of 64 bits
        return recorder.index(result, dtype) if dtype == "int64" and is_plain(result) else None
    if span[0] < low or span[1] > high:
        return None  # would wrap
    return recorder.index(result, dtype)


def _comparison(recorder: Recorder, name: str, args: tuple[int, ...]) -> int | None:
    left, right = (as_index(recorder.stmts, a) for a in args)
    if left is None or right is None:
        return None
    least, most = reach(left - right)
    low = -math.inf if least is None else least
    high = math.inf if most is None else most
    verdict: bool | None = None
    match name:
        case "lt":
            verdict = True if high < 0 else False if low >= 0 else None
        case "le":
            verdict = True if high <= 0 else False if low > 0 else None
        case "gt":
            verdict = True if low > 0 else False if high <= 0 else None
        case "ge":
            verdict = True if low >= 0 else False if high < 0 else None
        case "eq":
            verdict = True if low == high == 0 else False if low > 0 or high < 0 else None
        case "ne":
            verdict = False if low == high == 0 else True if low > 0 or high < 0 else None
    return None if verdict is None else recorder.const(verdict, "bool")
