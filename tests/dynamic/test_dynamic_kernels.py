"""The text of kernels with symbolic sizes: named alike, and accepted by the compilers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from families import FAMILIES, family_inputs
from generated import Recording, context
from symbolic import check_sizes, symbolic

from kernelfarm.compiler import tile
from kernelfarm.compiler.errors import GraphError
from kernelfarm.compiler.generate import generate
from kernelfarm.compiler.kernel import Kernel
from kernelfarm.compiler.lower.context import Lowering
from kernelfarm.compiler.seam.back import back_half
from kernelfarm.compiler.seam.front import devicelib_digest, front_half
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import current_toolchain


@pytest.fixture(autouse=True)
def cpu_is_target(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let code generation for a GPU take CPU tensors for the target's."""
    monkeypatch.setattr(
        "kernelfarm.compiler.generate.Lowering", lambda gm, device, s: Lowering(gm, "cpu", s)
    )
    yield


def _kernels(fn: Callable[..., Any], *inputs: Any, target: str = "h200") -> list[Kernel]:
    return generate(symbolic(fn, inputs), context(Recording(), target))[1]


def test_sizes_are_named_by_first_use() -> None:
    """The same computation over other symbols of a graph has the same text."""

    def both(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.sin().sum(1), y.sin().sum(1)

    assert len(_kernels(both, torch.randn(40, 300), torch.randn(50, 270))) == 1
    (one,) = _kernels(lambda y, x: x.sin().sum(1), torch.randn(7), torch.randn(40, 300))
    (other,) = _kernels(lambda x: x.sin().sum(1), torch.randn(41, 290))
    assert one.request.text == other.request.text
    assert "ks0" in one.request.text and "s77" not in one.request.text


def test_one_product_of_symbols_is_not_computed_twice() -> None:
    """Loops that are one after the other in memory are one loop over the product of their sizes."""
    (kernel,) = _kernels(lambda x: x + 1, torch.randn(3, 5, 7))
    assert "//" not in kernel.request.text and "%" not in kernel.request.text


def test_sizes_that_python_rounds_are_computed_in_integers() -> None:
    """Products with numbers that a double holds exactly, and quotients: down, up, towards zero."""

    def parts(x: torch.Tensor) -> Any:
        n = x.shape[0]
        down = (torch.sym_int(n * 0.75), torch.sym_int(n * 1.5) - n, torch.sym_int(n / 7))
        down += (math.floor(n / 4), math.floor(n * 0.125))
        up = (math.ceil(n * 0.25), math.ceil(n / 3), math.ceil(n * 1.0 / 4.0))
        return tuple(x[:size] * 2 for size in down + up)

    check_sizes(parts, (torch.randn(40),), *((torch.randn(n),) for n in (17, 41, 55, 70)))


def test_a_size_that_depends_on_how_a_product_rounds_is_refused() -> None:
    """No integers say what ``int(n * 0.7)`` is: 0.7 is rounded, and the product again."""
    with pytest.raises(GraphError, match="TruncToInt"):
        _kernels(lambda x: x[: torch.sym_int(x.shape[0] * 0.7)] * 2, torch.randn(40))


def test_positions_below_a_symbol_need_no_mask() -> None:
    """A range over a dimension that reads that dimension is known to be inside."""
    (kernel,) = _kernels(lambda x: x[torch.arange(x.shape[0])] + 1, torch.randn(40, 30))
    assert "tl.where" not in kernel.request.text


def test_a_bound_makes_a_row_persistent() -> None:
    """A row whose longest length is known is kept whole; others are looped over."""
    (looped,) = _kernels(lambda x: x.softmax(-1), torch.randn(40, 300))
    assert "for roffset" in looped.request.text
    assert dict(looped.request.constexprs)["RBLOCK"] <= 2048


def test_blocks_along_y_go_on_along_z(monkeypatch: pytest.MonkeyPatch) -> None:
    """More blocks along y than a grid can have are counted on along z, for every size."""
    monkeypatch.setattr(tile, "MAX_GRID_YZ", 2)
    monkeypatch.setattr("kernelfarm.compiler.kernel.MAX_GRID_YZ", 2)

    def turned(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous()

    call = check_sizes(turned, [torch.randn(40, 50)], [torch.randn(45, 301)], [torch.randn(300, 9)])
    assert "_min(" in call.text


@pytest.mark.slow
@pytest.mark.parametrize("target", ("h200", "mi300x"))
@pytest.mark.parametrize("family", FAMILIES)
def test_symbolic_kernels_compile_without_a_gpu(family: str, target: str) -> None:
    """Every family's kernels pass the front and back halves for GPUs of both makers."""
    digest, chain = devicelib_digest(), current_toolchain(Target.parse(target))
    kernels = _kernels(FAMILIES[family], *family_inputs((33, 50, 140, 7)), target=target)
    assert kernels
    for kernel in kernels:
        request = replace(kernel.request, toolchain=chain, helper_digest=digest)
        assert back_half(front_half(request)).binary


@pytest.mark.slow
def test_wide_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels whose sizes take 64 bits compile as well."""
    monkeypatch.setattr("kernelfarm.compiler.symbols.Symbols.allow", lambda self, sizes: False)
    chain = current_toolchain(Target.parse("h200"))

    def mixed(x: torch.Tensor) -> Any:
        return x.t().contiguous(), F.layer_norm(x, x.shape[1:]), x.reshape(-1)[::3] + 1

    for kernel in _kernels(mixed, torch.randn(300, 410)):
        assert "i64" in kernel.arg_kinds
        request = replace(kernel.request, toolchain=chain, helper_digest=devicelib_digest())
        assert back_half(front_half(request)).binary
