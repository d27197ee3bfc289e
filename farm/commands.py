"""What reaches the client's thread, from callers and from the link."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..compiler.seam.request import Artifact, CompileRequest, KeyParts, SourceRequest
from .future import FarmFuture

#: Answers, once the kernel key is known, whether the compile can be saved.
OnKeyed = Callable[[bytes, KeyParts], Artifact | None]


@dataclass(frozen=True, slots=True, eq=False)
class Environment:
    """What a zygote is started with, and its digest."""

    id: bytes
    spec: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Submit:
    """A caller wants a kernel."""

    request: SourceRequest | CompileRequest
    priority: int
    environment: Environment
    future: FarmFuture
    on_keyed: OnKeyed | None


@dataclass(frozen=True, slots=True, eq=False)
class Prepare:
    """A caller will want kernels in this environment."""

    environment: Environment


@dataclass(frozen=True, slots=True, eq=False)
class Raise:
    """A caller waits, or is about to."""

    futures: Sequence[FarmFuture]
    priority: int


@dataclass(frozen=True, slots=True, eq=False)
class Cancelled:
    """A caller gave a future up."""

    future: FarmFuture


@dataclass(frozen=True, slots=True, eq=False)
class Up:
    """There is a connection, number ``generation``."""

    generation: int
    connection: socket.socket


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """A frame came in."""

    generation: int
    body: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Down:
    """A connection ended; another one follows."""

    generation: int


@dataclass(frozen=True, slots=True, eq=False)
class NoBroker:
    """There is no broker and there will not be one."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Close:
    """Settle everything and end."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Run something on the thread (for tests and statistics)."""

    function: Callable[[], None]


Command = Submit | Prepare | Raise | Cancelled | Up | Heard | Down | NoBroker | Close | Call
