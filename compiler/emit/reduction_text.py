"""Print reductions: of a whole tile at once, or as accumulators, a loop's step and a finish."""

from __future__ import annotations

from typing import Protocol

from ..body import Body
from ..errors import CodegenError
from ..tile import Axis
from .reduction import POSITIONS, SIMPLE
from .spelling import tl_dtype


class Printer(Protocol):
    """What the reductions need of the kernel's printer."""

    body: Body
    axes: tuple[Axis, ...]
    axes_of: list[frozenset[str]]
    wide: bool

    def emit(self, line: str) -> None:
        """Append one line."""

    def define(self, i: int, text: str) -> None:
        """Print the value of a statement."""

    def tile(self, axes: frozenset[str]) -> str:
        """The tile shape of a value that varies over these axes."""

    def masked(self, axis: Axis) -> bool:
        """Whether some lanes of the axis lie beyond its extent."""


def _collapse(text: str) -> str:
    """Put the reduced axis back as extent 1."""
    return f"{text}[:, None]"


class ReductionText:
    """Prints the reductions of one kernel; tiles are (x, r)."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        #: Where a lane that reads nothing stands: past every real position.
        self._nowhere = 2**63 - 1 if printer.wide else 2**31 - 1

    def _operand(self, i: int) -> tuple[str, frozenset[str]]:
        """A reduction's operand spread over x and r, and its axes."""
        value = self._printer.body.stmts[i].args[0]
        axes = self._printer.axes_of[value] | {"r"}
        text = f"tmp{value}"
        if self._printer.axes_of[value] != axes:
            text = f"tl.broadcast_to({text}, {self._printer.tile(axes)})"
        return text, axes

    def _r_masked(self) -> bool:
        return self._printer.masked(self._printer.axes[-1])

    def whole(self, i: int) -> None:
        """Print a reduction whose rows lie whole in the tile."""
        stmt = self._printer.body.stmts[i]
        (kind,) = stmt.attrs
        value, axes = self._operand(i)
        dtype = self._printer.body.stmts[stmt.args[0]].dtype
        tile = self._printer.tile(axes)
        if kind in SIMPLE:
            simple = SIMPLE[kind]
            if self._r_masked():
                value = f"tl.where(rmask, {value}, {simple.identity(dtype)})"
            finish = simple.finish.format(value=value, axis=1)
            self._printer.define(i, _collapse(finish))
        elif kind in POSITIONS:
            if self._r_masked():
                value = f"tl.where(rmask, {value}, {POSITIONS[kind](dtype)})"
            where = self._positions(tile)
            self._printer.define(i, _collapse(f"kf.{kind}({value}, {where}, 1)") + ".to(tl.int64)")
        elif kind == "welford":
            # the row is at hand: the mean first, then exact deviations from it
            zero = f"tl.where(rmask, {value}, 0.0)" if self._r_masked() else value
            total = _collapse(f"kf.sum({zero}, 1)")
            self._printer.emit(f"tmp{i}_0 = {total} / {self._rnumel(dtype)}")
            deviation = f"{value} - tmp{i}_0"
            if self._r_masked():
                deviation = f"tl.where(rmask, {deviation}, 0.0)"
            self._printer.emit(f"tmp{i}_d = {deviation}")
            self._printer.emit(f"tmp{i}_1 = {_collapse(f'kf.sum(tmp{i}_d * tmp{i}_d, 1)')}")
        else:
            raise CodegenError(kind, "unknown reduction")

    def _rnumel(self, dtype: str) -> str:
        extent = self._printer.axes[-1].extent
        return str(float(extent)) if isinstance(extent, int) else f"rnumel.to({tl_dtype(dtype)})"

    def _positions(self, tile: str) -> str:
        """Row-major positions over the reduction; a padded lane is past every real one."""
        text = f"tl.broadcast_to(rindex, {tile})"
        return f"tl.where(rmask, {text}, {self._nowhere})" if self._r_masked() else text

    def accumulators(self, i: int) -> None:
        """Print what a loop starts from."""
        stmt = self._printer.body.stmts[i]
        (kind,) = stmt.attrs
        _, axes = self._operand(i)
        tile = self._printer.tile(axes)
        dtype = self._printer.body.stmts[stmt.args[0]].dtype
        if kind in SIMPLE:
            self._printer.emit(
                f"acc{i} = tl.full({tile}, {SIMPLE[kind].identity(dtype)}, {tl_dtype(dtype)})"
            )
        elif kind in POSITIONS:
            self._printer.emit(
                f"acc{i} = tl.full({tile}, {POSITIONS[kind](dtype)}, {tl_dtype(dtype)})"
            )
            index = "tl.int64" if self._printer.wide else "tl.int32"
            self._printer.emit(f"acc{i}_at = tl.full({tile}, {self._nowhere}, {index})")
        else:
            for part in range(2):
                self._printer.emit(f"acc{i}_{part} = tl.full({tile}, 0.0, {tl_dtype(dtype)})")

    def step(self, i: int) -> None:
        """Print how one tile enters the accumulators."""
        stmt = self._printer.body.stmts[i]
        (kind,) = stmt.attrs
        value, axes = self._operand(i)
        tile = self._printer.tile(axes)
        mask = (
            f"tl.broadcast_to(rmask, {tile})"
            if self._r_masked()
            else f"tl.full({tile}, True, tl.int1)"
        )
        if kind in SIMPLE:
            step = SIMPLE[kind].step.format(acc=f"acc{i}", value=value)
            self._printer.emit(
                f"acc{i} = tl.where(rmask, {step}, acc{i})"
                if self._r_masked()
                else f"acc{i} = {step}"
            )
        elif kind in POSITIONS:
            where = f"tl.broadcast_to(rindex, {tile})"
            self._printer.emit(
                f"acc{i}, acc{i}_at = kf.{kind}_step(acc{i}, acc{i}_at, {value}, {where}, {mask})"
            )
        else:
            # the lanes of a loop count alike, so the step's number is the weight of all of them
            state = f"acc{i}_0, acc{i}_1, roffset // RBLOCK + 1, {value}"
            call = f"masked_step({state}, {mask})" if self._r_masked() else f"step({state})"
            self._printer.emit(f"acc{i}_0, acc{i}_1 = kf.welford_{call}")

    def finish(self, i: int) -> None:
        """Print the result after the loop."""
        (kind,) = self._printer.body.stmts[i].attrs
        if kind in SIMPLE:
            finish = SIMPLE[kind].finish.format(value=f"acc{i}", axis=1)
            self._printer.define(i, _collapse(finish))
        elif kind in POSITIONS:
            finish = f"kf.{kind}(acc{i}, acc{i}_at, 1)"
            self._printer.define(i, _collapse(finish) + ".to(tl.int64)")
        else:
            stmt = self._printer.body.stmts[i]
            _, axes = self._operand(i)
            dtype = tl_dtype(self._printer.body.stmts[stmt.args[0]].dtype)
            lane = "tl.arange(0, RBLOCK)[None, :]"
            seen = f"((rnumel - {lane} + (RBLOCK - 1)) // RBLOCK).to({dtype})"
            self._printer.emit(f"seen{i} = tl.broadcast_to({seen}, {self._printer.tile(axes)})")
            names = ", ".join(f"fin{i}_{part}" for part in range(3))
            self._printer.emit(f"{names} = kf.welford(acc{i}_0, acc{i}_1, seen{i}, 1)")
            for part in range(2):
                self._printer.emit(f"tmp{i}_{part} = {_collapse(f'fin{i}_{part}')}")
