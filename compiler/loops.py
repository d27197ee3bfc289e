"""Loop nests: merge adjacent loops, and find one iteration space for two of them.

All maps here are substitutions from old loop variables to indices over new ones; both functions
keep row-major order, so a flattened reduction index means the same before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .body import Body, Stmt, stmt_index, with_index
from .index import ZERO, Div, Index, Mod, var
from .sym import Size, exact_div, hint, known_equal, known_multiple, product, times

Substitution = Mapping[str, Index]

_ONE: Size = 1


def substitute(stmts: Iterable[Stmt], values: Substitution) -> tuple[Stmt, ...]:
    """Statements with their loop variables replaced."""
    out = []
    for stmt in stmts:
        index = stmt_index(stmt)
        out.append(stmt if index is None else with_index(stmt, index.substitute(values)))
    return tuple(out)


def mergeable(index: Index, outer: str, inner: str, inner_size: Size) -> bool:
    """Whether ``index`` uses the two variables only through ``outer * inner_size + inner``."""
    if index.coefficient(outer) != times(index.coefficient(inner), inner_size):
        return False
    for atom, _ in index.terms:
        match atom:
            case Div() | Mod():
                if not mergeable(atom.base, outer, inner, inner_size):
                    return False
    return True


def _merge(
    indices: Sequence[Index], prefix: str, sizes: Sequence[Size]
) -> tuple[list[Size], Substitution]:
    """Merge what can be merged for all of ``indices``; names the results ``prefix0..``."""
    groups: list[tuple[list[int], Size]] = []  # (old positions, size), outermost first
    for position, size in enumerate(sizes):
        if isinstance(size, int) and size == 1:
            continue
        if groups:
            members, have = groups[-1]
            outer, inner = f"{prefix}{members[-1]}", f"{prefix}{position}"
            if all(mergeable(i, outer, inner, size) for i in indices):
                groups[-1] = ([*members, position], times(have, size))
                continue
        groups.append(([position], size))
    values: dict[str, Index] = {f"{prefix}{i}": ZERO for i in range(len(sizes))}
    for number, (members, size) in enumerate(groups):
        # the condition makes the outer variables redundant: the innermost one takes the whole range
        values[f"{prefix}{members[-1]}"] = var(f"{prefix}{number}", size)
    return [size for _, size in groups], values


def simplify(body: Body) -> Body:
    """Merge adjacent loops wherever every access allows it, and drop loops of one iteration.

    A body with a reduction keeps at least one reduction loop, if only of size 1.
    """
    indices = [i for i in map(stmt_index, body.stmts) if i is not None]
    sizes, values = _merge(indices, "p", body.sizes)
    rsizes, rvalues = _merge(indices, "r", body.rsizes)
    stmts = substitute(body.stmts, {**values, **rvalues})
    if body.rsizes and not rsizes:
        rsizes = [1]
    return Body(tuple(sizes), tuple(rsizes), stmts)


def common_factors(a: Sequence[Size], b: Sequence[Size]) -> list[Size] | None:
    """The coarsest factors that both shapes are unions of, outermost first; None if none."""
    i, j = 0, 0
    left: Size = 1
    right: Size = 1
    out: list[Size] = []
    while True:
        while known_equal(left, 1) and i < len(a):
            left, i = a[i], i + 1
        while known_equal(right, 1) and j < len(b):
            right, j = b[j], j + 1
        if known_equal(left, 1) or known_equal(right, 1):
            return out if known_equal(left, right) else None
        if known_equal(left, right):
            out.append(left)
            left = right = 1
        elif known_multiple(left, right):
            out.append(right)
            left, right = exact_div(left, right), 1
        elif known_multiple(right, left):
            out.append(left)
            left, right = 1, exact_div(right, left)
        else:
            return None


def split_map(
    prefix: str, sizes: Sequence[Size], pieces: Sequence[tuple[str, Size]]
) -> Substitution:
    """Express variables ``prefix0..`` of ``sizes`` over finer ``pieces`` (name, size), in order."""
    values: dict[str, Index] = {}
    position = 0
    for number, size in enumerate(sizes):
        members: list[tuple[str, Size]] = []
        have: Size = 1
        while not known_equal(have, size):
            members.append(pieces[position])
            have = times(have, pieces[position][1])
            position += 1
        total, step = ZERO, _ONE
        for name, extent in reversed(members):
            total = total + var(name, extent).scale(step)
            step = times(step, extent)
        values[f"{prefix}{number}"] = total
    return values


@dataclass(frozen=True, slots=True)
class Alignment:
    """One iteration space for two nests, and how each nest's variables are written in it."""

    sizes: tuple[Size, ...]
    rsizes: tuple[Size, ...]
    first: Substitution
    second: Substitution

    @property
    def numel(self) -> Size:
        """Iterations of the pointwise loops."""
        return product(self.sizes)

    @property
    def rnumel(self) -> Size:
        """Iterations of the reduction loops; 1 if there are none."""
        return product(self.rsizes)

    def flipped(self) -> Alignment:
        """The same space with the two nests exchanged."""
        return Alignment(self.sizes, self.rsizes, self.second, self.first)


