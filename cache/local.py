"""L1: the store on a local disk that all processes of a machine read directly."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable
from typing import Any

from . import record as records
from .counters import Counters, Notice, Once
from .errors import BadRecord
from .generation import Damaged, Full, Trouble
from .key import DIGEST_BYTES, Key, digest_bytes
from .leases import LeaseFiles
from .locks import LockTimeout
from .record import Record
from .shelf import Shelf
from .store import LEASE_TTL, Inventory, KeyLike, Lease, refuse


class LocalStore:
    """The `Store` contract over a shelf of LMDB generations.

    ``release`` is called once when the store is closed; shelf and counters may be shared with
    other handles on the same directory in this process.
    """

    def __init__(
        self,
        shelf: Shelf,
        counters: Counters,
        *,
        strict: bool = False,
        notice: Notice | None = None,
        clock: Callable[[], float] = time.time,
        leases: LeaseFiles | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self._shelf = shelf
        self._counters = counters
        self._strict = strict
        self._once = Once(notice)
        self._leases = leases or LeaseFiles(shelf.directory / "leases", clock)
        self._release = release
        self._closed = False
        #: Digests whose readers refused the payload; the next put of each is kept.
        self._rejected: set[bytes] = set()

    def get(self, key: KeyLike) -> Record | None:
        """Return the record of ``key``, or None."""
        return next(iter(self.get_many((key,)).values()), None)

    def get_many(self, keys: Iterable[KeyLike]) -> dict[bytes, Record]:
        """Return the records found, by digest; one transaction per generation."""
        wanted: dict[bytes, KeyLike] = {}
        for key in keys:
            if isinstance(key, Key):
                wanted[key.digest] = key
            elif len(key) == DIGEST_BYTES:
                wanted.setdefault(bytes(key), key)
            else:
                self._counters.miss("absent")
        found: dict[bytes, Record] = {}
        doubts: dict[bytes, str] = {}

        def accept(digest: bytes, data: bytes) -> bool:
            try:
                if digest in self._rejected:
                    raise BadRecord("rejected", "its reader refused the payload")
                found[digest] = records.decode(data, wanted[digest])
            except BadRecord as error:
                doubts[digest] = error.reason
                return False
            self._counters.hit(len(data))
            return True

        if self._closed:
            doubts = dict.fromkeys(wanted, "closed")
        elif wanted:
            try:
                self._shelf.read(wanted, accept)
            except Exception as error:  # whatever it is, it must cost a compile and not the job
                self._once.tell("read", f"the store cannot be read: {error}; compiling instead")
                doubts.update(dict.fromkeys(wanted, "storage"))
            self._pass_on_events()
        for digest in wanted.keys() - found.keys():
            self._counters.miss(doubts.get(digest, "absent"))
        return found

    def put(self, record: Record) -> bool:
        """Keep a record; True if the store now holds this key."""
        return self.keep((record,)) is not None

    def put_many(self, records: Iterable[Record]) -> bool:
        """Keep all of the records in one transaction or, on any failure, none of them."""
        return self.keep(records) is not None

    def keep(self, batch: Iterable[Record]) -> set[bytes] | None:
        """Do `put_many`; return the digests that were not there before, or None on failure."""
        try:
            if self._closed:
                raise BadRecord("closed", "the store is closed")
            items = {record.digest: records.encode(record) for record in batch}
            kept = self._shelf.write(list(items.items()), self._stands) if items else set()
        except Exception as error:  # whatever it is, the caller has its kernel and goes on
            self._pass_on_events()
            reason, detail = _explained(error)
            refuse(self._counters, self._once, self._strict, reason, detail)
            return None
        self._pass_on_events()
        self._rejected -= kept
        for digest in kept:
            self._counters.kept(len(items[digest]))
        self._counters.add("puts_existing", len(items) - len(kept))
        return kept

    def contains(self, key: KeyLike) -> bool:
        """Say whether something is kept under ``key``, without reading or checking it."""
        if self._closed or not (isinstance(key, Key) or len(key) == DIGEST_BYTES):
            return False
        try:
            return self._shelf.has(digest_bytes(key))
        except Exception:  # the read that follows counts and tells
            return False

    def reject(self, key: KeyLike) -> None:
        """Let the next put of ``key`` replace what is kept under it; until then it is a miss."""
        self._rejected.add(digest_bytes(key))
        self._counters.add("rejected")

    def lease(self, key: KeyLike, ttl: float = LEASE_TTL) -> Lease:
        """Try to become the one on this machine who builds ``key`` for ``ttl`` seconds."""
        return self._leases.take(digest_bytes(key), ttl)

    def stats(self) -> dict[str, Any]:
        """Return the counters of all handles of this process on the directory."""
        return self._counters.snapshot()

    def inventory(self) -> Inventory:
        """Count what is kept, by reading everything."""
        seen: set[bytes] = set()
        counts: dict[str, int] = {}
        sizes: dict[str, int] = {}
        unreadable = 0

        def visit(digest: bytes, data: bytes) -> None:
            nonlocal unreadable
            if digest in seen:
                return
            try:
                kind = records.decode(data, digest).kind
            except BadRecord:
                unreadable += 1
                return
            seen.add(digest)
            counts[kind] = counts.get(kind, 0) + 1
            sizes[kind] = sizes.get(kind, 0) + len(data)

        disk_bytes = files = 0
        if not self._closed:
            try:
                self._shelf.scan(visit)
                for path in self._shelf.files():
                    disk_bytes += path.stat().st_blocks * 512
                    files += 1
            except Exception as error:  # a report, too, must not end in a traceback
                self._once.tell("read", f"the store cannot be read: {error}")
        place = str(self._shelf.directory)
        return Inventory(counts, sizes, disk_bytes, files, unreadable, place)

    def close(self) -> None:
        """Let go of the files; a closed store misses and keeps nothing."""
        if not self._closed:
            self._closed = True
            if self._release is not None:
                self._release()

    def _stands(self, digest: bytes, kept: bytes, offered: bytes) -> bool:
        """Say whether the bytes kept are a sound record; then the earlier writer wins."""
        if digest in self._rejected:
            return False
        try:
            earlier = records.decode(kept, digest)
        except BadRecord:
            return False
        differs = records.stored_digest(kept) != records.stored_digest(offered)
        if differs and earlier.payload != records.decode(offered).payload:
            self._counters.add("nondeterministic")
        return True

    def _pass_on_events(self) -> None:
        for reason, text in self._shelf.take_events():
            self._once.tell(reason, text)


def _explained(error: Exception) -> tuple[str, str]:
    match error:
        case BadRecord():
            return error.reason, error.detail
        case Full():
            return "too_large", f"it is larger than a file of the store: {error}"
        case LockTimeout():
            return "busy", f"another process has held {error} for too long"
        case Trouble() | Damaged():
            text = str(error)
            reason = "disk_full" if "No space left" in text else error.reason
            return reason, text
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return "disk_full", str(error)
        case OSError():
            return "storage", str(error)
        case _:
            return "internal", f"{type(error).__name__}: {error}"
