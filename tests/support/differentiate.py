"""Compile functions with their gradients, without Dynamo in front, for poisoned memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from interpret import NoKnobs, PoisoningRuntime

from kernelfarm.compiler.context import CompileContext
from kernelfarm.compiler.errors import GraphError, LoweringError
from kernelfarm.compiler.pipeline import Boxed, compile_graph, run_eagerly
from kernelfarm.compiler.report import Report
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import Toolchain
from kernelfarm.compiler.trace.dynamo import GraphInfo, compile_fx

T = torch.Tensor


def compiled(
    fn: Callable[..., Any], inputs: Sequence[T], refused: list[str] | None = None
) -> Callable[..., Any]:
    """The function through AOTAutograd and our compiler.

    Graphs that the compiler refuses run eagerly, as in production, if there is a list for the
    reasons. What Dynamo would hand us is one call of the whole function, which returns a list.
    """
    target = Target.parse("h200")
    unused: Any = None
    context = CompileContext(
        target=target,
        toolchain=Toolchain("content", ()),
        service=unused,
        graphs=None,
        runtime=PoisoningRuntime(),
        knobs=NoKnobs(),
        report=Report(),
    )
    graph = torch.fx.Graph()
    arguments = tuple(graph.placeholder(f"x{n}") for n in range(len(inputs)))
    graph.output(graph.call_function(fn, arguments))

    def compile_one(gm: torch.fx.GraphModule, given: Sequence[Any], info: GraphInfo) -> Boxed:
        try:
            return compile_graph(gm, given, context)
        except (GraphError, LoweringError) as error:
            if refused is None:
                raise
            refused.append(str(error))
            return run_eagerly(gm)

    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    return compile_fx(module, list(inputs), compile_graph=compile_one, target=target)
