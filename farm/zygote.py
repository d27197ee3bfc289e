"""The zygote: a warm, single-threaded compiler process that forks one child per kernel.

    python -P -m kernelfarm.farm.zygote      with the broker's socket as standard input

It loads the compiler once, compiles one small kernel, and then waits in one poll loop. A child
leads a process group of its own (a kill reaches ptxas too), dies with the zygote, has a private
directory in memory for temporary files, and writes to a pipe that the zygote passes on. A child
that ends in any other way than by a result is reported as died; nothing here outlives the broker.

It must stay single-threaded: a forked child has only the thread that forked it, and whatever lock
another one held would stay held for ever. The count is checked after the warm-up.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..compiler.seam.target import Target
from ..compiler.seam.toolchain import Toolchain, current_toolchain
from .child import OUT_OF_MEMORY, perform
from .errors import WireMismatch
from .places import code_signature
from .warmup import warm_up
from .wire import WIRE_VERSION, Frames, Message, frame, pack, unpack

#: What a child runs: (run, body, toolchain, pipe); it exits with status 0 when this returns.
Perform = Callable[[int, bytes, Toolchain, int], None]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
#: How often children's memory is looked at, in milliseconds.
WATCH_MS = 100
LOG_TAIL = 4000
REAPS = 10

_prctl = ctypes.CDLL(None, use_errno=True).prctl


@dataclass(slots=True)
class Child:
    """A child of the zygote, which has exactly one until its end is reported."""

    run: int
    pid: int
    pipe: int
    directory: Path
    frames: Frames = field(default_factory=Frames)
    #: A result went through: its end is no news.
    settled: bool = False
    over_memory: bool = False


class Zygote:
    """The loop; ``broker`` is the socket to the broker."""

    def __init__(self, broker: socket.socket, perform_run: Perform) -> None:
        self._broker = broker
        self._perform = perform_run
        self._children: dict[int, Child] = {}  # by pipe
        self._frames = Frames()
        self._toolchain: Toolchain | None = None
        self._run_bytes = 4 << 30
        #: So many more rounds orphans are looked for: they die a moment after the kill.
        self._reaps = 0
        self._poll = select.poll()
        self._poll.register(broker, select.POLLIN)
        self._here = Path.cwd()

    def serve(self) -> None:
        """Serve until the broker goes."""
        answer = self._prepare(self._receive_hello())
        self._tell(answer)
        if answer["op"] != "ready":
            return
        try:
            while self._step():
                pass
        finally:
            for child in list(self._children.values()):
                _kill_group(child.pid)
            _reap()

    def _receive_hello(self) -> Message:
        while True:
            data = self._broker.recv(1 << 16)
            if not data:
                raise SystemExit(0)
            bodies = self._frames.feed(data)
            if bodies:
                for body in bodies[1:]:
                    raise SystemExit(f"a request before the zygote was ready: {len(body)} bytes")
                return unpack(bodies[0])

    def _prepare(self, hello: Message) -> Message:
        """Check the toolchain and load the compiler; returns "ready" or why not."""
        started = time.monotonic()
        try:
            if hello.get("wire") != WIRE_VERSION:
                raise WireMismatch(WIRE_VERSION, hello.get("wire"))
            if hello["code"] != code_signature():
                raise RuntimeError("kernelfarm was replaced on disk since its client started")
            identity, parts, local = hello["toolchain"]
            asked = Toolchain(identity, tuple((name, value) for name, value in parts), local)
            target = Target(*hello["target"])
            self._run_bytes = hello["run_bytes"]
            self._toolchain = current_toolchain(target, identity)
            if asked != self._toolchain:
                names = ", ".join(name for name, _, _ in asked.differences(self._toolchain))
                raise RuntimeError(f"the compiler here is not the one asked for: {names} differ")
            warm_up(target, self._toolchain)
            if "torch" in sys.modules:
                raise RuntimeError("the zygote has loaded torch, and its threads with it")
            threads = _threads()
            if threads != 1:
                raise RuntimeError(f"the zygote has {threads} threads and cannot fork safely")
        except Exception as error:
            return {"op": "unready", "why": f"{type(error).__name__}: {error}"}
        gc.collect()
        gc.freeze()  # a collection in a child would touch, and so copy, every page
        return {"op": "ready", "seconds": time.monotonic() - started}

    def _step(self) -> bool:
        """Wait for the broker or a child, and serve it; False when the broker is gone."""
        if self._reaps:
            self._reaps -= 1
            _reap([child.pid for child in self._children.values()])
        ready = self._poll.poll(WATCH_MS if self._children or self._reaps else None)
        for descriptor, _ in ready:
            if descriptor == self._broker.fileno():
                data = self._broker.recv(1 << 20)
                if not data:
                    return False
                for body in self._frames.feed(data):
                    self._obey(unpack(body))
            elif descriptor in self._children:
                self._hear(self._children[descriptor])
        for child in self._children.values():
            if not child.over_memory and _memory(child.pid) > self._run_bytes:
                child.over_memory = True
                _kill_group(child.pid)
        return True

    def _obey(self, message: Message) -> None:
        match message["op"]:
            case "run":
                self._fork(message["run"], message["body"], message["nice"])
            case "kill":
                for child in self._children.values():
                    if child.run == message["run"]:
                        _kill_group(child.pid)

    def _fork(self, run: int, body: bytes, nice: int) -> None:
        directory = self._here / f"run-{run}"
        try:
            directory.mkdir(mode=0o700)
            read, write = os.pipe()
            pid = os.fork()
        except OSError as error:
            self._tell(_died(run, exit_code=1, log=f"no child can be forked: {error}"))
            return
        if pid == 0:
            os.close(read)
            self._be_child(run, body, nice, write, directory)
        os.close(write)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # the child does it too; whoever is first
        os.set_blocking(read, False)
        self._children[read] = Child(run, pid, read, directory)
        self._poll.register(read, select.POLLIN)
        self._tell({"op": "began", "run": run, "pid": pid})

    def _be_child(self, run: int, body: bytes, nice: int, pipe: int, directory: Path) -> None:
        """Never return: whatever happens, the child ends here."""
        status = 1
        try:
            become_child(os.getppid(), nice, directory)
            self._broker.close()
            for descriptor in self._children:
                os.close(descriptor)
            if self._toolchain is None:
                raise AssertionError("a run before the hello")
            self._perform(run, body, self._toolchain, pipe)
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def _hear(self, child: Child) -> None:
        """Pass on what a child wrote; at its end, say how it ended if it left no result."""
        while True:
            try:
                data = os.read(child.pipe, 1 << 18)
            except BlockingIOError:
                return
            if not data:
                break
            for body in child.frames.feed(data):
                if _op_of(body) in ("done", "rejected"):
                    child.settled = True
                self._broker.sendall(frame(body))
        self._poll.unregister(child.pipe)
        del self._children[child.pipe]
        os.close(child.pipe)
        _, status = os.waitpid(child.pid, 0)
        _kill_group(child.pid)  # what it started and left behind
        self._reaps = REAPS
        if not child.settled:
            code = os.waitstatus_to_exitcode(status)
            self._tell(
                _died(
                    child.run,
                    signal_number=max(0, -code),
                    exit_code=max(0, code),
                    memory=child.over_memory or code == OUT_OF_MEMORY,
                    log=_tail(child.directory / "log"),
                )
            )
        shutil.rmtree(child.directory, ignore_errors=True)

    def _tell(self, message: Message) -> None:
        self._broker.sendall(pack(message))


def become_child(parent: int, nice: int, directory: Path) -> None:
    """Turn a fresh fork into a compile child: its group, its priority, its private place."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # the zygote died before that was set
    with contextlib.suppress(OSError):
        os.nice(nice)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    os.chdir(directory)
    os.environ["TMPDIR"] = os.environ["TRITON_CACHE_DIR"] = str(directory)
    import tempfile

    tempfile.tempdir = str(directory)
    # What a dying compiler says (LLVM's own messages) goes into the report of its death.
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def main(perform_run: Perform = perform) -> None:
    """Serve the broker whose socket is standard input; tests hand in their own ``perform_run``."""
    # The compiler's subprocesses must not inherit the socket: its end says that the zygote ended.
    broker = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # A fork of the broker's process may hold its end of the socket open beyond the broker's death.
    signal.signal(signal.SIGTERM, lambda number, stack: sys.exit(0))
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Zygote(broker, perform_run).serve()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the broker is gone
    finally:
        shutil.rmtree(Path.cwd(), ignore_errors=True)


