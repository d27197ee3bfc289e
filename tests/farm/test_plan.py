"""The farm's scheduler: events in, instructions out, no process anywhere."""

from __future__ import annotations

import pytest

from kernelfarm.compiler.service import Priority
from kernelfarm.farm import events as ev
from kernelfarm.farm.errors import Failure, InvalidTransition
from kernelfarm.farm.jobs import TRANSITIONS
from kernelfarm.farm.levels import AUTOTUNE, EMITTED, SPECULATIVE, WAITING
from kernelfarm.farm.limits import Limits
from kernelfarm.farm.plan import Plan

ENV = b"environment"


class Bench:
    """A plan with a clock in hand, an environment that is ready, and short ways to say things."""

    def __init__(self, slots: int = 2, ready: bool = True, **limits: object) -> None:
        self.now = 100.0
        self.plan = Plan(lambda: self.now, slots, Limits(**limits), validate=True)  # type: ignore[arg-type]
        self.counters = self.plan.counters
        if ready:
            self.do(ev.Expected(ENV), ev.Ready(ENV))

    def do(self, *events: ev.Event) -> list[ev.Instruction]:
        return self.plan.handle(*events)

    def want(
        self, n: int, name: str, priority: int = EMITTED, *, client: int = 1, size: int = 100
    ) -> list[ev.Instruction]:
        return self.do(
            ev.Wanted((client, n), name.encode(), ENV, name, priority=priority, size=size)
        )

    def pass_time(self, seconds: float) -> list[ev.Instruction]:
        self.now += seconds
        return self.do(ev.Tick())


def started(instructions: list[ev.Instruction]) -> list[bytes]:
    return [found.digest for found in instructions if isinstance(found, ev.Start)]


def of(kind: type, instructions: list[ev.Instruction]) -> list[ev.Instruction]:
    return [found for found in instructions if isinstance(found, kind)]


def test_levels_are_those_of_the_compiler() -> None:
    """The farm's levels are the compiler's priorities, number for number."""
    assert tuple(Priority) == (WAITING, EMITTED, AUTOTUNE, SPECULATIVE)


def test_job_waits_for_its_environment() -> None:
    """A job is queued only when its environment is ready; the first one has it started."""
    bench = Bench(ready=False)
    assert bench.want(1, "a") == [ev.Prepare(ENV)]
    assert bench.want(2, "b") == []
    assert started(bench.do(ev.Ready(ENV))) == [b"a", b"b"]


def test_equal_requests_are_one_job() -> None:
    """A second request for a running kernel starts nothing, and both get the result."""
    bench = Bench()
    bench.want(1, "a")
    assert bench.want(1, "a", client=2) == []
    assert bench.do(ev.Succeeded(1, 10, 0.1)) == [
        ev.Deliver(b"a", (((1, 1), False), ((2, 1), True)))
    ]
    assert bench.counters["joined"] == 1


def test_late_request_gets_the_kept_result() -> None:
    """A request that comes just after the compile gets its result without another one."""
    bench = Bench()
    bench.want(1, "a")
    bench.do(ev.Succeeded(1, 10, 0.1))
    assert bench.want(2, "a") == [ev.Deliver(b"a", (((1, 2), True),))]


def test_results_are_forgotten_by_age_and_by_size() -> None:
    """Results are kept for a while and up to a size; then the request is compiled again."""
    bench = Bench(recent_seconds=10.0, recent_bytes=100)
    bench.want(1, "a")
    bench.do(ev.Succeeded(1, 60, 0.1))
    bench.want(2, "b")
    assert bench.do(ev.Succeeded(2, 60, 0.1))[-1] == ev.Forget(b"a")
    assert bench.pass_time(11) == [ev.Forget(b"b")]
    assert started(bench.want(3, "a")) == [b"a"]


def test_requests_with_one_kernel_key_become_one_job() -> None:
    """Two texts whose front halves agree are merged: one run goes on, both askers are served."""
    bench = Bench()
    bench.want(1, "a")
    bench.want(2, "b")
    assert bench.do(ev.Keyed(1, b"K")) == [ev.TellKeyed(b"a", ((1, 1),))]
    merged = bench.do(ev.Keyed(2, b"K"))
    assert merged == [
        ev.Kill(2, ENV, "merged"),
        ev.Forget(b"b"),
        ev.TellKeyed(b"a", ((1, 2),)),
    ]
    bench.do(ev.Died(2, signal=9))
    assert bench.want(3, "b") == [ev.TellKeyed(b"a", ((1, 3),))]
    delivered = bench.do(ev.Succeeded(1, 10, 0.1))[0]
    assert delivered == ev.Deliver(b"a", (((1, 1), False), ((1, 2), True), ((1, 3), True)))


