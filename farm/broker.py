"""The broker: joins clients' messages, the plan and a runner; it has no policy of its own.

It is a class without a process: whoever hosts it hands it connections (``serve``), a clock and a
runner, and runs an event loop. The hosts are server.py, a thread of a client that found no shared
broker, and in part 3 a Ray actor. All methods are called on that loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from . import events as ev
from .errors import BadFrame, Failure
from .limits import Limits, usable_slots
from .plan import Plan
from .runner import FrontDone, Report, RunDone, Runner
from .wire import WIRE_VERSION, Message, unpack

#: How often the machine is asked anew how many compiles it has room for.
SLOTS_EVERY = 2.0


class Connection(Protocol):
    """A client as the broker sees it: whole messages in, whole messages out."""

    async def receive(self) -> bytes | None:
        """Return the next message's bytes, None at the end."""
        ...

    def send(self, message: Message) -> None:
        """Queue a message; does nothing once the connection has ended."""
        ...

    def close(self) -> None:
        """End the connection after what was queued."""
        ...


@dataclass(slots=True)
class Work:
    """What the broker keeps for one request digest while the plan knows it."""

    body: bytes
    kernel: str
    front: FrontDone | None = None
    done: RunDone | None = None
    run: int = 0


class Broker:
    """One per user and wire version; see the module's docstring."""

    def __init__(
        self,
        runner: Runner,
        *,
        clock: Callable[[], float] = time.monotonic,
        slots: Callable[[], int] = usable_slots,
        limits: Limits | None = None,
        keep_reproducer: Callable[[str, bytes, str], str] = lambda kernel, digest, text: "",
        fatal: Callable[[Exception], None] = lambda error: None,
        validate: bool = False,
    ) -> None:
        """Host ``runner``.

        ``keep_reproducer(kernel, digest, text)`` writes a file and returns its path. ``fatal`` is
        told of a bug in here: the host must then end, so that clients go elsewhere, not hang.
        """
        self.plan = Plan(clock, slots(), limits, validate=validate)
        self.clients: dict[int, Connection] = {}
        self._runner = runner
        self._clock = clock
        self._slots = slots
        self._keep_reproducer = keep_reproducer
        self._fatal = fatal
        self._client_number = 0
        self._work: dict[bytes, Work] = {}
        #: Run -> (request digest, environment), for every run whose end was not reported.
        self._runs: dict[int, tuple[bytes, bytes]] = {}
        #: Request digest -> path, for kernels that crashed or hung.
        self._reproducers: dict[bytes, str] = {}
        self._specs: dict[bytes, dict[str, Any]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pending: list[ev.Event] = []
        self._handling = False
        self._slots_checked = clock()
        runner.listen(self.report)

    # -- clients ------------------------------------------------------------------------------

    async def serve(self, connection: Connection) -> None:
        """Talk to one client until it goes; what only it wanted is then dropped."""
        self._client_number += 1
        number = self._client_number
        try:
            if not await self._greet(connection):
                return
            self.clients[number] = connection
            while (body := await connection.receive()) is not None:
                self._message(number, connection, unpack(body))
        except (BadFrame, KeyError, TypeError, ValueError) as error:
            connection.send(_refusal(f"{type(error).__name__}: {error}"))
        finally:
            self.clients.pop(number, None)
            connection.close()
            self.handle(ev.ClientGone(number))

    async def _greet(self, connection: Connection) -> bool:
        body = await connection.receive()
        if body is None:
            return False
        hello = unpack(body)
        if hello.get("op") != "hello" or hello.get("wire") != WIRE_VERSION:
            connection.send(
                _refusal(f"this broker speaks wire version {WIRE_VERSION}, not {hello.get('wire')}")
            )
            return False
        connection.send({"op": "welcome", "wire": WIRE_VERSION, "slots": self.plan.slots})
        return True

    def _message(self, client: int, connection: Connection, message: Message) -> None:
        match message["op"]:
            case "submit":
                self._submit(client, message)
            case "environment":
                self._specs[message["id"]] = message["spec"]
                self.handle(ev.Expected(message["id"]))
            case "raise":
                self.handle(ev.Raised((client, message["n"]), message["prio"]))
            case "release":
                self.handle(ev.Released((client, message["n"]), bool(message["satisfied"])))
            case "stats":
                data = {**self.plan.snapshot(), "clients": len(self.clients)}
                connection.send({"op": "stats", "n": message["n"], "data": data})
            case "ping":
                connection.send({"op": "pong"})

    def _submit(self, client: int, message: Message) -> None:
        body, environment, kernel = message["body"], message["env"], message["kernel"]
        if environment not in self._specs:
            raise ValueError("a request for an environment that was not described")
        # The environment is part of what is computed: it says which code runs the front half.
        digest = hashlib.sha256(environment + body).digest()
        self._work.setdefault(digest, Work(body, kernel))
        self.handle(
            ev.Wanted(
                (client, message["n"]), digest, environment, kernel, message["prio"], len(body)
            )
        )

    # -- the plan -----------------------------------------------------------------------------

    def handle(self, *events: ev.Event) -> None:
        """Feed the plan and carry out what it wants; events from within are taken in turn."""
        self._pending.extend(events)
        if self._handling:
            return
        self._handling = True
        try:
            while self._pending:
                taken, self._pending = self._pending, []
                for instruction in self.plan.handle(*taken):
                    self._carry_out(instruction)
        except Exception as error:
            self._fatal(error)
            raise
        finally:
            self._handling = False
        self._set_timer()

    def _carry_out(self, instruction: ev.Instruction) -> None:
        match instruction:
            case ev.Start(run, digest, environment, priority):
                work = self._work[digest]
                work.run = run
                self._runs[run] = (digest, environment)
                self._runner.start(run, environment, work.body, priority)
            case ev.Kill(run, environment, _):
                self._runner.kill(run, environment)
            case ev.TellKeyed(digest, interests):
                front = self._work[digest].front
                if front is not None:
                    told = {"op": "keyed", "key": front.key, "parts": front.parts}
                    for client, n in interests:
                        self._send(client, {**told, "n": n})
            case ev.Deliver(digest, interests_joined):
                self._deliver(self._work[digest], interests_joined)
            case ev.Fail(digest, interests, failure):
                self._fail(digest, interests, failure)
            case ev.Forget(digest):
                self._work.pop(digest, None)
            case ev.Prepare(environment):
                self._runner.prepare(environment, self._specs[environment])
            case ev.Retire(environment):
                self._runner.retire(environment)
            case ev.Discard(environment):
                self._runner.discard(environment)

    def _deliver(self, work: Work, interests: tuple[tuple[ev.Interest, bool], ...]) -> None:
        front, done = work.front, work.done
        if front is None or done is None:
            raise AssertionError(f"{work.kernel} is delivered without a result")
        message = {
            "op": "done",
            "key": front.key,
            "parts": front.parts,
            "payload": done.payload,
            "started": done.started,
            "finished": done.finished,
            "stages": done.stages,
        }
        for (client, n), joined in interests:
            self._send(client, {**message, "n": n, "joined": joined})

    def _fail(self, digest: bytes, interests: tuple[ev.Interest, ...], failure: Failure) -> None:
        data = failure.to_wire()
        work = self._work.get(digest)
        if work is not None and failure.kind in ("crash", "timeout", "memory"):
            if not failure.repeated or digest not in self._reproducers:
                front = work.front
                name = digest if front is None else front.key
                text = _request_text(work.body) if front is None else _ttir(front)
                self._reproducers[digest] = self._keep_reproducer(work.kernel, name, text)
            data["reproducer"] = self._reproducers[digest]
        for client, n in interests:
            self._send(client, {"op": "failed", "n": n, "failure": data})

    def _send(self, client: int, message: Message) -> None:
        connection = self.clients.get(client)
        if connection is not None:
            connection.send(message)

    # -- the runner ---------------------------------------------------------------------------

    def report(self, report: Report) -> None:
        """Take what the runner says."""
        match report:
            case FrontDone(run, key, _):
                work = self._of_run(run)
                if work is not None:
                    work.front = report
                    self.handle(ev.Keyed(run, key))
            case RunDone(run, payload, started, finished, _):
                work = self._of_run(run, ended=True)
                if work is not None:
                    work.done = report
                self.handle(ev.Succeeded(run, len(payload), finished - started))
            case ev.Rejected(run, _) | ev.Died(run):
                self._of_run(run, ended=True)
                self.handle(report)
            case ev.Lost(environment, _):
                for run in [n for n, (_, where) in self._runs.items() if where == environment]:
                    del self._runs[run]
                self.handle(report)
            case _:
                self.handle(report)

    def _of_run(self, run: int, ended: bool = False) -> Work | None:
        """Return the work that a run is the latest attempt at."""
        found = self._runs.pop(run, None) if ended else self._runs.get(run)
        work = None if found is None else self._work.get(found[0])
        return work if work is not None and work.run == run else None

    # -- time ---------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.001, self.plan.next_wakeup() - self._clock())
        self._timer = asyncio.get_running_loop().call_later(min(delay, SLOTS_EVERY), self._tick)

    def _tick(self) -> None:
        now = self._clock()
        events: list[ev.Event] = [ev.Tick()]
        if now - self._slots_checked >= SLOTS_EVERY and not self.plan.idle():
            self._slots_checked = now
            slots = self._slots()
            if slots != self.plan.slots:
                events.append(ev.SlotsChanged(slots))
        self.handle(*events)

    async def close(self) -> None:
        """End every connection and everything that the runner started."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.clients.values()):
            connection.close()
        await self._runner.close()


def _refusal(why: str) -> Message:
    return {"op": "refuse", "wire": WIRE_VERSION, "why": why}


def _ttir(front: FrontDone) -> str:
    return next((bytes(value).decode() for name, value in front.parts if name == "ttir"), "")


def _request_text(body: bytes) -> str:
    """Return the text of a request whose front half never finished."""
    request = unpack(body)
    return str(request.get("text") or request.get("ttir") or "")
