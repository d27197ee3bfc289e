"""Kernels are submitted while code is generated; loading is the only place that waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from hashlib import sha256
from typing import Any

import pytest
import torch
from body_eval import trace
from generated import context, example

from kernelfarm.compiler import pipeline
from kernelfarm.compiler.assemble import Assembler
from kernelfarm.compiler.errors import GraphError
from kernelfarm.compiler.host_codec import decode, encode
from kernelfarm.compiler.pipeline import compile_graph, settle
from kernelfarm.compiler.seam.artifact import Artifact, KernelMetadata
from kernelfarm.compiler.service import Compiled, KeyParts, Priority, StoredGraph


class BrokenKernelError(Exception):
    """What a service's future raises for a kernel that does not compile."""


class Service:
    """Settles its futures when told to; remembers when each request came."""

    def __init__(self, events: list[str], fails: str | None = None) -> None:
        self.events = events
        self.fails = fails
        self.requests: list[Any] = []
        self.waiting: list[tuple[Any, Future[Compiled]]] = []
        self.hurry: Callable[[], None] = self.settle

    def submit(self, request: Any, priority: Priority = Priority.EMITTED) -> Future[Compiled]:
        """Queue a request."""
        self.events.append(f"submit {request.entry}")
        self.requests.append(request)
        future: Future[Compiled] = Future()
        self.waiting.append((request, future))
        return future

    def wanted(self, futures: Sequence[Future[Compiled]]) -> None:
        """A load is about to block: this is when the jobs end."""
        self.events.append("wanted")
        self.hurry()

    def settle(self) -> None:
        """End every job."""
        while self.waiting:
            request, future = self.waiting.pop(0)
            if self.fails is not None and self.fails in request.entry:
                future.set_exception(BrokenKernelError(f"{request.entry} does not compile"))
            else:
                future.set_result(Compiled(_key(request), _artifact(request), "compiled"))


def _key(request: Any) -> bytes:
    return sha256(request.entry.encode()).digest()


def _artifact(request: Any) -> Artifact:
    metadata = KernelMetadata(request.entry)
    return Artifact(request.entry.encode(), "cubin", metadata, registers=16, spills=0, min_driver=0)


class Graphs:
    """A graph store in memory."""

    def __init__(self) -> None:
        self.saved: dict[KeyParts, tuple[bytes, list[bytes]]] = {}
        self.found: StoredGraph | None = None

    def load(self, parts: KeyParts) -> StoredGraph | None:
        """What a test put there."""
        return self.found

    def save(self, parts: KeyParts, program: bytes, kernels: Sequence[bytes]) -> None:
        """Remember a graph."""
        self.saved[parts] = (program, list(kernels))

    def refuse(self, parts: KeyParts) -> None:
        """Forget what a test put there."""
        self.found = None


class Runtime:
    """Stands for a GPU: the loader below never asks it for anything."""

    name = "fake"


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened, in order: submissions, the end of code generation, loads."""
    log: list[str] = []
    finish = Assembler.finish

    def finished(self: Assembler, kernels: Any, guards: Any) -> Any:
        log.append("program")
        return finish(self, kernels, guards)

    def load(program: Any, kernels: Any, runtime: Any) -> Callable[[list[Any]], list[Any]]:
        log.append("load")
        return lambda inputs: log.append("run") or []  # type: ignore[func-returns-value]

    monkeypatch.setattr(Assembler, "finish", finished)
    monkeypatch.setattr(pipeline, "load_program", load)
    monkeypatch.setattr(pipeline, "graph_key_parts", lambda *a, **k: (("graph", b"one"),))
    return log


def three(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Three kernels around two products."""
    return torch.tanh(torch.softmax(x.sin() @ w, -1) @ w)


INPUTS = (example(8, 8), example(8, 8))


def _compile(fn: Any, service: Any, graphs: Graphs | None = None, runtime: Any = None) -> Any:
    ctx = context(service, graphs=graphs, runtime=Runtime() if runtime is None else runtime)
    return compile_graph(trace(fn, INPUTS), INPUTS, ctx), ctx


def test_every_kernel_is_submitted_before_the_program_is_complete(events: list[str]) -> None:
    """Jobs start during code generation, one wait follows, and running submits nothing."""
    service = Service(events)
    call, _ = _compile(three, service)
    kinds = [e.split()[0] for e in events]
    assert kinds == ["submit", "submit", "submit", "program", "wanted", "load"]
    call([])
    assert len(service.requests) == 3 and events[-1] == "run"


def test_equal_kernels_are_one_job(events: list[str]) -> None:
    """Two launches of one text are submitted once."""
    service = Service(events)
    _compile(lambda x, w: ((x @ w).sin() @ w).sin(), service)
    assert len(service.requests) == 1


def test_jobs_run_while_code_is_generated(events: list[str]) -> None:
    """The first job may end before the last kernel is printed: nothing waits for it in between."""
    service = Service(events)
    started = threading.Event()
    submit = service.submit

    def overlapping(request: Any, priority: Priority = Priority.EMITTED) -> Future[Compiled]:
        future = submit(request, priority)
        worker = threading.Thread(target=service.settle)
        worker.start()
        worker.join()  # the job has ended while its graph is still being generated
        assert "program" not in events
        started.set()
        return future

    service.submit = overlapping  # type: ignore[method-assign]
    _compile(three, service)
    assert started.is_set()
    assert "wanted" not in events, "no job was left to wait for"


