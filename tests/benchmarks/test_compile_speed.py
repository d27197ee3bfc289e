"""The benchmark of our own compile stages, at depths that take seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "graphs"), [("infer", 1), ("train", 2)])
def test_each_depth_has_a_line_with_its_stages(mode, graphs):
    """One line for each depth: its graphs, more nodes with more layers, and where time went."""
    done = subprocess.run(
        [sys.executable, "benchmarks/compile_speed.py", "--mode", mode]
        + ["--layers", "1", "2", "--repeats", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    one, two = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["mode"], line["layers"]) for line in (one, two)] == [(mode, 1), (mode, 2)]
    assert one["graphs"] == two["graphs"] == graphs
    assert two["nodes"] > one["nodes"] > 0
    assert one["to_linear"] == {"seconds": 1.0, "again": 1.0}
    for line in (one, two):
        assert line["kernels"] > 0
        assert line["seconds"] > 0 < line["again"]
        assert line["stages_s"]["lowering"] > 0 < line["stages_s"]["codegen"]
