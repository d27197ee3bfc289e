"""Whatever happens in whatever order: the plan keeps its invariants and every asker is answered."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kernelfarm.farm import events as ev
from kernelfarm.farm.errors import Failure
from kernelfarm.farm.limits import Limits
from kernelfarm.farm.plan import Plan

#: (what, which, how): a small language of events; numbers are taken modulo what there is.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["want", "want", "want", "raise", "release", "gone", "key", "done", "done", "reject"]
            + ["die", "stage", "lost", "ready", "unavailable", "slots", "time", "long"]
        ),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    max_size=60,
)


class World:
    """Carries out instructions as a broker and a perfect runner would, and keeps the accounts."""

    def __init__(self) -> None:
        self.now = 0.0
        self.plan = Plan(lambda: self.now, 2, Limits(attempts=2), validate=True)
        self.runs: dict[int, bytes] = {}  # run -> environment, started and not ended
        self.dying: list[int] = []
        self.environments: dict[bytes, str] = {}
        self.open: set[ev.Interest] = set()
        self.number = 0

    def do(self, *events: ev.Event) -> None:
        for instruction in self.plan.handle(*events):
            self.obey(instruction)
        dying, self.dying = self.dying, []
        for run in dying:
            if self.runs.pop(run, None) is not None:
                self.do(ev.Died(run, signal=9))

    def obey(self, instruction: ev.Instruction) -> None:
        match instruction:
            case ev.Start(run, _, environment):
                assert self.environments[environment] == "ready"
                self.runs[run] = environment
            case ev.Kill(run, _, _):
                assert run in self.runs
                self.dying.append(run)
            case ev.Deliver(_, interests):
                for interest, _ in interests:
                    self.open.remove(interest)
            case ev.Fail(_, interests, _):
                for interest in interests:
                    self.open.remove(interest)
            case ev.TellKeyed(_, interests):
                assert self.open.issuperset(interests)
            case ev.Prepare(environment):
                assert self.environments.get(environment, "absent") == "absent"
                self.environments[environment] = "starting"
            case ev.Retire(environment):
                self.environments[environment] = "absent"
            case ev.Discard(environment):
                self.lose(environment)

    def lose(self, environment: bytes) -> None:
        if self.environments.get(environment, "absent") != "absent":
            self.environments[environment] = "absent"
            self.runs = {run: env for run, env in self.runs.items() if env != environment}
            self.do(ev.Lost(environment, "gone"))

    def step(self, what: str, which: int, how: int) -> None:
        environment = b"env%d" % (how % 2)
        run = list(self.runs)[which % len(self.runs)] if self.runs else None
        match what:
            case "want":
                self.number += 1
                interest = (which % 3, self.number)
                self.open.add(interest)
                digest = b"%d/%d" % (which, how % 2)
                self.do(ev.Wanted(interest, digest, environment, f"k{which}", how % 4, which))
            case "raise" | "release" if self.open:
                interest = sorted(self.open)[which % len(self.open)]
                if what == "raise":
                    self.do(ev.Raised(interest, how % 4))
                else:
                    self.open.discard(interest)
                    self.do(ev.Released(interest, how % 2 == 0))
            case "gone":
                self.open = {found for found in self.open if found[0] != which % 3}
                self.do(ev.ClientGone(which % 3))
            case "ready" | "unavailable" if self.environments.get(environment) == "starting":
                self.environments[environment] = "ready" if what == "ready" else "absent"
                event = ev.Ready if what == "ready" else lambda name: ev.Unavailable(name, "no")
                self.do(event(environment))
            case "lost":
                self.lose(environment)
            case "slots":
                self.do(ev.SlotsChanged(1 + which % 4))
            case "time" | "long":
                self.now += 1.0 if what == "time" else 61.0
                self.do(ev.Tick())
            case "stage" if run is not None:
                self.do(ev.Staged(run, "llir"))
            case "key" if run is not None:
                self.do(ev.Keyed(run, b"key%d" % (how % 3)))
            case "done" | "reject" | "die" if run is not None:
                del self.runs[run]
                outcomes: dict[str, ev.Event] = {
                    "done": ev.Succeeded(run, 1000, 0.1),
                    "reject": ev.Rejected(run, Failure("rejected", "")),
                    "die": ev.Died(run, signal=11),
                }
                self.do(outcomes[what])

    def settle(self) -> None:
        """Let everything succeed until nothing is wanted."""
        for _ in range(1000):
            if not self.open:
                return
            for environment in (b"env0", b"env1"):
                self.step("ready", 0, int(environment[-1:]))
            self.step("done", 0, 0)
            self.now += 0.1
        raise AssertionError(f"never answered: {self.open}")


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_every_asker_is_answered_exactly_once(steps: list[tuple[str, int, int]]) -> None:
    """After any events, a runner that works answers every open interest, each once."""
    world = World()
    for step in steps:
        world.step(*step)
    world.settle()


@given(STEPS)
@settings(max_examples=100, deadline=None)
def test_everything_ends_without_any_report(steps: list[tuple[str, int, int]]) -> None:
    """After any events, deadlines alone answer every open interest, though nothing works."""
    world = World()
    for step in steps:
        world.step(*step)
    for _ in range(40):
        world.step("long", 0, 0)
    # A start that was lost to its deadline is tried again; both environments end up broken.
    assert not world.open
