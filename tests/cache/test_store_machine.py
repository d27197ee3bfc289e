"""A model of the store, driven by hypothesis: whatever the order, a read is right or a miss."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kernelfarm.cache import generation
from kernelfarm.cache.key import Key
from kernelfarm.cache.opening import open_store
from kernelfarm.cache.record import Record

names = st.integers(0, 25)
NOISE = os.urandom(1 << 20)


def key_of(name: int) -> Key:
    return Key.of("kernel", (("name", str(name).encode()),))


def record_of(name: int, version: int) -> Record:
    size = (50, 3000, 40_000, 90_000)[name % 4]
    start = (name * 7919 + version * 104_729) % (len(NOISE) - size)
    return Record.of(key_of(name), NOISE[start : start + size], created=1)


class StoreMachine(RuleBasedStateMachine):
    """Small generations, so that rotation and long values happen all the time."""

    @initialize()
    def begin(self) -> None:
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.place = Path(tempfile.mkdtemp(prefix="kernelfarm-machine-", dir=base))
        #: Every version ever put under a name: a read returns one of them or nothing.
        self.put_versions: dict[int, set[int]] = {}
        #: What was put last into an undamaged store, and must still be there.
        self.newest: int | None = None
        self.open()

    def open(self) -> None:
        self.store = open_store(self.place, quota_bytes=4 << 20, generations=4, parsed_bytes=0)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.place)

    @rule(name=names, version=st.integers(0, 1))
    def put(self, name: int, version: int) -> None:
        assert self.store.put(record_of(name, version))
        self.put_versions.setdefault(name, set()).add(version)
        self.newest = name

    @rule(batch=st.lists(names, max_size=5, unique=True))
    def put_many(self, batch: list[int]) -> None:
        assert self.store.put_many([record_of(name, 0) for name in batch])
        for name in batch:
            self.put_versions.setdefault(name, set()).add(0)
            self.newest = name

    @rule(name=names)
    def get(self, name: int) -> None:
        self.check(name, self.store.get(key_of(name)))

    @rule(batch=st.lists(names, max_size=26, unique=True))
    def get_many(self, batch: list[int]) -> None:
        found = self.store.get_many([key_of(name).digest for name in batch])
        for name in batch:
            self.check(name, found.get(key_of(name).digest))

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open()

    @rule(cut=st.integers(0, 1 << 20), which=st.integers(0, 3))
    def cut_a_file(self, cut: int, which: int) -> None:
        folder = Path(self.store.inventory().place)
        files = generation.listed(folder)
        if files:
            name = files[which % len(files)]
            os.truncate(folder / str(name), min(cut, name.size - 1))
            self.newest = None

    @rule(where=st.integers(0, (1 << 20) - 1))
    def flip_a_byte_of_a_closed_file(self, where: int) -> None:
        folder = Path(self.store.inventory().place)
        self.store.close()
        for path in folder.glob("large/*"):
            data = bytearray(path.read_bytes())
            data[where % len(data)] ^= 0x55
            path.write_bytes(data)
            self.newest = None
            break
        self.open()

    @invariant()
    def what_was_put_last_is_there(self) -> None:
        if getattr(self, "newest", None) is not None:
            assert self.newest is not None
            assert self.store.contains(key_of(self.newest))

    def check(self, name: int, found: Record | None) -> None:
        if found is not None:
            assert any(found == record_of(name, v) for v in self.put_versions.get(name, ()))
        elif self.newest is not None:
            assert name != self.newest


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
