"""Damaged store files: never a crash, never a wrong value, nothing else lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelfarm.cache import generation, salvage
from kernelfarm.cache.generation import Damaged, Generation, GenerationName
from kernelfarm.cache.record import Record, encode
from kernelfarm.cache.store import Store

COUNT = 60


@pytest.fixture
def filled(opened: Callable[..., Store], record: Callable) -> tuple[Path, list[Record]]:
    """A closed store of one generation, and its records: long, short, and in leaf pages."""
    store = opened()
    records = [record(f"r{n}", (200, 2500, 30_000)[n % 3]) for n in range(COUNT)]
    for wanted in records:
        assert store.put(wanted)
    folder = Path(store.inventory().place)
    store.close()
    (name,) = generation.listed(folder)
    return folder / str(name), records


@pytest.mark.parametrize("cut", [0, 1, 100, 4096, 5000, 8192, 100_000, 300_000, "full - 1"])
def test_a_file_cut_short_before_it_is_opened(
    filled: tuple, opened: Callable[..., Store], cut: int | str
) -> None:
    """It is set aside with one notice; whatever lies before the cut is found again."""
    path, records = filled
    size = path.stat().st_size
    length = size - 1 if cut == "full - 1" else int(cut)
    os.truncate(path, length)
    told: list[str] = []
    store = opened(notice=told.append)
    found = store.get_many([r.digest for r in records])
    assert all(found[r.digest] == r for r in records if r.digest in found)
    stats = store.stats()
    assert stats["damaged"] == 1
    assert stats["salvaged"] == len(found)
    assert sum(stats["misses"].values()) == COUNT - len(found)
    if length > 2_000_000:
        assert len(found) == COUNT
    (message,) = told
    assert str(path) in message and "set aside" in message and "compiled again" in message
    (aside,) = (path.parent / "damaged").iterdir()
    assert aside.stat().st_size == length
    assert all(store.put(r) for r in records)
    assert store.get_many([r.digest for r in records]) == {r.digest: r for r in records}


@pytest.mark.parametrize("cut", [0, 5000, 100_000])
def test_a_file_cut_short_while_it_is_open(
    opened: Callable[..., Store], record: Callable, cut: int
) -> None:
    """The size is asked before every transaction, so an open map is not read beyond the file."""
    store = opened()
    records = [record(f"r{n}", 30_000) for n in range(20)]
    assert store.put_many(records)
    folder = Path(store.inventory().place)
    (name,) = generation.listed(folder)
    os.truncate(folder / str(name), cut)
    found = store.get_many([r.digest for r in records])
    assert all(found[r.digest] == r for r in records if r.digest in found)
    assert store.stats()["damaged"] == 1
    assert store.put_many(records[:10])
    os.truncate(folder / str(generation.listed(folder)[0]), cut)
    assert store.put_many(records)
    assert store.stats()["damaged"] == 2
    assert store.get_many([r.digest for r in records]) == {r.digest: r for r in records}
    assert store.stats()["put_failures"] == {}


@pytest.mark.parametrize("content", [b"", b"not an LMDB file", bytes(1 << 20), b"\xff" * 70_000])
def test_a_file_that_is_something_else(
    filled: tuple, opened: Callable[..., Store], content: bytes
) -> None:
    """Other bytes under a generation's name, of right or wrong length, cost that file only."""
    path, records = filled
    path.write_bytes(content)
    store = opened()
    assert store.get_many([r.digest for r in records]) == {}
    assert store.put(records[0])
    assert store.get(records[0].digest) == records[0]
    path.write_bytes(content)
    os.truncate(path, GenerationName.parse(path.name).size)  # type: ignore[union-attr]
    store.close()
    store = opened()
    assert store.get(records[0].digest) is None or store.get(records[0].digest) == records[0]
    assert store.put(records[1])


def test_other_generations_are_untouched(opened: Callable[..., Store], record: Callable) -> None:
    """With one of several generations damaged, all records of the others are still there."""
    store = opened(quota_bytes=8 << 20)
    records = [record(f"r{n}", 60_000) for n in range(60)]
    assert all(store.put(r) for r in records)
    folder = Path(store.inventory().place)
    store.close()
    names = generation.listed(folder)
    assert len(names) >= 3
    lost = folder / str(names[1])
    lost.write_bytes(b"")
    store = opened(quota_bytes=8 << 20)
    found = store.get_many([r.digest for r in records])
    assert found == {r.digest: r for r in records if r.digest in found}
    assert store.stats()["damaged"] == 1
    assert len(found) >= 60 - 30
    for n in (0, 59):  # oldest and newest generation
        assert store.get(records[n].digest) == records[n]


