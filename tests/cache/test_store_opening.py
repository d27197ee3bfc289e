"""Which directories are taken, which are refused, and with what words."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelfarm.cache import filesystem, opening
from kernelfarm.cache.errors import (
    ForeignOwner,
    NetworkFilesystem,
    NotWritable,
    StoreUnusable,
    UnknownFormat,
)
from kernelfarm.cache.opening import open_store
from kernelfarm.cache.store import MemoryStore, Store

NETWORK = ["nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "gpfs", "ceph", "beegfs", "virtiofs"]
FUSE = ["fuse", "fuse.sshfs", "fuse.glusterfs", "fuseblk"]


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes paths seem to lie on filesystems by name: ``mounted({path: "nfs4"})``."""

    def mount(names: dict[Path, str], other: str = "ext4") -> None:
        def filesystem_of(path: Path) -> str:
            for root, name in names.items():
                if path == root or root in path.parents:
                    return name
            return other

        monkeypatch.setattr(filesystem, "filesystem_of", filesystem_of)

    return mount


@pytest.mark.parametrize("name", NETWORK + FUSE)
def test_a_named_directory_on_a_network_filesystem_is_refused(
    local_dir: Path, mounted: Callable, name: str
) -> None:
    """The error names directory, filesystem and remedy, and nothing is written there."""
    mounted({local_dir: name})
    with pytest.raises(NetworkFilesystem) as caught:
        open_store(local_dir / "store")
    message = str(caught.value)
    assert str(local_dir / "store") in message
    assert f"({name})" in message
    assert "name a directory on a local disk" in message
    assert list(local_dir.iterdir()) == []


@pytest.mark.parametrize("name", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "unknown"])
def test_a_named_directory_on_a_local_filesystem_is_taken(
    local_dir: Path, mounted: Callable, name: str
) -> None:
    """Local and layered filesystems are fine when somebody asks for them."""
    mounted({local_dir: name})
    store = open_store(local_dir / "store")
    assert not isinstance(store, MemoryStore)
    store.close()


@pytest.mark.parametrize("name", ["nfs4", "fuse.sshfs", "overlay"])
def test_the_default_directory_moves_to_shared_memory(
    local_dir: Path, mounted: Callable, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """On a network or layered filesystem the default lies in /dev/shm, with one notice."""
    memory = local_dir / "shm"
    memory.mkdir()
    monkeypatch.setattr(filesystem, "SHARED_MEMORY", memory)
    mounted({local_dir / "home": name}, other="tmpfs")
    (local_dir / "home").mkdir()
    told: list[str] = []
    store = open_store(environ={"XDG_CACHE_HOME": str(local_dir / "home")}, notice=told.append)
    assert Path(store.inventory().place).parent == memory / f"kernelfarm-{os.geteuid()}"
    assert list((local_dir / "home").iterdir()) == []
    store.close()
    (message,) = told
    assert f"lies on {name}" in message
    assert "/shm/" in message


def test_the_default_directory_is_in_the_users_cache(local_dir: Path, mounted: Callable) -> None:
    """On a local disk it is $XDG_CACHE_HOME/kernelfarm, without a word."""
    mounted({})
    told: list[str] = []
    store = open_store(environ={"XDG_CACHE_HOME": str(local_dir)}, notice=told.append)
    assert Path(store.inventory().place).parent == local_dir / "kernelfarm"
    assert stat.S_IMODE((local_dir / "kernelfarm").stat().st_mode) == 0o700
    assert told == []
    store.close()


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch, local_dir: Path) -> None:
    """Only an absolute XDG_CACHE_HOME counts; otherwise it is ~/.cache."""
    monkeypatch.setenv("HOME", str(local_dir))
    for environ in ({"XDG_CACHE_HOME": "relative"}, {}):
        where, _ = filesystem.default_directory(environ)
        assert where in (local_dir / ".cache" / "kernelfarm", filesystem.SHARED_MEMORY / where.name)


def test_with_no_fit_place_memory_serves(
    local_dir: Path, mounted: Callable, monkeypatch: pytest.MonkeyPatch, record: Callable
) -> None:
    """If even /dev/shm is unfit, the default store lasts for the process; nothing raises."""
    monkeypatch.setattr(filesystem, "SHARED_MEMORY", local_dir / "shm")
    mounted({local_dir: "nfs4"})
    told: list[str] = []
    store = open_store(environ={"XDG_CACHE_HOME": str(local_dir)}, notice=told.append)
    assert isinstance(store, MemoryStore)
    assert store.put(record("a"))
    assert store.get(record("a").digest) == record("a")
    assert "last for this process" in told[-1]


def test_a_file_is_no_directory(local_dir: Path) -> None:
    """A path that is a file, or lies under one, is named with its remedy."""
    (local_dir / "file").write_text("")
    with pytest.raises(NotWritable, match="name a directory"):
        open_store(local_dir / "file")
    with pytest.raises(NotWritable, match="not a directory; name a directory"):
        open_store(local_dir / "file" / "store")


