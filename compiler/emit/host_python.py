"""A host program as Python text: one function, boxed arguments, nothing but the work itself.

The printed function takes one list, unpacks and clears it, and returns a list. Every helper is a
global that the loader provides (`runtime.loader` and ``PRINTER_NAMES`` of `host_tables`); the
text holds no device ordinal, no address and no text of the program except through ``repr``.
Printing verifies first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .. import host
from ..host_alias import leading_symbols, roots, written_inputs
from ..host_errors import HostProgramError
from ..host_ops import FRESH
from ..host_verify import verify


def emit_python(program: host.HostProgram) -> str:
    """Return the text of ``def call(args)``; raises HostProgramError for a malformed program."""
    verify(program)
    return _Printer(program).text()


def extern_names(program: host.HostProgram) -> tuple[str, ...]:
    """Return the operators of a program in order of first use: ``_op<position>`` in its text."""
    calls = (line.op for line in program.lines if isinstance(line, host.ExternCall))
    return tuple(dict.fromkeys(calls))


@dataclass(slots=True)
class _Printer:
    """One printing.

    ``checked`` are the inputs whose address is tested, ``written`` those of them that the program
    stores into, ``results`` the operators' results that kernels read: where those lie is the
    operator's affair, so they are tested as well. ``specs`` is what is known of each name's layout.
    """

    program: host.HostProgram
    lines: list[str] = field(default_factory=list)
    specs: dict[str, host.TensorSpec] = field(default_factory=dict)
    checked: tuple[str, ...] = ()
    written: frozenset[str] = frozenset()
    results: frozenset[str] = frozenset()
    ops: dict[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """Print the whole program."""
        program = self.program
        self.ops = {op: i for i, op in enumerate(extern_names(program))}
        entries: tuple[host.Input | host.Constant, ...] = (*program.inputs, *program.constants)
        for entry in entries:
            if entry.spec is not None:
                self.specs[entry.name] = entry.spec
        self._find_checked()
        self._head()
        self._realign()
        pending: list[str] = []
        bound = {line.name for line in leading_symbols(program)} if program.guards else set()
        for line in program.lines:
            if isinstance(line, host.SymbolDef) and line.name in bound:
                continue
            if isinstance(line, host.Free):
                pending.append(line.name)
                continue
            self._flush(pending)
            self._line(line)
        self._flush(pending)
        self._tail()
        return "\n".join(self.lines) + "\n"

    def _put(self, text: str) -> None:
        self.lines.append("    " + text)

    def _find_checked(self) -> None:
        shared = roots(self.program)
        sources: dict[str, str] = {}
        made: set[str] = set()
        read: set[str] = set()
        results: set[str] = set()
        stored: set[str] = set()
        for line in self.program.lines:
            match line:
                case host.Reinterpret(name, src, _, _):
                    sources[name] = src
                case host.ExternCall(name, op, _, _, out) if name != out and op not in FRESH:
                    made.add(name)
                case host.MultiOutput(name, _, _):
                    made.add(name)
                case host.KernelCall(_, args, _, mutates):
                    stored.update(mutates)
                    for arg in args:
                        if isinstance(arg, host.Ref):
                            read |= shared.get(arg.name, frozenset())
                            results.add(_base(arg.name, sources))
                case _:
                    pass
        self.results = frozenset((results & made) - {_base(n, sources) for n in stored})
        self.checked = tuple(
            entry.name
            for entry in self.program.inputs
            if entry.name in read
            and entry.spec is not None
            and entry.spec.aligned
            and entry.spec.device == "target"
        )
        self.written = written_inputs(self.program, shared) & frozenset(self.checked)

    def _head(self) -> None:
        program = self.program
        for op, i in self.ops.items():
            self.lines.append(f"# _op{i}: {op}")
        for i, kernel in enumerate(program.kernels):
            self.lines.append(f"# _k{i}: {kernel.name}({', '.join(kernel.arg_kinds)})")
        self.lines.append("def call(args):")
        where = next(
            (i for i, e in enumerate(program.inputs) if e.spec and e.spec.device == "target"), None
        )
        if where is None:
            self._put("_index = _current_device()")
        else:
            self._put(f"_index = args[{where}].get_device()")
            self._put("if _index != _current_device():")
            self._put("    with _on_device(_index):")
            self._put("        return call(args)")
        if program.inputs:
            self._put(f"{_unpack(e.name for e in program.inputs)} = args")
        if program.guards:
            self._guards()
        self._put("args.clear()")
        if program.constants:
            self._put(f"{_unpack(c.name for c in program.constants)} = _constants(_index)")
        if program.kernels:
            names = _unpack(f"_k{i}" for i in range(len(program.kernels)))
            self._put(f"{names} = _kernels(_index)")
            self._put("_stream = _raw_stream(_index)")
        if _names_device(program):
            self._put("_device = _device_of(_index)")

    def _guards(self) -> None:
        """Refuse sizes that the kernels were not compiled for while the arguments are whole."""
        for line in leading_symbols(self.program):
            self._line(line)
        for guard in self.program.guards:
            size = _size(guard.size)
            self._put(f"if {size} > {guard.limit}:")
            self._put(f"    _out_of_range({size}, {guard.limit})")

    def _realign(self) -> None:
        """Copy inputs that kernels read at an address they were not compiled for."""
        if not self.checked:
            return
        returned = {value.name for value in self.program.outputs if isinstance(value, host.Ref)}
        for name in self.checked:
            if name in self.written or name in returned:
                self._put(f"_given_{name} = {name}")
        addresses = " | ".join(f"{name}.data_ptr()" for name in self.checked)
        self._put(f"if ({addresses}) & 15:")
        self._put(f"    {_unpack(self.checked)} = _realign({', '.join(self.checked)})")

    def _flush(self, pending: list[str]) -> None:
        # A copy of a written input lives until it has been copied back.
        names = [name for name in pending if name not in self.written]
        if names:
            self._put(f"del {', '.join(names)}")
        pending.clear()

    def _line(self, line: host.Line) -> None:
        match line:
            case host.Allocate(name, spec):
                self.specs[name] = spec
                make = "_empty" if spec.device == "target" else "_empty_cpu"
                layout = f"{_sizes(spec.sizes)}, {_sizes(spec.strides)}"
                self._put(f"{name} = {make}({layout}, _dt_{spec.dtype})")
            case host.Reuse(old, new, spec):
                self._view(new, old, spec, 0)
                self._put(f"del {old}")
            case host.Reinterpret(name, src, spec, offset):
                self._view(name, src, spec, offset)
            case host.KernelCall():
                self._kernel(line)
            case host.ExternCall():
                self._extern(line)
            case host.MultiOutput(name, src, steps):
                self._put(f"{name} = {src}{''.join(f'[{step}]' for step in steps)}")
                self._check_result(name)
            case host.SymbolDef(name, source, dim):
                self._put(f"{name} = {source}" + ("" if dim is None else f".size({dim})"))
            case host.Assert(name, spec, message):
                layout = f"{_sizes(spec.sizes)}, {_sizes(spec.strides)}"
                self._put(f"_check_layout({name}, {layout}, {message!r})")
            case host.Comment(text):
                self._put(f"# {text}")
            case _:
                raise HostProgramError("lines", f"{type(line).__name__} must be planned first")

    def _view(self, name: str, src: str, spec: host.TensorSpec, offset: host.Size) -> None:
        known = self.specs.get(src)
        self.specs[name] = spec
        if known is not None and known.dtype == spec.dtype:
            if (known.sizes, known.strides, offset) == (spec.sizes, spec.strides, 0):
                self._put(f"{name} = {src}")
                return
            call = f"_view({src}, "
        else:
            call = f"_view_as({src}, _dt_{spec.dtype}, "
        self._put(f"{name} = {call}{_sizes(spec.sizes)}, {_sizes(spec.strides)}, {_size(offset)})")

    def _kernel(self, line: host.KernelCall) -> None:
        axes = (line.grid.x, line.grid.y, line.grid.z)
        kinds = self.program.kernels[line.kernel].arg_kinds
        args = [_launch_arg(kind, arg) for kind, arg in zip(kinds, line.args, strict=True)]
        grid = [_size(axis) for axis in axes]
        call = f"_k{line.kernel}({', '.join([*grid, '_stream', *args])})"
        if 0 in axes:
            self._put(f"# nothing to launch: {call}")
            return
        open_axes = [_size(axis) for axis in axes if type(axis) is not int]
        if open_axes:
            self._put(f"if {' and '.join(f'{axis} > 0' for axis in open_axes)}:")
            call = "    " + call
        self._put(call)

    def _extern(self, line: host.ExternCall) -> None:
        args = [_arg(value) for value in line.args]
        args += [f"{name}={_arg(value)}" for name, value in line.kwargs]
        if line.out is not None:
            args.append(f"out={line.out}")
        target = f"{line.name} = " if line.name != line.out else ""
        self._put(f"{target}_op{self.ops[line.op]}({', '.join(args)})")
        self._check_result(line.name)

    def _check_result(self, name: str) -> None:
        if name in self.results:
            self._put(f"if {name}.data_ptr() & 15:")
            self._put(f"    ({name},) = _realign({name})")

    def _tail(self) -> None:
        for name in self.checked:
            if name in self.written:
                self._put(f"if _given_{name} is not {name}:")
                self._put(f"    _given_{name}.copy_({name})")
        constants = {constant.name for constant in self.program.constants}
        values = []
        for value in self.program.outputs:
            text = _arg(value)
            if isinstance(value, host.Ref) and value.name in self.checked:
                text = f"_given_{value.name}"
            elif isinstance(value, host.Ref) and value.name in constants:
                # The caller may write into what it gets; the program's own copy must not change.
                text = f"{value.name}.clone()"
            values.append(text)
        self._put(f"return [{', '.join(values)}]")


def _base(name: str, sources: dict[str, str]) -> str:
    """Follow a view to the name that it was made from."""
    while name in sources:
        name = sources[name]
    return name


def _launch_arg(kind: str, arg: host.Ref | host.Size) -> str:
    """Print a launch argument; a tensor goes as its address, which launchers take fastest."""
    if not isinstance(arg, host.Ref):
        return _size(arg)
    return f"{arg.name}.data_ptr()" if kind.startswith("*") else arg.name


def _names_device(program: host.HostProgram) -> bool:
    def inside(value: object) -> bool:
        if isinstance(value, tuple):
            return any(inside(item) for item in value)
        return value == host.DeviceRef("target")

    calls = (line for line in program.lines if isinstance(line, host.ExternCall))
    return any(inside(call.args) or inside(call.kwargs) for call in calls)


def _unpack(names: Iterable[str]) -> str:
    listed = list(names)
    return f"({', '.join(listed)},)"


def _sizes(sizes: Sequence[host.Size]) -> str:
    if not sizes:
        return "()"
    return f"({', '.join(_size(size) for size in sizes)},)"


def _size(size: host.Size | str) -> str:
    match size:
        case int():
            return repr(size) if size >= 0 else f"({size})"
        case host.SizeExpr("sym", (str(name),)):
            return name
        case host.SizeExpr("max" | "min" as op, args):
            # One value has no largest: the built-ins want two.
            inner = ", ".join(_size(arg) for arg in args)
            return f"_{op}({inner})" if len(args) > 1 else inner
        case host.SizeExpr("ceildiv", (left, right)):
            return f"(-({_size(left)} // -{_size(right)}))"
        case host.SizeExpr(op, args):
            signs = {"add": " + ", "mul": " * ", "floordiv": " // ", "mod": " % "}
            return f"({signs[op].join(_size(arg) for arg in args)})"
        case _:
            raise HostProgramError("size", f"{size!r} is no size")


def _arg(value: host.Arg) -> str:
    match value:
        case host.Ref(name):
            return name
        case host.SizeExpr():
            return _size(value)
        case host.DType(name):
            return f"_dt_{name}"
        case host.DeviceRef(kind):
            return "_device" if kind == "target" else "_dt_cpu"
        case host.MemoryFormat(name):
            return f"_mf_{name}"
        case tuple():
            return f"[{', '.join(_arg(item) for item in value)}]"
        case float() if math.isnan(value):
            return "_nan"
        case float() if math.isinf(value):
            return "_inf" if value > 0 else "(-_inf)"
        case None | bool() | int() | float() | str():
            return repr(value)
        case _:
            raise HostProgramError("argument", f"{type(value).__name__} is no argument")
