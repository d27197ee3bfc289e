"""Lets tests import what benchmarks and examples import of each other, as their scripts do."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples")]
