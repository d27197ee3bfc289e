"""The cluster's scheduler when nodes, compilers and transfers fail, or only take too long."""

from __future__ import annotations

import pytest
from cluster_bench import CRASH, REJECTED, TOOLS, Bench, assigned, of

from kernelfarm.farm import cluster_events as ev
from kernelfarm.farm.cluster_pool import PASSED_OVER, Pool
from kernelfarm.farm.errors import Failure
from kernelfarm.farm.levels import SPECULATIVE, WAITING


def compiled_by_b_for_a() -> Bench:
    """A plan that knows what is usual, in which b compiles k for a and c has nothing to do."""
    bench = Bench("b")
    bench.learn("b")
    bench.join("a", 0)
    bench.ask("a", "k")
    bench.join("c", 4)
    return bench


def test_silent_node_loses_its_assignments() -> None:
    """A node that says nothing for six seconds is out, and its kernels go to another, once."""
    bench = Bench("b", "c", hedge_blind=60.0)
    bench.join("a", 0)
    ((first, _),) = assigned(bench.ask("a", "k"))
    second = "c" if first == "b" else "b"
    assert assigned(bench.pass_time(5.0, "a", second)) == []
    assert assigned(bench.pass_time(2.0, "a", second)) == [(second, "k")]
    assert bench.counters["reassigned"] == 1
    assert of(ev.NoTaker, bench.pass_time(7.0, "a"))


def test_anything_that_a_node_says_shows_that_it_lives() -> None:
    """A node that works needs no heartbeat beside its reports."""
    bench = Bench("a")
    for number in range(10):
        bench.now += 3.0
        bench.do(ev.Tick(), ev.Asked("a", b"%d" % number, TOOLS))
    assert bench.counters["silent"] == 0


def test_node_that_joins_again_starts_anew() -> None:
    """A node that was restarted has neither questions nor assignments; others go on."""
    bench = Bench("b")
    bench.join("a", 0)
    bench.ask("a", "k")
    bench.ask("a", "unasked")
    bench.do(ev.Joined("b", 4, (TOOLS,)))
    assert bench.counters["reassigned"] == 2
    assert len(assigned(bench.do(ev.Pulled("b", 4)))) == 2
    bench.do(ev.Joined("a", 4, (TOOLS,)))
    bench.ask("a", "k")
    assert bench.finish("b", "unasked") == []
    assert bench.finish("b", "k") == [ev.Found(("a",), b"k", "b")]


def test_late_run_is_hedged_once() -> None:
    """A run far beyond the usual gets a second one elsewhere; the first result wins."""
    bench = Bench("a", "b")
    bench.learn()
    bench.ask("a", "k")
    assert assigned(bench.pass_time(1.0, "a", "b")) == [("b", "k")]
    assert bench.pass_time(5.0, "a", "b") == []
    assert bench.counters["hedges"] == 1
    # The asker has its own run: the answer ends that.
    assert bench.finish("b", "k") == [ev.Found(("a",), b"k", "b")]


def test_loser_of_a_hedge_is_cancelled() -> None:
    """A node that compiles for another is told when it need not any more."""
    bench = compiled_by_b_for_a()
    assert assigned(bench.pass_time(1.0, "a", "b", "c")) == [("c", "k")]
    assert bench.finish("c", "k") == [ev.Cancel("b", b"k"), ev.Found(("a",), b"k", "c")]
    assert bench.finish("b", "k") == []
    assert bench.counters["compiled"] == bench.plan.limits.hedge_samples + 1


def test_nothing_is_hedged_before_much_is_known() -> None:
    """The first compiles of a cluster start its zygotes: they are given five seconds."""
    bench = Bench("a", "b")
    bench.ask("a", "k")
    assert bench.pass_time(4.0, "a", "b") == []
    assert assigned(bench.pass_time(1.0, "a", "b")) == [("b", "k")]


