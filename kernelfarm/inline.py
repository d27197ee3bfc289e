"""A farm of one: kernels compiled in this process, one after another, on a thread.

The last resort when no compile process can be had, and the setting ``farm = false``. Slow while
the main thread is busy: both share one interpreter lock. What keeps compile processes from working
(an assembler that hangs) may well be met again here, so each kernel has a deadline here as well.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from .cache.key import Key
from .compiler.seam.request import Artifact, CompileRequest, SourceRequest
from .compiler.seam.target import Target
from .compiler.seam.toolchain import Toolchain
from .compiler.service import KeyParts, Priority
from .contract import OnKeyed
from .farm.errors import Failure

#: What one kernel may take, in seconds; twice what it gets in the farm, as nothing else runs.
DEADLINE_S = 240.0
#: After so many deadlines in a row the compiler itself is stuck, and the rest fail at once.
PATIENCE = 2
_ADVICE = "look at the assembler in use (TRITON_PTXAS_PATH, TRITON_PTXAS_BLACKWELL_PATH)"

Compile = Callable[[SourceRequest | CompileRequest, OnKeyed | None], "InlineResult"]


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
    """Compiles in this process; implements `contract.Farm`.

    ``compile_one`` and ``deadline_s`` are for tests.
    """

    def __init__(
        self, compile_one: Compile | None = None, *, deadline_s: float = DEADLINE_S
    ) -> None:
        self._compile = _compile if compile_one is None else compile_one
        self._deadline_s = deadline_s
        self._late = 0  # deadlines missed since the last kernel that was done
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
                self._start()
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

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="kernelfarm-inline", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while threading.current_thread() is self._thread:  # until given up for another
            job = self._jobs.get()
            if not job.future.set_running_or_notify_cancel():
                continue
            if self._late >= PATIENCE:
                self._settle(job, _not_tried(job))
                continue
            here = threading.current_thread()
            watch = threading.Timer(self._deadline_s, self._give_up, (job, here))
            watch.daemon = True
            watch.start()
            outcome: InlineResult | BaseException
            try:
                outcome = self._compile(job.request, job.on_keyed)
            except BaseException as error:
                outcome = error
            watch.cancel()
            self._settle(job, outcome)
            del job, outcome

    def _give_up(self, job: _Job, thread: threading.Thread) -> None:
        """Fail a job that takes too long, end what its thread started, and go on on another."""
        with self._lock:
            if job.future.done() or thread is not self._thread:
                return
            self._late += 1
            self._start()
        late = Failure("timeout", job.request.entry, seconds=self._deadline_s, log=_ADVICE)
        self._settle(job, late.to_error())
        _kill_children(thread.native_id or 0)

    def _settle(self, job: _Job, outcome: InlineResult | BaseException) -> None:
        try:
            if isinstance(outcome, BaseException):
                job.future.set_exception(outcome)
                self._failed += 1
            else:
                job.future.set_result(outcome)
                self._done += 1
                self._late = 0
        except InvalidStateError:
            pass  # whoever is second, the deadline or the compiler, is not heard


def _not_tried(job: _Job) -> BaseException:
    entry = job.request.entry
    log = f"kernel {entry} was not tried, since the compiler hung on those before it; {_ADVICE}"
    return Failure("rejected", entry, log=log).to_error()


def _kill_children(thread: int) -> None:
    """Kill the processes that a thread of ours waits for, and theirs: an assembler that hangs."""
    for file in (f"/proc/self/task/{thread}/children", f"/proc/{thread}/task/{thread}/children"):
        try:
            with open(file) as children:
                found = [int(word) for word in children.read().split()]
        except OSError:
            continue
        for child in found:
            _kill_children(child)
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        return


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
