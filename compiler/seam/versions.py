"""Every difference between the supported Triton versions that the seam has to know.

Versions are (major, minor). Where a version is not listed the answer is the one that can only
cost a miss, never a wrong key.
"""

from __future__ import annotations

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
