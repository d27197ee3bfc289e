"""A farm of one: kernels compiled in this process, one after another, on a thread.

The last resort when no compile process can be had, and the setting ``farm = false``. Slow while
the main thread is busy: both share one interpreter lock.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from .cache.key import Key
from .compiler.seam.request import Artifact, CompileRequest, SourceRequest
from .compiler.seam.target import Target
from .compiler.seam.toolchain import Toolchain
from .compiler.service import KeyParts, Priority
from .contract import OnKeyed


@dataclass(frozen=True, slots=True)
class InlineResult:
    """A kernel compiled here; times are ``time.monotonic()`` seconds."""

    key: bytes
    parts: KeyParts
    artifact: Artifact
    started: float
    finished: float
    joined: bool = False
    stages: dict[str, float] = field(default_factory=dict)


@dataclass(order=True, slots=True)
class _Job:
    """Ordered by priority, then by arrival."""

    priority: int
    number: int
    request: SourceRequest | CompileRequest = field(compare=False)
    on_keyed: OnKeyed | None = field(compare=False)
    future: Future[InlineResult] = field(compare=False)


class InlineFarm:
    """Compiles in this process; implements `contract.Farm`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self._number = 0
        self._done = 0
        self._failed = 0
        self._thread: threading.Thread | None = None

    def submit(
        self,
        request: SourceRequest | CompileRequest,
        priority: int = Priority.EMITTED,
        *,
        on_keyed: OnKeyed | None = None,
    ) -> Future[InlineResult]:
        """Queue a request; the future settles with an `InlineResult`."""
        future: Future[InlineResult] = Future()
        with self._lock:
            self._number += 1
            job = _Job(int(priority), self._number, request, on_keyed, future)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._serve, name="kernelfarm-inline", daemon=True
                )
                self._thread.start()
        self._jobs.put(job)
        return future

    def prepare(self, target: Target, toolchain: Toolchain) -> None:
        """Do nothing: this process is ready."""

    def raise_priority(self, futures: Sequence[Any], priority: int = Priority.WAITING) -> None:
        """Do nothing: with one thread the order of arrival is as good as any."""

    def stats(self) -> dict[str, Any]:
        """Return how many kernels were compiled here and how many failed."""
        return {"place": "in this process", "compiled": self._done, "failed": self._failed}

    def close(self) -> None:
        """Do nothing: the thread ends with the process."""

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                result = _compile(job.request, job.on_keyed)
            except BaseException as error:
                self._failed += 1
                with contextlib.suppress(Exception):
                    job.future.set_exception(error)
            else:
                self._done += 1
                job.future.set_result(result)
            del job


def _compile(request: SourceRequest | CompileRequest, on_keyed: OnKeyed | None) -> InlineResult:
    # Here, because both import triton, which a process that only loads from the store never needs.
    from .compiler.seam.back import back_half
    from .compiler.seam.front import front_half

    started = time.monotonic()
    compile_request = front_half(request) if isinstance(request, SourceRequest) else request
    parts = compile_request.key_parts()
    key = Key.of("kernel", parts).digest
    artifact = None if on_keyed is None else on_keyed(key, parts)
    if artifact is None:
        artifact = back_half(compile_request)
    return InlineResult(key, parts, artifact, started, time.monotonic())
