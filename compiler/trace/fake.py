"""Traces a callable for an explicit target on fake tensors: no GPU, no weights, nothing run.

`trace_for` first runs a user's function that makes the module and its arguments, in a world where
the target's device seems to exist; `trace_call` starts from a module and arguments that are there.
Both hand every ATen graph to ``compile_graph``, exactly as `dynamo.compile_fx` would with a GPU.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves

from ..seam.target import Target
from .absent import absent_gpu
from .answers import answering_for
from .clock import Recorder
from .dynamo import Boxed, GraphCompiler, GraphInfo, compile_fx
from .errors import FunctionFailed, NotTraceable, TraceError
from .moving import FakeCopier, movable_modules, tensors_of
from .shim import ensure_device_guard, gpu_present, pretended_accelerator

Mode = Literal["infer", "train"]

#: Fake tensors never tell two GPUs apart, and no key holds an ordinal.
_DEVICE = torch.device("cuda", 0)


@dataclass(frozen=True, slots=True)
class TraceOutcome:
    """What a trace amounted to: graphs handed on, by kind, and the seconds of each phase.

    Phases: "function" (the user's), "dynamo", "aot", "compile_graph".
    """

    target: Target
    mode: Mode
    graphs: tuple[str, ...]
    phases: Mapping[str, float] = field(default_factory=dict)


def trace_for(
    function: Callable[[], Any],
    target: Target,
    *,
    compile_graph: GraphCompiler,
    name: str = "",
    fallback_random: bool = False,
    dynamic: bool = False,
    record: Recorder | None = None,
) -> TraceOutcome:
    """Run ``function`` without a GPU, then trace what it returns for ``target``.

    ``function`` returns ``(module_or_callable, args)`` or ``(module_or_callable, args, "train")``;
    args is a tuple or list of positional arguments, or a dict of keyword arguments. It may build
    on the CPU or on "cuda", and may call ``.cuda()``, ``.to()``, ``.bfloat16()``. Tensors that are
    on the CPU at the end move to the target's device, those of no dimensions excepted.
    With ``dynamic`` all sizes are symbolic, as with ``torch.compile(dynamic=True)``; without it
    those that `torch._dynamo.mark_dynamic` marks.
    Raises FunctionFailed, NotTraceable, ShimUnavailable; errors of ``compile_graph`` pass through.
    """
    label = name or getattr(function, "__qualname__", repr(function))
    with _world(target, dynamic) as mode:
        started = time.perf_counter()
        subject, args, kind = _checked(_called(function, label), label)
        seconds = time.perf_counter() - started
        outcome = _trace(
            subject,
            args,
            kind,
            target,
            mode,
            compile_graph,
            label,
            fallback_random,
            dynamic,
            record,
        )
    phases = {"function": seconds, **outcome.phases}
    return TraceOutcome(target, kind, outcome.graphs, phases)


def trace_call(
    subject: Callable[..., Any],
    args: Sequence[Any] | Mapping[str, Any],
    target: Target,
    mode: Mode = "infer",
    *,
    compile_graph: GraphCompiler,
    name: str = "",
    fallback_random: bool = False,
    dynamic: bool = False,
    record: Recorder | None = None,
) -> TraceOutcome:
    """Trace ``subject(*args)`` (or ``(**args)`` for a dict) for ``target``.

    ``subject`` is a module or a callable; its tensors and the arguments may be real or fake, on
    any device, and are not changed: the trace works on fake counterparts. Raises as `trace_for`.
    """
    label = name or getattr(subject, "__qualname__", type(subject).__name__)
    with _world(target, dynamic) as fake_mode:
        return _trace(
            subject,
            args,
            mode,
            target,
            fake_mode,
            compile_graph,
            label,
            fallback_random,
            dynamic,
            record,
        )


@contextlib.contextmanager
def _world(target: Target, dynamic: bool) -> Iterator[FakeTensorMode]:
    """Enter the mode in which the target's device seems to exist; restore everything on leaving."""
    ensure_device_guard()
    with contextlib.ExitStack() as stack:
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv() if dynamic else None)
        if not gpu_present():
            stack.enter_context(absent_gpu(target))
        stack.enter_context(movable_modules())
        stack.enter_context(answering_for(target.device_model))
        stack.enter_context(mode)
        yield mode


def _called(function: Callable[[], Any], label: str) -> Any:
    try:
        return function()
    except (TraceError, KeyboardInterrupt):
        raise
    except BaseException as error:  # its sys.exit() must not pass for our success
        cause = f"it raised {type(error).__name__}: {error}"
        remedy = "it runs on fake tensors, which have sizes and no values"
        raise FunctionFailed(label, cause, remedy) from error


def _checked(returned: Any, label: str) -> tuple[Callable[..., Any], Any, Mode]:
    remedy = 'return (module_or_callable, args) or (module_or_callable, args, "train")'
    match returned:
        case (subject, (tuple() | list() | dict()) as args):
            kind = "infer"
        case (subject, (tuple() | list() | dict()) as args, ("infer" | "train") as kind):
            pass
        case _:
            raise FunctionFailed(label, f"it returned {_described(returned)}", remedy)
    if not callable(subject):
        raise FunctionFailed(label, f"{_described(subject)} cannot be called", remedy)
    return subject, args, "train" if kind == "train" else "infer"


