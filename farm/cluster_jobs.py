"""The cluster plan's data: jobs, runs, nodes, bounds, and the states that a job may take."""

from __future__ import annotations

from dataclasses import dataclass, field

#: state -> states that may follow. ``stored``, ``failed`` and ``abandoned`` end a job.
TRANSITIONS: dict[str, tuple[str, ...]] = {
    # No node that is there has its toolchain, and some may not have joined yet.
    "wanted": ("queued", "stored", "failed", "abandoned"),
    # Waits for a credit.
    "queued": ("compiling", "wanted", "stored", "failed", "abandoned"),
    # Assigned to one node, or to two of which one is a hedge.
    "compiling": ("stored", "queued", "wanted", "failed", "abandoned"),
    "stored": (),  # a node has the artifact
    "failed": (),
    "abandoned": (),  # nobody wants it, or who wants it was told to compile it
}


@dataclass(frozen=True, slots=True)
class ClusterLimits:
    """The cluster plan's bounds; all times in seconds.

    ``deadlines`` are per priority: waiting, emitted, autotune, speculative. A job that is queued
    for longer goes back to who asked; a run that takes longer, and ``overdue`` more, counts as
    lost, since its node should have ended it.
    """

    deadlines: tuple[float, float, float, float] = (120.0, 120.0, 120.0, 30.0)
    overdue: float = 15.0
    silence: float = 6.0  # a node that says nothing for so long is out
    gathering: float = 2.5  # a new plan waits so long for nodes before it says "nobody"
    attempts: int = 2  # runs that may crash, hang or run out of memory before the job fails
    losses: int = 2  # runs that may be lost before who asked must compile it
    refetches: int = 2  # compiles of one key because its holders could not serve it
    retry_patience: float = 30.0  # a job whose run was in vain is queued at least so long again
    hedge_floor: float = 0.5  # no run is hedged before that
    hedge_blind: float = 5.0  # the same, while too little was finished to know what is usual
    hedge_samples: int = 8  # that much is enough to know
    unavailable_pause: float = 30.0  # a node without a working toolchain gets none of its jobs
    quarantine: float = 600.0  # a kernel that crashed or hung twice fails at once for so long
    rejected_seconds: float = 60.0  # and one that the compiler refused for so long
    recent_seconds: float = 600.0  # holders are remembered for so long after the last question
    recent_keys: int = 200_000
    recent_bytes: int = 128 << 20  # of requests that are kept, should the holders be gone
    spread: float = 0.25  # who was told where an artifact is has it after so long, and serves it
    prefetch: int = 2  # assignments that a node may have beyond its slots


@dataclass(slots=True, eq=False)
class Run:
    """One assignment of a job to a node; it takes a credit until it has ended."""

    job: Job
    node: Node
    assigned: float
    #: It counts as speculation, of which there may be only so much.
    speculative: bool
    #: The node compiles it because it asked for it.
    own: bool
    ended: bool = False
    #: The timer that counts; any other of this run is out of date.
    watch: int = 0


@dataclass(slots=True, eq=False)
class Job:
    """One key that somebody wants, or that is being compiled."""

    key: bytes
    toolchain: bytes
    priority: int
    expected: float
    size: int
    order: int
    until: float = 0.0  # when it is queued no longer
    state: str = "wanted"
    #: The nodes that asked and were not answered, in their order.
    askers: dict[str, None] = field(default_factory=dict)
    #: Node -> its run; not empty exactly while the state is "compiling".
    runs: dict[str, Run] = field(default_factory=dict)
    #: Nodes on which it crashed, hung or ran out of memory.
    tried: set[str] = field(default_factory=set)
    attempts: int = 0
    losses: int = 0
    refetches: int = 0
    hedged: bool = False
    #: The entry of a lane that counts; any other of this job is out of date.
    ticket: int = 0
    story: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Node:
    """An agent with its broker."""

    name: str
    slots: int
    heard: float
    #: It serves what it has fetched.
    shares: bool = False
    #: How often it was named as a holder lately; halved now and then, as the next one is.
    named: int = 0
    #: Its assignments lately.
    recent: int = 0
    #: Those whose jobs it takes now.
    toolchains: set[bytes] = field(default_factory=set)
    #: Assignments that it takes at once; 0 until it pulls.
    window: int = 0
    #: Key -> its run here.
    runs: dict[bytes, Run] = field(default_factory=dict)
    #: Keys of the jobs that it is an asker of.
    asked: set[bytes] = field(default_factory=set)

    def credits(self, limits: ClusterLimits) -> int:
        """Return how many assignments it takes beyond those that it has; none without a slot."""
        most = self.slots + limits.prefetch if self.slots else 0
        return min(self.window, most) - len(self.runs)
