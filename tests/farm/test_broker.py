"""The broker over a real socket, with a runner that compiles nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.farm import events as ev
from kernelfarm.farm.broker import Broker
from kernelfarm.farm.errors import Failure
from kernelfarm.farm.runner import FakeRunner
from kernelfarm.farm.server import listen
from kernelfarm.farm.streams import StreamConnection
from kernelfarm.farm.wire import WIRE_VERSION, Message, unpack

SPEC = {"python": "python", "roots": [], "code": "", "environ": {}, "toolchain": [], "target": []}


class Peer:
    """A client that says exactly what the test wants."""

    def __init__(self, connection: StreamConnection) -> None:
        self.connection = connection
        self.send = connection.send

    async def hear(self) -> Message:
        async with asyncio.timeout(5):
            body = await self.connection.receive()
        assert body is not None, "the broker hung up"
        return unpack(body)

    async def until_end(self) -> list[Message]:
        found = []
        async with asyncio.timeout(5):
            while (body := await self.connection.receive()) is not None:
                found.append(unpack(body))
        return found

    def submit(self, n: int, body: bytes, **fields: Any) -> None:
        message = {"op": "submit", "n": n, "env": b"E", "kernel": "k", "prio": 1, "body": body}
        self.send({**message, **fields})


class Place:
    """A broker that listens, and peers for it."""

    def __init__(self, broker: Broker, runner: FakeRunner, path: str) -> None:
        self.broker = broker
        self.runner = runner
        self._path = path
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self._path)
        self._writers.append(writer)
        return reader, writer

    async def connect(self) -> Peer:
        return Peer(StreamConnection(*await self.open()))

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
            await writer.wait_closed()

    async def greeted(self) -> Peer:
        peer = await self.connect()
        peer.send({"op": "hello", "wire": WIRE_VERSION, "pid": 1})
        assert (await peer.hear())["op"] == "welcome"
        peer.send({"op": "environment", "id": b"E", "spec": SPEC})
        return peer

    async def settle(self, peer: Peer) -> None:
        """Return when everything that the peer sent has been taken."""
        peer.send({"op": "ping"})
        assert (await peer.hear())["op"] == "pong"


def with_broker(
    tmp_path: Path, test: Callable[[Place], Awaitable[None]], automatic: bool = False
) -> None:
    async def main() -> None:
        runner = FakeRunner(automatic)
        broker = Broker(
            runner,
            slots=lambda: 2,
            keep_reproducer=lambda kernel, digest, text: f"/repro/{kernel}: {text}",
            validate=True,
        )
        tmp_path.chmod(0o700)
        listening = listen(tmp_path)

        serving = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving.append(asyncio.current_task())
            await broker.serve(StreamConnection(reader, writer))
            await writer.wait_closed()

        server = await asyncio.start_unix_server(accept, sock=listening)
        place = Place(broker, runner, listening.getsockname())
        try:
            await test(place)
        finally:
            server.close()
            await place.close()
            await asyncio.wait(serving, timeout=5)
            await broker.close()
            assert runner.closed and not broker.clients

    asyncio.run(main())


def test_result_reaches_every_asker(tmp_path: Path) -> None:
    """Two clients that ask for one kernel get one compile; the second is told that it joined."""

    async def test(place: Place) -> None:
        one, two = await place.greeted(), await place.greeted()
        one.submit(7, b"kernel")
        await place.settle(one)
        two.submit(9, b"kernel")
        await place.settle(two)
        place.broker.report(ev.Ready(b"E"))
        ((run, body),) = place.runner.started
        assert body == b"kernel"
        place.runner.finish(run)
        for peer, n, joined in ((one, 7, False), (two, 9, True)):
            assert (await peer.hear())["op"] == "keyed"
            done = await peer.hear()
            assert (done["op"], done["n"], done["joined"]) == ("done", n, joined)
            assert done["payload"] == b"artifact of kernel"

    with_broker(tmp_path, test)


def test_hundred_submits_are_one_run(tmp_path: Path) -> None:
    """A hundred simultaneous requests for one key compile once, and all are answered."""

    async def test(place: Place) -> None:
        peer = await place.greeted()
        for n in range(100):
            peer.submit(n, b"kernel")
        await place.settle(peer)
        place.broker.report(ev.Ready(b"E"))
        place.runner.finish(1)
        done = set()
        while len(done) < 100:
            message = await peer.hear()
            if message["op"] == "done":
                done.add(message["n"])
        assert len(place.runner.started) == 1

    with_broker(tmp_path, test)


def test_environments_do_not_mix(tmp_path: Path) -> None:
    """Equal requests of two environments are two compiles, each in its own."""

    async def test(place: Place) -> None:
        peer = await place.greeted()
        peer.send({"op": "environment", "id": b"F", "spec": SPEC})
        peer.submit(1, b"kernel")
        peer.submit(2, b"kernel", env=b"F")
        await place.settle(peer)
        place.broker.report(ev.Ready(b"E"))
        place.broker.report(ev.Ready(b"F"))
        assert [body for _, body in place.runner.started] == [b"kernel", b"kernel"]
        assert place.runner.prepared == [b"E", b"F"]

    with_broker(tmp_path, test)


def test_satisfied_client_ends_the_run(tmp_path: Path) -> None:
    """A client that finds the keyed kernel in its store releases it, and the run is killed."""

    async def test(place: Place) -> None:
        peer = await place.greeted()
        peer.submit(1, b"kernel")
        await place.settle(peer)
        place.broker.report(ev.Ready(b"E"))
        place.runner.key(1)
        assert (await peer.hear())["key"] == b"kernel".ljust(32, b".")
        peer.send({"op": "release", "n": 1, "satisfied": True})
        await place.settle(peer)
        assert place.runner.killed == [1]

    with_broker(tmp_path, test)


def test_gone_client_drops_its_queue(tmp_path: Path) -> None:
    """When a client's connection ends, what only it had queued is never started."""

    async def test(place: Place) -> None:
        one, two = await place.greeted(), await place.greeted()
        for n in range(10):
            one.submit(n, b"kernel %d" % n)
        await place.settle(one)
        place.broker.report(ev.Ready(b"E"))
        assert len(place.runner.started) == 2
        one.connection.close()
        while len(place.broker.clients) > 1:
            await place.settle(two)
        for run, _ in list(place.runner.started):
            place.runner.finish(run)
        assert len(place.runner.started) == 2
        assert place.broker.plan.snapshot()["dropped"] == 8

    with_broker(tmp_path, test)


