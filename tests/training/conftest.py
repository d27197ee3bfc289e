"""Compile with our backend for the interpreter, over a store and a farm that live in memory."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The backend module, with fresh notices, report and store; ``heard`` is what it said."""
    from kernelfarm import backend, compose
    from kernelfarm.cache.store import MemoryStore
    from kernelfarm.compiler.report import Report
    from kernelfarm.inline import InlineFarm
    from kernelfarm.notices import Notices
    from kernelfarm.tally import Tally

    heard: list[str] = []
    monkeypatch.setattr(backend, "NOTICES", Notices(heard.append))
    monkeypatch.setattr(backend, "TALLY", Tally())
    monkeypatch.setattr(backend, "REPORT", Report())
    monkeypatch.setattr(
        backend,
        "shared_world",
        lambda knobs: compose.World(knobs, backend.NOTICES, MemoryStore(), InlineFarm()),
    )
    monkeypatch.setattr(backend, "heard", heard, raising=False)
    torch._dynamo.reset()
    yield backend
    torch._dynamo.reset()


@pytest.fixture
def compiled(backend: Any) -> Callable[..., Callable[..., Any]]:
    """Compile a function or module for the interpreter; options are knobs, strict by default."""

    def compile_it(subject: Any, dynamic: bool = False, **options: Any) -> Callable[..., Any]:
        settings = {"interpret": True, "strict": True, **options}
        return torch.compile(subject, backend=backend.kernelfarm, options=settings, dynamic=dynamic)

    return compile_it
