"""GPT-2 inference on a GPU through the backend, the farm and the store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


def bench(local_dir: Path, start: str) -> dict:
    """Run the benchmark's process for kernelfarm with the correctness check."""
    environ = {
        **os.environ,
        "KERNELFARM_STORE": str(local_dir / "store"),
        "KERNELFARM_FARM_DIR": str(local_dir / "farm"),
        "KERNELFARM_STRICT": "1",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "cold_warm.py"), "--child", "kernelfarm"]
        + ["--start", start, "--check"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_gpt2_agrees_with_eager_cold_and_warm(local_dir):
    """Cold: everything is compiled; warm: nothing; both agree with eager at two batch sizes."""
    cold = bench(local_dir, "cold")
    assert cold["check"]["wrong"] is False, cold["check"]
    assert cold["graphs"]["compiled"] == cold["graphs"]["total"] > 0
    assert cold["kernels"]["failed"] == 0
    warm = bench(local_dir, "warm")
    assert warm["check"]["wrong"] is False, warm["check"]
    assert warm["kernels"]["compiled"] == 0
    assert warm["graphs"]["from_store"] == warm["graphs"]["total"] > 0
