"""The plain process that hosts a user's broker.

    python -P -m kernelfarm.farm.server OPTIONS     OPTIONS: ServerOptions as JSON

It is started by the first client (launch.py), leaves its session, holds a lock for its whole life
so that there is one per directory and wire version, and ends some time after its last client.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

from .broker import Broker
from .hosting import ServerOptions
from .places import address, peer_uid, private_directory, scratch_directory, socket_path
from .streams import StreamConnection
from .wire import WIRE_VERSION
from .zygotes import ZygoteRunner

_PR_SET_CHILD_SUBREAPER = 36
#: So many reproducers are kept, the newest.
REPRODUCERS = 100


class Server:
    """One broker behind a listening socket."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._directory = Path(options.directory)
        self._tasks: set[asyncio.Task[None]] = set()
        self._alone_since = time.monotonic()
        self._stop = asyncio.Event()

    async def run(self, listening: socket.socket) -> None:
        """Serve until told to stop, out of reach, or without a client for ``idle`` seconds."""
        limits = self._options.make_limits()
        scratch = scratch_directory(self._directory / "scratch")
        sweep(scratch)
        self._runner = ZygoteRunner(scratch, entry=self._options.entry, run_bytes=limits.run_bytes)
        self._broker = Broker(
            self._runner,
            slots=self._options.slot_count,
            limits=limits,
            keep_reproducer=keep_reproducer,
            fatal=_die,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        server = await asyncio.start_unix_server(self._accept, sock=listening)
        try:
            while not self._stop.is_set() and not self._expired():
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), min(1.0, self._options.idle / 4))
        finally:
            # Whoever is in the backlog sees the connection reset and starts another broker.
            socket_path(self._directory).unlink(missing_ok=True)
            server.close()
            await self._broker.close()

    def _expired(self) -> bool:
        now = time.monotonic()
        if self._tasks:
            self._alone_since = now
        elif not socket_path(self._directory).exists():
            return True  # nobody can find this broker any more: its directory was removed
        return now - self._alone_since > self._options.idle

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("socket")
        if peer_uid(peer) != os.getuid():
            writer.close()
            return
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await self._broker.serve(StreamConnection(reader, writer))

    def _reap(self) -> None:
        """Collect what dead zygotes left behind; zygotes themselves are their runner's."""
        mine = self._runner.pids()
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if found.si_pid in mine:
                    asyncio.get_running_loop().call_later(0.05, self._reap)
                    return
                os.waitpid(found.si_pid, os.WNOHANG)


def keep_reproducer(kernel: str, digest: bytes, text: str) -> str:
    """Write a kernel that the compiler died of below the user's cache; "" if that fails."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "kernelfarm" / "repro"
    path = directory / f"{kernel}-{digest.hex()[:12]}.ttir"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(text)
        temporary.replace(path)
        files = sorted(directory.glob("*.ttir"), key=lambda found: found.stat().st_mtime)
        for old in files[:-REPRODUCERS]:
            old.unlink(missing_ok=True)
    except OSError:
        return ""
    return str(path)


def sweep(scratch: Path) -> None:
    """Remove the directories of zygotes whose brokers are gone."""
    for path in scratch.glob("zygote-*-*"):
        number = path.name.split("-")[1]
        if number.isdigit() and not Path(f"/proc/{number}").exists():
            shutil.rmtree(path, ignore_errors=True)


def listen(directory: Path) -> socket.socket:
    """Bind the broker's socket, for this user alone; the caller holds the lock."""
    path = socket_path(directory)
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with address(path) as name:
            listening.bind(name)
    finally:
        os.umask(before)
    listening.listen(512)
    listening.setblocking(False)
    return listening


def main(arguments: list[str]) -> int:
    """Host a broker, unless another process does; returns at once in the parent."""
    options = ServerOptions.from_json(arguments[0])
    directory = private_directory(Path(options.directory))
    # Python opens files so that zygotes do not inherit them: the lock ends with this process.
    lock = os.open(directory / f"broker-w{WIRE_VERSION}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    # The starter waits for its child, which is this parent: a broker is nobody's child.
    if os.fork():
        os._exit(0)
    os.truncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())  # for people and for tests
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    listening = listen(directory)

    async def serve() -> None:
        await Server(options).run(listening)

    asyncio.run(serve())
    return 0


def _die(error: Exception) -> None:
    """End after a bug in the plan: clients then start another broker, or do without."""
    traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(70)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
