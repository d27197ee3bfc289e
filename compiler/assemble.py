"""From scheduled groups to a host program: allocations, launches, library calls, views, outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import host
from .errors import GraphError
from .fuse import Group
from .ir import Buffer, Extern, LoweredGraph, View, views_in
from .kernel import Kernel, Launch

#: Library calls whose result layout torch guarantees; all others are checked before a kernel
#: relies on what the trace promised.
_SURE = frozenset(
    ("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default")
)


def spec_of(buffer: Buffer) -> host.TensorSpec:
    """A buffer's metadata as the host program keeps it."""
    return host.TensorSpec(
        tuple(_size(s) for s in buffer.sizes),
        tuple(_size(s) for s in buffer.strides),
        buffer.dtype,
        buffer.device,
        buffer.aligned,
    )


def _size(size: Any) -> int:
    if not isinstance(size, int):
        raise GraphError(f"size {size} is symbolic")
    return size


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

    def launch(self, launch: Launch | None, kernel: Kernel | None, live: set[str]) -> None:
        """Allocate a group's outputs and launch its kernel (None: nothing to compute)."""
        for name in self._in_order(live):
            if name not in self._allocated:
                self._allocated.add(name)
                self._lines.append(host.Allocate(name, spec_of(self._graph.buffers[name])))
        if launch is not None and kernel is not None:
            refs = tuple(host.Ref(n) for n in launch.buffers)
            self._lines.append(host.KernelCall(launch.kernel, refs, kernel.grid))

    def _in_order(self, names: set[str]) -> list[str]:
        return [n for n in self._graph.buffers if n in names]

    def call(self, node: Extern) -> None:
        """Add a library call and the checks of its results' layouts."""
        args = tuple(self._arg(a) for a in node.args)
        kwargs = tuple((k, self._arg(v)) for k, v in node.kwargs)
        if node.out is not None:
            buffer = node.out.buffer
            if buffer.name not in self._allocated:
                self._allocated.add(buffer.name)
                self._lines.append(host.Allocate(buffer.name, spec_of(buffer)))
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
                self._lines.append(host.Assert(name, spec_of(output.buffer), message))

    def finish(self, kernels: list[Kernel]) -> host.HostProgram:
        """The program so far, with inputs, constants, kernels (keys still empty) and outputs."""
        outputs = tuple(self._arg(o) for o in self._graph.outputs)
        inputs = tuple(
            host.Input(b, None) if isinstance(b, str) else host.Input(b.name, spec_of(b))
            for b in self._graph.inputs
        )
        constants = tuple(
            host.Constant(name, spec_of(self._graph.buffers[name]), data)
            for name, data in self._graph.constants.items()
        )
        defs = tuple(host.KernelDef(k.name, b"", k.arg_kinds) for k in kernels)
        return host.HostProgram(inputs, constants, defs, tuple(self._lines), outputs)

    def _arg(self, value: Any) -> host.Arg:
        if isinstance(value, View):
            return host.Ref(self._view(value))
        if isinstance(value, (tuple, list)):
            return tuple(self._arg(v) for v in value)
        return value

    def _view(self, view: View) -> str:
        """The name of a view, with a Reinterpret line the first time unless it is whole."""
        if view.is_whole:
            return view.buffer.name
        strides = tuple(_size(s) for s in view.strides)
        sizes = tuple(_size(s) for s in view.sizes)
        key = (view.buffer.name, sizes, strides, view.offset, view.dtype)
        name = self._views.get(key)
        if name is None:
            name = self._views[key] = f"view{len(self._views)}"
            spec = host.TensorSpec(sizes, strides, view.dtype, view.buffer.device, False)
            self._lines.append(host.Reinterpret(name, view.buffer.name, spec, _size(view.offset)))
        return name


def assemble_group(
    assembler: Assembler, group: Group, launch: Launch | None, kernels: list[Kernel], live: set[str]
) -> None:
    """Add one group's lines."""
    if group.extern is not None:
        assembler.call(group.extern)
    else:
        assembler.launch(launch, kernels[launch.kernel] if launch else None, live)
