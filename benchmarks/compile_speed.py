"""What our own compile stages take on one core, by depth of a GPT-2; no GPU, no farm.

    python benchmarks/compile_speed.py                      inference, 12 to 96 layers; training, 12
    python benchmarks/compile_speed.py --layers 12 --mode infer --profile

A fresh process for each line, bound to one core. ``seconds`` is all between AOTAutograd's graph
and its last kernel handed to a service that compiles nothing: the first compile of the process,
as a program has it; ``again`` is the fastest of ``--repeats`` more of the same graph. Both passes
of training are summed. The stage "gc" is garbage collection, which falls into the other stages.
``to_linear`` is the time beside that of the first line of its mode, scaled by layers: 1.0 is
linear. One JSON line each; with ``--profile`` the costliest functions follow.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODES = ("infer", "train")


def main() -> int:
    """Run one process for each depth and print its line; 1 if one failed."""
    options = parsed()
    if options.child:
        print(json.dumps(measure(options)), flush=True)
        return 0
    failed = 0
    for mode in options.mode:
        first: dict[str, Any] = {}
        for layers in options.layers or ([12, 24, 48, 96] if mode == "infer" else [12]):
            command = [sys.executable, __file__, "--child", "--mode", mode]
            command += ["--layers", str(layers), "--target", options.target]
            command += ["--repeats", str(options.repeats), *["--profile"] * options.profile]
            paths = [str(ROOT), str(ROOT / "examples"), os.environ.get("PYTHONPATH")]
            environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
            done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                failed += 1
                continue
            line = json.loads(done.stdout.splitlines()[-1])
            first = first or line
            scale = line["layers"] / first["layers"]
            line["to_linear"] = {
                name: round(line[name] / first[name] / scale, 3) for name in ("seconds", "again")
            }
            profile = line.pop("profile", "")
            print(json.dumps(line), flush=True)
            if profile:
                print(profile, flush=True)
    return 1 if failed else 0


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--layers", nargs="+", type=int, help="default: 12 24 48 96; train: 12")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--profile", action="store_true", help="print what costs most")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Trace one model and compile each of its graphs; return the line."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import gpt2

    from kernelfarm.compiler.seam.target import Target
    from kernelfarm.compiler.trace.fake import trace_for

    target = Target.parse(options.target)
    (layers,), (mode,) = options.layers, options.mode
    total = Total(target, options.repeats, cProfile.Profile() if options.profile else None)
    gpt2.LAYERS = layers
    outcome = trace_for(getattr(gpt2, mode), target, compile_graph=total.compile)
    line = {
        "layers": layers,
        "mode": mode,
        "graphs": len(outcome.graphs),
        "nodes": total.nodes,
        "kernels": total.kernels,
        "seconds": round(total.seconds, 4),
        "again": round(total.again, 4),
        "stages_s": {name: round(seconds, 4) for name, seconds in total.stages.items()},
        "again_s": {name: round(seconds, 4) for name, seconds in total.stages_again.items()},
        "trace_s": {name: round(s, 3) for name, s in outcome.phases.items()},
    }
    if total.profile is not None:
        stream = Text()
        pstats.Stats(total.profile, stream=stream).sort_stats("tottime").print_stats(40)
        pstats.Stats(total.profile, stream=stream).sort_stats("cumulative").print_stats(60)
        line["profile"] = stream.text
    return line


class Text:
    """Collects what is written."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        """Append."""
        self.text += text


class Total:
    """Compiles graphs, several times each, and sums what that takes."""

    def __init__(self, target: Any, repeats: int, profile: cProfile.Profile | None) -> None:
        from kernelfarm.compiler.seam.toolchain import current_toolchain

        self.target, self.toolchain = target, current_toolchain(target)
        self.repeats, self.profile = repeats, profile
        self.nodes = self.kernels = 0
        self.seconds = self.again = 0.0
        self.stages: dict[str, float] = {}
        self.stages_again: dict[str, float] = {}

    def compile(self, gm: Any, inputs: Sequence[Any], _info: Any) -> Any:
        """Compile one graph as a backend would; once more under the profiler, if there is one."""
        self.nodes += len(gm.graph.nodes)
        seconds, stages, kernels = self._once(gm, inputs)
        self.kernels += kernels
        self.seconds += seconds
        add(self.stages, stages)
        runs = [self._once(gm, inputs) for _ in range(self.repeats)] or [(seconds, stages, 0)]
        seconds, stages, _ = min(runs, key=lambda run: run[0])
        self.again += seconds
        add(self.stages_again, stages)
        if self.profile is not None:
            self.profile.enable()
            self._once(gm, inputs)
            self.profile.disable()

    def _once(self, gm: Any, inputs: Sequence[Any]) -> tuple[float, dict[str, float], int]:
        from kernelfarm.compiler.context import CompileContext
        from kernelfarm.compiler.pipeline import compile_graph
        from kernelfarm.compiler.report import Report
        from kernelfarm.knobs import Knobs

        report = Report()
        context = CompileContext(
            target=self.target,
            toolchain=self.toolchain,
            service=Nobody(),
            graphs=Nothing(),
            runtime=None,
            knobs=Knobs(),
            report=report,
        )
        started = time.perf_counter()
        with collections() as spent:
            compile_graph(gm, inputs, context)
        seconds = time.perf_counter() - started
        return seconds, {**report.phases, "gc": sum(spent)}, len(report.emitted)


@contextmanager
def collections() -> Iterator[list[float]]:
    """Note the seconds that garbage collections take, which fall into any stage."""
    spent: list[float] = []
    began = 0.0

    def note(phase: str, _info: Any) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        else:
            spent.append(time.perf_counter() - began)

    gc.callbacks.append(note)
    try:
        yield spent
    finally:
        gc.callbacks.remove(note)


class Nobody:
    """A kernel service that takes everything and compiles nothing."""

    def submit(self, _request: Any, _priority: Any = None) -> Future[Any]:
        """Take a kernel."""
        return Future()

    def wanted(self, _futures: Sequence[Future[Any]]) -> None:
        """Nobody waits."""


class Nothing:
    """A graph store that holds nothing."""

    def load(self, _parts: Any) -> None:
        """Miss."""

    def save(self, _parts: Any, _program: bytes, _kernels: Sequence[bytes]) -> None:
        """Forget."""

    def refuse(self, _parts: Any) -> None:
        """Forget."""


def add(sums: dict[str, float], more: dict[str, float]) -> None:
    """Add seconds by name."""
    for name, seconds in more.items():
        sums[name] = sums.get(name, 0.0) + seconds


if __name__ == "__main__":
    sys.exit(main())
