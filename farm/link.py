"""The client's other thread: it gets a connection to a broker and reads from it.

First the user's shared broker; if that dies, once more; if that dies too or cannot be had, a
broker of this process alone; if that is impossible, none, and pending requests fail as
unavailable.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable

from .commands import Command, Down, Heard, NoBroker, Up
from .errors import BadFrame, FarmError
from .hosting import ServerOptions
from .launch import broker_connection
from .wire import Frames

#: Deaths of a broker longer ago than this do not count against the next.
FORGIVE_SECONDS = 300.0
#: A broker that does not take a request for so long is stopped or wedged.
SEND_SECONDS = 5


class Link:
    """Connects, reads and reconnects, until closed."""

    def __init__(
        self,
        commands: queue.SimpleQueue[Command],
        options: ServerOptions,
        notice: Callable[[str], None],
    ) -> None:
        self._commands = commands
        self._options = options
        self._notice = notice
        self._closed = threading.Event()
        self._generation = 0
        self._connection: socket.socket | None = None
        self._deaths: list[float] = []
        self._private = False
        self.broker_deaths = 0
        self.fallbacks = 0

    def run(self) -> None:
        """Serve until closed, or until no broker can be had."""
        while not self._closed.is_set():
            try:
                connection = self._connect()
            except Exception as error:
                # Whatever it is, those who wait must hear of it.
                if not self._closed.is_set():
                    self._commands.put(NoBroker(f"{type(error).__name__}: {error}"))
                return
            self._generation += 1
            self._connection = connection
            if self._closed.is_set():
                self.drop(self._generation)
            self._commands.put(Up(self._generation, connection))
            self._read(connection)
            self._connection = None
            self._commands.put(Down(self._generation))
            connection.close()
            if not self._closed.is_set():
                self.broker_deaths += 1
                self._deaths.append(time.monotonic())

    def drop(self, generation: int) -> None:
        """End a connection; its reader then goes for another."""
        connection = self._connection
        if connection is not None and generation == self._generation:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End for good."""
        self._closed.set()
        self.drop(self._generation)

    def abandon(self) -> None:
        """In a forked child: close our copy of the connection without ending the parent's."""
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> socket.socket:
        recent = [at for at in self._deaths if time.monotonic() - at < FORGIVE_SECONDS]
        if self._private and len(recent) > 3:
            raise FarmError(f"brokers died {len(recent)} times")
        reason = "it died twice"
        if not self._private and len(recent) < 2:
            try:
                return _with_patience(broker_connection(self._options, self._closed.is_set))
            except (FarmError, OSError) as error:
                reason = str(error)
        if not self._private and not self._closed.is_set():
            self._private = True
            self.fallbacks += 1
            self._notice(
                f"kernelfarm: no shared broker ({reason}); this process compiles with its own, "
                "and shares no compile with others"
            )
        from .alone import PrivateBroker

        return _with_patience(PrivateBroker(self._options).connect())

    def _read(self, connection: socket.socket) -> None:
        frames = Frames()
        try:
            while data := connection.recv(1 << 18):
                for body in frames.feed(data):
                    self._commands.put(Heard(self._generation, body))
        except (OSError, BadFrame):
            return


def _with_patience(connection: socket.socket) -> socket.socket:
    """Bound the time of a send alone: reads may wait for ever."""
    seconds = struct.pack("ll", SEND_SECONDS, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
    return connection
