"""Print a tiled loop nest as the text of one kernel.

The tile's dimensions are the tiling's axes in order (y, x, r); every value has that rank, with
extent 1 along axes it does not vary over, so that Triton broadcasts the rest. A kept-whole
reduction is straight-line code. A looped one runs one loop for each level of reductions: level n
holds what depends on n finished reductions, and recomputes what it needs from loads.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from ..body import Body, Stmt, operands, stmt_index, varies
from ..errors import CodegenError
from ..index import Index
from ..ops import OPS
from ..tile import Axis, Tiling
from .index_text import IndexText
from .reduction import POSITIONS, SIMPLE

POINTER = {
    "float32": "*fp32", "float64": "*fp64", "float16": "*fp16", "bfloat16": "*bf16",
    "int8": "*i8", "int16": "*i16", "int32": "*i32", "int64": "*i64", "uint8": "*u8", "bool": "*i1",
    "float8_e4m3fn": "*fp8e4nv", "float8_e5m2": "*fp8e5",
}  # fmt: skip
_TL = {
    "bool": "tl.int1", "float8_e4m3fn": "tl.float8e4nv", "float8_e5m2": "tl.float8e5",
}  # fmt: skip
INT32_LIMIT = 2**31 - 1


def tl_dtype(dtype: str) -> str:
    """Triton's spelling of a dtype."""
    return _TL.get(dtype, f"tl.{dtype}")


@dataclass(frozen=True, slots=True)
class KernelArg:
    """A pointer argument: its name in the text, the buffer behind it, its dtype and alignment."""

    name: str
    buffer: str
    dtype: str
    aligned: bool


@dataclass(frozen=True, slots=True)
class KernelText:
    """A printed kernel: text, entry name, pointer arguments in order, and constexpr blocks."""

    text: str
    entry: str
    args: tuple[KernelArg, ...]
    constexprs: tuple[tuple[str, int], ...]


def print_kernel(
    body: Body, tiling: Tiling, args: tuple[KernelArg, ...], *, wide: bool = False
) -> KernelText:
    """Print a kernel; ``wide`` computes addresses in 64 bits. Raises CodegenError.

    The entry is named by content: equal kernels have equal names everywhere.
    """
    lines = _Printer(body, tiling, args, wide).print()
    blocks = tuple((f"{a.name.upper()}BLOCK", a.block) for a in tiling.axes)
    constexprs = ", ".join(f"{name}: tl.constexpr" for name, _ in blocks)
    pointers = ", ".join(a.name for a in args)
    shape = f"({pointers}, {constexprs}):\n" if args else f"({constexprs}):\n"
    inner = "\n".join(f"    {line}" for line in lines) + "\n"
    digest = hashlib.sha256(
        repr((shape, inner, blocks, [(a.dtype, a.aligned) for a in args])).encode()
    ).hexdigest()
    entry = f"kf_{_describe(body, tiling)}_{digest[:8]}"
    return KernelText(f"@triton.jit\ndef {entry}{shape}{inner}", entry, args, blocks)


