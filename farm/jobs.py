"""The plan's data: jobs, runs and environments, and the states that a job may take."""

from __future__ import annotations

from dataclasses import dataclass, field

from .events import Interest

#: state -> states that may follow. ``stored``, ``failed`` and ``abandoned`` end a job.
TRANSITIONS: dict[str, tuple[str, ...]] = {
    "wanted": ("queued", "failed", "abandoned"),  # its environment is not ready
    "queued": ("compiling", "wanted", "failed", "abandoned"),  # waits for a slot
    "compiling": ("stored", "queued", "wanted", "failed", "abandoned"),  # has exactly one run
    "stored": (),  # its result is kept for late askers
    "failed": (),
    "abandoned": (),  # nobody wants it, or another job has the same kernel key
}


@dataclass(slots=True, eq=False)
class Job:
    """One request, wanted by at least one interest unless it is compiling or has ended."""

    digest: bytes
    environment: bytes
    kernel: str
    priority: int
    size: int
    order: int
    queued: float  # when it was first wanted
    state: str = "wanted"
    #: Who wants it, and whether they joined a job that was there.
    interests: dict[Interest, bool] = field(default_factory=dict)
    #: All digests that lead here: its own, and those of requests with the same kernel key.
    digests: list[bytes] = field(default_factory=list)
    key: bytes | None = None
    #: The run in progress; set exactly while the state is "compiling".
    run: int | None = None
    attempts: int = 0
    losses: int = 0
    story: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Run:
    """One attempt in one child; it holds a slot until its end is reported."""

    number: int
    #: None once the job does not depend on this run any more.
    job: Job | None
    environment: bytes
    started: float
    stage: str = ""
    #: Why it is being killed: deadline, room, merged, satisfied; "" while it is not.
    killing: str = ""
    killed: float = 0.0
    discarded: bool = False


@dataclass(slots=True, eq=False)
class Environment:
    """One toolchain and environment: absent, starting, ready or broken."""

    name: bytes
    state: str = "absent"
    since: float = 0.0
    failures: int = 0
    reason: str = ""
    #: When it last had something to do.
    used: float = 0.0
