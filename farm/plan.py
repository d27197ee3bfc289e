"""The scheduler: a state machine without I/O, events in and instructions out.

``Plan.handle`` takes events, changes the jobs' states along ``jobs.TRANSITIONS`` and returns what
must be done. Whoever hosts it (a broker, a test) carries that out and reports what came of it.

The rules. Single flight: equal requests are one job, and so are requests whose front halves yield
one kernel key. The best level first, within it the longest expected first. Work that nobody wants
is dropped while queued; once started it finishes, unless it is satisfied from elsewhere or is
speculation in the way of a waiting load. Every job ends: runs have deadlines, kills have a grace
period, environments must become ready in time, and each may fail only so often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from . import events as ev
from .choice import best, deadline_of, failure_of_run, in_the_way
from .errors import Failure, InvalidTransition
from .invariants import check
from .jobs import TRANSITIONS, Environment, Job, Run
from .limits import Limits
from .recall import History, Quarantine, Recent

#: How often jobs are looked at when nothing else happens, for ageing and idle environments.
HOUSEKEEPING = 5.0
#: Failures of a kernel that will come again, so that it is not tried again for a while.
QUARANTINED = ("crash", "timeout")


class Plan:
    """What is wanted, queued, compiling and stored; see the module's docstring for its rules."""

    def __init__(
        self,
        clock: Callable[[], float],
        slots: int = 1,
        limits: Limits | None = None,
        *,
        validate: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self.slots = slots
        self.counters: Counter[str] = Counter()
        self._clock = clock
        self._validate = validate
        #: Request digest -> its job: exactly those wanted, queued, compiling or stored.
        self._jobs: dict[bytes, Job] = {}
        #: Kernel key -> the job that has it; all of them are also in ``_jobs``.
        self._keys: dict[bytes, Job] = {}
        #: Interest -> its job; exactly the union of the jobs' interests.
        self._interests: dict[ev.Interest, Job] = {}
        #: All and only jobs in state "queued", by order number.
        self._queue: dict[int, Job] = {}
        #: Every run whose end was not reported; each holds a slot.
        self._runs: dict[int, Run] = {}
        self._environments: dict[bytes, Environment] = {}
        #: All and only jobs in state "stored".
        self._stored = Recent(self.limits.recent_bytes, self.limits.recent_seconds)
        self._quarantine = Quarantine(self.limits.quarantine)
        self._history = History()
        self._order = 0
        self._run_number = 0
        self._out: list[ev.Instruction] = []

    # -- outside ------------------------------------------------------------------------------

    def handle(self, *events: ev.Event) -> list[ev.Instruction]:
        """Take events in their order and return the instructions that follow, in order."""
        self._out = []
        for event in events:
            self._take(event)
        self._fill_slots()
        for run in in_the_way(self._queue.values(), self._runs.values()):
            self.counters["made_room"] += 1
            self._kill(run, "room")
        if self._validate:
            check(self)
        return self._out

    def next_wakeup(self) -> float:
        """Return when the next Tick is due at the latest."""
        due = self._clock() + HOUSEKEEPING
        for run in self._runs.values():
            if run.killing:
                at = run.killed + self.limits.kill_grace
            else:
                at = deadline_of(run, self.limits, self._history)
            if not run.discarded:
                due = min(due, at)
        for environment in self._environments.values():
            if environment.state == "starting":
                due = min(due, environment.since + self.limits.start_deadline)
        return due

    def snapshot(self) -> dict[str, int]:
        """Return the counters and how many jobs are in which state."""
        states = Counter(job.state for job in self._distinct())
        return {
            **self.counters,
            "slots": self.slots,
            "runs": len(self._runs),
            **{f"jobs_{state}": count for state, count in states.items()},
        }

    def idle(self) -> bool:
        """Say whether nothing is wanted and nothing runs."""
        return not self._interests and not self._runs

    # -- events -------------------------------------------------------------------------------

    def _take(self, event: ev.Event) -> None:
        match event:
            case ev.Wanted():
                self._wanted(event)
            case ev.Raised(interest, priority):
                job = self._interests.get(interest)
                if job is not None:
                    job.priority = min(job.priority, priority)
            case ev.Released(interest, satisfied):
                self._released(interest, satisfied)
            case ev.ClientGone(client):
                for interest in [found for found in self._interests if found[0] == client]:
                    self._released(interest, False)
            case ev.Expected(name):
                environment = self._environment(name)
                environment.used = self._clock()
                if environment.state == "absent":
                    self._start_environment(environment)
            case ev.Ready(name):
                self._ready(self._environment(name))
            case ev.Lost(name, reason):
                self._lost(self._environment(name), reason)
            case ev.Unavailable(name, reason):
                self._start_failed(self._environment(name), reason)
            case ev.Staged(number, stage):
                if number in self._runs:
                    self._runs[number].stage = stage
            case ev.Keyed(number, key):
                self._keyed(number, key)
            case ev.Succeeded(number, size, seconds):
                self._succeeded(number, size, seconds)
            case ev.Rejected(number, failure):
                job = self._end_run(number)
                if job is not None:
                    self._fail(job, replace(failure, kernel=failure.kernel or job.kernel))
            case ev.Died():
                self._died(event)
            case ev.SlotsChanged(slots):
                self.slots = max(1, slots)
            case ev.Tick():
                self._tick()

    def _wanted(self, event: ev.Wanted) -> None:
        now = self._clock()
        self.counters["requests"] += 1
        failure = self._quarantine.get(event.digest, now)
        if failure is not None:
            self.counters["quarantined"] += 1
            self._emit(
                ev.Fail(event.digest, (event.interest,), replace(failure, repeated=True)),
                ev.Forget(event.digest),
            )
            return
        job = self._jobs.get(event.digest)
        if job is None:
            self._add(event, now)
            return
        self.counters["joined"] += 1
        if job.state == "stored":
            self._stored.touch(job.digest)
            self._emit(ev.Deliver(job.digest, ((event.interest, True),)))
            return
        self._join(job, event.interest, event.priority)

    def _add(self, event: ev.Wanted, now: float) -> None:
        environment = self._environment(event.environment)
        environment.used = now
        if environment.state == "broken" and now - environment.since < self.limits.start_pause:
            failure = Failure("unavailable", event.kernel, log=environment.reason)
            self._emit(ev.Fail(event.digest, (event.interest,), failure), ev.Forget(event.digest))
            return
        self._order += 1
        job = Job(
            event.digest,
            event.environment,
            event.kernel,
            event.priority,
            event.size,
            self._order,
            now,
            digests=[event.digest],
        )
        job.interests[event.interest] = False
        self._jobs[event.digest] = self._interests[event.interest] = job
        if environment.state == "ready":
            self._move(job, "queued")
        elif environment.state != "starting":
            self._start_environment(environment)

    def _join(self, job: Job, interest: ev.Interest, priority: int) -> None:
        job.interests[interest] = True
        job.priority = min(job.priority, priority)
        self._interests[interest] = job
        if job.key is not None:
            self._emit(ev.TellKeyed(job.digest, (interest,)))

    def _released(self, interest: ev.Interest, satisfied: bool) -> None:
        job = self._interests.pop(interest, None)
        if job is None:
            return
        del job.interests[interest]
        if job.interests:
            return
        if job.state in ("wanted", "queued"):
            self.counters["dropped"] += 1
            self._abandon(job)
        elif satisfied and job.run is not None:
            self.counters["satisfied"] += 1
            self._kill(self._runs[job.run], "satisfied")
            self._abandon(job)

    def _keyed(self, number: int, key: bytes) -> None:
        run = self._runs.get(number)
        if run is None or run.job is None or run.killing:
            return
        job = run.job
        other = self._keys.get(key)
        if other is not None and other is not job:
            self._merge(job, other, run)
            return
        before, job.key = job.key, key
        self._keys[key] = job
        if before == key:
            return  # a second attempt: the clients were told before
        if before is not None:
            del self._keys[before]
        if job.interests:
            self._emit(ev.TellKeyed(job.digest, tuple(job.interests)))

    def _merge(self, job: Job, other: Job, run: Run) -> None:
        """Let ``other``, which has the same kernel key, serve those who wait for ``job``."""
        self.counters["merged"] += 1
        interests = dict(job.interests)
        for interest in interests:
            del job.interests[interest]
            del self._interests[interest]
        self._kill(run, "merged")
        self._abandon(job)
        self._jobs[job.digest] = other
        other.digests.append(job.digest)
        if other.state == "stored":
            joined = tuple((interest, True) for interest in interests)
            if joined:
                self._emit(ev.Deliver(other.digest, joined))
            return
        for interest in interests:
            self._join(other, interest, job.priority)

    def _succeeded(self, number: int, size: int, seconds: float) -> None:
        job = self._end_run(number)
        if job is None:
            return
        now = self._clock()
        self.counters["compiled"] += 1
        self._history.add(job.kernel, seconds)
        self._environment(job.environment).failures = 0
        self._move(job, "stored")
        self._stored.add(job.digest, size, now)
        interests = tuple(job.interests.items())
        self._drop_interests(job)
        if interests:
            self._emit(ev.Deliver(job.digest, interests))
        self._trim_stored(now)

    def _died(self, event: ev.Died) -> None:
        run = self._runs.get(event.run)
        job = self._end_run(event.run)
        if run is None or job is None:
            return
        if run.killing == "room":
            self._requeue(job, "made room")
            return
        now = self._clock()
        kind = "timeout" if run.killing == "deadline" else "memory" if event.memory else "crash"
        job.attempts += 1
        self.counters[f"runs_{kind}"] += 1
        if job.attempts < self.limits.attempts:
            self.counters["retries"] += 1
            self._requeue(job, kind)
            return
        failure = failure_of_run(
            job,
            run,
            kind,
            seconds=now - run.started,
            signal=event.signal if kind == "crash" else 0,
            exit_code=event.exit_code,
            log=event.log,
        )
        if kind in QUARANTINED:
            for digest in job.digests:
                self._quarantine.add(digest, failure, now)
        self._fail(job, failure)

    # -- environments -------------------------------------------------------------------------

    def _environment(self, name: bytes) -> Environment:
        return self._environments.setdefault(name, Environment(name))

    def _start_environment(self, environment: Environment) -> None:
        environment.state, environment.since = "starting", self._clock()
        self.counters["environments_started"] += 1
        self._emit(ev.Prepare(environment.name))

    def _ready(self, environment: Environment) -> None:
        now = self._clock()
        environment.state, environment.since, environment.used = "ready", now, now
        for job in self._of(environment, "wanted"):
            self._move(job, "queued")

    def _lost(self, environment: Environment, reason: str) -> None:
        """Resubmit what an environment had when it died, once; the rest just waits for another."""
        if environment.state == "absent":
            return  # it was retired
        self.counters["environments_lost"] += 1
        was_ready = environment.state == "ready"
        environment.state = "absent"
        for run in [run for run in self._runs.values() if run.environment == environment.name]:
            job = self._end_run(run.number)
            if job is None:
                continue
            if run.killing == "deadline":  # it died because it would not kill this run
                job.attempts = self.limits.attempts
                seconds = self._clock() - run.started
                self._fail(
                    job,
                    failure_of_run(
                        job, run, "timeout", seconds=seconds, signal=0, exit_code=0, log=""
                    ),
                )
                continue
            job.losses += 1
            if job.losses < self.limits.losses:
                self._requeue(job, "lost")
            else:
                self._fail(
                    job,
                    Failure("lost", job.kernel, log=reason, stage=run.stage, attempts=job.losses),
                )
        for job in self._of(environment, "queued"):
            self._move(job, "wanted")
        if was_ready:
            if self._of(environment, "wanted"):
                self._start_environment(environment)
        else:
            self._start_failed(environment, reason)

    def _start_failed(self, environment: Environment, reason: str) -> None:
        """Try the environment once more, then let its jobs fail; askers have a last resort."""
        environment.failures += 1
        jobs = self._of(environment, "wanted")
        if environment.failures < self.limits.start_failures:
            environment.state = "absent"
            if jobs:
                self._start_environment(environment)
            return
        environment.state, environment.since = "broken", self._clock()
        environment.failures, environment.reason = 0, reason
        for job in jobs:
            self._fail(job, Failure("unavailable", job.kernel, log=reason))

    def _of(self, environment: Environment, state: str) -> list[Job]:
        return [
            job
            for job in self._distinct()
            if job.state == state and job.environment == environment.name
        ]

    # -- time ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._clock()
        limits = self.limits
        for run in list(self._runs.values()):
            if run.killing:
                if now >= run.killed + limits.kill_grace and not run.discarded:
                    for other in self._runs.values():
                        other.discarded |= other.environment == run.environment
                    self._emit(ev.Discard(run.environment))
            elif now >= deadline_of(run, limits, self._history):
                self._kill(run, "deadline")
        busy = {run.environment for run in self._runs.values()}
        busy.update(job.environment for job in self._jobs.values() if job.state != "stored")
        for environment in self._environments.values():
            if environment.name in busy:
                environment.used = now
            if environment.state == "starting":
                if now >= environment.since + limits.start_deadline:
                    environment.since = now  # a Lost follows
                    self._emit(ev.Discard(environment.name))
            elif environment.state == "ready" and now >= environment.used + limits.environment_idle:
                environment.state = "absent"
                self._emit(ev.Retire(environment.name))
        self._quarantine.trim(now)
        self._trim_stored(now)

    def _trim_stored(self, now: float) -> None:
        for digest in self._stored.trim(now):
            self._remove(self._jobs[digest])

    # -- slots --------------------------------------------------------------------------------

    def _fill_slots(self) -> None:
        now, history = self._clock(), self._history
        while self._queue and len(self._runs) < self.slots:
            job = best(
                self._queue.values(), self._runs.values(), self.slots, now, self.limits, history
            )
            if job is None:
                return
            self._run_number += 1
            run = Run(self._run_number, job, job.environment, now)
            self._runs[run.number] = run
            job.run = run.number
            self._move(job, "compiling")
            self._environment(job.environment).used = now
            self.counters["runs_started"] += 1
            self._emit(ev.Start(run.number, job.digest, job.environment, job.priority))

    # -- moving jobs --------------------------------------------------------------------------

    def _move(self, job: Job, state: str) -> None:
        if state not in TRANSITIONS[job.state]:
            raise InvalidTransition(job.kernel, job.state, state, tuple(job.story))
        job.story.append(f"{job.state} -> {state}")
        if job.state == "queued":
            del self._queue[job.order]
        if job.state == "compiling":
            job.run = None
        job.state = state
        if state == "queued":
            self._queue[job.order] = job

    def _requeue(self, job: Job, why: str) -> None:
        """Give a job that lost its run another one, if anybody still wants it."""
        job.story.append(why)
        if not job.interests:
            self._abandon(job)
            return
        ready = self._environment(job.environment).state == "ready"
        self._move(job, "queued" if ready else "wanted")

    def _abandon(self, job: Job) -> None:
        if job.run in self._runs:
            self._runs[job.run].job = None
        self._move(job, "abandoned")
        self._remove(job)

    def _fail(self, job: Job, failure: Failure) -> None:
        self.counters["failed"] += 1
        interests = tuple(job.interests)
        self._drop_interests(job)
        self._move(job, "failed")
        if interests:
            self._emit(ev.Fail(job.digest, interests, failure))
        self._remove(job)

    def _drop_interests(self, job: Job) -> None:
        for interest in job.interests:
            del self._interests[interest]
        job.interests.clear()

    def _remove(self, job: Job) -> None:
        if job.key is not None and self._keys.get(job.key) is job:
            del self._keys[job.key]
        for digest in job.digests:
            if self._jobs.get(digest) is job:
                del self._jobs[digest]
                self._emit(ev.Forget(digest))

    def _end_run(self, number: int) -> Job | None:
        """Free a run's slot and return the job that still depended on it."""
        run = self._runs.pop(number, None)
        return None if run is None else run.job

    def _kill(self, run: Run, reason: str) -> None:
        run.killing, run.killed = reason, self._clock()
        self._emit(ev.Kill(run.number, run.environment, reason))

    def _distinct(self) -> list[Job]:
        return [job for digest, job in self._jobs.items() if digest == job.digest]

    def _emit(self, *instructions: ev.Instruction) -> None:
        self._out.extend(instructions)
