"""What can go wrong in the store, as a tree.

::

    CacheError
    |-- BadKey               a key that cannot be encoded: unknown kind, empty or repeated name
    |-- BadRecord            record bytes that must not be used; ``reason`` is the counter's name
    |-- PutFailed            a strict store could not keep a record
    `-- StoreUnusable        a directory that cannot hold a store; ``path``, ``cause``, ``remedy``
        |-- NetworkFilesystem    it lies on a filesystem that machines share or that is layered
        |-- NotWritable          this user cannot create files in it
        |-- ForeignOwner         it belongs to somebody else, or others may write in it
        `-- UnknownFormat        it was laid out by another version, or is no store at all

Only opening a directory that the user named raises into the caller. Reads turn every doubt into
a miss, and writes turn every failure into a counter and one notice, unless the store is strict.
"""

from __future__ import annotations

from pathlib import Path


class CacheError(Exception):
    """Every error of this folder."""


class BadKey(CacheError, ValueError):
    """A key's kind or parts cannot be encoded."""


class BadRecord(CacheError, ValueError):
    """Record bytes are damaged, of another version, or belong to another key."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{detail} ({reason})")
        self.reason = reason
        self.detail = detail


class PutFailed(CacheError):
    """A strict store could not keep a record."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"the store kept nothing: {detail} ({reason})")
        self.reason = reason
        self.detail = detail


class StoreUnusable(CacheError):
    """A directory cannot hold a store; the message says why and what to do."""

    def __init__(self, path: Path, cause: str, remedy: str) -> None:
        super().__init__(f"store directory {path}: {cause}; {remedy}")
        self.path = path
        self.cause = cause
        self.remedy = remedy


class NetworkFilesystem(StoreUnusable):
    """The directory lies where LMDB loses data: a network or layered filesystem."""


class NotWritable(StoreUnusable):
    """This user cannot create files in the directory, or it cannot be made."""


class ForeignOwner(StoreUnusable):
    """The directory belongs to another user, or other users may write in it."""


class UnknownFormat(StoreUnusable):
    """The directory was laid out by another version, or holds something else."""
