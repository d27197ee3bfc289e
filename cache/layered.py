"""L0 over L1: parsed records of this process in front of the machine's store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .key import digest_bytes
from .local import LocalStore
from .record import Record
from .store import LEASE_TTL, Inventory, KeyLike, Lease, MemoryStore


class LayeredStore:
    """The `Store` contract over a bounded dict of parsed records and a local store.

    The local store decides who was first and what a put's outcome is; memory only repeats what
    was read from it or newly written to it.
    """

    def __init__(self, memory: MemoryStore, local: LocalStore) -> None:
        self._memory = memory
        self._local = local

    def get(self, key: KeyLike) -> Record | None:
        """Return the record of ``key``, or None."""
        record = self._memory.get(key)
        if record is None:
            record = self._local.get(key)
            if record is not None:
                self._memory.remember((record,))
        return record

    def get_many(self, keys: Iterable[KeyLike]) -> dict[bytes, Record]:
        """Return the records found, by digest; those not in memory in one transaction."""
        wanted = list(keys)
        found = self._memory.get_many(wanted)
        left = [key for key in wanted if _digest(key) not in found]
        if left:
            below = self._local.get_many(left)
            self._memory.remember(below.values())
            found.update(below)
        return found

    def put(self, record: Record) -> bool:
        """Keep a record; True if the local store now holds this key."""
        return self.put_many((record,))

    def put_many(self, records: Iterable[Record]) -> bool:
        """Keep all of the records or, on any failure, none of them."""
        batch = tuple(records)
        kept = self._local.keep(batch)
        if kept is None:
            return False
        self._memory.remember(record for record in batch if record.digest in kept)
        return True

    def contains(self, key: KeyLike) -> bool:
        """Say whether something is kept under ``key``, without reading or checking it."""
        return self._memory.contains(key) or self._local.contains(key)

    def reject(self, key: KeyLike) -> None:
        """Let the next put of ``key`` replace what is kept under it."""
        self._memory.reject(key)
        self._local.reject(key)

    def lease(self, key: KeyLike, ttl: float = LEASE_TTL) -> Lease:
        """Try to become the one on this machine who builds ``key`` for ``ttl`` seconds."""
        return self._local.lease(key, ttl)

    def stats(self) -> dict[str, Any]:
        """Return the sum of hits, the local store's other counters, and both under ``tiers``."""
        memory, local = self._memory.stats(), self._local.stats()
        return {
            **local,
            "hits": memory["hits"] + local["hits"],
            "tiers": {"memory": memory, "local": local},
        }

    def inventory(self) -> Inventory:
        """Count what the local store keeps."""
        return self._local.inventory()

    def close(self) -> None:
        """Let go of memory and files."""
        self._memory.close()
        self._local.close()


def _digest(key: KeyLike) -> bytes:
    return digest_bytes(key) if not isinstance(key, bytes) else key
