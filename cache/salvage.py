"""Finds the records in a damaged file without trusting anything else in it.

LMDB keeps a value of more than about 2,000 bytes on pages of its own, in one piece, and a shorter
one inside a leaf page; either way a record's bytes are contiguous. A record states its length,
carries its checksums and proves its key from its parts, so a scan for the magic that keeps only
what verifies cannot find anything false: at worst an older, equally valid value of the same key.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from .errors import BadRecord
from .record import MAGIC, Record, decode, stated_length

_CHUNK = 8 << 20


def records_in(path: Path, budget: float) -> Iterator[tuple[Record, bytes]]:
    """Yield (record, its bytes) for all that verify in ``path``, for up to ``budget`` seconds.

    Reads with pread and skips holes. Raises OSError if the file cannot be read.
    """
    deadline = time.monotonic() + budget
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for start, end in _extents(fd):
            at = start
            while at < end and time.monotonic() < deadline:
                chunk = os.pread(fd, min(_CHUNK, end - at), at)
                if not chunk:
                    break
                yield from _records_at(fd, chunk, at)
                # A magic may straddle two chunks.
                at += len(chunk) - (len(MAGIC) - 1 if at + len(chunk) < end else 0)
    finally:
        os.close(fd)


def verifies(data: bytes) -> bool:
    """Say whether ``data`` is a record that every check accepts."""
    try:
        decode(data)
    except BadRecord:
        return False
    return True


def _records_at(fd: int, chunk: bytes, base: int) -> Iterator[tuple[Record, bytes]]:
    found = chunk.find(MAGIC)
    while found >= 0:
        step = len(MAGIC)
        length = stated_length(chunk[found : found + 64])
        if length is None and found + 64 > len(chunk):
            length = stated_length(os.pread(fd, 64, base + found))
        if length is not None:
            data = chunk[found : found + length]
            if len(data) < length:
                data = os.pread(fd, length, base + found)
            try:
                yield decode(data, deep=True), data
                step = max(step, length)
            except BadRecord:
                step = len(MAGIC)
        found = chunk.find(MAGIC, found + step)


def _extents(fd: int) -> Iterator[tuple[int, int]]:
    size = os.fstat(fd).st_size
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            at = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError:  # no data from here on
            return
        yield start, at