def test_a_flipped_bit_in_a_payload_costs_that_record_only(
    filled: tuple, opened: Callable[..., Store]
) -> None:
    """The record is a miss of reason "checksum", all others hit, and a new put replaces it."""
    path, records = filled
    victim = records[2]
    data = bytearray(path.read_bytes())
    position = data.find(encode(victim)[-4000:])
    assert position > 0
    data[position + 17] ^= 0x10
    path.write_bytes(data)
    store = opened()
    assert store.get_many([r.digest for r in records]).keys() == {
        r.digest for r in records if r is not victim
    }
    assert store.stats()["misses"] == {"checksum": 1}
    assert store.inventory().unreadable == 1
    assert store.put(victim)
    assert store.get(victim.digest) == victim
    assert store.stats()["nondeterministic"] == 0


def test_a_flipped_byte_in_every_value_is_found_in_every_value(
    filled: tuple, opened: Callable[..., Store]
) -> None:
    """All records damaged, each somewhere else: all are misses, and all can be put again."""
    path, records = filled
    data = bytearray(path.read_bytes())
    rng = random.Random(3)
    for wanted in records:
        encoded = encode(wanted)
        offset, bit = rng.randrange(len(encoded)), 1 << rng.randrange(8)
        start = data.find(encoded)
        assert start > 0
        while start >= 0:  # pages that LMDB has copied hold older copies
            data[start + offset] ^= bit
            start = data.find(encoded)
    path.write_bytes(data)
    store = opened()
    assert store.get_many([r.digest for r in records]) == {}
    assert sum(store.stats()["misses"].values()) == COUNT
    assert "absent" not in store.stats()["misses"]
    assert store.put_many(records)
    assert store.get_many([r.digest for r in records]) == {r.digest: r for r in records}


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize("offset", [0, 8, 10, 16, 20, 32, 40, 45, 136, 144])
def test_a_flipped_bit_in_a_meta_page(
    filled: tuple, opened: Callable[..., Store], page: int, offset: int
) -> None:
    """LMDB never sees a damaged meta page, and every record is found again by the scan."""
    path, records = filled
    with path.open("r+b") as file:
        file.seek(page * 4096 + offset + 1)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x40]))
    store = opened()
    assert store.get_many([r.digest for r in records]) == {r.digest: r for r in records}


FUZZ = """
import random, sys
from pathlib import Path
from kernelfarm.cache.opening import open_store
from kernelfarm.cache.record import encode
sys.path.insert(0, sys.argv[3])
from conftest import make_record

store = open_store(Path(sys.argv[1]), quota_bytes=32 << 20, parsed_bytes=0)
records = [make_record(f"r{n}", (200, 2500, 30_000)[n % 3]) for n in range(int(sys.argv[2]))]
right = {r.digest: r for r in records}
found = store.get_many(right)
assert all(right[digest] == record for digest, record in found.items()), "a wrong value"
for record in records[:3]:
    assert store.put(record), store.stats()
    assert store.get(record.digest) == record
print(len(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_flips_anywhere_in_the_file(filled: tuple, seed: int) -> None:
    """Flipped bits in data and tree pages give right values or misses, in a fresh process."""
    path, _ = filled
    rng = random.Random(seed)
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0"))
    for _ in range(rng.choice((1, 4))):
        data[rng.randrange(used)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    place = path.parent.parent
    child = subprocess.run(
        [sys.executable, "-c", FUZZ, str(place), str(COUNT), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) >= COUNT - 25


@pytest.mark.parametrize("kind", ["directory", "pipe", "link"])
@pytest.mark.parametrize("victim", ["FORMAT", "BOOT", "generation", "generation lock"])
def test_what_is_no_file_any_more_costs_records_and_nothing_else(
    filled: tuple, opened: Callable[..., Store], victim: str, kind: str
) -> None:
    """A directory, pipe or endless device in a file's place neither blocks nor stops the store."""
    path, records = filled
    place = {
        "FORMAT": path.parents[1] / "FORMAT",
        "BOOT": path.parent / "BOOT",
        "generation": path,
        "generation lock": Path(f"{path}-lock"),
    }[victim]
    place.unlink()
    match kind:
        case "directory":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
        case _:
            place.symlink_to("/dev/zero")
    for _ in range(2):
        store = opened()
        assert all(store.put(wanted) for wanted in records)
        assert store.get_many([r.digest for r in records]) == {r.digest: r for r in records}
        store.close()


@pytest.mark.parametrize("junk", [b"", b"kernelfarm sto", b"\xff\xfe" * 40])
def test_a_damaged_format_file_is_written_anew(
    filled: tuple, opened: Callable[..., Store], junk: bytes
) -> None:
    """FORMAT only describes; if it is not readable, nothing is lost."""
    path, records = filled
    note = path.parent.parent / "FORMAT"
    good = note.read_text()
    note.write_bytes(junk)
    store = opened()
    assert store.get(records[0].digest) == records[0]
    assert note.read_text() == good


