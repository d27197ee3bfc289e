"""The cluster's scheduler: events in, instructions out, no Ray anywhere."""

from __future__ import annotations

import pytest

from kernelfarm.farm import cluster_events as ev
from kernelfarm.farm.cluster_jobs import TRANSITIONS, ClusterLimits
from kernelfarm.farm.cluster_plan import ClusterPlan
from kernelfarm.farm.errors import Failure, InvalidTransition
from kernelfarm.farm.levels import AUTOTUNE, EMITTED, SPECULATIVE, WAITING

TOOLS = b"toolchain"
OTHER = b"another toolchain"
CRASH = Failure("crash", "k", signal=11)
REJECTED = Failure("rejected", "k", log="no such type")


class Bench:
    """A plan with a clock in hand, nodes that are there, and short ways to say things."""

    def __init__(self, *nodes: str, credits: int = 4, slots: int = 4, **limits: object) -> None:
        self.now = 100.0
        self.plan = ClusterPlan(lambda: self.now, ClusterLimits(**limits), validate=True)  # type: ignore[arg-type]
        self.counters = self.plan.counters
        self.now += self.plan.limits.gathering
        for node in nodes:
            self.join(node, credits, slots)

    def do(self, *events: ev.Event) -> list[ev.Instruction]:
        return self.plan.handle(*events)

    def join(self, node: str, credits: int, slots: int = 4, toolchain: bytes = TOOLS) -> None:
        self.do(ev.Joined(node, slots, (toolchain,)), ev.Pulled(node, credits))

    def ask(
        self, node: str, key: str, priority: int = EMITTED, expected: float = 0.1
    ) -> list[ev.Instruction]:
        return self.do(ev.Asked(node, key.encode(), TOOLS, priority, expected, 100))

    def finish(self, node: str, key: str) -> list[ev.Instruction]:
        return self.do(ev.Finished(node, key.encode(), 0.1))

    def fail(self, node: str, key: str, failure: Failure) -> list[ev.Instruction]:
        return self.do(ev.Failed(node, key.encode(), failure))

    def pass_time(self, seconds: float, *alive: str) -> list[ev.Instruction]:
        """Let time pass in steps of a second, in which the nodes named say that they live."""
        out = []
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            beats = [ev.Beat(node, self.plan._roster.nodes[node].slots) for node in alive]
            out += self.do(*beats, ev.Tick())
        return out

    def learn(self, node: str = "a", seconds: float = 0.1) -> None:
        """Let enough be finished to know what is usual."""
        for number in range(self.plan.limits.hedge_samples):
            self.ask(node, f"learned {number}")
            self.now += seconds
            self.finish(node, f"learned {number}")


def assigned(instructions: list[ev.Instruction]) -> list[tuple[str, str]]:
    """Return who got what, in order."""
    return [
        (found.node, found.key.decode()) for found in instructions if isinstance(found, ev.Assign)
    ]


def of(kind: type, instructions: list[ev.Instruction]) -> list[ev.Instruction]:
    return [found for found in instructions if isinstance(found, kind)]


def test_asker_with_a_credit_compiles_it_itself() -> None:
    """Nothing travels where the node that asks has room."""
    bench = Bench("a", "b")
    assert bench.ask("b", "k") == [ev.Assign("b", b"k", True)]
    assert bench.finish("b", "k") == []


def test_asker_without_a_credit_is_served_by_another() -> None:
    """A busy node's kernel is compiled elsewhere, and it is told where the artifact is."""
    bench = Bench("b")
    bench.join("a", 0)
    assert bench.ask("a", "k") == [ev.Assign("b", b"k", False)]
    assert bench.finish("b", "k") == [ev.Found(("a",), b"k", "b")]


def test_equal_keys_are_compiled_once() -> None:
    """A key in flight is joined, by whoever asks; all are told at once."""
    bench = Bench("a", "b", "c")
    bench.ask("a", "k")
    assert bench.ask("b", "k") == []
    assert bench.ask("c", "k") == []
    assert bench.finish("a", "k") == [ev.Found(("b", "c"), b"k", "a")]
    assert bench.counters["assigned"] == 1