def test_key_of_a_kept_result_ends_the_run() -> None:
    """A front half that arrives at a kernel just compiled delivers that one and kills its run."""
    bench = Bench()
    bench.want(1, "a")
    bench.do(ev.Keyed(1, b"K"), ev.Succeeded(1, 10, 0.1))
    bench.want(2, "b")
    assert of(ev.Deliver, bench.do(ev.Keyed(2, b"K"))) == [ev.Deliver(b"a", (((1, 2), True),))]
    assert bench.do(ev.Died(2, signal=9)) == []


def test_best_level_first_then_longest() -> None:
    """Waiting loads go first; within a level the larger text does, being the longer compile."""
    bench = Bench(slots=1)
    bench.want(1, "running")
    bench.want(2, "small", size=10)
    bench.want(3, "large", size=1000)
    bench.want(4, "urgent", WAITING)
    order = []
    for run in range(1, 4):
        order += started(bench.do(ev.Succeeded(run, 1, 0.1)))
    assert order == [b"urgent", b"large", b"small"]


def test_history_beats_the_size_of_the_text() -> None:
    """Once a kernel's compile time is known it counts, not the length of its text."""
    bench = Bench(slots=1, recent_seconds=0.0)
    bench.want(1, "slow", size=1)
    bench.do(ev.Succeeded(1, 1, 9.0))
    bench.pass_time(1)
    bench.want(2, "running")
    bench.want(3, "large", size=1000)
    bench.want(4, "slow", size=1)
    assert started(bench.do(ev.Succeeded(2, 1, 0.1))) == [b"slow"]


def test_joins_take_the_maximum() -> None:
    """A queued speculation that a load waits for is served as a waiting load."""
    bench = Bench(slots=1)
    bench.want(1, "running")
    bench.want(2, "emitted")
    bench.want(3, "a", SPECULATIVE)
    bench.want(4, "a", WAITING)
    assert started(bench.do(ev.Succeeded(1, 1, 0.1))) == [b"a"]


def test_raise_moves_a_queued_job_ahead() -> None:
    """Raising an interest raises its job, and never lowers it."""
    bench = Bench(slots=1)
    bench.want(1, "running")
    bench.want(2, "b", size=1000)
    bench.want(3, "c", size=1)
    bench.do(ev.Raised((1, 3), WAITING), ev.Raised((1, 3), SPECULATIVE))
    assert started(bench.do(ev.Succeeded(1, 1, 0.1))) == [b"c"]


def test_speculation_holds_half_of_the_slots() -> None:
    """Of four slots two may speculate; the others stay free for what is needed."""
    bench = Bench(slots=4)
    for n in range(4):
        bench.want(n, f"s{n}", SPECULATIVE)
    assert len(bench.plan._runs) == 2
    assert started(bench.want(9, "needed")) == [b"needed"]


def test_speculation_makes_room_and_comes_back() -> None:
    """A waiting load without a slot has the youngest speculation killed, which is queued again."""
    bench = Bench(slots=2)
    bench.want(1, "s", SPECULATIVE)
    bench.want(2, "e")
    assert bench.want(3, "load", WAITING) == [ev.Kill(1, ENV, "room")]
    assert started(bench.do(ev.Died(1, signal=9))) == [b"load"]
    assert started(bench.do(ev.Succeeded(2, 1, 0.1))) == [b"s"]
    assert bench.counters["runs_crash"] == 0


def test_old_jobs_rise() -> None:
    """An autotune job that waited long is served with the emitted ones, longest first."""
    bench = Bench(slots=1, ageing=30.0)
    bench.want(1, "running", WAITING)
    bench.want(2, "tune", AUTOTUNE, size=1000)
    bench.now += 31
    bench.want(3, "emitted", size=10)
    assert started(bench.do(ev.Succeeded(1, 1, 0.1))) == [b"tune"]


def test_dropped_when_nobody_wants_it() -> None:
    """Queued work whose last asker goes is dropped; running work finishes and is kept."""
    bench = Bench(slots=1)
    bench.want(1, "running")
    bench.want(2, "queued")
    assert bench.do(ev.ClientGone(1)) == [ev.Forget(b"queued")]
    assert bench.do(ev.Succeeded(1, 10, 0.1)) == []
    assert bench.want(1, "running", client=2) == [ev.Deliver(b"running", (((2, 1), True),))]


