"""Loop bodies: one flat list of SSA statements, recorded once, analysed by plain loops.

Grammar::

    body := Body(sizes, rsizes, stmts)             -- a loop nest p0..pn, then r0..rm
    stmt := Stmt(op, args, attrs, dtype)           -- its position in the list is its value

    load   attrs (buffer, index, dtype)        args () or (mask,)  a masked-off lane reads zero
    store  attrs (buffer, index, mode, dtype)  args (value,) or (value, mask)
                                               mode "set" | "add" (atomic); masked off: nothing
    const  attrs (number,)                                       a Python bool, int or float
    index  attrs (index,)                                        an index as a value
    cast, round_to, bitcast  attrs (dtype,)  args (value,)       round_to: there and back again
    reduce attrs (kind,)                  args (value,)          over all of r0..rm
    part   attrs (number,)                args (reduce,)         one result of a many-result reduce
    every name of `ops.OPS`               args values

A value varies along the reduction loop if it depends on an r variable and not through a reduce;
`varies` computes that once for a list.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from .errors import CodegenError
from .folding import direct, fold
from .index import Index, var
from .ops import OPS, compute_dtype, is_float
from .sym import Size, product


@dataclass(frozen=True, slots=True)
class Stmt:
    """One SSA statement."""

    op: str
    args: tuple[int, ...]
    attrs: tuple
    dtype: str


@dataclass(frozen=True, slots=True)
class Body:
    """A loop nest: pointwise sizes, reduction sizes, and the statements inside."""

    sizes: tuple[Size, ...]
    rsizes: tuple[Size, ...]
    stmts: tuple[Stmt, ...]

    @property
    def numel(self) -> Size:
        """Iterations of the pointwise loops."""
        return product(self.sizes)

    @property
    def rnumel(self) -> Size:
        """Iterations of the reduction loops; 1 if there are none."""
        return product(self.rsizes)

    def reads(self) -> set[str]:
        """Names of the buffers that are loaded."""
        return {s.attrs[0] for s in self.stmts if s.op == "load"}

    def writes(self) -> set[str]:
        """Names of the buffers that are stored to."""
        return {s.attrs[0] for s in self.stmts if s.op == "store"}


def loop_vars(prefix: str, sizes: Sequence[Size]) -> list[Index]:
    """Fresh loop variables ``prefix0..`` for these sizes."""
    return [var(f"{prefix}{i}", s) for i, s in enumerate(sizes)]


def stmt_index(stmt: Stmt) -> Index | None:
    """The index that a load, store or index statement carries."""
    match stmt.op:
        case "load" | "store":
            return stmt.attrs[1]
        case "index":
            return stmt.attrs[0]
        case _:
            return None


def with_index(stmt: Stmt, index: Index) -> Stmt:
    """The same statement at another index."""
    match stmt.op:
        case "load" | "store":
            attrs = (stmt.attrs[0], index, *stmt.attrs[2:])
        case _:
            attrs = (index,)
    return Stmt(stmt.op, stmt.args, attrs, stmt.dtype)


def operands(stmt: Stmt) -> tuple[int, ...]:
    """Every value a statement uses, those inside its index included."""
    index = stmt_index(stmt)
    if index is None:
        return stmt.args
    return (*stmt.args, *sorted(index.indirects()))


def varies(stmts: Sequence[Stmt]) -> list[bool]:
    """For each statement, whether its value differs along the reduction loop."""
    out: list[bool] = []
    for stmt in stmts:
        if stmt.op in ("reduce", "part"):
            out.append(False)
            continue
        index = stmt_index(stmt)
        own = index is not None and any(n.startswith("r") for n in index.var_names())
        out.append(own or any(out[a] for a in operands(stmt)))
    return out


class Recorder:
    """Records one loop body; values are statement numbers, equal statements are one."""

    def __init__(self) -> None:
        self.stmts: list[Stmt] = []
        self._seen: dict[Stmt, int] = {}
        self._memo: dict[tuple, int] = {}
        self._keep: list[object] = []
        self._mask: int | None = None

    def memo(
        self,
        owner: object,
        index: tuple[Index, ...],
        fn: Callable[[Recorder, Sequence[Index]], int],
    ) -> int:
        """Record ``fn`` at ``index`` once per mask; diamonds of lazies would else cost 2**depth."""
        key = (id(owner), index, self._mask)
        if key not in self._memo:
            self._memo[key] = fn(self, index)
            self._keep.append(owner)  # the id must not be reused while it is a key
        return self._memo[key]

    def emit(self, op: str, args: tuple[int, ...] = (), attrs: tuple = (), dtype: str = "") -> int:
        """Append a statement unless an equal one is there already."""
        stmt = Stmt(op, args, attrs, dtype)
        # 0.0 and -0.0 (and 1 and True) are equal in Python but not the same constant
        key = Stmt(op, args, (*attrs, repr(attrs[0])), dtype) if op == "const" else stmt
        if op != "store" and key in self._seen:
            return self._seen[key]
        self.stmts.append(stmt)
        self._seen[key] = len(self.stmts) - 1
        return len(self.stmts) - 1

    def dtype(self, value: int) -> str:
        """The compute dtype of a value."""
        return self.stmts[value].dtype

    def load(self, buffer: str, index: Index, dtype: str) -> int:
        """Read an element of stored ``dtype``; the value has its compute dtype."""
        args = () if self._mask is None else (self._mask,)
        if args and self.stmts[args[0]].op == "const":  # a constant mask is False, see `masked`
            return self.const(0, dtype)
        index = direct(self.stmts, index)
        return self.emit("load", args, (buffer, index, dtype), compute_dtype(dtype))

    def store(
        self,
        buffer: str,
        index: Index,
        value: int,
        dtype: str,
        mode: str = "set",
        mask: int | None = None,
    ) -> int:
        """Write a value, converted to the stored ``dtype``, or add it to what is there."""
        index = direct(self.stmts, index)
        args = (value,) if mask is None else (value, mask)
        return self.emit("store", args, (buffer, index, mode, dtype), dtype)

    def const(self, number: bool | int | float, dtype: str) -> int:
        """A constant of a compute dtype."""
        dtype = compute_dtype(dtype)
        if dtype == "bool":
            number = bool(number)
        elif is_float(dtype):
            number = float(number) if dtype == "float64" else single(float(number))
            number = math.nan if math.isnan(number) else number  # one object: NaN equals itself
        else:
            number = int(number)
        return self.emit("const", (), (number,), dtype)

    def index(self, index: Index, dtype: str = "int64") -> int:
        """An index as a value."""
        index = direct(self.stmts, index)
        if index.is_const and isinstance(index.const, int):
            return self.const(index.const, dtype)
        return self.emit("index", (), (index,), dtype)

    def cast(self, value: int, dtype: str) -> int:
        """Convert to the compute dtype of ``dtype`` (no rounding to a narrower stored dtype)."""
        dtype = compute_dtype(dtype)
        have = self.dtype(value)
        if have == dtype:
            return value
        stmt = self.stmts[value]
        if stmt.op == "const" and _castable(stmt.attrs[0], dtype):
            return self.const(stmt.attrs[0], dtype)
        if stmt.op == "index" and dtype == "int64":
            return self.index(stmt.attrs[0], dtype)
        return self.emit("cast", (value,), (dtype,), dtype)

    def round_to(self, value: int, dtype: str) -> int:
        """Round to the precision of a stored dtype, as an explicit conversion in eager does."""
        if compute_dtype(dtype) == dtype:
            return self.cast(value, dtype)
        value = self.cast(value, dtype)
        stmt = self.stmts[value]
        if (stmt.op == "load" and stmt.attrs[2] == dtype) or (
            stmt.op == "round_to" and stmt.attrs[0] == dtype
        ):
            return value
        return self.emit("round_to", (value,), (dtype,), "float32")

    def op(self, name: str, *args: int) -> int:
        """Apply an operation of the vocabulary."""
        definition = OPS[name]
        if len(args) != definition.arity:
            raise CodegenError(name, f"takes {definition.arity} operands, got {len(args)}")
        known = fold(self, name, args)
        if known is not None:
            return known
        dtypes = tuple(self.dtype(a) for a in args)
        return self.emit(name, args, (), definition.rule(dtypes))

    def reduce(self, kind: str, value: int, dtype: str) -> int:
        """Reduce a value over all reduction loops."""
        return self.emit("reduce", (value,), (kind,), dtype)

    def part(self, reduction: int, number: int) -> int:
        """One result of a reduction that has several."""
        return self.emit("part", (reduction,), (number,), self.dtype(reduction))

    @contextmanager
    def masked(self, condition: int) -> Iterator[None]:
        """Loads inside happen only where ``condition`` holds (and the enclosing mask)."""
        before = self._mask
        mask = condition if before is None else self.op("and", before, condition)
        always = self.stmts[mask].op == "const" and self.stmts[mask].attrs[0] is True
        self._mask = None if always else mask
        try:
            yield
        finally:
            self._mask = before

    def finish(self, sizes: Sequence[Size], rsizes: Sequence[Size] = ()) -> Body:
        """The recorded body, without statements that no store needs."""
        return prune(Body(tuple(sizes), tuple(rsizes), tuple(self.stmts)))


def single(number: float) -> float:
    """The nearest float32 value; infinity beyond its range."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return rounded