def test_a_failing_kernel_surfaces_at_the_wait(events: list[str]) -> None:
    """Code generation goes on, the error names the kernel, and nothing is published."""
    service, graphs = Service(events, fails="tanh"), Graphs()
    with pytest.raises(BrokenKernelError, match="kf_poi_tanh"):
        _compile(three, service, graphs)
    assert "program" in events and "load" not in events
    assert len(service.requests) == 3
    assert graphs.saved == {}


def test_a_kernel_that_never_ends_is_named(events: list[str]) -> None:
    """The wait has a limit, and its error says which kernels were late."""
    service, graphs = Service(events), Graphs()
    service.hurry = lambda: None
    ctx = context(service, graphs=graphs, runtime=Runtime())

    class Impatient:
        wait_seconds = 0.01

        def key_parts(self) -> tuple[tuple[str, bytes], ...]:
            return ()

    ctx.knobs = Impatient()
    with pytest.raises(GraphError, match="kf_poi_tanh"):
        compile_graph(trace(three, INPUTS), INPUTS, ctx)
    assert graphs.saved == {}


def test_a_stored_graph_needs_no_job(events: list[str]) -> None:
    """A second compile of a saved graph submits nothing and generates nothing."""
    service, graphs = Service(events), Graphs()
    _compile(three, service, graphs)
    ((program, keys),) = graphs.saved.values()
    assert keys == [_key(r) for r in service.requests]
    graphs.found = StoredGraph(
        program, {k: _artifact(r) for k, r in zip(keys, service.requests, strict=True)}
    )
    events.clear()
    again = Service(events)
    _, ctx = _compile(three, again, graphs)
    assert events == ["load"]
    assert ctx.report.graphs["from_store"] == 1


def test_a_stored_graph_without_a_kernel_is_compiled_again(events: list[str]) -> None:
    """A record that names an absent kernel, or is no program, is a miss."""
    service, graphs = Service(events), Graphs()
    _compile(three, service, graphs)
    ((program, _),) = graphs.saved.values()
    for broken in (StoredGraph(program, {}), StoredGraph(b"nonsense", {})):
        graphs.found = broken
        again = Service(events)
        _, ctx = _compile(three, again, graphs)
        assert len(again.requests) == 3
        assert ctx.report.graphs["compiled"] == 1


def test_a_trace_without_a_gpu_publishes_later(events: list[str]) -> None:
    """Without a runtime nothing waits or loads until the trace has ended."""
    service, graphs = Service(events), Graphs()
    ctx = context(service, graphs=graphs)
    compile_graph(trace(three, INPUTS), INPUTS, ctx)
    assert graphs.saved == {} and "wanted" not in events
    assert settle(ctx) == []
    assert len(graphs.saved) == 1 and "load" not in events
    ((program, keys),) = graphs.saved.values()
    assert len(keys) == 3 and isinstance(program, bytes)


def test_one_failing_graph_of_a_trace_keeps_no_other_back(events: list[str]) -> None:
    """Graphs are published one by one; failures are returned."""
    service, graphs = Service(events, fails="tanh"), Graphs()
    ctx = context(service, graphs=graphs)
    compile_graph(trace(three, INPUTS), INPUTS, ctx)
    compile_graph(trace(lambda x, w: x.sin() @ w, INPUTS), INPUTS, ctx)
    (failure,) = settle(ctx)
    assert isinstance(failure, BrokenKernelError)
    assert len(graphs.saved) == 1


def test_the_saved_program_is_the_loaded_one(events: list[str]) -> None:
    """What is published has every kernel's key filled in."""
    service, graphs = Service(events), Graphs()
    _compile(three, service, graphs)
    ((program, keys),) = graphs.saved.values()
    found = decode(program)
    assert [k.key for k in found.kernels] == keys
    assert encode(found) == program


@pytest.mark.parametrize("spoil", ["program", "kernel", "load"])
def test_a_stored_graph_that_is_refused_is_compiled_and_saved_again(
    events: list[str], monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    """Whatever is wrong with a stored graph, the caller gets a compiled one and one reason."""
    service, graphs = Service(events), Graphs()
    _compile(three, service, graphs)
    ((program, keys),) = graphs.saved.values()
    artifacts = {k: _artifact(r) for k, r in zip(keys, service.requests, strict=True)}
    if spoil == "program":
        program = program[:-1]
    elif spoil == "kernel":
        artifacts.popitem()
    else:
        working = pipeline.load_program

        def load_once(*args: Any) -> Any:
            monkeypatch.setattr(pipeline, "load_program", working)
            raise RuntimeError("not what it says it is")

        monkeypatch.setattr(pipeline, "load_program", load_once)
    graphs.found = StoredGraph(program, artifacts)
    graphs.saved.clear()
    _, ctx = _compile(three, Service(events), graphs)
    assert ctx.report.graphs["compiled"] == 1
    assert len(ctx.report.refused) == 1
    assert len(graphs.saved) == 1