def test_asking_again_changes_nothing() -> None:
    """A question that is repeated is one question, with one answer."""
    bench = Bench("b")
    bench.join("a", 0)
    bench.ask("a", "k")
    assert bench.ask("a", "k") == []
    assert bench.finish("b", "k") == [ev.Found(("a",), b"k", "b")]


def test_late_asker_is_told_the_holder() -> None:
    """A key that was finished is not compiled again while its holder is there."""
    bench = Bench("a", "b")
    bench.ask("a", "k")
    bench.finish("a", "k")
    assert bench.ask("b", "k") == [ev.Found(("b",), b"k", "a")]
    bench.do(ev.Parted("a"))
    assert assigned(bench.ask("b", "k")) == [("b", "k")]


def test_holder_that_asks_has_lost_it() -> None:
    """A node that asks for what it is said to hold compiles it again."""
    bench = Bench("a")
    bench.ask("a", "k")
    bench.finish("a", "k")
    assert assigned(bench.ask("a", "k")) == [("a", "k")]


def test_best_level_first_then_longest() -> None:
    """Waiting loads go first; within a level the kernel that takes longest does."""
    bench = Bench("a", credits=0)
    bench.ask("a", "tune", AUTOTUNE, expected=9.0)
    bench.ask("a", "short", expected=0.1)
    bench.ask("a", "long", expected=2.0)
    bench.ask("a", "load", WAITING, expected=0.1)
    order = [key for _, key in assigned(bench.do(ev.Pulled("a", 4)))]
    assert order == ["load", "long", "short", "tune"]


def test_raised_kernel_overtakes() -> None:
    """A kernel for which a load begins to wait goes before those asked for earlier."""
    bench = Bench("a", credits=0)
    bench.ask("a", "first")
    bench.ask("a", "second")
    bench.do(ev.Raised("a", b"second", WAITING))
    assert assigned(bench.do(ev.Pulled("a", 1))) == [("a", "second")]


def test_priority_only_rises() -> None:
    """Neither a later question nor Raised makes a kernel less urgent than it was."""
    bench = Bench("a", credits=0)
    bench.ask("a", "k", WAITING)
    bench.ask("a", "k", SPECULATIVE)
    bench.do(ev.Raised("a", b"k", EMITTED))
    assert bench.plan.priority(b"k") == WAITING


def test_size_stands_in_for_a_time_that_nobody_knows() -> None:
    """Without an expectation the larger request counts as the longer compile."""
    bench = Bench("a", credits=0)
    bench.do(
        ev.Asked("a", b"small", TOOLS, size=100),
        ev.Asked("a", b"large", TOOLS, size=9000),
    )
    assert assigned(bench.do(ev.Pulled("a", 1))) == [("a", "large")]


def test_credits_bound_what_a_node_is_assigned() -> None:
    """A node gets no more than it pulled, and never more than its slots and two."""
    bench = Bench("a", credits=2, slots=1)
    for number in range(9):
        bench.ask("a", f"k{number}")
    assert bench.counters["assigned"] == 2
    assert len(assigned(bench.finish("a", "k0"))) == 1
    assert len(assigned(bench.do(ev.Pulled("a", 100)))) == 1


def test_pulling_less_takes_nothing_back() -> None:
    """A smaller number of credits counts what the node has: it gets nothing until that is done."""
    bench = Bench("a", credits=2)
    bench.ask("a", "k0")
    bench.ask("a", "k1")
    bench.ask("a", "k2")
    bench.do(ev.Pulled("a", 1))
    assert assigned(bench.finish("a", "k0")) == []
    assert assigned(bench.finish("a", "k1")) == [("a", "k2")]


def test_freer_of_two_nodes_is_taken() -> None:
    """Of two nodes the one with more credits left gets the kernel."""
    bench = Bench()
    bench.join("asker", 0)
    bench.join("busy", 1)
    bench.join("idle", 5)
    assert assigned(bench.ask("asker", "k")) == [("idle", "k")]


