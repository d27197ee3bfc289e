"""What the face asks of a farm, be it `farm.client.FarmClient` or this process (`inline`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from .compiler.seam.request import Artifact, CompileRequest, SourceRequest
from .compiler.seam.target import Target
from .compiler.seam.toolchain import Toolchain
from .compiler.service import KeyParts

#: Answers, once the kernel key is known, whether the compile can be saved.
OnKeyed = Callable[[bytes, KeyParts], Artifact | None]


class Result(Protocol):
    """What a farm settles its futures with (see `farm.client.FarmResult`)."""

    @property
    def key(self) -> bytes: ...
    @property
    def parts(self) -> KeyParts: ...
    @property
    def artifact(self) -> Artifact: ...
    @property
    def joined(self) -> bool: ...
    @property
    def started(self) -> float: ...
    @property
    def finished(self) -> float: ...


class Farm(Protocol):
    """Turns requests into artifacts; every method returns at once."""

    def submit(
        self,
        request: SourceRequest | CompileRequest,
        priority: int,
        *,
        on_keyed: OnKeyed | None = None,
    ) -> Future[Any]:
        """Queue a request; the future settles with a `Result`."""
        ...

    def prepare(self, target: Target, toolchain: Toolchain) -> None:
        """Get ready to compile for a target; returns at once."""
        ...

    def raise_priority(self, futures: Sequence[Any], priority: int) -> None:
        """Have these served sooner."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return the farm's counters."""
        ...

    def close(self) -> None:
        """Let go of the farm; what is in flight settles with an error."""
        ...
