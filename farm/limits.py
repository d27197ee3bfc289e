"""How much of this machine the farm may use: slots, deadlines, memory.

Slots come from what this process may really use: its CPU affinity, the CPU quota and the free
memory of its cgroups (versions 1 and 2), and the machine's free memory. Children run at low
priority, so no core is held back for the processes that trace.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

#: Bytes that a compile may need beside the zygote; decides how many run at once.
BYTES_PER_SLOT = 384 << 20
#: cgroup version 1 writes "no limit" as a number near 2**63.
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class Limits:
    """The plan's bounds; all times in seconds.

    ``deadlines`` are per priority: waiting, emitted, autotune (its upper bound), speculative.
    """

    deadlines: tuple[float, float, float, float] = (120.0, 120.0, 120.0, 30.0)
    autotune_floor: float = 10.0  # an autotune config gets max(this, 10 x the kernel's median)
    attempts: int = 2  # runs that may crash, hang or run out of memory before the job fails
    losses: int = 2  # times a job may be lost with its environment before it fails
    kill_grace: float = 5.0  # after that an environment that does not kill is killed itself
    start_deadline: float = 60.0  # for an environment to become ready
    start_failures: int = 2  # starts that may fail in a row before its jobs fail
    start_pause: float = 5.0  # no new start of an environment so soon after it was unavailable
    environment_idle: float = 60.0  # without work an environment is ended after that
    ageing: float = 30.0  # a queued job gains one level per so many seconds, never above EMITTED
    quarantine: float = 600.0  # a kernel that crashed or hung twice fails at once for so long
    recent_seconds: float = 300.0  # results are kept for late askers for so long
    recent_bytes: int = 64 << 20
    run_bytes: int = 4 << 30  # resident memory of one run, its subprocesses included


def usable_slots(root: Path = Path("/")) -> int:
    """Return how many compiles this machine has room for now, at least 1.

    ``root`` is where /proc and /sys are looked for; tests pass a tree of their own.
    """
    cores = float(len(os.sched_getaffinity(0)))
    quota = _cpu_quota(root)
    if quota is not None:
        cores = min(cores, quota)
    by_cpu = max(1, math.ceil(cores - 0.5))
    free = free_memory(root)
    by_memory = by_cpu if free is None else max(1, free // BYTES_PER_SLOT)
    return min(by_cpu, by_memory)


def free_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that may still be used here, None if nothing says so."""
    found = []
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for folder in _cgroup_folders(root, "memory"):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _UNLIMITED:
            # The page cache counts as used but is given up under pressure.
            found.append(max(0, limit - max(0, used - _reclaimable(folder))))
    return min(found) if found else None


def _cpu_quota(root: Path) -> float | None:
    """Return the smallest CPU quota on the way from our cgroup to the root, in cores."""
    found = []
    for folder in _cgroup_folders(root, "cpu"):
        fields = _read(folder / "cpu.max").split()
        if len(fields) == 2 and fields[0] != "max":
            found.append(int(fields[0]) / int(fields[1]))
        quota = _number(folder / "cpu.cfs_quota_us")
        period = _number(folder / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            found.append(quota / period)
    return min(found) if found else None


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Return our cgroup's folder and its parents for a controller, in both cgroup versions.

    In a container the path in /proc/self/cgroup may not exist below the mount; then the mount
    itself is the container's cgroup, and it is always in the list.
    """
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        _, controllers, path = fields
        if controllers == "":
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / controllers, root / "sys/fs/cgroup" / controller]
        else:
            continue
        for mount in mounts:
            folder = mount / path.lstrip("/")
            while folder != mount and mount in folder.parents:
                folders.append(folder)
                folder = folder.parent
            folders.append(mount)
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def _reclaimable(folder: Path) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _number(*paths: Path) -> int | None:
    for path in paths:
        text = _read(path).strip()
        if text.lstrip("-").isdigit():
            return int(text)
    return None


def _read(path: Path) -> str:
    """Return a file's text; what cannot be read says nothing."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
