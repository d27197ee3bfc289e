"""Whatever nodes and coordinators do, in whatever order: every asker is answered exactly once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kernelfarm.farm import cluster_events as ev
from kernelfarm.farm.cluster_jobs import ClusterLimits
from kernelfarm.farm.cluster_plan import ClusterPlan
from kernelfarm.farm.errors import Failure

NODES = ("a", "b", "c", "d")
#: What each node can compile; kernels are of one of the two toolchains by their number.
TOOLCHAINS = {"a": (b"t0",), "b": (b"t0", b"t1"), "c": (b"t1",), "d": ()}
LIMITS = ClusterLimits(
    deadlines=(8.0, 8.0, 8.0, 4.0),
    overdue=2.0,
    gathering=1.0,
    retry_patience=2.0,
    hedge_floor=0.5,
    hedge_blind=1.0,
    hedge_samples=3,
    unavailable_pause=5.0,
    quarantine=5.0,
    rejected_seconds=5.0,
    recent_keys=3,
    recent_seconds=30.0,
)
#: (what, which, how): a small language of events; numbers are taken modulo what there is.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["ask", "ask", "ask", "ask", "raise", "drop", "done", "done", "done", "volunteer"]
            + ["crash", "reject", "lost", "unavailable", "unfetched", "pull", "slots", "stranger"]
            + ["again", "join", "part", "mute", "time", "time", "long", "forget"]
        ),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    max_size=80,
)


def toolchain(key: bytes) -> bytes:
    return b"t%d" % (key[1] % 2)


class World:
    """Nodes that do as they are told, and the accounts of what they were told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.plan = self.new_plan()
        #: Node -> what its users wait for, whether it is in touch with the plan or not.
        self.wishes: dict[str, set[bytes]] = {node: set() for node in NODES}
        #: Questions that the plan has to answer.
        self.open: set[tuple[str, bytes]] = set()
        #: Assignments whose end neither side has reported.
        self.runs: set[tuple[str, bytes]] = set()
        self.window = dict.fromkeys(NODES, 0)
        self.slots = dict.fromkeys(NODES, 2)
        self.mute: set[str] = set()
        #: Keys whose requests the host of the plan has.
        self.requests: set[bytes] = set()
        for node in NODES[:3]:
            self.join(node, 2)

    def new_plan(self) -> ClusterPlan:
        return ClusterPlan(lambda: self.now, LIMITS, validate=True)

    # -- what the plan says -------------------------------------------------------------------

    def do(self, *events: ev.Event) -> None:
        hedges = self.plan.counters["hedges"]
        doubled = 0
        for instruction in self.plan.handle(*events):
            match instruction:
                case ev.Cancel(node, key):
                    self.runs.remove((node, key))
                    assert (node, key) not in self.open
                case ev.Found(nodes, key, holder):
                    assert self.plan.knows(holder) and holder not in nodes
                    self.answer(nodes, key)
                case ev.Refused(nodes, key, _):
                    self.answer(nodes, key)
                case ev.NoTaker(node, key, reason):
                    assert reason
                    self.answer((node,), key)
                case ev.Forget(key):
                    self.requests.discard(key)
                case ev.Assign():
                    assert instruction.key in self.requests
                    doubled += self.assign(instruction)
        # Whoever went silent has no assignments, and asks again when it is back.
        self.open = {found for found in self.open if self.plan.knows(found[0])}
        self.runs = {found for found in self.runs if self.plan.knows(found[0])}
        assert doubled == self.plan.counters["hedges"] - hedges
        kept = [run for node in self.plan._roster.nodes.values() for run in node.runs.values()]
        assert {(run.node.name, run.job.key) for run in kept} == self.runs

    def assign(self, told: ev.Assign) -> bool:
        """Take an assignment; say whether the key is being compiled elsewhere."""
        assert told.asker == ((told.node, told.key) in self.open)
        assert toolchain(told.key) in TOOLCHAINS[told.node]
        others = [n for n, key in self.runs if key == told.key and self.plan.knows(n)]
        assert told.node not in others and len(others) < 2
        self.runs.add((told.node, told.key))
        held = sum(node == told.node for node, _ in self.runs)
        assert held <= min(self.window[told.node], self.slots[told.node] + LIMITS.prefetch)
        return bool(others)

    def answer(self, nodes: tuple[str, ...], key: bytes) -> None:
        for node in nodes:
            self.open.remove((node, key))
            self.wishes[node].discard(key)
            self.runs.discard((node, key))

    # -- what nodes do ------------------------------------------------------------------------

    def join(self, node: str, credits: int) -> None:
        self.mute.discard(node)
        self.gone(node)
        self.window[node] = 0
        self.do(ev.Joined(node, self.slots[node], TOOLCHAINS[node], shares=node in "bcd"))
        self.pull(node, credits)
        for key in sorted(self.wishes[node]):
            self.ask(node, key, 1)

    def gone(self, node: str) -> None:
        self.open = {found for found in self.open if found[0] != node}
        self.runs = {found for found in self.runs if found[0] != node}

    def pull(self, node: str, credits: int) -> None:
        # A smaller window takes nothing back: what there is may be more than it.
        held = sum(found == node for found, _ in self.runs)
        self.window[node] = max(credits, held)
        self.do(ev.Pulled(node, self.window[node]))

    def ask(self, node: str, key: bytes, priority: int) -> None:
        self.do(self.asked(node, key, priority))

    def asked(self, node: str, key: bytes, priority: int) -> ev.Asked:
        self.wishes[node].add(key)
        self.open.add((node, key))
        self.requests.add(key)
        return ev.Asked(node, key, toolchain(key), priority, 0.1, 100)

    def finish(self, node: str, key: bytes) -> None:
        self.runs.discard((node, key))
        self.open.discard((node, key))
        self.wishes[node].discard(key)
        self.do(ev.Finished(node, key, 0.1))

    def step(self, what: str, which: int, how: int) -> None:
        node = NODES[which % len(NODES)]
        key = b"k%d" % (how % 6)
        known = self.plan.knows(node) and node not in self.mute
        runs = sorted(run for run in self.runs if run[0] not in self.mute)
        run = runs[which % len(runs)] if runs else None
        asked = sorted(found for found in self.open if found[0] not in self.mute)
        ask = asked[which % len(asked)] if asked else None
        match what:
            case "ask" if known:
                self.ask(node, key, (which + how) % 4)
            case "stranger" if not self.plan.knows(node):
                self.ask(node, key, how % 4)
            case "raise" if ask is not None:
                self.do(ev.Raised(*ask, how % 4))
            case "drop" | "again" if ask is not None:
                self.open.remove(ask)
                self.wishes[ask[0]].discard(ask[1])
                held = self.plan._jobs[ask[1]].runs.get(ask[0])
                if held is not None and held.own:
                    self.runs.remove(ask)
                again = [self.asked(*ask, how % 4)] if what == "again" else []
                self.do(ev.Dropped(*ask), *again)
            case "done" if run is not None:
                self.finish(*run)
            case "volunteer" if known:
                self.finish(node, key)
            case "crash" | "lost" | "unavailable" if run is not None:
                self.runs.remove(run)
                self.do(ev.Failed(*run, Failure(what, "k")))
            case "reject" if run is not None:
                self.runs.remove(run)
                self.do(ev.Failed(*run, Failure("rejected", "k")))
            case "unfetched" if known and (node, key) not in self.open:
                self.wishes[node].add(key)
                self.open.add((node, key))
                self.do(ev.Unfetched(node, key, NODES[how % 3]))
            case "pull" if known:
                self.pull(node, how)
            case "slots" if known:
                held = sum(found == node for found, _ in self.runs)
                self.slots[node] = max(how % 4, held - LIMITS.prefetch)
                self.do(ev.Beat(node, self.slots[node]))
            case "join":
                self.join(node, how % 4)
            case "part" if known:
                self.gone(node)
                self.do(ev.Parted(node))
            case "mute":
                self.mute.add(node)
            case "time" | "long":
                self.pass_time(0.6 if what == "time" else 7.0)
            case "forget":
                self.plan = self.new_plan()
                self.open.clear()
                self.runs.clear()
                self.requests.clear()
                for found in NODES:
                    if found not in self.mute:
                        self.join(found, how % 4)

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 3.0)
            alive = [node for node in NODES if node not in self.mute and self.plan.knows(node)]
            self.do(*(ev.Beat(node, self.slots[node]) for node in alive), ev.Tick())


