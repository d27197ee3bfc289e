"""Keys, records and stores for the store's tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelfarm.cache.key import Key
from kernelfarm.cache.opening import open_store
from kernelfarm.cache.record import Record
from kernelfarm.cache.store import Store


def make_key(name: str, kind: str = "kernel", text: bytes = b"module {}" * 60) -> Key:
    return Key.of(kind, (("name", name.encode()), ("ttir", text)))


def make_payload(seed: object, size: int = 9000) -> bytes:
    """Bytes that compress by about half, as a cubin does."""
    rng = random.Random(str(seed))
    return rng.randbytes(size // 2) + bytes(size - size // 2)


def make_record(name: str, size: int = 9000, kind: str = "kernel") -> Record:
    return Record.of(make_key(name, kind), make_payload(name, size), build_ms=200, created=1000)


@pytest.fixture
def key() -> Callable[..., Key]:
    return make_key


@pytest.fixture
def payload() -> Callable[..., bytes]:
    return make_payload


@pytest.fixture
def record() -> Callable[..., Record]:
    return make_record


@pytest.fixture
def opened(local_dir: Path) -> Iterator[Callable[..., Store]]:
    """Opens stores under ``local_dir / "store"`` and closes them when the test ends."""
    stores: list[Store] = []

    def open_one(directory: Path | None = None, **options: object) -> Store:
        # Parsed records off: a test of the disk must not be answered from memory.
        options.setdefault("parsed_bytes", 0)
        options.setdefault("quota_bytes", 32 << 20)
        stores.append(open_store(directory or local_dir / "store", **options))  # type: ignore[arg-type]
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()