def test_what_is_expected_to_take_long_is_not_hedged_early() -> None:
    """Twice the expected time must have passed, however short compiles usually are."""
    bench = Bench("a", "b")
    bench.learn()
    bench.ask("a", "k", expected=3.0)
    assert bench.pass_time(5.0, "a", "b") == []
    assert assigned(bench.pass_time(1.0, "a", "b")) == [("b", "k")]


def test_hedge_waits_for_a_credit_to_spare() -> None:
    """A late run is hedged where a credit is left over, after all that is queued."""
    bench = Bench("a", credits=1)
    bench.learn()
    bench.ask("a", "late")
    bench.join("b", 0)
    assert bench.pass_time(1.0, "a", "b") == []
    bench.ask("a", "queued")
    assert assigned(bench.do(ev.Pulled("b", 2))) == [("b", "queued"), ("b", "late")]


def test_speculation_is_not_hedged() -> None:
    """Nobody waits for a guess, so none is compiled twice."""
    bench = Bench("a", "b")
    bench.learn()
    bench.ask("a", "k", SPECULATIVE)
    assert bench.pass_time(10.0, "a", "b") == []


def test_crash_is_tried_on_another_node() -> None:
    """A kernel that crashed the compiler is tried once more elsewhere and is then refused."""
    bench = Bench("a", "b")
    bench.ask("a", "k")
    assert assigned(bench.fail("a", "k", CRASH)) == [("b", "k")]
    refused, forget = bench.fail("b", "k", CRASH)
    assert isinstance(refused, ev.Refused)
    assert refused.nodes == ("a",)
    assert refused.failure.attempts == 2
    assert forget == ev.Forget(b"k")


def test_crash_waits_for_the_other_node() -> None:
    """The node on which it crashed does not get it again while there is another, busy or not."""
    bench = Bench("a")
    bench.join("b", 0)
    bench.ask("a", "k")
    assert bench.fail("a", "k", CRASH) == []
    assert assigned(bench.ask("a", "other")) == [("a", "other")]
    assert assigned(bench.do(ev.Pulled("b", 1))) == [("b", "k")]


def test_crash_is_tried_again_where_there_is_no_other_node() -> None:
    """With one node the second attempt is made there, also if the other one leaves meanwhile."""
    bench = Bench("a")
    bench.join("b", 0)
    bench.ask("a", "k")
    bench.fail("a", "k", CRASH)
    assert assigned(bench.do(ev.Parted("b"))) == [("a", "k")]


def test_many_retries_do_not_hold_up_the_rest() -> None:
    """Kernels that wait for one busy node let everything else pass."""
    bench = Bench("a", credits=6)
    bench.join("b", 0)
    for number in range(20):
        bench.ask("a", f"bad{number}", WAITING)
        bench.fail("a", f"bad{number}", CRASH)
    assert assigned(bench.ask("a", "good", SPECULATIVE)) == [("a", "good")]


def test_kernel_that_crashed_twice_fails_at_once_for_a_while() -> None:
    """A quarantined kernel is refused without a run until the quarantine is over."""
    bench = Bench("a", quarantine=10.0)
    bench.ask("a", "k")
    bench.fail("a", "k", CRASH)
    bench.fail("a", "k", CRASH)
    refused, forget = bench.ask("a", "k")
    assert isinstance(refused, ev.Refused)
    assert refused.failure.repeated
    assert forget == ev.Forget(b"k")
    bench.pass_time(11.0, "a")
    assert assigned(bench.ask("a", "k")) == [("a", "k")]


def test_compiler_error_is_final() -> None:
    """What the compiler itself refuses is not tried elsewhere, and a hedge of it is cancelled."""
    bench = compiled_by_b_for_a()
    bench.pass_time(1.0, "a", "b", "c")
    assert bench.fail("b", "k", REJECTED) == [
        ev.Cancel("c", b"k"),
        ev.Refused(("a",), b"k", REJECTED),
        ev.Forget(b"k"),
    ]
    assert of(ev.Refused, bench.ask("a", "k")) == [ev.Refused(("a",), b"k", REJECTED)]


