"""The simulated cold start, small: what must be true of it at any size."""

from __future__ import annotations

from typing import Any

import storm


def simulate(*arguments: str) -> dict[str, Any]:
    """Return the benchmark's line for some options, without what depends on this machine."""
    options = ["--nodes", "12", "--kernels", "150", "--stragglers", "0", *arguments]
    line = storm.simulate(storm.parse(options), storm.Costs())
    return {name: value for name, value in line.items() if name not in ("plan", "took_s")}


def test_every_kernel_is_compiled_once_and_reaches_every_node() -> None:
    """Twelve nodes of eight ranks: 150 compiles, and the other nodes fetch what they are."""
    line = simulate()
    assert line["requests"] == 12 * 8 * 150
    assert line["compiled"] == 150
    assert line["hedges"] == line["reassigned"] == line["unassigned"] == 0
    assert line["fetched"] == 11 * 150
    assert line["trace_s"] <= line["wall_s"]


def test_same_seed_same_line() -> None:
    """The simulation depends on its options only."""
    assert simulate("--seed", "3") == simulate("--seed", "3") != simulate("--seed", "4")


def test_coordinators_share_the_work() -> None:
    """With more coordinators the busiest has less to do, and nothing else changes."""
    one, four = simulate("--shards", "1"), simulate("--shards", "4")
    assert four["compiled"] == one["compiled"]
    assert four["busy_s"]["busiest"] < one["busy_s"]["busiest"]


def test_stragglers_are_hedged() -> None:
    """A run that takes twenty times as long does not hold up the rest for that long."""
    line = simulate("--stragglers", "0.02")
    assert 0 < line["hedges"] <= line["stragglers"] + 150 * 0.05
    assert line["compiled"] == 150


def test_nodes_that_die_hold_up_nobody_for_ever() -> None:
    """What dead nodes had is compiled by others, and every node that lives gets every kernel."""
    line = simulate("--die", "4", "--emit-ms", "20", "--skew", "0")
    assert line["died"] == 4
    assert line["fetched"] > 7 * 150
