"""Several processes on one store: writers, readers, and those that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelfarm.cache import generation
from kernelfarm.cache.store import Store

pytestmark = pytest.mark.slow

# Every value is made from its name, so that a reader knows what is right without being told.
PRELUDE = """
import os, random, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from conftest import make_record
from kernelfarm.cache.opening import open_store

place = Path(sys.argv[1])
quota = int(sys.argv[3])
store = open_store(place, quota_bytes=quota, parsed_bytes=0)
"""

WORKER = """
worker = int(sys.argv[4])
rng = random.Random(worker)
wrong = 0
for turn in range(150):
    name = f"r{rng.randrange(400)}"
    wanted = make_record(name, 20_000)
    found = store.get(wanted.digest)
    wrong += found is not None and found != wanted
    if found is None:
        wrong += not store.put(wanted)
        again = store.get(wanted.digest)
        wrong += again is not None and again != wanted
stats = store.stats()
store.close()
print(wrong, stats["nondeterministic"], stats["damaged"], sum(stats["put_failures"].values()),
      sum(n for reason, n in stats["misses"].items() if reason != "absent"))
"""

VICTIM = """
print("ready", flush=True)
number = 0
while True:
    batch = [make_record(f"{sys.argv[4]} {number} {n}", 20_000) for n in range(8)]
    assert store.put_many(batch)
    print(number, flush=True)
    number += 1
"""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes on a store; whatever still runs when the test ends is killed."""
    started: list[subprocess.Popen[str]] = []

    def start_one(code: str, place: Path, quota: int, *more: object) -> subprocess.Popen[str]:
        arguments = [place, Path(__file__).parent, quota, *more]
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("quota", [64 << 20, 2 << 20])
def test_eight_processes_read_and_write(local_dir: Path, start: Callable, quota: int) -> None:
    """No wrong value, no failed put, no damage, with room for all and with constant rotation."""
    workers = [start(WORKER, local_dir / "store", quota, n) for n in range(8)]
    outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 8
    assert outputs == ["0 0 0 0 0\n"] * 8


def test_writers_killed_in_the_middle(
    local_dir: Path, start: Callable, opened: Callable[..., Store], record: Callable
) -> None:
    """kill -9 at random moments: every acknowledged batch is whole, no other is there in part."""
    for life in range(12):
        victim = start(VICTIM, local_dir / "store", 256 << 20, life)
        assert victim.stdout.readline() == "ready\n"
        acknowledged = -1
        for _ in range(3):
            acknowledged = int(victim.stdout.readline())
        time.sleep(0.0005 * life)  # not to wait for anything: to die at another point each time
        victim.kill()
        rest = victim.stdout.read().split()
        victim.wait()
        acknowledged = max([acknowledged, *map(int, rest)])
        store = opened(quota_bytes=256 << 20)
        for number in range(acknowledged + 3):
            batch = [record(f"{life} {number} {n}", 20_000) for n in range(8)]
            found = store.get_many([r.digest for r in batch])
            assert all(found[r.digest] == r for r in batch if r.digest in found)
            assert len(found) in ((8,) if number <= acknowledged else (0, 8))
        assert store.put(record(f"after {life}"))
        assert store.stats()["damaged"] == 0
        store.close()


def test_killed_readers_leave_no_slots(opened: Callable[..., Store], record: Callable) -> None:
    """Forty readers die inside a transaction, twice; the next opener frees their slots."""
    store = opened()
    assert store.put(record("a"))
    for _ in range(2):
        ours, theirs = os.pipe()
        pids = []
        for _ in range(40):
            pid = os.fork()
            if pid == 0:
                try:
                    store.get(record("a").digest)
                    txn = store._local._shelf._open[0]._env.begin()  # type: ignore[attr-defined]
                    txn.get(b"k")
                    os.write(theirs, b"x")
                    signal.pause()
                finally:
                    os._exit(1)
            pids.append(pid)
        for _ in pids:
            assert os.read(ours, 1) == b"x"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(ours)
        os.close(theirs)
    store.close()
    store = opened()
    assert store.get(record("a").digest) == record("a")
    readers = store._local._shelf._open[0]._env.readers()  # type: ignore[attr-defined]
    assert "no active readers" in readers


def test_a_stopped_writer_delays_others_only_for_a_while(
    local_dir: Path, start: Callable, opened: Callable[..., Store], record: Callable
) -> None:
    """A process stopped under the write lock costs others a bounded wait; reads go on."""
    store = opened()
    assert store.put(record("a"))
    holder = """
shelf = store._local._shelf
with shelf._writing.hold(1.0):
    print("inside", flush=True)
    sys.stdin.read()
"""
    process = start(holder, local_dir / "store", 32 << 20)
    assert process.stdout.readline() == "inside\n"
    process.send_signal(signal.SIGSTOP)
    store._local._shelf.lock_timeout = 0.2  # type: ignore[attr-defined]
    began = time.monotonic()
    assert not store.put(record("b"))
    assert time.monotonic() - began < 5.0
    assert store.get(record("a").digest) == record("a")
    assert store.stats()["put_failures"] == {"busy": 1}
    process.kill()
    process.wait()
    assert store.put(record("b"))


def test_a_rotation_by_another_process_is_noticed(
    local_dir: Path, start: Callable, opened: Callable[..., Store], record: Callable
) -> None:
    """What another process puts into new files is found by a store that was open before."""
    store = opened(quota_bytes=8 << 20)
    assert store.put(record("a"))
    writer = """
for n in range(40):
    assert store.put(make_record(f"r{n}", 120_000))
"""
    process = start(writer, local_dir / "store", 8 << 20)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert store.get(record("r39", 120_000).digest) == record("r39", 120_000)
    assert len(generation.listed(Path(store.inventory().place))) >= 3
    assert store.put(record("b"))
    assert store.get(record("b").digest) == record("b")


def test_a_lease_ends_with_its_time_and_not_with_its_holder(
    local_dir: Path, start: Callable, opened: Callable[..., Store], key: Callable
) -> None:
    """Another process sees the lease, and takes it over when it has expired."""
    store = opened()
    taker = """
from conftest import make_key
print(store.lease(make_key("a"), ttl=float(sys.argv[4])).own)
"""
    for ttl, taken in ((600.0, False), (-1.0, True)):
        process = start(taker, local_dir / "store", 32 << 20, ttl)
        assert process.communicate(timeout=60)[0] == "True\n"
        assert store.lease(key("a"), ttl=-1.0).own is taken
        for path in (Path(store.inventory().place) / "leases").iterdir():
            if path.name != ".lock":
                path.unlink()