def test_other_askers_keep_a_job() -> None:
    """A job lives as long as one interest does."""
    bench = Bench(slots=1)
    bench.want(1, "running")
    bench.want(2, "a")
    bench.want(1, "a", client=2)
    assert bench.do(ev.ClientGone(1)) == []
    assert started(bench.do(ev.Succeeded(1, 10, 0.1))) == [b"a"]


def test_satisfied_run_is_killed() -> None:
    """A kernel found in the store is not compiled to the end."""
    bench = Bench()
    bench.want(1, "a")
    bench.do(ev.Keyed(1, b"K"))
    assert bench.do(ev.Released((1, 1), satisfied=True)) == [
        ev.Kill(1, ENV, "satisfied"),
        ev.Forget(b"a"),
    ]
    assert bench.do(ev.Died(1, signal=9)) == []


def test_satisfied_asker_leaves_the_run_to_others() -> None:
    """One asker's store does not serve another asker."""
    bench = Bench()
    bench.want(1, "a")
    bench.want(1, "a", client=2)
    assert bench.do(ev.Released((1, 1), satisfied=True)) == []
    assert bench.do(ev.Succeeded(1, 10, 0.1)) == [ev.Deliver(b"a", (((2, 1), True),))]


def test_crash_costs_a_retry_then_an_error() -> None:
    """The first crash is retried; the second fails the job with stage and signal."""
    bench = Bench()
    bench.want(1, "a")
    bench.do(ev.Staged(1, "llir"))
    assert started(bench.do(ev.Died(1, signal=11))) == [b"a"]
    bench.do(ev.Staged(2, "cubin"))
    failed, forgotten = bench.do(ev.Died(2, signal=11, log="oops"))
    assert isinstance(failed, ev.Fail) and failed.interests == ((1, 1),)
    assert failed.failure == Failure(
        "crash", "a", log="oops", stage="cubin", signal=11, seconds=0.0, attempts=2
    )
    assert forgotten == ev.Forget(b"a")


def test_crasher_fails_at_once_for_a_while() -> None:
    """A kernel that crashed twice is not tried again until its quarantine ends."""
    bench = Bench(quarantine=30.0)
    bench.want(1, "a")
    bench.do(ev.Died(1, signal=11))
    bench.do(ev.Died(2, signal=11))
    again = bench.want(2, "a")
    assert isinstance(again[0], ev.Fail) and again[0].failure.repeated
    bench.pass_time(31)
    assert started(bench.want(3, "a")) == [b"a"]


def test_refusal_is_final_but_not_remembered() -> None:
    """The compiler's own error settles the job at once; asking again compiles again."""
    bench = Bench()
    bench.want(1, "a")
    failure = Failure("rejected", "", log="no")
    assert of(ev.Fail, bench.do(ev.Rejected(1, failure))) == [
        ev.Fail(b"a", ((1, 1),), Failure("rejected", "a", log="no"))
    ]
    assert started(bench.want(2, "a")) == [b"a"]


def test_deadline_kills_retries_and_fails() -> None:
    """A run at its deadline is killed; the second time-out is the job's end."""
    bench = Bench(deadlines=(10.0, 10.0, 10.0, 5.0))
    bench.want(1, "a")
    assert bench.plan.next_wakeup() <= 110.0
    assert bench.pass_time(10) == [ev.Kill(1, ENV, "deadline")]
    assert started(bench.do(ev.Died(1, signal=9))) == [b"a"]
    bench.pass_time(10)
    failed = bench.do(ev.Died(2, signal=9))[0]
    assert isinstance(failed, ev.Fail)
    assert (failed.failure.kind, failed.failure.seconds) == ("timeout", 10.0)


def test_deadline_follows_the_priority() -> None:
    """A speculation that a load came to wait for gets the load's deadline."""
    bench = Bench(deadlines=(10.0, 10.0, 10.0, 5.0))
    bench.want(1, "a", SPECULATIVE)
    bench.do(ev.Raised((1, 1), WAITING))
    assert bench.pass_time(6) == []
    assert bench.pass_time(4) == [ev.Kill(1, ENV, "deadline")]


def test_autotune_deadline_follows_the_median() -> None:
    """A config of a kernel whose others took 2 s is given up after 20 s, not after 120."""
    bench = Bench()
    for n in range(3):
        bench.do(ev.Wanted((1, n), b"c%d" % n, ENV, "tuned", priority=AUTOTUNE))
        bench.do(ev.Succeeded(n + 1, 1, 2.0))
    bench.do(ev.Wanted((1, 9), b"c9", ENV, "tuned", priority=AUTOTUNE))
    assert bench.pass_time(19) == []
    assert bench.pass_time(1) == [ev.Kill(4, ENV, "deadline")]