def test_crash_of_one_of_two_runs_waits_for_the_other() -> None:
    """While a hedge is on its way a crash decides nothing."""
    bench = Bench("a", "b")
    bench.learn()
    bench.ask("a", "k")
    bench.pass_time(1.0, "a", "b")
    assert bench.fail("a", "k", CRASH) == []
    assert bench.finish("b", "k") == [ev.Found(("a",), b"k", "b")]


def test_loss_never_settles_a_kernel() -> None:
    """A run lost twice goes back to who asked, who still can compile it."""
    bench = Bench("a")
    lost = Failure("lost", "k", log="the zygote died")
    bench.ask("a", "k")
    assert assigned(bench.fail("a", "k", lost)) == [("a", "k")]
    told, forget = bench.fail("a", "k", lost)
    assert isinstance(told, ev.NoTaker)
    assert "the zygote died" in told.reason
    assert forget == ev.Forget(b"k")


def test_node_without_a_working_toolchain_gets_no_more() -> None:
    """A node that cannot compile after all is passed over for a while; the kernel goes on."""
    bench = Bench("b", "c", unavailable_pause=4.0)
    bench.join("a", 0)
    ((bad, _),) = assigned(bench.ask("a", "k"))
    good = "c" if bad == "b" else "b"
    assert assigned(bench.fail(bad, "k", Failure("unavailable", "k"))) == [(good, "k")]
    assert assigned(bench.ask(bad, "k2")) == [(good, "k2")]
    bench.pass_time(5.0, "a", "b", "c")
    assert assigned(bench.ask(bad, "k3")) == [(bad, "k3")]


def test_run_that_never_ends_is_lost() -> None:
    """A node that lives but never reports loses the run after its deadline and some grace."""
    bench = Bench("b", deadlines=(3.0, 3.0, 3.0, 3.0), overdue=2.0)
    bench.join("a", 0)
    bench.ask("a", "k")
    bench.join("c", 4)
    out = bench.pass_time(5.0, "a", "b", "c")
    assert out == [ev.Cancel("b", b"k"), ev.Assign("c", b"k", False)]
    assert of(ev.NoTaker, bench.pass_time(6.0, "a", "b", "c"))


def test_asker_that_never_ends_its_own_run_is_left_alone() -> None:
    """A node that does not end what it compiles for itself is told so; others are served anew."""
    bench = Bench("a", deadlines=(3.0, 3.0, 3.0, 3.0), overdue=2.0)
    bench.ask("a", "k")
    bench.join("b", 4)
    bench.join("c", 0)
    bench.ask("c", "k")
    told, assign = bench.pass_time(5.0, "a", "b", "c")
    assert isinstance(told, ev.NoTaker)
    assert told.node == "a"
    assert assign == ev.Assign("b", b"k", False)


def test_queue_has_a_deadline() -> None:
    """A kernel that got no credit by the deadline of its level goes back to who asked."""
    bench = Bench("a", credits=0)
    bench.ask("a", "guess", SPECULATIVE)
    bench.ask("a", "k")
    assert [found.key for found in of(ev.NoTaker, bench.pass_time(31.0, "a"))] == [b"guess"]  # type: ignore[attr-defined]
    assert [found.key for found in of(ev.NoTaker, bench.pass_time(90.0, "a"))] == [b"k"]  # type: ignore[attr-defined]


def test_raised_kernel_has_the_deadline_of_its_new_level() -> None:
    """A guess that becomes wanted is not given back at the deadline of guesses."""
    bench = Bench("a", credits=0)
    bench.ask("a", "k", SPECULATIVE)
    bench.do(ev.Raised("a", b"k", WAITING))
    assert of(ev.NoTaker, bench.pass_time(119.0, "a")) == []
    assert of(ev.NoTaker, bench.pass_time(2.0, "a"))


