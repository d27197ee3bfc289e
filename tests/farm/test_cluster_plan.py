"""The cluster's scheduler: who compiles what and who has it; events in, instructions out."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
from cluster_bench import OTHER, REJECTED, TOOLS, Bench, assigned, of

from kernelfarm.farm import cluster_events as ev
from kernelfarm.farm.cluster_jobs import TRANSITIONS, Job, Run
from kernelfarm.farm.errors import InvalidTransition
from kernelfarm.farm.levels import AUTOTUNE, EMITTED, SPECULATIVE, WAITING


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


def test_another_holder_is_named_first() -> None:
    """Before it is compiled again, another node that has it is tried."""
    bench = Bench("a", "b", "c")
    bench.ask("a", "k")
    bench.finish("a", "k")
    bench.finish("b", "k")
    assert bench.do(ev.Unfetched("c", b"k", "b")) == [ev.Found(("c",), b"k", "a")]


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
    bench.do(ev.Beat("a", 1))
    for number in range(4):
        bench.ask("a", f"k{number}")
    assert bench.counters["assigned"] == 1 + bench.plan.limits.prefetch
    bench.do(ev.Beat("a", 0))
    for number in range(3):
        assert assigned(bench.finish("a", f"k{number}")) == []


def test_impossible_transition_is_an_error() -> None:
    """A move that the table does not allow names the job and its story."""
    bench = Bench("a")
    bench.ask("a", "k")
    job = bench.plan._jobs[b"k"]
    with pytest.raises(InvalidTransition, match="compiling -> compiling is no transition"):
        bench.plan._move(job, "compiling")
    assert set(TRANSITIONS) == {"wanted", "queued", "compiling", "stored", "failed", "abandoned"}


def test_fetched_copies_serve_too() -> None:
    """Nodes that share what they fetch are holders soon after; the least named one is next."""
    bench = Bench("a")
    for node in ("b", "c", "d"):
        bench.do(ev.Joined(node, 4, (TOOLS,), shares=True))
    bench.ask("a", "k")
    bench.finish("a", "k")
    assert bench.ask("b", "k") == [ev.Found(("b",), b"k", "a")]
    assert bench.ask("c", "k") == [ev.Found(("c",), b"k", "a")]  # b has not got it yet
    bench.now += bench.plan.limits.spread
    assert bench.ask("d", "k") == [ev.Found(("d",), b"k", "b")]
    bench.join("e", 4)
    assert bench.ask("e", "k") == [ev.Found(("e",), b"k", "c")]


def test_only_nodes_that_share_serve_copies() -> None:
    """A node that did not say so is never named for what it merely fetched."""
    bench = Bench("a", "b", "c")
    bench.ask("a", "k")
    bench.finish("a", "k")
    bench.ask("b", "k")
    bench.pass_time(1.0, "a", "b", "c")
    assert bench.ask("c", "k") == [ev.Found(("c",), b"k", "a")]


def test_node_ahead_of_all_others_does_not_compile_everything() -> None:
    """Who asks first for every kernel gets some more than its share, so that many hold them."""
    nodes = [f"n{number}" for number in range(10)]
    bench = Bench(*nodes)
    for number in range(200):
        ((node, _),) = assigned(bench.ask("n0", f"k{number}"))
        bench.finish(node, f"k{number}")
    first = bench.plan._roster.nodes["n0"].recent
    assert 200 / 10 < first < 200 / 3


def test_two_nodes_compile_what_they_ask_for() -> None:
    """In a small cluster every kernel stays where it was asked for."""
    bench = Bench("a", "b")
    for number in range(100):
        assert assigned(bench.ask("a", f"k{number}")) == [("a", f"k{number}")]
        bench.finish("a", f"k{number}")


def test_load_of_serving_moves_to_who_has_served_least() -> None:
    """Of many that ask for many kernels in the same order, none serves most of them."""
    names = [f"n{number}" for number in range(40)]
    bench = Bench("compiler", credits=22, slots=20)
    for name in names:
        bench.do(ev.Joined(name, 4, (TOOLS,), shares=True))
    keys = [f"k{number}" for number in range(20)]
    for key in keys:
        bench.ask("compiler", key)
        bench.finish("compiler", key)
    served: Counter[str] = Counter()
    for name in names:
        for key in keys:
            (found,) = bench.ask(name, key)
            assert isinstance(found, ev.Found)
            served[found.holder] += 1
        bench.now += 0.3
    assert max(served.values()) < 4 * len(names) * len(keys) / len(names)


def test_ended_jobs_are_freed_without_a_collection() -> None:
    """What the plan drops is in no cycle: a coordinator may collect garbage as good as never."""
    bench = Bench("a", "b")
    gc.collect()
    gc.disable()
    try:
        for number in range(20):
            ((node, _),) = assigned(bench.ask("a", f"k{number}"))
            if number % 2:
                bench.finish(node, f"k{number}")
            else:
                bench.fail(node, f"k{number}", REJECTED)
        bench.pass_time(10.0, "a", "b")
        left = [found for found in gc.get_objects() if type(found) in (Job, Run)]
    finally:
        gc.enable()
    assert left == []
