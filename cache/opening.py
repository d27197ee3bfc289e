"""Opens the store of a directory: checks the place, lays it out, joins the tiers.

::

    <directory>/FORMAT                     what this is, in words and a version
               /<uid>-<pid namespace>/     the shelf of one user in one PID namespace, 0700

LMDB tells living readers from dead ones by pid, so processes of two PID namespaces must not share
its files. A shelf that nobody uses any more is adopted by the next namespace that has none: a
container that is started again finds what the last one stored.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from . import atomic, filesystem, forks, generation
from .counters import Counters, Notice, Once
from .errors import NotWritable, StoreUnusable, UnknownFormat
from .layered import LayeredStore
from .leases import LeaseFiles
from .local import LocalStore
from .locks import Gate
from .shelf import Shelf
from .store import MemoryStore, Store

QUOTA_BYTES = 8 << 30
#: A store in memory (tmpfs) takes no more than this, whatever the quota.
MEMORY_QUOTA_BYTES = 2 << 30
#: Bytes of parsed records that a process keeps before it asks the disk again.
PARSED_BYTES = 128 << 20
GENERATIONS = 8

LAYOUT_VERSION = 1

_FORMAT = "kernelfarm store, layout "
_FORMAT_TEXT = (
    f"{_FORMAT}{LAYOUT_VERSION}\n"
    "One folder per user and PID namespace. In it gen-NUMBER.BYTES.mdb are LMDB files of fixed\n"
    "size, the highest number newest; their values are KFR1 records, checksummed, never code.\n"
    "Safe to delete as a whole at any time; not to be shared between machines.\n"
)
_CLAIM_TIMEOUT = 5.0


def open_store(
    directory: Path | None = None,
    *,
    quota_bytes: int = QUOTA_BYTES,
    generations: int = GENERATIONS,
    parsed_bytes: int = PARSED_BYTES,
    strict: bool = False,
    notice: Notice | None = None,
    environ: Mapping[str, str] | None = None,
) -> Store:
    """Return the store of ``directory`` (L0 over L1), which is made if it is not there.

    A named directory that cannot hold a store raises StoreUnusable, which says what to do. With
    None the default place is used; where that is unfit, /dev/shm, and where that is too, memory of
    this process, each with a notice. ``quota_bytes`` bounds the disk, ``generations`` is over how
    many files. ``strict`` makes failed puts raise PutFailed.
    """
    once = Once(notice)
    if directory is not None:
        places = [Path(directory)]
    else:
        usual, why = filesystem.default_directory(os.environ if environ is None else environ)
        if why is not None:
            once.tell("place", why)
        memory = filesystem.SHARED_MEMORY / f"kernelfarm-{os.geteuid()}"
        places = list(dict.fromkeys((usual, memory)))
    for place in places:
        try:
            opened = _open_shelf(place, quota_bytes, generations)
        except (StoreUnusable, OSError, ValueError) as error:
            if directory is not None:
                raise _named(place, error) from None
            once.tell(str(place), f"{error}; trying the next place")
            continue
        return LayeredStore(_memory(parsed_bytes), _local(opened, strict, notice))
    once.tell("memory", "no directory can hold a store; compiled kernels last for this process")
    return _memory(parsed_bytes, strict, notice)


def _named(place: Path, error: Exception) -> StoreUnusable:
    if isinstance(error, StoreUnusable):
        return error
    return NotWritable(place, str(error), "name a directory of your own on a local disk")


class _Opened:
    """A shelf that this process has open, and by how many stores it is used."""

    def __init__(self, identity: tuple[int, int], shelf: Shelf, counters: Counters, claim: int):
        self.identity = identity
        self.shelf = shelf
        self.counters = counters
        self.leases = LeaseFiles(shelf.directory / "leases", time.time)
        #: Descriptor of use.lock, held shared so that no other namespace adopts the folder.
        self.claim = claim
        self.users = 0


class _Registry:
    """Every shelf open in this process, by device and inode: aliases of a path are one shelf."""

    gate: Gate | None = None

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.opened: dict[tuple[int, int], _Opened] = {}

    def forget(self, *, clean: bool) -> None:
        """In a forked child: nobody else holds the lock any more."""
        self.lock = threading.Lock()


_registry = _Registry()
forks.register(_registry)


def _open_shelf(place: Path, quota: int, generations: int) -> _Opened:
    place = Path(os.path.abspath(place))
    lies_on = filesystem.prepare(place)
    with _registry.lock:
        _check_format(place)
        directory, claim = _claim(place)
        status = os.fstat(claim)
        identity = (status.st_dev, status.st_ino)
        opened = _registry.opened.get(identity)
        if opened is not None:
            os.close(claim)
        else:
            counters = Counters()
            shelf = Shelf(directory, _fitting(directory, quota, lies_on), generations, counters)
            opened = _Opened(identity, shelf, counters, claim)
            for part in (counters, shelf, opened.leases):
                forks.register(part)
            _registry.opened[identity] = opened
        opened.users += 1
        return opened


def _release(opened: _Opened) -> None:
    with _registry.lock:
        opened.users -= 1
        if opened.users > 0:
            return
        _registry.opened.pop(opened.identity, None)
    opened.shelf.close()
    opened.leases.close()
    os.close(opened.claim)


def _local(opened: _Opened, strict: bool, notice: Notice | None) -> LocalStore:
    return LocalStore(
        opened.shelf,
        opened.counters,
        strict=strict,
        notice=notice,
        leases=opened.leases,
        release=lambda: _release(opened),
    )


def _memory(size: int, strict: bool = False, notice: Notice | None = None) -> MemoryStore:
    memory = MemoryStore(size, strict=strict, notice=notice)
    forks.register(memory)
    return memory


def _check_format(place: Path) -> None:
    path = place / "FORMAT"
    try:
        atomic.make_way(path)
        text = atomic.read_head(path, 4096).decode("utf-8", "replace")
    except FileNotFoundError:
        text = ""
    except OSError as error:
        raise NotWritable(place, f"its FORMAT cannot be read ({error})", f"delete {path}") from None
    first = text.partition("\n")[0]
    version = first.removeprefix(_FORMAT) if first.startswith(_FORMAT) else ""
    if version.isdecimal() and int(version) != LAYOUT_VERSION:
        raise UnknownFormat(
            place,
            f"its layout is version {version}, and this kernelfarm writes {LAYOUT_VERSION}",
            "name another directory, or use the kernelfarm that made it",
        )
    if (
        not version.isdecimal()
    ):  # new, or the file is damaged; what the folders hold is checked on its own
        try:
            atomic.put(path, _FORMAT_TEXT)
        except OSError as error:
            raise NotWritable(
                place, f"FORMAT cannot be written ({error})", "make room or name another directory"
            ) from None


def _claim(place: Path) -> tuple[Path, int]:
    """Return our folder in ``place`` and a descriptor that keeps others from adopting it."""
    name = f"{os.geteuid()}-{_pid_namespace()}"
    directory = place / name
    deadline = time.monotonic() + _CLAIM_TIMEOUT
    while True:
        if not os.path.exists(directory):
            _adopt(place, directory)
        filesystem.own_directory(directory)
        try:
            fd = os.open(directory / "use.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NotWritable(directory, str(error), "name another directory") from None
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if _same(fd, directory / "use.lock"):
                return directory, fd
        os.close(fd)
        if time.monotonic() > deadline:
            raise NotWritable(
                directory, "another process keeps it locked", "end that, or name another directory"
            )
        time.sleep(0.005)


def _adopt(place: Path, directory: Path) -> None:
    """Rename a folder of ours from another PID namespace to ``directory`` if nobody uses it."""
    for entry in sorted(os.listdir(place)):
        user, _, namespace = entry.partition("-")
        if user != str(os.geteuid()) or not namespace.isdecimal():
            continue
        old = place / entry
        with contextlib.suppress(OSError):
            if old.lstat().st_uid != os.geteuid():
                continue
            fd = os.open(old / "use.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same(fd, old / "use.lock"):
                    for file in generation.listed(old):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(old / f"{file}-lock")
                    os.rename(old, directory)
                    return
            finally:
                os.close(fd)


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _fitting(directory: Path, quota: int, lies_on: str) -> int:
    """Return the quota, lowered to half of what the filesystem can give."""
    used = sum((directory / str(name)).stat().st_blocks for name in generation.listed(directory))
    limit = (filesystem.free_bytes(directory) + used * 512) // 2
    if lies_on in ("tmpfs", "ramfs"):
        limit = min(limit, MEMORY_QUOTA_BYTES)
    return min(quota, limit)


def _same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False
