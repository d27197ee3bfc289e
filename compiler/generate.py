"""The miss: from an ATen graph to a planned host program, its kernels submitted on the way.

Nothing of this is imported for a graph that is stored: a warm start does without it.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from functools import lru_cache

from torch.fx import GraphModule

from . import host
from .assemble import Assembler, assemble_group
from .context import CompileContext
from .fuse import fuse, live_after, split_groups
from .host_plan import plan
from .kernel import Kernel, KernelBuilder
from .lower.context import Lowering
from .prologue import join_prologues
from .seam.front import devicelib_digest
from .seam.options import Options, backend_options
from .seam.target import Target
from .service import Compiled, Priority
from .symbols import Symbols
from .turns import no_collection, short_turns


def generate(
    gm: GraphModule, ctx: CompileContext, symbols: Symbols | None = None
) -> tuple[host.HostProgram, list[Kernel], list[Future[Compiled]]]:
    """Lower, fuse and print a graph; returns its planned program and one future for each kernel.

    With an interpreter as the runtime nothing is submitted and the list of futures is empty.
    """
    with no_collection():
        return _generate(gm, ctx, symbols)


def _generate(
    gm: GraphModule, ctx: CompileContext, symbols: Symbols | None
) -> tuple[host.HostProgram, list[Kernel], list[Future[Compiled]]]:
    report = ctx.report
    with report.phase("lowering"):
        lowering = Lowering(gm, ctx.device_type, symbols)
        graph = lowering.run()
        report.count_operators("lowered", lowering.lowered_ops)
        report.count_operators("fallback", lowering.fallback_ops)
    with report.phase("scheduling"):
        fill = 2 * ctx.target.device_model.multiprocessors
        groups = join_prologues(fuse(graph, fill), graph)
        groups = split_groups(groups, graph, fill)
        live = live_after(groups, graph.outputs)
    futures: list[Future[Compiled]] = []

    def submit(kernel: Kernel) -> None:
        report.kernel_emitted(kernel.name)
        if not ctx.interpreted:
            with report.phase("submit"):
                futures.append(ctx.service.submit(kernel.request, Priority.EMITTED))

    start = time.perf_counter()
    submitting = report.phases.get("submit", 0.0)
    builder = KernelBuilder(
        graph.buffers,
        ctx.target,
        ctx.toolchain,
        devicelib_digest(),
        lambda warps: _options(ctx.target, warps),
        submit,
        lowering.symbols,
    )
    assembler = Assembler(graph, groups)
    with short_turns():
        for group in groups:
            launch = None if group.extern is not None else builder.launch(group, live[group.number])
            assemble_group(assembler, group, launch, builder.kernels, live[group.number])
    spent = time.perf_counter() - start - (report.phases.get("submit", 0.0) - submitting)
    report.add_phase("codegen", spent)
    with report.phase("host"):
        program = plan(assembler.finish(builder.kernels, lowering.symbols.guards()))
    return program, builder.kernels, futures


@lru_cache(maxsize=64)
def _options(target: Target, num_warps: int) -> Options:
    return backend_options(target, num_warps=num_warps, num_stages=1)