_TELLING = ("welford", "argmax", "argmin", "max", "min", "sum", "prod", "any", "all",
            "tanh", "erf", "exp", "log", "rsqrt", "sqrt", "sigmoid", "pow", "sin", "cos")  # fmt: skip


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

    def __init__(
        self, body: Body, tiling: Tiling, args: tuple[KernelArg, ...], wide: bool
    ) -> None:
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
        self.loop_of = {name: a for a in self.axes for name, _ in a.loops}

    # -- layout ----------------------------------------------------------------------------------

    def _slice(self, position: int) -> str:
        """``[None, :]`` and the like: a vector placed along one tile dimension."""
        if len(self.axes) == 1:
            return ""
        marks = [":" if i == position else "None" for i in range(len(self.axes))]
        return f"[{', '.join(marks)}]"

    def _tile(self, axes: frozenset[str]) -> str:
        """The tile shape of a value that varies over these axes."""
        return "[" + ", ".join(self._block(a) if a.name in axes else "1" for a in self.axes) + "]"

    def _block(self, axis: Axis) -> str:
        return f"{axis.name.upper()}BLOCK"

    def _ordered(self, axes: frozenset[str]) -> list[Axis]:
        return [a for a in self.axes if a.name in axes]

    def _masked_axis(self, axis: Axis) -> bool:
        """Whether some lanes of the axis lie beyond its extent."""
        return not isinstance(axis.extent, int) or axis.extent % axis.block != 0

    def _mask(self, axes: frozenset[str], extra: str | None = None) -> str:
        parts = [f"{a.name}mask" for a in self._ordered(axes) if self._masked_axis(a)]
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
            self.emit(f"{name}numel = {axis.extent}")
            if name == "r":
                if self.tiling.persistent:
                    self._r_index("", position, wide)
                continue
            self.emit(f"{name}offset = tl.program_id({programs[name]}){wide} * {block}")
            arange = f"tl.arange(0, {block}){self._slice(position)}"
            self.emit(f"{name}index = {name}offset + {arange}")
            if self._masked_axis(axis):
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
        if self._masked_axis(axis):
            self.emit("rmask = rindex < rnumel")

    def _looped(self, wide: str) -> None:
        """One loop over r for each level of reductions, with the straight-line parts between."""
        stmts = self.body.stmts
        top = max((self.level[i] for i in range(len(stmts))), default=0)
        for level in range(top + 1):
            for i, stmt in enumerate(stmts):
                if not self.varies[i] and self.level[i] == level and not self._at_loop(i):
                    if stmt.op != "reduce":
                        self._statement(i)
            inside = self._loop_slice(level)
            if not inside:
                continue
            reduces = [i for i in inside if stmts[i].op == "reduce"]
            for i in reduces:
                self._accumulators(i)
            position = len(self.axes) - 1
            self.emit("for roffset in range(0, rnumel, RBLOCK):")
            self.indent = "    "
            self.indices.enter_loop()
            self._r_index("roffset + ", position, wide)
            for i in inside:
                if stmts[i].op == "reduce":
                    self._step(i)
                else:
                    self._statement(i)
            self.indent = ""
            self.indices.leave_loop()
            for i in reduces:
                self._finish(i)

    def _at_loop(self, i: int) -> bool:
        """Whether a store belongs in a loop although its value does not vary there."""
        return self.body.stmts[i].op == "store" and "r" in self.axes_of[i]

    def _loop_slice(self, level: int) -> list[int]:
        """The statements that the loop of one level must run, in order."""
        stmts = self.body.stmts
        needed: set[int] = set()
        for i, stmt in enumerate(stmts):
            if stmt.op == "reduce":
                if self.level[i] == level + 1:
                    needed.add(i)
            elif stmt.op == "store" and self.level[i] == level:
                if self.varies[i] or self._at_loop(i):
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
                self._define(i, self._load(i, stmt))
            case "store":
                self._store(i, stmt)
            case "const":
                ones = "[" + ", ".join("1" for _ in self.axes) + "]"
                self._define(i, f"tl.full({ones}, {_number(stmt)}, {tl_dtype(stmt.dtype)})")
            case "index":
                self._define(i, f"({self.indices.text(stmt.attrs[0])}).to({tl_dtype(stmt.dtype)})")
            case "cast":
                self._define(i, self._cast(stmt))
            case "round_to":
                narrow = tl_dtype(stmt.attrs[0])
                self._define(i, f"tmp{stmt.args[0]}.to({narrow}).to(tl.float32)")
            case "bitcast":
                target = tl_dtype(stmt.attrs[0])
                self._define(i, f"tmp{stmt.args[0]}.to({target}, bitcast=True)")
            case "reduce":
                self._reduce_whole(i, stmt)
            case "part":
                self._define(i, f"tmp{stmt.args[0]}_{stmt.attrs[0]}")
            case _:
                operand = self.body.stmts[stmt.args[0]].dtype if stmt.args else stmt.dtype
                if stmt.op == "where":
                    operand = stmt.dtype
                text = OPS[stmt.op].spelling(operand)
                self._define(i, text.format(*(f"tmp{a}" for a in stmt.args)))

    def _define(self, i: int, text: str) -> None:
        self.emit(f"tmp{i} = {text}")

    def _cast(self, stmt: Stmt) -> str:
        want = stmt.attrs[0]
        value = f"tmp{stmt.args[0]}"
        if want == "bool":
            return f"{value} != 0"
        return f"{value}.to({tl_dtype(want)})"

    def _address(self, buffer: str, index: Index, axes: frozenset[str]) -> str:
        """Pointer text for a tile over ``axes``."""
        own = frozenset().union(
            *(self.axes_of[v] for v in index.indirects()),
            {self.loop_of[n].name for n in index.var_names()},
        )
        text = self.indices.text(index)
        if index.is_const:
            full = self._tile(axes)
            return f"{self.pointer[buffer]} + tl.full({full}, {text}, tl.int{64 if self.wide else 32})"
        if own != axes:
            return f"{self.pointer[buffer]} + tl.broadcast_to({text}, {self._tile(axes)})"
        return f"{self.pointer[buffer]} + ({text})"

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
        mask = self._mask(axes)
        value = f"tmp{stmt.args[0]}"
        if self.axes_of[stmt.args[0]] != axes:
            value = f"tl.broadcast_to({value}, {self._tile(axes)})"
        if self.body.stmts[stmt.args[0]].dtype != dtype:
            value = f"{value}.to({tl_dtype(dtype)})"
        call = "tl.atomic_add" if mode == "add" else "tl.store"
        tail = ", sem='relaxed'" if mode == "add" else ""
        self.emit(f"{call}({address}, {value}{', ' + mask if mask else ''}{tail})")

    # -- reductions ------------------------------------------------------------------------------

    def _operand(self, i: int) -> tuple[str, frozenset[str]]:
        """A reduction's operand spread over x and r, and its axes."""
        value = self.body.stmts[i].args[0]
        axes = self.axes_of[value] | {"r"}
        text = f"tmp{value}"
        if self.axes_of[value] != axes:
            text = f"tl.broadcast_to({text}, {self._tile(axes)})"
        return text, axes

    def _r_masked(self) -> bool:
        return self._masked_axis(self.axes[-1])

    def _collapse(self, text: str) -> str:
        """Put the reduced axis back as extent 1."""
        return f"{text}[:, None]"

    def _reduce_whole(self, i: int, stmt: Stmt) -> None:
        (kind,) = stmt.attrs
        value, axes = self._operand(i)
        dtype = self.body.stmts[stmt.args[0]].dtype
        tile = self._tile(axes)
        if kind in SIMPLE:
            simple = SIMPLE[kind]
            if self._r_masked():
                value = f"tl.where(rmask, {value}, {simple.identity(dtype)})"
            finish = simple.finish.format(value=value, axis=1)
            self._define(i, self._collapse(finish))
        elif kind in POSITIONS:
            if self._r_masked():
                value = f"tl.where(rmask, {value}, {POSITIONS[kind](dtype)})"
            where = self._positions(tile)
            self._define(i, self._collapse(f"kf.{kind}({value}, {where}, 1)") + ".to(tl.int64)")
        elif kind == "welford":
            # the row is at hand: the mean first, then exact deviations from it
            zero = f"tl.where(rmask, {value}, 0.0)" if self._r_masked() else value
            total = self._collapse(f"kf.sum({zero}, 1)")
            self.emit(f"tmp{i}_0 = {total} / {float(self._rnumel())}")
            deviation = f"{value} - tmp{i}_0"
            if self._r_masked():
                deviation = f"tl.where(rmask, {deviation}, 0.0)"
            self.emit(f"tmp{i}_d = {deviation}")
            self.emit(f"tmp{i}_1 = {self._collapse(f'kf.sum(tmp{i}_d * tmp{i}_d, 1)')}")
        else:
            raise CodegenError(kind, "unknown reduction")

    def _rnumel(self) -> int:
        return int(self.axes[-1].extent)

    def _positions(self, tile: str) -> str:
        """Row-major positions over the reduction; a padded lane is past every real one."""
        text = f"tl.broadcast_to(rindex, {tile})"
        return f"tl.where(rmask, {text}, 2147483647)" if self._r_masked() else text

    def _accumulators(self, i: int) -> None:
        stmt = self.body.stmts[i]
        (kind,) = stmt.attrs
        _, axes = self._operand(i)
        tile = self._tile(axes)
        dtype = self.body.stmts[stmt.args[0]].dtype
        if kind in SIMPLE:
            self.emit(f"acc{i} = tl.full({tile}, {SIMPLE[kind].identity(dtype)}, {tl_dtype(dtype)})")
        elif kind in POSITIONS:
            self.emit(f"acc{i} = tl.full({tile}, {POSITIONS[kind](dtype)}, {tl_dtype(dtype)})")
            index = "tl.int64" if self.wide else "tl.int32"
            self.emit(f"acc{i}_at = tl.full({tile}, 2147483647, {index})")
        else:
            for part in range(3):
                self.emit(f"acc{i}_{part} = tl.full({tile}, 0.0, {tl_dtype(dtype)})")

    def _step(self, i: int) -> None:
        stmt = self.body.stmts[i]
        (kind,) = stmt.attrs
        value, axes = self._operand(i)
        tile = self._tile(axes)
        mask = f"tl.broadcast_to(rmask, {tile})" if self._r_masked() else f"tl.full({tile}, True, tl.int1)"
        if kind in SIMPLE:
            step = SIMPLE[kind].step.format(acc=f"acc{i}", value=value)
            self.emit(f"acc{i} = tl.where(rmask, {step}, acc{i})" if self._r_masked() else f"acc{i} = {step}")
        elif kind in POSITIONS:
            where = f"tl.broadcast_to(rindex, {tile})"
            self.emit(f"acc{i}, acc{i}_at = kf.{kind}_step(acc{i}, acc{i}_at, {value}, {where}, {mask})")
        else:
            accs = ", ".join(f"acc{i}_{part}" for part in range(3))
            self.emit(f"{accs} = kf.welford_step({accs}, {value}, {mask})")

    def _finish(self, i: int) -> None:
        (kind,) = self.body.stmts[i].attrs
        if kind in SIMPLE:
            finish = SIMPLE[kind].finish.format(value=f"acc{i}", axis=1)
            self._define(i, self._collapse(finish))
        elif kind in POSITIONS:
            finish = f"kf.{kind}(acc{i}, acc{i}_at, 1)"
            self._define(i, self._collapse(finish) + ".to(tl.int64)")
        else:
            accs = ", ".join(f"acc{i}_{part}" for part in range(3))
            names = ", ".join(f"fin{i}_{part}" for part in range(3))
            self.emit(f"{names} = kf.welford({accs}, 1)")
            for part in range(2):
                self.emit(f"tmp{i}_{part} = {self._collapse(f'fin{i}_{part}')}")


def _number(stmt: Stmt) -> str:
    """The text of a constant."""
    (number,) = stmt.attrs
    text = repr(number)
    return f"float('{text}')" if re.fullmatch(r"-?(inf|nan)", text) else text


def _levels(body: Body) -> list[int]:
    """For each statement, how many reductions must have finished before it; a reduce adds one."""
    out: list[int] = []
    for stmt in body.stmts:
        below = max((out[a] for a in operands(stmt)), default=0)
        out.append(below + 1 if stmt.op == "reduce" else below)
    return out
