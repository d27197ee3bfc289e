"""What one compile knows of the world: target, services, runtime, knobs and the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from .report import Report
from .runtime.contract import Runtime
from .seam.target import Target
from .seam.toolchain import Toolchain
from .service import GraphStore, KernelService


class CodeKnobs(Protocol):
    """What the compiler reads of the configuration."""

    @property
    def wait_seconds(self) -> float:
        """How long a load waits for its kernels."""
        ...

    def key_parts(self) -> tuple[tuple[str, bytes], ...]:
        """The knobs that change generated code."""
        ...


@dataclass(slots=True)
class CompileContext:
    """Everything that compiling one target needs; nothing here is global.

    Without a ``runtime`` nothing is loaded (`kernelfarm warm`): the callable runs the traced graph
    and the graph is published by `settle`, after the whole trace.
    """

    target: Target
    toolchain: Toolchain
    service: KernelService
    graphs: GraphStore | None
    runtime: Runtime | None
    knobs: CodeKnobs
    report: Report
    deferred: list[Callable[[], None]] = field(default_factory=list)

    @property
    def interpreted(self) -> bool:
        """Whether kernels run on CPU tensors, by the interpreter: nothing is submitted or keyed."""
        return self.runtime is not None and self.runtime.name == "interpreter"

    @property
    def device_type(self) -> str:
        """Torch's name of the devices that are the target: the CPU's for the interpreter."""
        return "cpu" if self.interpreted else "cuda"
