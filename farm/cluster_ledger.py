"""The cluster plan's jobs: how they change their state, wait, end, and who is told.

Half of ``cluster_plan.ClusterPlan``: what is here knows no event; what causes it is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from random import Random

from . import cluster_events as ev
from .cluster_jobs import TRANSITIONS, ClusterLimits, Job, Node
from .cluster_recall import Held, Holdings, Timers, Usual
from .cluster_roster import Roster
from .errors import Failure, InvalidTransition
from .levels import SPECULATIVE
from .recall import Quarantine

#: How often what is remembered is looked through.
HOUSEKEEPING = 5.0


class Ledger:
    """Jobs, holders and failures by key; every move of a job is made and checked here."""

    def __init__(
        self,
        clock: Callable[[], float],
        limits: ClusterLimits | None = None,
        *,
        rng: Random | None = None,
        validate: bool = False,
    ) -> None:
        self.limits = limits or ClusterLimits()
        self.counters: Counter[str] = Counter()
        self._clock = clock
        #: When the present call of ``handle`` began.
        self._now = clock()
        self._rng = rng or Random(0)
        self._validate = validate
        self._roster = Roster(self.limits)
        #: Key -> its job: exactly those wanted, queued or compiling.
        self._jobs: dict[bytes, Job] = {}
        #: Keys that are stored, with who has them; none of them is in ``_jobs``.
        self._held = Holdings(
            self.limits.recent_keys, self.limits.recent_bytes, self.limits.recent_seconds
        )
        self._quarantine = Quarantine(self.limits.quarantine)
        self._rejected = Quarantine(self.limits.rejected_seconds)
        self._usual = Usual()
        self._timers = Timers()
        self._number = 0
        self._out: list[ev.Instruction] = []
        #: There is a Forget among them.
        self._forgot = False
        self._gathered = clock() + self.limits.gathering
        self._timers.add(clock() + HOUSEKEEPING, self._housekeeping)

    # -- outside ------------------------------------------------------------------------------

    def next_wakeup(self) -> float:
        """Return when the next Tick is due at the latest."""
        return self._timers.next()

    def knows(self, node: str) -> bool:
        """Say whether a node has joined and is not out."""
        return node in self._roster.nodes

    def priority(self, key: bytes) -> int:
        """Return the present priority of a key that is wanted, queued or compiling."""
        return self._jobs[key].priority

    def snapshot(self) -> dict[str, int]:
        """Return the counters and how much there is of what."""
        states = Counter(job.state for job in self._jobs.values())
        nodes = self._roster.nodes
        return {
            **self.counters,
            "nodes": len(nodes),
            "slots": self._roster.slots,
            "runs": sum(len(node.runs) for node in nodes.values()),
            "held": len(self._held),
            **{f"jobs_{state}": count for state, count in states.items()},
        }

    # -- jobs ---------------------------------------------------------------------------------

    def _move(self, job: Job, state: str) -> None:
        if state not in TRANSITIONS[job.state]:
            raise InvalidTransition(job.key.hex()[:12], job.state, state, tuple(job.story))
        job.story.append(f"{job.state} -> {state}")
        pool = self._roster.pool(job)
        match job.state:
            case "wanted":
                del pool.wanted[job.key]
            case "queued":
                pool.left(job)
                pool.queued -= 1
            case "compiling":
                pool.late.pop(job.key, None)
        job.state = state
        match state:
            case "wanted":
                pool.wanted[job.key] = job
            case "queued":
                job.ticket = self._next()
                pool.push(job)
                pool.queued += 1
                self._roster.changed[pool.toolchain] = pool

    def _again(self, job: Job, why: str) -> bool:
        """Say whether a job whose run came to nothing gets another one, and queue it if so."""
        job.story.append(why)
        if not job.askers:
            self._settle(job, "abandoned")
            self._forget(job.key)
            return False
        if job.losses >= self.limits.losses:
            self._give_back(job, f"its compiles were lost: {why}")
            return False
        return self._wait(job, self.limits.retry_patience)

    def _wait(self, job: Job, seconds: float) -> bool:
        """Queue a job for so long at least; say whether there is anything to wait for."""
        job.until = max(job.until, self._now + seconds)
        self._timers.add(job.until, self._too_long, job.key, job.order)
        return self._place(job)

    def _place(self, job: Job) -> bool:
        """Queue a job without runs, or let it wait for nodes, or give it back."""
        if self._roster.pool(job).nodes:
            self._move(job, "queued")
        elif self._now < self._gathered:
            if job.state != "wanted":
                self._move(job, "wanted")
            self._timers.add(self._gathered, self._too_long, job.key, job.order)
        else:
            self._give_back(job, "no node of the cluster has its toolchain")
            return False
        return True

    def _too_long(self, key: bytes, order: int) -> None:
        job, now = self._jobs.get(key), self._now
        if job is None or job.order != order or job.state == "compiling":
            return
        if job.state == "wanted" and now >= self._gathered:
            self._give_back(job, "no node of the cluster has its toolchain")
        elif now >= job.until:
            self._give_back(job, "no node of the cluster had room for it in time")
        else:  # its deadline was moved meanwhile
            self._timers.add(job.until, self._too_long, key, order)

    def _give_back(self, job: Job, reason: str) -> None:
        """Let those who asked compile it."""
        for name in self._settle(job, "abandoned"):
            self._no_taker(name, job.key, reason)
        self._forget(job.key)

    def _no_taker(self, name: str, key: bytes, reason: str) -> None:
        self.counters["no_taker"] += 1
        self._emit(ev.NoTaker(name, key, reason))

    def _refuse(self, job: Job, failure: Failure, past: Quarantine, spare: str) -> None:
        """Let a job fail for those who asked, and for a while for those who will ask."""
        self.counters["failed"] += 1
        past.add(job.key, failure, self._now)
        nodes = self._settle(job, "failed", spare)
        if nodes:
            self._emit(ev.Refused(nodes, job.key, failure))
        self._forget(job.key)

    def _abandon_unwanted(self, job: Job) -> bool:
        """End a job that nobody asks for (any more), unless a run of it will finish anyway."""
        if job.askers or (job.runs and job.priority < SPECULATIVE):
            return False
        self.counters["abandoned"] += 1
        self._settle(job, "abandoned")
        self._forget(job.key)
        return True

    def _settle(self, job: Job, state: str, spare: str = "") -> tuple[str, ...]:
        """End a job and return who asked; ``spare`` needs not be told that its run is over.

        Nor is who asked and compiles it: the answer tells it.
        """
        nodes = self._roster.nodes
        for run in list(job.runs.values()):
            self._roster.end(run)
            name = run.node.name
            if name != spare and name in nodes and name not in job.askers:
                self._emit(ev.Cancel(name, job.key))
        askers = tuple(job.askers)
        for name in askers:
            self._drop_asker(job, nodes[name])
        self._move(job, state)
        del self._jobs[job.key]
        return askers

    def _drop_asker(self, job: Job, node: Node) -> None:
        del job.askers[node.name]
        node.asked.discard(job.key)

    # -- what is remembered -------------------------------------------------------------------

    def _store(self, job: Job, holder: str, seconds: float) -> Held:
        """Remember who has the artifact of a job that is stored."""
        held = Held(job.toolchain, job.priority, seconds, job.size, job.refetches, self._now)
        self._held.add(job.key, held)
        self._held.add_holder(job.key, holder, self._now)
        return held

    def _other_holder(self, held: Held, asker: str) -> str | None:
        """Return the holder that is there and was named least; who asks has not got it."""
        held.holders.pop(asker, None)
        nodes, now = self._roster.nodes, self._now
        best = None
        for name, since in held.holders.items():
            node = nodes.get(name)
            if since <= now and node is not None and (best is None or node.named < best.named):
                best = node
        return None if best is None else best.name

    def _tell_holder(self, names: tuple[str, ...], key: bytes, held: Held, holder: str) -> None:
        """Tell nodes where a key is; soon they will be holders themselves."""
        self._emit(ev.Found(names, key, holder))
        nodes, soon = self._roster.nodes, self._now + self.limits.spread
        nodes[holder].named += len(names)
        for name in islice(names, Holdings.HOLDERS):
            node = nodes[name]
            if node.shares and self._make_room(held, node):
                held.holders.setdefault(name, soon)
                held.ready = soon

    def _make_room(self, held: Held, node: Node) -> bool:
        """Say whether a node is to be a holder too, instead of the busiest if there are many.

        Those who ask first ask first for everything: without it they would serve everything.
        """
        if len(held.holders) < Holdings.HOLDERS:
            return True
        if held.ready > self._now:
            return False  # one at a time, else none of them would be ready
        nodes, most, busiest = self._roster.nodes, node.named, ""
        for name in held.holders:
            other = nodes.get(name)
            if name != held.sure and (other is None or other.named > most):
                most, busiest = (most if other is None else other.named), name
        if busiest:
            del held.holders[busiest]
        return bool(busiest)

    def _trim_held(self) -> None:
        for key in self._held.trim(self._now):
            self._forget(key)

    def _forget(self, key: bytes) -> None:
        """Let the host drop a request if nothing can come of it any more."""
        if not self._is_known(key):
            self._emit(ev.Forget(key))
            self._forgot = True

    def _is_known(self, key: bytes) -> bool:
        return key in self._jobs or key in self._held

    def _housekeeping(self) -> None:
        now = self._now
        self._quarantine.trim(now)
        self._rejected.trim(now)
        self._trim_held()
        self._roster.trim()
        self._timers.add(now + HOUSEKEEPING, self._housekeeping)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _emit(self, *instructions: ev.Instruction) -> None:
        self._out.extend(instructions)
