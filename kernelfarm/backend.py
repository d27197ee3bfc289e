"""What ``torch.compile(model, backend="kernelfarm")`` calls.

torch imports this module when the backend is looked up, which is before Dynamo traces anything;
the import therefore starts opening the store and starting the farm on a thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._dynamo.exc import RestartAnalysis
from torch.fx import GraphModule

from .compiler.context import CompileContext
from .compiler.pipeline import Boxed, compile_graph, run_eagerly
from .compiler.report import Report
from .compiler.runtime.contract import Runtime
from .compiler.seam.target import Target
from .compiler.trace.dynamo import GraphInfo, compile_fx
from .compose import Session, shared_world
from .errors import NoTarget, said
from .knobs import Knobs, resolve
from .notices import Notices, tell_uncached
from .tally import Tally

#: Where torch.compile speaks to people; also counts what fell back to eager and why.
NOTICES = Notices()
#: What every compile of this process did, and its kernels.
REPORT = Report()
TALLY = Tally()


def kernelfarm(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile Dynamo's graph and return the callable that Dynamo wants.

    ``options`` are knobs by name (`kernelfarm.knobs`). A failure of ours becomes one notice, a
    counter and the graph run eagerly; with ``strict`` it is raised. ``mode`` is torch's and
    selects nothing here. Raises KnobError for a bad option.
    """
    knobs = resolve(options, notice=NOTICES.say)
    try:
        if not knobs.interpret and not _uses_gpu(gm, example_inputs):
            NOTICES.tell(
                "cpu_graph",
                "kernelfarm: a graph without a GPU tensor is run eagerly; it generates GPU code",
            )
            return gm.forward
        target = live_target(knobs)
        session = shared_world(knobs).session(target, TALLY)
        context = _context(knobs, session)
        return compile_fx(
            gm,
            example_inputs,
            compile_graph=_guarded(context, knobs),
            target=target,
            fallback_random=knobs.fallback_random,
            record=REPORT.add_phase,
        )
    except RestartAnalysis:
        raise  # Dynamo's own: it traces anew, with one number less that is symbolic
    except Exception as error:
        if knobs.strict:
            raise
        _fell_back(error)
        return gm.forward


def live_target(knobs: Knobs) -> Target:
    """Return the target to compile for: the knob's, else the current GPU's.

    Raises UnknownTarget for a GPU that the table does not know, NoTarget where there is none.
    """
    if knobs.target:
        return Target.parse(knobs.target)
    if knobs.interpret:
        return Target.parse("h200")  # whose heuristics are tried out on CPU tensors
    if not torch.cuda.is_available():
        raise NoTarget
    return Target.of_device_name(torch.cuda.get_device_name(), torch.cuda.get_device_capability())


def _context(knobs: Knobs, session: Session) -> CompileContext:
    return CompileContext(
        target=session.target,
        toolchain=session.toolchain,
        service=session.service,
        graphs=session.graphs,
        runtime=_runtime(knobs.interpret),
        knobs=knobs,
        report=REPORT,
    )


@cache
def _runtime(interpret: bool) -> Runtime:
    if interpret:
        from .compiler.runtime.interpreter import InterpreterRuntime

        return InterpreterRuntime()
    from .compiler.runtime.cuda import CudaRuntime

    return CudaRuntime()


def _guarded(
    context: CompileContext, knobs: Knobs
) -> Callable[[GraphModule, Sequence[Any], GraphInfo], Boxed]:
    """Compile one AOT graph; what cannot be compiled runs eagerly, op by op.

    Guarded here and not only around the whole, because AOTAutograd compiles a backward graph
    when the user's program calls it, where an exception of ours would end the job.
    """

    def compile_one(gm: GraphModule, inputs: Sequence[Any], info: GraphInfo) -> Boxed:
        try:
            return compile_graph(gm, inputs, context)
        except Exception as error:
            if knobs.strict:
                raise
            _fell_back(error)
            return run_eagerly(gm)
        finally:
            tell_uncached(context.report, NOTICES)

    return compile_one


def _fell_back(error: Exception) -> None:
    REPORT.runs_eagerly(said(error))
    NOTICES.tell(
        f"eager_{type(error).__name__}",
        f"kernelfarm: a graph could not be compiled and is run eagerly: {said(error)} "
        "(set KERNELFARM_STRICT=1 to raise this with its traceback)",
    )


def _uses_gpu(gm: GraphModule, inputs: Sequence[Any]) -> bool:
    """Say whether any input, parameter, buffer or traced value of the graph is on a GPU."""
    tensors: list[Any] = [*inputs, *gm.parameters(), *gm.buffers()]
    tensors += [node.meta.get("example_value") for node in gm.graph.nodes]
    return any(isinstance(t, torch.Tensor) and t.device.type == "cuda" for t in tensors)


def _start_early() -> threading.Thread:
    """Open the store and start the farm on a thread, so that they are ready behind Dynamo."""

    def start() -> None:
        # A failure here is met again, and told, by the first compile.
        with contextlib.suppress(Exception):
            knobs = resolve()
            world = shared_world(knobs)
            # Never wake CUDA up here: the user's program may be about to fork.
            if knobs.target or torch.cuda.is_initialized():
                world.session(live_target(knobs))

    thread = threading.Thread(target=start, name="kernelfarm-start", daemon=True)
    thread.start()
    return thread


def _after_fork() -> None:
    """In a forked child: another thread of the parent may have held one of these locks."""
    global NOTICES, REPORT, TALLY
    NOTICES, REPORT, TALLY = Notices(), Report(), Tally()


os.register_at_fork(after_in_child=_after_fork)
_EARLY = _start_early()
