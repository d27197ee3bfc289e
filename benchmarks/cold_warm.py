"""Cold start, warm start and steady state of GPT-2 inference: eager, stock Inductor, kernelfarm.

    python benchmarks/cold_warm.py                          every line, fresh processes
    python benchmarks/cold_warm.py --systems kernelfarm --check

Needs a GPU. Each run is a process of its own. "cold" starts with empty caches of its own, "warm"
is the next process over the same caches; "floor" compiles nothing: Dynamo and AOTAutograd, then
op by op. In no process does the model run before the timed first call; what eager itself needs
for a first call (libraries that load, algorithms that are chosen) is the line of "eager".
``first_call_s`` counts from torch.compile to the synchronised result, on a model that is on the
GPU already. One JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SYSTEMS = ("eager", "floor", "inductor", "kernelfarm")
#: Calls before and within the steady state's measurement.
WARMUP, MEASURED = 20, 200


def main() -> int:
    """Run every process that was asked for and print its line; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--repeats", type=int, default=1, help="cold and warm pairs per system")
    parser.add_argument("--check", action="store_true", help="compare with eager, two batch sizes")
    parser.add_argument("--store", type=Path, help="kernelfarm's store; default: a fresh one")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one process")
    parser.add_argument("--child", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--start", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, options.start, options.check)), flush=True)
        return 0
    failed = 0
    for system in options.systems:
        for _ in range(options.repeats):
            failed += pair(system, options)
    return 1 if failed else 0


def pair(system: str, options: argparse.Namespace) -> int:
    """Run one system cold, and again warm where it caches anything; return how many failed."""
    starts = ("cold", "warm") if system in ("inductor", "kernelfarm") else ("cold",)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="cold-warm-", dir="/dev/shm") as caches:
        for start in starts:
            failed += not run_child(system, start, Path(caches), options)
    return failed


def run_child(system: str, start: str, caches: Path, options: argparse.Namespace) -> bool:
    """Run one process and print its line, or what it said when it failed."""
    environ = dict(os.environ)
    environ["TORCHINDUCTOR_CACHE_DIR"] = str(caches / "inductor")
    environ["TRITON_CACHE_DIR"] = str(caches / "triton")
    environ["KERNELFARM_STORE"] = str(options.store or caches / "kernelfarm")
    # A broker of this pair's own, so that "cold" includes starting it.
    environ["KERNELFARM_FARM_DIR"] = str(caches / "farm")
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environ.get("PYTHONPATH"))))
    command = [sys.executable, __file__, "--child", system, "--start", start]
    command += ["--check"] if options.check else []
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, env=environ, stdout=subprocess.PIPE, text=True, timeout=options.timeout
        )
        line = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        print(json.dumps({"system": system, "start": start, "error": repr(error)}), flush=True)
        return False
    line["process_s"] = round(time.monotonic() - began, 3)
    print(json.dumps(line), flush=True)
    return done.returncode == 0 and not line.get("check", {}).get("wrong")


def child(system: str, start: str, check: bool) -> dict[str, Any]:
    """Time the first call and the steady state of one system in this process."""
    import torch

    sys.path.insert(0, str(ROOT / "examples"))
    import gpt2

    torch.manual_seed(0)
    model, args = gpt2.infer()
    torch.cuda.synchronize()
    clock = Clock()
    with torch.no_grad():
        started = time.perf_counter()
        call = prepare(system, model, clock)
        call(*args)
        torch.cuda.synchronize()
        first = time.perf_counter() - started
        line: dict[str, Any] = {
            "system": system,
            "start": start,
            "first_call_s": round(first, 3),
            "breakdown_s": clock.breakdown(started),
            "steady_ms": round(steady(torch, call, args), 4),
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name(),
        }
        line |= details(system)
        if check:
            line["check"] = compare(torch, model, call, args)
    return line


class Clock:
    """When the backend was entered and left, and what the tracer said of its own phases."""

    def __init__(self) -> None:
        self.entered = 0.0
        self.backend = 0.0
        self.phases: dict[str, float] = {}

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Time one visit to the backend."""
        now = time.perf_counter()
        self.entered = self.entered or now
        try:
            yield
        finally:
            self.backend += time.perf_counter() - now

    def add(self, name: str, seconds: float) -> None:
        """Note a phase's seconds."""
        self.phases[name] = self.phases.get(name, 0.0) + seconds

    def breakdown(self, started: float) -> dict[str, float]:
        """Return seconds by phase: dynamo (until the backend is called), backend, and inside."""
        if not self.entered:
            return {}
        phases = {"dynamo": self.entered - started, "backend": self.backend, **self.phases}
        return {name: round(seconds, 4) for name, seconds in phases.items()}


