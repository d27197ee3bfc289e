"""Compiling ahead of time for GPUs that are not there, from trace to store, through a real farm."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelfarm

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        return torch.softmax(torch.nn.functional.gelu(self.linear(self.norm(x))), dim=-1)

def wider():
    block, (x,), kind = train()
    return block, (torch.randn(24, 64, device="cuda"),), kind

def infer():
    return Block().cuda().bfloat16(), (torch.randn(8, 64, device="cuda", dtype=torch.bfloat16),)

def train():
    return Block().cuda(), (torch.randn(8, 64, device="cuda"),), "train"

def library_only():
    return torch.nn.Linear(64, 64).cuda(), (torch.randn(8, 64, device="cuda"),)

def raises():
    raise ValueError("a mistake of the user's")

def wrong():
    return 3
"""


@pytest.fixture
def warm(local_dir):
    """Run `kernelfarm warm` in a process of its own; returns status, report, stderr."""
    (local_dir / "model.py").write_text(MODEL)
    environ = {
        **os.environ,
        "KERNELFARM_FARM_DIR": str(local_dir / "farm"),
        "PYTHONPATH": str(ROOT),
    }

    def call(function: str, *arguments: str, **started: Any) -> tuple[int, dict, str]:
        done = subprocess.run(
            [sys.executable, "-m", "kernelfarm", "warm", f"model.py:{function}"]
            + ["--json", "--store", str(local_dir / "store"), *arguments],
            cwd=local_dir,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            **started,
        )
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr

    return call


def test_a_second_process_compiles_nothing(warm, local_dir):
    """The first run compiles each kernel in the farm; the second finds every graph and kernel."""
    status, first, err = warm("infer", "--target", "h200")
    assert (status, err.count("kernelfarm:")) == (0, 0), err
    assert first["graphs"] == {"total": 1, "compiled": 1, "from_store": 0}
    kernels = first["kernels"]
    assert kernels["distinct"] == kernels["compiled"] > 0
    assert kernels["failed"] == kernels["from_store"] == 0
    assert first["targets"] == ["cuda:90/h200"]
    assert first["compiled_by"] == {"farm": kernels["compiled"]}
    assert first["store"] == str(local_dir / "store")

    status, second, err = warm("infer", "--target", "h200")
    assert status == 0, err
    assert second["graphs"] == {"total": 1, "compiled": 0, "from_store": 1}
    assert second["kernels"] == {
        "distinct": kernels["distinct"],
        "compiled": 0,
        "from_store": kernels["distinct"],
        "failed": 0,
    }
    assert second["compiled_by"] == {}


def test_targets_are_summed(warm):
    """Several targets in one run are compiled apart, and the report is their sum."""
    status, report, err = warm("infer", "--target", "h200", "--target", "a100-sxm-80gb")
    assert status == 0, err
    assert report["targets"] == ["cuda:90/h200", "cuda:80/a100-sxm-80gb"]
    assert report["graphs"]["total"] == 2
    kernels = report["kernels"]
    assert kernels["distinct"] == kernels["compiled"] + kernels["from_store"] + kernels["failed"]
    again = warm("infer", "--target", "a100-sxm-80gb")[1]
    assert again["kernels"]["compiled"] == 0


def test_training_compiles_forward_and_backward(warm):
    """With "train" both graphs of the model are compiled and stored."""
    status, report, err = warm("train", "--target", "h200")
    assert status == 0, err
    assert report["graphs"] == {"total": 2, "compiled": 2, "from_store": 0}
    assert warm("train", "--target", "h200")[1]["graphs"]["from_store"] == 2


def test_a_dynamic_program_is_found_from_another_size(warm):
    """With --dynamic a second process that traces at another batch size compiles nothing."""
    status, report, err = warm("train", "--target", "h200", "--dynamic")
    assert status == 0, err
    assert report["graphs"] == {"total": 2, "compiled": 2, "from_store": 0}
    again = warm("wider", "--target", "h200", "--dynamic")[1]
    assert again["graphs"] == {"total": 2, "compiled": 0, "from_store": 2}
    assert again["kernels"]["compiled"] == 0


