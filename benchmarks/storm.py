"""The cold start of a large cluster, simulated against the real coordinators' plans.

    python benchmarks/storm.py [--nodes 1000] [--ranks 8] [--kernels 2000] [--shards 16] ...

Every rank of every node emits the same kernels at about the same time, and no store has any. What
the coordinators decide is computed by the product's own ClusterPlan; everything around them is a
discrete-event model with times that were measured one by one (``Costs``): Ray calls, forks, compile
times by kind of kernel, transfers. In it

- a node's broker joins its ranks: it asks for a kernel when the first of them has emitted it;
- a node has one call to each coordinator under way, and what comes up meanwhile goes into the next;
- a coordinator handles calls one after another, and its answers leave when a node listens;
- a node's slots compile what it is assigned, in order, and artifacts are fetched from their holder,
  who serves one after another; one that has it not (yet) says so, and the next is tried.

One JSON line. ``wall_s`` is from the first rank's first line of Python to the last artifact's
arrival, ``trace_s`` the part of it that the slowest rank traces anyway, ``alone_s`` what the same
start takes without a cluster; ``busy_s`` are the simulated seconds of work of the busiest
coordinator and of all. ``plan`` is not simulated: what its Python took here, in seconds of a core.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import math
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from kernelfarm.farm import cluster_events as ev
from kernelfarm.farm.cluster_jobs import ClusterLimits
from kernelfarm.farm.cluster_plan import ClusterPlan
from kernelfarm.farm.cluster_wire import BATCH_KEYS, shard_of

TOOLCHAIN = b"toolchain"
#: share of all kernels, median and longest compile in seconds: pointwise, reduction, matmul,
#: attention
KINDS = ((30, 0.097, 0.152), (18, 0.192, 0.345), (9, 0.362, 0.764), (3, 0.506, 0.654))


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured times in seconds: the farm's spec, 1.3 to 1.5 and 3.3."""

    round_trip: float = 0.65e-3  # of a Ray call up to 100 KB
    call: float = 0.2e-3  # of a coordinator, for one call of any size
    key: float = 4.1e-6  # and for each key in it: 138,000 a second in calls of 64
    window: float = 2e-3  # how long a node collects before it calls
    fork: float = 5e-3  # of a compile beside the compiler's own time
    front: float = 13e-3  # from a kernel's text to its key
    beat: float = 2.0
    artifact_bytes: int = 25_000
    bandwidth: float = 90e6  # bytes a second that one agent serves


class Node:
    """One machine: when its ranks emit, what it has asked, compiles and has."""

    def __init__(
        self, name: str, kernels: int, shards: int, slots: int, first: float, pace: float
    ) -> None:
        self.name = name
        self.first = first
        self.pace = pace  # of its fastest rank, seconds a kernel
        self.slots = slots
        self.alive = True
        self.busy = 0
        self.queue: deque[int] = deque()
        self.running: dict[int, int] = {}
        self.arrived = array("d", [math.inf]) * kernels  # when it had which artifact
        self.missing = kernels
        self.complete = 0.0
        self.serving = 0.0  # until when it serves artifacts already asked for
        self.served = 0.0
        self.links = [Link() for _ in range(shards)]


class Link:
    """A node's side of its exchange with one coordinator."""

    __slots__ = ("asked", "box", "called", "calling", "delivery", "listens", "reports", "wake")

    def __init__(self) -> None:
        self.asked = 0  # how many of the coordinator's keys the node has asked for
        self.reports: list[ev.Event] = []
        self.calling = False
        self.called = 0.0
        self.wake = math.inf
        self.box: list[tuple[str, Any]] = []
        self.listens = 0.0
        self.delivery = False


