"""From scheduled groups to a host program: allocations, launches, library calls, views, outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sympy import Expr

from . import host
from .errors import GraphError
from .fuse import Group
from .host_alias import refs
from .host_sizes import to_host
from .inplace import Places
from .ir import Buffer, Extern, LoweredGraph, View, views_in
from .kernel import Kernel, Launch, grid_of
from .sym import Size, SizeSymbol

#: Library calls whose result layout torch guarantees; all others are checked before a kernel
#: relies on what the trace promised.
_SURE = frozenset(
    ("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default")
)


class Assembler:
    """Collects the lines of one host program."""

    def __init__(self, graph: LoweredGraph, groups: Sequence[Group]) -> None:
        self._graph = graph
        self._used = {name for group in groups for name in group.reads}
        self._used |= {v.buffer.name for v in views_in(tuple(graph.outputs))}
        self._lines: list[host.Line] = []
        self._views: dict[tuple, str] = {}
        #: Buffers that have their memory already: several groups may fill one.
        self._allocated: set[str] = set()
        self._places = Places(graph, groups)
        self._position = {name: place for place, name in enumerate(graph.buffers)}
        #: The symbols that sizes mention, and the lines that can bind those that are no inputs.
        self._mentioned: set[str] = set()
        self._bindings = _bindings(graph)

    def _spec(self, buffer: Buffer) -> host.TensorSpec:
        """A buffer's metadata as the host program keeps it."""
        return host.TensorSpec(
            tuple(self._size(s) for s in buffer.sizes),
            tuple(self._size(s) for s in buffer.strides),
            buffer.dtype,
            buffer.device,
            buffer.aligned,
        )

    def _size(self, size: Size) -> host.Size:
        if isinstance(size, int):
            return size
        self._mentioned |= {str(s) for s in size.free_symbols}
        return to_host(size)

    def launch(
        self, launch: Launch | None, kernel: Kernel | None, live: set[str], group: int
    ) -> None:
        """Allocate a group's outputs and launch its kernel (None: nothing to compute)."""
        pairs = launch.pairs if launch is not None else ()
        for name in self._in_order(live):
            if name not in self._allocated:
                self._allocated.add(name)
                if not self._places.take(name, pairs, group):
                    self._lines.append(host.Allocate(name, self._spec(self._graph.buffers[name])))
        if launch is not None and kernel is not None:
            pointers = tuple(host.Ref(self._places.of(n)) for n in launch.buffers)
            sizes = tuple(self._size(s) for s in launch.sizes)
            grid = grid_of(launch.extents) if launch.extents else kernel.grid
            self._lines.append(host.KernelCall(launch.kernel, (*pointers, *sizes), grid))

    def _in_order(self, names: set[str]) -> list[str]:
        return sorted(names & self._position.keys(), key=self._position.__getitem__)

    def call(self, node: Extern) -> None:
        """Add a library call and the checks of its results' layouts."""
        args = tuple(self._arg(a) for a in node.args)
        kwargs = tuple((k, self._arg(v)) for k, v in node.kwargs)
        if node.out is not None:
            buffer = node.out.buffer
            if buffer.name not in self._allocated:
                self._allocated.add(buffer.name)
                self._lines.append(host.Allocate(buffer.name, self._spec(buffer)))
            out = self._view(node.out)
            self._lines.append(host.ExternCall(out, node.op, args, kwargs, out))
            return
        self._lines.append(host.ExternCall(node.name, node.op, args, kwargs))
        for output in node.outputs:
            name = output.buffer.name
            if output.path and name not in self._used:
                continue
            if output.path:
                self._lines.append(host.MultiOutput(name, node.name, output.path))
            if node.op not in _SURE:
                message = f"{node.op} returned a layout that its traced metadata did not promise"
                self._lines.append(host.Assert(name, self._spec(output.buffer), message))

    def finish(
        self, kernels: list[Kernel], guards: tuple[host.Guard, ...] = ()
    ) -> host.HostProgram:
        """The program so far, with inputs, constants, kernels (keys still empty) and outputs."""
        outputs = tuple(self._arg(o) for o in self._graph.outputs)
        mentioned = set(self._mentioned)  # a size that only an input has needs no name
        inputs = tuple(
            host.Input(b, None) if isinstance(b, str) else host.Input(b.name, self._spec(b))
            for b in self._graph.inputs
        )
        self._mentioned = mentioned
        constants = tuple(
            host.Constant(name, self._spec(self._graph.buffers[name]), data)
            for name, data in self._graph.constants.items()
        )
        defs = tuple(host.KernelDef(k.name, b"", k.arg_kinds) for k in kernels)
        lines = (*self._symbols(guards), *self._lines)
        symbols = tuple(sorted(self._mentioned))
        return host.HostProgram(inputs, constants, defs, lines, outputs, symbols, guards)

    def _symbols(self, guards: tuple[host.Guard, ...]) -> list[host.SymbolDef]:
        """The lines that bind the symbols in use; raises GraphError for one that no input tells."""
        self._mentioned |= set(refs(guards))
        given = {b for b in self._graph.inputs if isinstance(b, str)}
        unknown = self._mentioned - given - set(self._bindings)
        if unknown:
            raise GraphError(f"no input of the graph tells its sizes {', '.join(sorted(unknown))}")
        return [line for name, line in self._bindings.items() if name in self._mentioned]

    def _arg(self, value: Any) -> host.Arg:
        if isinstance(value, View):
            return host.Ref(self._view(value))
        if isinstance(value, (tuple, list)):
            return tuple(self._arg(v) for v in value)
        return self._size(value) if isinstance(value, Expr) else value

    def _view(self, view: View) -> str:
        """The name of a view, with a Reinterpret line the first time unless it is the buffer.

        Strides count even along dimensions of one element: libraries choose a layout by them.
        """
        if view.is_whole and view.strides == view.buffer.strides:
            return self._places.of(view.buffer.name)
        strides = tuple(self._size(s) for s in view.strides)
        sizes = tuple(self._size(s) for s in view.sizes)
        key = (view.buffer.name, sizes, strides, view.offset, view.dtype)
        name = self._views.get(key)
        if name is None:
            name = self._views[key] = f"view{len(self._views)}"
            spec = host.TensorSpec(sizes, strides, view.dtype, view.buffer.device, False)
            self._lines.append(
                host.Reinterpret(
                    name, self._places.of(view.buffer.name), spec, self._size(view.offset)
                )
            )
        return name


def _bindings(graph: LoweredGraph) -> dict[str, host.SymbolDef]:
    """For each symbol that is no input itself, a line that takes it from the sizes of one."""
    found: dict[str, host.SymbolDef] = {}
    for entry in graph.inputs:
        if isinstance(entry, str):
            continue
        for dim, size in enumerate(entry.sizes):
            if isinstance(size, SizeSymbol) and size.name not in graph.scalars:
                found.setdefault(size.name, host.SymbolDef(size.name, entry.name, dim))
    return found


def assemble_group(
    assembler: Assembler, group: Group, launch: Launch | None, kernels: list[Kernel], live: set[str]
) -> None:
    """Add one group's lines."""
    if group.extern is not None:
        assembler.call(group.extern)
    else:
        kernel = kernels[launch.kernel] if launch else None
        assembler.launch(launch, kernel, live, group.number)
