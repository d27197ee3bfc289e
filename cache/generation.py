"""One generation: an LMDB file of fixed size, made whole, opened with care, never grown.

LMDB maps the file. A mapped page beyond the end of the file kills the process (SIGBUS), and LMDB
has no checksums, so what can be known is checked from outside before LMDB may look:

- The file is extended (sparse) to its full size when it is made, and its name states that size.
  A file of any other size was cut short; that is asked before every transaction.
- Both meta pages are read by pread and checked before the file is opened.
- No value is longer than ``max_inline``, and the last ``max_inline`` bytes of the file stay
  unused, so that a damaged length still ends inside the map; longer values are files beside it.

What cannot be survived: somebody cutting the file in the microseconds between the size check and
the read, and damage to LMDB's own tree pages that LMDB itself asserts on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import atomic

#: Values up to this many bytes go into LMDB, in files large enough.
MAX_INLINE = 4 << 20
#: No generation is smaller; below it LMDB's own pages weigh too much.
MIN_SIZE = 256 << 10

MAX_READERS = 1024

#: What stands in LMDB for a value that lies beside it, followed by its length.
_POINTER = struct.Struct("<4sQ")
_POINTER_MAGIC = b"KFL1"

_META = struct.Struct("<QHHIIIQQ")
_DB = struct.Struct("<IHHQQQQQ")
_META_END = struct.Struct("<QQ")
_META_BYTES = _META.size + 2 * _DB.size + _META_END.size
_META_MAGIC = 0xBEEFC0DE
_META_FLAG = 0x08
_NO_PAGE = 0xFFFFFFFFFFFFFFFF
#: LMDB takes the page size of the machine.
PAGE = os.sysconf("SC_PAGE_SIZE")


class Damaged(Exception):
    """A generation's file cannot be trusted; ``reason`` is the counter's name."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Full(Exception):
    """The generation has no room for the batch."""


class Trouble(Exception):
    """The generation could not be used this time, through no fault of the file's content."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class GenerationName(NamedTuple):
    """A generation's number, counting up, and its file's fixed size in bytes."""

    number: int
    size: int

    def __str__(self) -> str:
        return f"gen-{self.number:08d}.{self.size}.mdb"

    @classmethod
    def parse(cls, name: str) -> GenerationName | None:
        """Return what a file name states, or None if it is no generation's."""
        head, _, rest = name.partition(".")
        size, _, suffix = rest.partition(".")
        number = head.removeprefix("gen-")
        if suffix != "mdb" or len(number) != 8 or not (number + size).isdecimal():
            return None
        found = cls(int(number), int(size))
        return found if str(found) == name else None


def listed(directory: Path) -> list[GenerationName]:
    """Return the generations in ``directory``, newest first."""
    found = map(GenerationName.parse, os.listdir(directory))
    return sorted((name for name in found if name is not None), reverse=True)


def create(directory: Path, name: GenerationName) -> None:
    """Make an empty generation, complete or not at all; raises Trouble, OSError."""
    import lmdb

    temporary = directory / f".{name}.{os.getpid()}.tmp"
    lock = Path(f"{temporary}-lock")
    try:
        _open_lmdb(temporary, name.size).close()
        os.truncate(temporary, name.size)
        os.rename(temporary, directory / str(name))
    except lmdb.Error as error:
        raise Trouble("storage", f"cannot make {name}: {error}") from None
    finally:
        for leftover in (temporary, lock):
            with contextlib.suppress(OSError):
                os.unlink(leftover)


