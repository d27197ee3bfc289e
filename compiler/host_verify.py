"""The check between a host program's bytes and anything that prints or runs it.

`host_codec` has made sure that every field has its type. Here the program as a whole is held to
its grammar: names are defined once, before use, and not used after they were freed; kernel
numbers, argument counts, sizes, dtypes and grids are in range; operators exist and may be called;
a view stays inside its source where both are known. The check knows nothing about speed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from . import host, host_alias, host_ops
from . import host_tables as tables
from .host_errors import HostProgramError
from .host_sizes import polynomial

_TENSOR, _SYMBOL, _OTHER = "tensor", "symbol", "value"


@dataclass(slots=True)
class _Scope:
    """What is known after each line.

    ``kinds`` holds every live name, ``dead`` every name that was freed or given away, ``bytes``
    the storage size behind a tensor name where it is a known number of bytes, ``specs`` how a
    tensor was allocated where it is not.
    """

    kinds: dict[str, str] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    specs: dict[str, host.TensorSpec] = field(default_factory=dict)

    def define(self, name: str, kind: str, path: str) -> None:
        problem = tables.name_problem(name)
        if problem is not None:
            raise HostProgramError(path, problem)
        if name in self.kinds or name in self.dead:
            raise HostProgramError(path, f"{name} is defined twice")
        self.kinds[name] = kind

    def use(self, name: str, path: str, kind: str | None = None) -> None:
        found = self.kinds.get(name)
        if found is None:
            problem = tables.name_problem(name)
            if problem is None and name in self.dead:
                problem = f"{name} is used after {self.dead[name]}"
            raise HostProgramError(path, problem or f"{name} is not defined before this use")
        if kind is not None and found not in (kind, _OTHER):
            raise HostProgramError(path, f"{name} is a {found}, expected a {kind}")

    def retire(self, name: str, path: str, how: str) -> None:
        self.use(name, path)
        del self.kinds[name]
        self.dead[name] = how


def verify(program: host.HostProgram) -> None:
    """Raise HostProgramError, naming the field, unless ``program`` is safe to print and run."""
    scope = _Scope()
    for i, entry in enumerate(program.inputs):
        path = f"inputs[{i}]"
        if entry.spec is None:
            scope.define(entry.name, _SYMBOL, f"{path}.name")
        else:
            scope.define(entry.name, _TENSOR, f"{path}.name")
    _check_constants(program, scope)
    for i, kernel in enumerate(program.kernels):
        _check_kernel(kernel, f"kernels[{i}]")
    for i, line in enumerate(program.lines):
        _check_line(program, line, scope, f"lines[{i}]")
    for i, value in enumerate(program.outputs):
        _check_arg(value, scope, f"outputs[{i}]")
    # Input sizes come last: a symbol in them is bound by a line of the program.
    for i, entry in enumerate(program.inputs):
        if entry.spec is not None:
            _check_spec(entry.spec, None, f"inputs[{i}].spec")
    for i, name in enumerate(program.symbols):
        if scope.kinds.get(name) != _SYMBOL:
            raise HostProgramError(f"symbols[{i}]", f"{name!r} is not a size symbol of the program")
    _check_guards(program)


def _check_guards(program: host.HostProgram) -> None:
    """Guards are evaluated first of all, when only the leading lines have bound symbols."""
    scope = _Scope()
    for entry in program.inputs:
        scope.kinds[entry.name] = _SYMBOL if entry.spec is None else _TENSOR
    for line in host_alias.leading_symbols(program):
        scope.kinds[line.name] = _SYMBOL
    for i, guard in enumerate(program.guards):
        _check_size(guard.size, scope, f"guards[{i}].size")


def _check_constants(program: host.HostProgram, scope: _Scope) -> None:
    for i, constant in enumerate(program.constants):
        path = f"constants[{i}]"
        scope.define(constant.name, _TENSOR, f"{path}.name")
        _check_spec(constant.spec, None, f"{path}.spec")
        needed = storage_bytes(constant.spec)
        if needed is None or not _is_contiguous(constant.spec):
            raise HostProgramError(f"{path}.spec", "a constant has fixed, contiguous sizes")
        if len(constant.data) != needed:
            raise HostProgramError(
                f"{path}.data", f"{len(constant.data)} bytes for a tensor of {needed}"
            )
        scope.bytes[constant.name] = needed


def _check_kernel(kernel: host.KernelDef, path: str) -> None:
    problem = tables.label_problem(kernel.name)
    if problem is not None:
        raise HostProgramError(f"{path}.name", problem)
    if len(kernel.key) not in (0, 32):
        raise HostProgramError(f"{path}.key", f"a key has 32 bytes, not {len(kernel.key)}")
    for i, kind in enumerate(kernel.arg_kinds):
        if kind not in tables.ARG_KINDS:
            raise HostProgramError(f"{path}.arg_kinds[{i}]", f"unknown argument type {kind!r}")


def _check_line(program: host.HostProgram, line: host.Line, scope: _Scope, path: str) -> None:
    match line:
        case host.Allocate(name, spec):
            _check_spec(spec, scope, f"{path}.spec")
            scope.define(name, _TENSOR, f"{path}.name")
            _note_bytes(scope, name, spec)
        case host.FreeIfNotReused(name) | host.Free(name):
            scope.retire(name, f"{path}.name", "it was freed")
        case host.Reuse():
            _check_reuse(line, scope, path)
        case host.Reinterpret():
            _check_view(line, scope, path)
        case host.KernelCall():
            _check_kernel_call(program, line, scope, path)
        case host.ExternCall():
            _check_extern(line, scope, path)
        case host.MultiOutput(name, src, steps):
            scope.use(src, f"{path}.src", _OTHER)
            if not steps or any(not 0 <= step < 4096 for step in steps):
                raise HostProgramError(f"{path}.path", f"{steps} leads to no element")
            scope.define(name, _OTHER, f"{path}.name")
        case host.SymbolDef(name, source, dim):
            scope.use(source, f"{path}.source", _SYMBOL if dim is None else _TENSOR)
            if dim is not None and not 0 <= dim < tables.MAX_RANK:
                raise HostProgramError(f"{path}.dim", f"there is no dimension {dim}")
            scope.define(name, _SYMBOL, f"{path}.name")
        case host.Assert(name, spec, message):
            scope.use(name, f"{path}.name", _TENSOR)
            _check_spec(spec, scope, f"{path}.spec")
            _check_one_line(message, f"{path}.message")
        case host.Comment(text):
            _check_one_line(text, f"{path}.text")
        case _:
            raise HostProgramError(path, f"{type(line).__name__} is no line")


def _check_one_line(text: str, path: str) -> None:
    # A line break would end the comment that the printer writes and start code.
    if not text.isprintable():
        raise HostProgramError(path, "text must be one line of printable characters")


def _check_reuse(line: host.Reuse, scope: _Scope, path: str) -> None:
    scope.use(line.old, f"{path}.old", _TENSOR)
    _check_spec(line.spec, scope, f"{path}.spec")
    known = scope.bytes.get(line.old)
    needed = storage_bytes(line.spec)
    if known is not None and needed is not None and needed > known:
        raise HostProgramError(
            f"{path}.spec", f"{needed} bytes do not fit the {known} bytes of {line.old}"
        )
    if known is None or needed is None:
        _check_symbolic_reuse(line, scope, path)
    scope.retire(line.old, f"{path}.old", "its storage was given away")
    scope.define(line.new, _TENSOR, f"{path}.new")
    if known is not None:
        scope.bytes[line.new] = known


def _check_symbolic_reuse(line: host.Reuse, scope: _Scope, path: str) -> None:
    """Sizes that are not known must be the same sizes."""
    old = scope.specs.get(line.old)
    if old is None or storage_extent(old) != storage_extent(line.spec):
        raise HostProgramError(
            f"{path}.spec", f"nothing says that it fits the storage of {line.old}"
        )
    scope.specs[line.new] = line.spec


def _check_view(line: host.Reinterpret, scope: _Scope, path: str) -> None:
    scope.use(line.src, f"{path}.src", _TENSOR)
    _check_spec(line.spec, scope, f"{path}.spec")
    _check_size(line.offset, scope, f"{path}.offset")
    scope.define(line.name, _TENSOR, f"{path}.name")
    known = scope.bytes.get(line.src)
    needed = storage_bytes(line.spec)
    if known is None or needed is None or type(line.offset) is not int:
        return
    start = line.offset * tables.DTYPES[line.spec.dtype]
    if needed and start + needed > known:
        raise HostProgramError(
            f"{path}.spec",
            f"a view of bytes {start} to {start + needed} leaves the {known} bytes of {line.src}",
        )
    scope.bytes[line.name] = max(known - start, 0)


def _check_kernel_call(
    program: host.HostProgram, line: host.KernelCall, scope: _Scope, path: str
) -> None:
    if not 0 <= line.kernel < len(program.kernels):
        raise HostProgramError(f"{path}.kernel", f"there is no kernel {line.kernel}")
    kinds = program.kernels[line.kernel].arg_kinds
    if len(kinds) != len(line.args):
        raise HostProgramError(
            f"{path}.args", f"{len(line.args)} arguments for a kernel of {len(kinds)}"
        )
    for i, (kind, arg) in enumerate(zip(kinds, line.args, strict=True)):
        where = f"{path}.args[{i}]"
        if kind in tables.POINTER_KINDS:
            if not isinstance(arg, host.Ref):
                raise HostProgramError(where, f"a {kind} argument must name a tensor")
            scope.use(arg.name, where, _TENSOR)
        elif isinstance(arg, host.Ref):
            scope.use(arg.name, where, _SYMBOL)
        else:
            _check_size(arg, scope, where, signed=True)
            low, high = tables.INTEGER_RANGES.get(kind, (-(2**63), 2**64))
            if type(arg) is int and not low <= arg <= high:
                raise HostProgramError(where, f"{arg} does not fit a {kind} argument")
    axes = (line.grid.x, line.grid.y, line.grid.z)
    for axis, size, limit in zip("xyz", axes, tables.GRID_LIMITS, strict=True):
        _check_size(size, scope, f"{path}.grid.{axis}")
        if type(size) is int and size > limit:
            raise HostProgramError(f"{path}.grid.{axis}", f"{size} programs (limit {limit})")
    for i, name in enumerate(line.mutates):
        scope.use(name, f"{path}.mutates[{i}]", _TENSOR)


def _check_extern(line: host.ExternCall, scope: _Scope, path: str) -> None:
    facts = host_ops.facts(line.op, f"{path}.op")
    positional = [name for name in facts.arguments if name not in facts.keyword_only]
    if len(line.args) > len(positional):
        raise HostProgramError(
            f"{path}.args", f"{line.op} takes {len(positional)} arguments, got {len(line.args)}"
        )
    given = set(positional[: len(line.args)])
    for i, (name, value) in enumerate(line.kwargs):
        if name not in facts.arguments or name in given:
            raise HostProgramError(
                f"{path}.kwargs[{i}]", f"{line.op} has no argument {name!r} here"
            )
        given.add(name)
        _check_arg(value, scope, f"{path}.kwargs[{i}]")
    for i, value in enumerate(line.args):
        _check_arg(value, scope, f"{path}.args[{i}]")
    if line.out is not None:
        if "out" not in facts.arguments or "out" in given:
            raise HostProgramError(f"{path}.out", f"{line.op} takes no out tensor")
        scope.use(line.out, f"{path}.out", _TENSOR)
        given.add("out")
    missing = [n for n in facts.arguments if n not in given and n not in facts.defaults]
    if missing:
        raise HostProgramError(f"{path}.args", f"{line.op} lacks {', '.join(missing)}")
    if line.name != line.out:
        scope.define(line.name, _OTHER, f"{path}.name")


def _check_arg(value: host.Arg, scope: _Scope, path: str, depth: int = 0) -> None:
    match value:
        case host.Ref(name):
            scope.use(name, path)
        case host.SizeExpr():
            _check_size(value, scope, path)
        case host.DType(name) if name not in tables.DTYPES:
            raise HostProgramError(path, f"unknown dtype {name!r}")
        case host.DeviceRef(kind) if kind not in tables.DEVICES:
            raise HostProgramError(path, f"unknown device {kind!r}")
        case host.MemoryFormat(name) if name not in tables.FORMATS:
            raise HostProgramError(path, f"unknown memory format {name!r}")
        case tuple():
            if depth > tables.MAX_DEPTH:
                raise HostProgramError(path, f"nested more than {tables.MAX_DEPTH} deep")
            for i, item in enumerate(value):
                _check_arg(item, scope, f"{path}[{i}]", depth + 1)
        case _:
            pass


def _check_spec(spec: host.TensorSpec, scope: _Scope | None, path: str) -> None:
    """Check a spec; ``scope`` None skips the symbols (of inputs, which lines bind later)."""
    if spec.dtype not in tables.DTYPES:
        raise HostProgramError(f"{path}.dtype", f"unknown dtype {spec.dtype!r}")
    if spec.device not in tables.DEVICES:
        raise HostProgramError(f"{path}.device", f"unknown device {spec.device!r}")
    if len(spec.sizes) != len(spec.strides):
        raise HostProgramError(
            f"{path}.strides", f"{len(spec.strides)} strides for {len(spec.sizes)} dimensions"
        )
    for what, values in (("sizes", spec.sizes), ("strides", spec.strides)):
        for i, size in enumerate(values):
            _check_size(size, scope, f"{path}.{what}[{i}]")
    total = storage_bytes(spec)
    if total is not None and total > tables.MAX_ELEMENTS:
        raise HostProgramError(f"{path}.sizes", f"a tensor of {total} bytes")


def _check_size(
    size: host.Size | str, scope: _Scope | None, path: str, signed: bool = False, depth: int = 0
) -> None:
    match size:
        case bool() | str():
            raise HostProgramError(path, f"{size!r} is no size")
        case int():
            low = -(2**63) if signed else 0
            high = 2**64 if signed else tables.MAX_ELEMENTS
            if not low <= size <= high:
                raise HostProgramError(path, f"{size} is out of range for a size")
        case host.SizeExpr(op, args):
            _check_expr(op, args, scope, path, depth)
        case _:
            raise HostProgramError(path, f"{type(size).__name__} is no size")


def _check_expr(
    op: str, args: Iterable[object], scope: _Scope | None, path: str, depth: int
) -> None:
    bounds = tables.SIZE_OPS.get(op)
    if bounds is None:
        raise HostProgramError(f"{path}.op", f"unknown size operation {op!r}")
    if depth > tables.MAX_DEPTH:
        raise HostProgramError(path, f"nested more than {tables.MAX_DEPTH} deep")
    args = tuple(args)
    if not bounds[0] <= len(args) <= bounds[1]:
        raise HostProgramError(f"{path}.args", f"{op} with {len(args)} arguments")
    if op == "sym":
        problem = tables.name_problem(args[0])
        if problem is not None:
            raise HostProgramError(f"{path}.args[0]", problem)
        if scope is not None:
            scope.use(str(args[0]), f"{path}.args[0]", _SYMBOL)
        return
    for i, arg in enumerate(args):
        if not isinstance(arg, (int, host.SizeExpr)):
            raise HostProgramError(f"{path}.args[{i}]", f"{arg!r} is no size")
        _check_size(arg, scope, f"{path}.args[{i}]", signed=True, depth=depth + 1)
    if op in ("floordiv", "mod", "ceildiv") and args[1] == 0:
        raise HostProgramError(f"{path}.args[1]", "division by zero")


def storage_bytes(spec: host.TensorSpec) -> int | None:
    """Return how many bytes a tensor of this spec spans, or None when a symbol is involved."""
    span = 1
    empty = False
    for size, stride in zip(spec.sizes, spec.strides, strict=True):
        if type(size) is not int or type(stride) is not int:
            return None
        empty = empty or size == 0
        span += (size - 1) * stride
    return 0 if empty else span * tables.DTYPES[spec.dtype]


def storage_extent(spec: host.TensorSpec) -> object:
    """What tells how much storage a symbolic spec takes: equal only for equally many bytes.

    For a dense layout that is a polynomial; others are only equal to themselves.
    """
    item = tables.DTYPES[spec.dtype]
    total = polynomial(host.SizeExpr("mul", (item, *spec.sizes)))
    reach = [
        host.SizeExpr("mul", (host.SizeExpr("add", (size, -1)), stride))
        for size, stride in zip(spec.sizes, spec.strides, strict=True)
    ]
    span = polynomial(host.SizeExpr("mul", (item, host.SizeExpr("add", (1, *reach)))))
    return frozenset(total.items()) if total == span else (spec.sizes, spec.strides, item)


def _is_contiguous(spec: host.TensorSpec) -> bool:
    expected = 1
    for size, stride in zip(reversed(spec.sizes), reversed(spec.strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size if type(size) is int else 1
    return True


def _note_bytes(scope: _Scope, name: str, spec: host.TensorSpec) -> None:
    known = storage_bytes(spec)
    if known is not None:
        scope.bytes[name] = known
    else:
        scope.specs[name] = spec
