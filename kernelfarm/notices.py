"""One line to a person per reason, and a counter for every time."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Protocol

_LOG = logging.getLogger("kernelfarm")


class Notices:
    """Says each thing once and counts how often it happened.

    ``show`` receives the line; the default is the logger "kernelfarm" at level WARNING, never
    the warnings module: a job that turns warnings into errors must not die of ours.
    """

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self._show = _LOG.warning if show is None else show
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._said: set[str] = set()

    def tell(self, reason: str, text: str) -> None:
        """Count ``reason``, and show ``text`` unless something was shown for it before."""
        with self._lock:
            self._counts[reason] += 1
            first = self._counts[reason] == 1
        if first:
            self.say(text)

    def say(self, text: str) -> None:
        """Show a line that was not shown before."""
        with self._lock:
            if text in self._said:
                return
            self._said.add(text)
        self._show(text)

    def counts(self) -> dict[str, int]:
        """Return how often each reason was told."""
        with self._lock:
            return dict(self._counts)


class Uncached(Protocol):
    """The part of the compiler's report that says which graphs were not stored or not used."""

    uncached: list[str]
    refused: list[str]


def tell_uncached(report: Uncached, notices: Notices) -> None:
    """Say of each graph that was not stored, or stored and not used, why; once for each reason."""
    for reason in tuple(report.refused):
        notices.say(f"kernelfarm: a stored graph was refused and is compiled again: {reason}")
    for reason in tuple(report.uncached):
        notices.say(f"kernelfarm: a graph is compiled and not stored: {reason}")