def _castable(number: bool | int | float, dtype: str) -> bool:
    """Whether a constant can be converted at record time exactly as a kernel would."""
    if is_float(dtype) or dtype == "bool":
        return not isinstance(number, int) or abs(number) <= 2**53  # beyond, it would round twice
    return math.isfinite(number) and abs(number) < 2**31 and dtype in ("int32", "int64")


def prune(body: Body) -> Body:
    """Drop statements that no store depends on and renumber the rest."""
    needed = [False] * len(body.stmts)
    for i in range(len(body.stmts) - 1, -1, -1):
        stmt = body.stmts[i]
        if stmt.op == "store":
            needed[i] = True
        if needed[i]:
            for a in operands(stmt):
                needed[a] = True
    if all(needed):
        return body
    return Body(body.sizes, body.rsizes, renumbered(body.stmts, needed))


def renumbered(stmts: Sequence[Stmt], keep: Sequence[bool]) -> tuple[Stmt, ...]:
    """The kept statements with their operands renumbered."""
    number: dict[int, int] = {}
    out: list[Stmt] = []
    for i, stmt in enumerate(stmts):
        if not keep[i]:
            continue
        moved = Stmt(stmt.op, tuple(number[a] for a in stmt.args), stmt.attrs, stmt.dtype)
        index = stmt_index(moved)
        if index is not None:
            moved = with_index(moved, index.renumber(number))
        number[i] = len(out)
        out.append(moved)
    return tuple(out)