class Generation:
    """An open generation. Transactions are short and copy out; the caller keeps closes apart."""

    __slots__ = ("_directory", "_env", "_fd", "max_inline", "name", "path")

    def __init__(self, directory: Path, name: GenerationName) -> None:
        self.name = name
        self.path = directory / str(name)
        self.max_inline = max_inline(name.size)
        self._directory = directory
        # Not blocking, should a pipe be under the name.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(self.path, flags)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise Damaged("structure", f"{self.path} is a link") from None
        try:
            atomic.make_way(Path(f"{self.path}-lock"))
            self.check_size()
            _check_metas(self._fd, name.size)
            self._env = self._open()
        except BaseException:
            os.close(self._fd)
            raise

    def is_in_place(self) -> bool:
        """Say whether the open file is still the one under its name."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except OSError:
            return False

    def check_size(self) -> None:
        """Raise Damaged unless the file is as long as its name says."""
        size = os.fstat(self._fd).st_size
        if size != self.name.size:
            raise Damaged("cut_short", f"{self.path} has {size} bytes, not {self.name.size}")

    def read_many(self, digests: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the record bytes found, copied, in one transaction; raises Damaged, Trouble."""
        found: dict[bytes, bytes] = {}
        self.check_size()
        with self._transaction() as txn:
            for digest in digests:
                view = txn.get(digest)
                if view is not None:
                    found[digest] = self._copied(view)
        for digest, data in found.items():
            if data[:4] == _POINTER_MAGIC:
                found[digest] = self._read_beside(digest, data)
        return found

    def has(self, digest: bytes) -> bool:
        """Say whether there is a value under ``digest``; raises Damaged, Trouble."""
        self.check_size()
        with self._transaction() as txn:
            return txn.get(digest) is not None

    def write_many(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put all or none, over what is there; raises Full, Damaged, Trouble, OSError."""
        import lmdb

        self.check_size()
        self._check_room(items)
        inline = [(digest, self._inline(digest, data)) for digest, data in items]
        try:
            with self._transaction(write=True) as txn:
                for digest, value in inline:
                    txn.put(digest, value)
        except lmdb.MapFullError as error:
            raise Full(str(error)) from None

    def keys(self, after: bytes, limit: int = 256) -> list[bytes]:
        """Return up to ``limit`` keys beyond ``after``, in order; raises Damaged, Trouble."""
        self.check_size()
        found: list[bytes] = []
        with self._transaction() as txn:
            cursor = txn.cursor()
            there = cursor.set_range(after + b"\0") if after else cursor.first()
            while there and len(found) < limit:
                found.append(bytes(cursor.key()))
                there = cursor.next()
        return found

    def files(self) -> list[Path]:
        """Return every file of the generation: LMDB's two and the values beside it."""
        return [self.path, Path(f"{self.path}-lock"), *beside(self._directory, self.name)]

    def drop_dead_readers(self) -> None:
        """Free the reader slots of killed processes, whose pages could else never be reused."""
        self._env.reader_check()

    def close(self) -> None:
        """Close file and map; only when no transaction of this process is open in it."""
        self._env.close()
        os.close(self._fd)

    def _inline(self, digest: bytes, data: bytes) -> bytes:
        if len(data) <= self.max_inline:
            return data
        atomic.put(_beside_path(self._directory, self.name, digest), data)
        return _POINTER.pack(_POINTER_MAGIC, len(data))

    def _read_beside(self, digest: bytes, pointer: bytes) -> bytes:
        # Whatever is wrong with the file shows in the record that it is not.
        try:
            length = _POINTER.unpack(pointer)[1]
            with open(_beside_path(self._directory, self.name, digest), "rb") as file:
                return file.read(length + 1)
        except (OSError, struct.error):
            return b""

    def _copied(self, view: memoryview) -> bytes:
        if len(view) > self.max_inline:
            raise Damaged("malformed", f"{self.path} states a value of {len(view)} bytes")
        return bytes(view)

    def _check_room(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        needed = (self._env.info()["last_pgno"] + 1) * PAGE + room_for(items, self.max_inline)
        if any(len(data) > self.max_inline for _, data in items):
            for path in beside(self._directory, self.name):
                with contextlib.suppress(OSError):
                    needed += path.stat().st_size
        if needed > self.name.size - self.max_inline:
            raise Full(f"{self.path} is full")

    @contextlib.contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[Any]:
        import lmdb

        try:
            with self._env.begin(write=write, buffers=not write) as txn:
                yield txn
        except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.BadTxnError) as error:
            raise Damaged("structure", f"{self.path}: {error}") from None
        except lmdb.ReadersFullError as error:
            self._env.reader_check()
            raise Trouble("readers_full", f"{self.path}: {error}") from None
        except lmdb.MapFullError:
            raise
        except (lmdb.Error, SystemError, MemoryError) as error:
            raise Trouble("storage", f"{self.path}: {error}") from None

    def _open(self) -> Any:
        import lmdb

        try:
            env = _open_lmdb(self.path, self.name.size)
        except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as error:
            raise Damaged("structure", f"{self.path}: {error}") from None
        except lmdb.Error as error:
            raise Trouble("storage", f"{self.path}: {error}") from None
        env.reader_check()
        return env


def max_inline(size: int) -> int:
    """Return the longest value that a generation of ``size`` bytes takes into LMDB."""
    return min(MAX_INLINE, size // 16)


def room_for(items: Iterable[tuple[bytes, bytes]], inline: int) -> int:
    """Return the bytes that a batch takes at most, in LMDB and beside it."""
    total = 8 * PAGE  # the tree pages that a transaction copies whatever it holds
    for _, data in items:
        if len(data) > inline:
            total += len(data)
        else:
            # Its own pages, a leaf that is copied and one that is split off.
            total += (-(-(len(data) + 16) // PAGE) + 2) * PAGE
    return total


def beside(directory: Path, name: GenerationName) -> list[Path]:
    """Return the files of a generation's long values."""
    prefix = f"{name.number:08d}-"
    try:
        names = os.listdir(directory / "large")
    except FileNotFoundError:
        return []
    return [directory / "large" / entry for entry in names if entry.startswith(prefix)]


def _beside_path(directory: Path, name: GenerationName, digest: bytes) -> Path:
    return directory / "large" / f"{name.number:08d}-{digest.hex()}.kfr"


def _open_lmdb(path: Path, size: int) -> Any:
    import lmdb

    return lmdb.open(
        os.fspath(path),
        subdir=False,
        map_size=size,  # fixed for the file's life: growing a map under other processes is unsafe
        sync=False,  # a cache may lose its newest records to a power cut; it is then rebuilt
        metasync=False,
        writemap=False,  # a full disk is then an error and not a SIGBUS
        max_readers=MAX_READERS,
        max_spare_txns=0,  # a spare reader slot would be freed by a forked child's close
        mode=0o600,
        lib_version=0,  # the 0.9 file format, whatever the library's default becomes
    )


def _check_metas(fd: int, size: int) -> None:
    """Raise Damaged unless both meta pages are sound and of neighbouring transactions."""
    fault = ""
    for pause in (0.0, 0.001, 0.004, 0.016):
        if pause:  # what is being written just now may look torn
            time.sleep(pause)
        pages = [os.pread(fd, _META_BYTES, number * PAGE) for number in (0, 1)]
        transactions = [_sound_meta(page, number, size) for number, page in enumerate(pages)]
        if None in transactions:
            fault = f"meta page {transactions.index(None)} is damaged"
        elif abs(int(transactions[0] or 0) - int(transactions[1] or 0)) > 1:
            fault = "the meta pages are of distant transactions"
        else:
            return
    raise Damaged("structure", fault)


def _sound_meta(page: bytes, number: int, size: int) -> int | None:
    """Return the transaction that a meta page is of, or None if a field cannot be right."""
    if len(page) < _META_BYTES:
        return None
    pgno, _, flags, _, magic, version, _, map_size = _META.unpack_from(page)
    free = _DB.unpack_from(page, _META.size)
    main = _DB.unpack_from(page, _META.size + _DB.size)
    last, transaction = _META_END.unpack_from(page, _META.size + 2 * _DB.size)
    sound = (
        (pgno, magic, version & 0xFFFF) == (number, _META_MAGIC, 1)
        and flags & _META_FLAG
        and map_size == size
        and free[0] == PAGE
        and 0 < last < size // PAGE
        and all(root == _NO_PAGE or 1 < root <= last for root in (free[7], main[7]))
        and max(free[2], main[2]) < 32  # depths
        and transaction % 2 in (number, number if transaction else 0)
    )
    return transaction if sound else None
