"""One contract, run over memory, the local store, and memory over the local store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kernelfarm.cache import record as records
from kernelfarm.cache.errors import PutFailed
from kernelfarm.cache.generation import Generation, listed
from kernelfarm.cache.key import Key
from kernelfarm.cache.opening import open_store
from kernelfarm.cache.record import Record
from kernelfarm.cache.store import MemoryStore, Store


class StoreContract:
    """What every store promises. ``plant`` puts a record under a digest without the store."""

    def open(self, strict: bool = False) -> Store:
        raise NotImplementedError

    def plant(self, store: Store, digest: bytes, record: Record) -> None:
        raise NotImplementedError

    def look(self, store: Store, digest: bytes) -> Record | None:
        raise NotImplementedError

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = self.open()
        yield store
        store.close()

    def test_what_is_put_is_got_by_key_and_by_digest(self, store: Store, record: Callable) -> None:
        """A put record comes back whole, and lies in the store's own place."""
        wanted = record("a")
        assert store.put(wanted)
        assert store.get(key_of(wanted)) == wanted
        assert store.get(wanted.digest) == wanted
        assert self.look(store, wanted.digest) == wanted

    @pytest.mark.parametrize("size", [0, 1, 511, 512, 4000, 200_000])
    def test_payloads_of_every_size_survive(
        self, store: Store, record: Callable, size: int
    ) -> None:
        """Empty, short, unpacked, packed and long payloads come back byte for byte."""
        wanted = record(f"size {size}", size)
        assert store.put(wanted)
        assert store.get(key_of(wanted)) == wanted

    def test_what_was_never_put_is_absent(self, store: Store, key: Callable) -> None:
        """An unknown key is None and a miss of reason "absent"."""
        assert store.get(key("nothing")) is None
        assert store.get(b"\0" * 32) is None
        assert not store.contains(key("nothing"))
        assert store.stats()["misses"]["absent"] == 2

    def test_no_digest_is_a_miss_and_no_error(self, store: Store) -> None:
        """Reads never raise, not even for bytes that are no digest."""
        assert store.get(b"short") is None
        assert store.get_many([b"", b"x" * 33]) == {}
        assert not store.contains(b"short")

    def test_get_many_finds_what_is_there(self, store: Store, record: Callable) -> None:
        """The result holds the present ones by digest; keys and digests may be mixed."""
        some = [record(f"many {n}") for n in range(20)]
        assert store.put_many(some[:15])
        asked: list[Key | bytes] = [key_of(r) if n % 2 else r.digest for n, r in enumerate(some)]
        assert store.get_many(asked) == {r.digest: r for r in some[:15]}
        assert store.get_many(iter(asked)) == {r.digest: r for r in some[:15]}
        assert store.get_many([]) == {}

    def test_a_rejected_record_gives_way_to_the_next_put(
        self, store: Store, record: Callable
    ) -> None:
        """A payload that its reader refuses is a miss, and is replaced for good by another."""
        bad = record("planted")
        good = replace(bad, payload=b"what belongs there")
        assert store.put(bad)
        store.reject(key_of(bad))
        assert store.get(bad.digest) is None
        assert store.put(good)
        assert store.get(key_of(bad)) == good
        again = self.look(store, bad.digest)
        assert again is not None and again.payload == good.payload
        assert store.put(bad)
        assert store.get(bad.digest) == good

    def test_contains_says_what_get_would_find(self, store: Store, record: Callable) -> None:
        """After a put, contains is true for the Key and the digest."""
        store.put(record("a"))
        assert store.contains(record("a").digest)
        assert store.contains(key_of(record("a")))
        assert not store.contains(record("b").digest)

    def test_the_first_writer_of_a_key_wins(self, store: Store, record: Callable) -> None:
        """A second, different payload is dropped, and counted as an alarm; an equal one is not."""
        first = record("a")
        assert store.put(first)
        assert store.put(first)
        assert store.stats()["nondeterministic"] == 0
        assert store.put(replace(first, payload=b"other"))
        assert store.get(key_of(first)) == first
        stats = store.stats()
        assert (stats["puts"], stats["puts_existing"], stats["nondeterministic"]) == (1, 2, 1)

    def test_a_batch_with_a_bad_record_keeps_nothing(self, store: Store, record: Callable) -> None:
        """put_many keeps all or none; a record whose parts are not its key's is refused."""
        bad = replace(record("b"), digest=record("c").digest)
        assert not store.put_many([record("a"), bad])
        assert store.get(record("a").digest) is None
        assert store.stats()["put_failures"] == {"key_mismatch": 1}
        assert store.put_many([])

    def test_a_planted_record_of_another_key_is_a_miss(
        self, store: Store, record: Callable
    ) -> None:
        """A record that lies under a key that is not its own is never returned."""
        self.plant(store, record("a").digest, record("b"))
        assert store.get(key_of(record("a"))) is None
        assert store.get(record("a").digest) is None
        assert store.stats()["misses"] == {"key_mismatch": 2}

    def test_a_forged_record_is_a_miss(self, store: Store, record: Callable) -> None:
        """A record under the right digest whose parts differ from the Key's is a miss."""
        forged = replace(record("b"), digest=record("a").digest)
        self.plant(store, forged.digest, forged)
        assert store.get(key_of(record("a"))) is None
        assert store.stats()["misses"] == {"key_mismatch": 1}

    def test_a_strict_store_raises_on_a_failed_put(self, record: Callable) -> None:
        """With strict, a put that keeps nothing raises PutFailed with the reason."""
        store = self.open(strict=True)
        with pytest.raises(PutFailed, match="key_mismatch") as caught:
            store.put(replace(record("b"), digest=record("c").digest))
        assert caught.value.reason == "key_mismatch"
        store.close()

    def test_a_closed_store_misses_and_keeps_nothing(self, store: Store, record: Callable) -> None:
        """After close, twice even, nothing raises: reads miss and puts are False."""
        store.put(record("a"))
        store.close()
        store.close()
        assert store.get(record("a").digest) is None
        assert not store.contains(record("a").digest)
        assert not store.put(record("b"))
        assert store.stats()["misses"] == {"closed": 1}

    def test_a_lease_has_one_holder_until_it_is_released(self, store: Store, key: Callable) -> None:
        """The second asker is told that it does not own the lease, and until when."""
        with store.lease(key("a")) as mine:
            assert mine.own
            theirs = store.lease(key("a").digest)
            assert not theirs.own
            assert theirs.expires == mine.expires
            assert store.lease(key("b")).own
            theirs.release()
            assert not store.lease(key("a")).own
        assert store.lease(key("a")).own

    def test_an_expired_lease_is_taken_over(self, store: Store, key: Callable) -> None:
        """Nobody waits for a dead holder, whose late release does not end the new lease."""
        late = store.lease(key("a"), ttl=-1.0)
        assert late.own
        assert store.lease(key("a")).own
        late.release()
        assert not store.lease(key("a")).own

    def test_counters_and_inventory_say_what_happened(self, store: Store, record: Callable) -> None:
        """Hits, bytes and records by kind are counted."""
        store.put_many([record("a"), record("b"), record("c", 100, "alias")])
        store.get_many([record("a").digest, record("c", 100, "alias").digest, record("d").digest])
        stats = store.stats()
        assert (stats["hits"], stats["puts"], stats["misses"]) == (2, 3, {"absent": 1})
        assert stats["bytes_written"] > 100
        inventory = store.inventory()
        assert inventory.records == {"kernel": 2, "alias": 1}
        assert inventory.bytes.keys() == {"kernel", "alias"}
        assert inventory.unreadable == 0

    def test_threads_may_use_one_store(self, store: Store, record: Callable) -> None:
        """Eight threads put and get at once; each finds what it put, and nothing fails."""
        failures: list[object] = []

        def work(worker: int) -> None:
            for n in range(20):
                mine = record(f"{worker} {n}", 3000)
                if not store.put(mine) or store.get(mine.digest) != mine:
                    failures.append((worker, n))
                store.get_many([record(f"{w} {n}").digest for w in range(8)])

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert store.stats()["put_failures"] == {}


