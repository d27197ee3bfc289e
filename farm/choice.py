"""The plan's choices, as pure functions: who is next, who makes room, when a run is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .errors import Failure
from .jobs import Job, Run
from .levels import AUTOTUNE, EMITTED, SPECULATIVE, WAITING
from .limits import Limits
from .recall import History


def deadline_of(run: Run, limits: Limits, history: History) -> float:
    """Return the time at which a run is over, from its start and its job's *present* priority."""
    job = run.job
    if job is None:
        return run.started + limits.deadlines[SPECULATIVE]
    seconds = limits.deadlines[job.priority]
    if job.priority == AUTOTUNE:
        known = history.median(job.kernel)
        if known is not None:
            seconds = min(seconds, max(limits.autotune_floor, 10 * known))
    return run.started + seconds


def level(job: Job, now: float, limits: Limits) -> int:
    """Return the level at which a queued job is served: its priority, raised by its age."""
    if job.priority == WAITING:
        return WAITING
    return max(EMITTED, job.priority - int((now - job.queued) / limits.ageing))


def best(
    queue: Iterable[Job],
    runs: Collection[Run],
    slots: int,
    now: float,
    limits: Limits,
    history: History,
) -> Job | None:
    """Return the queued job to run next; speculation gets at most half of the slots."""
    speculating = sum(is_speculation(run) for run in runs)
    may_speculate = speculating < max(1, slots // 2)
    return min(
        (job for job in queue if may_speculate or job.priority < SPECULATIVE),
        key=lambda job: (level(job, now, limits), -history.expected(job), job.order),
        default=None,
    )


def in_the_way(queue: Iterable[Job], runs: Collection[Run]) -> list[Run]:
    """Return the speculation to kill for waiting loads that got no slot, the youngest first."""
    waiting = sum(job.priority == WAITING for job in queue)
    waiting -= sum(bool(run.killing) for run in runs)
    if waiting <= 0:
        return []
    return sorted(filter(is_speculation, runs), key=lambda run: -run.started)[:waiting]


def is_speculation(run: Run) -> bool:
    """Say whether a run may be killed for a waiting load: nobody needs its result for sure."""
    if run.killing or run.job is None:
        return False
    return run.job.priority == SPECULATIVE or not run.job.interests


def failure_of_run(
    job: Job, run: Run, kind: str, *, seconds: float, signal: int, exit_code: int, log: str
) -> Failure:
    """Return the failure of a job whose last run ended without a result."""
    return Failure(
        kind,
        job.kernel,
        log=log,
        stage=run.stage,
        signal=signal,
        exit_code=exit_code,
        seconds=seconds,
        attempts=job.attempts,
    )