def test_crash_names_its_reproducer(tmp_path: Path) -> None:
    """A kernel that kills two runs fails with stage, signal and the file that holds its TTIR."""

    async def test(place: Place) -> None:
        peer = await place.greeted()
        peer.submit(1, b"\x81\xa4text\xa4code")
        await place.settle(peer)
        place.broker.report(ev.Ready(b"E"))
        for run in (1, 2):
            place.broker.report(ev.Staged(run, "llir"))
            place.broker.report(ev.Died(run, signal=11))
        failure = Failure.from_wire((await peer.hear())["failure"])
        assert failure.reproducer == "/repro/k: code"
        assert "kernel k crashed the compiler twice (SIGSEGV in llir)" in failure.text()
        peer.submit(2, b"\x81\xa4text\xa4code")
        again = Failure.from_wire((await peer.hear())["failure"])
        assert again.repeated and again.reproducer == failure.reproducer

    with_broker(tmp_path, test)


@pytest.mark.parametrize("hello", [{"op": "hello", "wire": 99}, {"op": "submit"}])
def test_other_versions_are_refused(tmp_path: Path, hello: Message) -> None:
    """A peer of another version, or one that does not greet, is told why and cut off."""

    async def test(place: Place) -> None:
        peer = await place.connect()
        peer.send(hello)
        (refusal,) = await peer.until_end()
        assert refusal["op"] == "refuse" and f"version {WIRE_VERSION}" in refusal["why"]

    with_broker(tmp_path, test)


@pytest.mark.parametrize(
    "message",
    [{"op": "submit"}, {"no": "op"}, {"op": "raise", "n": 1}]
    + [{"op": "submit", "n": 1, "env": b"unknown", "kernel": "k", "prio": 1, "body": b""}],
)
def test_malformed_messages_end_one_connection(tmp_path: Path, message: Message) -> None:
    """A message that makes no sense costs its sender the connection, and nobody else anything."""

    async def test(place: Place) -> None:
        good, bad = await place.greeted(), await place.greeted()
        bad.send(message)
        assert (await bad.until_end())[-1]["op"] == "refuse"
        good.submit(1, b"kernel")
        ops = [(await good.hear())["op"] for _ in range(2)]
        assert ops == ["keyed", "done"]

    with_broker(tmp_path, test, automatic=True)


def test_bytes_of_another_protocol_end_the_connection(tmp_path: Path) -> None:
    """Somebody else's protocol on the socket is cut off."""

    async def test(place: Place) -> None:
        reader, writer = await place.open()
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(5):
            answer = await reader.read()
        assert b"refuse" in answer

    with_broker(tmp_path, test)


def test_bug_in_the_plan_is_fatal(tmp_path: Path) -> None:
    """An error inside the plan is reported to the host, which must not go on with it."""

    async def main() -> None:
        told: list[Exception] = []
        broker = Broker(FakeRunner(), slots=lambda: 1, fatal=told.append)
        with pytest.raises(KeyError):
            broker.handle(ev.Expected(b"never described"))
        assert isinstance(told[0], KeyError)
        await broker.close()

    asyncio.run(main())
