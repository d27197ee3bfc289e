"""What a store counts, and how it tells somebody once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .locks import Gate

#: Receives one line of text for a person; never raises, never called twice for one reason.
Notice = Callable[[str], None]

_TOTALS = (
    "hits",
    "puts",  # records newly kept
    "puts_existing",  # somebody was first
    "nondeterministic",  # equal key, other payload: an alarm for a key that forgets something
    "bytes_read",
    "bytes_written",
    "rotations",
    "copied_forward",
    "damaged",  # files set aside
    "salvaged",  # records put back from them
    "evicted",
    "rejected",  # records whose payload a reader refused
)


class Counters:
    """Thread-safe totals, misses and failures by reason.

    Misses are counted by "absent" or by the doubt that made them one ("checksum", "key_mismatch",
    "truncated", ...); failures are puts that kept nothing.
    """

    gate: Gate | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = dict.fromkeys(_TOTALS, 0)
        self._misses: dict[str, int] = {}
        self._failures: dict[str, int] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Add to one of the totals."""
        with self._lock:
            self._totals[name] += amount

    def hit(self, size: int) -> None:
        """Count a hit of ``size`` bytes."""
        with self._lock:
            self._totals["hits"] += 1
            self._totals["bytes_read"] += size

    def kept(self, size: int) -> None:
        """Count a record newly kept in ``size`` bytes."""
        with self._lock:
            self._totals["puts"] += 1
            self._totals["bytes_written"] += size

    def miss(self, reason: str, amount: int = 1) -> None:
        """Count misses by reason."""
        with self._lock:
            self._misses[reason] = self._misses.get(reason, 0) + amount

    def failure(self, reason: str) -> None:
        """Count a put that kept nothing, by reason."""
        with self._lock:
            self._failures[reason] = self._failures.get(reason, 0) + 1

    def forget(self, *, clean: bool) -> None:
        """In a forked child: count from zero, under a lock that nobody holds."""
        self.__init__()  # type: ignore[misc]

    def snapshot(self) -> dict[str, Any]:
        """Return all totals, with ``misses`` and ``put_failures`` as reason -> count."""
        with self._lock:
            return {
                **self._totals,
                "misses": dict(self._misses),
                "put_failures": dict(self._failures),
            }


class Once:
    """Passes one line per reason on to a notice, and swallows what the notice raises."""

    def __init__(self, notice: Notice | None) -> None:
        self._notice = notice
        self._told: set[str] = set()

    def tell(self, reason: str, text: str) -> None:
        """Say ``text`` unless something was already said for ``reason``."""
        if self._notice is None or reason in self._told:
            return
        self._told.add(reason)
        try:
            self._notice(text)
        except Exception:  # somebody else's code, which must not fail a compile
            self._notice = None
