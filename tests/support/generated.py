"""Generate a function's kernels and program without compiling them: a service that only records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from body_eval import trace
from interpret import NoKnobs

from kernelfarm.compiler.context import CompileContext
from kernelfarm.compiler.fuse import fuse, live_after
from kernelfarm.compiler.generate import generate
from kernelfarm.compiler.host import HostProgram
from kernelfarm.compiler.kernel import Kernel
from kernelfarm.compiler.lower.context import Lowering
from kernelfarm.compiler.printer import print_groups
from kernelfarm.compiler.report import Report
from kernelfarm.compiler.seam.request import CompileRequest, SourceRequest
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import Toolchain
from kernelfarm.compiler.service import Compiled, Priority

Function = Callable[..., Any]


@dataclass(slots=True)
class Recording:
    """A kernel service that remembers requests and hands out futures that nobody settles."""

    requests: list[SourceRequest] = field(default_factory=list)
    futures: list[Future[Compiled]] = field(default_factory=list)
    hurried: list[Future[Compiled]] = field(default_factory=list)

    def submit(
        self, request: SourceRequest | CompileRequest, priority: Priority = Priority.EMITTED
    ) -> Future[Compiled]:
        """Remember a request."""
        assert isinstance(request, SourceRequest)
        self.requests.append(request)
        self.futures.append(Future())
        return self.futures[-1]

    def wanted(self, futures: Sequence[Future[Compiled]]) -> None:
        """Remember who is waited for."""
        self.hurried.extend(futures)


def context(service: Any, target: str = "h200", **fields: Any) -> CompileContext:
    """A compile context around a service."""
    values = {
        "target": Target.parse(target),
        "toolchain": Toolchain("content", ()),
        "service": service,
        "graphs": None,
        "runtime": None,
        "knobs": NoKnobs(),
        "report": Report(),
    }
    return CompileContext(**{**values, **fields})


def generated(
    fn: Function, *inputs: Any, target: str = "h200"
) -> tuple[HostProgram, list[Kernel], Recording]:
    """The program and kernels of a function of CPU tensors."""
    service = Recording()
    program, kernels, _ = generate(trace(fn, inputs), context(service, target))
    return program, kernels, service


def printed_groups(fn: Function, *inputs: Any) -> str:
    """The fused groups of a function as text."""
    graph = Lowering(trace(fn, inputs), "cpu").run()
    groups = fuse(graph)
    return print_groups(groups, live_after(groups, graph.outputs))


def texts(kernels: Sequence[Kernel]) -> str:
    """The kernels' texts, one after the other, with their launch facts above each."""
    parts = []
    for kernel in kernels:
        blocks = ", ".join(f"{n}={v}" for n, v in kernel.request.constexprs)
        grid = f"{kernel.grid.x}, {kernel.grid.y}, {kernel.grid.z}"
        types = ", ".join(kernel.arg_kinds)
        warps = kernel.request.options.num_warps
        head = f"# grid ({grid}), {warps} warps, {blocks}\n# {types}\n"
        parts.append(head + kernel.request.text)
    return "\n".join(parts)


def example(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Zeros of a shape: code generation never looks at the numbers."""
    return torch.zeros(sizes, dtype=dtype)
