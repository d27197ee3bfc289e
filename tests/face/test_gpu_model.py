"""The examples on a GPU through the backend, the farm and the store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mode", ("infer", "train"))
@pytest.mark.parametrize("model", ("gpt2", "llama", "resnet50"))
def test_a_model_agrees_with_eager_cold_and_warm(model, mode):
    """Cold: everything is compiled; warm: nothing; both agree with eager at two batch sizes."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "cold_warm.py"), "--systems", "kernelfarm"]
        + ["--model", model, "--mode", mode, "--measured", "3", "--check", "3"],
        cwd=ROOT,
        env={**os.environ, "KERNELFARM_STRICT": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (lines, done.stderr[-3000:])
    cold, warm, _summary = lines
    assert cold["graphs"]["compiled"] == cold["graphs"]["total"] > 0
    assert cold["kernels"]["failed"] == 0
    assert warm["kernels"]["compiled"] == 0
    assert warm["graphs"]["from_store"] == warm["graphs"]["total"] > 0
