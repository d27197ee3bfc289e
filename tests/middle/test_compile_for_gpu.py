"""Generated kernels compile for GPUs on a machine without one, and the row kernels do not spill.

The interpreter does not type-check; these tests are where a text that only looks right is caught.
Run them with the oldest and the newest Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import CASES, ROWS
from generated import generated

from kernelfarm.compiler.seam.back import back_half
from kernelfarm.compiler.seam.front import devicelib_digest, front_half
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import current_toolchain

pytestmark = pytest.mark.slow


def compiled(fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...], name: str) -> list[Any]:
    """The artifacts of a function's kernels for one target."""
    target = Target.parse(name)
    toolchain = current_toolchain(target)
    _, kernels, _ = generated(fn, *inputs, target=name)
    assert kernels
    digest = devicelib_digest()
    requests = [replace(k.request, toolchain=toolchain, helper_digest=digest) for k in kernels]
    return [back_half(front_half(r)) for r in requests]


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_statement_compiles_for_hopper(case: str) -> None:
    """Every dtype, reduction and spelling passes Triton's type checks and its back half."""
    fn, inputs = CASES[case]
    assert all(a.binary for a in compiled(fn, inputs, "h200"))


@pytest.mark.parametrize(
    "case",
    ("kept torch.int64", "floats torch.bfloat16", "bools", "cat", "gather", "random",
             *(name for name in CASES if name.startswith("sums")))
)  # fmt: skip
def test_kernels_compile_for_amd(case: str) -> None:
    """The same texts compile for a GPU of another vendor."""
    fn, inputs = CASES[case]
    assert all(a.kind == "hsaco" for a in compiled(fn, inputs, "mi300x"))


@pytest.mark.parametrize("target", ("h200", "mi300x"))
@pytest.mark.parametrize("case", ROWS)
def test_row_kernels_do_not_spill(case: str, target: str) -> None:
    """A kernel as fast as memory keeps its row in registers."""
    fn, inputs = ROWS[case]
    for artifact in compiled(fn, inputs, target):
        assert artifact.spills == 0, (artifact.metadata.name, artifact.registers)