def test_only_nodes_with_the_toolchain_are_assigned() -> None:
    """A kernel goes to no node that has another Triton, however free that is."""
    bench = Bench()
    bench.join("a", 0)
    bench.join("alien", 4, toolchain=OTHER)
    assert bench.ask("a", "k") == []
    assert assigned(bench.do(ev.Pulled("a", 1))) == [("a", "k")]


def test_asker_is_told_if_nobody_has_its_toolchain() -> None:
    """Where no node has the toolchain the asker must compile, and knows it at once."""
    bench = Bench()
    bench.join("a", 4, toolchain=OTHER)
    told, forget = bench.ask("a", "k")
    assert isinstance(told, ev.NoTaker)
    assert (told.node, told.key) == ("a", b"k")
    assert "toolchain" in told.reason
    assert forget == ev.Forget(b"k")


def test_new_plan_waits_for_nodes() -> None:
    """A coordinator that was just started lets nodes join before it says that nobody is there."""
    bench = Bench()
    bench.now -= bench.plan.limits.gathering
    bench.join("a", 4, toolchain=OTHER)
    assert bench.ask("a", "k") == []
    assert bench.plan.snapshot()["jobs_wanted"] == 1
    bench.do(ev.Joined("b", 4, (TOOLS,)))
    assert bench.plan.snapshot()["jobs_queued"] == 1
    assert assigned(bench.do(ev.Pulled("b", 1))) == [("b", "k")]


def test_waiting_for_nodes_ends() -> None:
    """If none with the toolchain has joined by then, the asker is told."""
    bench = Bench()
    bench.now -= bench.plan.limits.gathering
    bench.join("a", 4, toolchain=OTHER)
    bench.ask("a", "k")
    assert of(ev.NoTaker, bench.pass_time(3.0, "a"))


def test_queue_is_given_back_when_the_last_taker_leaves() -> None:
    """What is queued for a toolchain that nobody has any more goes back to who asked."""
    bench = Bench("b", credits=0)
    bench.join("a", 4, toolchain=OTHER)
    bench.ask("a", "k")
    assert [type(found) for found in bench.do(ev.Parted("b"))] == [ev.NoTaker, ev.Forget]


def test_stranger_is_told_to_compile() -> None:
    """A question of a node that has not joined is answered, and not with a promise."""
    bench = Bench("a")
    told, forget = bench.ask("unknown", "k")
    assert isinstance(told, ev.NoTaker)
    assert forget == ev.Forget(b"k")


def test_speculation_gets_half_of_the_slots() -> None:
    """Speculation leaves half of the slots free, and what is wanted passes it."""
    bench = Bench("a", "b", credits=4, slots=2)
    for number in range(4):
        bench.ask("a", f"guess{number}", SPECULATIVE)
    assert bench.counters["assigned"] == 2
    assert len(assigned(bench.ask("a", "k"))) == 1
    assert len(assigned(bench.finish("a", "guess0"))) == 1


def test_raised_speculation_makes_room_for_more() -> None:
    """A guess that turns out to be wanted does not count as speculation any more."""
    bench = Bench("a", credits=4, slots=2)
    bench.ask("a", "guess0", SPECULATIVE)
    assert bench.ask("a", "guess1", SPECULATIVE) == []
    assert assigned(bench.do(ev.Raised("a", b"guess0", WAITING))) == [("a", "guess1")]


def test_dropped_kernel_is_not_compiled() -> None:
    """What is queued and wanted by nobody any more is forgotten."""
    bench = Bench("a", credits=0)
    bench.ask("a", "k")
    assert bench.do(ev.Dropped("a", b"k")) == [ev.Forget(b"k")]
    assert bench.do(ev.Pulled("a", 4)) == []


def test_started_work_is_finished_though_dropped() -> None:
    """A run whose asker goes ends as it would, and its artifact is found later."""
    bench = Bench("b")
    bench.join("a", 0)
    bench.ask("a", "k")
    assert bench.do(ev.Dropped("a", b"k")) == []
    assert bench.finish("b", "k") == []
    assert bench.ask("a", "k") == [ev.Found(("a",), b"k", "b")]


