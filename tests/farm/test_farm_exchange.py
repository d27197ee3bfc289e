"""The client's thread alone: commands in, frames out, futures settled; the broker is a socket."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelfarm.compiler.seam.request import Artifact, KernelMetadata
from kernelfarm.farm.commands import (
    Cancelled,
    Close,
    Command,
    Environment,
    Heard,
    NoBroker,
    Raise,
    Submit,
    Up,
)
from kernelfarm.farm.errors import (
    FarmClosed,
    FarmUnavailable,
    KernelCrash,
    KernelLost,
    WireMismatch,
)
from kernelfarm.farm.exchange import Exchange
from kernelfarm.farm.future import FarmFuture
from kernelfarm.farm.launch import greet
from kernelfarm.farm.levels import EMITTED, SPECULATIVE, WAITING
from kernelfarm.farm.wire import Frames, Message, pack, pack_body, unpack

METADATA = KernelMetadata("k", 0, 4, 1, (1, 1, 1), 0, 0, 1, 0, 1, ())
ARTIFACT = Artifact(b"\x7fELFbinary", "cubin", METADATA, 8, 0, 0)


class Desk:
    """An exchange with both of its ends in hand; nothing runs until ``run`` is called."""

    def __init__(self) -> None:
        self.commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self.dropped: list[int] = []
        self.exchange = Exchange(self.commands, self.dropped.append)
        self.ours, self.theirs = socket.socketpair()
        self._frames = Frames()

    def submit(
        self, text: str, priority: int = EMITTED, on_keyed: Callable[..., Any] | None = None
    ) -> FarmFuture:
        future = FarmFuture(
            lambda found: self.commands.put(Raise((found,), WAITING)),
            lambda found: self.commands.put(Cancelled(found)),
        )
        request: Any = SimpleNamespace(to_wire=lambda: {"text": text}, entry=text)
        environment = Environment(b"E", {"python": "p"})
        self.commands.put(Submit(request, priority, environment, future, on_keyed))
        return future

    def up(self, generation: int = 1) -> None:
        self.commands.put(Up(generation, self.ours))

    def say(self, generation: int = 1, **message: Any) -> None:
        self.commands.put(Heard(generation, pack_body(message)))

    def done(self, n: int, **fields: Any) -> None:
        message = {"op": "done", "n": n, "key": b"K", "parts": [["a", b"1"]], "joined": False}
        times = {"started": 1.0, "finished": 2.0, "stages": {"llir": 1.0}}
        self.say(**{**message, **times, "payload": ARTIFACT.to_payload(), **fields})

    def run(self) -> list[Message]:
        """Take all commands and return what was sent to the broker."""
        while not self.commands.empty():
            self.exchange._take(self.commands.get())
        self.theirs.setblocking(False)
        try:
            return [unpack(body) for body in self._frames.feed(self.theirs.recv(1 << 20))]
        except BlockingIOError:
            return []


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.ours.close()
    made.theirs.close()


def test_what_is_pending_is_sent_when_there_is_a_connection(desk: Desk) -> None:
    """Requests wait for the broker, and are sent again to the next one; the environment first."""
    future = desk.submit("a")
    assert desk.run() == []
    desk.up()
    environment, submit = desk.run()
    assert (environment["op"], submit["op"], submit["kernel"]) == ("environment", "submit", "a")
    desk.up(2)
    assert [message["op"] for message in desk.run()] == ["environment", "submit"]
    desk.done(submit["n"])
    desk.run()
    assert not future.done(), "a frame of the connection before"
    desk.done(submit["n"], generation=2)
    desk.run()
    assert future.result(0).artifact == ARTIFACT


def test_equal_requests_of_one_process_are_one(desk: Desk) -> None:
    """Two submits of one text are one message; the second future is marked as joined."""
    one, two = desk.submit("a"), desk.submit("a", WAITING)
    desk.up()
    sent = desk.run()
    assert [message["op"] for message in sent] == ["environment", "submit"]
    assert sent[1]["prio"] == WAITING
    desk.done(sent[1]["n"])
    desk.run()
    assert (one.result(0).joined, two.result(0).joined) == (False, True)


def test_waiting_raises(desk: Desk) -> None:
    """Asking a future for its result makes its kernel urgent, once."""
    future = desk.submit("a", SPECULATIVE)
    desk.up()
    submit = desk.run()[-1]
    for _ in range(2):
        with pytest.raises(TimeoutError):
            future.result(0)
    assert desk.run() == [{"op": "raise", "n": submit["n"], "prio": WAITING}]


def test_last_cancel_releases(desk: Desk) -> None:
    """The broker hears of a cancel only when nobody in the process wants the kernel."""
    one, two = desk.submit("a"), desk.submit("a")
    desk.up()
    n = desk.run()[-1]["n"]
    assert one.cancel()
    assert desk.run() == []
    assert two.cancel()
    assert desk.run() == [{"op": "release", "n": n, "satisfied": False}]


def test_each_asker_looks_up_for_itself(desk: Desk) -> None:
    """One asker finds the kernel in its store, the other waits; only then is it released."""
    found = desk.submit("a", on_keyed=lambda key, parts: ARTIFACT)
    waits = desk.submit("a", on_keyed=lambda key, parts: None)
    desk.up()
    n = desk.run()[-1]["n"]
    desk.say(op="keyed", n=n, key=b"K", parts=[["a", b"1"]])
    assert desk.run() == []
    assert found.result(0).parts == (("a", b"1"),) and not waits.done()
    late = desk.submit("a", on_keyed=lambda key, parts: ARTIFACT)
    desk.run()
    assert late.result(0).artifact == ARTIFACT
    desk.done(n)
    desk.run()
    assert waits.result(0).started == 1.0


def test_look_up_that_fails_is_a_miss(desk: Desk) -> None:
    """An error in ``on_keyed`` is counted, and the compile goes on."""
    future = desk.submit("a", on_keyed=lambda key, parts: 1 / 0)
    desk.up()
    n = desk.run()[-1]["n"]
    desk.say(op="keyed", n=n, key=b"K", parts=[])
    desk.done(n)
    desk.run()
    assert future.result(0).artifact == ARTIFACT
    assert desk.exchange.counters["on_keyed_errors"] == 1


def test_failure_becomes_an_error(desk: Desk) -> None:
    """A failure that comes as data is raised as its class, naming kernel, stage and signal."""
    future = desk.submit("a")
    desk.up()
    failure = {"kind": "crash", "kernel": "a", "signal": 11, "stage": "ptx", "new field": 1}
    desk.say(op="failed", n=desk.run()[-1]["n"], failure=failure)
    desk.run()
    with pytest.raises(KernelCrash, match=r"kernel a crashed the compiler \(SIGSEGV in ptx\)"):
        future.result(0)


def test_artifact_that_does_not_decode_is_lost(desk: Desk) -> None:
    """Bytes that are no artifact are never handed out."""
    future = desk.submit("a")
    desk.up()
    desk.done(desk.run()[-1]["n"], payload=b"nonsense")
    desk.run()
    with pytest.raises(KernelLost, match="does not decode"):
        future.result(0)


def test_request_that_cannot_be_sent_fails_alone(desk: Desk) -> None:
    """A request with a value that has no wire form settles with that error."""
    future = desk.submit(object())  # type: ignore[arg-type]
    good = desk.submit("a")
    desk.up()
    desk.done(desk.run()[-1]["n"])
    desk.run()
    assert isinstance(future.exception(0), TypeError) and good.result(0)


def test_without_any_broker_all_fail_at_once(desk: Desk) -> None:
    """When no broker can be had, pending and later requests fail as unavailable."""
    before = desk.submit("a")
    desk.commands.put(NoBroker("no processes left"))
    after = desk.submit("b")
    desk.run()
    for future in (before, after):
        with pytest.raises(FarmUnavailable, match="no processes left"):
            future.result(0)


def test_send_to_a_dead_broker_asks_for_another(desk: Desk) -> None:
    """A connection that does not take a request is dropped; the request is kept."""
    desk.up()
    desk.run()
    desk.ours.shutdown(socket.SHUT_RDWR)
    future = desk.submit("a")
    while not desk.commands.empty():
        desk.exchange._take(desk.commands.get())
    assert desk.dropped == [1] and not future.done()


def test_close_settles_everything(desk: Desk) -> None:
    """A Close ends the loop and every future."""
    futures = [desk.submit("a"), desk.submit("b")]
    desk.commands.put(Close())
    desk.exchange.run()
    assert all(isinstance(future.exception(0), FarmClosed) for future in futures)


def test_broker_of_another_version_is_refused(tmp_path: Path) -> None:
    """A greeting of another wire version is an error that names both."""
    ours, theirs = socket.socketpair()
    answer = pack({"op": "refuse", "wire": 7, "why": "no"})
    thread = threading.Thread(target=lambda: theirs.sendall(answer))
    thread.start()
    with theirs, pytest.raises(WireMismatch, match="version 1, the peer 7"):
        greet(ours)
    thread.join()
