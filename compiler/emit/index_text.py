"""Print index expressions over a kernel's axis variables; divisions get a line of their own."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import CodegenError
from ..index import Div, Index, Indirect, Mod, Var, floordiv, mod, var
from ..loops import mergeable
from ..reach import reach
from ..sym import Size, monomials, times
from ..tile import Axis


class IndexText:
    """Prints indices, and remembers which divisions have a name in the current scope."""

    def __init__(self, axes: tuple[Axis, ...], emit: Callable[[str], None]) -> None:
        self.axes = axes
        self._emit = emit
        self._outer: dict[object, str] = {}
        self._inner: dict[object, str] | None = None  # names that end with the current loop

    def enter_loop(self) -> None:
        """Names given from here on that vary with r end with the loop."""
        self._inner = {}

    def leave_loop(self) -> None:
        """Forget the loop's names."""
        self._inner = None

    def text(self, index: Index) -> str:
        """The text of an index `on_axes`; a number if it is constant, else of the tile's rank."""
        parts = []
        for atom, c in index.terms:
            text = self._atom(atom)
            parts.append(text if c == 1 else f"{size_text(c)}*{text}")
        if index.const != 0 or not parts:
            parts.append(size_text(index.const))
        return " + ".join(parts)

    def on_axes(self, index: Index) -> Index:
        """The same address written over axis variables; loops that step together become one."""
        for axis in self.axes:
            if not index.var_names() & {n for n, _ in axis.loops}:
                continue
            index = index.substitute(_axis_values(index, axis))
        return index

    def _atom(self, atom: object) -> str:
        match atom:
            case Indirect():
                return f"tmp{atom.value}"
            case Var():
                return atom.name
            case Div() | Mod():
                known = self._outer.get(atom) or (self._inner or {}).get(atom)
                if known is not None:
                    return known
                base = self._base(atom.base)
                low = reach(atom.base)[0]
                by = size_text(atom.by)
                if low is None or low < 0:  # Triton's // and % round towards zero
                    name = "floor_div" if isinstance(atom, Div) else "remainder"
                    text = f"kf.{name}({base}, {by})"
                else:
                    text = f"({base}) {'//' if isinstance(atom, Div) else '%'} {by}"
                if atom.base.indirects():
                    return f"({text})"
                return self._named(atom, text)
        raise CodegenError(repr(atom), "not an index atom")

    def _base(self, base: Index) -> str:
        parts = [
            self._atom(a) if c == 1 else f"{size_text(c)}*{self._atom(a)}" for a, c in base.terms
        ]
        if base.const != 0 or not parts:
            parts.append(size_text(base.const))
        return " + ".join(parts)

    def _named(self, atom: Div | Mod, text: str) -> str:
        """Give a division its own line: the same ones recur in most addresses."""
        if self._inner is None:
            name = f"i{len(self._outer)}"
            self._outer[atom] = name
        elif "rindex" in atom.base.var_names():
            name = f"j{len(self._inner)}"
            self._inner[atom] = name
        else:
            return f"({text})"
        self._emit(f"{name} = {text}")
        return name


def size_text(size: Size) -> str:
    """A size, a polynomial over arguments of the kernel, as a number or in brackets."""
    if isinstance(size, int):
        return str(size)
    parts = []
    for factors, c in sorted(monomials(size).items(), key=lambda m: [str(f) for f in m[0]]):
        names = [str(f) for f in factors]
        parts.append("*".join([str(c), *names] if c != 1 or not names else names))
    return f"({' + '.join(parts)})" if len(parts) > 1 or "*" in parts[0] else parts[0]


def _axis_values(index: Index, axis: Axis) -> dict[str, Index]:
    """Loop variables of one axis as functions of its flat index, merged where ``index`` allows."""
    runs: list[tuple[list[str], Size]] = []
    for name, size in axis.loops:
        if runs and mergeable(index, runs[-1][0][-1], name, size):
            runs[-1] = ([*runs[-1][0], name], times(runs[-1][1], size))
        else:
            runs.append(([name], size))
    values: dict[str, Index] = {}
    flat = var(f"{axis.name}index", axis.extent)
    step: Size = 1
    for position, (members, size) in enumerate(reversed(runs)):
        value = floordiv(flat, step)
        if position < len(runs) - 1:
            value = mod(value, size)
        for name in members[:-1]:
            values[name] = Index(())
        values[members[-1]] = value
        step = times(step, size)
    return values
