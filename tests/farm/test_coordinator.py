"""The coordinator as nodes see it: three methods, no Ray, a clock in hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
import pytest

from kernelfarm.farm.cluster_jobs import ClusterLimits
from kernelfarm.farm.cluster_wire import (
    BATCH_KEYS,
    CLUSTER_WIRE,
    agent_name,
    batches,
    coordinator_name,
    shard_of,
    size_of,
)
from kernelfarm.farm.coordination import CoordinatorHost
from kernelfarm.farm.errors import Failure
from kernelfarm.farm.wire import Message

TOOLS = b"toolchain"


def key(name: str) -> bytes:
    return name.encode().ljust(32, b".")


def ask(name: str, **fields: Any) -> Message:
    message = {"op": "ask", "key": key(name), "toolchain": TOOLS, "prio": 1, "expected": 0.1}
    return {**message, "body": b"request " + name.encode(), **fields}


def done(name: str) -> Message:
    return {"op": "done", "key": key(name), "seconds": 0.1, "started": 1.0, "finished": 1.1}


class Bench:
    """A coordinator, its clock, and nodes that say exactly what the test wants."""

    def __init__(self, **settings: Any) -> None:
        self.now = 100.0
        self.bugs: list[Exception] = []
        limits = settings.pop("limits", ClusterLimits(gathering=0.0))
        self.host = CoordinatorHost(
            clock=lambda: self.now,
            limits=limits,
            validate=True,
            fatal=self.bugs.append,
            **{"park": 0.05, **settings},
        )

    async def join(self, node: str, credits: int = 4, session: str = "s") -> None:
        info = {"wire": CLUSTER_WIRE, "slots": 4, "toolchains": [TOOLS], "session": session}
        reply = await self.host.join(node, info)
        assert reply["ok"], reply
        await self.send(node, {"op": "pull", "credits": credits})

    async def send(self, node: str, *messages: Message) -> None:
        await self.host.send(node, list(messages))

    async def hear(self, node: str, session: str = "s") -> list[Message]:
        async with asyncio.timeout(5):
            return await self.host.listen(node, session)


def with_bench(test: Callable[[Bench], Awaitable[None]], **settings: Any) -> None:
    """Run a test against a new coordinator; what it says must be fit for the wire."""

    async def run() -> None:
        bench = Bench(**settings)
        try:
            await test(bench)
            msgpack.packb(await bench.host.stats(), use_bin_type=True)
        finally:
            await bench.host.close()
        assert bench.bugs == []

    asyncio.run(run())


def test_request_travels_from_asker_to_compiler_and_its_place_back() -> None:
    """A busy node's request is given to a free one, and the asker is told who has the artifact."""

    async def run(bench: Bench) -> None:
        await bench.join("a", 0)
        await bench.join("b", 4)
        await bench.send("a", ask("k"))
        told = {"op": "compile", "key": key("k"), "asker": False, "prio": 1}
        assert await bench.hear("b") == [{**told, "body": b"request k"}]
        await bench.send("b", done("k"))
        assert await bench.hear("a") == [{"op": "found", "key": key("k"), "holder": "b"}]

    with_bench(run)


def test_asker_gets_no_request_back() -> None:
    """Who is told to compile what it asked for has the request already."""

    async def run(bench: Bench) -> None:
        await bench.join("a")
        await bench.send("a", ask("k"))
        (told,) = await bench.hear("a")
        assert (told["op"], told["asker"], told["body"]) == ("compile", True, b"")

    with_bench(run)


def test_listening_parks_until_there_is_something() -> None:
    """A call that was waiting answers with all of one batch at once."""

    async def run(bench: Bench) -> None:
        await bench.join("a")
        listening = asyncio.create_task(bench.hear("a"))
        await asyncio.sleep(0)
        assert not listening.done()
        await bench.send("a", ask("k"), ask("l"))
        assert [told["key"] for told in await listening] == [key("k"), key("l")]

    with_bench(run, park=60.0)


def test_listening_ends_with_nothing_after_a_while() -> None:
    """A call for a node for which there is nothing returns, and may be made again."""

    async def run(bench: Bench) -> None:
        await bench.join("a")
        assert await bench.hear("a") == []
        await bench.send("a", ask("k"))
        assert len(await bench.hear("a")) == 1

    with_bench(run)


