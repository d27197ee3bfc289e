"""Finds the user's broker or starts it, so that any number of starters get exactly one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import FarmUnavailable, WireMismatch
from .hosting import ServerOptions
from .places import connect, import_roots, private_directory, socket_path
from .wire import WIRE_VERSION, Frames, pack, unpack

#: Seconds for a broker to come up on a busy machine, and for a greeting.
START_SECONDS = 15.0
GREET_SECONDS = 5.0
#: Variables that a broker has, and a zygote beside those that change code generation. Those come
#: with each job, so that nothing of the first client reaches another client's kernels.
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "XDG_CACHE_HOME", "LD_LIBRARY_PATH")


def broker_connection(
    options: ServerOptions, stopped: Callable[[], bool] = lambda: False
) -> socket.socket:
    """Return a greeted connection to the user's broker, which is started if there is none.

    Raises UnsafeDirectory, WireMismatch, FarmUnavailable; gives up early when ``stopped``.
    """
    directory = private_directory(Path(options.directory))
    deadline = time.monotonic() + START_SECONDS
    reason = "no broker came up in time"
    while time.monotonic() < deadline and not stopped():
        try:
            return greet(connect(socket_path(directory), GREET_SECONDS))
        except PermissionError as error:
            raise FarmUnavailable(str(error)) from None
        except TimeoutError:
            raise FarmUnavailable("the broker does not answer") from None
        except OSError as error:
            reason = f"no broker came up in time ({error})"
        with _start_lock(directory) as ours:
            if ours:
                _start(options)
                _await_socket(directory, deadline, stopped)
            else:
                time.sleep(0.01)
    raise FarmUnavailable(reason)


def greet(connection: socket.socket) -> socket.socket:
    """Exchange hello and welcome; raises WireMismatch or OSError, and then closes."""
    try:
        connection.sendall(pack({"op": "hello", "wire": WIRE_VERSION, "pid": os.getpid()}))
        frames = Frames()
        bodies: list[bytes] = []
        while not bodies:
            data = connection.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the broker ended before its greeting")
            bodies = frames.feed(data)
        answer = unpack(bodies[0])
        if answer.get("op") != "welcome" or answer.get("wire") != WIRE_VERSION:
            raise WireMismatch(WIRE_VERSION, answer.get("wire"))
    except BaseException:
        connection.close()
        raise
    connection.settimeout(None)
    return connection


@contextlib.contextmanager
def _start_lock(directory: Path) -> Iterator[bool]:
    """Hold the right to start a broker, if nobody else has it."""
    with open(directory / f"start-w{WIRE_VERSION}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _start(options: ServerOptions) -> None:
    environ = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    roots = import_roots()
    if roots:
        environ["PYTHONPATH"] = os.pathsep.join(roots)
    module = __name__.rpartition(".")[0] + ".server"
    log = Path(options.directory) / f"broker-w{WIRE_VERSION}.log"
    try:
        with open(log, "ab") as errors:
            if errors.tell() > 1 << 20:
                errors.truncate(0)
            started = subprocess.run(
                [sys.executable, "-P", "-m", module, options.to_json()],
                env=environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                timeout=START_SECONDS,
                check=False,
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise FarmUnavailable(f"the broker cannot be started: {error}") from None
    if started.returncode:
        raise FarmUnavailable(f"the broker ended with status {started.returncode}, see {log}")


def _await_socket(directory: Path, deadline: float, stopped: Callable[[], bool]) -> None:
    """Wait until something listens; the greeting is the caller's."""
    while time.monotonic() < deadline and not stopped():
        try:
            connect(socket_path(directory), GREET_SECONDS).close()
            return
        except OSError:
            time.sleep(0.005)
