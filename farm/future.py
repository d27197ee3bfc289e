"""What a client gets for a request: the result, and a future that knows its process."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from ..compiler.seam.request import Artifact, KeyParts
from .errors import FutureForked


@dataclass(frozen=True, slots=True)
class FarmResult:
    """A compiled kernel.

    ``key`` and ``parts`` are digest and parts of its kernel key. ``joined``: somebody else's
    request for the same kernel started the compile. ``started`` and ``finished`` are
    ``time.monotonic()`` seconds of this machine, ``stages`` seconds by stage; all are zero or
    empty when ``on_keyed`` gave the artifact.
    """

    key: bytes
    parts: KeyParts = field(repr=False)
    artifact: Artifact = field(repr=False)
    joined: bool = False
    started: float = 0.0
    finished: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)


class FarmFuture(Future[FarmResult]):
    """A future that asks for its kernel first when somebody waits for it.

    In a forked child the futures of the parent are of no use: waiting for one raises FutureForked
    instead of waiting for ever. Callbacks run on the client's thread and must not wait for other
    futures of the farm.
    """

    def __init__(
        self, on_wait: Callable[[FarmFuture], None], on_cancel: Callable[[FarmFuture], None]
    ) -> None:
        super().__init__()
        self._on_wait = on_wait
        self._on_cancel = on_cancel
        self._process = os.getpid()

    def result(self, timeout: float | None = None) -> FarmResult:
        """Return the result; raises KernelError, FarmUnavailable, FarmClosed, TimeoutError."""
        self._wait_begins()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what ``result`` would raise, None if it would not."""
        self._wait_begins()
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Give the kernel up; a compile that has started may still finish."""
        cancelled = super().cancel()
        if cancelled:
            self._on_cancel(self)
        return cancelled

    def _wait_begins(self) -> None:
        if self.done():
            return
        if os.getpid() != self._process:
            raise FutureForked(
                "this kernel was asked for before the fork and belongs to the parent process: "
                "submit the request again in this process"
            )
        self._on_wait(self)
