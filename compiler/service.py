"""What the compiler asks of the world: kernels and stored graphs.

The compiler knows neither the farm nor the store. It declares these protocols and is handed
implementations by the face; tests hand it fakes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from .seam.request import Artifact, CompileRequest, SourceRequest

#: A key before it is digested: ordered (name, value) pairs. Values are bytes so that
#: no encoding question is left open.
KeyParts = tuple[tuple[str, bytes], ...]


class Priority(enum.IntEnum):
    """How badly a kernel is wanted; a smaller number is served first."""

    WAITING = 0  # a program load is blocked on it
    EMITTED = 1  # code generation has finished its text
    AUTOTUNE = 2  # one of many candidates
    SPECULATIVE = 3  # nobody may ever ask for it


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel as the service delivers it: its key digest, its artifact, and where it came from.

    ``origin`` is "store", "compiled" or "joined" (somebody else's compile of the same key).
    ``started`` and ``finished`` are ``time.monotonic()`` seconds; 0.0 for one from the store.
    """

    key: bytes
    artifact: Artifact
    origin: str
    started: float = 0.0
    finished: float = 0.0


class KernelService(Protocol):
    """Turns requests into artifacts; equal requests in flight are one job."""

    def submit(
        self,
        request: SourceRequest | CompileRequest,
        priority: Priority = Priority.EMITTED,
    ) -> Future[Compiled]:
        """Queue one request and return at once; the future always settles.

        The future's exception names the kernel, the cause and the next step.
        """
        ...

    def wanted(self, futures: Sequence[Future[Compiled]]) -> None:
        """Raise these to ``Priority.WAITING``: a load is about to block on them."""
        ...


@dataclass(frozen=True, slots=True)
class StoredGraph:
    """A graph found in the store: its program as bytes, and every artifact that it names."""

    program: bytes
    kernels: Mapping[bytes, Artifact] = field(default_factory=dict)


class GraphStore(Protocol):
    """Remembers host programs by the named parts of their graph."""

    def load(self, parts: KeyParts) -> StoredGraph | None:
        """Return a graph whose every kernel is present, or None; never raises for a bad record."""
        ...

    def save(self, parts: KeyParts, program: bytes, kernels: Sequence[bytes]) -> None:
        """Publish a graph after every kernel in ``kernels`` (key digests) is in the store."""
        ...

    def refuse(self, parts: KeyParts) -> None:
        """Have the next graph saved under these parts replace what was loaded: it is no good."""
        ...
