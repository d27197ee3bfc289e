"""A broker of this process alone, for when there is no shared one: a thread with an event loop.

The compiles still run in a zygote's children; only the broker's little work is done here.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path

from .broker import Broker
from .errors import FarmUnavailable
from .hosting import ServerOptions
from .launch import greet
from .places import private_directory, scratch_directory
from .server import keep_reproducer, sweep
from .streams import StreamConnection
from .zygotes import ZygoteRunner


class PrivateBroker:
    """Hosts a broker on a daemon thread; ``connect`` gives a greeted connection to it."""

    def __init__(self, options: ServerOptions) -> None:
        """Start it; raises UnsafeDirectory or FarmUnavailable when it cannot be."""
        import tempfile

        fallback = private_directory(Path(tempfile.gettempdir()) / f"kernelfarm-{os.getuid()}-tmp")
        self._scratch = scratch_directory(fallback)
        self._options = options
        self._ours, self._theirs = socket.socketpair()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kernelfarm-broker", daemon=True)
        self._thread.start()

    def connect(self) -> socket.socket:
        """Return the connection; there is one, and when it ends the broker does."""
        self._ours.settimeout(5.0)
        try:
            return greet(self._ours)
        except OSError as error:
            raise FarmUnavailable(f"the broker of this process does not answer: {error}") from None

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._theirs.close()
            self._loop.close()

    async def _serve(self) -> None:
        limits = self._options.make_limits()
        sweep(self._scratch)
        runner = ZygoteRunner(self._scratch, entry=self._options.entry, run_bytes=limits.run_bytes)
        broker = Broker(
            runner,
            limits=limits,
            keep_reproducer=keep_reproducer,
            slots=self._options.slot_count,
            fatal=self._hang_up,
        )
        self._theirs.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=self._theirs)
        try:
            await broker.serve(StreamConnection(reader, writer))
        finally:
            await broker.close()

    def _hang_up(self, error: Exception) -> None:
        """After a bug: end the connection, so that the client does not wait for answers."""
        self._theirs.shutdown(socket.SHUT_RDWR)
