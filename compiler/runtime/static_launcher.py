"""Launching through torch's static launcher, the fastest that needs no C compiler.

It exists in CUDA builds of torch only. It takes a cubin as a *file*, so the bytes pass through a
private directory in memory; it knows neither clusters nor scratch memory nor half-precision
scalars, and a grid of 2**31 programs or more overflows in it and launches nothing, silently. What
it cannot do goes to `driver_launcher`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from ..seam.request import Artifact
from .contract import Launch

#: Its letters for our argument types; every pointer is "O".
_LETTERS = {
    "i1": "i",
    "u1": "I",
    "i8": "b",
    "u8": "B",
    "i16": "h",
    "u16": "H",
    "i32": "i",
    "u32": "I",
    "i64": "l",
    "u64": "K",
    "fp32": "f",
    "f32": "f",
    "fp64": "d",
}
#: Global and profiling scratch pointers, which Triton appends to every kernel's parameters.
_NO_SCRATCH = (None, None)
_MEMORY = Path("/dev/shm")


def static_launcher_class() -> Any | None:
    """Return torch's launcher class, or None in a torch without it."""
    import torch

    return getattr(torch._C, "_StaticCudaLauncher", None)


def can_launch(artifact: Artifact, kinds: tuple[str, ...]) -> bool:
    """Say whether the static launcher covers everything that this kernel needs."""
    meta = artifact.metadata
    return (
        artifact.kind == "cubin"
        and meta.num_ctas == 1
        and meta.global_scratch_size == 0
        and meta.profile_scratch_size == 0
        and not meta.cooperative
        and not meta.pdl
        and not meta.tensordesc_meta
        and all(kind.startswith("*") or kind in _LETTERS for kind in kinds)
    )


def load_static(
    launcher: Any, artifact: Artifact, kinds: tuple[str, ...], index: int, large: Launch
) -> Launch:
    """Load an artifact on the current device, ``index``, and return its launch function.

    ``large`` takes grids of 2**31 programs and more. Whatever torch raises comes through; the
    caller falls back to the driver, whose errors say what to do.
    """
    meta = artifact.metadata
    with tempfile.TemporaryDirectory(prefix="kernelfarm-", dir=_directory()) as private:
        # Nobody else can see the file before it is whole: the directory is new and ours alone.
        path = Path(private) / "kernel.cubin"
        path.write_bytes(artifact.binary)
        loaded = launcher._load_kernel(str(path), meta.name, meta.shared, index)
    # torch 2.11: (function, registers, spills); since 2.13 the module's handle comes first.
    function = loaded[-3]
    letters = "".join("O" if kind.startswith("*") else _LETTERS[kind] for kind in kinds)
    letters += "O" * len(_NO_SCRATCH)
    warps, shared, send = meta.num_warps, meta.shared, launcher._launch_kernel

    def launch(x: int, y: int, z: int, stream: int, *args: Any) -> None:
        if x * y * z > 0x7FFFFFFF:
            large(x, y, z, stream, *args)
        else:
            send(function, x, y, z, warps, shared, letters, args + _NO_SCRATCH, stream)

    return launch


def _directory() -> str | None:
    return str(_MEMORY) if os.access(_MEMORY, os.W_OK | os.X_OK) else None
