"""How far an index goes: its bounds, and the largest number that computing it passes through."""

from __future__ import annotations

from .index import Div, Index, Mod, bounds, extremes
from .sym import Limits, Size, known_at_least, limits, monomials, plus, times


def reach(index: Index) -> Limits:
    """Inclusive bounds over all values of variables and symbols; None for a side without one."""
    known = bounds(index)
    if known is not None:
        return known
    ends = extremes(index)
    return (None, None) if ends is None else (limits(ends[0])[0], limits(ends[1])[1])


def magnitude(index: Index) -> int:
    """The largest absolute value of the index and of everything computed on the way to it.

    Static sizes only. Terms count with their signs dropped, so partial sums in any order are below.
    """
    total = abs(int(index.const))
    inner = 0
    for atom, c in index.terms:
        if isinstance(atom, (Div, Mod)):
            inner = max(inner, magnitude(atom.base))
        low, high = bounds(Index(((atom, 1),))) or (0, 0)
        total += abs(int(c)) * max(abs(low), abs(high))
    return max(total, inner)


def magnitudes(index: Index) -> list[Size] | None:
    """Sizes that nothing computed on the way to this index exceeds; None if that is not known.

    Like `magnitude`, for symbolic sizes: a signless sum for the index and one for each division.
    """
    total = _signless(index.const)
    out: list[Size] = []
    for atom, c in index.terms:
        if isinstance(atom, (Div, Mod)):
            inner = magnitudes(atom.base)
            if inner is None:
                return None
            out += [*inner, *(() if isinstance(atom.by, int) else (atom.by,))]
            largest = atom.by if isinstance(atom, Mod) else inner[-1]
        else:
            largest = atom.size  # type: ignore[attr-defined]
        factors = _signless(c), _signless(largest)
        if total is None or factors[0] is None or factors[1] is None:
            return None
        total = plus(total, times(factors[0], factors[1]))
    return None if total is None else [*out, total]


def _signless(size: Size) -> Size | None:
    """A size with the signs of all its terms dropped; None if a symbol may be negative."""
    if isinstance(size, int):
        return abs(size)
    total: Size = 0
    for factors, c in monomials(size).items():
        if not all(known_at_least(f, 0) for f in factors):
            return None
        term: Size = abs(c)
        for factor in factors:
            term = times(term, factor)
        total = plus(total, term)
    return total


def is_plain(index: Index) -> bool:
    """Whether an index is a sum of sizes and of positions below sizes, with small coefficients."""
    parts: list[Size] = [index.const, *(c for _, c in index.terms)]
    numbers = [c for size in parts for c in monomials(size).values()]
    degree = max((len(m) for size in parts for m in monomials(size)), default=0)
    return not index.indirects() and degree <= 1 and all(abs(c) < 2**16 for c in numbers)
