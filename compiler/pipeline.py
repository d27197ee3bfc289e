"""The compiler on one page: from an ATen graph to a callable.

    graph key -> store?  hit: decode, load                                        (warm)
    miss: lower -> fuse -> for each group: kernel (submitted at once), host lines
          -> plan -> wait for the kernels -> load -> publish the graph            (cold)

From lower to plan is generate.py, which a hit does not import. A kernel is submitted the moment
its text is final, so the farm compiles the first ones while the later ones are still being
generated. Loading is the only place that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule

from . import host
from .admission import admit
from .context import CompileContext
from .errors import GraphError
from .graph_key import Unkeyable, compiler_sources_digest, graph_key_parts
from .host_codec import encode
from .host_errors import SizesOutOfRange
from .runtime.contract import LoadableKernel
from .runtime.loader import load_program
from .service import Compiled, KeyParts
from .stored import open_stored
from .symbols import Symbols

if TYPE_CHECKING:
    from .kernel import Kernel

#: So many programs may be stored for one graph, for sizes that break each other's guards.
_MAX_VARIANTS = 8
#: Takes one list of inputs, empties it, returns a list of outputs.
Boxed = Callable[[list[Any]], list[Any]]


def compile_graph(gm: GraphModule, example_inputs: Sequence[Any], ctx: CompileContext) -> Boxed:
    """Compile one functional ATen graph; the result takes a list of inputs and empties it.

    A graph that cannot be keyed is compiled and not stored; one with sizes that depend on data runs
    op by op. For symbolic sizes what is stored under a graph's key is a row of variants, each with
    the guards that it needs: the first one whose guards hold for the sizes at hand is a hit.
    Raises CompilerError, the kernels' own errors and HostProgramError; nothing is half published.
    """
    symbols = Symbols(gm)
    if symbols.refusal:
        ctx.report.graph("compiled")
        ctx.report.not_cached(f"{symbols.refusal}; it runs op by op")
        return run_eagerly(gm)
    admit(gm, ctx.device_type)
    parts = _key(gm, example_inputs, symbols, ctx)
    if parts is not None:
        found, parts = _stored(gm, parts, symbols, ctx)
        if found is not None:
            ctx.report.graph("from_store")
            return found
    ctx.report.graph("compiled")
    from .generate import generate  # half of our import seconds, and a hit does without it

    program, kernels, futures = generate(gm, ctx, symbols)
    call = _finish(gm, program, kernels, futures, parts, ctx)
    return _guarded(call, gm, program, symbols)


def _guarded(call: Boxed, gm: GraphModule, program: host.HostProgram, symbols: Symbols) -> Boxed:
    """The callable, where the tracer guards what the program assumes or runs op by op instead."""
    if symbols.install(program.guards):
        return call

    def run(inputs: list[Any]) -> list[Any]:
        try:
            return call(inputs)
        except SizesOutOfRange:  # raised before the inputs were touched
            return run_eagerly(gm)(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def run_eagerly(gm: GraphModule) -> Boxed:
    """A callable that runs a graph op by op."""

    def run(inputs: list[Any]) -> list[Any]:
        args = tuple(inputs)
        inputs.clear()
        return list(gm(*args))

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _key(
    gm: GraphModule, inputs: Sequence[Any], symbols: Symbols, ctx: CompileContext
) -> KeyParts | None:
    """The graph's key parts; None, with the reason in the report, if it cannot be keyed exactly."""
    if ctx.graphs is None or ctx.interpreted:
        return None
    with ctx.report.phase("graph_key"):
        try:
            return graph_key_parts(
                gm,
                inputs,
                knobs=ctx.knobs.key_parts(),
                target=ctx.target,
                toolchain=ctx.toolchain,
                sources_digest=compiler_sources_digest(),
                symbols=symbols,
            )
        except Unkeyable as error:
            ctx.report.not_cached(str(error))
            return None


