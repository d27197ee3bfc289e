"""The shim is built once, privately and atomically, and says what to do when it cannot be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelfarm.compiler.trace import shim
from kernelfarm.compiler.trace.errors import ShimUnavailable

pytestmark = pytest.mark.skipif(
    torch.backends.cuda.is_built(), reason="this torch has a device guard of its own"
)


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kernelfarm" / "shim"


def test_it_is_built_once_into_a_private_directory(private_cache: Path) -> None:
    """A second request loads the file that the first one made."""
    install = shim._function(shim._GUARD, "kernelfarm_install_guard")
    (library,) = private_cache.iterdir()
    built = library.stat().st_mtime_ns
    assert private_cache.stat().st_mode & 0o077 == 0
    shim._function(shim._GUARD, "kernelfarm_install_guard")
    assert library.stat().st_mtime_ns == built
    install()
    assert install() == 0  # there is a guard now, and it is left alone


def test_a_damaged_library_is_built_again(private_cache: Path) -> None:
    """A file cut short is replaced and not reported."""
    shim.build(shim._GUARD, private_path(private_cache))
    whole = private_path(private_cache).read_bytes()
    private_path(private_cache).unlink()
    private_path(private_cache).write_bytes(whole[: len(whole) // 2])
    assert callable(shim._function(shim._GUARD, "kernelfarm_install_guard"))
    assert len(private_path(private_cache).read_bytes()) == len(whole)


def private_path(directory: Path) -> Path:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory / f"shim-{shim._digest(shim._GUARD)}.so"


def test_a_directory_that_others_can_write_is_not_used(private_cache: Path) -> None:
    """Code is only loaded from where nobody else can put any."""
    private_cache.mkdir(parents=True)
    private_cache.chmod(0o777)
    assert shim._shared_directory() != private_cache


def test_no_compiler_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler the message says what to install."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ShimUnavailable, match=r"no C\+\+ compiler.*install g\+\+"):
        shim._function(shim._GUARD, "kernelfarm_install_guard")


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first error line of the compiler is in the message, and no file is left."""
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho 'fatal error: no disk' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(ShimUnavailable, match=r"failed on shim\.cpp .*no disk"):
        shim.build(shim._GUARD, tmp_path / "guard.so")
    assert not (tmp_path / "guard.so").exists()


@pytest.mark.slow
def test_pretending_ends_with_the_trace() -> None:
    """In a fresh process a training trace succeeds, leaves torch as it was, and exits cleanly."""
    program = """
import torch
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.trace.fake import trace_call

before = torch.accelerator.current_accelerator()
args = (torch.ones(2, 3),)
compile_graph = lambda gm, inputs, info: None
trace = trace_call(
    torch.nn.Linear(3, 3), args, Target.parse("h200"), "train", compile_graph=compile_graph
)
assert trace.graphs == ("forward", "backward"), trace
assert torch.accelerator.current_accelerator() == before
assert torch.ones(2, requires_grad=True).sum().item() == 2
torch.ones(2, requires_grad=True).sum().backward()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
