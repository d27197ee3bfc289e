"""Leases between the processes of a machine: small files that expire.

A lease only saves double work. Whatever goes wrong with one, the answer is "build it yourself".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from . import atomic
from .locks import FileLock, Gate, LockTimeout
from .store import Lease

_LOCK_TIMEOUT = 1.0
#: No lease is longer, in seconds.
_LONGEST = 86_400.0
#: Above this many files, the expired ones are removed when a lease is taken.
_SWEEP_ABOVE = 128


class LeaseFiles:
    """One file per leased key in ``directory``, which is made on first use."""

    gate: Gate | None = None

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._clock = clock
        self._lock = FileLock(directory / ".lock")

    def take(self, digest: bytes, ttl: float) -> Lease:
        """Take the lease of ``digest`` if it is free or has expired; never waits, never raises."""
        path = self._directory / digest.hex()
        token = os.urandom(12).hex()
        ttl = min(ttl, _LONGEST)
        now = self._clock()
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._lock.hold(_LOCK_TIMEOUT):
                _, expires = _read(path)
                # A lease far in the future was written under another clock.
                if now < expires <= now + _LONGEST:
                    return Lease(False, expires)
                self._sweep(now)
                atomic.put(path, f"{token} {now + ttl!r}\n")
        except (OSError, LockTimeout):
            return Lease(True, now + ttl)
        return Lease(True, now + ttl, lambda: self._give_back(path, token))

    def close(self) -> None:
        """Close the lock file."""
        self._lock.close()

    def forget(self, *, clean: bool) -> None:
        """In a forked child: let go of the parent's lock."""
        self._lock.forget()

    def _give_back(self, path: Path, token: str) -> None:
        with contextlib.suppress(OSError, LockTimeout), self._lock.hold(_LOCK_TIMEOUT):
            if _read(path)[0] == token:
                os.unlink(path)

    def _sweep(self, now: float) -> None:
        entries = list(atomic.names(self._directory))
        if len(entries) > _SWEEP_ABOVE:
            for name in entries:
                path = self._directory / name
                if name != ".lock" and _read(path)[1] < now:
                    with contextlib.suppress(OSError):
                        os.unlink(path)


def _read(path: Path) -> tuple[str, float]:
    try:
        token, expires = path.read_text("ascii").split()
        return token, float(expires)
    except (OSError, ValueError):
        return "", 0.0
