"""Index expressions: where in a buffer a loop body reads or writes.

Grammar::

    index := sum of (coefficient * atom) + constant
    atom  := Var(name, size)          -- a loop variable, 0 <= var < size
           | Div(index, by)           -- floor division
           | Mod(index, by)           -- remainder, never negative
           | Indirect(value, size)    -- the value of SSA statement ``value``, 0 <= it < size

An `Index` is immutable, hashable and canonical: equal functions built along different paths from
affine, div and mod parts usually compare equal, because the constructors `floordiv` and `mod`
simplify with the ranges of the variables. Coefficients are `Size`; integers take the fast path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import gcd

from .sym import (
    Size,
    exact_div,
    is_static,
    known_at_least,
    known_multiple,
    plus,
    times,
)

Bounds = tuple[int, int]

#: What 32 bits hold, as seen from index arithmetic.
INT32_LIMIT = 2**31 - 1


class Atom:
    """An indivisible part of an index; subclasses below."""

    __slots__ = ("_hash", "key")
    key: tuple

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self.key == other.key)  # type: ignore[attr-defined]

    def _seal(self, key: tuple) -> None:
        self.key = key
        self._hash = hash(key)


class Var(Atom):
    """Loop variable ``name`` running over ``0 <= v < size``."""

    __slots__ = ("name", "size")

    def __init__(self, name: str, size: Size) -> None:
        self.name = name
        self.size = size
        self._seal(("v", name, str(size) if not isinstance(size, int) else size))

    def __repr__(self) -> str:
        return self.name


class Div(Atom):
    """``base // by`` rounded down."""

    __slots__ = ("base", "by")

    def __init__(self, base: Index, by: Size) -> None:
        self.base = base
        self.by = by
        self._seal(("d", base, by))

    def __repr__(self) -> str:
        return f"({self.base} // {self.by})"


class Mod(Atom):
    """``base % by``, in ``0 <= it < by``."""

    __slots__ = ("base", "by")

    def __init__(self, base: Index, by: Size) -> None:
        self.base = base
        self.by = by
        self._seal(("m", base, by))

    def __repr__(self) -> str:
        return f"({self.base} % {self.by})"


class Indirect(Atom):
    """The integer that statement ``value`` computed, proven or checked: ``0 <= it < size``."""

    __slots__ = ("size", "value")

    def __init__(self, value: int, size: Size) -> None:
        self.value = value
        self.size = size
        self._seal(("i", value, size))

    def __repr__(self) -> str:
        return f"%{self.value}"


def _order(term: tuple[Atom, Size]) -> tuple:
    return (str(term[0].key[0]), repr(term[0]))