@given(STEPS)
@settings(max_examples=400, deadline=None)
def test_every_asker_is_answered_exactly_once(steps: list[tuple[str, int, int]]) -> None:
    """After any events, nodes that work and stay answer every wish, each question once."""
    world = World()
    for step in steps:
        world.step(*step)
    for node in NODES:
        world.slots[node] = 2
        world.join(node, 4)
    for _ in range(200):
        if not any(world.wishes.values()):
            break
        for run in sorted(world.runs):
            if run in world.runs:
                world.finish(*run)
        world.pass_time(0.5)
    assert not world.open
    assert not any(world.wishes.values())
    assert all(world.plan._is_known(key) for key in world.requests)


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_everything_ends_without_any_report(steps: list[tuple[str, int, int]]) -> None:
    """After any events, deadlines alone answer every question, though no node reports anything."""
    world = World()
    for step in steps:
        world.step(*step)
    world.pass_time(60.0)
    assert not world.open
    assert not world.plan._jobs


@given(STEPS)
@settings(max_examples=100, deadline=None)
def test_nothing_is_left_when_all_nodes_are_gone(steps: list[tuple[str, int, int]]) -> None:
    """After any events, a cluster without nodes has no jobs, no credits and no speculation."""
    world = World()
    for step in steps:
        world.step(*step)
    world.mute.update(NODES)
    world.pass_time(LIMITS.silence + 3.0)
    found = world.plan.snapshot()
    assert (found["nodes"], found["slots"], found["runs"]) == (0, 0, 0)
    assert not world.plan._jobs
    assert not any(pool.late or pool.wanted for pool in world.plan._roster.pools.values())