def _described(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(type(item).__name__ for item in value) + ")"
    return f"a {type(value).__name__}"


class _Phases:
    """Sums the seconds of each phase and passes them on."""

    def __init__(self, record: Recorder | None) -> None:
        self.seconds: dict[str, float] = {}
        self._record = record

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        if self._record is not None:
            self._record(name, seconds)


def _trace(
    subject: Callable[..., Any],
    args: Sequence[Any] | Mapping[str, Any],
    kind: Mode,
    target: Target,
    mode: FakeTensorMode,
    compile_graph: GraphCompiler,
    label: str,
    fallback_random: bool,
    dynamic: bool,
    record: Recorder | None,
) -> TraceOutcome:
    subject, args = _on_device(subject, args, mode)
    phases = _Phases(record)
    graphs: list[str] = []
    refusals: list[Exception] = []
    # Only gradients need it, and Dynamo must not see it: it would ask the accelerator for streams.
    pretending = pretended_accelerator if kind == "train" else contextlib.nullcontext

    def compile_one(gm: GraphModule, inputs: Sequence[Any], info: GraphInfo) -> Boxed:
        try:
            compile_graph(gm, inputs, info)
        except Exception as error:
            refusals.append(error)
            raise
        graphs.append(info.kind)
        return _imitation(gm, mode)

    def backend(gm: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        with pretending():
            return compile_fx(
                gm,
                inputs,
                compile_graph=compile_one,
                target=target,
                fallback_random=fallback_random,
                record=phases.add,
            )

    started = time.perf_counter()
    try:
        _run_compiled(subject, args, kind, backend, dynamic)
    except (Exception, SystemExit) as error:
        if refusals:  # Dynamo wraps what a backend raises; the caller wants it as it was
            raise refusals[0] from None
        raise NotTraceable(label, _cause(error)) from error
    elsewhere = sum(phases.seconds.values())
    phases.add("dynamo", time.perf_counter() - started - elsewhere)
    return TraceOutcome(target, kind, tuple(graphs), phases.seconds)


def _on_device(
    subject: Callable[..., Any], args: Sequence[Any] | Mapping[str, Any], mode: FakeTensorMode
) -> tuple[Callable[..., Any], Any]:
    copier = FakeCopier(mode, _DEVICE)
    if isinstance(subject, nn.Module) and all(
        isinstance(t, FakeTensor) and t.device.type == _DEVICE.type for t in tensors_of(subject)
    ):
        return subject, copier.value(args)
    return copier.leaf(subject), copier.value(args)


def _run_compiled(
    subject: Callable[..., Any],
    args: Sequence[Any] | Mapping[str, Any],
    kind: Mode,
    backend: Callable[..., Any],
    dynamic: bool,
) -> None:
    # Code objects that were compiled before, for another target or for real tensors, would count
    # towards Dynamo's limit of recompilations; so would ours afterwards.
    torch._dynamo.reset()
    try:
        with torch._dynamo.config.patch(suppress_errors=False), _backward_now():
            compiled = torch.compile(subject, backend=backend, dynamic=dynamic)
            with torch.enable_grad() if kind == "train" else torch.no_grad():
                compiled(**args) if isinstance(args, Mapping) else compiled(*args)
    finally:
        torch._dynamo.reset()


@contextlib.contextmanager
def _backward_now() -> Iterator[None]:
    """Have AOTAutograd compile a backward with its forward, and not hide that it failed.

    No backward is ever run: autograd would run it on a thread of its own, which dies badly if the
    process ends first.
    """
    config: Any = torch._functorch.config
    name = "force_non_lazy_backward_lowering"
    with config.patch({name: True}) if hasattr(config, name) else contextlib.nullcontext():
        yield


def _cause(error: BaseException) -> str:
    """Return the part of a tracer's message that says what is wrong, without its advice."""
    if isinstance(error, DataDependentOutputException):
        return f"between two graphs it needs the value of a tensor ({error.func})"
    if isinstance(error, SystemExit):
        return f"it ends the process (SystemExit: {error})"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines[:1] + lines if line.startswith("Explanation:")]
    return " ".join([*lines[:1], *told[:1]]) or type(error).__name__


def _imitation(gm: GraphModule, mode: FakeTensorMode) -> Boxed:
    """Return a callable with the graph's outputs, made from the recorded sizes and not computed."""
    (output,) = gm.graph.find_nodes(op="output")
    results = tree_leaves(output.args[0])
    positions = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}

    def made(result: Any, inputs: list[Any], number: Callable[[Any], int]) -> Any:
        if not isinstance(result, torch.fx.Node):
            return result
        if result in positions:
            return inputs[positions[result]]
        value = result.meta["val"]
        if isinstance(value, torch.SymInt):
            return number(value)
        if not isinstance(value, Tensor):
            return value
        sizes, strides = [
            [number(n) for n in numbers] for numbers in (value.size(), value.stride())
        ]
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)

    def run(inputs: list[Any]) -> list[Any]:
        with mode:
            number = _numbers(gm, inputs)
            outputs = [made(result, inputs, number) for result in results]
        inputs.clear()
        return outputs

    return run


def _numbers(gm: GraphModule, inputs: Sequence[Any]) -> Callable[[Any], int]:
    """Return what tells the value of a size, symbolic ones for the sizes of these inputs."""
    values: dict[Any, int] = {}

    def learn(size: Any, value: Any) -> None:
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
            values.setdefault(size.node.expr, int(value))

    for node, given in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
        traced = node.meta.get("val")
        learn(traced, given)
        if isinstance(traced, Tensor):
            for size, value in zip(traced.shape, given.shape, strict=True):
                learn(size, value)
    return lambda size: int(size.node.expr.xreplace(values)) if type(size) is not int else size
