"""What is always true of a plan between two calls of ``handle``; tests check it after each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .plan import Plan


def check(plan: Plan) -> None:
    """Assert every invariant that the comments at the plan's attributes state."""
    jobs = list(plan._distinct())
    for digest, job in plan._jobs.items():
        assert digest in job.digests, job
        assert job.state in ("wanted", "queued", "compiling", "stored"), job
        assert (job.run is not None) == (job.state == "compiling"), job
        assert (job.order in plan._queue) == (job.state == "queued"), job
        assert (job.digest in plan._stored) == (job.state == "stored"), job
        if job.run is not None:
            assert plan._runs[job.run].job is job, job
        if job.state in ("wanted", "queued"):
            assert job.interests, job
        if job.state == "stored":
            assert not job.interests, job
    for key, job in plan._keys.items():
        assert job.key == key and plan._jobs.get(job.digest) is job, job
    wanted = {interest: job for job in jobs for interest in job.interests}
    assert wanted == plan._interests
    for run in plan._runs.values():
        assert run.job is None or run.job.run == run.number, run
