"""The real runner: one zygote process per toolchain and environment, one forked child per run.

A zygote is an own interpreter, started with exactly the environment of its jobs and a socket as
its standard input; zygote.py is its other side. It is a class of the broker's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import events as ev
from .errors import BadFrame, Failure
from .hosting import ENTRY
from .runner import FrontDone, Report, RunDone
from .wire import WIRE_VERSION, Frames, pack, unpack

#: One thread each: the machine's cores are shared out by the plan, not by libraries.
THREAD_VARIABLES = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: By priority. Compiles step back behind whoever traces, but not when a load waits for them: beside
#: other people's busy processes a nice compile hardly runs.
NICENESS = (0, 5, 5, 10)
#: What of a zygote's standard error is quoted.
LOG_TAIL = 2000


@dataclass(slots=True)
class Zygote:
    """A zygote as its runner sees it."""

    name: bytes
    process: subprocess.Popen[bytes]
    connection: socket.socket
    directory: Path
    writer: asyncio.StreamWriter | None = None
    #: Frames for a zygote whose streams are not open yet.
    early: list[bytes] = field(default_factory=list)
    #: Run -> pid of its child, which leads a process group; from "began" to the run's end.
    children: dict[int, int] = field(default_factory=dict)
    ready: bool = False
    #: Retired or discarded: what it says is of no interest.
    ended: bool = False


class ZygoteRunner:
    """Runner over zygotes; ``entry`` are the interpreter's arguments, ``scratch`` is private."""

    def __init__(
        self, scratch: Path, *, entry: Sequence[str] = ENTRY, run_bytes: int = 4 << 30
    ) -> None:
        self._scratch = scratch
        self._entry = tuple(entry)
        self._run_bytes = run_bytes
        self._report: Callable[[Report], None] = lambda report: None
        self._zygotes: dict[bytes, Zygote] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Every zygote whose process was not collected yet, the ended ones included.
        self._alive: list[Zygote] = []

    def listen(self, report: Callable[[Report], None]) -> None:
        """Take the callable that receives every report."""
        self._report = report

    def prepare(self, environment: bytes, spec: dict[str, Any]) -> None:
        """Start a zygote with the environment, interpreter and import roots of ``spec``."""
        try:
            zygote = self._spawn(environment, spec)
        except (OSError, KeyError, TypeError, ValueError, subprocess.SubprocessError) as error:
            self._report(ev.Unavailable(environment, f"{type(error).__name__}: {error}"))
            return
        self._zygotes[environment] = zygote
        self._send(
            zygote,
            {
                "op": "hello",
                "wire": WIRE_VERSION,
                "code": spec["code"],
                "toolchain": spec["toolchain"],
                "target": spec["target"],
                "run_bytes": self._run_bytes,
            },
        )
        self._spawn_task(self._read(zygote))

    def pids(self) -> set[int]:
        """Return the zygotes' process numbers: their ends are collected here."""
        return {zygote.process.pid for zygote in self._alive}

    def retire(self, environment: bytes) -> None:
        """Let an idle zygote end by itself: its input ends."""
        zygote = self._zygotes.pop(environment, None)
        if zygote is not None:
            zygote.ended = True
            self._spawn_task(self._bury(zygote))

    def discard(self, environment: bytes) -> None:
        """Kill a zygote and its children, and report it lost."""
        zygote = self._zygotes.pop(environment, None)
        if zygote is not None:
            self._kill_all(zygote)
            self._spawn_task(self._bury(zygote))
        self._report(ev.Lost(environment, "it did not answer"))

    def start(self, run: int, environment: bytes, body: bytes, priority: int) -> None:
        """Have a child forked for this request."""
        message = {"op": "run", "run": run, "body": body, "nice": NICENESS[priority]}
        self._send(self._zygotes[environment], message)

    def kill(self, run: int, environment: bytes) -> None:
        """Have a child's process group killed by its zygote, which knows whether it still lives."""
        zygote = self._zygotes.get(environment)
        if zygote is not None:
            self._send(zygote, {"op": "kill", "run": run})

    async def close(self) -> None:
        """End every zygote and wait for it."""
        for zygote in list(self._zygotes.values()):
            self._kill_all(zygote)
            self._spawn_task(self._bury(zygote))
        self._zygotes.clear()
        while self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)

    # -- one zygote ---------------------------------------------------------------------------

    def _spawn(self, environment: bytes, spec: dict[str, Any]) -> Zygote:
        directory = Path(tempfile.mkdtemp(prefix=f"zygote-{os.getpid()}-", dir=self._scratch))
        ours, theirs = socket.socketpair()
        try:
            environ = {**spec["environ"], **THREAD_VARIABLES, "TMPDIR": str(directory)}
            if spec["roots"]:
                environ["PYTHONPATH"] = os.pathsep.join(spec["roots"])
            with open(directory / "log", "wb") as log:
                process = subprocess.Popen(
                    [spec["python"], *self._entry],
                    env=environ,
                    cwd=directory,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            shutil.rmtree(directory, ignore_errors=True)
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        zygote = Zygote(environment, process, ours, directory)
        self._alive.append(zygote)
        return zygote

    def _send(self, zygote: Zygote, message: dict[str, Any]) -> None:
        if zygote.writer is None:
            zygote.early.append(pack(message))
        elif not zygote.writer.is_closing():
            zygote.writer.write(pack(message))

    async def _read(self, zygote: Zygote) -> None:
        """Report what a zygote says until it ends."""
        reason = trouble = ""
        reader, zygote.writer = await asyncio.open_connection(sock=zygote.connection)
        zygote.writer.writelines(zygote.early)
        frames = Frames()
        try:
            while data := await reader.read(1 << 18):
                for body in frames.feed(data):
                    if not zygote.ended:
                        reason = self._take(zygote, unpack(body)) or reason
                if reason:
                    break
        except (OSError, BadFrame, KeyError) as error:
            trouble = f"{type(error).__name__}: {error}"
        if zygote.ended:
            return
        del self._zygotes[zygote.name]
        self._kill_all(zygote)
        log = _tail(zygote.directory / "log")
        await self._bury(zygote)
        if zygote.ready:
            status = zygote.process.returncode
            self._report(ev.Lost(zygote.name, f"the zygote ended with status {status} {log}"))
        else:
            why = reason or log or trouble or "the zygote did not start"
            self._report(ev.Unavailable(zygote.name, why))

    def _take(self, zygote: Zygote, message: dict[str, Any]) -> str:
        """Turn one message into a report; returns why the zygote is of no use, if it says so."""
        op, run = message["op"], message.get("run", 0)
        if op in ("done", "rejected", "died"):
            zygote.children.pop(run, None)
        match op:
            case "ready":
                zygote.ready = True
                self._report(ev.Ready(zygote.name))
            case "unready":
                return str(message["why"])
            case "began":
                zygote.children[run] = message["pid"]
            case "stage":
                self._report(ev.Staged(run, message["stage"]))
            case "keyed":
                self._report(FrontDone(run, message["key"], message["parts"]))
            case "done":
                self._report(
                    RunDone(
                        run,
                        message["payload"],
                        message["started"],
                        message["finished"],
                        message["stages"],
                    )
                )
            case "rejected":
                self._report(ev.Rejected(run, Failure.from_wire(message["failure"])))
            case "died":
                self._report(
                    ev.Died(
                        run,
                        message["signal"],
                        message["exit_code"],
                        message["memory"],
                        message["log"],
                    )
                )
        return ""

    def _kill_all(self, zygote: Zygote) -> None:
        """Kill a zygote and, as its children's subprocesses outlive them, their whole groups."""
        zygote.ended = True
        with contextlib.suppress(ProcessLookupError):
            zygote.process.kill()
        for pid in zygote.children.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        zygote.children.clear()

    async def _bury(self, zygote: Zygote) -> None:
        """Close what belongs to a zygote, wait for its end, and kill it if that does not come."""
        if zygote.writer is not None:
            zygote.writer.close()
        else:
            zygote.connection.close()
        loop = asyncio.get_running_loop()
        patience = loop.time() + 2.0
        while zygote.process.poll() is None:
            if loop.time() > patience:
                with contextlib.suppress(ProcessLookupError):
                    zygote.process.kill()
            await asyncio.sleep(0.01)
        self._alive.remove(zygote)
        shutil.rmtree(zygote.directory, ignore_errors=True)

    def _spawn_task(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _tail(path: Path) -> str:
    try:
        return path.read_bytes()[-LOG_TAIL:].decode(errors="replace").strip()
    except OSError:
        return ""
