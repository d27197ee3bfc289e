"""Slots and free memory from affinity and cgroups, on trees made for the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelfarm.farm.limits import BYTES_PER_SLOT, free_memory, usable_slots

GIB = 1 << 30


@pytest.fixture
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_affinity_bounds_the_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``taskset -c 0,1`` leaves two slots, however many cores the machine has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert usable_slots(tmp_path) == 2


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize(
    ("quota", "slots"), [("250000 100000", 2), ("50000 100000", 1), ("max 100000", 16)]
)
def test_quota_of_version_2(tmp_path: Path, quota: str, slots: int) -> None:
    """A CPU quota of cgroup version 2 bounds the slots; half a core still is one."""
    files = {"proc/self/cgroup": "0::/pod/me\n", "sys/fs/cgroup/pod/cpu.max": quota}
    files["sys/fs/cgroup/pod/me/cpu.max"] = "max 100000"
    assert usable_slots(tree(tmp_path, files)) == slots


@pytest.mark.usefixtures("sixteen_cores")
def test_quota_of_version_1(tmp_path: Path) -> None:
    """A CPU quota of cgroup version 1 bounds the slots, also at the container's own mount."""
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    assert usable_slots(tree(tmp_path, files)) == 4


@pytest.mark.usefixtures("sixteen_cores")
def test_memory_limit_bounds_the_slots(tmp_path: Path) -> None:
    """A 1 GiB cgroup on a machine with plenty free leaves room for two compiles, never for none."""
    files = {
        "proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {64 * GIB // 1024} kB\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": str(GIB),
        "sys/fs/cgroup/memory.current": str(GIB // 2),
        "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {GIB // 4}\n",
    }
    root = tree(tmp_path, files)
    assert free_memory(root) == GIB - GIB // 4
    assert usable_slots(root) == (GIB - GIB // 4) // BYTES_PER_SLOT == 2
    (root / "sys/fs/cgroup/memory.current").write_text(str(2 * GIB))
    assert usable_slots(root) == 1


@pytest.mark.usefixtures("sixteen_cores")
def test_no_limit_of_version_1(tmp_path: Path) -> None:
    """The huge number that version 1 writes for "no limit" is none."""
    files = {
        "proc/meminfo": f"MemAvailable: {64 * GIB // 1024} kB\n",
        "proc/self/cgroup": "9:memory:/a\n",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "123",
    }
    assert free_memory(tree(tmp_path, files)) == 64 * GIB


def test_this_machine_has_a_slot() -> None:
    """Whatever the real tree says, there is at least one slot and no more than cores."""
    assert 1 <= usable_slots() <= len(os.sched_getaffinity(0))