class Shard:
    """A coordinator: the real plan, and a clock that is its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.free = 0.0
        self.busy = 0.0
        self.calls = 0
        self.events = 0
        self.handling = 0.0  # real seconds of this processor
        self.plan = ClusterPlan(lambda: self.now, ClusterLimits())


class Storm:
    """The simulation: a heap of what happens when."""

    def __init__(self, options: argparse.Namespace, costs: Costs) -> None:
        self.options = options
        self.costs = costs
        self.random = Random(options.seed)
        self.now = 0.0
        self.counters: Counter[str] = Counter()
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._attempt = 0
        self.seconds = [self._compile_time() for _ in range(options.kernels)]
        self.keys = [hashlib.sha256(b"%d" % n).digest() for n in range(options.kernels)]
        self.index = {key: n for n, key in enumerate(self.keys)}
        self.of_shard: list[list[int]] = [[] for _ in range(options.shards)]
        for number, key in enumerate(self.keys):
            self.of_shard[shard_of(key, options.shards)].append(number)
        self.shards = [Shard() for _ in range(options.shards)]
        self.nodes: dict[str, Node] = {}
        self.traced = 0.0
        for number in range(options.nodes):
            self._add_node(f"n{number}")
        self.waiting = sum(node.alive for node in self.nodes.values())

    def _compile_time(self) -> float:
        weights = [share for share, _, _ in KINDS]
        _, usual, longest = self.random.choices(KINDS, weights)[0]
        return min(longest, usual * math.exp(self.random.gauss(0.0, 0.25)))

    def _add_node(self, name: str) -> None:
        options = self.options
        paces = [
            options.emit_ms / 1e3 * math.exp(self.random.gauss(0.0, 0.05))
            for _ in range(options.ranks)
        ]
        first = self.random.uniform(0.0, options.skew)
        node = Node(name, options.kernels, options.shards, options.slots, first, min(paces))
        self.nodes[name] = node
        self.traced = max(self.traced, first + max(paces) * options.kernels)
        window = max(1, (options.slots + 2) // options.shards)
        for link in node.links:
            joined = ev.Joined(name, options.slots, (TOOLCHAIN,), not options.no_sharing)
            link.reports = [joined, ev.Pulled(name, window)]
        for shard in range(options.shards):
            self._wake(node, shard, first)

    # -- the agenda ---------------------------------------------------------------------------

    def at(self, when: float, what: Callable[..., None], *whom: Any) -> None:
        """Let something happen at a time."""
        self._number += 1
        heapq.heappush(self._agenda, (when, self._number, what, whom))

    def run(self) -> None:
        """Let everything happen until every node that lives has every kernel."""
        for shard in self.shards:
            self.at(0.1, self._tick, shard)
        dying = self.random.sample(sorted(self.nodes), self.options.die)
        for name in dying:
            self.at(self.random.uniform(0.5, 0.8) * self.traced, self._die, self.nodes[name])
        while self.waiting:
            self.now, _, what, whom = heapq.heappop(self._agenda)
            what(*whom)

    def _die(self, node: Node) -> None:
        if node.missing:
            self.waiting -= 1
        node.alive = False
        self.counters["died"] += 1

    # -- from nodes to coordinators -----------------------------------------------------------

    def _wake(self, node: Node, shard: int, when: float) -> None:
        link = node.links[shard]
        if not link.calling and when < link.wake:
            link.wake = when
            self.at(when, self._call, node, shard, when)

    def _asking_time(self, node: Node, number: int) -> float:
        return node.first + (number + 1) * node.pace + self.costs.front + self.costs.fork

    def _call(self, node: Node, shard: int, due: float) -> None:
        """Call a coordinator with all that came up since, or wait until something does."""
        link = node.links[shard]
        if link.wake != due or not node.alive:
            return
        link.wake = math.inf
        now, keys = self.now, self.of_shard[shard]
        events, link.reports = link.reports, []
        while link.asked < len(keys) and len(events) < BATCH_KEYS:
            number = keys[link.asked]
            if self._asking_time(node, number) > now:
                break
            link.asked += 1
            if node.arrived[number] <= now:  # compiled for another, before its own ranks wanted it
                self._has(node, now)
                continue
            expected = self.seconds[number]
            events.append(ev.Asked(node.name, self.keys[number], TOOLCHAIN, 1, expected, 1600))
        if not events and now - link.called >= self.costs.beat:
            events.append(ev.Beat(node.name, node.slots))
        if not events:
            when = link.called + self.costs.beat
            if link.asked < len(keys):
                asking = self._asking_time(node, keys[link.asked]) + self.costs.window
                when = min(when, asking)
            self._wake(node, shard, max(when, now + 1e-6))
            return
        link.calling, link.called = True, now
        self.at(now + self.costs.round_trip / 2, self._arrive, node, shard, events)

    def _arrive(self, node: Node, number: int, events: list[ev.Event]) -> None:
        shard = self.shards[number]
        shard.calls += 1
        self._handle(shard, number, events, self.costs.call + self.costs.key * len(events))
        self.at(shard.free + self.costs.round_trip / 2, self._called, node, number)

    def _called(self, node: Node, shard: int) -> None:
        node.links[shard].calling = False
        self._wake(node, shard, self.now)

    def _tick(self, shard: Shard) -> None:
        self._handle(shard, self.shards.index(shard), [ev.Tick()], 0.0)
        self.at(self.now + 0.1, self._tick, shard)

    def _handle(self, shard: Shard, number: int, events: list[ev.Event], seconds: float) -> None:
        shard.now = shard.free = max(self.now, shard.free) + seconds
        shard.busy += seconds
        began = time.process_time()
        instructions = shard.plan.handle(*events)
        shard.handling += time.process_time() - began
        shard.events += len(events)
        for found in instructions:
            match found:
                case ev.Found(nodes, key, holder):
                    for name in nodes:
                        self._tell(shard, number, name, ("found", (self.index[key], holder)))
                case ev.Assign(name, key, _):
                    self._tell(shard, number, name, ("compile", self.index[key]))
                case ev.Cancel(name, key):
                    self._tell(shard, number, name, ("cancel", self.index[key]))
                case ev.NoTaker(name, key, _):
                    self._tell(shard, number, name, ("compile", self.index[key]))

    # -- from coordinators to nodes -----------------------------------------------------------

    def _tell(self, shard: Shard, number: int, name: str, message: tuple[str, Any]) -> None:
        node = self.nodes[name]
        link = node.links[number]
        link.box.append(message)
        if not link.delivery:
            link.delivery = True
            shard.calls += 1
            shard.busy += self.costs.call
            shard.free += self.costs.call
            leaves = max(shard.free, link.listens)
            self.at(leaves + self.costs.round_trip / 2, self._deliver, node, number)

    def _deliver(self, node: Node, shard: int) -> None:
        link = node.links[shard]
        messages, link.box = link.box, []
        link.delivery = False
        link.listens = self.now + self.costs.round_trip / 2
        if not node.alive:
            return
        for kind, what in messages:
            if kind == "found":
                self._fetch(node, *what)
            elif kind == "compile":
                node.queue.append(what)
            elif what in node.running:
                del node.running[what]
                node.busy -= 1
            elif what in node.queue:
                node.queue.remove(what)
        self._start(node)

    def _fetch(self, node: Node, number: int, holder: str) -> None:
        costs = self.costs
        server = self.nodes[holder]
        reaches = self.now + costs.round_trip / 2
        if server.arrived[number] > reaches or not server.alive:
            self.counters["unfetched"] += 1
            self._report(node, number, ev.Unfetched(node.name, self.keys[number], holder))
            return
        if node.running.pop(number, None) is not None:
            node.busy -= 1  # it was compiling it itself, and another was faster
        seconds = costs.artifact_bytes / costs.bandwidth
        server.serving = max(server.serving, reaches) + seconds
        server.served += seconds
        self.counters["fetched"] += 1
        node.arrived[number] = server.serving + costs.round_trip / 2
        self._has(node, node.arrived[number])

    def _report(self, node: Node, number: int, event: ev.Event) -> None:
        shard = shard_of(self.keys[number], self.options.shards)
        node.links[shard].reports.append(event)
        self._wake(node, shard, self.now + self.costs.window)

    def _has(self, node: Node, when: float) -> None:
        node.missing -= 1
        node.complete = max(node.complete, when)
        if node.missing == 0:
            self.waiting -= 1

    # -- compiling ----------------------------------------------------------------------------

    def _start(self, node: Node) -> None:
        while node.queue and node.busy < node.slots:
            number = node.queue.popleft()
            node.busy += 1
            self._attempt += 1
            node.running[number] = self._attempt
            seconds = self.seconds[number] * self.random.uniform(0.95, 1.1) + self.costs.fork
            if self.random.random() < self.options.stragglers:
                self.counters["stragglers"] += 1
                seconds *= 20.0
            self.at(self.now + seconds, self._compiled, node, number, self._attempt, seconds)

    def _compiled(self, node: Node, number: int, attempt: int, seconds: float) -> None:
        if not node.alive or node.running.get(number) != attempt:
            return
        del node.running[number]
        node.busy -= 1
        node.arrived[number] = self.now
        self._report(node, number, ev.Finished(node.name, self.keys[number], seconds))
        if self._has_asked(node, number):
            self._has(node, self.now)
        self._start(node)

    def _has_asked(self, node: Node, number: int) -> bool:
        """Say whether this was for the node's own ranks, who then need no other answer."""
        shard = shard_of(self.keys[number], self.options.shards)
        keys, asked = self.of_shard[shard], node.links[shard].asked
        return asked == len(keys) or number < keys[asked]


