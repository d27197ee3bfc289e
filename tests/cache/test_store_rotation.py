"""Generations: the quota, what is dropped, what lives on, and what a full disk does."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kernelfarm.cache import generation
from kernelfarm.cache.errors import PutFailed
from kernelfarm.cache.store import Store

QUOTA = 8 << 20


def folder_of(store: Store) -> Path:
    return Path(store.inventory().place)


def used(folder: Path) -> int:
    return sum(p.stat().st_blocks * 512 for p in folder.rglob("*") if p.is_file())


def test_ten_times_the_quota_stays_within_the_quota(
    opened: Callable[..., Store], record: Callable
) -> None:
    """The disk is bounded exactly, files are few, every put works, the newest records are there."""
    store = opened(quota_bytes=QUOTA)
    for n in range(10 * QUOTA // 50_000):
        assert store.put(record(f"r{n}", 100_000))
        assert n % 16 or store.get(record(f"r{n}", 100_000).digest) is not None
    inventory = store.inventory()
    assert inventory.disk_bytes <= QUOTA
    assert used(folder_of(store)) <= QUOTA + 64 * 1024  # lock files
    assert inventory.files == 16
    stats = store.stats()
    assert stats["rotations"] > 8
    assert stats["put_failures"] == {}
    assert inventory.records["kernel"] >= QUOTA // 50_000 * 3 // 4
    assert store.get(record("r0").digest) is None


def test_long_values_count_against_the_quota(
    opened: Callable[..., Store], record: Callable
) -> None:
    """Values beside the LMDB files are dropped with their generation."""
    store = opened(quota_bytes=QUOTA)
    for n in range(60):
        assert store.put(record(f"r{n}", 400_000))
    folder = folder_of(store)
    assert len(list((folder / "large").iterdir())) >= 8
    assert used(folder) <= QUOTA + 64 * 1024
    assert store.get(record("r59", 400_000).digest) == record("r59", 400_000)


def test_a_record_that_is_asked_for_outlives_its_generation(
    opened: Callable[..., Store], record: Callable
) -> None:
    """A hit in the two oldest files is written again to the newest; an unused record goes."""
    store = opened(quota_bytes=QUOTA)
    used_one, unused = record("used"), record("unused")
    store.put_many([used_one, unused])
    for n in range(300):
        assert store.put(record(f"r{n}", 120_000))
        assert store.get(used_one.digest) == used_one
    assert store.stats()["copied_forward"] >= 1
    assert store.get(unused.digest) is None


def test_the_first_writer_wins_across_generations(
    opened: Callable[..., Store], record: Callable
) -> None:
    """A record of an older file is not written again by an equal key, and differing is counted."""
    store = opened(quota_bytes=QUOTA)
    first = record("first")
    store.put(first)
    for n in range(30):
        store.put(record(f"r{n}", 120_000))
    assert store.stats()["rotations"] >= 1
    assert store.put(replace(first, payload=b"other"))
    assert store.stats()["nondeterministic"] == 1
    assert store.get(first.digest) == first


def test_a_record_larger_than_a_generation_is_refused(
    opened: Callable[..., Store], record: Callable
) -> None:
    """It is a counted failure with one notice that says so, and costs no rotation."""
    told: list[str] = []
    store = opened(quota_bytes=QUOTA, notice=told.append)
    store.put(record("small"))
    for _ in range(3):
        assert not store.put(record("huge", 6 << 20))
    assert store.stats()["put_failures"] == {"too_large": 3}
    assert store.stats()["rotations"] == 0
    (message,) = told
    assert "larger than a file of the store" in message
    assert store.get(record("small").digest) == record("small")


def test_a_batch_is_kept_whole_or_not_at_all(
    opened: Callable[..., Store], record: Callable
) -> None:
    """A batch that does not fit into what is left goes whole into the next generation."""
    store = opened(quota_bytes=QUOTA)
    for n in range(10):
        store.put(record(f"r{n}", 120_000))
    batch = [record(f"batch {n}", 60_000) for n in range(20)]
    assert store.put_many(batch)
    folder = folder_of(store)
    store.close()
    gens = [generation.Generation(folder, name) for name in generation.listed(folder)]
    holders = [sum(gen.has(r.digest) for r in batch) for gen in gens]
    for gen in gens:
        gen.close()
    assert sorted(holders)[-1] == 20
    assert sum(holders) == 20


def test_another_quota_takes_effect_with_new_files(
    opened: Callable[..., Store], record: Callable
) -> None:
    """Files made under another quota stay readable; new ones have the new size."""
    store = opened(quota_bytes=QUOTA)
    store.put(record("old"))
    store.close()
    store = opened(quota_bytes=4 * QUOTA)
    for n in range(12):
        store.put(record(f"r{n}", 240_000))
    assert store.get(record("old").digest) == record("old")
    sizes = {name.size for name in generation.listed(folder_of(store))}
    assert sizes == {QUOTA // 8, QUOTA // 2}


def test_a_store_deleted_under_us_begins_again(
    opened: Callable[..., Store], record: Callable, local_dir: Path
) -> None:
    """rm -rf of an open store: reads miss, and the next put makes it anew."""
    import shutil

    store = opened()
    store.put(record("a"))
    shutil.rmtree(local_dir / "store")
    assert store.get(record("a").digest) is None
    assert store.put(record("b"))
    assert store.get(record("b").digest) == record("b")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 6 MiB, where this user may mount one."""
    libc = ctypes.CDLL(None, use_errno=True)
    target = tmp_path / "disk"
    target.mkdir()
    if libc.mount(b"none", os.fsencode(target), b"tmpfs", 0, b"size=6m") != 0:
        pytest.skip(f"cannot mount a tmpfs: {os.strerror(ctypes.get_errno())}")
    try:
        yield target
    finally:
        libc.umount2(os.fsencode(target), 2)