def align(a: Body, b: Body) -> Alignment | None:
    """Find a common iteration space for two loop nests, or None.

    Reductions align loop by loop. A pointwise nest aligns with a reduction either with its
    pointwise loops alone or with all of its loops.
    """
    if not a.rsizes and b.rsizes:
        turned = align(b, a)
        return None if turned is None else turned.flipped()
    if not known_equal(a.numel, b.numel) or (b.rsizes and not known_equal(a.rnumel, b.rnumel)):
        return (
            None if b.rsizes else align_whole(a, b, [*_names("p", a.sizes), *_names("r", a.rsizes)])
        )
    factors = common_factors(a.sizes, b.sizes)
    if factors is None:
        return None
    pieces = [(f"p{n}", f) for n, f in enumerate(factors)]
    first, second = split_map("p", a.sizes, pieces), split_map("p", b.sizes, pieces)
    if not a.rsizes:
        return Alignment(tuple(factors), (), first, second)
    if not b.rsizes:
        keep = {f"r{n}": var(f"r{n}", s) for n, s in enumerate(a.rsizes)}
        return Alignment(tuple(factors), a.rsizes, {**first, **keep}, second)
    rfactors = common_factors(a.rsizes, b.rsizes)
    if rfactors is None:
        return None
    rpieces = [(f"r{n}", f) for n, f in enumerate(rfactors)]
    return Alignment(
        tuple(factors),
        tuple(rfactors) or (1,),
        {**first, **split_map("r", a.rsizes, rpieces)},
        {**second, **split_map("r", b.rsizes, rpieces)},
    )


def align_whole(a: Body, b: Body, order: Sequence[str]) -> Alignment | None:
    """Reduction ``a`` with a pointwise ``b`` that runs over all of ``a``'s loops, or None.

    ``order`` names ``a``'s loops, outermost first, as ``b`` runs over them: memory order, where
    ``b`` walks along memory and ``a`` reduces across it. The result keeps the order of ``a``.
    """
    if b.rsizes or not known_equal(times(a.numel, a.rnumel), b.numel):
        return None
    own = dict(zip(_names("p", a.sizes), a.sizes, strict=True))
    own |= zip(_names("r", a.rsizes), a.rsizes, strict=True)
    factors = common_factors([own[name] for name in order], b.sizes)
    if factors is None:
        return None
    shares: dict[str, list[int]] = {}  # which factors make up each loop of a
    position = 0
    for name in order:
        have: Size = 1
        shares[name] = []
        while not known_equal(have, own[name]):
            shares[name].append(position)
            have = times(have, factors[position])
            position += 1
    pieces: dict[int, tuple[str, Size]] = {}
    sizes: dict[str, list[Size]] = {"p": [], "r": []}
    first: dict[str, Index] = {}
    for name in own:
        kind, total, step = name[0], ZERO, _ONE
        for number in shares[name]:
            pieces[number] = (f"{kind}{len(sizes[kind])}", factors[number])
            sizes[kind].append(factors[number])
        for number in reversed(shares[name]):
            piece, extent = pieces[number]
            total = total + var(piece, extent).scale(step)
            step = times(step, extent)
        first[name] = total
    second = split_map("p", b.sizes, [pieces[n] for n in range(len(factors))])
    return Alignment(tuple(sizes["p"]), tuple(sizes["r"]) or (1,), first, second)


def _names(prefix: str, sizes: Sequence[Size]) -> list[str]:
    return [f"{prefix}{n}" for n in range(len(sizes))]


def memory_order(body: Body, index: Index) -> list[str] | None:
    """The loops of a nest from the one that strides farthest through ``index`` to the nearest.

    None unless the index is a plain sum of all the loops with distinct positive strides.
    """
    names = [*_names("p", body.sizes), *_names("r", body.rsizes)]
    strides = {name: index.coefficient(name) for name in names}
    steps = {name: hint(stride) for name, stride in strides.items()}
    if len(index.terms) != len(names):
        return None
    if len(set(steps.values())) != len(names) or min(steps.values(), default=1) <= 0:
        return None
    return sorted(names, key=lambda name: -steps[name])
