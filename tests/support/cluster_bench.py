"""A cluster plan for tests, with a clock in hand, and short ways to say things to it."""

from __future__ import annotations

from kernelfarm.farm import cluster_events as ev
from kernelfarm.farm.cluster_jobs import ClusterLimits
from kernelfarm.farm.cluster_plan import ClusterPlan
from kernelfarm.farm.errors import Failure
from kernelfarm.farm.levels import EMITTED

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
