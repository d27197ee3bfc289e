"""The cluster's scheduler: a state machine without I/O, one in each coordinator.

``ClusterPlan.handle`` takes events, changes the jobs' states along ``cluster_jobs.TRANSITIONS`` and
returns what must be done. It sees keys, never requests or artifacts.

The rules. Single flight by key. The best level first, within it the longest expected first. A job
goes to a node that asked for it if that one has a credit, else to the freer one of two; speculation
gets at most half of the slots. A run that takes far longer than usual is hedged once where a credit
is to spare, and the first result wins. What a node had when it went silent is assigned once more. A
crash is tried once more on another node and is then final for a while; what the compiler itself
refused is final at once. Infrastructure never settles a job: where it fails, or nobody has the
toolchain, or the deadline comes, who asked is told to compile it. All that this plan knows comes
from nodes that say it again when a plan is new to them.

Every event costs O(log n) beside the answers that it causes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from . import cluster_events as ev
from .cluster_invariants import check
from .cluster_jobs import Job, Node, Run
from .cluster_ledger import Ledger
from .cluster_pool import PASSED_OVER, Pool
from .cluster_recall import Held
from .errors import Failure
from .levels import SPECULATIVE
from .recall import History

#: Failures that come of the kernel, not of the machine.
TRIED_TWICE = ("crash", "timeout", "memory")


class ClusterPlan(Ledger):
    """Who wants, compiles and holds which key; see the module's docstring for its rules."""

    # -- outside ------------------------------------------------------------------------------

    def handle(self, *events: ev.Event) -> list[ev.Instruction]:
        """Take events in their order and return the instructions that follow, in order."""
        self._out, self._forgot, self._now = [], False, self._clock()
        for event in events:
            self._take(event)
        changed = self._roster.changed
        while changed:
            self._fill(changed.popitem()[1])
        if self._validate:
            check(self)
        if self._forgot:
            return [found for found in self._out if not self._is_back(found)]
        return self._out

    def _is_back(self, instruction: ev.Instruction) -> bool:
        """Say whether a key was forgotten and asked for again within one call."""
        return isinstance(instruction, ev.Forget) and self._is_known(instruction.key)

    # -- events -------------------------------------------------------------------------------

    def _take(self, event: ev.Event) -> None:
        if isinstance(event, ev.Tick):
            self._timers.run(self._now)
            return
        if isinstance(event, ev.Joined):
            self._joined(event)
            return
        node = self._roster.nodes.get(event.node)
        if node is None:
            self.counters["strangers"] += 1
            if isinstance(event, ev.Asked | ev.Unfetched):
                self._no_taker(event.node, event.key, "the coordinator does not know this node")
                self._forget(event.key)
            return
        node.heard = self._now
        match event:
            case ev.Asked():
                self._asked(node, event)
            case ev.Finished(_, key, seconds):
                self._finished(node, key, seconds)
            case ev.Pulled(_, window):
                node.window = max(0, window)
                self._roster.credits_changed(node)
            case ev.Beat(_, slots):
                self._roster.resize(node, max(0, slots))
            case ev.Raised(_, key, priority):
                job = self._jobs.get(key)
                if job is not None and node.name in job.askers:
                    self._raise(job, priority)
            case ev.Dropped(_, key):
                self._dropped(node, key)
            case ev.Failed(_, key, failure):
                self._failed(node, key, failure)
            case ev.Unfetched(_, key, holder):
                self._unfetched(node, key, holder)
            case ev.Parted():
                self.counters["parted"] += 1
                self._leave(node)

    def _asked(self, node: Node, event: ev.Asked) -> None:
        key, now = event.key, self._now
        self.counters["asked"] += 1
        job = self._jobs.get(key)
        if job is not None:
            if node.name not in job.askers:
                self.counters["joined"] += 1
                self._add_asker(job, node)
            self._raise(job, event.priority)
            return
        held = self._held.get(key)
        if held is not None:
            self._held.describe(key, event.toolchain, event.size)
            held.priority = min(held.priority, event.priority)
            holder = self._other_holder(held, node.name)
            if holder is not None:
                self.counters["found"] += 1
                self._held.use(key, now)
                self._tell_holder((node.name,), key, held, holder)
                return
            self._held.pop(key)
        for past in (self._quarantine, self._rejected):
            failure = past.get(key, now)
            if failure is not None:
                self.counters["quarantined"] += 1
                again = replace(failure, repeated=past is self._quarantine)
                self._emit(ev.Refused((node.name,), key, again))
                self._forget(key)
                return
        expected = event.expected or event.size * History.SECONDS_PER_BYTE
        job = Job(key, event.toolchain, event.priority, expected, event.size, self._next())
        self._add(job, node)

    def _add(self, job: Job, node: Node) -> None:
        self._jobs[job.key] = job
        self._add_asker(job, node)
        self._roster.pool(job).wanted[job.key] = job
        self._wait(job, self.limits.deadlines[job.priority])

    def _add_asker(self, job: Job, node: Node) -> None:
        first = not job.askers
        job.askers[node.name] = None
        node.asked.add(job.key)
        if first:
            self._watch_all(job)

    def _raise(self, job: Job, priority: int) -> None:
        if priority >= job.priority:
            return
        pool = self._roster.pool(job)
        job.until = max(job.until, self._now + self.limits.deadlines[priority])
        if job.state == "queued":
            pool.left(job)
        job.priority = priority
        if job.state == "queued":
            job.ticket = self._next()
            pool.push(job)
            self._roster.changed[pool.toolchain] = pool
        for run in job.runs.values():
            self._roster.wanted_now(run)
        self._watch_all(job)

    def _dropped(self, node: Node, key: bytes) -> None:
        job = self._jobs.get(key)
        if job is None or node.name not in job.askers:
            return
        self.counters["dropped"] += 1
        self._drop_asker(job, node)
        run = job.runs.get(node.name)
        if run is not None and run.own:
            self._roster.end(run)
        if not self._abandon_unwanted(job) and job.state == "compiling" and not job.runs:
            self._again(job, f"{node.name} dropped it")

    def _finished(self, node: Node, key: bytes, seconds: float) -> None:
        job, now = self._jobs.get(key), self._now
        if job is None:
            if key not in self._held:
                self._held.add(key, Held(b"", SPECULATIVE, seconds, 0, 0, now))
            self._held.add_holder(key, node.name, now)
            return
        run = job.runs.get(node.name)
        if run is None:
            self.counters["volunteered"] += 1
        else:
            self.counters["compiled"] += 1
            self._usual.add(now - run.assigned)
        job.askers.pop(node.name, None)
        node.asked.discard(key)
        nodes = self._settle(job, "stored", spare=node.name)
        held = self._store(job, node.name, seconds)
        if nodes:
            self._tell_holder(nodes, key, held, node.name)
        self._trim_held()

    def _failed(self, node: Node, key: bytes, failure: Failure) -> None:
        job = self._jobs.get(key)
        if job is None:
            return
        run = job.runs.get(node.name)
        if failure.kind == "rejected" and (run is not None or node.name in job.askers):
            self._refuse(job, failure, self._rejected, spare=node.name)
            return
        if run is None:
            return  # it was cancelled, or who asked tried by itself and in vain
        self._roster.end(run)
        if failure.kind in TRIED_TWICE:
            job.attempts += 1
            job.tried.add(node.name)
            self.counters[f"runs_{failure.kind}"] += 1
            if job.attempts >= self.limits.attempts:
                failure = replace(failure, attempts=max(failure.attempts, job.attempts))
                self._refuse(job, failure, self._quarantine, spare=node.name)
            elif not job.runs and self._again(job, failure.kind):
                self.counters["retries"] += 1
            return
        if failure.kind == "unavailable":
            self._pause(node, job.toolchain)
        else:
            self.counters["runs_lost"] += 1
        if not job.runs:
            job.losses += failure.kind != "unavailable"
            self._again(job, failure.log or f"lost on {node.name}")

    def _unfetched(self, node: Node, key: bytes, holder: str) -> None:
        self.counters["unfetched"] += 1
        job, held = self._jobs.get(key), self._held.get(key)
        if job is not None:
            self._add_asker(job, node)
            return
        if held is None:
            self._no_taker(node.name, key, "its artifact is not known any more")
            return
        held.holders.pop(holder, None)
        other = self._other_holder(held, node.name)
        if other is not None:
            self._tell_holder((node.name,), key, held, other)
            return
        self._held.pop(key)
        if not held.toolchain or held.refetches >= self.limits.refetches:
            self._no_taker(node.name, key, f"{holder} cannot serve it")
            self._forget(key)
            return
        self.counters["recompiled"] += 1
        job = Job(key, held.toolchain, held.priority, held.expected, held.size, self._next())
        job.refetches = held.refetches + 1
        self._add(job, node)

    # -- nodes --------------------------------------------------------------------------------

    def _joined(self, event: ev.Joined) -> None:
        before = self._roster.nodes.get(event.node)
        if before is not None:
            self.counters["rejoined"] += 1
            self._leave(before)
        now = self._now
        node = Node(event.node, max(0, event.slots), now, shares=event.shares)
        self._roster.add(node)
        for toolchain in dict.fromkeys(event.toolchains):
            self._enter(node, toolchain)
        self._timers.add(now + self.limits.silence, self._silent, node)

    def _enter(self, node: Node, toolchain: bytes) -> None:
        pool = self._roster.enter(node, toolchain)
        for job in list(pool.wanted.values()):
            self._move(job, "queued")

    def _leave(self, node: Node) -> None:
        """Forget a node; what it asked for is dropped, what it had assigned goes elsewhere."""
        pools = [self._roster.pools[toolchain] for toolchain in node.toolchains]
        self._roster.remove(node)
        for key in list(node.asked):
            job = self._jobs[key]
            self._drop_asker(job, node)
            self._abandon_unwanted(job)
        for run in list(node.runs.values()):
            self._roster.end(run)
            if not run.job.runs:
                run.job.losses += 1
                if self._again(run.job, f"{node.name} is gone"):
                    self.counters["reassigned"] += 1
        for pool in pools:
            self._strand(pool)

    def _pause(self, node: Node, toolchain: bytes) -> None:
        """Let a node whose toolchain does not work take none of its jobs for a while."""
        if toolchain in node.toolchains:
            self.counters["unavailable"] += 1
            pool = self._roster.quit(node, toolchain)
            until = self._now + self.limits.unavailable_pause
            self._timers.add(until, self._resume, node, toolchain)
            self._strand(pool)

    def _resume(self, node: Node, toolchain: bytes) -> None:
        if self._roster.nodes.get(node.name) is node:
            self._enter(node, toolchain)

    def _strand(self, pool: Pool) -> None:
        """Give back what is queued where nobody is left to take it."""
        if not pool.nodes:
            for job in pool.drain():
                self._place(job)

    def _silent(self, node: Node) -> None:
        if self._roster.nodes.get(node.name) is not node:
            return
        until = node.heard + self.limits.silence
        if self._now < until:
            self._timers.add(until, self._silent, node)
            return
        self.counters["silent"] += 1
        self._leave(node)

    # -- runs ---------------------------------------------------------------------------------

    def _fill(self, pool: Pool) -> None:
        """Assign what a pool's free nodes may take, then hedge what is late if some are left."""
        roster = self._roster
        while (found := pool.next(roster.may_speculate(pool), self._rng)) is not None:
            job, node = found
            self._move(job, "compiling")
            self._assign(job, node)
        for job in list(islice(pool.late.values(), PASSED_OVER)) if pool.free else ():
            other = pool.choose(job, {*job.tried, *job.runs}, self._rng)
            if other is None:
                pool.late.move_to_end(job.key)
                continue
            del pool.late[job.key]
            job.hedged = True
            self.counters["hedges"] += 1
            self._assign(job, other)

    def _assign(self, job: Job, node: Node) -> None:
        own = node.name in job.askers
        run = Run(job, node, self._now, job.priority >= SPECULATIVE, own)
        self._roster.begin(run)
        self.counters["assigned"] += 1
        self._emit(ev.Assign(node.name, job.key, own))
        self._watch(run)

    def _watch_all(self, job: Job) -> None:
        """Look at a job's runs anew: more depends on them than before."""
        for run in job.runs.values():
            self._watch(run)

    def _watch(self, run: Run) -> None:
        """Look at a run when it is late, else when it is overdue."""
        job, limits = run.job, self.limits
        at = run.assigned + limits.deadlines[job.priority] + limits.overdue
        if not job.hedged and job.askers and job.priority < SPECULATIVE:
            late = run.assigned + self._patience(job)
            if late < at and job.key not in self._roster.pool(job).late:
                at = late
        run.watch = self._next()
        self._timers.add(at, self._look, run, run.watch)

    def _look(self, run: Run, watch: int) -> None:
        if run.ended or run.watch != watch:
            return
        job, now, limits = run.job, self._now, self.limits
        if now >= run.assigned + limits.deadlines[job.priority] + limits.overdue:
            self._overdue(run)
            return
        wanted = job.askers and job.priority < SPECULATIVE
        if wanted and not job.hedged and now >= run.assigned + self._patience(job):
            pool = self._roster.pool(job)
            pool.late[job.key] = job
            self._roster.changed[pool.toolchain] = pool
        self._watch(run)

    def _overdue(self, run: Run) -> None:
        """Take a run from a node that lives and does not end it; one for itself is left to it."""
        job, node = run.job, run.node
        self.counters["overdue"] += 1
        self._roster.end(run)
        job.tried.add(node.name)
        if node.name in job.askers:
            self._drop_asker(job, node)
            self._no_taker(node.name, job.key, "it has been compiling it for too long")
        else:
            self._emit(ev.Cancel(node.name, job.key))
        if not job.runs:
            job.losses += 1
            self._again(job, f"{node.name} does not end it")

    def _patience(self, job: Job) -> float:
        """Return after how many seconds a run of a job is late."""
        if len(self._usual) < self.limits.hedge_samples:
            return max(self.limits.hedge_blind, 2 * job.expected)
        return max(self.limits.hedge_floor, 3 * self._usual.p95(), 2 * job.expected)
