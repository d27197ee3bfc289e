"""One command for several functions and targets: the examples' three families, made shallow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelfarm.warm_report import FunctionReport, WarmReport, render

ROOT = Path(__file__).resolve().parents[2]

FAMILIES = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples")!r})
import gpt2, llama, resnet50
gpt2.LAYERS = llama.LAYERS = 1
network = resnet50.ResNet
resnet50.ResNet = lambda: network(depths=(1, 1))
gpt2_infer, gpt2_train = gpt2.infer, gpt2.train
llama_infer, llama_train = llama.infer, llama.train
resnet_infer, resnet_train = resnet50.infer, resnet50.train

def raises():
    raise ValueError("a mistake of the user's")
"""
FUNCTIONS = [
    f"{name}_{mode}" for name in ("gpt2", "llama", "resnet") for mode in ("infer", "train")
]
TARGETS = ["--target", "h200", "--target", "mi300x"]


@pytest.fixture
def warm(local_dir):
    """Run `kernelfarm warm` in a process of its own; returns status, stdout, stderr."""
    (local_dir / "model.py").write_text(FAMILIES)
    environ = os.environ | {
        "KERNELFARM_FARM_DIR": str(local_dir / "farm"),
        "KERNELFARM_STORE": str(local_dir / "store"),
        "PYTHONPATH": str(ROOT),
    }

    def call(*arguments: str, **variables: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "kernelfarm", "warm", *arguments],
            cwd=local_dir,
            env=environ | variables,
            capture_output=True,
            text=True,
            timeout=900,
        )
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.mark.slow
def test_three_families_for_two_targets_are_compiled_once(warm):
    """The first command compiles every graph, the second none, and says so."""
    names = [f"model.py:{name}" for name in FUNCTIONS]
    status, out, err = warm(*names, *TARGETS, "--json")
    assert status == 0, err
    first = json.loads(out)
    assert first["graphs"] == {"total": 18, "compiled": 18, "from_store": 0}
    assert first["kernels"]["failed"] == 0
    assert first["kernels"]["distinct"] == first["kernels"]["compiled"] > 0
    assert [one["function"] for one in first["functions"]] == names
    assert [one["graphs"]["compiled"] for one in first["functions"]] == [2, 4] * 3
    assert sum(first["phases"][name] for name in ("import", "dynamo", "aot")) < first["seconds"]

    status, out, err = warm(*names, *TARGETS, "--json")
    assert status == 0, err
    second = json.loads(out)
    assert second["graphs"] == {"total": 18, "compiled": 0, "from_store": 18}
    assert second["kernels"]["compiled"] == second["kernels"]["failed"] == 0
    assert second["kernels"]["distinct"] == first["kernels"]["distinct"]

    status, out, err = warm("model.py:resnet_infer", "--target", "h200")
    assert status == 0, err
    assert "nothing was compiled" in out


@pytest.mark.slow
def test_a_function_that_fails_does_not_keep_the_others(warm):
    """What can be warmed is; each failure is told and listed, and the status is 2."""
    status, out, err = warm(
        "model.py:raises", "model.py:absent", "model.py:resnet_infer", "--json",
        KERNELFARM_TARGET="h200",
    )  # fmt: skip
    assert status == 2
    assert "a mistake of the user's" in err
    assert "no function 'absent'" in err
    report = json.loads(out)
    assert report["targets"] == ["cuda:90/h200"]
    assert report["graphs"]["compiled"] == report["graphs"]["total"] == 1
    raised, absent, good = report["functions"]
    assert "a mistake of the user's" in raised["error"]
    assert "absent" in absent["error"]
    assert "error" not in good
    assert good["kernels"]["compiled"] > 0


def report(*functions: FunctionReport, **counts: int) -> WarmReport:
    """A report of two targets."""
    return WarmReport(
        graphs={"total": 4, "compiled": counts.get("graphs", 0), "from_store": 4},
        kernels={"distinct": 9, "compiled": 0, "from_store": 9, "failed": counts.get("failed", 0)},
        targets=("cuda:90/h200", "hip:gfx942/mi300x"),
        compiled_by={},
        seconds=3.25,
        store="/store",
        phases={"dynamo": 1.0, "aot": 0.5},
        functions=functions,
    )


def function(error: str = "") -> FunctionReport:
    """A function of which everything was in the store, unless it failed."""
    graphs = {"total": 0 if error else 2, "compiled": 0, "from_store": 0 if error else 2}
    kernels = {"distinct": 3, "compiled": 0, "from_store": 3, "failed": 0}
    return FunctionReport("m.py:f", graphs, kernels, 1.5, error=error)


def test_a_report_lists_functions_where_there_are_several():
    """One line for each function; of one alone the totals say all."""
    assert render(report(function())).count("m.py:f") == 0
    text = render(report(function(), function(error="it raised")))
    assert text.count("m.py:f") == 2
    assert "m.py:f: could not be carried out" in text
    assert "1.5 tracing" in text


def test_nothing_compiled_is_only_said_of_a_success():
    """A compiled graph, a failed kernel or a function that failed take the line away."""
    assert "nothing was compiled" in render(report(function()))
    for other in (report(graphs=1), report(failed=1), report(function(error="it raised"))):
        assert "nothing was compiled" not in render(other)
    assert not report(function(error="it raised")).ok