def _stored(
    gm: GraphModule, parts: KeyParts, symbols: Symbols, ctx: CompileContext
) -> tuple[Boxed | None, KeyParts]:
    """The graph from the store, loaded, and its key; for a miss None, and the key to save under.

    A bad record is a miss, never an error.
    """
    assert ctx.graphs is not None
    for number in range(_MAX_VARIANTS):
        key = (*parts, ("graph.variant", str(number).encode()))
        with ctx.report.phase("graph_load"):
            found = ctx.graphs.load(key)
            if found is None:
                return None, key
            try:
                program, artifacts = open_stored(found, gm, symbols)
            except Exception as error:  # whatever is planted in a record, it is a miss
                ctx.graphs.refuse(key)
                ctx.report.refuse(str(error))
                return None, key
        if not symbols.holds(program.guards):
            continue
        if ctx.runtime is None:
            symbols.install(program.guards)
            return run_eagerly(gm), key
        with ctx.report.phase("load"):
            try:
                call = load_program(program, artifacts, ctx.runtime)
            except Exception as error:  # e.g. a driver that is too old for a stored binary
                ctx.report.refuse(str(error))
                return None, key
        return _guarded(call, gm, program, symbols), key
    return None, key  # as many variants as a graph may have: the last one's place is taken


def _finish(
    gm: GraphModule,
    program: host.HostProgram,
    kernels: list[Kernel],
    futures: list[Future[Compiled]],
    parts: KeyParts | None,
    ctx: CompileContext,
) -> Boxed:
    """Resolve the kernels, load the program and publish it; without a runtime, later."""
    if ctx.runtime is None:

        def publish() -> None:
            compiled = _resolve(kernels, futures, ctx)
            _save(_keyed(program, compiled), parts, ctx)

        ctx.deferred.append(publish)
        return run_eagerly(gm)
    if ctx.interpreted:
        loadables: list[LoadableKernel] = [k.request for k in kernels]
        with ctx.report.phase("load"):
            return load_program(program, loadables, ctx.runtime)
    compiled = _resolve(kernels, futures, ctx)
    program = _keyed(program, compiled)
    with ctx.report.phase("load"):
        call = load_program(program, [c.artifact for c in compiled], ctx.runtime)
    _save(program, parts, ctx)
    return call


def settle(ctx: CompileContext) -> list[Exception]:
    """Publish the graphs of a trace that loads nothing; returns what went wrong, graph by graph."""
    failures: list[Exception] = []
    while ctx.deferred:
        try:
            ctx.deferred.pop(0)()
        except Exception as error:
            failures.append(error)  # one kernel that fails must not keep other graphs unpublished
    return failures


def _resolve(
    kernels: list[Kernel], futures: list[Future[Compiled]], ctx: CompileContext
) -> list[Compiled]:
    """Wait for all kernels of a graph, in order of first use."""
    with ctx.report.phase("wait"):
        pending = [f for f in futures if not f.done()]
        if pending:
            ctx.service.wanted(pending)
            done, late = wait(pending, ctx.knobs.wait_seconds, FIRST_EXCEPTION)
            failed = any(f.exception() is not None for f in done)
            if late and not failed:
                pairs = zip(kernels, futures, strict=True)
                names = ", ".join(k.name for k, f in pairs if f in late)
                raise GraphError(
                    f"kernels still compiling after {ctx.knobs.wait_seconds:.0f} s: {names}; "
                    "raise KERNELFARM_WAIT_SECONDS or look at the farm's log"
                )
        for future in futures:
            if future.done() and future.exception() is not None:
                raise future.exception()  # type: ignore[misc]
        return [future.result() for future in futures]


def _keyed(program: host.HostProgram, compiled: Sequence[Compiled]) -> host.HostProgram:
    """The program with the keys of its kernels filled in."""
    kernels = tuple(replace(k, key=c.key) for k, c in zip(program.kernels, compiled, strict=True))
    return replace(program, kernels=kernels)


def _save(program: host.HostProgram, parts: KeyParts | None, ctx: CompileContext) -> None:
    if parts is None or ctx.graphs is None:
        return
    with ctx.report.phase("save"):
        ctx.graphs.save(parts, encode(program), [k.key for k in program.kernels])
