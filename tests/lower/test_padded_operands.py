"""Products along an unaligned dimension of what kernels computed: padded rows, two calls each."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from body_eval import trace
from interpret import interpret

from kernelfarm.compiler.ir import Extern
from kernelfarm.compiler.lower import matmul
from kernelfarm.compiler.lower.context import Lowering

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split products of a few elements."""
    monkeypatch.setattr(matmul, "WORTHWHILE", 1)


def _gradients(g: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What the loss of a language model does: logits' gradient against weight and input."""
    scaled = (g.float().tanh() * 2 - g.float().sum(-1, keepdim=True) / 64).to(BF16).to(w.dtype)
    flat = scaled.view(-1, g.shape[-1])
    return flat @ w, flat.t() @ x, scaled.float().sum((0, 1))


def _inputs(vocabulary: int, width: int = 16) -> tuple[torch.Tensor, ...]:
    return (
        torch.randn(4, 6, vocabulary).to(BF16),
        torch.randn(vocabulary, width).to(BF16),
        torch.randn(24, width).to(BF16),
    )


@pytest.mark.parametrize("vocabulary", (17, 29, 9))
def test_both_products_of_a_gradient_equal_eager(vocabulary: int) -> None:
    """The few that are left and the whole vectors add up, in both directions."""
    inputs = _inputs(vocabulary)
    got, _ = interpret(trace(_gradients, inputs), inputs)
    exact = _gradients(inputs[0], *(t.double() for t in inputs[1:]))
    eager = _gradients(*inputs)
    for mine, theirs, true in zip(got, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype and mine.stride() == theirs.stride()
        error = (mine.double() - true).abs().max()
        assert error <= 1.5 * (theirs.double() - true).abs().max() + 0.02 * true.abs().max()


def test_what_products_read_is_stored_once_in_padded_rows() -> None:
    """One buffer with aligned rows serves both products, each in two calls."""
    graph = Lowering(trace(_gradients, _inputs(17)), "cpu").run()
    calls = Counter(node.op for node in graph.nodes if isinstance(node, Extern))
    assert calls == {"aten.mm.out": 3, "aten.addmm.out": 1}
    padded = [
        b for b in graph.buffers.values() if b.role == "compute" and b.strides[-2:] == (24, 1)
    ]
    assert len(padded) == 1


def test_an_aligned_product_is_one_call() -> None:
    """Sizes that are multiples of 16 bytes need nothing of this."""
    graph = Lowering(trace(_gradients, _inputs(24)), "cpu").run()
    calls = Counter(node.op for node in graph.nodes if isinstance(node, Extern))
    assert calls == {"aten.mm.default": 2}


def test_other_readers_of_padded_rows_see_the_traced_layout() -> None:
    """A result, and a call that is not a product, get the strides that eager would give them."""

    def fn(g: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scaled = (g.float() * 2).to(BF16)
        return scaled @ w, scaled, torch.linalg.vector_norm(scaled.float()), scaled.cumsum(0)

    inputs = (torch.randn(8, 17).to(BF16), torch.randn(17, 16).to(BF16))
    got, _ = interpret(trace(fn, inputs), inputs)
    for mine, theirs in zip(got, fn(*inputs), strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, rtol=3e-2, atol=3e-2)
