"""Kernels as text and ready-made requests for the seam's tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.compiler.seam.options import backend_options
from kernelfarm.compiler.seam.request import SourceRequest
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import current_toolchain, devicelib_digest

POINTWISE = """\
@triton.jit
def kf_pointwise(source, target, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at, mask=at < n)
    tl.store(target + at, value * 2.0 + 1.0, mask=at < n)
"""

REDUCTION = """\
@triton.jit
def kf_reduction(source, target, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += libdevice.exp2(tl.load(source + row * n + at, mask=at < n, other=0.0))
    tl.store(target + row, tl.sum(total, 0))
"""

ASSERTING = """\
@triton.jit
def kf_asserting(source, target, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at, mask=at < n)
    tl.device_assert(value > 0, "must be positive")
    tl.store(target + at, value, mask=at < n)
"""

SPILLING = """\
@triton.jit
def kf_spilling(source, target, n, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)[:, None]
    columns = tl.arange(0, 64)[None, :]
    total = tl.zeros([BLOCK, 64], tl.float32)
    for step in range(0, n):
        value = tl.load(source + rows * n + columns + step)
        total += value * tl.sum(value, 1)[:, None]
    tl.store(target + rows * n + columns, total)
"""

TEXTS = {
    "kf_pointwise": POINTWISE,
    "kf_reduction": REDUCTION,
    "kf_asserting": ASSERTING,
    "kf_spilling": SPILLING,
}

MakeRequest = Callable[..., SourceRequest]


def source_request(
    entry: str = "kf_pointwise",
    arch: str = "sm_90",
    *,
    text: str | None = None,
    block: int = 128,
    environ: dict[str, str] | None = None,
    identity: str = "content",
    **options: Any,
) -> SourceRequest:
    """Return a request for one of TEXTS; ``environ`` is what the asking side has set."""
    target = Target.parse(arch)
    return SourceRequest(
        text=TEXTS[entry] if text is None else text,
        helper_digest=devicelib_digest(),
        entry=entry,
        signature=(("source", "*fp32"), ("target", "*fp32"), ("n", "i32"), ("BLOCK", "constexpr")),
        constexprs=(("BLOCK", block),),
        attributes=((0, (("tt.divisibility", 16),)), (1, (("tt.divisibility", 16),))),
        options=backend_options(target, **options),
        target=target,
        toolchain=current_toolchain(target, identity, environ),  # type: ignore[arg-type]
    )


@pytest.fixture
def make_request() -> MakeRequest:
    """`source_request` as a fixture."""
    return source_request


@pytest.fixture(autouse=True, scope="session")
def _own_surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No compiler variable of the developer's counts, and nothing is written below home."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("TRITON_", "PTXAS_", "MLIR_", "LLVM_", "AMDGCN_", "NVPTX_")):
                patch.delenv(name)
        base = tmp_path_factory.mktemp("surroundings")
        patch.setenv("XDG_CACHE_HOME", str(base / "cache"))
        patch.setenv("TRITON_CACHE_DIR", str(base / "triton"))
        yield base


@pytest.fixture(scope="module")
def make_request_for_module() -> MakeRequest:
    """`source_request` for fixtures that live as long as their module."""
    return source_request
