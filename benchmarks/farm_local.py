"""What the embedded farm costs and yields on this machine; prints one JSON line per figure.

    python benchmarks/farm_local.py [--kernels 60] [--target h200] [--clients 8]

ready       seconds from a client's first words to a zygote that takes work, nothing running before
submit      microseconds that a submit costs its caller, with pauses and with work in between
compile     kernels per second and slots; milliseconds per kernel beyond its own stages
inline      the same kernels in one process, one after the other, for comparison
shared      several processes that want the same kernels at once: compiles, joins, seconds
late        milliseconds for a kernel that somebody else has just had compiled
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kernelfarm.compiler.seam.back import back_half
from kernelfarm.compiler.seam.front import front_half
from kernelfarm.compiler.seam.request import SourceRequest
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import Toolchain, current_toolchain
from kernelfarm.farm.client import FarmClient
from kernelfarm.farm.hosting import ServerOptions
from kernelfarm.farm.limits import usable_slots
from kernelfarm.farm.warmup import TEXT, warm_request

PATIENCE = 300.0
#: Operations put in front of each other, so that kernels differ and cost what real ones do.
STEPS = ("tl.exp", "tl.sqrt", "tl.sin", "tl.abs", "tl.sigmoid", "tl.log")


def kernels(count: int, target: Target, toolchain: Toolchain, salt: int) -> list[SourceRequest]:
    """Return distinct kernels of a pointwise-and-reduction kind."""
    found = []
    for n in range(count):
        value = "value"
        for step in range(2 + n % 8):
            value = f"{STEPS[(n + step) % len(STEPS)]}({value} + {n + step}.5 + {salt})"
        found.append(warm_request(target, toolchain, TEXT.replace("tl.exp(value)", value)))
    return found


def report(figure: str, **values: object) -> None:
    """Print one line."""
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}
    print(json.dumps({"figure": figure, **rounded}), flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure_ready(options: ServerOptions, target: Target, toolchain: Toolchain) -> FarmClient:
    """Time a cold start: client, broker, zygote, first kernel."""
    started = time.monotonic()
    client = FarmClient(options=options)
    constructed = time.monotonic()
    client.prepare(target, toolchain)
    first = client.submit(kernels(1, target, toolchain, 1000)[0])
    result = first.result(PATIENCE)
    report(
        "ready",
        constructor_ms=1000 * (constructed - started),
        zygote_s=result.started - started,
        first_kernel_s=time.monotonic() - started,
    )
    return client


def measure_submit(client: FarmClient, target: Target, toolchain: Toolchain) -> None:
    """Time submits with a pause between them, and with Python work, as a tracer has."""
    for name, salt in (("idle", 2000), ("tracing", 2001)):
        costs, futures = [], []
        for request in kernels(300, target, toolchain, salt):
            started = time.perf_counter()
            futures.append(client.submit(request))
            costs.append(1e6 * (time.perf_counter() - started))
            if name == "idle":
                time.sleep(0.002)
            while time.perf_counter() - started < 0.002:
                sum(range(50))
        for future in futures:
            future.cancel()
        report(
            "submit",
            between=name,
            p50_us=percentile(costs, 0.5),
            p99_us=percentile(costs, 0.99),
            max_us=max(costs),
        )
    client.submit(kernels(1, target, toolchain, 3000)[0]).result(PATIENCE)


def measure_compile(
    client: FarmClient, requests: list[SourceRequest], timed: Callable[[], float] = time.monotonic
) -> float:
    """Time the kernels through the farm; returns seconds."""
    started = timed()
    results = [future.result(PATIENCE) for future in [client.submit(r) for r in requests]]
    seconds = timed() - started
    slots = usable_slots()
    inside = sum(found.finished - found.started for found in results)
    report(
        "compile",
        kernels=len(requests),
        slots=slots,
        seconds=seconds,
        kernels_per_s=len(requests) / seconds,
        median_ms=1000 * percentile([r.finished - r.started for r in results], 0.5),
        overhead_ms_per_kernel=1000 * (seconds * slots - inside) / len(requests),
    )
    return seconds


def measure_inline(requests: list[SourceRequest]) -> None:
    """Time the same kernels in this process."""
    back_half(front_half(requests[0]))
    started = time.monotonic()
    for request in requests:
        back_half(front_half(request)).to_payload()
    seconds = time.monotonic() - started
    report("inline", kernels=len(requests), seconds=seconds, kernels_per_s=len(requests) / seconds)


def measure_late(client: FarmClient, requests: list[SourceRequest]) -> None:
    """Time kernels that the broker has just had compiled."""
    costs = []
    for request in requests:
        started = time.perf_counter()
        client.submit(request).result(PATIENCE)
        costs.append(1000 * (time.perf_counter() - started))
    report("late", p50_ms=percentile(costs, 0.5), p99_ms=percentile(costs, 0.99))


def measure_shared(options: ServerOptions, arguments: argparse.Namespace) -> None:
    """Time several processes that want the same kernels at once."""
    command = [sys.executable, __file__, "--target", arguments.target]
    command += ["--kernels", str(arguments.kernels), "--child", options.to_json()]
    started = time.monotonic()
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for _ in range(arguments.clients)
    ]
    answers = [json.loads(process.communicate()[0]) for process in processes]
    report(
        "shared",
        clients=arguments.clients,
        requests=sum(found["requests"] for found in answers),
        compiled=sum(found["compiled"] for found in answers),
        joined=sum(found["joined"] for found in answers),
        seconds=time.monotonic() - started,
    )


def be_child(options: ServerOptions, requests: list[SourceRequest]) -> None:
    """Ask for the kernels and print who compiled them."""
    client = FarmClient(options=options)
    results = [future.result(PATIENCE) for future in [client.submit(r) for r in requests]]
    joined = sum(found.joined for found in results)
    print(
        json.dumps({"requests": len(results), "joined": joined, "compiled": len(results) - joined})
    )


def main() -> None:
    """Measure everything in a farm of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=60)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    target = Target.parse(arguments.target)
    toolchain = current_toolchain(target)
    if arguments.child:
        requests = kernels(arguments.kernels, target, toolchain, 5000)
        be_child(ServerOptions.from_json(arguments.child), requests)
        return
    with tempfile.TemporaryDirectory(prefix="kf-bench-") as directory:
        options = ServerOptions(directory, idle=2.0)
        kernels(1, target, toolchain, 0)  # loads triton's options, which is the caller's own cost
        client = measure_ready(options, target, toolchain)
        measure_submit(client, target, toolchain)
        requests = kernels(arguments.kernels, target, toolchain, 4000)
        measure_compile(client, requests)
        measure_late(client, requests)
        measure_shared(options, arguments)
        client.close()
        measure_inline(requests)
        lock = next(Path(directory).glob("broker-*.lock"))
        pid = lock.read_text().strip()
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.05)


if __name__ == "__main__":
    main()
