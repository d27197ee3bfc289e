"""What happened to the kernels of one run: counts by origin, a timeline, submit costs."""

from __future__ import annotations

import threading
from dataclasses import dataclass

#: Submit costs kept for percentiles; later ones are dropped.
KEPT_COSTS = 100_000


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel's way: its name, when it was submitted, started and finished, and its origin.

    Times are ``time.monotonic()`` seconds; ``started`` and ``finished`` are 0.0 from the store.
    """

    kernel: str
    submitted: float
    started: float
    finished: float
    origin: str


class Tally:
    """Thread-safe counts of distinct kernels by where they came from.

    A kernel counts once, under its first origin: "compiled", "joined" (compiled meanwhile for
    somebody else), "store" or "failed".
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._origins: dict[bytes, str] = {}
        self._spans: list[Span] = []
        self._costs: list[float] = []
        self._requested = 0
        self._latest = ""
        self._graphs = {"loaded": 0, "missed": 0, "saved": 0, "unpublished": 0}

    def kernel(self, key: bytes, origin: str) -> None:
        """Note a kernel by its key digest (a failed one: by its request's)."""
        with self._lock:
            self._origins.setdefault(key, origin)

    def requested(self, name: str) -> None:
        """Note that a kernel was asked for, which may turn out to be one of the distinct ones."""
        with self._lock:
            self._requested += 1
            self._latest = name

    def standing(self) -> tuple[int, int, str]:
        """Return kernels settled, kernels asked for, and the name of the latest one asked for."""
        with self._lock:
            return len(self._origins), max(self._requested, len(self._origins)), self._latest

    def span(self, span: Span) -> None:
        """Note a kernel's way."""
        with self._lock:
            self._spans.append(span)

    def cost(self, seconds: float) -> None:
        """Note what one submit cost its caller."""
        with self._lock:
            if len(self._costs) < KEPT_COSTS:
                self._costs.append(seconds)

    def graph(self, event: str) -> None:
        """Note that a graph was "loaded", "missed", "saved" or left "unpublished"."""
        with self._lock:
            self._graphs[event] += 1

    def kernels(self) -> dict[str, int]:
        """Return {distinct, compiled, from_store, failed}; a joined kernel counts as compiled."""
        with self._lock:
            origins = list(self._origins.values())
        failed, stored = origins.count("failed"), origins.count("store")
        return {
            "distinct": len(origins),
            "compiled": len(origins) - failed - stored,
            "from_store": stored,
            "failed": failed,
        }

    def absorb(self, other: Tally) -> None:
        """Add another tally's kernels and graphs; a kernel that both have keeps its origin here."""
        with other._lock:
            origins, graphs = dict(other._origins), dict(other._graphs)
        with self._lock:
            for key, origin in origins.items():
                self._origins.setdefault(key, origin)
            for event, count in graphs.items():
                self._graphs[event] += count

    def joined(self) -> int:
        """Return how many of the compiled kernels were somebody else's job."""
        with self._lock:
            return sum(origin == "joined" for origin in self._origins.values())

    def graphs(self) -> dict[str, int]:
        """Return how many graphs were loaded, missed, saved and left unpublished."""
        with self._lock:
            return dict(self._graphs)

    def spans(self) -> tuple[Span, ...]:
        """Return the timeline so far, in order of completion."""
        with self._lock:
            return tuple(self._spans)

    def submit_us(self) -> dict[str, float]:
        """Return p50, p99 and max of what a submit cost its caller, in microseconds."""
        with self._lock:
            costs = sorted(self._costs)
        if not costs:
            return {"count": 0, "p50": 0.0, "p99": 0.0, "max": 0.0}
        pick = [costs[min(len(costs) - 1, int(len(costs) * share))] for share in (0.5, 0.99, 1.0)]
        p50, p99, most = (round(cost * 1e6, 1) for cost in pick)
        return {"count": len(costs), "p50": p50, "p99": p99, "max": most}
