"""Where a first call's seconds go: Dynamo, the backend, the backward's compile, the run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch._dynamo.callback import callback_handler


class Clock:
    """Times one first call, of any backend, with the hooks that Dynamo has for it.

    A backward is compiled when it is called first, which Dynamo announces as well. Another thread
    does that, while the caller waits.
    """

    def __init__(self) -> None:
        self._started = 0.0
        self._marks: dict[str, float] = {}
        self._compiling: dict[str, float] = {}
        self._backend = 0.0
        self._aot = 0.0
        self._open: list[tuple[str, float]] = []
        self._dynamo_began: float | None = None

    def start(self) -> None:
        """Begin; from here on compiles are noticed."""
        callback_handler.register_start_callback(self._begun)
        callback_handler.register_end_callback(self._ended)
        self._started = time.perf_counter()

    def mark(self, name: str) -> None:
        """Note the time under a name: "forward", "called", "end"."""
        self._marks[name] = time.perf_counter()

    def seconds(self, name: str) -> float:
        """Return the seconds from the start to a mark."""
        return round(self._marks[name] - self._started, 4)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Time one visit to the backend."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._backend += time.perf_counter() - began

    def add(self, name: str, seconds: float) -> None:
        """Take a phase's seconds from our tracer; of these "aot" is kept."""
        if name == "aot":
            self._aot += seconds

    def add_all(self, phases: Mapping[str, float]) -> None:
        """Take several phases' seconds."""
        for name, seconds in phases.items():
            self.add(name, seconds)

    def breakdown(self) -> dict[str, Any]:
        """Return ``breakdown_s`` and, where our tracer is used, ``beyond_tracing_s``.

        "forward" and "backward" are the seconds until each returned, and "wait" those for the
        device at the end. Of forward: "dynamo" (without the backend) and "backend", and of this
        "aot". Of backward: "backward_compile". What remains of the first call is "before", until
        Dynamo begins (torch.compile and the backend are imported), and "run".
        ``beyond_tracing_s`` is the first call without "dynamo" and "aot".
        """
        dynamo = self._compiling.get("DYNAMO", 0.0)
        backward = self._compiling.get("LAZY_BACKWARD", 0.0)
        end, called = self.seconds("end"), self.seconds("called")
        forward = self.seconds("forward")
        began = self._dynamo_began
        before = 0.0 if began is None else began - self._started
        found = {
            "forward": forward,
            "backward": called - forward,
            "wait": end - called,
            "dynamo": max(0.0, dynamo - self._backend),
            "backend": self._backend,
            "aot": self._aot,
            "backward_compile": backward,
            "before": before,
            "run": end - before - max(dynamo, self._backend) - backward,
        }
        line: dict[str, Any] = {
            "breakdown_s": {name: round(value, 4) for name, value in found.items() if value > 0.0}
        }
        if self._aot:
            line["beyond_tracing_s"] = round(end - found["dynamo"] - self._aot, 4)
        return line

    def _begun(self, args: Any) -> None:
        now = time.perf_counter()
        if self._dynamo_began is None:
            self._dynamo_began = now
        self._open.append((args.callback_trigger.name, now))

    def _ended(self, _args: Any) -> None:
        # Dynamo tells only of the outermost of nested compiles, so that these come in pairs.
        if self._open:
            name, began = self._open.pop()
            spent = time.perf_counter() - began
            self._compiling[name] = self._compiling.get(name, 0.0) + spent