def test_only_the_latest_call_of_a_session_is_answered() -> None:
    """A call whose caller gave up takes nothing from the one that the caller made since."""

    async def run(bench: Bench) -> None:
        await bench.join("a")
        given_up = asyncio.create_task(bench.hear("a"))
        await asyncio.sleep(0)
        listening = asyncio.create_task(bench.hear("a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await bench.send("a", ask("k"))
        assert await given_up == []
        assert len(await listening) == 1

    with_bench(run, park=60.0)


def test_message_that_comes_while_a_call_is_given_up_goes_to_the_next() -> None:
    """Between two calls nothing is lost."""

    async def run(bench: Bench) -> None:
        await bench.join("a")
        given_up = asyncio.create_task(bench.hear("a"))
        await asyncio.sleep(0)
        given_up.cancel()
        await bench.send("a", ask("k"))
        assert len(await bench.hear("a")) == 1

    with_bench(run, park=60.0)


def test_another_session_hears_nothing() -> None:
    """After a node joined anew, a call of its earlier process is not told what the new one is."""

    async def run(bench: Bench) -> None:
        await bench.join("a", session="old")
        old = asyncio.create_task(bench.hear("a", "old"))
        await asyncio.sleep(0)
        await bench.join("a", session="new")
        await bench.send("a", ask("k"))
        assert await old == []
        assert await bench.hear("a", "old") == []
        assert len(await bench.hear("a", "new")) == 1

    with_bench(run)


def test_first_call_names_the_session_if_join_did_not() -> None:
    """A node that joins without a session has the one with which it listens first."""

    async def run(bench: Bench) -> None:
        await bench.join("a", session="")
        await bench.send("a", ask("k"))
        assert len(await bench.hear("a", "mine")) == 1
        await bench.send("a", ask("l"))
        assert await bench.hear("a", "other") == []
        assert len(await bench.hear("a", "mine")) == 1

    with_bench(run)


def test_unknown_node_is_told_to_join() -> None:
    """A coordinator that was started anew says so to nodes that do not know it yet."""

    async def run(bench: Bench) -> None:
        await bench.send("a", ask("k"))
        assert await bench.hear("a") == [{"op": "rejoin"}]
        await bench.join("a")
        await bench.send("a", ask("k"))
        assert [told["op"] for told in await bench.hear("a")] == ["compile"]
        assert bench.host.counters["strangers"] == 1

    with_bench(run)


def test_silent_node_is_told_to_join_and_its_work_goes_elsewhere() -> None:
    """A node that was silent for six seconds is out, and a parked call of it hears that at once."""

    async def run(bench: Bench) -> None:
        await bench.join("a", 0)
        await bench.join("b", 4)
        await bench.send("a", ask("k"))
        assert [told["op"] for told in await bench.hear("b")] == ["compile"]
        await bench.join("c", 4)
        listening = asyncio.create_task(bench.hear("b"))
        await asyncio.sleep(0)
        for _ in range(2):
            bench.now += 3.5
            for node in ("a", "c"):
                await bench.send(node, {"op": "beat", "slots": 4})
            bench.host.tick()
        assert await listening == [{"op": "rejoin"}]
        assert [told["op"] for told in await bench.hear("c")] == ["compile"]
        assert bench.host.plan.counters["reassigned"] == 1

    with_bench(run, park=60.0)


def test_own_timer_lets_time_pass() -> None:
    """Nobody need call tick: what is due happens by itself."""

    async def run(bench: Bench) -> None:
        await bench.join("a")
        listening = asyncio.create_task(bench.hear("a"))
        await asyncio.sleep(0)
        bench.now += 30.0
        # Any event sets the timer by the clock, which says that much is overdue.
        bench.host.handle()
        bench.host._timer_due = 0.0
        bench.host._set_timer()
        assert await listening == [{"op": "rejoin"}]

    with_bench(run, park=60.0)


def test_node_that_parts_is_forgotten() -> None:
    """A node that says goodbye has no box, and its calls end."""

    async def run(bench: Bench) -> None:
        await bench.join("a")
        listening = asyncio.create_task(bench.hear("a"))
        await asyncio.sleep(0)
        await bench.send("a", {"op": "part"})
        assert await listening == [{"op": "rejoin"}]
        assert (await bench.host.stats())["nodes"] == {}

    with_bench(run, park=60.0)


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({"wire": CLUSTER_WIRE + 1, "slots": 1, "toolchains": []}, "cluster wire version"),
        ({}, "cluster wire version"),
        ({"wire": CLUSTER_WIRE, "slots": "many", "toolchains": []}, "'many'"),
    ],
)
def test_node_that_does_not_fit_is_refused(info: Message, why: str) -> None:
    """A node of another version, or one that says nonsense, is told why it cannot join."""

    async def run(bench: Bench) -> None:
        reply = await bench.host.join("a", info)
        assert not reply["ok"]
        assert why in reply["why"]
        assert reply["wire"] == CLUSTER_WIRE
        assert await bench.hear("a") == [{"op": "rejoin"}]

    with_bench(run)


@pytest.mark.parametrize(
    "fields",
    [{"prio": 9}, {"prio": None}, {"body": b""}, {"toolchain": None}, {"op": "shout"}],
)
def test_unreadable_question_is_answered(fields: Message) -> None:
    """What cannot be read harms nothing else in its batch, and nobody waits for its answer."""

    async def run(bench: Bench) -> None:
        await bench.join("a")
        await bench.send("a", ask("bad", **fields), ask("good"))
        told = await bench.hear("a")
        assert [(found["op"], found["key"]) for found in told] == [
            ("no_taker", key("bad")),
            ("compile", key("good")),
        ]
        stats = await bench.host.stats()
        assert stats["host"]["malformed"] == 1
        assert stats["requests"] == 1

    with_bench(run)