def test_a_function_that_raises_shows_its_own_traceback(warm):
    """The user's exception, the function's name and the user's frames; none of ours."""
    status, _, err = warm("raises", "--target", "h200")
    assert status == 2
    assert "model.py:raises raised" in err
    assert "ValueError: a mistake of the user's" in err
    assert "kernelfarm/warm.py" not in err


def test_a_function_that_returns_something_else_is_told_what_to_return(warm):
    """What FUNCTION must return is part of the message."""
    status, _, err = warm("wrong", "--target", "h200")
    assert status == 2
    assert "model.py:wrong" in err
    assert "module_or_callable, args" in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_that_is_not_writable_is_refused(warm, local_dir):
    """A directory that this user cannot write is status 2 and named."""
    (local_dir / "store").mkdir(mode=0o500)
    status, _, err = warm("infer", "--target", "h200")
    assert status == 2
    assert str(local_dir / "store") in err


def test_a_store_path_that_is_a_file_is_refused(warm, local_dir):
    """A file where the store should be is status 2, named, and left as it was."""
    (local_dir / "store").write_text("mine")
    status, _, err = warm("infer", "--target", "h200")
    assert status == 2
    assert str(local_dir / "store") in err
    assert (local_dir / "store").read_text() == "mine"


def test_a_store_without_room_fails_the_command_and_not_the_compile(warm, local_dir):
    """What could not be kept is status 1 with the place and what to do; nothing is lost or torn."""
    limit = resource.RLIMIT_FSIZE
    status, report, err = warm(
        "infer",
        "--target",
        "h200",
        preexec_fn=lambda: resource.setrlimit(limit, (1 << 20, 1 << 20)),
    )
    assert status == 1, err
    assert report["kernels"]["failed"] == 0
    assert str(local_dir / "store") in report["failures"][0]
    assert "make room" in err
    assert warm("infer", "--target", "h200")[0] == 0
    assert warm("infer", "--target", "h200")[1]["graphs"]["from_store"] == 1


def test_stats_counts_what_warm_stored(warm, local_dir):
    """`kernelfarm stats` names the kinds of records and how many there are of each."""
    report = warm("infer", "--target", "h200")[1]
    done = subprocess.run(
        [sys.executable, "-m", "kernelfarm", "stats", "--json"]
        + ["--store", str(local_dir / "store")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    records = json.loads(done.stdout)["records"]
    assert records["kernel"] == records["alias"] == report["kernels"]["distinct"]
    assert records["graph"] == 1


def test_a_broken_store_file_costs_a_compile_and_nothing_else(warm, local_dir):
    """Store files cut short between two runs: the second compiles again and succeeds."""
    first = warm("infer", "--target", "h200")[1]
    for file in (local_dir / "store").rglob("*.mdb"):
        os.truncate(file, 5000)
    status, report, err = warm("infer", "--target", "h200")
    assert status == 0, err
    assert report["kernels"]["failed"] == 0
    assert report["kernels"]["distinct"] == first["kernels"]["distinct"]
    assert warm("infer", "--target", "h200")[1]["kernels"]["compiled"] == 0


def test_warm_start_compiles_a_module_that_is_there(local_dir, monkeypatch):
    """The Python entry takes a module and its arguments, on the CPU too, and changes neither."""
    monkeypatch.setenv("KERNELFARM_FARM_DIR", str(local_dir / "farm"))
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.LayerNorm(32))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    args = (torch.randn(4, 32),)
    store = local_dir / "store"
    report = kernelfarm.warm_start(model, args, targets=["h200"], store=store)
    assert report.ok
    assert report.kernels["compiled"] == report.kernels["distinct"] > 0
    again = kernelfarm.warm_start(model, args, targets=["h200"], store=store)
    assert again.kernels["compiled"] == 0
    assert again.graphs["from_store"] == again.graphs["total"] == 1
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert {value.device.type for value in model.state_dict().values()} == {"cpu"}
