"""What a broker needs of whoever compiles: the contract, its reports, and a double for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from . import events as ev
from .errors import Failure


@dataclass(frozen=True, slots=True)
class FrontDone:
    """A run has its TTIR: the digest of its kernel key, and that key's (name, bytes) parts."""

    run: int
    key: bytes
    parts: list[Any]


@dataclass(frozen=True, slots=True)
class RunDone:
    """A run has its artifact; times are ``time.monotonic()`` seconds of this machine."""

    run: int
    payload: bytes
    started: float
    finished: float
    stages: dict[str, float] = field(default_factory=dict)


#: What a runner says. Every started run gets exactly one of RunDone, Rejected and Died, or is
#: among those that a Lost of its environment covers.
Report = (
    FrontDone | RunDone | ev.Staged | ev.Rejected | ev.Died | ev.Ready | ev.Lost | ev.Unavailable
)


class Runner(Protocol):
    """Starts environments and runs in them; all methods return at once, reports follow.

    ``listen`` is called once, before anything else. Reports come on the broker's event loop.
    """

    def listen(self, report: Callable[[Report], None]) -> None:
        """Take the callable that receives every report."""
        ...

    def prepare(self, environment: bytes, spec: dict[str, Any]) -> None:
        """Start an environment; a Ready or an Unavailable follows."""
        ...

    def retire(self, environment: bytes) -> None:
        """End an idle environment; nothing follows."""
        ...

    def discard(self, environment: bytes) -> None:
        """Kill an environment with everything in it; a Lost follows."""
        ...

    def start(self, run: int, environment: bytes, body: bytes, priority: int) -> None:
        """Compile a request as this run in an environment that is ready."""
        ...

    def kill(self, run: int, environment: bytes) -> None:
        """Kill a run and its subprocesses; its Died follows."""
        ...

    async def close(self) -> None:
        """End everything that was started and wait for it."""
        ...


class FakeRunner:
    """A runner that compiles nothing: a test says what becomes of each run, or lets all succeed.

    With ``automatic`` every environment is ready at once and every run is keyed and done at once,
    its payload being ``b"artifact of " + body``. Otherwise the lists below say what was asked for,
    and the test reports through ``report``.
    """

    def __init__(self, automatic: bool = False) -> None:
        self.automatic = automatic
        self.report: Callable[[Report], None] = lambda report: None
        self.prepared: list[bytes] = []
        self.retired: list[bytes] = []
        self.started: list[tuple[int, bytes]] = []
        self.killed: list[int] = []
        self.closed = False

    def listen(self, report: Callable[[Report], None]) -> None:
        """Take the callable that receives every report."""
        self.report = report

    def prepare(self, environment: bytes, spec: dict[str, Any]) -> None:
        """Note the environment; report it ready if automatic."""
        self.prepared.append(environment)
        if self.automatic:
            self.report(ev.Ready(environment))

    def retire(self, environment: bytes) -> None:
        """Note the environment."""
        self.retired.append(environment)

    def discard(self, environment: bytes) -> None:
        """Report the environment lost."""
        self.report(ev.Lost(environment, "discarded"))

    def start(self, run: int, environment: bytes, body: bytes, priority: int) -> None:
        """Note the run; finish it if automatic."""
        self.started.append((run, body))
        if self.automatic:
            self.finish(run)

    def kill(self, run: int, environment: bytes) -> None:
        """Note the run and report its death."""
        self.killed.append(run)
        self.report(ev.Died(run, signal=9))

    def key(self, run: int, key: bytes | None = None) -> None:
        """Report that a run's front half is done; by default its key is made of its body."""
        self.report(FrontDone(run, self._key_of(run) if key is None else key, []))

    def finish(self, run: int, payload: bytes | None = None) -> None:
        """Report a run keyed and done."""
        self.key(run)
        body = dict(self.started)[run]
        self.report(RunDone(run, b"artifact of " + body if payload is None else payload, 1.0, 2.0))

    def reject(self, run: int, log: str) -> None:
        """Report that the compiler refused a run's kernel."""
        self.report(ev.Rejected(run, Failure("rejected", "", log=log)))

    async def close(self) -> None:
        """Note that it was closed."""
        self.closed = True

    def _key_of(self, run: int) -> bytes:
        return dict(self.started)[run].ljust(32, b".")[:32]
