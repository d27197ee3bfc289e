"""What can go wrong between a submitted request and its artifact.

    FarmError
    ├── KernelError          this kernel cannot be had; ``kernel`` names it
    │   ├── KernelRejected   the compiler itself refused it
    │   ├── KernelCrash      the compiler died on it, twice
    │   ├── KernelTimeout    the compiler outlived its deadline, twice
    │   ├── KernelOutOfMemory  the compiler outgrew its memory limit, twice
    │   └── KernelLost       the processes around the compiler died, twice
    ├── FarmUnavailable      no compile process can be had on this machine
    ├── UnsafeDirectory      a directory for sockets that others could write to
    ├── WireMismatch         a peer that speaks another version
    ├── BadFrame             bytes that are no message
    ├── FarmClosed           the client was closed with the request pending
    ├── FutureForked         a future of the parent process, asked in a forked child
    └── InvalidTransition    a bug of ours: the plan moved a job where it cannot go

A failure travels as data (``Failure``) and becomes one of these in the asking process.
"""

from __future__ import annotations

import signal as signals
from dataclasses import asdict, dataclass, field
from typing import Any


class FarmError(Exception):
    """The root of everything raised in this folder."""


class KernelError(FarmError):
    """This kernel cannot be had: ``kernel`` names it, ``failure`` is the whole account."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        self.kernel = failure.kernel
        self.stage = failure.stage
        self.reproducer = failure.reproducer
        super().__init__(failure.text())

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild from the failure: ``args`` holds only the text."""
        return (type(self), (self.failure,))


class KernelRejected(KernelError):
    """The compiler refused the kernel; its own error is ``__cause__`` where it can be rebuilt."""


class KernelCrash(KernelError):
    """The compiler died on the kernel twice: ``failure.signal`` or ``failure.exit_code``."""


class KernelTimeout(KernelError):
    """The compiler was still busy with the kernel at its deadline, twice."""


class KernelOutOfMemory(KernelError):
    """The compiler outgrew its memory limit with the kernel, twice."""


class KernelLost(KernelError):
    """The processes around the compiler died twice while they had the kernel."""


class FarmUnavailable(FarmError):
    """No compile process can be had on this machine; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"no compile process can be started: {reason}")


class UnsafeDirectory(FarmError):
    """A directory that must be private belongs to somebody else or is open to others."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"{path} cannot hold the broker's socket: {reason}; remove it or set XDG_RUNTIME_DIR"
        )


class WireMismatch(FarmError):
    """A peer that speaks another version of the wire; ``ours`` and ``theirs`` are the numbers."""

    def __init__(self, ours: int, theirs: object) -> None:
        self.ours = ours
        self.theirs = theirs
        super().__init__(
            f"the broker speaks wire version {ours}, the peer {theirs!r}: "
            "end the older processes or let each use its own broker"
        )


class BadFrame(FarmError):
    """Bytes on a connection that are no message of ours; the connection is closed."""


class FarmClosed(FarmError):
    """The client was closed while the request was pending."""


class FutureForked(FarmError):
    """A future that belongs to the parent process was waited for in a forked child."""


class InvalidTransition(FarmError):
    """The plan moved a job from a state to one that does not follow; ``story`` is its history."""

    def __init__(self, kernel: str, start: str, finish: str, story: tuple[str, ...]) -> None:
        self.story = story
        super().__init__(f"job {kernel}: {start} -> {finish} is no transition; {'; '.join(story)}")


_CLASSES: dict[str, type[KernelError]] = {
    "rejected": KernelRejected,
    "crash": KernelCrash,
    "timeout": KernelTimeout,
    "memory": KernelOutOfMemory,
    "lost": KernelLost,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job failed, as data: ``kind`` is rejected, crash, timeout, memory, lost, unavailable.

    ``log`` is the compiler's own text, ``cause`` its error by class name, args and attributes.
    ``reproducer`` is the path of a file with the kernel's TTIR (its text, if it never had TTIR).
    """

    kind: str
    kernel: str
    log: str = ""
    stage: str = ""
    signal: int = 0
    exit_code: int = 0
    seconds: float = 0.0
    attempts: int = 1
    reproducer: str = ""
    repeated: bool = False
    cause: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Return the message: the kernel, the cause, the next step."""
        where = f" in {self.stage}" if self.stage else ""
        times = "" if self.attempts < 2 else " twice" if self.attempts == 2 else " repeatedly"
        match self.kind:
            case "rejected":
                return self.log or f"kernel {self.kernel} was refused by the compiler{where}"
            case "crash":
                what = signal_name(self.signal) or f"exit status {self.exit_code}"
                head = f"kernel {self.kernel} crashed the compiler{times} ({what}{where})"
            case "timeout":
                head = (
                    f"kernel {self.kernel} was still compiling after {self.seconds:.0f} s"
                    f"{where}{times}"
                )
            case "memory":
                head = f"kernel {self.kernel} outgrew the compiler's memory limit{where}{times}"
            case _:
                head = f"kernel {self.kernel} was lost with its compile process{times}"
        parts = [head]
        if self.log:
            parts.append(self.log.strip()[-1500:])
        if self.repeated:
            parts.append("it is not tried again for a while")
        if self.reproducer:
            parts.append(f"reproducer: {self.reproducer}")
        return "; ".join(parts)

    def to_error(self) -> FarmError:
        """Return the exception that this failure is in the asking process."""
        if self.kind == "unavailable":
            return FarmUnavailable(self.log)
        error = _CLASSES.get(self.kind, KernelLost)(self)
        error.__cause__ = rebuild_cause(self.cause)
        return error

    def to_wire(self) -> dict[str, Any]:
        """Return the failure as plain data."""
        return asdict(self)

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Failure:
        """Rebuild a failure; unknown fields are ignored."""
        return cls(**{name: data[name] for name in cls.__slots__ if name in data})


def signal_name(number: int) -> str:
    """Return SIGSEGV for 11; an empty text for 0."""
    if not number:
        return ""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_cause(error: BaseException) -> dict[str, Any]:
    """Return an exception as plain data: class, args and attributes that are text or numbers."""
    plain = (str, int, float, bool, bytes, type(None))
    state = {name: value for name, value in vars(error).items() if isinstance(value, plain)}
    args = [value if isinstance(value, plain) else str(value) for value in error.args]
    return {"class": type(error).__name__, "args": args, "state": state}


def rebuild_cause(data: dict[str, Any]) -> Exception | None:
    """Return the seam's error that ``describe_cause`` described; None for any other class."""
    if not data:
        return None
    from ..compiler.seam import errors as seam_errors

    found = getattr(seam_errors, str(data.get("class", "")), None)
    if not (isinstance(found, type) and issubclass(found, seam_errors.SeamError)):
        return None
    error = found.__new__(found)
    error.args = tuple(data.get("args", ()))
    error.__dict__.update(data.get("state", {}))
    return error
