"""Farms for tests: each in its own directory, ending with the test that made it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.compiler.seam.request import SourceRequest
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import Toolchain, current_toolchain
from kernelfarm.farm.client import FarmClient
from kernelfarm.farm.hosting import ServerOptions
from kernelfarm.farm.warmup import TEXT, warm_request

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
FAULTY = Path(__file__).with_name("faulty_zygote.py")
MakeRequest = Callable[..., SourceRequest]


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until something is so; fails if it is not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{condition} is not so after {seconds} s"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Say whether a process has ended; one that only init has yet to collect has."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    state, parent = stat.rpartition(")")[2].split()[:2]
    return state == "Z" and parent == "1"


def processes_of(directory: Path) -> list[int]:
    """Return the live processes that belong to the broker of a directory, zombies included."""
    lock = directory / "broker-w1.lock"
    text = lock.read_text().strip() if lock.exists() else ""
    if not text:
        return []
    found, waiting = [], [int(text)]
    while waiting:
        pid = waiting.pop()
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            continue
        found.append(pid)
        waiting += [int(child) for child in children]
    return found


class Farm:
    """A broker's directory, clients of it, and requests for them."""

    def __init__(
        self, directory: Path, scratch: Path, toolchain: Toolchain, target: Target
    ) -> None:
        self.directory = directory
        self.scratch = scratch
        self.toolchain = toolchain
        self.target = target
        self.notices: list[str] = []
        self._clients: list[FarmClient] = []

    def options(self, **fields: Any) -> ServerOptions:
        """Return options for a broker that injects faults and ends soon after its last client."""
        chosen: dict[str, Any] = {"idle": 1.0, "entry": ("-P", str(FAULTY)), "slots": 2}
        return ServerOptions(str(self.directory), **{**chosen, **fields})

    def client(self, **fields: Any) -> FarmClient:
        """Return a client of this farm."""
        found = FarmClient(options=self.options(**fields), notice=self.notices.append)
        self._clients.append(found)
        return found

    def request(self, number: int = 0, fault: str = "") -> SourceRequest:
        """Return a small kernel, another one for each number, with a fault for its compiler."""
        text = TEXT.replace("tl.exp(value)", f"tl.exp(value) * {number}.0")
        if fault:
            text += f"# fault: {fault}\n"
        return warm_request(self.target, self.toolchain, text)

    @property
    def broker_pid(self) -> int:
        """The broker's process."""
        return int((self.directory / "broker-w1.lock").read_text())

    def children(self, pid: int) -> list[int]:
        """Return a process's children, none if it has ended."""
        try:
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except OSError:
            return []
        return [int(number) for number in text.split()]

    wait_for = staticmethod(wait_for)
    is_gone = staticmethod(is_gone)

    def close(self) -> None:
        """Close the clients and wait until nothing of the farm is left."""
        for client in self._clients:
            client.close()
        pids = processes_of(self.directory)
        if pids:
            os.kill(pids[0], signal.SIGTERM)
        wait_for(lambda: all(map(is_gone, pids)))


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache directory for the session: toolchains are identified once, reproducers land in it."""
    directory = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory))
        yield directory


@pytest.fixture(scope="session")
def toolchain(cache_home: Path) -> Toolchain:
    """The compiler that is installed here, for an H200."""
    return current_toolchain(Target.parse("h200"))


def remove(farm: Farm) -> None:
    """End a farm and remove its directory; a broker that was only just starting counts too."""
    for attempt in range(20):
        farm.close()
        try:
            shutil.rmtree(farm.directory)
            return
        except OSError:  # a file of a process that was not to be seen yet
            if attempt == 19:
                raise


@pytest.fixture
def farm(toolchain: Toolchain, tmp_path: Path) -> Iterator[Farm]:
    """A farm in a directory of its own; afterwards no process of it is left."""
    directory = Path(tempfile.mkdtemp(prefix="kf-"))
    made = Farm(directory, tmp_path, toolchain, Target.parse("h200"))
    try:
        yield made
    finally:
        remove(made)