class Index:
    """A sum of terms and a constant; `const`, `var`, ``+``, `scale`, `floordiv`, `mod` build it."""

    __slots__ = ("_hash", "const", "terms")

    def __init__(self, terms: tuple[tuple[Atom, Size], ...], const: Size = 0) -> None:
        self.terms = terms
        self.const = const
        self._hash = hash((terms, const))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Index)
            and self._hash == other._hash
            and self.const == other.const
            and self.terms == other.terms
        )

    def __add__(self, other: Index | Size) -> Index:
        if not isinstance(other, Index):
            return Index(self.terms, plus(self.const, other))
        const = plus(self.const, other.const)
        if not other.terms:
            return Index(self.terms, const)
        if not self.terms:
            return Index(other.terms, const)
        return _collect((*self.terms, *other.terms), const)

    def __sub__(self, other: Index | Size) -> Index:
        return self + (other.scale(-1) if isinstance(other, Index) else times(-1, other))

    def scale(self, factor: Size) -> Index:
        """This index times a size."""
        if isinstance(factor, int):
            if factor == 1:
                return self
            if factor == 0:
                return ZERO
        terms = tuple((a, times(c, factor)) for a, c in self.terms)
        return Index(terms, times(self.const, factor))

    def __repr__(self) -> str:
        parts = [repr(a) if c == 1 else f"{c}*{a!r}" for a, c in self.terms]
        if self.const != 0 or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)

    @property
    def is_const(self) -> bool:
        """Whether no variable occurs."""
        return not self.terms

    def atoms(self) -> Iterable[Atom]:
        """Every Var and Indirect, at any depth (with repetition)."""
        for atom, _ in self.terms:
            match atom:
                case Div() | Mod():
                    yield from atom.base.atoms()
                case _:
                    yield atom

    def var_names(self) -> set[str]:
        """Names of the loop variables that occur."""
        return {a.name for a in self.atoms() if isinstance(a, Var)}

    def indirects(self) -> set[int]:
        """The SSA values whose results this index reads."""
        return {a.value for a in self.atoms() if isinstance(a, Indirect)}

    def coefficient(self, name: str) -> Size:
        """The coefficient of ``Var(name)`` as a bare term, 0 if there is none."""
        for atom, c in self.terms:
            if isinstance(atom, Var) and atom.name == name:
                return c
        return 0

    def map_atoms(self, leaf: Callable[[Var | Indirect], Index]) -> Index:
        """Replace every leaf atom by an index and simplify again."""
        total = Index((), self.const)
        for atom, c in self.terms:
            match atom:
                case Div():
                    part = floordiv(atom.base.map_atoms(leaf), atom.by)
                case Mod():
                    part = mod(atom.base.map_atoms(leaf), atom.by)
                case _:
                    part = leaf(atom)  # type: ignore[arg-type]
            total = total + part.scale(c)
        return total

    def substitute(self, values: Mapping[str, Index]) -> Index:
        """Replace loop variables by indices; those not named stay."""
        if not self.terms:
            return self

        def leaf(atom: Var | Indirect) -> Index:
            if isinstance(atom, Var) and atom.name in values:
                return values[atom.name]
            return Index(((atom, 1),))

        return self.map_atoms(leaf)

    def renumber(self, values: Mapping[int, int]) -> Index:
        """Replace the SSA numbers of indirect atoms."""
        if not any(isinstance(a, Indirect) for a in self.atoms()):
            return self

        def leaf(atom: Var | Indirect) -> Index:
            if isinstance(atom, Indirect):
                return Index(((Indirect(values[atom.value], atom.size), 1),))
            return Index(((atom, 1),))

        return self.map_atoms(leaf)

    def evaluate(self, env: Mapping[str, int], indirect: Callable[[int], int] | None = None) -> int:
        """The value for given loop variables (tests and probes; static sizes only)."""
        total = int(self.const)
        for atom, c in self.terms:
            match atom:
                case Var():
                    v = env[atom.name]
                case Div():
                    v = atom.base.evaluate(env, indirect) // int(atom.by)
                case Mod():
                    v = atom.base.evaluate(env, indirect) % int(atom.by)
                case Indirect():
                    if indirect is None:
                        raise ValueError("this index depends on data")
                    v = indirect(atom.value)
                case _:
                    raise TypeError(atom)
            total += int(c) * v
        return total


ZERO = Index(())


def _collect(terms: Iterable[tuple[Atom, Size]], const: Size) -> Index:
    merged: dict[Atom, Size] = {}
    for atom, c in terms:
        merged[atom] = plus(merged[atom], c) if atom in merged else c
    whole = _rejoined(merged)
    if whole is not None:
        return whole + const
    kept = [(a, c) for a, c in merged.items() if c != 0]
    kept.sort(key=_order)
    return Index(tuple(kept), const)


def _rejoined(merged: dict[Atom, Size]) -> Index | None:
    """The same sum with one ``k * (x // k) + x % k`` turned back into ``x``, if there is one."""
    for atom, c in merged.items():
        if not isinstance(atom, Mod) or c == 0:
            continue
        quotient = floordiv(atom.base, atom.by)
        if len(quotient.terms) != 1 or quotient.const != 0 or quotient.terms[0][1] != 1:
            continue
        whole = quotient.terms[0][0]
        if whole in merged and merged[whole] == times(c, atom.by):
            rest = tuple((a, k) for a, k in merged.items() if a not in (atom, whole))
            return _collect((*rest, *atom.base.scale(c).terms), times(atom.base.const, c))
    return None


