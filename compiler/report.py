"""What compiling did: graphs by outcome, seconds by phase, and when each kernel was emitted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Phases in the order the data flows; "aot" is AOTAutograd without our own time.
PHASES = (
    "aot", "graph_key", "graph_load", "lowering", "scheduling", "codegen", "submit", "host",
    "wait", "load", "save",
)  # fmt: skip


class Report:
    """Counts and times of one run; safe to use from several threads.

    ``graphs`` has total, compiled, from_store, and uncached (compiled, but not storable; a part of
    compiled). ``uncached`` holds the reasons, ``refused`` why stored graphs were not used,
    ``eager`` one reason for each graph that could not be compiled and runs eagerly.
    ``emitted`` holds (kernel name, ``time.monotonic()`` seconds) of every distinct kernel text in
    order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.graphs = {"total": 0, "compiled": 0, "from_store": 0, "uncached": 0}
        self.phases: dict[str, float] = {}
        self.uncached: list[str] = []
        self.refused: list[str] = []
        self.eager: list[str] = []
        self.emitted: list[tuple[str, float]] = []
        self.operators: dict[str, dict[str, int]] = {"lowered": {}, "fallback": {}}

    def graph(self, outcome: str) -> None:
        """Count one graph: "compiled" or "from_store"."""
        with self._lock:
            self.graphs["total"] += 1
            self.graphs[outcome] += 1

    def not_cached(self, reason: str) -> None:
        """Count a compiled graph that could not be stored, and why."""
        with self._lock:
            self.graphs["uncached"] += 1
            self.uncached.append(reason)

    def refuse(self, reason: str) -> None:
        """Note that a graph was in the store and could not be used, and why."""
        with self._lock:
            self.refused.append(reason)

    def runs_eagerly(self, reason: str) -> None:
        """Note that a graph could not be compiled and runs eagerly, and why."""
        with self._lock:
            self.eager.append(reason)

    def add_phase(self, name: str, seconds: float) -> None:
        """Add to a phase's total."""
        with self._lock:
            self.phases[name] = self.phases.get(name, 0.0) + seconds

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block as one phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_phase(name, time.perf_counter() - start)

    def kernel_emitted(self, name: str) -> None:
        """Note that a kernel's text is final."""
        with self._lock:
            self.emitted.append((name, time.monotonic()))

    def count_operators(self, kind: str, counts: dict[str, int]) -> None:
        """Add how often each operator was "lowered" or took the "fallback"."""
        with self._lock:
            table = self.operators[kind]
            for name, count in counts.items():
                table[name] = table.get(name, 0) + count