def _died(
    run: int, signal_number: int = 0, exit_code: int = 0, memory: bool = False, log: str = ""
) -> Message:
    fields: dict[str, Any] = {"signal": signal_number, "exit_code": exit_code}
    return {"op": "died", "run": run, **fields, "memory": memory, "log": log}


def _op_of(body: bytes) -> str:
    return str(unpack(body)["op"])


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _reap(children: Collection[int] = ()) -> None:
    """Collect orphans of children; the children themselves are waited for by their pids."""
    with contextlib.suppress(ChildProcessError):
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid in children:
                return
            os.waitpid(found.si_pid, os.WNOHANG)


def _memory(pid: int) -> int:
    """Return the resident bytes of a process and its descendants."""
    pages = 0
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        try:
            with open(f"/proc/{process}/statm") as file:
                pages += int(file.read().split()[1])
            with open(f"/proc/{process}/task/{process}/children") as file:
                waiting += [int(word) for word in file.read().split()]
        except (OSError, IndexError, ValueError):
            continue  # it ended meanwhile
    return pages * resource.getpagesize()


def _threads() -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Threads:"):
                return int(line.split()[1])
    raise RuntimeError("/proc/self/status does not tell the number of threads")


def _tail(path: Path) -> str:
    try:
        return path.read_bytes()[-LOG_TAIL:].decode(errors="replace").strip()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