def test_a_lost_long_value_is_a_miss_and_can_be_put_again(
    opened: Callable[..., Store], record: Callable
) -> None:
    """Somebody deletes or cuts a file beside the generations: a miss, and the next put heals."""
    store = opened()
    wanted = record("long", 6 << 20)
    assert store.put(wanted)
    assert store.get(wanted.digest) == wanted
    (path,) = (Path(store.inventory().place) / "large").iterdir()
    os.truncate(path, 100)
    assert store.get(wanted.digest) is None
    path.unlink()
    assert store.get(wanted.digest) is None
    assert store.stats()["misses"] == {"truncated": 2}
    assert store.put(wanted)
    assert store.get(wanted.digest) == wanted


def test_long_values_of_a_damaged_generation_are_put_back(
    opened: Callable[..., Store], record: Callable
) -> None:
    """Values beside a generation survive the loss of its LMDB file."""
    store = opened()
    wanted = [record("long", 6 << 20), record("short")]
    assert store.put_many(wanted)
    folder = Path(store.inventory().place)
    store.close()
    (folder / str(generation.listed(folder)[0])).write_bytes(b"")
    store = opened()
    assert store.get(wanted[0].digest) == wanted[0]
    assert store.get(wanted[1].digest) is None
    assert len(list((folder / "large").iterdir())) == 1


def test_only_two_damaged_files_are_kept(opened: Callable[..., Store], record: Callable) -> None:
    """Set-aside files are for a person to look at, and do not pile up."""
    store = opened()
    for n in range(5):
        assert store.put(record(f"r{n}"))
        folder = Path(store.inventory().place)
        os.truncate(folder / str(generation.listed(folder)[0]), 10_000)
        store.get(record(f"r{n}").digest)
    assert store.stats()["damaged"] == 5
    assert len(list((folder / "damaged").iterdir())) == 2


def test_after_another_boot_the_newest_generation_is_searched_not_trusted(
    filled: tuple, opened: Callable[..., Store]
) -> None:
    """Nothing is synced, so after a boot the newest file is replaced by what verifies in it."""
    path, records = filled
    (path.parent / "BOOT").write_text("an earlier boot\n")
    store = opened()
    assert store.get_many([r.digest for r in records]) == {r.digest: r for r in records}
    stats = store.stats()
    assert (stats["damaged"], stats["salvaged"]) == (0, COUNT)
    assert not path.exists()
    store.close()
    store = opened()
    assert len(store.get_many([r.digest for r in records])) == COUNT
    assert store.stats()["salvaged"] == 0


def test_after_another_boot_old_generations_are_trusted(
    opened: Callable[..., Store], record: Callable
) -> None:
    """A file last written long before the newest one had reached the disk; it stays."""
    store = opened(quota_bytes=8 << 20)
    records = [record(f"r{n}", 60_000) for n in range(60)]
    assert all(store.put(r) for r in records)
    folder = Path(store.inventory().place)
    store.close()
    names = generation.listed(folder)
    for name in names[1:]:
        os.utime(folder / str(name), (1000, 1000))
    (folder / "BOOT").write_text("an earlier boot\n")
    store = opened(quota_bytes=8 << 20)
    assert len(store.get_many([r.digest for r in records])) == 60
    left = generation.listed(folder)
    assert names[0] not in left
    assert set(names[1:]) <= set(left)


def test_a_scan_finds_every_record_and_nothing_else(tmp_path: Path, record: Callable) -> None:
    """Records between junk, across chunks, with false magics inside, are all found."""
    records = [record(f"r{n}", 50_000) for n in range(8)]
    junk = random.Random(1).randbytes
    path = tmp_path / "file"
    parts = [junk(1000) + b"KFR1" + junk(30) + encode(r) + b"KFR1KFR" for r in records]
    half = encode(record("half"))[:-1]
    path.write_bytes(b"".join(parts) + half)
    original = salvage._CHUNK
    try:
        for salvage._CHUNK in (original, 4099, 50):
            assert [r for r, _ in salvage.records_in(path, 20.0)] == records
    finally:
        salvage._CHUNK = original


def test_a_missing_generation_file_is_no_error(tmp_path: Path) -> None:
    """A name that lists no file raises OSError, a wrong size Damaged, before LMDB is asked."""
    name = GenerationName(1, 1 << 20)
    with pytest.raises(FileNotFoundError):
        Generation(tmp_path, name)
    assert not (tmp_path / str(name)).exists()
    generation.create(tmp_path, GenerationName(1, 1 << 19))
    os.rename(tmp_path / str(GenerationName(1, 1 << 19)), tmp_path / str(name))
    with pytest.raises(Damaged, match="524288 bytes, not 1048576"):
        Generation(tmp_path, name)