def test_artifact_that_cannot_be_had_is_compiled_again() -> None:
    """If no holder serves it the request is assigned anew, once for all who could not have it."""
    bench = Bench("a", "b", "c")
    bench.ask("a", "k")
    bench.finish("a", "k")
    bench.ask("b", "k")
    bench.ask("c", "k")
    assert assigned(bench.do(ev.Unfetched("b", b"k", "a"))) == [("b", "k")]
    assert bench.do(ev.Unfetched("c", b"k", "a")) == []
    assert bench.finish("b", "k") == [ev.Found(("c",), b"k", "b")]


def test_compiling_again_has_an_end() -> None:
    """A node that can fetch from nobody is told to compile, after two tries for its sake."""
    bench = Bench("a", refetches=2)
    bench.join("b", 0)
    bench.ask("b", "k")
    for _ in range(2):
        bench.finish("a", "k")
        assert assigned(bench.do(ev.Unfetched("b", b"k", "a"))) == [("a", "k")]
    bench.finish("a", "k")
    told, forget = bench.do(ev.Unfetched("b", b"k", "a"))
    assert isinstance(told, ev.NoTaker)
    assert forget == ev.Forget(b"k")


def test_what_is_not_known_any_more_is_said_so() -> None:
    """A node whose holder is forgotten compiles it itself."""
    bench = Bench("a")
    assert [type(found) for found in bench.do(ev.Unfetched("a", b"k", "x"))] == [ev.NoTaker]


def test_retries_that_wait_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many kernels wait for a busy node, only a few are looked at for each event."""
    bench = Bench("a", credits=6)
    bench.join("b", 0)
    for number in range(50):
        bench.ask("a", f"bad{number}")
        bench.fail("a", f"bad{number}", CRASH)
    looked = []
    choose = Pool.choose
    monkeypatch.setattr(Pool, "choose", lambda *args: looked.append(1) or choose(*args))
    bench.do(ev.Pulled("a", 5))
    assert len(looked) == PASSED_OVER


def test_run_that_is_wanted_again_is_hedged() -> None:
    """A run that nobody waited for when it became late is hedged once somebody does."""
    bench = compiled_by_b_for_a()
    bench.do(ev.Dropped("a", b"k"))
    assert bench.pass_time(3.0, "a", "b", "c") == []
    assert bench.ask("a", "k") == []
    assert assigned(bench.pass_time(1.0, "a", "b", "c")) == [("c", "k")]


def test_foreign_run_goes_on_though_its_node_wants_it_no_more() -> None:
    """A node that compiles for another goes on when a wish of its own for the same is dropped."""
    bench = Bench("b")
    bench.join("a", 0)
    bench.ask("a", "k")
    bench.join("c", 4)
    bench.ask("b", "k")
    assert bench.do(ev.Dropped("b", b"k")) == []
    assert bench.finish("b", "k") == [ev.Found(("a",), b"k", "b")]
    assert bench.counters["compiled"] == bench.counters["assigned"] == 1


def test_coming_and_going_leaves_no_timers() -> None:
    """Askers that change their mind do not have a run looked at ever more often."""
    bench = Bench("b")
    bench.learn("b")
    bench.join("a", 0)
    bench.ask("a", "k")
    for _ in range(50):
        bench.do(ev.Dropped("a", b"k"))
        bench.ask("a", "k")
    bench.pass_time(10.0, "a", "b")
    of_run = [what for _, _, what, _ in bench.plan._timers._heap if what == bench.plan._look]
    assert len(of_run) == 1


def test_hedge_does_not_go_where_it_crashed() -> None:
    """A late second attempt is hedged on a third node, not on the first."""
    bench = Bench("a", "b")
    bench.learn()
    bench.ask("a", "k")
    assert assigned(bench.fail("a", "k", CRASH)) == [("b", "k")]
    assert bench.pass_time(3.0, "a", "b") == []
    bench.do(ev.Joined("c", 4, (TOOLS,)))
    assert assigned(bench.do(ev.Pulled("c", 4))) == [("c", "k")]