def test_a_full_disk_is_a_failed_put_and_no_signal(
    small_disk: Path, opened: Callable[..., Store], record: Callable
) -> None:
    """With no byte left, puts are counted failures, what is stored is read, and room heals it."""
    told: list[str] = []
    store = opened(small_disk / "store", notice=told.append)
    kept = [record(f"r{n}", 20_000) for n in range(20)]
    assert all(store.put(r) for r in kept)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    refused = [record(f"full {n}", 60_000) for n in range(20)]
    assert not any(store.put(r) for r in refused)
    assert store.stats()["put_failures"] == {"disk_full": 20}
    (message,) = told
    assert "No space left" in message and "compiling goes on" in message
    assert store.get_many([r.digest for r in kept]) == {r.digest: r for r in kept}
    filler.unlink()
    assert all(store.put(r) for r in refused)
    store.close()
    store = opened(small_disk / "store")
    assert len(store.get_many([r.digest for r in kept + refused])) == 40
    assert store.stats()["damaged"] == 0


def test_a_full_disk_at_rotation_is_a_failed_put(
    small_disk: Path, opened: Callable[..., Store], record: Callable
) -> None:
    """A new file that cannot be made is a counted failure too, and nothing stored is dropped."""
    store = opened(small_disk / "store", quota_bytes=3 << 20)
    filler = small_disk / "filler"
    kept = 0
    while store.stats()["rotations"] == 0:
        assert store.put(record(f"r{kept}", 20_000))
        kept += 1
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    assert not all(store.put(record(f"more {n}", 20_000)) for n in range(100))
    assert set(store.stats()["put_failures"]) == {"disk_full"}
    assert store.get_many([record(f"r{n}", 20_000).digest for n in range(kept)]).keys() == {
        record(f"r{n}", 20_000).digest for n in range(kept)
    }
    filler.unlink()
    assert store.put(record("again", 20_000))


def test_a_fault_of_our_own_costs_a_compile_and_not_the_job(
    opened: Callable[..., Store], record: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is raised inside, reads miss, puts are False, and one notice says what it was."""
    told: list[str] = []
    store = opened(notice=told.append)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(generation.Generation, "read_many", fail)
    monkeypatch.setattr(generation.Generation, "write_many", fail)
    assert not store.put(record("a"))
    assert store.get(record("a").digest) is None
    assert not store.put(record("a"))
    assert store.stats()["put_failures"] == {"internal": 2}
    assert len(told) == 2


def test_a_strict_store_says_why_a_put_failed(
    opened: Callable[..., Store], record: Callable
) -> None:
    """PutFailed carries the reason and the detail."""
    store = opened(quota_bytes=QUOTA, strict=True)
    with pytest.raises(PutFailed, match="larger than a file") as caught:
        store.put(record("huge", 6 << 20))
    assert caught.value.reason == "too_large"