def prepare(system: str, model: Any, clock: Clock) -> Callable[..., Any]:
    """Return the model as ``system`` runs it; compilation happens in its first call."""
    import torch

    if system == "eager":
        return model
    inner: Callable[..., Any]
    if system == "kernelfarm":
        from kernelfarm.backend import kernelfarm as inner
    elif system == "inductor":
        from torch._dynamo.backends.registry import lookup_backend

        inner = lookup_backend("inductor")
    else:
        inner = floor(clock)

    def backend(gm: Any, inputs: Any, **options: Any) -> Any:
        with clock.inside():
            return inner(gm, inputs, **options)

    return torch.compile(model, backend=backend, dynamic=False)


def floor(clock: Clock) -> Callable[..., Any]:
    """Return a backend that traces as kernelfarm does and compiles nothing."""
    from kernelfarm.backend import live_target
    from kernelfarm.compiler.pipeline import run_eagerly
    from kernelfarm.compiler.trace.dynamo import compile_fx
    from kernelfarm.knobs import resolve

    def backend(gm: Any, inputs: Any) -> Any:
        return compile_fx(
            gm,
            inputs,
            compile_graph=lambda graph, _inputs, _info: run_eagerly(graph),
            target=live_target(resolve({"farm": False})),
            record=clock.add,
        )

    return backend


def steady(torch: Any, call: Callable[..., Any], args: Any) -> float:
    """Return the median milliseconds of a call, by GPU events."""
    for _ in range(WARMUP):
        call(*args)
    times = []
    for _ in range(MEASURED):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call(*args)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def details(system: str) -> dict[str, Any]:
    """Return what the compiler itself reports; of ours also graphs, kernels and speculation."""
    if system == "inductor":
        from torch._dynamo.utils import compilation_time_metrics

        sums = {name: sum(times) for name, times in compilation_time_metrics.items()}
        return {"phases_s": {name: round(s, 4) for name, s in sums.items() if s >= 0.05}}
    if system != "kernelfarm":
        return {}
    from kernelfarm.backend import REPORT, TALLY

    spans = TALLY.spans()
    found: dict[str, Any] = {
        "graphs": dict(REPORT.graphs),
        "kernels": TALLY.kernels(),
        "phases_s": {name: round(seconds, 4) for name, seconds in REPORT.phases.items()},
        "submit_us": TALLY.submit_us(),
    }
    built = [span for span in spans if span.started]
    if built:
        last = max(span.submitted for span in spans)
        early = sum(span.started < last for span in built)
        found["speculation"] = {
            "distinct": len(built),
            "started_before_last_submit": early,
            "share": round(early / len(built), 3),
            "first_submit_to_last_s": round(last - min(s.submitted for s in spans), 4),
            "last_submit_to_last_finish_s": round(max(s.finished for s in built) - last, 4),
        }
    return found


def compare(torch: Any, model: Any, call: Callable[..., Any], args: Any) -> dict[str, Any]:
    """Compare with eager at two batch sizes; float64 settles whether a difference is an error.

    Wrong is a result that is further from float64 than eager is by more than half, plus the
    smallest step of the type.
    """
    batches = [args, tuple(arg[:3] for arg in args)]
    got = [call(*batch).logits for batch in batches]
    expected = [model(*batch).logits for batch in batches]
    exact = model.double()
    report: dict[str, Any] = {"wrong": False, "batches": []}
    for batch, mine, eager in zip(batches, got, expected, strict=True):
        reference = exact(*batch).logits
        scale = reference.abs().max().item()
        ours = (mine.double() - reference).abs().max().item() / scale
        theirs = (eager.double() - reference).abs().max().item() / scale
        step = torch.finfo(mine.dtype).eps
        wrong = mine.shape != eager.shape or not ours <= 1.5 * theirs + step
        report["wrong"] |= wrong
        report["batches"].append(
            {
                "batch": len(batch[0]),
                "max_difference_from_eager": (mine - eager).abs().max().item(),
                "error": round(ours, 6),
                "eager_error": round(theirs, 6),
            }
        )
    return report


if __name__ == "__main__":
    sys.exit(main())
