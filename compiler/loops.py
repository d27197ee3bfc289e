"""Loop nests: merge adjacent loops, and find one iteration space for two of them.

All maps here are substitutions from old loop variables to indices over new ones; both functions
keep row-major order, so a flattened reduction index means the same before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .body import Body, Stmt, stmt_index, with_index
from .index import ZERO, Div, Index, Mod, var
from .sym import Size, exact_div, is_static, known_equal, known_multiple, product

Substitution = Mapping[str, Index]


def substitute(stmts: Iterable[Stmt], values: Substitution) -> tuple[Stmt, ...]:
    """Statements with their loop variables replaced."""
    out = []
    for stmt in stmts:
        index = stmt_index(stmt)
        out.append(stmt if index is None else with_index(stmt, index.substitute(values)))
    return tuple(out)


def mergeable(index: Index, outer: str, inner: str, inner_size: Size) -> bool:
    """Whether ``index`` uses the two variables only through ``outer * inner_size + inner``."""
    if index.coefficient(outer) != index.coefficient(inner) * inner_size:
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
                groups[-1] = ([*members, position], have * size)
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
    if not is_static(*body.sizes, *body.rsizes):
        return body
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
            have = have * pieces[position][1]
            position += 1
        total, step = ZERO, 1
        for name, extent in reversed(members):
            total = total + var(name, extent).scale(step)
            step = step * extent  # type: ignore[assignment]
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


def _cut(factors: Sequence[Size], total: Size) -> int | None:
    """How many leading factors have this product."""
    have: Size = 1
    for n, factor in enumerate((*factors, 1)):
        if known_equal(have, total):
            return n
        have = have * factor
    return None


def align(a: Body, b: Body) -> Alignment | None:
    """Find a common iteration space for two loop nests, or None.

    Reductions align loop by loop. A pointwise nest aligns with a reduction either with its
    pointwise loops alone or with all of its loops.
    """
    if not a.rsizes and b.rsizes:
        flipped = align(b, a)
        if flipped is None:
            return None
        return Alignment(flipped.sizes, flipped.rsizes, flipped.second, flipped.first)
    if not known_equal(a.numel, b.numel) or (b.rsizes and not known_equal(a.rnumel, b.rnumel)):
        whole = a.rsizes and not b.rsizes and known_equal(a.numel * a.rnumel, b.numel)
        return _align_whole(a, b) if whole else None
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


def _align_whole(a: Body, b: Body) -> Alignment | None:
    """Reduction ``a`` with pointwise ``b`` that covers pointwise and reduction loops of ``a``."""
    factors = common_factors((*a.sizes, *a.rsizes), b.sizes)
    if factors is None:
        return None
    cut = _cut(factors, product(a.sizes))
    if cut is None:
        return None
    ppieces = [(f"p{n}", f) for n, f in enumerate(factors[:cut])]
    rpieces = [(f"r{n}", f) for n, f in enumerate(factors[cut:])]
    return Alignment(
        tuple(factors[:cut]),
        tuple(factors[cut:]),
        {**split_map("p", a.sizes, ppieces), **split_map("r", a.rsizes, rpieces)},
        split_map("p", b.sizes, [*ppieces, *rpieces]),
    )
