"""A kernel's sizes: what its loops and addresses mention becomes ks0, ks1, .. by first use.

Equal computations then have equal text, whatever the graph calls its symbols and wherever in it
they stand. A polynomial over symbols is computed in the kernel; what is no polynomial (a rounded
quotient, say) is computed on the host and is an argument like a symbol.
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy

from .body import Body, stmt_index, with_index
from .index import Div, Index, Indirect, Mod, Var, const, indirect, var
from .sym import Size, SizeSymbol, as_size, atoms, hint, is_static, limits, monomials


class KernelSizes:
    """The size arguments of one kernel and their names."""

    def __init__(self, body: Body) -> None:
        self.names: dict[sympy.Expr, SizeSymbol] = {}
        for size in _sizes(body):
            for atom in atoms(size) if not isinstance(size, int) else ():
                if atom not in self.names:
                    name = f"ks{len(self.names)}"
                    self.names[atom] = SizeSymbol(name, *limits(atom), hint(atom))

    def size(self, size: Size) -> Size:
        """A size over the arguments."""
        if isinstance(size, int):
            return size
        terms = [
            sympy.Mul(c, *(self.names[f] for f in factors))
            for factors, c in monomials(size).items()
        ]
        return as_size(sympy.Add(*terms))

    def index(self, index: Index) -> Index:
        """An index over the arguments, its terms in the order of their new names."""
        total = const(self.size(index.const))
        for atom, c in index.terms:
            match atom:
                case Var():
                    part = var(atom.name, self.size(atom.size))
                case Indirect():
                    part = indirect(atom.value, self.size(atom.size))
                case Div():
                    part = Index(((Div(self.index(atom.base), self.size(atom.by)), 1),))
                case Mod():
                    part = Index(((Mod(self.index(atom.base), self.size(atom.by)), 1),))
                case _:
                    raise TypeError(atom)
            total = total + part.scale(self.size(c))
        return total

    def body(self, body: Body) -> Body:
        """A loop nest over the arguments."""
        stmts = []
        for stmt in body.stmts:
            index = stmt_index(stmt)
            stmts.append(stmt if index is None else with_index(stmt, self.index(index)))
        sizes, rsizes = (tuple(map(self.size, s)) for s in (body.sizes, body.rsizes))
        return Body(sizes, rsizes, tuple(stmts))

    def restored(self, size: Size) -> Size:
        """A size of the kernel in terms of the graph's symbols."""
        if isinstance(size, int):
            return size
        return as_size(size.xreplace({name: atom for atom, name in self.names.items()}))


def is_symbolic(body: Body) -> bool:
    """Whether a loop nest mentions a symbol."""
    return not is_static(*_sizes(body))


def _sizes(body: Body) -> Iterator[Size]:
    """Every size in a loop nest, loops first."""
    yield from body.sizes
    yield from body.rsizes
    for stmt in body.stmts:
        index = stmt_index(stmt)
        if index is not None:
            yield from _index_sizes(index)


def _index_sizes(index: Index) -> Iterator[Size]:
    for atom, c in index.terms:
        match atom:
            case Div() | Mod():
                yield from _index_sizes(atom.base)
                yield atom.by
            case Var() | Indirect():
                yield atom.size
        yield c
    yield index.const
