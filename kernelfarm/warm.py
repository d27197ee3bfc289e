"""Compile ahead of time for GPUs that need not be there: `warm_start`, and `Warming` of many."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from .compiler.report import Report
from .compiler.seam.target import Target
from .compose import Session, World, compose
from .errors import FunctionFailed, NothingTraced, said
from .knobs import resolve
from .loading import tail_of
from .notices import tell_uncached
from .tally import Tally
from .warm_report import GRAPHS, KERNELS, FunctionReport, WarmReport

#: Called with what is warmed and its tally; the context lasts as long as that takes.
Follow = Callable[[str, Tally], AbstractContextManager[None]]
#: Traces something for one target and hands each of its graphs to ``compile_graph``; is called as
#: ``trace(target, compile_graph=..., name=..., fallback_random=..., record=...)``.
Trace = Callable[..., Any]


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
        warming = Warming(parsed, world, follow=follow)
        warming.trace(name, trace)
        return warming.report()
    finally:
        world.close()


class Warming:
    """Warms one function after another for the same targets, and sums up what was done.

    ``started`` is the ``time.monotonic()`` from which the report counts its seconds.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        world: World,
        *,
        follow: Follow | None = None,
        started: float | None = None,
    ) -> None:
        self._targets = tuple(dict.fromkeys(targets))
        self._world = world
        self._follow = follow
        self._started = time.monotonic() if started is None else started
        self._functions: list[FunctionReport] = []
        self._tallies: list[Tally] = []
        self._report = Report()  # of all functions, for its phases

    def function(self, name: str, function: Callable[[], Any], *, dynamic: bool = False) -> None:
        """Compile what ``function()`` returns, which runs once for each target on fake tensors.

        With ``dynamic`` one program serves all sizes, not these alone.
        Raises FunctionFailed with the end of the function's own traceback, NothingTraced and
        TraceError; what was compiled until then is kept and counted.
        """
        from .compiler.trace import errors
        from .compiler.trace.fake import trace_for

        def trace(target: Target, **hooks: Any) -> None:
            try:
                outcome = trace_for(function, target, dynamic=dynamic, **hooks)
            except errors.FunctionFailed as error:
                if error.__cause__ is None:  # it returned something that cannot be traced
                    raise
                raise FunctionFailed(name, tail_of(error.__cause__), error.remedy) from error
            self.spent("function", outcome.phases["function"])

        self.trace(name, trace)

    def trace(self, name: str, trace: Trace) -> None:
        """Trace something and compile its graphs, for each target in turn; raises what it does."""
        total = _Sum(name)
        try:
            for target in self._targets:
                tally = Tally()
                session = self._world.session(target, tally)
                self._tallies.append(tally)
                label = f"{name} {target}"
                with self._follow(label, tally) if self._follow else nullcontext():
                    self._one(trace, session, total)
        except Exception as error:
            total.error = said(error)
            raise
        finally:
            self._functions.append(total.report())

    def refused(self, name: str, error: BaseException) -> None:
        """Note a function that could not even be found."""
        total = _Sum(name)
        total.error = said(error)
        self._functions.append(total.report())

    def spent(self, phase: str, seconds: float) -> None:
        """Add to what a phase took."""
        self._report.add_phase(phase, seconds)

    def report(self) -> WarmReport:
        """Wait until everything is written, and return what all functions amount to."""
        self._world.writer.flush(self._world.knobs.wait_seconds)
        graphs = dict.fromkeys(GRAPHS, 0)
        failures: list[str] = []
        for function in self._functions:
            for count in GRAPHS:
                graphs[count] += function.graphs[count]
            failures += function.failures
        everything = Tally()
        for tally in self._tallies:  # the first of equal kernels says where it came from
            everything.absorb(tally)
        kernels = everything.kernels()
        lost = everything.graphs()["unpublished"]
        if lost:  # a warm start that leaves nothing behind has failed
            failures.append(
                f"{lost} of {graphs['total']} graphs were compiled and not kept in "
                f"{self._world.store_place()}: make room there, or name another directory with "
                "--store"
            )
        compiled = kernels["compiled"]
        return WarmReport(
            graphs=graphs,
            kernels=kernels,
            targets=tuple(str(target) for target in self._targets),
            compiled_by={self._world.farm_place(): compiled} if compiled else {},
            seconds=time.monotonic() - self._started,
            store=self._world.store_place(),
            failures=tuple(dict.fromkeys(failures)),
            phases=dict(self._report.phases),
            functions=tuple(self._functions),
        )

    def _one(self, trace: Trace, session: Session, total: _Sum) -> None:
        # Here, because these import torch, which nobody should wait for to read a usage message.
        from .compiler.context import CompileContext
        from .compiler.pipeline import compile_graph, run_eagerly, settle

        report = Report()
        context = CompileContext(
            target=session.target,
            toolchain=session.toolchain,
            service=session.service,
            graphs=session.graphs,
            runtime=None,
            knobs=self._world.knobs,
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
                name=total.name,
                fallback_random=self._world.knobs.fallback_random,
                record=self.spent,
            )
        finally:  # what was traced before an error is worth keeping
            total.failures += [said(error) for error in settle(context)]
            session.service.drain(self._world.knobs.wait_seconds)
            total.add(report, session.tally.kernels())
            for phase, seconds in report.phases.items():
                self.spent(phase, seconds)
        tell_uncached(report, self._world.notices)
        if not report.graphs["total"] and not total.failures:
            raise NothingTraced(total.name)


class _Sum:
    """Adds up what one function's targets did."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.graphs = dict.fromkeys(GRAPHS, 0)
        self.kernels = dict.fromkeys(KERNELS, 0)
        self.failures: list[str] = []
        self.error = ""
        self._started = time.monotonic()

    def add(self, report: Report, kernels: dict[str, int]) -> None:
        """Add what one target did."""
        for mine, more in ((self.graphs, report.graphs), (self.kernels, kernels)):
            for name in mine:
                mine[name] += more[name]

    def report(self) -> FunctionReport:
        """Return the sum."""
        return FunctionReport(
            function=self.name,
            graphs=self.graphs,
            kernels=self.kernels,
            seconds=time.monotonic() - self._started,
            failures=tuple(dict.fromkeys(self.failures)),
            error=self.error,
        )
