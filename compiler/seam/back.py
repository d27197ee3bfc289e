"""The back half: TTIR becomes a binary. No GPU, no driver, no torch, none of the user's Python.

Meant for a forked child of a torch-free, single-threaded zygote that was started with
`environment.codegen_environment`; it also works in any process as the local fallback.

The same request gives the same bytes, with one known exception: with ``num_ctas=2`` Triton 3.6
made two different, both valid cubins from one TTIR. Whoever audits keys by recompiling must
therefore recompile twice before accusing a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .artifact import Artifact, KernelMetadata
from .binary import MalformedBinary, inspect_binary
from .canonical import Plain
from .environment import LINE_INFO
from .errors import BackHalfError, SeamError, ToolchainMismatch
from .options import backend_of, rebuild_options
from .request import CompileRequest
from .sandbox import Sandbox, sandbox
from .target import Target
from .toolchain import current_toolchain
from .versions import instrumented, pipeline_stages, pristine, ptxas_release

#: Told each stage ("parse", "ttgir", "llir", "ptx", "cubin", "validate") before it begins, so that
#: a crash is known by the stage it happened in.
OnStage = Callable[[str], None]

#: The CUDA release, as ``cuDriverGetVersion`` writes it, whose driver first knew an architecture
#: (CUDA release notes; a binary of an older toolkit cannot have been made for it either).
_FIRST_RELEASE = {
    "75": 10000,
    "80": 11000,
    "86": 11010,
    "87": 11040,
    "89": 11080,
    "90": 11080,
    "100": 12080,
    "103": 12090,
    "110": 13000,
    "120": 12080,
    "121": 12090,
}


def back_half(
    request: CompileRequest, on_stage: OnStage | None = None, *, keep_ptx: bool = False
) -> Artifact:
    """Compile one request and check the binary before returning it.

    Raises BackHalfError with the failing stage and the compiler's output, ToolchainMismatch where
    this process has another compiler than the request names, LibraryMissing or OptionsError where
    the options cannot be rebuilt here. An OSError is this machine's trouble, not the kernel's.
    """
    here = current_toolchain(request.target, request.toolchain.identity)
    if differences := request.toolchain.differences(here):
        raise ToolchainMismatch(request.entry, differences)
    parsed = rebuild_options(request.options, request.entry)
    line_info = (f"env.{LINE_INFO}", "0") in request.toolchain.parts
    with sandbox(request.ttir) as box, pristine(line_info):
        return _compile(request, parsed, box, on_stage or _ignore, keep_ptx)


def warm_up(target: Target) -> None:
    """Import and start everything that a compile for ``target`` needs, before the first fork."""
    current_toolchain(target)
    backend_of(target)
    if target.backend == "cuda":
        ptxas_release(int(target.arch))


def _ignore(stage: str) -> None:
    return None


def _compile(
    request: CompileRequest, parsed: Any, box: Sandbox, on_stage: OnStage, keep_ptx: bool
) -> Artifact:
    backend = backend_of(request.target)
    if instrumented(backend):
        raise BackHalfError(
            request.entry, "start", "a profiler instruments this process's compiles"
        )
    metadata: dict[str, Any] = dict(vars(parsed), target=backend.target)
    made: dict[str, Any] = {}
    stage = "parse"
    try:
        on_stage(stage)
        module = _parse(request, backend, box)
        stages = list(pipeline_stages(backend, parsed).items())
        for stage, run in stages[1:]:  # the first is ttir, which the front half ran
            on_stage(stage)
            module = made[stage] = run(module, metadata)
        stage = "validate"
        on_stage(stage)
        return _artifact(request, made, metadata, keep_ptx)
    except (SeamError, OSError, MemoryError):
        raise  # a full disk or a missing assembler says nothing about the kernel
    except Exception as error:
        log = "\n".join(part for part in (f"{type(error).__name__}: {error}", box.log()) if part)
        raise BackHalfError(request.entry, stage, log) from error


def _parse(request: CompileRequest, backend: Any, box: Sandbox) -> Any:
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = ir.parse_mlir_module(box.ttir_path, context)
    module.context = context  # the module keeps its context alive
    if (entry := module.get_entry_func_name()) != request.entry:
        raise ValueError(f"the text defines {entry!r}, the request names {request.entry!r}")
    return module


def _artifact(
    request: CompileRequest, made: dict[str, Any], metadata: dict[str, Any], keep_ptx: bool
) -> Artifact:
    kind = request.target.binary_kind
    binary = made[kind]
    if metadata.get("name") != request.entry:
        raise MalformedBinary(f"is named {metadata.get('name')!r}, not {request.entry!r}")
    resources = inspect_binary(kind, binary, request.entry)
    return Artifact(
        binary=bytes(binary),
        kind=kind,
        metadata=_named_metadata(request, metadata),
        registers=resources.registers,
        spills=resources.spills,
        min_driver=minimum_driver(request.target),
        ptx=made.get("ptx") if keep_ptx else None,
    )


def _named_metadata(request: CompileRequest, metadata: dict[str, Any]) -> KernelMetadata:
    """Take the named fields and nothing else from what the compiler left behind."""
    num_ctas = int(metadata.get("num_ctas") or 1)
    cluster = metadata.get("cluster_dims") or (num_ctas, 1, 1)
    return KernelMetadata(
        name=request.entry,
        shared=int(metadata.get("shared") or 0),
        num_warps=int(metadata["num_warps"]),
        num_ctas=num_ctas,
        cluster_dims=tuple(int(size) for size in cluster),
        tmem_size=int(metadata.get("tmem_size") or 0),
        global_scratch_size=int(metadata.get("global_scratch_size") or 0),
        global_scratch_align=int(metadata.get("global_scratch_align") or 1),
        profile_scratch_size=int(metadata.get("profile_scratch_size") or 0),
        profile_scratch_align=int(metadata.get("profile_scratch_align") or 1),
        tensordesc_meta=tuple(_descriptor(row) for row in metadata.get("tensordesc_meta") or ()),
        warp_size=int(metadata["warp_size"]),
        cooperative=bool(metadata.get("launch_cooperative_grid")),
        pdl=bool(metadata.get("launch_pdl")),
    )


def _descriptor(row: Any) -> Plain:
    if row is None:
        return ()
    pairs = []
    for name, value in sorted(dict(row).items()):
        pairs.append((str(name), tuple(value) if isinstance(value, list | tuple) else value))
    return tuple(pairs)


def minimum_driver(target: Target) -> int:
    """Return the lowest ``cuDriverGetVersion`` value that loads what ptxas makes for a target.

    NVIDIA's minor version compatibility: a binary of CUDA 12.x or 13.x loads on every driver of
    the same major release that knows the architecture. 0 for AMD, whose loader states no figure.
    """
    if target.backend != "cuda":
        return 0
    major, minor = ptxas_release(int(target.arch))
    first = _FIRST_RELEASE.get(target.arch, major * 1000 + minor * 10)
    return max(major * 1000, first)
