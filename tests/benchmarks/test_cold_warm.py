"""The benchmark's processes and lines, on a CPU: a tiny model, kernels run by the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from summary import failed, summarise

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, 5)

    def forward(self, x, labels=None):
        y = self.last(torch.nn.functional.gelu(self.norm(self.inner(x))))
        return y if labels is None else torch.nn.functional.cross_entropy(y, labels)

def infer():
    return Net().eval(), (torch.randn(6, 8),)

def train():
    return Net(), {"x": torch.randn(6, 8), "labels": torch.randint(0, 5, (6,))}, "train"
"""


@pytest.fixture
def bench(tmp_path):
    """Run the benchmark on models of a folder; returns its status and its lines."""

    def call(text: str, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        (tmp_path / "net.py").write_text(text)
        environ = os.environ | {"KERNELFARM_INTERPRET": "1", "KERNELFARM_TARGET": "h200"}
        done = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / "cold_warm.py"), "--model", "net"]
            + ["--examples", str(tmp_path), "--measured", "2", "--out", str(tmp_path / "out")]
            + list(arguments),
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert not done.stderr, done.stderr
        assert done.stdout == (tmp_path / "out").read_text()
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    return call


@pytest.mark.slow
def test_each_system_has_a_line_and_agrees_with_eager(bench):
    """Eager, the floor and kernelfarm run as asked, are compared, and say where time went."""
    systems = ["eager", "floor", "kernelfarm"]
    status, lines = bench(
        MODEL, "--mode", "train", "--systems", *systems, "--starts", "cold", "--check", "4",
        "--losses", "3", "--after-eager",
    )  # fmt: skip
    assert status == 0, lines
    *lines, summary = lines
    assert [line["system"] for line in lines] == systems
    for line in lines:
        assert line["first_call_s"] > 0 and line["steady_ms"] > 0 and line["queued_ms"] > 0
        assert [batch["batch"] for batch in line["check"]["batches"]] == ["full", 4]
        # the loss, six gradients, three buffers
        assert all(batch["compared"] == 10 for batch in line["check"]["batches"])
        assert len(line["losses"]["compiled"]) == 3
        assert line["losses"]["largest"] < 1e-4
    for line in lines[1:]:
        spent = line["breakdown_s"]
        assert min(spent[name] for name in ("before", "dynamo", "backend", "aot", "run")) > 0
        assert spent["backward_compile"] > 0
        assert line["beyond_tracing_s"] < line["first_call_s"]
    ours = lines[2]
    assert ours["graphs"]["total"] == 2
    assert 0 < ours["phases_backward_s"]["lowering"] < ours["phases_s"]["lowering"]
    assert summary == {"summary": "net train", "agrees": True}


@pytest.mark.slow
def test_a_process_that_fails_is_a_line_and_the_others_run_on(bench):
    """What a failed process said is in its line; the next one is measured; the status is 1."""
    text = MODEL.replace("def infer():", "def infer():\n    raise ValueError('no such weights')")
    status, lines = bench(text, "--mode", "infer", "train", "--systems", "eager")
    assert status == 1
    assert "no such weights" in lines[0]["stderr"]
    assert lines[1]["mode"] == "train" and lines[1]["first_call_s"] > 0
    assert lines[2] == {"summary": "net infer", "failed": 1}


@pytest.mark.slow
def test_what_no_time_is_left_for_is_said(bench):
    """With --limit used up, every run that was asked for is still a line."""
    status, lines = bench(MODEL, "--systems", "eager", "floor", "--limit", "0")
    assert status == 1
    assert [line["error"] for line in lines[:2]] == ["left out: 0 s are over"] * 2


def test_the_summary_sets_ours_beside_inductors():
    """Ratios are medians over repeats; a figure without lines is left out."""

    def line(system: str, start: str, **figures: Any) -> dict[str, Any]:
        return {"model": "gpt2", "mode": "train", "system": system, "start": start, **figures}

    lines = [
        line("floor", "cold", first_call_s=3.0),
        line("inductor", "cold", first_call_s=20.0, steady_ms=10.0, steady_peak_mib=100.0),
        *(line("kernelfarm", "cold", first_call_s=s, steady_ms=12.0) for s in (7.0, 8.0, 30.0)),
        line("kernelfarm", "warm", first_call_s=3.25, beyond_tracing_s=0.75),
        line("inductor", "warm", error="ended after 300 s"),
    ]
    assert summarise(lines) == [
        {
            "summary": "gpt2 train",
            "cold_ratio": 0.4,
            "steady_ratio": 1.2,
            "warm_beyond_floor_s": 0.25,
            "warm_beyond_tracing_s": 0.75,
            "failed": 1,
        }
    ]


@pytest.mark.parametrize(
    "line", ({"error": "x"}, {"fell_back": {"eager_GraphError": 1}}, {"check": {"wrong": True}})
)
def test_a_run_that_fell_back_or_was_wrong_has_failed(line):
    """A figure counts only if it is ours and right."""
    assert failed(line)
    assert not failed({"first_call_s": 1.0, "check": {"wrong": False}})