def test_kill_without_effect_discards_the_environment() -> None:
    """A zygote that does not kill its child in time is killed; the job has timed out."""
    bench = Bench(deadlines=(10.0, 10.0, 10.0, 5.0), kill_grace=5.0)
    bench.want(1, "a")
    bench.want(2, "b")
    bench.now += 5
    bench.want(3, "c")  # queued behind both
    bench.pass_time(5)
    assert bench.pass_time(5) == [ev.Discard(ENV)]
    lost = bench.do(ev.Lost(ENV))
    assert [found.failure.kind for found in of(ev.Fail, lost)] == ["timeout", "timeout"]
    assert of(ev.Prepare, lost) == [ev.Prepare(ENV)]
    assert started(bench.do(ev.Ready(ENV))) == [b"c"]


def test_zygote_death_resubmits_once() -> None:
    """What a dead zygote had runs again in a new one; what was lost twice fails as lost."""
    bench = Bench()
    bench.want(1, "a")
    assert bench.do(ev.Lost(ENV, "status -9")) == [ev.Prepare(ENV)]
    assert started(bench.do(ev.Ready(ENV))) == [b"a"]
    failed = bench.do(ev.Lost(ENV, "status -9"))[0]
    assert isinstance(failed, ev.Fail) and failed.failure.kind == "lost"
    assert failed.failure.log == "status -9"


def test_environment_that_cannot_start_fails_its_jobs() -> None:
    """After two failed starts the jobs fail as unavailable, and so do new ones for a moment."""
    bench = Bench(ready=False, start_pause=5.0)
    bench.want(1, "a")
    assert bench.do(ev.Unavailable(ENV, "no python")) == [ev.Prepare(ENV)]
    failed = bench.do(ev.Unavailable(ENV, "no python"))[0]
    assert isinstance(failed, ev.Fail) and failed.failure.kind == "unavailable"
    assert isinstance(bench.want(2, "b")[0], ev.Fail)
    bench.now += 6
    assert bench.want(3, "b") == [ev.Prepare(ENV)]


def test_start_has_a_deadline() -> None:
    """An environment that does not become ready in time is killed and started once more."""
    bench = Bench(ready=False, start_deadline=60.0)
    bench.want(1, "a")
    assert bench.pass_time(60) == [ev.Discard(ENV)]
    assert bench.do(ev.Lost(ENV, "it did not answer")) == [ev.Prepare(ENV)]


def test_idle_environment_is_retired() -> None:
    """A zygote without work is ended, and a later job starts another."""
    bench = Bench(environment_idle=60.0)
    bench.want(1, "a")
    bench.do(ev.Succeeded(1, 1, 0.1))
    assert bench.pass_time(59) == []
    assert ev.Retire(ENV) in bench.pass_time(61)
    assert bench.want(2, "b") == [ev.Prepare(ENV)]


def test_fewer_slots_start_less() -> None:
    """When the machine has less room, running work goes on and new work waits."""
    bench = Bench(slots=2)
    bench.want(1, "a")
    bench.do(ev.SlotsChanged(1))
    assert started(bench.want(2, "b")) == []
    assert started(bench.do(ev.SlotsChanged(2))) == [b"b"]


def test_stale_reports_change_nothing() -> None:
    """What a run says after its end, or a client after its going, is ignored."""
    bench = Bench()
    bench.want(1, "a")
    bench.do(ev.Succeeded(1, 1, 0.1))
    late = (
        ev.Keyed(1, b"K"),
        ev.Staged(1, "ptx"),
        ev.Succeeded(1, 1, 0.1),
        ev.Rejected(1, Failure("rejected", "a")),
        ev.Died(1, signal=9),
        ev.Released((1, 1)),
        ev.Raised((1, 1), 0),
        ev.ClientGone(7),
    )
    assert bench.do(*late) == []


def test_forbidden_move_tells_the_story() -> None:
    """A bug that moves a job where it cannot go is an error with the job's history."""
    bench = Bench()
    bench.want(1, "a")
    job = bench.plan._jobs[b"a"]
    bench.do(ev.Succeeded(1, 1, 0.1))
    with pytest.raises(InvalidTransition, match="wanted -> queued; queued -> compiling"):
        bench.plan._move(job, "queued")


def test_lifecycle_ends() -> None:
    """From every state an end can be reached, and ends have no way out."""
    ends = {state for state, following in TRANSITIONS.items() if not following}
    assert ends == {"stored", "failed", "abandoned"}
    for state, following in TRANSITIONS.items():
        assert state in ends or ends & set(following)
