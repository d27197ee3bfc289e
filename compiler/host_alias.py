"""Who reads, defines and shares what in a host program: the facts under planning and printing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from . import host, host_ops

#: For each name the storages it may lie in; a storage is called after the name that made it.
Roots = Mapping[str, frozenset[str]]


def refs(value: object) -> Iterator[str]:
    """Yield every program name inside an argument: references and size symbols."""
    match value:
        case host.Ref(name):
            yield name
        case host.SizeExpr("sym", (str(name),)):
            yield name
        case host.SizeExpr(_, args):
            for arg in args:
                yield from refs(arg)
        case tuple():
            for item in value:
                yield from refs(item)
        case host.TensorSpec(sizes, strides):
            yield from refs(sizes)
            yield from refs(strides)
        case host.GridSpec(x, y, z):
            yield from refs((x, y, z))
        case host.Guard(size, _):
            yield from refs(size)
        case _:
            pass


def uses(line: host.Line) -> Iterator[str]:
    """Yield every name that ``line`` reads, freeing included."""
    match line:
        case host.Allocate(_, spec):
            yield from refs(spec)
        case host.FreeIfNotReused(name) | host.Free(name):
            yield name
        case host.Reuse(old, _, spec):
            yield old
            yield from refs(spec)
        case host.Reinterpret(_, src, spec, offset):
            yield src
            yield from refs(spec)
            yield from refs(offset)
        case host.KernelCall(_, args, grid, mutates):
            yield from refs(args)
            yield from refs(grid)
            yield from mutates
        case host.ExternCall(_, _, args, kwargs, out):
            yield from refs(args)
            yield from refs(tuple(value for _, value in kwargs))
            if out is not None:
                yield out
        case host.MultiOutput(_, src, _) | host.SymbolDef(_, src, _):
            yield src
        case host.Assert(name, spec, _):
            yield name
            yield from refs(spec)
        case host.Comment():
            pass


def defines(line: host.Line) -> str | None:
    """Return the name that ``line`` introduces, or None."""
    match line:
        case host.Allocate(name) | host.Reinterpret(name) | host.MultiOutput(name):
            return name
        case host.Reuse(_, new):
            return new
        case host.SymbolDef(name):
            return name
        case host.ExternCall(name, _, _, _, out) if name != out:
            return name
        case _:
            return None


def leading_symbols(program: host.HostProgram) -> list[host.SymbolDef]:
    """The lines that bind symbols to dimensions of inputs before anything is computed."""
    found: list[host.SymbolDef] = []
    for line in program.lines:
        match line:
            case host.SymbolDef():
                found.append(line)
            case host.Free() | host.FreeIfNotReused():
                pass
            case _:
                break
    return found


def roots(program: host.HostProgram) -> dict[str, frozenset[str]]:
    """Return for each tensor name the storages it may share.

    Views and tuple elements lie in their source's. An operator's result lies in its own storage
    and in those of every argument that its schema ties to a result. Symbols have none.
    """
    found: dict[str, frozenset[str]] = {}
    entries: tuple[host.Input | host.Constant, ...] = (*program.inputs, *program.constants)
    for entry in entries:
        if entry.spec is not None:
            found[entry.name] = frozenset((entry.name,))
    for line in program.lines:
        match line:
            case host.Allocate(name, _):
                found[name] = frozenset((name,))
            case host.Reuse(old, new, _):
                found[new] = found[old]
            case host.Reinterpret(name, src, _, _) | host.MultiOutput(name, src, _):
                found[name] = found[src]
            case host.ExternCall(name, op, _, _, _):
                shared = host_ops.facts(op).aliases
                tied = [n for key, value in arguments(line) if key in shared for n in refs(value)]
                own = {name} if name != line.out else set()
                found[name] = frozenset(own).union(*(found.get(n, frozenset()) for n in tied))
            case _:
                pass
    return found


def arguments(call: host.ExternCall) -> Iterator[tuple[str, host.Arg]]:
    """Yield (schema name, value) for every argument of an operator call, ``out`` included."""
    known = host_ops.facts(call.op)
    positional = (name for name in known.arguments if name not in known.keyword_only)
    yield from zip(positional, call.args, strict=False)
    yield from call.kwargs
    if call.out is not None:
        yield "out", host.Ref(call.out)


def written_inputs(program: host.HostProgram, found: Roots) -> frozenset[str]:
    """Return the names of graph inputs that some line stores into, directly or through a view."""
    inputs = {entry.name for entry in program.inputs}
    written: set[str] = set()
    for line in program.lines:
        match line:
            case host.KernelCall(_, _, _, mutates):
                for name in mutates:
                    written |= found.get(name, frozenset())
            case host.ExternCall(_, op, _, _, _):
                stores = host_ops.facts(op).writes
                for key, value in arguments(line):
                    if key in stores:
                        for name in refs(value):
                            written |= found.get(name, frozenset())
            case _:
                pass
    return frozenset(written & inputs)
