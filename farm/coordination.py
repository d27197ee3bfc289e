"""The coordinator without Ray: joins nodes' messages and the cluster's plan, with no policy.

Nodes call three methods (cluster_wire.py has the messages). What they are told waits in a box for
each node until it listens, so a coordinator calls nobody: a node that is slow, gone or behind a cut
link costs it nothing. Nothing here outlives the process: a node that a new coordinator does not
know is told to join again and repeats what it wants.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import cluster_events as ev
from .cluster_jobs import ClusterLimits
from .cluster_plan import ClusterPlan
from .cluster_wire import BATCH_BYTES, CLUSTER_WIRE, PARK, size_of
from .errors import Failure
from .levels import SPECULATIVE, WAITING
from .wire import Message


@dataclass(slots=True, eq=False)
class Box:
    """What a node is to be told, for the session in which it joined last."""

    #: Of the node's process and link; empty until it listens, where ``join`` did not say it.
    session: str
    info: Message
    messages: deque[Message] = field(default_factory=deque)
    #: The latest call of ``listen``; done once it need wait no longer.
    listener: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Let who listens look again."""
        if self.listener is not None and not self.listener.done():
            self.listener.set_result(None)


class CoordinatorHost:
    """One of ``count`` coordinators; all methods are called on one event loop."""

    def __init__(
        self,
        index: int = 0,
        count: int = 1,
        *,
        clock: Callable[[], float] = time.monotonic,
        limits: ClusterLimits | None = None,
        park: float = PARK,
        fatal: Callable[[Exception], None] = lambda error: None,
        validate: bool = False,
    ) -> None:
        """Start with nothing known.

        ``fatal`` is told of a bug in here: the process must then end, and a new one be told all.
        """
        self.plan = ClusterPlan(clock, limits, validate=validate)
        self.counters: Counter[str] = Counter()
        self._index = index
        self._count = count
        self._clock = clock
        self._started = clock()
        self._park = park
        self._fatal = fatal
        self._boxes: dict[str, Box] = {}
        #: Key -> the request's bytes, for as long as the plan may assign it.
        self._bodies: dict[bytes, bytes] = {}
        self._body_bytes = 0
        self._busy = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = float("inf")

    # -- nodes --------------------------------------------------------------------------------

    async def join(self, node: str, info: Message) -> Message:
        """Take a node in, or say why not; ``info`` is as in cluster_wire."""
        reply = {"wire": CLUSTER_WIRE, "index": self._index, "count": self._count}
        why = _objection(info)
        if why:
            self.counters["refused"] += 1
            return {**reply, "ok": False, "why": why}
        self._close(node)
        self._boxes[node] = Box(str(info.get("session", "")), info)
        toolchains = tuple(bytes(found) for found in info["toolchains"])
        shares = bool(info.get("shares", False))
        self.handle(ev.Joined(node, info["slots"], toolchains, shares))
        return {**reply, "ok": True, "why": ""}

    async def send(self, node: str, messages: list[Message]) -> None:
        """Take what a node says; one that is not known learns it when it listens."""
        if self._box(node) is None:
            self.counters["strangers"] += 1
            return
        self.counters["calls"] += 1
        self.counters["messages"] += len(messages)
        events = []
        for message in messages:
            try:
                events.append(self._event(node, message))
            except (KeyError, TypeError, ValueError) as error:
                self._malformed(node, message, error)
        self.handle(*events)
        if not self.plan.knows(node):
            self._close(node)

    async def listen(self, node: str, session: str) -> list[Message]:
        """Return what a node is to be told, under 100 KB; wait for it some seconds at most."""
        box = self._box(node)
        if box is None:
            return [{"op": "rejoin"}]
        box.session = box.session or session
        if box.session == session:
            box.wake()  # an earlier call of this session has nobody who reads its answer
            box.listener = mine = asyncio.get_running_loop().create_future()
            if not box.messages:
                await _at_most(self._park, mine)
            if self._box(node) is None:
                return [{"op": "rejoin"}]
            return self._collect(box) if box.listener is mine else []
        # Another process has joined for this node; this one gets nothing, and not at once.
        await _at_most(self._park, asyncio.get_running_loop().create_future())
        return []

    def _collect(self, box: Box) -> list[Message]:
        batch: list[Message] = []
        filled = 0
        while box.messages:
            filled += size_of(box.messages[0])
            if batch and filled > BATCH_BYTES:
                break
            batch.append(box.messages.popleft())
        return batch

    def _box(self, node: str) -> Box | None:
        """Return a node's box while the plan knows the node."""
        if node in self._boxes and not self.plan.knows(node):
            self._close(node)
        return self._boxes.get(node)

    def _close(self, node: str) -> None:
        box = self._boxes.pop(node, None)
        if box is not None:
            box.messages.clear()
            box.wake()

    # -- messages -----------------------------------------------------------------------------

    def _event(self, node: str, message: Message) -> ev.Event:
        """Return what a message says; raises KeyError, TypeError, ValueError."""
        match message["op"]:
            case "ask":
                key, body = _key(message), message["body"]
                if not isinstance(body, bytes) or not body:
                    raise ValueError("a question without its request")
                toolchain, priority = bytes(message["toolchain"]), _priority(message)
                expected = float(message.get("expected", 0.0))
                if key not in self._bodies:
                    self._bodies[key] = body
                    self._body_bytes += len(body)
                return ev.Asked(node, key, toolchain, priority, expected, len(body))
            case "raise":
                return ev.Raised(node, _key(message), _priority(message))
            case "drop":
                return ev.Dropped(node, _key(message))
            case "pull":
                return ev.Pulled(node, int(message["credits"]))
            case "done":
                return ev.Finished(node, _key(message), float(message["seconds"]))
            case "failed":
                return ev.Failed(node, _key(message), Failure.from_wire(message["failure"]))
            case "unfetched":
                return ev.Unfetched(node, _key(message), str(message["holder"]))
            case "beat":
                return ev.Beat(node, int(message["slots"]))
            case "part":
                return ev.Parted(node)
            case other:
                raise ValueError(f"no such message: {other!r}")

    def _malformed(self, node: str, message: Any, error: Exception) -> None:
        """Let nobody wait for the answer to a message that could not be read."""
        self.counters["malformed"] += 1
        key = message.get("key") if isinstance(message, dict) else None
        if isinstance(key, bytes):
            why = f"the coordinator cannot read this: {type(error).__name__}: {error}"
            self._tell(node, {"op": "no_taker", "key": key, "why": why})

    # -- the plan -----------------------------------------------------------------------------

    def handle(self, *events: ev.Event) -> None:
        """Feed the plan and carry out what it wants."""
        began = time.perf_counter()
        try:
            for instruction in self.plan.handle(*events):
                self._carry_out(instruction)
        except Exception as error:
            self._fatal(error)
            raise
        self.counters["events"] += len(events)
        self._busy += time.perf_counter() - began
        self._set_timer()

    def _carry_out(self, instruction: ev.Instruction) -> None:
        match instruction:
            case ev.Assign(node, key, asker):
                told = {"op": "compile", "key": key, "asker": asker}
                body = b"" if asker else self._bodies[key]
                self._tell(node, {**told, "body": body, "prio": self.plan.priority(key)})
            case ev.Found(nodes, key, holder):
                for node in nodes:
                    self._tell(node, {"op": "found", "key": key, "holder": holder})
            case ev.Refused(nodes, key, failure):
                data = failure.to_wire()
                for node in nodes:
                    self._tell(node, {"op": "failed", "key": key, "failure": data})
            case ev.Cancel(node, key):
                self._tell(node, {"op": "cancel", "key": key})
            case ev.NoTaker(node, key, reason):
                self._tell(node, {"op": "no_taker", "key": key, "why": reason})
            case ev.Forget(key):
                self._body_bytes -= len(self._bodies.pop(key, b""))

    def _tell(self, node: str, message: Message) -> None:
        box = self._boxes.get(node)
        if box is not None:
            box.messages.append(message)
            box.wake()

    # -- time ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let time pass; the host's own timer calls it."""
        self.handle(ev.Tick())
        for node in [node for node in self._boxes if not self.plan.knows(node)]:
            self._close(node)

    def _set_timer(self) -> None:
        due = self.plan.next_wakeup()
        if due == self._timer_due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        delay = max(0.001, due - self._clock())
        self._timer = asyncio.get_running_loop().call_later(delay, self._timed)

    def _timed(self) -> None:
        self._timer_due = float("inf")
        self.tick()

    async def close(self) -> None:
        """Let all who listen go."""
        if self._timer is not None:
            self._timer.cancel()
        for node in list(self._boxes):
            self._close(node)

    # -- for people ---------------------------------------------------------------------------

    async def stats(self) -> Message:
        """Return what is there and what has happened, as plain data; times in seconds."""
        return {
            "wire": CLUSTER_WIRE,
            "index": self._index,
            "count": self._count,
            "uptime": self._clock() - self._started,
            "busy": self._busy,
            "requests": len(self._bodies),
            "request_bytes": self._body_bytes,
            "host": dict(self.counters),
            "plan": self.plan.snapshot(),
            "nodes": {
                node: {
                    "slots": box.info["slots"],
                    "toolchains": [bytes(found).hex() for found in box.info["toolchains"]],
                    "versions": box.info.get("versions", {}),
                }
                for node, box in self._boxes.items()
            },
        }


async def _at_most(seconds: float, future: asyncio.Future[None]) -> None:
    """Wait for a future, and no longer than that."""
    await asyncio.wait((future,), timeout=seconds)


def _objection(info: Message) -> str:
    """Return why a node cannot be taken in, an empty text if it can."""
    if info.get("wire") != CLUSTER_WIRE:
        return (
            f"the coordinator speaks cluster wire version {CLUSTER_WIRE}, the node "
            f"{info.get('wire')!r}: install the same kernelfarm on both"
        )
    slots, toolchains = info.get("slots"), info.get("toolchains")
    if not isinstance(slots, int) or not isinstance(toolchains, list | tuple):
        return f"a node says its slots and toolchains, not {slots!r} and {toolchains!r}"
    return ""


def _key(message: Message) -> bytes:
    key = message["key"]
    if not isinstance(key, bytes) or len(key) != 32:
        raise ValueError(f"a key has 32 bytes: {key!r}")
    return key


def _priority(message: Message) -> int:
    priority = message["prio"]
    if priority not in range(WAITING, SPECULATIVE + 1):
        raise ValueError(f"no such priority: {priority!r}")
    return int(priority)
