"""The client's thread: it owns all pending requests, so that nothing needs a lock.

Everything reaches it through one queue: submits and raises from callers, frames and the state of
the connection from the link. It sends to the broker and settles futures.
"""

from __future__ import annotations

import hashlib
import queue
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..compiler.seam.request import Artifact, KeyParts
from .commands import (
    Call,
    Cancelled,
    Close,
    Command,
    Down,
    Environment,
    Heard,
    NoBroker,
    OnKeyed,
    Prepare,
    Raise,
    Submit,
    Up,
)
from .errors import Failure, FarmClosed, FarmError, FarmUnavailable
from .future import FarmFuture, FarmResult
from .wire import Message, pack, pack_body, unpack

#: The broker is asked for a sign of life so often while requests are pending, and given up after.
PING_SECONDS = 2.0
SILENCE_SECONDS = 20.0


@dataclass(slots=True)
class Wish:
    """One future of an entry."""

    future: FarmFuture
    on_keyed: OnKeyed | None
    joined: bool


@dataclass(slots=True)
class Entry:
    """One pending request of this process; equal requests share it."""

    number: int
    digest: bytes
    body: bytes
    kernel: str
    environment: Environment
    priority: int
    wishes: list[Wish] = field(default_factory=list)
    #: Digest and parts of its kernel key, once the broker told them.
    key: tuple[bytes, KeyParts] | None = None


