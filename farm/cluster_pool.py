"""The nodes that have one toolchain, and the jobs that wait for one of them."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection
from random import Random

from .cluster_jobs import ClusterLimits, Job, Node
from .levels import SPECULATIVE

#: Jobs that may be passed over in one search because the nodes that they may go to are busy.
PASSED_OVER = 8
#: Askers that are looked at for a free one of their own.
OWN = 8
#: A node that asks is taken first while its assignments lately are at most twice its share of
#: these and of all. Whoever is ahead of everybody asks first for everything, and would compile it
#: and then have to serve it to all: the larger the cluster, the worse.
OWN_SHARED = 32

_Entry = tuple[int, float, int, int, Job]


class Lane:
    """Queued jobs, the best first: the best level, then the longest, then the oldest.

    Entries are never searched for: one whose ticket is not its job's any more is passed over.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._stale = 0

    def push(self, job: Job) -> None:
        """Add a job under its present ticket."""
        entry = (job.priority, -job.expected, job.order, job.ticket, job)
        heapq.heappush(self._heap, entry)

    def left(self) -> None:
        """Note that one entry went out of date; too many of them are thrown out."""
        self._stale += 1
        if self._stale > 64 and self._stale * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if _counts(entry)]
            heapq.heapify(self._heap)
            self._stale = 0

    def pop(self) -> Job:
        """Take the best entry out, which ``head`` has just returned."""
        return heapq.heappop(self._heap)[4]

    def head(self) -> _Entry | None:
        """Return the best entry."""
        while self._heap:
            if _counts(self._heap[0]):
                return self._heap[0]
            heapq.heappop(self._heap)
            self._stale = max(0, self._stale - 1)
        return None


def _counts(entry: _Entry) -> bool:
    job = entry[4]
    return job.state == "queued" and job.ticket == entry[3]


class Pool:
    """One toolchain's nodes and queue; everything in it costs O(log n) or less."""

    def __init__(self, toolchain: bytes, limits: ClusterLimits) -> None:
        self.toolchain = toolchain
        self.nodes: dict[str, Node] = {}
        #: The slots of its nodes together.
        self.slots = 0
        #: Its speculative runs.
        self.speculating = 0
        #: Jobs in state "wanted", by key.
        self.wanted: dict[bytes, Job] = {}
        #: Compiling jobs that take long and have no hedge, by key, the longest waiting first.
        self.late: OrderedDict[bytes, Job] = OrderedDict()
        #: Assignments lately; halved now and then.
        self.recent = 0
        #: How many jobs of it are in state "queued".
        self.queued = 0
        self._limits = limits
        # Jobs that any node may take, speculation among them, and those that some node may not.
        self._usual, self._speculative, self._retries = Lane(), Lane(), Lane()
        #: All and only its nodes with a credit: a list to draw from, and each one's place in it.
        self._free: list[Node] = []
        self._place: dict[str, int] = {}

    # -- nodes --------------------------------------------------------------------------------

    def add(self, node: Node) -> None:
        """Let a node take this toolchain's jobs."""
        self.nodes[node.name] = node
        self.slots += node.slots
        self.update(node)

    def remove(self, node: Node) -> None:
        """Let a node take no more of them."""
        if self.nodes.pop(node.name, None) is not None:
            self.slots -= node.slots
            self._set_free(node, False)

    def update(self, node: Node) -> None:
        """Note that a node's credits may have changed."""
        if node.name in self.nodes:
            self._set_free(node, node.credits(self._limits) > 0)

    def _set_free(self, node: Node, free: bool) -> None:
        at = self._place.get(node.name)
        if free and at is None:
            self._place[node.name] = len(self._free)
            self._free.append(node)
        elif not free and at is not None:
            last = self._free.pop()
            if last is not node:
                self._free[at] = last
                self._place[last.name] = at
            del self._place[node.name]

    @property
    def free(self) -> list[Node]:
        """Its nodes with a credit, in no order; to read only."""
        return self._free

    def empty(self) -> bool:
        """Say whether it has neither nodes nor jobs."""
        return not (self.nodes or self.wanted or self.queued or self.late or self.speculating)

    # -- jobs ---------------------------------------------------------------------------------

    def push(self, job: Job) -> None:
        """Put a job that is queued, or queued at another level now, into its lane."""
        self._lane(job).push(job)

    def left(self, job: Job) -> None:
        """Note that a job's entry went out of date, before its priority changes."""
        self._lane(job).left()

    def drain(self) -> list[Job]:
        """Take all queued jobs out of their lanes, the best of each lane first."""
        lanes = (self._usual, self._retries, self._speculative)
        return [lane.pop() for lane in lanes for _ in iter(lane.head, None)]

    def _lane(self, job: Job) -> Lane:
        if job.tried:
            return self._retries
        return self._speculative if job.priority >= SPECULATIVE else self._usual

    def next(self, may_speculate: bool, rng: Random) -> tuple[Job, Node] | None:
        """Return the best queued job that a free node may take, with that node."""
        passed: list[Job] = []
        lanes = [self._usual, self._retries]
        if may_speculate:
            lanes.append(self._speculative)
        found = None
        while self._free and found is None:
            heads = [entry for lane in lanes if (entry := lane.head()) is not None]
            if not heads:
                break
            job = min(heads)[4]
            node = None
            if may_speculate or job.priority < SPECULATIVE:
                node = self.choose(job, self.barred(job), rng)
            if node is not None:
                found = (job, node)
                break
            # It is a retry: any free node may take the others.
            passed.append(self._retries.pop())
            if len(passed) == PASSED_OVER:
                lanes.remove(self._retries)
        for job in passed:
            self._retries.push(job)
        return found

    def barred(self, job: Job) -> Collection[str]:
        """Return the nodes that a job shall not go to: where it failed, if there are others."""
        return job.tried if any(name not in job.tried for name in self.nodes) else ()

    def choose(self, job: Job, barred: Collection[str], rng: Random) -> Node | None:
        """Return a node with a credit: one that asked for it, else the freer one of two."""
        share = 2 * (OWN_SHARED + self.recent) / max(1, len(self.nodes))
        for name, _ in zip(job.askers, range(OWN), strict=False):
            if name in self._place and name not in barred and self.nodes[name].recent + 1 <= share:
                return self.nodes[name]
        wanted = 2 + len(barred)
        if len(self._free) > wanted:
            drawn = [self._free[at] for at in rng.sample(range(len(self._free)), wanted)]
        else:
            drawn = list(self._free)
        drawn = [node for node in drawn if node.name not in barred][:2]
        return max(drawn, key=lambda node: node.credits(self._limits), default=None)
