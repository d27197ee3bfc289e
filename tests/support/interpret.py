"""Run a traced graph as kernels: fused, tiled, printed, interpreted on poisoned memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from body_eval import POISON_INT

from kernelfarm.compiler.context import CompileContext
from kernelfarm.compiler.pipeline import compile_graph
from kernelfarm.compiler.report import Report
from kernelfarm.compiler.runtime.interpreter import InterpreterRuntime
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import Toolchain


class PoisoningRuntime(InterpreterRuntime):
    """An interpreter whose fresh memory holds NaN or a byte pattern, never a lucky zero."""

    def empty(
        self, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """Return a tensor that nobody wrote yet."""
        out = super().empty(sizes, strides, dtype)
        whole = torch.as_strided(
            out, (out.untyped_storage().nbytes() // out.element_size(),), (1,), 0
        )
        if dtype.is_floating_point:
            whole.fill_(float("nan"))
        else:
            whole.view(torch.uint8).fill_(1 if dtype == torch.bool else POISON_INT)
        return out


class NoKnobs:
    """No settings."""

    wait_seconds = 60.0

    def key_parts(self) -> tuple[tuple[str, bytes], ...]:
        """Return nothing: no knob differs from its default."""
        return ()


def interpret(gm: Any, inputs: Sequence[Any]) -> tuple[list[Any], Report]:
    """Compile for the interpreter and run twice; both runs must agree bit by bit."""
    unused: Any = None
    report = Report()
    context = CompileContext(
        target=Target.parse("h200"),
        toolchain=Toolchain("content", ()),
        service=unused,
        graphs=None,
        runtime=PoisoningRuntime(),
        knobs=NoKnobs(),
        report=report,
    )
    call: Callable[[list[Any]], list[Any]] = compile_graph(gm, inputs, context)
    first = call([_copy(x) for x in inputs])
    again = call([_copy(x) for x in inputs])
    for a, b in zip(first, again, strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    return first, report


def _copy(value: Any) -> Any:
    """A tensor of the same layout in memory of its own: no run can change another's input."""
    if not isinstance(value, torch.Tensor):
        return value
    out = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    if 0 in value.stride():
        return value
    return out.copy_(value)
