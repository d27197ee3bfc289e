"""Cold start, warm start, steady state and memory: eager, stock Inductor, kernelfarm.

    python benchmarks/cold_warm.py                             GPT-2 inference, every system
    python benchmarks/cold_warm.py --model gpt2 llama resnet50 --mode infer train --limit 550
    python benchmarks/cold_warm.py --systems kernelfarm --mode train --check --losses 20

Needs a GPU. Each run is a process of its own. "cold" starts with empty caches of its own, "warm"
is the next process over the same caches; "floor" compiles nothing: Dynamo and AOTAutograd, then
op by op. In no process does the model run before the timed first call; what eager itself needs
for a first call (libraries that load, algorithms that are chosen) is the line of "eager". With
--after-eager another small model takes an eager step first, so that the GPU's context and
libraries are up and no seconds of theirs count.

Inference is the call; training is ``zero_grad(set_to_none=True)``, forward and backward, without
an optimizer. ``first_call_s`` counts from torch.compile to the synchronised end of the first one,
on a model that is on the GPU already. ``steady_ms`` is the median of one at a time, by GPU events,
the GPU idle before each; ``queued_ms`` is the mean of as many without waiting in between.
Peaks are `torch.cuda.max_memory_allocated`: of the first call, and of the measured ones.
One JSON object a line, at once when a process ends, and a summary; a process that fails is a line
with its error, and the others run on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from summary import failed, summarise

ROOT = Path(__file__).resolve().parent.parent
SYSTEMS = ("eager", "floor", "inductor", "kernelfarm")
#: What leaves something behind for the next process.
CACHING = ("inductor", "kernelfarm")
MODELS = ("gpt2", "llama", "resnet50")
MODES = ("infer", "train")
#: Steps that are measured unless --measured says how many; a third as many go before.
MEASURED = {"infer": 100, "train": 30}
#: Characters of what a failed process said that its line keeps.
TAIL = 2000


def main() -> int:
    """Run every process that was asked for and print its line; 1 if one failed or was left out."""
    options = parsed()
    if options.child:
        from one_process import measure

        print(json.dumps(measure(options)), flush=True)
        return 0
    lines = []
    started = time.monotonic()
    for model in options.model:
        for mode in options.mode:
            for system in options.systems:
                for _ in range(options.repeats):
                    lines += pair(model, mode, system, options, started)
    for line in summarise(lines):
        tell(line, options.out)
    return 1 if any(failed(line) for line in lines) else 0


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", default=["gpt2"], help=f"of {', '.join(MODELS)}")
    parser.add_argument("--mode", nargs="+", choices=MODES, default=["infer"])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--repeats", type=int, default=1, help="cold and warm pairs per system")
    parser.add_argument("--starts", nargs="+", choices=("cold", "warm"), default=["cold", "warm"])
    parser.add_argument("--measured", type=int, help=f"measured steps; default: {MEASURED}")
    parser.add_argument(
        "--check",
        type=int,
        nargs="*",
        metavar="BATCH",
        help="compare with eager and float64, at the full batch and at each BATCH (compiled anew)",
    )
    parser.add_argument("--losses", type=int, default=0, help="training steps to follow eager's")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--rate", type=float, default=1e-3, help="the optimizer's learning rate")
    parser.add_argument(
        "--after-eager", action="store_true", help="begin each process with another model's step"
    )
    parser.add_argument("--store", type=Path, help="kernelfarm's store; default: a fresh one")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one process")
    parser.add_argument("--limit", type=float, help="seconds for all; what is left is said")
    parser.add_argument("--out", type=Path, help="a file that gets every line as well")
    parser.add_argument(
        "--examples", type=Path, default=ROOT / "examples", help="folder of the models' files"
    )
    parser.add_argument("--child", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--start", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def pair(
    model: str, mode: str, system: str, options: argparse.Namespace, started: float
) -> list[dict[str, Any]]:
    """Run one system cold, and again warm where it caches anything; return the lines."""
    starts = options.starts if system in CACHING else ("cold",)
    lines = []
    with tempfile.TemporaryDirectory(prefix="cold-warm-", dir=_fast_directory()) as caches:
        for start in starts:
            about = {"model": model, "mode": mode, "system": system, "start": start}
            timeout = options.timeout
            if options.limit is not None:
                timeout = min(timeout, options.limit - (time.monotonic() - started))
            if timeout > 0:
                line = about | run_child(about, Path(caches), timeout, options)
            else:
                line = about | {"error": f"left out: {options.limit:.0f} s are over"}
            tell(line, options.out)
            lines.append(line)
    return lines


def _fast_directory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run_child(
    about: dict[str, str], caches: Path, timeout: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Run one process and return its line, or what it said when it failed."""
    environ = dict(os.environ)
    environ["TORCHINDUCTOR_CACHE_DIR"] = str(caches / "inductor")
    environ["TRITON_CACHE_DIR"] = str(caches / "triton")
    environ["KERNELFARM_STORE"] = str(options.store or caches / "kernelfarm")
    # A broker of this pair's own, so that "cold" includes starting it.
    environ["KERNELFARM_FARM_DIR"] = str(caches / "farm")
    paths = [str(ROOT), str(options.examples), str(ROOT / "examples"), environ.get("PYTHONPATH")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, __file__, "--child", about["system"], "--start", about["start"]]
    command += ["--model", about["model"], "--mode", about["mode"]]
    command += ["--measured", str(options.measured or MEASURED[about["mode"]])]
    command += ["--losses", str(options.losses), "--examples", str(options.examples)]
    command += ["--optimizer", options.optimizer, "--rate", str(options.rate)]
    if options.after_eager:
        command.append("--after-eager")
    if options.check is not None:
        command += ["--check", *map(str, options.check)]
    began = time.monotonic()
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        said = error.stderr or b""
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        return {"error": f"ended after {timeout:.0f} s", "stderr": text[-TAIL:]}
    process_s = round(time.monotonic() - began, 3)
    try:
        line: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        error = f"ended with status {done.returncode}"
        return {"error": error, "process_s": process_s, "stderr": done.stderr[-TAIL:]}
    notes = [text for text in done.stderr.splitlines() if text.startswith("kernelfarm:")]
    return line | {"process_s": process_s} | ({"notices": notes} if notes else {})


def tell(line: dict[str, Any], out: Path | None) -> None:
    """Print one line, and append it to the file if there is one."""
    text = json.dumps(line)
    print(text, flush=True)
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
