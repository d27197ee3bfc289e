"""Every difference between the supported Triton versions that the seam has to know.

Versions are (major, minor). Where a version is not listed the answer is the one that can only
cost a miss, never a wrong key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Version = tuple[int, int]

#: From which compute capability on the binary called ptxas-blackwell assembles.
_BLACKWELL_FROM: dict[Version, int] = {(3, 6): 100, (3, 7): 100, (3, 9): 90}

#: Attributes that an options class derives from its fields and code generation reads.
DERIVED_OPTIONS = frozenset({"warp_size", "base_arch"})


def parse_version(text: str) -> Version | None:
    """Return (major, minor) of a version text, or None for something else."""
    head = text.split(".")
    if len(head) < 2 or not (head[0].isdigit() and head[1].isdigit()):
        return None
    return int(head[0]), int(head[1])


def ptxas_names(version: Version | None, arch: int) -> tuple[str, ...]:
    """Return the ptxas binaries that assemble for ``arch``: one, or both where it is not known."""
    start = _BLACKWELL_FROM.get(version) if version else None
    if start is None:
        return ("ptxas", "ptxas-blackwell")
    return ("ptxas-blackwell",) if arch >= start else ("ptxas",)


def options_class(backend: str) -> type[Any]:
    """Return the class of a backend's parsed options."""
    if backend == "cuda":
        from triton.backends.nvidia.compiler import CUDAOptions

        return CUDAOptions
    from triton.backends.amd.compiler import HIPOptions

    return HIPOptions


def interpreting() -> bool:
    """Say whether ``triton.jit`` makes interpreted functions in this process."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


_hook_lock = threading.Lock()


def pipeline_stages(backend: Any, options: Any) -> dict[str, Callable[[Any, dict[str, Any]], Any]]:
    """Return the backend's stages in order (ttir, ttgir, ..., cubin), each (module, metadata).

    The process's stages hook is left out: a request is a pure function, and ours would ask the
    farm for what the farm is just compiling.
    """
    from triton import knobs
    from triton.backends.compiler import Language

    stages: dict[str, Callable[[Any, dict[str, Any]], Any]] = {}
    with _hook_lock:
        hook = knobs.runtime.add_stages_inspection_hook
        knobs.runtime.add_stages_inspection_hook = None
        try:
            backend.add_stages(stages, options, Language.TRITON)
        finally:
            knobs.runtime.add_stages_inspection_hook = hook
    return stages


@contextmanager
def line_info(off: bool) -> Iterator[None]:
    """Compile with line info off or on, whatever the environment says.

    The knob is set beside the environment: changing that is not safe where other threads run.
    """
    from triton import knobs

    state = vars(knobs.compilation)
    absent = object()
    before = state.get("disable_line_info", absent)
    state["disable_line_info"] = off
    try:
        yield
    finally:
        if before is absent:
            state.pop("disable_line_info", None)
        else:
            state["disable_line_info"] = before


def ptxas_release(arch: int) -> tuple[int, int]:
    """Return the CUDA release, as (13, 4), of the ptxas that assembles for ``arch``."""
    from triton.backends.nvidia.compiler import get_ptxas

    major, minor = get_ptxas(arch).version.split(".")
    return int(major), int(minor)
