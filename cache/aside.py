"""Damaged generations: moved out of the way, not deleted; and those that a crash made doubtful."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path

from . import atomic, generation
from .generation import GenerationName

#: Files set aside that are kept for a person to look at; they count against the quota.
KEEP_DAMAGED = 2
#: Pages written this long before a machine died had reached its disk.
WRITEBACK_SECONDS = 300.0

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def files(directory: Path) -> list[Path]:
    """Return the files set aside, newest first."""
    try:
        found = list((directory / "damaged").iterdir())
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda path: path.name.rpartition(".")[2], reverse=True)


def move(directory: Path, name: GenerationName) -> Path:
    """Move a generation's file out of the shelf and return where it is now."""
    source = directory / str(name)
    target = directory / "damaged" / f"{name}.{time.time_ns():016x}"
    os.makedirs(target.parent, mode=0o700, exist_ok=True)
    os.rename(source, target)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{source}-lock")
    return target


def prune(directory: Path, spare: Collection[Path]) -> None:
    """Delete all but the newest files set aside, and none that is in ``spare``."""
    for path in files(directory)[KEEP_DAMAGED:]:
        if path not in spare:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def highest_number(directory: Path) -> int:
    """Return the highest generation number among the files set aside, or 0."""
    names = (GenerationName.parse(path.name.rpartition(".")[0]) for path in files(directory))
    return max((name.number for name in names if name is not None), default=0)


def doubtful_since_boot(directory: Path) -> list[GenerationName]:
    """Return, once per boot, the generations that may have lost pages when the machine went down.

    Nothing is synced while it runs, so after a crash the pages written last may be junk. The kernel
    had written everything older back. Leaves the present boot's id in the directory, and removes
    the lock files of the last one, which no living process can have open.
    """
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        return []
    note = directory / "BOOT"
    try:
        if atomic.read_head(note, 256).decode(errors="replace").strip() == boot:
            return []
    except OSError:
        pass  # absent or damaged: as if another boot had written it
    atomic.make_way(note)
    names = generation.listed(directory)
    written = {name: (directory / str(name)).stat().st_mtime for name in names}
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(directory / f"{name}-lock")
    atomic.put(note, boot + "\n")
    last = max(written.values(), default=0.0)
    return [name for name in names if written[name] > last - WRITEBACK_SECONDS]
