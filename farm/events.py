"""What happens to the plan, and what the plan wants done.

    event       := Wanted | Raised | Released | ClientGone            from clients
                 | Expected | Ready | Lost | Unavailable              about environments
                 | Staged | Keyed | Succeeded | Rejected | Died       about runs
                 | SlotsChanged | Tick                                from the clock
    instruction := Prepare | Retire | Discard                         to environments
                 | Start | Kill                                       to runs
                 | TellKeyed | Deliver | Fail | Forget                to clients and the broker

A *job* is one digest of a request; a *run* is one attempt at it in one child; an *interest* is one
client's wish for it. All are plain values: a log of events can be replayed into a fresh plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import Failure
from .levels import EMITTED

#: (client number, that client's request number)
Interest = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A client asks for the kernel of a request; ``digest`` is that of the request's bytes."""

    interest: Interest
    digest: bytes
    environment: bytes
    kernel: str
    priority: int = EMITTED
    size: int = 0  # bytes of the request: the guess at its cost while there is no history


@dataclass(frozen=True, slots=True)
class Raised:
    """A client needs it sooner than it said."""

    interest: Interest
    priority: int


@dataclass(frozen=True, slots=True)
class Released:
    """A client no longer wants it; ``satisfied``: it is in the store, so nobody needs the run."""

    interest: Interest
    satisfied: bool = False


@dataclass(frozen=True, slots=True)
class ClientGone:
    """A client's connection ended."""

    client: int


@dataclass(frozen=True, slots=True)
class Expected:
    """A client will ask for kernels in this environment."""

    environment: bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """An environment takes runs now."""

    environment: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """An environment died with all its runs."""

    environment: bytes
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """An environment cannot be had at all."""

    environment: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Staged:
    """A run enters a stage; a crash is then known by it."""

    run: int
    stage: str


@dataclass(frozen=True, slots=True)
class Keyed:
    """A run's front half is done: ``key`` is the digest of its kernel key."""

    run: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Succeeded:
    """A run has its artifact; ``size`` is that of the result in bytes."""

    run: int
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Rejected:
    """The compiler refused the kernel in this run."""

    run: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Died:
    """A run's child ended without a result: by a signal, by exit, or for its memory."""

    run: int
    signal: int = 0
    exit_code: int = 0
    memory: bool = False
    log: str = ""


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """The machine has room for so many runs at once."""

    slots: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Start this environment."""

    environment: bytes


@dataclass(frozen=True, slots=True)
class Retire:
    """End this environment; it is idle."""

    environment: bytes


@dataclass(frozen=True, slots=True)
class Discard:
    """Kill this environment and all its runs; it does not answer."""

    environment: bytes


@dataclass(frozen=True, slots=True)
class Start:
    """Compile the request ``digest`` as this run; ``priority`` is its job's at this moment."""

    run: int
    digest: bytes
    environment: bytes
    priority: int = EMITTED


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill this run's processes; a Died follows."""

    run: int
    environment: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class TellKeyed:
    """Tell these clients the kernel key of the job."""

    digest: bytes
    interests: tuple[Interest, ...]


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give these clients the job's result; ``joined``: another client's wish started it."""

    digest: bytes
    interests: tuple[tuple[Interest, bool], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Fail:
    """Tell these clients that the job failed; ``digest`` still finds the request."""

    digest: bytes
    interests: tuple[Interest, ...]
    failure: Failure


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop what is kept for this request: its bytes and its result."""

    digest: bytes


Event = (
    Wanted
    | Raised
    | Released
    | ClientGone
    | Expected
    | Ready
    | Lost
    | Unavailable
    | Staged
    | Keyed
    | Succeeded
    | Rejected
    | Died
    | SlotsChanged
    | Tick
)
Instruction = Prepare | Retire | Discard | Start | Kill | TellKeyed | Deliver | Fail | Forget