def test_failure_travels_as_data() -> None:
    """A compiler's error reaches who asked with all its fields."""
    failure = Failure("rejected", "k", log="no such type", stage="ttgir", cause={"class": "X"})

    async def run(bench: Bench) -> None:
        await bench.join("a", 0)
        await bench.join("b", 4)
        await bench.send("a", ask("k"))
        await bench.send("b", {"op": "failed", "key": key("k"), "failure": failure.to_wire()})
        (told,) = await bench.hear("a")
        assert told["op"] == "failed"
        assert Failure.from_wire(told["failure"]) == failure

    with_bench(run)


def test_every_kind_of_message_is_understood() -> None:
    """Raised, dropped and unfetched keys do what the plan's rules say."""

    async def run(bench: Bench) -> None:
        await bench.join("a", 0)
        await bench.send("a", ask("k"), ask("l"), ask("m"))
        await bench.send(
            "a", {"op": "raise", "key": key("l"), "prio": 0}, {"op": "drop", "key": key("m")}
        )
        await bench.join("b", 0)
        await bench.send("b", {"op": "pull", "credits": 1}, {"op": "beat", "slots": 3})
        (told,) = await bench.hear("b")
        assert (told["key"], told["prio"]) == (key("l"), 0)
        await bench.send("b", {"op": "pull", "credits": 2})
        assert [told["key"] for told in await bench.hear("b")] == [key("k")]
        await bench.send("b", done("l"))
        assert [found["op"] for found in await bench.hear("a")] == ["found"]
        await bench.send("a", {"op": "unfetched", "key": key("l"), "holder": "b"})
        assert [(told["key"], told["body"]) for told in await bench.hear("b")] == [
            (key("l"), b"request l")
        ]

    with_bench(run)


def test_answers_come_in_calls_of_bounded_size() -> None:
    """Many large requests for one node are cut into calls that Ray sends the fast way."""

    async def run(bench: Bench) -> None:
        await bench.join("a", 0)
        await bench.join("b", 0)
        for number in range(6):
            await bench.send("a", ask(f"k{number}", body=bytes(40_000)))
        await bench.send("b", {"op": "beat", "slots": 9}, {"op": "pull", "credits": 9})
        sizes = [len(await bench.hear("b")) for _ in range(3)]
        assert sizes == [2, 2, 2]

    with_bench(run)


def test_requests_are_dropped_when_nothing_can_come_of_them() -> None:
    """A coordinator keeps no request of a kernel that failed, was dropped or was given back."""

    async def run(bench: Bench) -> None:
        await bench.join("a", 4)
        await bench.send("a", ask("failing"), ask("dropped"), ask("alien", toolchain=b"other"))
        failure = Failure("rejected", "k").to_wire()
        await bench.send("a", {"op": "failed", "key": key("failing"), "failure": failure})
        await bench.send("a", {"op": "drop", "key": key("dropped")})
        stats = await bench.host.stats()
        assert (stats["requests"], stats["request_bytes"]) == (0, 0)

    with_bench(run)


def test_bug_ends_the_process() -> None:
    """A plan that breaks is not asked again: the host is told, and the caller sees the error."""

    async def run() -> None:
        bench = Bench()
        await bench.join("a")
        bench.host.plan._held = None  # type: ignore[assignment]
        with pytest.raises(AttributeError):
            await bench.send("a", ask("broken"))
        assert [type(bug) for bug in bench.bugs] == [AttributeError]
        await bench.host.close()

    asyncio.run(run())


def test_batches_are_bounded_in_keys_and_bytes() -> None:
    """Messages are cut in order; one that is larger than any call goes alone."""
    many = [{"op": "drop", "key": key(str(number))} for number in range(BATCH_KEYS * 2 + 1)]
    assert [len(batch) for batch in batches(many)] == [BATCH_KEYS, BATCH_KEYS, 1]
    large = [
        ask("a", body=bytes(200_000)),
        ask("b", body=bytes(900)),
        ask("c", body=bytes(89_500)),
        ask("d"),
    ]
    assert [len(batch) for batch in batches(large)] == [1, 1, 2]
    assert [message for batch in batches(large) for message in batch] == large
    packed = len(msgpack.packb(large[0], use_bin_type=True))
    assert packed <= size_of(large[0]) + 32


def test_names_hold_the_version() -> None:
    """Actors of two versions never meet, and every key has one coordinator."""
    assert coordinator_name(2, 16) == f"coordinator-w{CLUSTER_WIRE}-2of16"
    assert agent_name("n1") == f"agent-w{CLUSTER_WIRE}-n1"
    assert {shard_of(bytes([first]) + bytes(31), 16) for first in range(256)} == set(range(16))
