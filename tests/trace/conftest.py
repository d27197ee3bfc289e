"""Make ``tests/support`` importable and runs repeatable."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seed torch from the test's name; pytest shows the printed seed when a test fails."""
    value = zlib.crc32(request.node.nodeid.encode())
    torch.manual_seed(value)
    print(f"torch seed {value}")
    return value