class TestMemoryStore(StoreContract):
    def open(self, strict: bool = False) -> Store:
        return MemoryStore(strict=strict)

    def plant(self, store: Store, digest: bytes, record: Record) -> None:
        assert isinstance(store, MemoryStore)
        store._records[digest] = record

    def look(self, store: Store, digest: bytes) -> Record | None:
        assert isinstance(store, MemoryStore)
        return store._records.get(digest)


class OnDisk(StoreContract):
    parsed_bytes = 0
    place: Path

    @pytest.fixture(autouse=True)
    def _place(self, local_dir: Path) -> None:
        self.place = local_dir / "store"

    def open(self, strict: bool = False) -> Store:
        return open_store(
            self.place, quota_bytes=32 << 20, strict=strict, parsed_bytes=self.parsed_bytes
        )

    def plant(self, store: Store, digest: bytes, record: Record) -> None:
        store.put(Record.of(Key.of("pin", (("any", b""),)), b""))  # makes the first generation
        in_child(lambda gen: gen.write_many([(digest, unchecked(record))]), self.place)

    def look(self, store: Store, digest: bytes) -> Record | None:
        return records.decode(in_child(lambda gen: gen.read_many([digest])[digest], self.place))


class TestLocalStore(OnDisk):
    """Memory holds nothing, so that every read comes from the disk."""


class TestLayeredStore(OnDisk):
    parsed_bytes = 32 << 20


def key_of(record: Record) -> Key:
    """The Key of a record made by the fixtures, from its own parts."""
    name = next(part.value for part in record.parts if part.name == "name")
    return Key.of(record.kind, (("name", name), ("ttir", b"module {}" * 60)))


def unchecked(record: Record) -> bytes:
    """Encode a record that contradicts itself, with right checksums."""
    original = records.check_parts
    records.check_parts = lambda record: None
    try:
        return records.encode(record)
    finally:
        records.check_parts = original


def in_child(act: Callable[[Generation], object], place: Path) -> bytes:
    """Run ``act`` on the newest generation in another process: LMDB files open once in each."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            (folder,) = place.glob("*-*")
            gen = Generation(folder, listed(folder)[0])
            os.write(theirs, act(gen) or b"")  # type: ignore[arg-type]
            gen.close()
            status = 0
        finally:
            os._exit(status)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        answer = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return answer
