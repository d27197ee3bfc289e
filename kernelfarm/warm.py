"""Compile ahead of time for GPUs that need not be there: `warm_start`, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from .compiler.report import Report
from .compiler.seam.target import Target
from .compose import Session, World, compose
from .errors import FunctionFailed, NothingTraced, said
from .knobs import resolve
from .loading import tail_of
from .notices import tell_uncached
from .tally import Tally

#: Called with a target's name and its tally; the context lasts as long as the target takes.
Follow = Callable[[str, Tally], AbstractContextManager[None]]
#: Traces something for one target and hands each of its graphs to ``compile_graph``; is called as
#: ``trace(target, compile_graph=..., name=..., fallback_random=..., record=...)``.
Trace = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class WarmReport:
    """What a warm start did, summed over its targets.

    ``graphs`` has total, compiled, from_store; ``kernels`` has distinct, compiled, from_store,
    failed, and distinct is the sum of the other three. ``compiled_by`` maps places to kernels,
    ``failures`` holds one message per failed kernel or graph, ``phases`` seconds by phase.
    """

    graphs: dict[str, int]
    kernels: dict[str, int]
    targets: tuple[str, ...]
    compiled_by: dict[str, int]
    seconds: float
    store: str
    failures: tuple[str, ...] = ()
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.kernels["failed"] and not self.failures

    def to_json(self) -> dict[str, Any]:
        """Return the report as the one object that ``--json`` prints."""
        report: dict[str, Any] = {
            "graphs": self.graphs,
            "kernels": self.kernels,
            "targets": list(self.targets),
            "compiled_by": self.compiled_by,
            "seconds": round(self.seconds, 3),
            "store": self.store,
        }
        if self.failures:
            report["failures"] = list(self.failures)
        return report


@dataclass(slots=True)
class _Sum:
    """Adds up what each target did."""

    graphs: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("total", "compiled", "from_store"), 0)
    )
    kernels: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("distinct", "compiled", "from_store", "failed"), 0)
    )
    failures: list[str] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)

    def add(self, report: Report, kernels: dict[str, int]) -> None:
        for mine, more in ((self.graphs, report.graphs), (self.kernels, kernels)):
            for name in mine:
                mine[name] += more[name]
        for phase, seconds in report.phases.items():
            self.phases[phase] = self.phases.get(phase, 0.0) + seconds


def warm_start(
    fn: Any,
    args: Sequence[Any],
    targets: Sequence[str],
    mode: Literal["infer", "train"] = "infer",
    *,
    dynamic: bool = False,
    follow: Follow | None = None,
    **settings: Any,
) -> WarmReport:
    """Compile ``fn(*args)`` for every target into the store, and return what was done.

    ``fn`` is a module or a callable and ``args`` its arguments, real or fake tensors on any
    device; nothing is run. ``mode`` is "infer" or "train" (forward and backward). With ``dynamic``
    one program serves all sizes, as with ``torch.compile(dynamic=True)``. ``settings`` are knobs by
    name. Raises UnknownTarget, KnobError, StoreUnusable and the tracer's TraceError;
    a kernel that fails is counted and named in the report instead.
    """
    from .compiler.trace.fake import trace_call

    def trace(target: Target, **hooks: Any) -> None:
        trace_call(fn, args, target, mode, dynamic=dynamic, **hooks)

    parsed = [Target.parse(text) for text in targets]
    name = getattr(fn, "__name__", type(fn).__name__)
    world = compose(resolve(settings), demand_store=True)
    try:
        return warm_targets(name, trace, parsed, world, follow=follow)
    finally:
        world.close()


def warm_function(
    name: str,
    function: Callable[[], Any],
    targets: Sequence[Target],
    world: World,
    *,
    dynamic: bool = False,
    follow: Follow | None = None,
) -> WarmReport:
    """Compile what ``function()`` returns, which runs once for each target on fake tensors.

    Raises FunctionFailed with the end of the function's own traceback, and TraceError.
    """
    from .compiler.trace import errors
    from .compiler.trace.fake import trace_for

    def trace(target: Target, **hooks: Any) -> None:
        try:
            trace_for(function, target, dynamic=dynamic, **hooks)
        except errors.FunctionFailed as error:
            if error.__cause__ is None:  # it returned something that cannot be traced
                raise
            raise FunctionFailed(name, tail_of(error.__cause__), error.remedy) from error

    return warm_targets(name, trace, targets, world, follow=follow)


def warm_targets(
    name: str,
    trace: Trace,
    targets: Sequence[Target],
    world: World,
    *,
    follow: Follow | None = None,
) -> WarmReport:
    """Trace and compile for each target in turn."""
    started = time.monotonic()
    distinct = tuple(dict.fromkeys(targets))
    total = _Sum()
    tallies = []
    for target in distinct:
        tally = Tally()
        tallies.append(tally)
        session = world.session(target, tally)
        with follow(str(target), tally) if follow else nullcontext():
            _warm_one(name, trace, world, session, total)
    world.writer.flush(world.knobs.wait_seconds)
    lost = sum(tally.graphs()["unpublished"] for tally in tallies)
    if lost:  # a warm start that leaves nothing behind has failed
        total.failures.append(
            f"{lost} of {total.graphs['total']} graphs were compiled and not kept in "
            f"{world.store_place()}: make room there, or name another directory with --store"
        )
    compiled = total.kernels["compiled"]
    return WarmReport(
        graphs=total.graphs,
        kernels=total.kernels,
        targets=tuple(str(target) for target in distinct),
        compiled_by={world.farm_place(): compiled} if compiled else {},
        seconds=time.monotonic() - started,
        store=world.store_place(),
        failures=tuple(dict.fromkeys(total.failures)),
        phases=total.phases,
    )


def _warm_one(name: str, trace: Trace, world: World, session: Session, total: _Sum) -> None:
    # Here, because these import torch, which nobody should wait for to read a usage message.
    from .compiler.pipeline import CompileContext, compile_graph, run_eagerly, settle

    report = Report()
    context = CompileContext(
        target=session.target,
        toolchain=session.toolchain,
        service=session.service,
        graphs=session.graphs,
        runtime=None,
        knobs=world.knobs,
        report=report,
    )

    def compile_one(gm: Any, inputs: Sequence[Any], info: Any) -> Any:
        try:
            return compile_graph(gm, inputs, context)
        except Exception as error:
            # One graph that cannot be compiled must not keep the others from it: trace on.
            total.failures.append(said(error))
            return run_eagerly(gm)

    try:
        trace(
            session.target,
            compile_graph=compile_one,
            name=name,
            fallback_random=world.knobs.fallback_random,
            record=report.add_phase,
        )
    finally:  # what was traced before an error is worth keeping
        total.failures += [said(error) for error in settle(context)]
        session.service.drain(world.knobs.wait_seconds)
    tell_uncached(report, world.notices)
    if not report.graphs["total"] and not total.failures:
        raise NothingTraced(name)
    total.add(report, session.tally.kernels())
