"""Split reductions: where rows are few and long, each row is reduced in pieces, then the pieces.

One row (or one tile of columns) is one program, so 768 columns of 4096 rows would keep a corner of
a GPU busy. The first kernel reduces every piece and stores one partial result each, together with
what its loops compute on the way; the second reduces the partial results and finishes. Sums of
pieces are sums, and of equally long pieces the moments combine exactly::

    mean = mean(mean_i)    sum of squares = sum(squares_i) + length * squares(mean_i)

A reduction whose loops need another one's results is not split; `fuse` does not build one where
splitting is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .body import Body, Recorder, Stmt, loop_vars, operands, stmt_index, varies, with_index
from .index import Index, linear, unravel, var
from .ir import Buffer
from .loops import common_factors, split_map
from .sym import Size, contiguous_strides, is_static

#: Programs that keep a large GPU busy: two for each of 132 multiprocessors.
FILL = 264
#: How many times the pieces fill the device. More of them end in more reductions across a tile,
#: which cost more than the loads they overlap (4096 x 768: 10.5 us by 2, 12.3 by 4, on an H200).
WAVES = 2
#: Below so many elements a second launch costs more than one slow program.
WORTH_IT = 1 << 17
#: The columns that one program of a reduction across rows takes.
COLUMNS = 64
#: The shortest piece, in elements along a row and in rows across them.
SHORTEST_INNER, SHORTEST_OUTER = 4096, 32
#: Fewer pieces gain less than the second launch costs.
FEWEST_PIECES = 4
#: More pieces than this are a long row themselves.
MOST_PIECES = 1024
#: What can be split; positions (argmax) would need their values beside them.
SPLITTABLE = ("sum", "prod", "max", "min", "any", "all", "welford")


def pieces_wanted(numel: Size, rnumel: Size, inner: bool, fill: int) -> int:
    """How many pieces of a row fill the device; 1 where it should stay whole.

    ``inner`` says that the reduction runs along memory, one row a program.
    """
    if not isinstance(numel, int) or not isinstance(rnumel, int):
        return 1
    programs = numel if inner else -(-numel // COLUMNS)
    if programs >= fill or numel * rnumel < WORTH_IT:
        return 1
    shortest = SHORTEST_INNER if inner else SHORTEST_OUTER
    most = min(MOST_PIECES, rnumel // shortest)
    wanted = min(most, -(-WAVES * fill // max(programs, 1)))
    return _divisor_near(rnumel, wanted) if wanted >= FEWEST_PIECES else 1


def _divisor_near(n: int, wanted: int) -> int:
    """The divisor of ``n`` closest to ``wanted`` by ratio, at most twice it; 1 if none helps."""
    found = [d for d in range(2, min(n, 2 * wanted) + 1) if n % d == 0]
    return min(found, key=lambda d: max(d / wanted, wanted / d), default=1)


@dataclass(frozen=True, slots=True)
class Halves:
    """A split reduction: the body over pieces, the body over their results, and those buffers."""

    pieces: Body
    finish: Body
    buffers: tuple[Buffer, ...]


def split(body: Body, inner: bool, fill: int, prefix: str) -> Halves | None:
    """Split a merged body's reductions if that is wanted and possible; None otherwise.

    The new buffers are named ``prefix`` and a number.
    """
    if not body.rsizes or not is_static(*body.sizes, *body.rsizes):
        return None
    count = pieces_wanted(body.numel, body.rnumel, inner, fill)
    if count == 1 or not _splittable(body):
        return None
    return _Splitter(body, inner, count, prefix).run()


def _splittable(body: Body) -> bool:
    """Whether all reductions are of kinds that combine, and no loop needs a result of one."""
    along, late = varies(body.stmts), _late(body)
    for i, stmt in enumerate(body.stmts):
        if stmt.op == "reduce" and (stmt.attrs[0] not in SPLITTABLE or late[stmt.args[0]]):
            return False
        if late[i] and along[i]:
            return False
    return True


def _late(body: Body) -> list[bool]:
    """For each statement, whether it depends on a finished reduction."""
    out: list[bool] = []
    for stmt in body.stmts:
        out.append(stmt.op == "reduce" or any(out[a] for a in operands(stmt)))
    return out


class _Splitter:
    """One split under construction: two recorders and the buffers between them."""

    def __init__(self, body: Body, inner: bool, count: int, prefix: str) -> None:
        self.body = body
        self.prefix = prefix
        self.count = count
        self.length = int(body.rnumel) // count
        outer, within = _factored(body.rsizes, count, self.length)
        self.values = _over_pieces(body, inner, outer, within, self.length)
        self.rsizes = within
        # partial results lie so that both kernels walk along memory: behind the row they belong
        # to, or as one more row of columns
        self.sizes = (*body.sizes, *outer) if inner else (*outer, *body.sizes)
        self.at = linear(loop_vars("p", self.sizes), contiguous_strides(self.sizes))
        row = linear(loop_vars("p", body.sizes), contiguous_strides(body.sizes))
        piece = var("r0", count)
        self.element = row.scale(count) + piece if inner else row + piece.scale(body.numel)
        self.buffers: list[Buffer] = []
        self.pieces = Recorder()
        self.rest = Recorder()

    def run(self) -> Halves:
        """Both bodies and the buffers between them."""
        along, late = varies(self.body.stmts), _late(self.body)
        early: dict[int, int] = {}  # statement -> its value while pieces are reduced
        done: dict[int, int] = {}  # statement -> its value when they are combined
        parts: dict[int, list[int]] = {}
        for i, stmt in enumerate(self.body.stmts):
            if stmt.op == "reduce":
                parts[i] = self._reduce(stmt, early[stmt.args[0]])
                done[i] = parts[i][0]
            elif stmt.op == "part":
                done[i] = parts[stmt.args[0]][stmt.attrs[0]]
            elif along[i]:
                early[i] = copied(self.pieces, stmt, early, self.values)
            else:
                if not late[i] and stmt.op != "store":
                    early[i] = copied(self.pieces, stmt, early, self.values)
                done[i] = copied(self.rest, stmt, done, {})
        return Halves(
            self.pieces.finish(self.sizes, self.rsizes),
            self.rest.finish(self.body.sizes, (self.count,)),
            tuple(self.buffers),
        )

    def _reduce(self, stmt: Stmt, value: int) -> list[int]:
        """Reduce a piece, store that, and combine what was stored; returns the results."""
        (kind,) = stmt.attrs
        partial = self.pieces.reduce(kind, value, stmt.dtype)
        if kind != "welford":
            stored = self._passed_on(partial, stmt.dtype)
            return [self.rest.reduce(kind, stored, stmt.dtype)]
        means = self._passed_on(self.pieces.part(partial, 0), stmt.dtype)
        squares = self._passed_on(self.pieces.part(partial, 1), stmt.dtype)
        between = self.rest.reduce("welford", means, stmt.dtype)
        within = self.rest.reduce("sum", squares, stmt.dtype)
        length = self.rest.const(float(self.length), stmt.dtype)
        spread = self.rest.op("mul", self.rest.part(between, 1), length)
        return [self.rest.part(between, 0), self.rest.op("add", within, spread)]

    def _passed_on(self, value: int, dtype: str) -> int:
        """Store a partial result; returns it as the second body loads it."""
        name = f"{self.prefix}{len(self.buffers)}"
        self.buffers.append(Buffer(name, self.sizes, contiguous_strides(self.sizes), dtype))
        self.pieces.store(name, self.at, value, dtype)
        return self.rest.load(name, self.element, dtype)


def _factored(
    rsizes: Sequence[Size], count: int, length: int
) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
    """The loops over pieces and those within one; along the old loops where they fit."""
    factors = common_factors(rsizes, (count, length))
    if factors is None:
        return (count,), (length,)
    cut, have = 0, 1
    while have != count:
        have *= int(factors[cut])
        cut += 1
    return tuple(factors[:cut]), tuple(factors[cut:]) or (1,)


def _over_pieces(
    body: Body, inner: bool, outer: Sequence[Size], within: Sequence[Size], length: int
) -> Mapping[str, Index]:
    """The loop variables of a body over the loops of its pieces."""
    rank = len(body.sizes)
    lead = rank if inner else 0
    shift = 0 if inner else len(outer)
    values = {f"p{n}": var(f"p{n + shift}", size) for n, size in enumerate(body.sizes)}
    pieces = [(f"p{lead + n}", size) for n, size in enumerate(outer)]
    inside = [(f"r{n}", size) for n, size in enumerate(within)]
    if common_factors(body.rsizes, (*outer, *within)) is not None:
        return values | dict(split_map("r", body.rsizes, [*pieces, *inside]))
    flat = linear(
        [var(name, size) for name, size in (*pieces, *inside)],
        contiguous_strides((*outer, *within)),
    )
    return values | {f"r{n}": at for n, at in enumerate(unravel(flat, body.rsizes))}


def copied(
    recorder: Recorder, stmt: Stmt, number: Mapping[int, int], values: Mapping[str, Index]
) -> int:
    """Record a statement of another body, its operands renumbered and its loops replaced."""
    args = tuple(number[a] for a in stmt.args)
    index = stmt_index(stmt)
    moved = Stmt(stmt.op, args, stmt.attrs, stmt.dtype)
    if index is not None:
        moved = with_index(moved, index.renumber(number).substitute(values))
    return recorder.emit(moved.op, moved.args, moved.attrs, moved.dtype)
