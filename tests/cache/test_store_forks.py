"""Forks with an open store: parent and child both go on, and neither disturbs the other."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelfarm.cache import forks
from kernelfarm.cache.store import MemoryStore, Store

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def child_of(act: Callable[[], bool]) -> int:
    """Run ``act`` in a forked child and return its pid; it exits 0 if ``act`` is true."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if act() else 2
        finally:
            os._exit(status)
    return pid


def wait_for(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_parent_and_child_both_read_and_write(
    opened: Callable[..., Store], record: Callable
) -> None:
    """After a fork, each reads the other's puts through its own environment."""
    store = opened()
    assert store.put(record("before"))
    assert store.get(record("before").digest)

    def child() -> bool:
        ok = store.get(record("before").digest) == record("before")
        return ok and store.put(record("from the child"))

    assert wait_for(child_of(child)) == 0
    assert store.get(record("from the child").digest) == record("from the child")
    assert store.put(record("after"))
    assert store.get(record("after").digest) == record("after")
    assert store.stats()["put_failures"] == {}
    assert store.stats()["misses"] == {}


def test_forks_during_reads_and_writes_of_other_threads(
    opened: Callable[..., Store], record: Callable
) -> None:
    """Threads read and write all the time while the process forks: no error on either side."""
    store = opened()
    known = [record(f"r{n}", 4000) for n in range(20)]
    store.put_many(known)
    stop = threading.Event()
    failures: list[object] = []

    def read() -> None:
        while not stop.is_set():
            if len(store.get_many([r.digest for r in known])) != 20:
                failures.append(store.stats())
                return

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            if not store.put(record(f"w{number % 500}", 2000)):
                failures.append(store.stats())
                return

    threads = [threading.Thread(target=work) for work in (read, read, write)]
    for thread in threads:
        thread.start()

    def child() -> bool:
        own = record(f"child {os.getpid()}")
        found = store.get_many([r.digest for r in known])
        return len(found) == 20 and store.put(own) and store.get(own.digest) == own

    try:
        statuses = [wait_for(child_of(child)) for _ in range(20)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert statuses == [0] * 20
    assert failures == []


def test_a_child_of_a_child(opened: Callable[..., Store], record: Callable) -> None:
    """The hooks work again in a child."""
    store = opened()
    store.put(record("a"))

    def grandchild() -> bool:
        return store.get(record("a").digest) == record("a") and store.put(record("deep"))

    def child() -> bool:
        return store.get(record("a").digest) == record("a") and wait_for(child_of(grandchild)) == 0

    assert wait_for(child_of(child)) == 0
    assert store.get(record("deep").digest) == record("deep")


def test_closing_in_a_child_leaves_the_parent_alone(
    opened: Callable[..., Store], record: Callable
) -> None:
    """A child that closes its store takes nothing from the parent."""
    store = opened()
    store.put(record("a"))

    def child() -> bool:
        store.close()
        return store.get(record("a").digest) is None

    assert wait_for(child_of(child)) == 0
    assert store.get(record("a").digest) == record("a")
    assert store.put(record("b"))


def test_a_fork_does_not_wait_for_ever_for_a_transaction(
    opened: Callable[..., Store], record: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If somebody stays inside, the fork goes on; the child misses, and the parent is untouched."""
    monkeypatch.setattr(forks, "FORK_TIMEOUT", 0.05)
    store = opened()
    store.put(record("a"))
    shelf = store._local._shelf  # type: ignore[attr-defined]

    def child() -> bool:
        missed = store.get(record("a").digest) is None
        return missed and not store.put(record("b"))

    with shelf.gate:
        assert wait_for(child_of(child)) == 0
    assert store.get(record("a").digest) == record("a")
    assert store.put(record("b"))


def test_a_store_in_memory_survives_a_fork_under_its_lock(record: Callable) -> None:
    """A lock that another thread held at the fork does not hang the child."""
    store = MemoryStore()
    forks.register(store)
    store.put(record("a"))
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with store._lock, store._counters._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert wait_for(child_of(lambda: store.get(record("a").digest) == record("a"))) == 0
    finally:
        done.set()
        thread.join()


def test_the_first_fork_of_a_process_without_stores(local_dir: Path, record: Callable) -> None:
    """A store opened in a child is the child's; the parent's later one is its own."""
    from kernelfarm.cache.opening import open_store

    def child() -> bool:
        store = open_store(local_dir / "store", quota_bytes=8 << 20)
        return store.put(record("a"))

    assert wait_for(child_of(child)) == 0
    store = open_store(local_dir / "store", quota_bytes=8 << 20)
    assert store.get(record("a").digest) == record("a")
    store.close()
