"""A broker's connection over asyncio streams: a Unix socket, or one end of a socket pair."""

from __future__ import annotations

import asyncio
from collections import deque

from .wire import Frames, Message, pack


class StreamConnection:
    """The Connection of broker.py over a reader and a writer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = Frames()
        self._bodies: deque[bytes] = deque()

    async def receive(self) -> bytes | None:
        """Return the next message's bytes, None at the end; raises BadFrame."""
        while not self._bodies:
            try:
                data = await self._reader.read(1 << 18)
            except OSError:
                return None
            if not data:
                return None
            self._bodies.extend(self._frames.feed(data))
        return self._bodies.popleft()

    def send(self, message: Message) -> None:
        """Queue a message; does nothing once the connection has ended."""
        if not self._writer.is_closing():
            self._writer.write(pack(message))

    def close(self) -> None:
        """End the connection after what was queued."""
        self._writer.close()
