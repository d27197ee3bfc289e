"""From Dynamo's graph to compiled callables: our rewrites, AOTAutograd, then `compile_graph`."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx import GraphModule

from ..seam.target import Target
from .choices import make_choices
from .clock import Recorder, backend_took
from .decomposition import decomposition_table
from .layout import propagate_layout
from .randomness import partition, replace_random
from .tidy import tidy

GraphKind = Literal["inference", "forward", "backward"]
#: A compiled graph: takes one list of inputs, empties it, returns a list of outputs.
Boxed = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class GraphInfo:
    """What a graph is for, next to the graph itself.

    ``static_inputs`` are the positions of inputs whose address stays the same from call to call
    (parameters and buffers), where AOTAutograd knows them; empty for a backward graph.
    """

    kind: GraphKind
    static_inputs: tuple[int, ...] = ()


class GraphCompiler(Protocol):
    """Compiles one functional ATen graph."""

    def __call__(
        self, gm: GraphModule, example_inputs: Sequence[Any], info: GraphInfo, /
    ) -> Boxed: ...


class _Stopwatch:
    """Sums the seconds spent inside, so that an outer phase can subtract an inner one."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start


def compile_fx(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    compile_graph: GraphCompiler,
    target: Target,
    fallback_random: bool = False,
    record: Recorder | None = None,
) -> Callable[..., Any]:
    """Compile Dynamo's graph ``gm`` for ``target`` and return the callable that Dynamo wants.

    Dynamo's graph is changed in place by the choices that eager would make by looking at the
    device. AOTAutograd then traces it; each resulting graph (one for inference, a forward and a
    backward one for training) goes to ``compile_graph``. With ``fallback_random`` random operators
    stay eager's, with eager's numbers (see `randomness`). ``record`` is told the seconds of "aot"
    (without compile_graph's) and "compile_graph"; for Dynamo's own see `clock.watch_dynamo`.
    Errors of AOTAutograd and of ``compile_graph`` pass through.
    """
    inner = _Stopwatch()

    def compiler(kind: GraphKind) -> Any:
        def compile_one(gm: GraphModule, example_inputs: Sequence[Any]) -> Boxed:
            if kind == "inference":
                if not fallback_random:
                    replace_random(gm.graph)
                if propagate_layout(gm.graph, target.device_model):
                    gm.recompile()
            tidy(gm)
            with inner.running():
                info = GraphInfo(kind, _static(kind))
                return _boxed(compile_graph(gm, example_inputs, info), kind)

        return compile_one

    started = time.perf_counter()
    try:
        make_choices(gm, target)
        return aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=compiler("forward"),
            # It may be called late, by a backward inside of a function that Dynamo is tracing.
            bw_compiler=torch._dynamo.disable(compiler("backward")),
            inference_compiler=compiler("inference"),
            partition_fn=functools.partial(
                partition, model=target.device_model, fallback_random=fallback_random
            ),
            decompositions=decomposition_table(),
            # Written-back inputs are AOTAutograd's epilogue, so that our graphs stay functional.
            keep_inference_input_mutations=False,
        )
    finally:
        seconds = time.perf_counter() - started
        backend_took(seconds)
        if record is not None:
            record("aot", seconds - inner.seconds)
            record("compile_graph", inner.seconds)


def _boxed(run: Boxed, kind: GraphKind) -> Boxed:
    """Mark ``run`` as taking one list; keep Dynamo out of a backward, which autograd calls."""

    def call(inputs: list[Any]) -> list[Any]:
        return run(inputs)

    boxed: Any = torch._dynamo.disable(call) if kind == "backward" else call
    boxed._boxed_call = True
    return boxed


def _static(kind: GraphKind) -> tuple[int, ...]:
    context = torch._guards.TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    if kind == "backward" or metadata is None:
        return ()
    return tuple(metadata.static_input_indices or ())