def simulate(options: argparse.Namespace, costs: Costs) -> dict[str, Any]:
    """Return what the cold start takes, and what the plans did for it."""
    began = time.perf_counter()
    storm = Storm(options, costs)
    storm.run()
    alive = [node for node in storm.nodes.values() if node.alive]
    shards = storm.shards
    plans: Counter[str] = Counter()
    for shard in shards:
        plans.update(shard.plan.counters)
    work = sum(storm.seconds) + options.kernels * costs.fork
    wall = max(storm.traced, max(node.complete for node in alive))
    events, handling = sum(s.events for s in shards), sum(s.handling for s in shards)
    return {
        "nodes": options.nodes,
        "ranks": options.nodes * options.ranks,
        "kernels": options.kernels,
        "requests": options.nodes * options.ranks * options.kernels,
        "shards": options.shards,
        "wall_s": round(wall, 3),
        "trace_s": round(storm.traced, 3),
        "alone_s": round(max(storm.traced, work / options.slots), 3),
        "compiled": plans["compiled"] + plans["volunteered"],
        "hedges": plans["hedges"],
        "stragglers": storm.counters["stragglers"],
        "died": storm.counters["died"],
        "reassigned": plans["reassigned"],
        "unassigned": plans["no_taker"],
        "asked": plans["asked"],
        "calls": sum(shard.calls for shard in shards),
        "busy_s": {
            "busiest": round(max(shard.busy for shard in shards), 3),
            "all": round(sum(shard.busy for shard in shards), 3),
        },
        "fetched": storm.counters["fetched"],
        "unfetched": storm.counters["unfetched"],
        "serving_s": round(max(node.served for node in alive), 3),
        "plan": {
            "events": events,
            "cpu_s": round(handling, 3),
            "events_per_s": round(events / handling),
        },
        "took_s": round(time.perf_counter() - began, 1),
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--nodes", type=int, default=1000)
    add("--ranks", type=int, default=8, help="processes of a job on each node (default 8)")
    add("--kernels", type=int, default=2000, help="distinct kernels of the job (default 2000)")
    add("--shards", type=int, help="coordinators (default: one for 64 nodes)")
    add("--slots", type=int, default=16, help="compiles at once on a node (default 16)")
    add("--emit-ms", type=float, default=5.0, help="of a rank, for each kernel (default 5)")
    add("--skew", type=float, default=2.0, help="seconds in which the nodes start (default 2)")
    add("--stragglers", type=float, default=0.001, help="share of runs that take 20 x as long")
    add("--die", type=int, default=0, help="nodes that fall silent while the others trace")
    add("--window-ms", type=float, default=2.0, help="a node collects before it calls (default 2)")
    add("--no-sharing", action="store_true", help="only who compiled an artifact serves it")
    add("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    options.shards = options.shards or math.ceil(options.nodes / 64)
    return options


def main() -> None:
    """Simulate and print the line."""
    options = parse()
    print(json.dumps(simulate(options, Costs(window=options.window_ms / 1e3))), flush=True)


if __name__ == "__main__":
    main()
