"""Print a tiled loop nest as the text of one kernel.

The tile's dimensions are the tiling's axes in order (y, x, r); every value has that rank, with
extent 1 along axes it does not vary over, so that Triton broadcasts the rest. A kept-whole
reduction is straight-line code. A looped one runs one loop for each level of reductions: level n
holds what depends on n finished reductions, and recomputes what it needs from loads.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from ..body import Body, Stmt, operands, single, stmt_index, varies
from ..index import Index
from ..ops import OPS
from ..sym import known_multiple
from ..tile import Axis, Tiling
from .index_text import IndexText, size_text
from .reduction_text import ReductionText
from .spelling import converted, tl_dtype


@dataclass(frozen=True, slots=True)
class KernelArg:
    """A pointer argument: its name in the text, the buffer behind it, its dtype and alignment."""

    name: str
    buffer: str
    dtype: str
    aligned: bool


@dataclass(frozen=True, slots=True)
class KernelText:
    """A printed kernel: text, entry name, arguments in order (pointers, sizes), blocks."""

    text: str
    entry: str
    args: tuple[KernelArg, ...]
    sizes: tuple[str, ...]
    constexprs: tuple[tuple[str, int], ...]


def print_kernel(
    body: Body,
    tiling: Tiling,
    args: tuple[KernelArg, ...],
    sizes: tuple[str, ...] = (),
    *,
    wide: bool = False,
) -> KernelText:
    """Print a kernel; ``wide`` computes addresses in 64 bits. Raises CodegenError.

    ``sizes`` names the symbols of its loops and addresses, which become integer arguments.

    The entry is named by content: equal kernels have equal names everywhere.
    """
    lines = _Printer(body, tiling, args, wide).print()
    blocks = tuple((f"{a.name.upper()}BLOCK", a.block) for a in tiling.axes)
    constexprs = ", ".join(f"{name}: tl.constexpr" for name, _ in blocks)
    given = ", ".join([*(a.name for a in args), *sizes])
    shape = f"({given}, {constexprs}):\n" if given else f"({constexprs}):\n"
    inner = "\n".join(f"    {line}" for line in lines) + "\n"
    digest = hashlib.sha256(
        repr((shape, inner, blocks, [(a.dtype, a.aligned) for a in args])).encode()
    ).hexdigest()
    entry = f"kf_{_describe(body, tiling)}_{digest[:8]}"
    return KernelText(f"@triton.jit\ndef {entry}{shape}{inner}", entry, args, sizes, blocks)


_TELLING = ("welford", "argmax", "argmin", "max", "min", "sum", "prod", "any", "all",
            "tanh", "erf", "exp", "log", "rsqrt", "sqrt", "sigmoid", "pow", "sin",
            "cos")  # fmt: skip


def _describe(body: Body, tiling: Tiling) -> str:
    """A readable prefix from what the kernel computes."""
    kind = "poi" if not body.rsizes else "per" if tiling.persistent else "red"
    present = {s.attrs[0] for s in body.stmts if s.op == "reduce"} | {s.op for s in body.stmts}
    words = [w for w in _TELLING if w in present][:3]
    if not words:
        gathers = any(i is not None and i.indirects() for i in map(stmt_index, body.stmts))
        arithmetic = any(s.op in OPS for s in body.stmts)
        words = ["gather"] if gathers else ["fused"] if arithmetic else ["copy"]
    return "_".join([kind, *words])


class _Printer:
    """Prints the statements of one body; the state is the lines so far and the names in scope."""

    def __init__(self, body: Body, tiling: Tiling, args: tuple[KernelArg, ...], wide: bool) -> None:
        self.body = body
        self.tiling = tiling
        self.axes = tiling.axes
        self.pointer = {a.buffer: a.name for a in args}
        self.wide = wide
        self.lines: list[str] = []
        self.indent = ""
        self.varies = varies(body.stmts)
        self.level = _levels(body)
        self.axes_of = self._value_axes()
        self.indices = IndexText(self.axes, self.emit)
        self.reductions = ReductionText(self)

    # -- layout ----------------------------------------------------------------------------------

    def _slice(self, position: int) -> str:
        """``[None, :]`` and the like: a vector placed along one tile dimension."""
        if len(self.axes) == 1:
            return ""
        marks = [":" if i == position else "None" for i in range(len(self.axes))]
        return f"[{', '.join(marks)}]"

    def tile(self, axes: frozenset[str]) -> str:
        """The tile shape of a value that varies over these axes."""
        return "[" + ", ".join(self._block(a) if a.name in axes else "1" for a in self.axes) + "]"

    def _block(self, axis: Axis) -> str:
        return f"{axis.name.upper()}BLOCK"

    def _ordered(self, axes: frozenset[str]) -> list[Axis]:
        return [a for a in self.axes if a.name in axes]

    def masked(self, axis: Axis) -> bool:
        """Whether some lanes of the axis lie beyond its extent."""
        return (axis.name == "y" and self.tiling.tall) or not known_multiple(
            axis.extent, axis.block
        )

    def _mask(self, axes: frozenset[str], extra: str | None = None) -> str:
        parts = [f"{a.name}mask" for a in self._ordered(axes) if self.masked(a)]
        if extra is not None:
            parts.append(extra)
        return " & ".join(parts)

    def _value_axes(self) -> list[frozenset[str]]:
        """For each value, the axes along which its tile is wider than 1."""
        axis_of = {name: a.name for a in self.axes for name, _ in a.loops}
        out: list[frozenset[str]] = []
        for stmt in self.body.stmts:
            axes: set[str] = set()
            for a in operands(stmt):
                axes |= out[a]
            index = stmt_index(stmt)
            if index is not None:
                axes |= {axis_of[n] for n in index.var_names()}
            if stmt.op in ("reduce", "part"):
                axes -= {"r"}
            out.append(frozenset(axes))
        return out

    def emit(self, line: str) -> None:
        """Append one line at the current indentation."""
        self.lines.append(self.indent + line)

    # -- the kernel ------------------------------------------------------------------------------

    def print(self) -> list[str]:
        """All lines below the signature, not indented."""
        programs = {"x": 0, "y": 1}
        wide = ".to(tl.int64)" if self.wide else ""
        for position, axis in enumerate(self.axes):
            name, block = axis.name, self._block(axis)
            self.emit(f"{name}numel = {size_text(axis.extent)}")
            if name == "r":
                if self.tiling.persistent:
                    self._r_index("", position, wide)
                continue
            program = f"tl.program_id({programs[name]}){wide}"
            if name == "y" and self.tiling.tall:
                program = f"({program} + tl.program_id(2){wide} * tl.num_programs(1))"
            self.emit(f"{name}offset = {program} * {block}")
            arange = f"tl.arange(0, {block}){self._slice(position)}"
            self.emit(f"{name}index = {name}offset + {arange}")
            if self.masked(axis):
                self.emit(f"{name}mask = {name}index < {name}numel")
        if self.body.rsizes and not self.tiling.persistent:
            self._looped(wide)
        else:
            for i in range(len(self.body.stmts)):
                self._statement(i)
        return self.lines

    def _r_index(self, offset: str, position: int, wide: str) -> None:
        arange = f"tl.arange(0, RBLOCK){wide}{self._slice(position)}"
        self.emit(f"rindex = {offset}{arange}")
        axis = self.axes[position]
        if self.masked(axis):
            self.emit("rmask = rindex < rnumel")

    def _looped(self, wide: str) -> None:
        """One loop over r for each level of reductions, with the straight-line parts between."""
        stmts = self.body.stmts
        top = max((self.level[i] for i in range(len(stmts))), default=0)
        for level in range(top + 1):
            for i, stmt in enumerate(stmts):
                here = not self.varies[i] and self.level[i] == level and not self._at_loop(i)
                if here and stmt.op != "reduce":
                    self._statement(i)
            inside = self._loop_slice(level)
            if not inside:
                continue
            reduces = [i for i in inside if stmts[i].op == "reduce"]
            for i in reduces:
                self.reductions.accumulators(i)
            position = len(self.axes) - 1
            self.emit(f"for roffset in {self._steps()}:")
            self.indent = "    "
            self.indices.enter_loop()
            self._r_index("roffset + ", position, wide)
            for i in inside:
                if stmts[i].op == "reduce":
                    self.reductions.step(i)
                else:
                    self._statement(i)
            self.indent = ""
            self.indices.leave_loop()
            for i in reduces:
                self.reductions.finish(i)

    def _steps(self) -> str:
        """The range of the loop's counter.

        Unrolled once, two steps' loads are in flight (H200, bf16: logsumexp of 50,304 columns
        205 -> 191 us, statistics of 401,408 rows 42 -> 39 us).
        """
        extent = self.axes[-1].extent
        # two steps stay far from 2**31; a symbolic extent is guarded to leave room for them
        if not isinstance(extent, int) or extent < 2**30:
            return "tl.range(0, rnumel, RBLOCK, loop_unroll_factor=2)"
        return f"range(0, {self._loop_end()}, RBLOCK)"

    def _loop_end(self) -> str:
        """Where the loop counter stops: it must not step over the end of 32 bits."""
        axis = self.axes[-1]
        extent = axis.extent if isinstance(axis.extent, int) else 0  # a symbolic one leaves room
        overflows = self.masked(axis) and 2**31 - axis.block < extent < 2**31
        return str(2**31) if overflows else "rnumel"

    def _at_loop(self, i: int) -> bool:
        """Whether a store belongs in a loop: its value or its place varies there."""
        return self.body.stmts[i].op == "store" and "r" in self.axes_of[i]

    def _loop_slice(self, level: int) -> list[int]:
        """The statements that the loop of one level must run, in order."""
        stmts = self.body.stmts
        needed: set[int] = set()
        for i, stmt in enumerate(stmts):
            if stmt.op == "reduce":
                if self.level[i] == level + 1:
                    needed.add(i)
            elif stmt.op == "store" and self.level[i] == level and self._at_loop(i):
                needed.add(i)
        for i in range(len(stmts) - 1, -1, -1):
            if i in needed:
                for a in operands(stmts[i]):
                    if self.varies[a]:
                        needed.add(a)
        return sorted(needed)

    # -- statements ------------------------------------------------------------------------------

    def _statement(self, i: int) -> None:
        stmt = self.body.stmts[i]
        match stmt.op:
            case "load":
                self.define(i, self._load(i, stmt))
            case "store":
                self._store(i, stmt)
            case "const":
                ones = "[" + ", ".join("1" for _ in self.axes) + "]"
                self.define(i, constant(stmt.attrs[0], stmt.dtype, ones))
            case "index":
                text = self._index(stmt.attrs[0], self.axes_of[i])
                self.define(i, f"{text}.to({tl_dtype(stmt.dtype)})")
            case "cast":
                self.define(i, self._cast(stmt))
            case "round_to":
                self.define(i, f"{converted(f'tmp{stmt.args[0]}', stmt.attrs[0])}.to(tl.float32)")
            case "bitcast":
                target = tl_dtype(stmt.attrs[0])
                self.define(i, f"tmp{stmt.args[0]}.to({target}, bitcast=True)")
            case "reduce":
                self.reductions.whole(i)
            case "part":
                self.define(i, f"tmp{stmt.args[0]}_{stmt.attrs[0]}")
            case _:
                operand = self.body.stmts[stmt.args[0]].dtype if stmt.args else stmt.dtype
                if stmt.op == "where":
                    operand = stmt.dtype
                text = OPS[stmt.op].spelling(operand)
                self.define(i, text.format(*(f"tmp{a}" for a in stmt.args)))

    def define(self, i: int, text: str) -> None:
        """Print the value of a statement."""
        self.emit(f"tmp{i} = {text}")

    def _cast(self, stmt: Stmt) -> str:
        want = stmt.attrs[0]
        value = f"tmp{stmt.args[0]}"
        if want == "bool":
            return f"{value} != 0"
        return f"{value}.to({tl_dtype(want)})"

    def _index(self, index: Index, axes: frozenset[str]) -> str:
        """The text of an index as a tile over ``axes``."""
        flat = self.indices.on_axes(index)
        text = self.indices.text(flat)
        if flat.is_const:
            return f"tl.full({self.tile(axes)}, {text}, tl.int{64 if self.wide else 32})"
        own = frozenset().union(
            *(self.axes_of[v] for v in flat.indirects()),
            {n.removesuffix("index") for n in flat.var_names()},
        )
        return f"({text})" if own == axes else f"tl.broadcast_to({text}, {self.tile(axes)})"

    def _address(self, buffer: str, index: Index, axes: frozenset[str]) -> str:
        """Pointer text for a tile over ``axes``."""
        return f"{self.pointer[buffer]} + {self._index(index, axes)}"

    def _load(self, i: int, stmt: Stmt) -> str:
        buffer, index, dtype = stmt.attrs
        axes = self.axes_of[i]
        condition = f"tmp{stmt.args[0]}" if stmt.args else None
        mask = self._mask(axes, condition)
        address = self._address(buffer, index, axes)
        text = f"tl.load({address}, {mask}, other=0)" if mask else f"tl.load({address})"
        return text if dtype == stmt.dtype else f"{text}.to({tl_dtype(stmt.dtype)})"

    def _store(self, i: int, stmt: Stmt) -> None:
        buffer, index, mode, dtype = stmt.attrs
        axes = frozenset(a.name for a in self.axes if a.name != "r")
        if "r" in self.axes_of[i]:
            axes |= {"r"}
        address = self._address(buffer, index, axes)
        mask = self._mask(axes, f"tmp{stmt.args[1]}" if len(stmt.args) > 1 else None)
        value = f"tmp{stmt.args[0]}"
        if self.axes_of[stmt.args[0]] != axes:
            value = f"tl.broadcast_to({value}, {self.tile(axes)})"
        if self.body.stmts[stmt.args[0]].dtype != dtype:
            value = converted(value, dtype)
        call = "tl.atomic_add" if mode == "add" else "tl.store"
        tail = ", sem='relaxed'" if mode == "add" else ""
        self.emit(f"{call}({address}, {value}{', ' + mask if mask else ''}{tail})")


def constant(number: bool | int | float, dtype: str, tile: str) -> str:
    """A tile filled with a number; float32 numbers as short as they can be told apart."""
    if isinstance(number, float) and number == 0 and math.copysign(1, number) < 0:
        # before Triton 3.9 tl.full drops the sign of zero
        return f"tl.full({tile}, -1.0, {tl_dtype(dtype)}) * 0.0"
    return f"tl.full({tile}, {_digits(number, dtype)}, {tl_dtype(dtype)})"


def _digits(number: bool | int | float, dtype: str) -> str:
    text = repr(number)
    if not isinstance(number, float):
        return text
    if not math.isfinite(number):
        return f"float('{text}')"
    if dtype == "float32":
        short = (f"{number:.{digits}g}" for digits in range(1, 10))
        text = next((t for t in short if single(float(t)) == number), text)
    return text if any(mark in text for mark in ".e") else f"{text}.0"


def _levels(body: Body) -> list[int]:
    """For each statement, how many reductions must have finished before it; a reduce adds one."""
    out: list[int] = []
    for stmt in body.stmts:
        below = max((out[a] for a in operands(stmt)), default=0)
        out.append(below + 1 if stmt.op == "reduce" else below)
    return out
