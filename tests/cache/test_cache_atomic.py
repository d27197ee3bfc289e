"""Files are replaced whole or not at all."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import stat
import threading
from pathlib import Path

import pytest

from kernelfarm.cache import atomic


def body(writer: int, turn: int) -> bytes:
    """A file that proves its own completeness: a line, repeated a number of times it states."""
    count = 200 + (writer * 37 + turn) % 800
    return f"{count}\n".encode() + f"{writer}-{turn}\n".encode() * count


def is_complete(data: bytes) -> bool:
    lines = data.split(b"\n")
    return len(lines) == int(lines[0]) + 2 and len(set(lines[1:-1])) == 1


def _write_many(path: Path, writer: int) -> None:
    for turn in range(200):
        atomic.put(path, body(writer, turn))


def _read_on(path: Path, stop: multiprocessing.synchronize.Event, bad: object) -> None:
    while not stop.is_set():
        if not is_complete(path.read_bytes()):
            bad.value += 1  # type: ignore[attr-defined]


@pytest.mark.slow
def test_readers_never_see_part_of_a_file(local_dir: Path) -> None:
    """8 processes replace one file 200 times each while 4 read it: every read is complete."""
    fork = multiprocessing.get_context("fork")
    path = local_dir / "file"
    atomic.put(path, body(0, 0))
    stop, bad = fork.Event(), fork.Value("i", 0)
    readers = [fork.Process(target=_read_on, args=(path, stop, bad)) for _ in range(4)]
    writers = [fork.Process(target=_write_many, args=(path, n)) for n in range(8)]
    for process in readers + writers:
        process.start()
    for process in writers:
        process.join()
    stop.set()
    for process in readers:
        process.join()
    assert [process.exitcode for process in readers + writers] == [0] * 12
    assert bad.value == 0
    assert os.listdir(local_dir) == ["file"]


def test_a_killed_writer_leaves_the_target_and_its_orphan_is_swept(tmp_path: Path) -> None:
    """kill -9 between write and rename: the old content stays, the next sweep removes the rest."""
    path = tmp_path / "file"
    atomic.put(path, b"old")
    pid = os.fork()
    if pid == 0:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        atomic.put(path, b"new")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert path.read_bytes() == b"old"
    (orphan,) = [entry for entry in tmp_path.iterdir() if entry != path]
    assert list(atomic.names(tmp_path)) == ["file"]
    assert atomic.sweep(tmp_path, older_than=600) == 0
    os.utime(orphan, (1000, 1000))
    assert atomic.sweep(tmp_path, older_than=600) == 1
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("failing", ["write", "replace", "open"])
def test_a_failed_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """A full disk at any step raises OSError, leaves the target as it was and no temporary."""
    path = tmp_path / "file"
    atomic.put(path, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError, match="No space left"):
        atomic.put(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_threads_that_write_one_path_use_different_temporaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads meet between write and rename; both finish, and a nested put does too."""
    meeting = threading.Barrier(2)
    sources: set[str] = set()
    replace = os.replace

    def meet(source: str, target: str) -> None:
        sources.add(os.fspath(source))
        meeting.wait(timeout=20)
        replace(source, target)

    monkeypatch.setattr(os, "replace", meet)
    path = tmp_path / "file"
    threads = [threading.Thread(target=atomic.put, args=(path, b"same")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sources) == 2
    assert path.read_bytes() == b"same"
    assert os.listdir(tmp_path) == ["file"]


def test_an_open_reader_keeps_the_old_file(tmp_path: Path) -> None:
    """Renaming over an open file works, and who has it open reads on in the old one."""
    path = tmp_path / "file"
    atomic.put(path, b"old")
    with path.open("rb") as reader:
        atomic.put(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"


def test_parents_text_and_permissions(tmp_path: Path) -> None:
    """Parents are made, text is UTF-8, the mode is what the umask leaves of 0666."""
    path = tmp_path / "a" / "b" / "file"
    old = os.umask(0o027)
    try:
        atomic.put(path, "größe\n", durable=True)
    finally:
        os.umask(old)
    assert path.read_bytes() == "größe\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_directory_appears_complete_and_the_first_one_stays(tmp_path: Path) -> None:
    """put_dir is all or nothing; a second one finds the first complete and drops its own."""
    path = tmp_path / "kernel"
    assert atomic.put_dir(path, {"cubin": b"1", "json": b"2"}, durable=True)
    assert not atomic.put_dir(path, {"cubin": b"other", "json": b"2"})
    assert {p.name: p.read_bytes() for p in path.iterdir()} == {"cubin": b"1", "json": b"2"}
    assert os.listdir(tmp_path) == ["kernel"]


def test_an_incomplete_directory_is_replaced(tmp_path: Path) -> None:
    """A directory that lacks one of the files was never finished by us; it is replaced."""
    path = tmp_path / "kernel"
    path.mkdir()
    (path / "cubin").write_bytes(b"half")
    assert atomic.put_dir(path, {"cubin": b"1", "json": b"2"})
    assert (path / "cubin").read_bytes() == b"1"
    assert os.listdir(tmp_path) == ["kernel"]


def test_a_directory_that_cannot_be_finished_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the second file fails, neither the directory nor a temporary is left."""
    write = os.write
    calls: list[int] = []

    def fail_second(fd: int, data: bytes) -> int:
        calls.append(fd)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", fail_second)
    with pytest.raises(OSError, match="No space"):
        atomic.put_dir(tmp_path / "kernel", {"cubin": b"1", "json": b"2"})
    assert os.listdir(tmp_path) == []


def test_names_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    """A file name in a directory artefact is one plain name."""
    for name in ("../x", "a/b", "", ".", "..", "a\0b"):
        with pytest.raises(ValueError, match="no plain file name"):
            atomic.put_dir(tmp_path / "kernel", {name: b""})
    assert os.listdir(tmp_path) == []
