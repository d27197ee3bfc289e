"""What happens to a coordinator's plan of the cluster, and what that plan wants done.

    event       := Joined | Beat | Parted | Pulled                    about nodes
                 | Asked | Raised | Dropped                           what nodes want
                 | Finished | Failed | Unfetched                      what became of it
                 | Tick                                               from the clock
    instruction := Assign | Cancel                                    to who compiles
                 | Found | Refused | NoTaker                          to who asked
                 | Forget                                             to the host of the plan

A *node* is the name of an agent with its broker, a *key* the 32 bytes of a kernel key's digest, a
*toolchain* the digest of the Triton installation that compiles. All are plain values: a log of
events can be replayed into a fresh plan, and a plan that forgot everything is rebuilt by Joined,
Pulled and Asked of the nodes that are there.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import Failure
from .levels import EMITTED


@dataclass(frozen=True, slots=True)
class Joined:
    """A node is there, or one of the two sides starts anew: what the node had assigned is void."""

    node: str
    slots: int
    toolchains: tuple[bytes, ...]
    shares: bool = False  # it serves what it has fetched, not only what it compiled


@dataclass(frozen=True, slots=True)
class Beat:
    """A node lives and has room for so many compiles; due every 2 s, and after 6 s it is out."""

    node: str
    slots: int


@dataclass(frozen=True, slots=True)
class Parted:
    """A node leaves; what it asked for is dropped, what it compiles goes elsewhere."""

    node: str


@dataclass(frozen=True, slots=True)
class Pulled:
    """A node takes so many assignments at once, at most slots + 2, those that it has included.

    An absolute number, so that reports and assignments that cross on the way do no harm. Work that
    no coordinator assigned to the node comes off it.
    """

    node: str
    credits: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A node wants a kernel compiled; ``expected`` is in seconds, ``size`` in bytes of the request.

    To ask again changes nothing but the priority, which only rises.
    """

    node: str
    key: bytes
    toolchain: bytes
    priority: int = EMITTED
    expected: float = 0.0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Raised:
    """A node needs the kernel sooner than it said."""

    node: str
    key: bytes
    priority: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A node no longer wants the kernel.

    Where it was assigned to this node as its asker, it does not compile it either.
    """

    node: str
    key: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """A node has the kernel's artifact and serves it; it took so many seconds to compile."""

    node: str
    key: bytes
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A node that the kernel was assigned to has no artifact; ``failure.kind`` decides."""

    node: str
    key: bytes
    failure: Failure


@dataclass(frozen=True, slots=True)
class Unfetched:
    """A node could not get the kernel's artifact from the node that is said to hold it."""

    node: str
    key: bytes
    holder: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Assign:
    """Let this node compile the kernel; it costs it one credit. ``asker``: the node wants it."""

    node: str
    key: bytes
    asker: bool


@dataclass(frozen=True, slots=True)
class Found:
    """Tell these nodes who holds the kernel's artifact.

    One of them may be compiling it for itself; that run is over as soon as it has the artifact.
    """

    nodes: tuple[str, ...]
    key: bytes
    holder: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Tell these nodes that the kernel failed for good."""

    nodes: tuple[str, ...]
    key: bytes
    failure: Failure


@dataclass(frozen=True, slots=True)
class Cancel:
    """Tell this node that its assignment is not needed any more; its report is then ignored."""

    node: str
    key: bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the request's bytes: nobody will be assigned the kernel unless it is asked for again."""

    key: bytes


@dataclass(frozen=True, slots=True)
class NoTaker:
    """Tell this node that nobody compiles the kernel for it, and why: it must do so itself."""

    node: str
    key: bytes
    reason: str


Event = (
    Joined
    | Beat
    | Parted
    | Pulled
    | Asked
    | Raised
    | Dropped
    | Finished
    | Failed
    | Unfetched
    | Tick
)
Instruction = Assign | Found | Refused | Cancel | Forget | NoTaker
