"""Many processes of one user share one broker, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.farm.client import FarmClient
from kernelfarm.farm.places import import_roots

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("farm_worker.py")


def start(farm: Any, *command: str, **environ: str) -> subprocess.Popen[str]:
    """Start a process of the user."""
    path = os.pathsep.join(import_roots())
    return subprocess.Popen(
        [sys.executable, str(WORKER), farm.options().to_json(), *command],
        env={**os.environ, "PYTHONPATH": path, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a process printed."""
    out, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


def test_eight_processes_share_ten_compiles(farm: Any) -> None:
    """Eight processes that want the same ten kernels at once: one broker, ten compiles."""
    found = [finish(process) for process in [start(farm, "compile_many", "10") for _ in range(8)]]
    assert all(answer["keys"] == found[0]["keys"] for answer in found)
    assert max(answer["broker"]["runs_started"] for answer in found) == 10
    assert sum(answer["joined"] for answer in found) == 70


def test_killed_client_leaves_no_queue(farm: Any) -> None:
    """What a client had queued when it was killed is never compiled."""
    flag = farm.scratch / "hanging"
    process = start(farm, "hang_with_queue", str(flag))
    watcher = farm.client(slots=1)
    assert process.stdout is not None and process.stdout.readline() == "queued\n"
    process.kill()
    process.communicate()
    farm.wait_for(lambda: watcher.broker_stats().get("clients") == 1)
    stats = watcher.broker_stats()
    assert stats["dropped"] + stats.get("compiled", 0) + stats["runs"] >= 11
    assert stats["dropped"] >= 1
    assert stats.get("jobs_queued", 0) == 0


def test_exit_with_futures_pending_is_fast(farm: Any) -> None:
    """An interpreter ends within a second of its last line, whatever its compiles do."""
    process = start(farm, "exit_with_pending")
    leaving = finish(process)["leaving"]
    assert time.time() - leaving < 2.0  # a second, and a loaded machine's slack


def test_fork_gives_the_child_its_own_connection(farm: Any) -> None:
    """A forked child gets kernels; the parent's pending future is an error there, not a hang."""
    answer = finish(start(farm, "fork"))
    assert answer["child"]["pending"] == "FutureForked"
    assert len(answer["child"]["mine"]) == len(answer["parent"]) == 64
    assert answer["stats"]["broker_deaths"] == 0


def test_environment_of_the_first_client_does_not_leak(farm: Any) -> None:
    """Code generation variables of one process reach its own kernels only."""
    odd = finish(start(farm, "environment", DISABLE_PTXAS_OPT="1"))
    plain = finish(start(farm, "environment"))
    again = finish(start(farm, "environment", DISABLE_PTXAS_OPT="1"))
    assert odd["key"] != plain["key"] and odd["binary"] != plain["binary"]
    assert odd == again


def test_broker_ends_after_its_last_client(farm: Any) -> None:
    """Some time after the last client went, broker and zygote are gone, the socket with them."""
    finish(start(farm, "compile_many", "1"))
    pid = farm.broker_pid
    farm.wait_for(lambda: farm.is_gone(pid))
    assert not list(farm.directory.glob("*.sock"))


def test_broker_ends_when_nobody_can_reach_it_any_more(farm: Any) -> None:
    """A broker whose directory was removed ends at once, however long it would idle."""
    client = farm.client(idle=600.0)
    client.submit(farm.request()).result(60)
    pid = farm.broker_pid
    client.close()
    (farm.directory / "broker-w1.sock").unlink()
    farm.wait_for(lambda: farm.is_gone(pid))


def test_many_clients_come_and_go(farm: Any) -> None:
    """Clients that come and go leave the broker's descriptors and children as they were."""
    first = farm.client()
    first.submit(farm.request(0)).result(60)
    before = len(os.listdir(f"/proc/{farm.broker_pid}/fd"))
    for n in range(20):
        client = farm.client()
        future = client.submit(farm.request(n % 3))
        if n % 2:
            future.result(60)
        client.close()
    farm.wait_for(lambda: first.broker_stats()["clients"] == 1)
    farm.wait_for(lambda: first.broker_stats()["runs"] == 0)
    assert len(os.listdir(f"/proc/{farm.broker_pid}/fd")) <= before
    (zygote,) = farm.children(farm.broker_pid)
    farm.wait_for(lambda: not farm.children(zygote))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ended_broker_takes_its_processes_along(farm: Any, number: int) -> None:
    """However the broker ends, zygote, children, their subprocesses and directories are gone."""
    client = farm.client()
    client.submit(farm.request(0)).result(60)
    client.submit(farm.request(1, "hang"))
    farm.wait_for(lambda: client.broker_stats()["runs"] == 1)
    broker = farm.broker_pid
    (zygote,) = farm.children(broker)
    family: list[tuple[int, int]] = []

    def is_complete() -> bool:
        family[:] = [(c, g) for c in farm.children(zygote) for g in farm.children(c)]
        return bool(family)

    farm.wait_for(is_complete)
    ((child, grandchild),) = family
    scratch = Path(os.readlink(f"/proc/{zygote}/cwd"))
    client.close()
    os.kill(broker, number)
    farm.wait_for(lambda: all(map(farm.is_gone, (broker, zygote, child, grandchild))))
    farm.wait_for(lambda: not scratch.exists())


def test_unsafe_directory_means_an_own_broker(farm: Any, tmp_path: Path) -> None:
    """A socket directory open to others is not used; the process compiles with its own broker."""
    farm.directory.chmod(0o777)
    try:
        client: FarmClient = farm.client()
        assert client.submit(farm.request(0)).result(60).artifact.binary
        assert "mode is 0777" in farm.notices[0] and client.stats()["fallbacks"] == 1
    finally:
        farm.directory.chmod(0o700)