def test_dropped_speculation_is_cancelled() -> None:
    """Speculation that nobody wants any more gives its credit back at once."""
    bench = Bench("b")
    bench.join("a", 0)
    bench.ask("a", "k", SPECULATIVE)
    assert bench.do(ev.Dropped("a", b"k")) == [ev.Cancel("b", b"k"), ev.Forget(b"k")]


def test_asker_that_drops_what_it_compiles_leaves_it_to_others() -> None:
    """Where the dropping node was to compile it, another asker's wish is assigned anew."""
    bench = Bench("a")
    bench.ask("a", "k")
    bench.join("b", 4)
    bench.ask("b", "k")
    assert assigned(bench.do(ev.Dropped("a", b"k"))) == [("b", "k")]


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
    bench = Bench("b")
    bench.learn("b")
    bench.join("a", 0)
    bench.ask("a", "k")
    bench.join("c", 4)
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
    bench = Bench("b")
    bench.learn("b")
    bench.join("a", 0)
    bench.ask("a", "k")
    bench.join("c", 4)
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


def test_result_of_an_impatient_asker_serves_all() -> None:
    """Who compiled it without being told so is the holder, and the run elsewhere is cancelled."""
    bench = Bench("b")
    bench.join("a", 0)
    bench.join("c", 0)
    bench.ask("a", "k")
    bench.ask("c", "k")
    assert bench.finish("a", "k") == [ev.Cancel("b", b"k"), ev.Found(("c",), b"k", "a")]
    assert bench.counters["volunteered"] == 1


def test_unasked_result_is_remembered() -> None:
    """A node may tell what it has before anybody asks."""
    bench = Bench("a", "b")
    assert bench.finish("a", "k") == []
    assert bench.ask("b", "k") == [ev.Found(("b",), b"k", "a")]


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


def test_another_holder_is_named_first() -> None:
    """Before it is compiled again, another node that has it is tried."""
    bench = Bench("a", "b", "c")
    bench.ask("a", "k")
    bench.finish("a", "k")
    bench.finish("b", "k")
    assert bench.do(ev.Unfetched("c", b"k", "b")) == [ev.Found(("c",), b"k", "a")]


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


def test_holders_are_forgotten_by_age_and_number() -> None:
    """What is remembered is bounded; the host is told when a request may be dropped."""
    bench = Bench("a", recent_keys=2, recent_seconds=20.0)
    for key in ("k0", "k1", "k2"):
        bench.ask("a", key)
    assert bench.finish("a", "k0") == bench.finish("a", "k1") == []
    assert bench.finish("a", "k2") == [ev.Forget(b"k0")]
    assert bench.pass_time(30.0, "a") == [ev.Forget(b"k1"), ev.Forget(b"k2")]


def test_holders_are_forgotten_by_bytes() -> None:
    """The requests that are kept for another compile have a bound in bytes."""
    bench = Bench("a", recent_bytes=150)
    bench.ask("a", "k0")
    bench.finish("a", "k0")
    bench.ask("a", "k1")
    assert bench.finish("a", "k1") == [ev.Forget(b"k0")]


def test_number_of_slots_may_change() -> None:
    """A node with less room than before is assigned no more than that."""
    bench = Bench("a", credits=9, slots=4)
    bench.do(ev.Beat("a", 0))
    for number in range(4):
        bench.ask("a", f"k{number}")
    assert bench.counters["assigned"] == bench.plan.limits.prefetch


def test_impossible_transition_is_an_error() -> None:
    """A move that the table does not allow names the job and its story."""
    bench = Bench("a")
    bench.ask("a", "k")
    job = bench.plan._jobs[b"k"]
    with pytest.raises(InvalidTransition, match="compiling -> compiling is no transition"):
        bench.plan._move(job, "compiling")
    assert set(TRANSITIONS) == {"wanted", "queued", "compiling", "stored", "failed", "abandoned"}
