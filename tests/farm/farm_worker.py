"""A process of a user that asks a farm for kernels; run by the tests, which read its JSON.

python farm_worker.py OPTIONS COMMAND [ARGUMENT ...]
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from kernelfarm.compiler.seam.request import SourceRequest
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import current_toolchain
from kernelfarm.farm.client import FarmClient
from kernelfarm.farm.hosting import ServerOptions
from kernelfarm.farm.warmup import TEXT, warm_request


def request(number: int, fault: str = "") -> SourceRequest:
    """Return a small kernel, another one for each number."""
    target = Target.parse("h200")
    text = TEXT.replace("tl.exp(value)", f"tl.exp(value) * {number}.0")
    text += f"# fault: {fault}\n" if fault else ""
    return warm_request(target, current_toolchain(target), text)


def compile_many(client: FarmClient, count: str) -> dict[str, Any]:
    """Ask for kernels 0 to count."""
    futures = [client.submit(request(n)) for n in range(int(count))]
    results = [future.result(120) for future in futures]
    return {
        "keys": [found.key.hex() for found in results],
        "joined": sum(found.joined for found in results),
        "broker": client.broker_stats(),
    }


def hang_with_queue(client: FarmClient, flag: str) -> dict[str, Any]:
    """Queue a kernel that hangs and ten more, say so, and wait for ever."""
    futures = [client.submit(request(0, f"hang {flag}"))]
    futures += [client.submit(request(n)) for n in range(1, 11)]
    client.broker_stats()
    print("queued", flush=True)
    futures[0].result()
    return {}


def exit_with_pending(client: FarmClient) -> dict[str, Any]:
    """Leave with futures pending; prints when the interpreter begins to end."""
    client.submit(request(0)).result(120)
    for n in range(1, 5):
        client.submit(request(n, "hang"))
    return {"leaving": time.time()}


def fork(client: FarmClient) -> dict[str, Any]:
    """Fork with a future pending; the child must get kernels of its own, and so must we."""
    client.submit(request(0)).result(120)
    pending = client.submit(request(1, "slow"))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        found: dict[str, Any] = {}
        try:
            pending.result(10)
        except Exception as error:
            found["pending"] = type(error).__name__
        found["mine"] = client.submit(request(2)).result(120).key.hex()
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        child = json.load(pipe)
    os.waitpid(pid, 0)
    return {"child": child, "parent": pending.result(120).key.hex(), "stats": client.stats()}


def environment(client: FarmClient) -> dict[str, Any]:
    """Compile one kernel in whatever environment this process has."""
    result = client.submit(request(0)).result(120)
    return {"key": result.key.hex(), "binary": result.artifact.binary.hex()}


COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function
    for function in (compile_many, hang_with_queue, exit_with_pending, fork, environment)
}


def main() -> None:
    """Run one command and print its result."""
    client = FarmClient(options=ServerOptions.from_json(sys.argv[1]))
    print(json.dumps(COMMANDS[sys.argv[2]](client, *sys.argv[3:])), flush=True)


if __name__ == "__main__":
    main()