def const(value: Size) -> Index:
    """A constant index."""
    return Index((), value)


def var(name: str, size: Size) -> Index:
    """A loop variable; one of size 1 is the constant 0."""
    if isinstance(size, int) and size == 1:
        return ZERO
    return Index(((Var(name, size), 1),))


def indirect(value: int, size: Size) -> Index:
    """An index read from data."""
    return Index(((Indirect(value, size), 1),))


def _atom_bounds(atom: Atom) -> Bounds | None:
    match atom:
        case Var() | Indirect():
            return (0, atom.size - 1) if isinstance(atom.size, int) else None
        case Div():
            base = bounds(atom.base)
            if base is None or not isinstance(atom.by, int):
                return None
            return base[0] // atom.by, base[1] // atom.by
        case Mod():
            if not isinstance(atom.by, int):
                return None
            base = bounds(atom.base)
            if base is not None and base[0] >= 0 and base[1] < atom.by:
                return base
            return 0, atom.by - 1
    return None


def bounds(index: Index) -> Bounds | None:
    """Inclusive lower and upper bound over all variable values; None if a symbol is involved."""
    if not isinstance(index.const, int):
        return None
    low = high = index.const
    for atom, c in index.terms:
        b = _atom_bounds(atom)
        if b is None or not isinstance(c, int):
            return None
        low += min(c * b[0], c * b[1])
        high += max(c * b[0], c * b[1])
    return low, high


def extremes(index: Index) -> tuple[Size, Size] | None:
    """Bounds over all variable values, as sizes; None where a sign is not known."""
    low = high = index.const
    for atom, c in index.terms:
        ends = _atom_extremes(atom)
        if ends is None:
            return None
        scaled = [times(c, end) for end in ends]
        if not known_at_least(c, 0):
            if not known_at_least(times(-1, c), 0):
                return None
            scaled.reverse()
        low, high = plus(low, scaled[0]), plus(high, scaled[1])
    return low, high


def _atom_extremes(atom: Atom) -> tuple[Size, Size] | None:
    match atom:
        case Var() | Indirect():
            return 0, plus(atom.size, -1)
        case Div():
            ends = extremes(atom.base)
            if ends is None or not known_at_least(ends[0], 0):
                return None
            if isinstance(atom.by, int) and isinstance(ends[1], int):
                return 0, ends[1] // atom.by
            return 0, ends[1]
        case Mod():
            return 0, plus(atom.by, -1)
    return None


def _split_multiple(index: Index, by: Size) -> tuple[Index, Index]:
    """``index == by * first + second`` with as much as possible in ``first``."""
    quotient: list[tuple[Atom, Size]] = []
    rest: list[tuple[Atom, Size]] = []
    for atom, c in index.terms:
        if known_multiple(c, by):
            quotient.append((atom, exact_div(c, by)))
        else:
            rest.append((atom, c))
    q: Size
    r: Size
    if isinstance(index.const, int) and isinstance(by, int):
        q, r = divmod(index.const, by)
    elif known_multiple(index.const, by):
        q, r = exact_div(index.const, by), 0
    else:
        q, r = 0, index.const
    return Index(tuple(quotient), q), Index(tuple(rest), r)