def test_a_directory_that_cannot_be_written_is_refused() -> None:
    """/proc and /sys take no files, whoever asks."""
    with pytest.raises(NotWritable, match="store directory /proc"):
        open_store(Path("/proc/self"))
    with pytest.raises(StoreUnusable, match="store directory /sys"):
        open_store(Path("/sys/kernel/kernelfarm"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")
def test_a_directory_of_somebody_else_is_refused(local_dir: Path) -> None:
    """Another user's directory, or folder inside it, is refused by both users' numbers."""
    theirs = local_dir / "theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    with pytest.raises(ForeignOwner, match="belongs to user 12345, and you are user 0"):
        open_store(theirs)
    store = open_store(local_dir / "store")
    folder = Path(store.inventory().place)
    store.close()
    os.chown(folder, 12345, 12345)
    with pytest.raises(ForeignOwner, match="12345"):
        open_store(local_dir / "store")


def test_a_path_that_no_system_takes_is_refused(local_dir: Path) -> None:
    """A null byte or an endless name is NotWritable like any other unfit path."""
    for name in ("a\0b", "x" * 300):
        with pytest.raises(NotWritable):
            open_store(local_dir / name)


def test_a_user_without_a_home_gets_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where "~" means nothing, no folder of that name is made."""
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    where, why = filesystem.default_directory({})
    assert where.parent == filesystem.SHARED_MEMORY
    assert why is not None and "without a home" in why


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_home_that_may_not_even_be_looked_into(local_dir: Path) -> None:
    """A stranger under root's closed home gets shared memory by default, NotWritable by name."""
    closed = local_dir / "closed"
    closed.mkdir(mode=0o700)
    (closed / "inner").mkdir()
    local_dir.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setuid(65534)
            where, why = filesystem.default_directory({"XDG_CACHE_HOME": str(closed / "inner")})
            ok = where.parent == filesystem.SHARED_MEMORY and "cannot be written" in str(why)
            try:
                open_store(closed / "inner" / "store")
            except NotWritable as error:
                status = 0 if ok and "permission denied" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_directory_that_everybody_writes_is_refused(local_dir: Path) -> None:
    """World-writable without the sticky bit: others could exchange the files. With it: fine."""
    shared = local_dir / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ForeignOwner, match="chmod o-w"):
        open_store(shared)
    shared.chmod(0o1777)
    store = open_store(shared)
    assert stat.S_IMODE(Path(store.inventory().place).stat().st_mode) == 0o700
    store.close()


def test_a_link_in_place_of_our_folder_is_refused(local_dir: Path) -> None:
    """Our folder must be a folder, so that nobody leads us elsewhere."""
    store = open_store(local_dir / "store")
    folder = Path(store.inventory().place)
    store.close()
    os.rename(folder, local_dir / "elsewhere")
    folder.symlink_to(local_dir / "elsewhere")
    with pytest.raises(NotWritable, match="not a directory"):
        open_store(local_dir / "store")


def test_another_layout_is_refused(local_dir: Path) -> None:
    """A directory of a later version is named with both versions, and stays as it is."""
    note = local_dir / "FORMAT"
    note.write_text("kernelfarm store, layout 2\nsomething new\n")
    with pytest.raises(UnknownFormat, match="layout is version 2, and this kernelfarm writes 1"):
        open_store(local_dir)
    assert os.listdir(local_dir) == ["FORMAT"]


def test_the_layout_describes_itself(opened: Callable[..., Store], record: Callable) -> None:
    """FORMAT says what the directory is; all files are private."""
    store = opened()
    store.put(record("a"))
    folder = Path(store.inventory().place)
    assert (folder.parent / "FORMAT").read_text().startswith("kernelfarm store, layout 1\n")
    assert folder.name == f"{os.geteuid()}-{os.stat('/proc/self/ns/pid').st_ino}"
    for path in folder.rglob("*.mdb*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_aliases_of_a_directory_are_one_store(
    opened: Callable[..., Store], record: Callable, local_dir: Path
) -> None:
    """A path, a link to it and a way through ".." share one shelf; the last close closes it."""
    before = len(opening._registry.opened)
    first = opened(local_dir / "store")
    (local_dir / "link").symlink_to("store")
    second = opened(local_dir / "link")
    third = opened(local_dir / "store" / ".." / "store")
    assert len(opening._registry.opened) == before + 1
    assert first.put(record("a"))
    assert second.get(record("a").digest) == third.get(record("a").digest) == record("a")
    first.close()
    second.close()
    assert third.put(record("b"))
    third.close()
    assert len(opening._registry.opened) == before


def test_a_store_is_adopted_across_pid_namespaces(
    opened: Callable[..., Store],
    record: Callable,
    monkeypatch: pytest.MonkeyPatch,
    local_dir: Path,
) -> None:
    """A container that starts again finds what the last one stored; a live one is left alone."""
    store = opened()
    store.put(record("a"))
    monkeypatch.setattr(opening, "_pid_namespace", lambda: 4242)
    other = opened()
    assert other.get(record("a").digest) is None  # the first one is still open
    other.put(record("b"))
    store.close()
    other.close()
    monkeypatch.setattr(opening, "_pid_namespace", lambda: 4343)
    third = opened()
    found = third.get_many([record("a").digest, record("b").digest])
    assert len(found) == 1
    assert len(list((local_dir / "store").glob("*-*"))) == 2


def test_the_filesystem_is_read_from_the_kernels_table() -> None:
    """The real function names real mounts."""
    assert filesystem.filesystem_of(Path("/proc")) == "proc"
    assert filesystem.filesystem_of(Path("/sys")) == "sysfs"
    assert filesystem.filesystem_of(Path("/does/not/exist")) == "unknown"
    assert not filesystem.is_network(filesystem.filesystem_of(Path("/dev/shm")))


def test_a_notice_that_raises_is_never_called_again(local_dir: Path, record: Callable) -> None:
    """A person's callback cannot fail a put."""
    calls: list[str] = []

    def bad(text: str) -> None:
        calls.append(text)
        raise RuntimeError("the terminal is gone")

    store = open_store(local_dir / "store", quota_bytes=8 << 20, notice=bad)
    assert not store.put(record("huge", 8 << 20))
    assert not store.put(record("huge", 8 << 20))
    assert len(calls) == 1
    store.close()
