"""The store's contract, and the store in memory that serves as tier L0 and as a test double."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from .counters import Counters, Notice, Once
from .errors import BadRecord, PutFailed
from .key import DIGEST_BYTES, Key, digest_bytes
from .locks import Gate
from .record import Record, check_parts

KeyLike = Key | bytes

#: Seconds after which a lease may be taken over, unless the caller says otherwise.
LEASE_TTL = 120.0


class Lease:
    """The right to be the one who builds a key, until ``expires``; only ever an optimisation.

    ``own`` is False when somebody else holds it; then ``expires`` says when that ends (seconds
    since 1970). Nothing is wrong if two processes build one key: the first put wins.
    """

    __slots__ = ("_release", "expires", "own")

    def __init__(
        self, own: bool, expires: float, release: Callable[[], None] | None = None
    ) -> None:
        self.own = own
        self.expires = expires
        self._release = release

    def release(self) -> None:
        """Give it back; does nothing if it is not ours, is given back already, or has expired."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Inventory(NamedTuple):
    """What a store holds: records and their stored bytes by kind, bytes on disk, and where.

    ``files`` counts the files that hold records (0 in memory); ``unreadable`` the records that a
    full read refused.
    """

    records: dict[str, int]
    bytes: dict[str, int]
    disk_bytes: int = 0
    files: int = 0
    unreadable: int = 0
    place: str = "memory"


class Store(Protocol):
    """Where records are kept. Every method takes a `Key` or a 32-byte digest.

    Reads never raise: any doubt is a miss, counted by reason. A Key is compared with the stored
    parts one by one; a digest alone is checked against the digest of the stored parts. Puts never
    raise either (a failure is a counter and one notice) unless the store is strict, when they
    raise PutFailed. The first writer of a key wins.
    """

    def get(self, key: KeyLike) -> Record | None:
        """Return the record of ``key``, or None."""
        ...

    def get_many(self, keys: Iterable[KeyLike]) -> dict[bytes, Record]:
        """Return the records found, by digest, read in one transaction."""
        ...

    def put(self, record: Record) -> bool:
        """Keep a record; True if the store now holds this key, be it from somebody earlier."""
        ...

    def put_many(self, records: Iterable[Record]) -> bool:
        """Keep all of the records or, on any failure, none of them."""
        ...

    def contains(self, key: KeyLike) -> bool:
        """Say whether something is kept under ``key``, without reading or checking it."""
        ...

    def reject(self, key: KeyLike) -> None:
        """Take a sound record's payload for unfit: the next put of ``key`` replaces it.

        For readers that find something else in a payload than they put there. Whether it is found
        until then is not promised; other processes are not told.
        """
        ...

    def lease(self, key: KeyLike, ttl: float = LEASE_TTL) -> Lease:
        """Try, without waiting, to become the one who builds ``key`` for ``ttl`` seconds."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return the counters of this process: `Counters.snapshot`, and tiers where there are."""
        ...

    def inventory(self) -> Inventory:
        """Count what is kept; reads everything, so it is for people and not for hot paths."""
        ...

    def close(self) -> None:
        """Let go of files; a closed store misses and keeps nothing. May be called twice."""
        ...