def _digits(index: Index, by: int) -> Iterable[tuple[int, Index, Index]]:
    """Ways to write ``index == g * coarse + fine`` with g dividing ``by`` and 0 <= fine < g."""
    steps = {gcd(by, int(c)) for _, c in index.terms}
    for g in sorted(steps - {1}, reverse=True):
        coarse: list[tuple[Atom, Size]] = []
        fine: list[tuple[Atom, Size]] = []
        for atom, c in index.terms:
            if int(c) % g == 0:
                coarse.append((atom, int(c) // g))
            else:
                fine.append((atom, c))
        q, r = divmod(int(index.const), g)
        rest = Index(tuple(fine), r)
        b = bounds(rest)
        if b is not None and b[0] >= 0 and b[1] < g:
            yield g, Index(tuple(coarse), q), rest


def known_below(index: Index, by: Size) -> bool:
    """Whether ``0 <= index < by`` for all values of variables and symbols."""
    ends = extremes(index)
    if ends is None or not known_at_least(ends[0], 0):
        return False
    return known_at_least(plus(plus(by, -1), times(-1, ends[1])), 0)


def _single(index: Index) -> Atom | None:
    """The atom that an index is nothing but."""
    if len(index.terms) == 1 and index.const == 0 and index.terms[0][1] == 1:
        return index.terms[0][0]
    return None


def _is_symbolic(index: Index, by: Size) -> bool:
    return not is_static(by, index.const, *(c for _, c in index.terms)) or any(
        isinstance(a, Var) and not isinstance(a.size, int) for a in index.atoms()
    )


def floordiv(index: Index, by: Size) -> Index:
    """``index // by`` (rounded down), simplified with the variables' ranges; ``by`` is positive."""
    if isinstance(by, int) and by == 1:
        return index
    whole, rest = _split_multiple(index, by)
    if not rest.terms and rest.const == 0:
        return whole
    if isinstance(by, int) and is_static(rest.const, *(c for _, c in rest.terms)):
        b = bounds(rest)
        if b is not None and b[0] // by == b[1] // by:
            return whole + b[0] // by
        for g, coarse, _ in _digits(rest, by):
            # floor((g*a + f) / (g*m)) == floor(a / m) for integer a and 0 <= f < g
            return whole + floordiv(coarse, by // g)
    if _is_symbolic(rest, by) and known_below(rest, by):
        return whole
    atom = _single(rest)
    if isinstance(atom, Div):
        return whole + floordiv(atom.base, times(atom.by, by))
    if isinstance(atom, Mod) and known_multiple(atom.by, by):
        return whole + mod(floordiv(atom.base, by), exact_div(atom.by, by))
    return whole + Index(((Div(rest, by), 1),))


def mod(index: Index, by: Size) -> Index:
    """``index % by`` in ``0 .. by-1``, simplified with the variables' ranges; ``by`` is above 0."""
    if isinstance(by, int) and by == 1:
        return ZERO
    _, rest = _split_multiple(index, by)
    if not rest.terms and (rest.const == 0 or is_static(rest.const, by)):
        return rest
    if isinstance(by, int) and is_static(rest.const, *(c for _, c in rest.terms)):
        b = bounds(rest)
        if b is not None and b[0] // by == b[1] // by:
            return rest - by * (b[0] // by)
        for g, coarse, fine in _digits(rest, by):
            # (g*a + f) % (g*m) == g * (a % m) + f for integer a and 0 <= f < g
            return mod(coarse, by // g).scale(g) + fine
    if _is_symbolic(rest, by) and known_below(rest, by):
        return rest
    atom = _single(rest)
    if isinstance(atom, Mod) and known_multiple(atom.by, by):
        return mod(atom.base, by)
    return Index(((Mod(rest, by), 1),))


def linear(indices: Iterable[Index], strides: Iterable[Size], offset: Size = 0) -> Index:
    """The address ``offset + sum(index * stride)``."""
    total = Index((), offset)
    for i, s in zip(indices, strides, strict=True):
        total = total + i.scale(s)
    return total


def unravel(flat: Index, sizes: tuple[Size, ...]) -> list[Index]:
    """Row-major coordinates of a flat index into a shape."""
    out: list[Index] = []
    for position, size in enumerate(reversed(sizes)):
        last = position == len(sizes) - 1
        out.append(flat if last else mod(flat, size))
        if not last:
            flat = floordiv(flat, size)
    return list(reversed(out))