class Exchange:
    """The thread's state and loop; ``drop(generation)`` makes the link give a connection up."""

    def __init__(self, commands: queue.SimpleQueue[Command], drop: Callable[[int], None]) -> None:
        self._commands = commands
        self._drop = drop
        self.counters: Counter[str] = Counter()
        self._entries: dict[int, Entry] = {}
        self._by_digest: dict[bytes, Entry] = {}
        self._by_future: dict[FarmFuture, Entry] = {}
        self._environments: dict[bytes, Environment] = {}
        #: Those that the present connection was told about.
        self._told: set[bytes] = set()
        self._connection: socket.socket | None = None
        self._generation = 0
        self._number = 0
        self._heard = 0.0
        self._pinged = 0.0
        self._hopeless = ""
        self._waiting_stats: dict[int, Callable[[dict[str, Any]], None]] = {}

    def run(self) -> None:
        """Serve the queue until a Close."""
        while True:
            try:
                command = self._commands.get(timeout=PING_SECONDS if self._entries else None)
            except queue.Empty:
                self._look_after_broker()
                continue
            if isinstance(command, Close):
                self._settle_all(FarmClosed("the farm's client was closed"))
                return
            self._take(command)
            if self._entries:
                self._look_after_broker()

    def _take(self, command: Command) -> None:
        match command:
            case Heard(generation, body):
                if generation == self._generation:
                    self._heard = time.monotonic()
                    self._message(unpack(body))
            case Submit():
                self._submit(command)
            case Prepare(environment):
                self._introduce(environment)
            case Raise(futures, priority):
                for future in futures:
                    self._raise(future, priority)
            case Cancelled(future):
                self._cancelled(future)
            case Up(generation, connection):
                self._up(generation, connection)
            case Down(generation):
                if generation == self._generation:
                    self._connection = None
            case NoBroker(reason):
                self._hopeless = reason
                self._settle_all(FarmUnavailable(reason))
            case Call(function):
                function()

    # -- callers ------------------------------------------------------------------------------

    def _submit(self, command: Submit) -> None:
        self.counters["submitted"] += 1
        if self._hopeless:
            self._settle(command.future, FarmUnavailable(self._hopeless))
            return
        try:
            body = pack_body(command.request.to_wire())
        except Exception as error:
            # Whatever a request holds that cannot be sent is its submitter's to know.
            self._settle(command.future, error)
            return
        digest = hashlib.sha256(command.environment.id + body).digest()
        entry = self._by_digest.get(digest)
        if entry is None:
            self._number += 1
            entry = Entry(
                self._number,
                digest,
                body,
                command.request.entry,
                command.environment,
                command.priority,
            )
            self._entries[entry.number] = self._by_digest[digest] = entry
            self._send_entry(entry)
        else:
            self.counters["joined_here"] += 1
            self._raise_entry(entry, command.priority)
        entry.wishes.append(Wish(command.future, command.on_keyed, bool(entry.wishes)))
        self._by_future[command.future] = entry
        if entry.key is not None:
            self._keyed(entry, *entry.key)

    def _raise(self, future: FarmFuture, priority: int) -> None:
        entry = self._by_future.get(future)
        if entry is not None:
            self._raise_entry(entry, priority)

    def _raise_entry(self, entry: Entry, priority: int) -> None:
        if priority < entry.priority:
            entry.priority = priority
            self._send({"op": "raise", "n": entry.number, "prio": priority})

    def _cancelled(self, future: FarmFuture) -> None:
        entry = self._by_future.pop(future, None)
        if entry is None:
            return
        self.counters["cancelled"] += 1
        entry.wishes = [wish for wish in entry.wishes if wish.future is not future]
        if not entry.wishes:
            self._drop_entry(entry)
            self._send({"op": "release", "n": entry.number, "satisfied": False})

    # -- the connection -----------------------------------------------------------------------

    def _up(self, generation: int, connection: socket.socket) -> None:
        self._generation, self._connection = generation, connection
        self._heard = self._pinged = time.monotonic()
        self._told.clear()
        self._waiting_stats.clear()
        self.counters["connections"] += 1
        for environment in list(self._environments.values()):
            self._introduce(environment)
        for entry in list(self._entries.values()):
            self._send_entry(entry)

    def _introduce(self, environment: Environment) -> None:
        self._environments[environment.id] = environment
        if environment.id in self._told or self._connection is None:
            return
        self._told.add(environment.id)
        self._send({"op": "environment", "id": environment.id, "spec": environment.spec})

    def _send_entry(self, entry: Entry) -> None:
        self._introduce(entry.environment)
        self._send(
            {
                "op": "submit",
                "n": entry.number,
                "env": entry.environment.id,
                "kernel": entry.kernel,
                "prio": entry.priority,
                "body": entry.body,
            }
        )

    def _send(self, message: Message) -> None:
        if self._connection is None:
            return  # all that is pending is sent again when there is one
        try:
            self._connection.sendall(pack(message))
        except OSError:
            self._connection = None
            self._drop(self._generation)

    def _look_after_broker(self) -> None:
        """Give up a broker that is connected and silent: stopped, or wedged by a bug."""
        now = time.monotonic()
        if self._connection is None or now - self._pinged < PING_SECONDS:
            return
        self._pinged = now
        if now - self._heard > SILENCE_SECONDS:
            self.counters["silences"] += 1
            self._connection = None
            self._drop(self._generation)
            return
        self._send({"op": "ping"})

    # -- the broker ---------------------------------------------------------------------------

    def _message(self, message: Message) -> None:
        if message.get("op") == "stats":
            answer = self._waiting_stats.pop(message["n"], None)
            if answer is not None:
                answer(message["data"])
            return
        if message.get("op") == "refuse":
            # A request that the broker cannot read would be refused again by the next one.
            self._settle_all(FarmUnavailable(f"the broker refused a message: {message['why']}"))
            return
        entry = self._entries.get(message.get("n", 0))
        if entry is None:
            return
        match message["op"]:
            case "keyed":
                self._keyed(entry, message["key"], _parts(message["parts"]))
            case "done":
                self._done(entry, message)
            case "failed":
                self._drop_entry(entry)
                failure = Failure.from_wire(message["failure"])
                self.counters[f"failed_{failure.kind}"] += 1
                for wish in entry.wishes:
                    self._settle(wish.future, failure.to_error())

    def _keyed(self, entry: Entry, key: bytes, parts: KeyParts) -> None:
        """Let callers look the kernel up in their store while it compiles."""
        entry.key = (key, parts)
        left = []
        for wish in entry.wishes:
            artifact = None
            if wish.on_keyed is not None:
                try:
                    artifact = wish.on_keyed(key, parts)
                except Exception:
                    # A look-up that fails is a miss; the compile goes on.
                    self.counters["on_keyed_errors"] += 1
            if artifact is None:
                wish.on_keyed = None
                left.append(wish)
                continue
            self.counters["satisfied"] += 1
            self._by_future.pop(wish.future, None)
            self._settle(wish.future, FarmResult(key, parts, artifact, wish.joined))
        entry.wishes = left
        if not left:
            self._drop_entry(entry)
            self._send({"op": "release", "n": entry.number, "satisfied": True})

    def _done(self, entry: Entry, message: Message) -> None:
        self._drop_entry(entry)
        try:
            artifact = Artifact.from_payload(message["payload"])
        except Exception as error:
            failure = Failure("lost", entry.kernel, log=f"its artifact does not decode: {error}")
            for wish in entry.wishes:
                self._settle(wish.future, failure.to_error())
            return
        self.counters["joined" if message["joined"] else "compiled"] += 1
        for wish in entry.wishes:
            result = FarmResult(
                message["key"],
                _parts(message["parts"]),
                artifact,
                wish.joined or message["joined"],
                message["started"],
                message["finished"],
                message["stages"],
            )
            self._settle(wish.future, result)

    def ask_stats(self, answer: Callable[[dict[str, Any]], None]) -> None:
        """Ask the broker for its counters; called on this thread."""
        self._number += 1
        self._waiting_stats[self._number] = answer
        self._send({"op": "stats", "n": self._number})

    # -- settling -----------------------------------------------------------------------------

    def _drop_entry(self, entry: Entry) -> None:
        self._entries.pop(entry.number, None)
        if self._by_digest.get(entry.digest) is entry:
            del self._by_digest[entry.digest]
        for wish in entry.wishes:
            self._by_future.pop(wish.future, None)

    def _settle_all(self, error: FarmError) -> None:
        for entry in list(self._entries.values()):
            self._drop_entry(entry)
            for wish in entry.wishes:
                self._settle(wish.future, error)

    def _settle(self, future: FarmFuture, outcome: FarmResult | Exception) -> None:
        if not future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, FarmResult):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)


def _parts(pairs: Sequence[Sequence[Any]]) -> KeyParts:
    return tuple((name, value) for name, value in pairs)
