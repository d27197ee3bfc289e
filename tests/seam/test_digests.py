"""File digests and their memo on disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from kernelfarm.compiler.seam.digests import FileDigests

YEAR_NS = 365 * 24 * 3600 * 10**9


def later() -> int:
    """A clock that says that every file has been left alone for long."""
    return os.stat("/proc/self").st_ctime_ns + YEAR_NS


@pytest.fixture
def memo(tmp_path: Path) -> Path:
    """A memo directory that does not exist yet."""
    return tmp_path / "memo"


def counted(digests: FileDigests, path: Path) -> tuple[str, int]:
    """Return the digest and how often the file was really read for it."""
    reads = []

    def compute() -> str:
        reads.append(1)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    return digests.remembered("file", [str(path)], compute), len(reads)


def test_a_file_is_read_once_per_machine(tmp_path: Path, memo: Path) -> None:
    """A second process (here: a second object) takes the digest from the memo."""
    path = tmp_path / "a.so"
    path.write_bytes(b"one")
    expected = hashlib.sha256(b"one").hexdigest()
    assert counted(FileDigests(memo, later), path) == (expected, 1)
    assert counted(FileDigests(memo, later), path) == (expected, 0)


def test_a_replaced_file_is_read_again_even_with_its_size_and_time_kept(
    tmp_path: Path, memo: Path
) -> None:
    """A copying tool that preserves size and modification time cannot leave a stale digest."""
    path = tmp_path / "ptxas"
    path.write_bytes(b"one")
    before = path.stat()
    counted(FileDigests(memo, later), path)
    other = tmp_path / "new"
    other.write_bytes(b"two")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert counted(FileDigests(memo, later), path) == (hashlib.sha256(b"two").hexdigest(), 1)


def test_a_file_that_was_just_written_is_not_remembered(tmp_path: Path, memo: Path) -> None:
    """Within a clock tick of a change the same stat may still mean other bytes."""
    path = tmp_path / "a.so"
    path.write_bytes(b"one")
    now = path.stat().st_ctime_ns + 1
    assert counted(FileDigests(memo, lambda: now), path)[1] == 1
    assert counted(FileDigests(memo, lambda: now), path)[1] == 1


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\xff\xfe", None])
def test_a_damaged_memo_entry_is_ignored(tmp_path: Path, memo: Path, damage: bytes | None) -> None:
    """An entry that does not check out, or belongs to another file, is computed anew."""
    path = tmp_path / "a.so"
    path.write_bytes(b"one")
    counted(FileDigests(memo, later), path)
    (entry,) = memo.iterdir()
    content = entry.read_bytes() if damage is None else damage
    entry.write_bytes(content if damage is not None else content.replace(b" ", b" 0", 1))
    assert counted(FileDigests(memo, later), path) == (hashlib.sha256(b"one").hexdigest(), 1)


def test_a_memo_that_others_may_write_is_not_trusted(tmp_path: Path, memo: Path) -> None:
    """Whoever could write the memo could choose our keys, so such a directory is not read."""
    path = tmp_path / "a.so"
    path.write_bytes(b"one")
    counted(FileDigests(memo, later), path)
    memo.chmod(0o770)
    assert counted(FileDigests(memo, later), path)[1] == 1


def test_an_unwritable_memo_costs_nothing_but_the_memo(tmp_path: Path) -> None:
    """Where the memo's place is a file, digests are still right."""
    blocked = tmp_path / "blocked"
    blocked.write_bytes(b"")
    path = tmp_path / "a.so"
    path.write_bytes(b"one")
    digests = FileDigests(blocked / "memo", later)
    assert digests.file(str(path)) == hashlib.sha256(b"one").hexdigest()


def test_a_missing_file_is_an_error(memo: Path) -> None:
    """There is no digest of nothing."""
    with pytest.raises(FileNotFoundError):
        FileDigests(memo).file("/nonexistent/ptxas")
