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


_pristine_lock = threading.Lock()
#: How many compiles of this process are inside `pristine`, and what the first laid aside.
_inside = 0
_laid_aside: list[dict[Any, Any]] = []


@contextmanager
def pristine(line_info: bool | None = None) -> Iterator[None]:
    """Compile as the environment says and in no other way, with line info on, off or as it says.

    A knob that was set in this process only, or an instrumentation that a profiler registered,
    is not in the key. Both are laid aside, and laid back when the last thread leaves. Line info
    is set beside the environment, because changing that is not safe where other threads run.
    """
    global _inside, _laid_aside
    places = _process_settings()
    with _pristine_lock:
        if _inside == 0:
            _laid_aside = [dict(place) for place in places]
            for place in places:
                place.clear()
        _inside += 1
        if line_info is not None:
            places[0]["disable_line_info"] = not line_info
    try:
        yield
    finally:
        with _pristine_lock:
            _inside -= 1
            if _inside == 0:
                for place, content in zip(places, _laid_aside, strict=True):
                    place.clear()
                    place.update(content)


#: Groups of triton.knobs that code generation reads; line info is in the first.
_CODEGEN_KNOBS = ("compilation", "nvidia", "amd", "language")


def _process_settings() -> list[dict[Any, Any]]:
    """Return the knob groups' own values, and where instrumentations register (triton 3.9)."""
    from triton import knobs

    places = [vars(getattr(knobs, name)) for name in _CODEGEN_KNOBS]
    try:
        from triton import _instrumentation
    except ImportError:
        return places
    return [*places, _instrumentation._callbacks]


def instrumented(backend: Any) -> bool:
    """Say whether a profiler has put an instrumentation on the backend's class (triton 3.6)."""
    return getattr(type(backend), "instrumentation", None) is not None


def ptxas_release(arch: int) -> tuple[int, int]:
    """Return the CUDA release, as (13, 4), of the ptxas that assembles for ``arch``."""
    from triton.backends.nvidia.compiler import get_ptxas

    major, minor = get_ptxas(arch).version.split(".")
    return int(major), int(minor)
