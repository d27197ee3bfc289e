"""What every test shares: no setting of the developer's reaches a test, and no GPU no GPU test."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

# Before any test module is imported: what the developer has set is not what is tested.
for _name in [name for name in os.environ if name.startswith("KERNELFARM_")]:
    del os.environ[_name]


@cache
def _has_gpu() -> bool:
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return False
    import torch

    return torch.cuda.is_available()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Thin out the tests marked every(n) and skip those marked gpu where there is none."""
    seen: Counter[str] = Counter()
    for item in items:
        thinned = item.get_closest_marker("every")
        if thinned is not None:
            test = item.nodeid.partition("[")[0]
            if seen[test] % thinned.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1
    if _has_gpu():
        return
    skip = pytest.mark.skip(reason="no CUDA GPU on this machine")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run rewrite the files under tests/golden instead of comparing with them."""
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden anew from what is printed"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compare a text with tests/golden/<test file>/<test>.txt, or write it (--update-golden)."""
    file = request.path.stem
    name = request.node.name.replace("[", "-").rstrip("]")
    path = Path(__file__).parent / "golden" / file / f"{name}.txt"

    def compare(text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run this test with --update-golden and review it"
        assert text == path.read_text()

    return compare


@pytest.fixture
def local_dir() -> Iterator[Path]:
    """An empty directory on a local filesystem, where a store may lie (/dev/shm if it is there)."""
    shared_memory = Path("/dev/shm")
    base = shared_memory if os.access(shared_memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="kernelfarm-test-", dir=base) as folder:
        yield Path(folder)
