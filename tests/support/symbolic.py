"""Graphs with symbolic sizes: trace once, compile once for the interpreter, call with many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from body_eval import assert_same, flat_outputs
from generated import context
from interpret import PoisoningRuntime
from torch.fx.experimental.proxy_tensor import make_fx

from kernelfarm.compiler.pipeline import compile_graph
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.trace.decomposition import decomposition_table
from kernelfarm.compiler.trace.dynamo import compile_fx


def symbolic(fn: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """The ATen graph of a function, every size of its inputs a symbol (equal ones the same)."""
    pure = torch.func.functionalize(fn, remove="mutations")
    table = decomposition_table()
    return make_fx(pure, decomposition_table=table, tracing_mode="symbolic")(*inputs)


def fits(gm: Any, inputs: Sequence[Any]) -> bool:
    """Whether a trace holds for other inputs: the tracer's own guards for them."""
    values = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
    return bool(gm.shape_env.evaluate_guards_for_args(values, inputs, ignore_static=False))


@dataclass
class Interpreted:
    """A backend for torch.compile that interprets kernels on poisoned memory, and its report."""

    ctx: Any = field(default_factory=lambda: context(None, runtime=PoisoningRuntime()))

    @property
    def compiled(self) -> int:
        """How many graphs were compiled."""
        return int(self.ctx.report.graphs["compiled"])

    def __call__(self, gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one graph of Dynamo's."""
        return compile_fx(
            gm,
            inputs,
            compile_graph=lambda graph, given, info: compile_graph(graph, given, self.ctx),
            target=Target.parse("h200"),
        )


def check_sizes(
    fn: Callable[..., Any],
    first: Sequence[Any],
    *others: Sequence[Any],
    tolerance: tuple[float, float] | None = None,
) -> Any:
    """Compile for the sizes of ``first`` and hold that one program to eager for all of them."""
    gm = symbolic(fn, first)
    ctx = context(None, runtime=PoisoningRuntime())
    call = compile_graph(gm, first, ctx)
    assert ctx.report.graphs["uncached"] == 0, ctx.report
    assert hasattr(call, "text"), "it runs op by op"
    for inputs in (first, *others):
        if not fits(gm, inputs):
            continue
        got = call(list(inputs))
        for position, (g, w) in enumerate(zip(got, flat_outputs(fn(*inputs)), strict=True)):
            sizes = [tuple(x.shape) for x in inputs if isinstance(x, torch.Tensor)]
            assert_same(g, w, f"output {position} for {sizes}", tolerance)
    return call