class MemoryStore:
    """Records in a dict of bounded size; the least recently used go first.

    ``max_bytes`` bounds the sum of the payloads and key parts kept. ``clock`` gives seconds since
    1970 for leases.
    """

    gate: Gate | None = None

    def __init__(
        self,
        max_bytes: int = 256 << 20,
        *,
        strict: bool = False,
        notice: Notice | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._max_bytes = max_bytes
        self._strict = strict
        self._once = Once(notice)
        self._clock = clock
        self._lock = threading.Lock()
        #: Least recently used first.
        self._records: OrderedDict[bytes, Record] = OrderedDict()
        #: Sum of `_weight` over `_records`; never above `_max_bytes`.
        self._bytes = 0
        self._leases: dict[bytes, tuple[object, float]] = {}
        self._closed = False
        self._counters = Counters()

    def get(self, key: KeyLike) -> Record | None:
        """Return the record of ``key``, or None."""
        return next(iter(self.get_many((key,)).values()), None)

    def get_many(self, keys: Iterable[KeyLike]) -> dict[bytes, Record]:
        """Return the records found, by digest."""
        found: dict[bytes, Record] = {}
        for key in keys:
            if not _is_key(key):
                self._absent()
                continue
            digest = digest_bytes(key)
            with self._lock:
                record = self._records.get(digest)
                if record is not None:
                    self._records.move_to_end(digest)
            if record is None:
                self._absent()
            elif not same_key(record, key):
                self._counters.miss("key_mismatch")
            else:
                found[digest] = record
                self._counters.hit(len(record.payload))
        return found

    def put(self, record: Record) -> bool:
        """Keep a record; True if the store now holds this key."""
        return self.put_many((record,))

    def put_many(self, records: Iterable[Record]) -> bool:
        """Keep all of the records or, on any failure, none of them."""
        batch = tuple(records)
        try:
            if self._closed:
                raise BadRecord("closed", "the store is closed")
            for record in batch:
                check_parts(record)
            if sum(map(_weight, batch)) > self._max_bytes:
                raise BadRecord("too_large", f"the store in memory has {self._max_bytes} bytes")
        except BadRecord as error:
            return refuse(self._counters, self._once, self._strict, error.reason, error.detail)
        self.remember(batch)
        return True

    def remember(self, records: Iterable[Record]) -> None:
        """Keep records that were checked already, as far as there is room."""
        for record in records:
            self._keep(record)

    def contains(self, key: KeyLike) -> bool:
        """Say whether something is kept under ``key``."""
        return _is_key(key) and digest_bytes(key) in self._records

    def reject(self, key: KeyLike) -> None:
        """Let the next put of ``key`` replace what is kept under it."""
        with self._lock:
            gone = self._records.pop(digest_bytes(key), None)
            if gone is not None:
                self._bytes -= _weight(gone)
                self._counters.add("rejected")

    def lease(self, key: KeyLike, ttl: float = LEASE_TTL) -> Lease:
        """Try to become the one who builds ``key`` for ``ttl`` seconds."""
        digest, now = digest_bytes(key), self._clock()
        with self._lock:
            held = self._leases.get(digest)
            if held is not None and held[1] > now:
                return Lease(False, held[1])
            token, expires = object(), now + ttl
            self._leases[digest] = (token, expires)

        def release() -> None:
            with self._lock:
                if self._leases.get(digest, (None, 0.0))[0] is token:
                    del self._leases[digest]

        return Lease(True, expires, release)

    def stats(self) -> dict[str, Any]:
        """Return the counters of this store."""
        return self._counters.snapshot()

    def inventory(self) -> Inventory:
        """Count what is kept."""
        with self._lock:
            kept = list(self._records.values())
        records: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for record in kept:
            records[record.kind] = records.get(record.kind, 0) + 1
            sizes[record.kind] = sizes.get(record.kind, 0) + len(record.payload)
        return Inventory(records, sizes)

    def close(self) -> None:
        """Forget everything; afterwards the store misses and keeps nothing."""
        with self._lock:
            self._closed = True
            self._records.clear()
            self._bytes = 0

    def forget(self, *, clean: bool) -> None:
        """In a forked child: keep the records, under a lock that nobody holds."""
        self._lock = threading.Lock()
        self._bytes = sum(map(_weight, self._records.values()))
        self._counters.forget(clean=clean)

    def _keep(self, record: Record) -> None:
        with self._lock:
            earlier = self._records.get(record.digest)
            if earlier is None and not self._closed:
                self._records[record.digest] = record
                self._bytes += _weight(record)
                while self._bytes > self._max_bytes:
                    _, gone = self._records.popitem(last=False)
                    self._bytes -= _weight(gone)
                    self._counters.add("evicted")
        if earlier is None:
            self._counters.kept(len(record.payload))
            return
        self._counters.add("puts_existing")
        if earlier.payload != record.payload:
            self._counters.add("nondeterministic")

    def _absent(self) -> None:
        self._counters.miss("closed" if self._closed else "absent")


def same_key(record: Record, key: KeyLike) -> bool:
    """Say whether a parsed record is ``key``'s: all parts for a Key, the digest otherwise."""
    if isinstance(key, Key):
        kept = (record.digest, record.kind, record.schema, record.encoded)
        return kept == (key.digest, key.kind, key.schema, key.encoded)
    return record.digest == key


def refuse(counters: Counters, once: Once, strict: bool, reason: str, detail: str) -> bool:
    """Count a put that kept nothing, say so once per reason; return False or raise PutFailed."""
    counters.failure(reason)
    once.tell(reason, f"the store kept nothing: {detail}; compiling goes on without it")
    if strict:
        raise PutFailed(reason, detail)
    return False


def _is_key(key: KeyLike) -> bool:
    return isinstance(key, Key) or len(key) == DIGEST_BYTES


def _weight(record: Record) -> int:
    return len(record.payload) + len(record.encoded)
