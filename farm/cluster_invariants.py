"""What is always true of a cluster plan between two calls of ``handle``; tests check it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .levels import SPECULATIVE

if TYPE_CHECKING:
    from .cluster_ledger import Ledger


def check(plan: Ledger) -> None:
    """Assert every invariant that the comments at the attributes state."""
    roster = plan._roster
    jobs = plan._jobs
    assert not roster.changed
    for key, job in jobs.items():
        pool = roster.pool(job)
        assert job.key == key and key not in plan._held, job
        assert job.state in ("wanted", "queued", "compiling"), job
        assert (len(job.runs) > 0) == (job.state == "compiling"), job
        assert len(job.runs) <= (2 if job.hedged else 1), job
        assert job.state == "compiling" or job.askers, job
        assert (key in pool.wanted) == (job.state == "wanted"), job
        assert key not in pool.late or (job.state == "compiling" and not job.hedged), job
        for name in job.askers:
            assert key in roster.nodes[name].asked, job
        for name, run in job.runs.items():
            assert not run.ended and run.job is job, job
            assert roster.nodes[name].runs[key] is run, job
            assert not run.speculative or job.priority == SPECULATIVE, job
    for name, node in roster.nodes.items():
        assert node.name == name
        assert all(name in jobs[key].askers for key in node.asked), node
        assert all(jobs[key].runs[name] is run for key, run in node.runs.items()), node
        assert all(name in roster.pools[toolchain].nodes for toolchain in node.toolchains), node
    runs = [run for node in roster.nodes.values() for run in node.runs.values()]
    assert roster.slots == sum(node.slots for node in roster.nodes.values())
    assert roster.speculating == sum(run.speculative for run in runs)
    for toolchain, pool in roster.pools.items():
        of_pool = [job for job in jobs.values() if job.toolchain == toolchain]
        assert pool.queued == sum(job.state == "queued" for job in of_pool)
        assert pool.slots == sum(node.slots for node in pool.nodes.values())
        speculating = [run.speculative for run in runs if run.job.toolchain == toolchain]
        assert pool.speculating == sum(speculating)
        assert all(toolchain in node.toolchains for node in pool.nodes.values())
        free = {node.name for node in pool.free}
        assert len(free) == len(pool.free)
        able = {name for name, node in pool.nodes.items() if node.credits(plan.limits) > 0}
        assert free == able, (free, able)
        # What waits does so for a reason: no credit, or only speculation and retries are left.
        if free:
            for job in of_pool:
                held_up = job.tried or job.priority == SPECULATIVE
                assert job.state != "queued" or held_up, job
