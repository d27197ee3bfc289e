"""Make ``tests/support`` importable, runs repeatable, and CPU tensors the target's."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import pytest
import torch

from kernelfarm.compiler.lower.context import Lowering

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seed torch from the test's name; pytest shows the printed seed when a test fails."""
    value = zlib.crc32(request.node.nodeid.encode())
    torch.manual_seed(value)
    print(f"torch seed {value}")
    return value


@pytest.fixture(autouse=True)
def cpu_is_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let code generation for a GPU take CPU tensors for the target's."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(
            "kernelfarm.compiler.generate.Lowering",
            lambda gm, device, symbols: Lowering(gm, "cpu", symbols),
        )
