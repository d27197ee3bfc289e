"""Activation checkpointing: recomputed, with the same random numbers, and kept in the store."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from kernelfarm.compiler.trace.randomness import draws

T = torch.Tensor
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


def block(x: T, w: T, p: float = 0.0) -> T:
    """Enough to be worth recomputing."""
    h = torch.sin(x @ w)
    h = F.dropout(h, p) if p else h
    return torch.tanh(h @ w.t()) * torch.sigmoid(h.sum(-1, keepdim=True))


def grads(fn: Callable[[T, T], T], x: T, w: T) -> list[T]:
    """Result and gradients."""
    a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
    out = fn(a, b)
    out.square().sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    return [out.detach(), a.grad, b.grad]


def inputs() -> tuple[T, T]:
    """A batch and a weight."""
    return torch.randn(6, 8, dtype=torch.float64), torch.randn(8, 8, dtype=torch.float64) * 0.3


@pytest.fixture
def graphs(backend: Any, monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """The graphs that reach the compiler."""
    seen: list[torch.fx.GraphModule] = []
    real = backend.compile_graph

    def watch(gm: Any, given: Any, context: Any) -> Any:
        seen.append(gm)
        return real(gm, given, context)

    monkeypatch.setattr(backend, "compile_graph", watch)
    return seen


def operators(gm: torch.fx.GraphModule) -> list[str]:
    """Names of what a graph calls."""
    return [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_recomputes_and_agrees(compiled, graphs, reentrant):
    """Two checkpointed blocks: eager's gradients, with products computed again in the backward."""
    x, w = inputs()

    def fn(x, w):
        for _ in range(2):
            x = checkpoint(block, x, w, use_reentrant=reentrant)
        return x

    got = grads(compiled(fn), x, w)
    want = grads(lambda x, w: block(block(x, w), w), x, w)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    if not reentrant:
        assert len(graphs) == 2
        products = operators(graphs[1]).count("aten.mm.default")
        assert products > 8  # two for each of four products, and what is computed again
        assert not any("higher_order" in op for gm in graphs for op in operators(gm))


@pytest.mark.parametrize("preserve", [False, True])
@pytest.mark.parametrize("fallback", [False, True])
def test_dropout_inside_a_checkpoint(compiled, graphs, preserve, fallback):
    """The backward sees the mask that the forward drew, and the generator moves on once a call."""
    x, w = inputs()

    def fn(x, w):
        h = checkpoint(
            lambda x: F.dropout(torch.sin(x), 0.5) * 3,
            x, use_reentrant=False, preserve_rng_state=preserve,
        )  # fmt: skip
        return F.dropout(h, 0.25) + 0 * w.sum()

    run = compiled(fn, fallback_random=fallback)
    a = x.clone().requires_grad_()
    b = w.clone().requires_grad_()
    torch.manual_seed(4)
    out = run(a, b)
    out.sum().backward()
    factor = out.detach() / torch.sin(x)
    torch.testing.assert_close(a.grad, factor * torch.cos(x))
    torch.manual_seed(4)
    again = run(a, b)
    torch.testing.assert_close(again, out, rtol=0, atol=0)
    assert not torch.equal(run(a, b), out)
    assert len(graphs) == 2
    assert not any(draws(n) for n in graphs[1].graph.nodes)


def test_dropout_masks_are_recomputed_not_kept(compiled, graphs):
    """A checkpoint keeps the seed and no mask: that is what it is for."""
    x = torch.randn(64, 64, requires_grad=True)

    def fn(x):
        return checkpoint(lambda x: F.dropout(torch.sin(x), 0.5).exp(), x, use_reentrant=False)

    compiled(fn)(x).sum().backward()
    backward = graphs[1]
    saved = [n.meta["val"] for n in backward.graph.nodes if n.op == "placeholder"]
    assert not any(s.dtype == torch.bool for s in saved)
    assert "kernelfarm.uniform.default" in operators(backward)
    assert any(s.dtype == torch.int64 and s.numel() == 2 for s in saved)


def test_a_selective_policy_saves_what_it_names(compiled, graphs):
    """Products are saved, the rest is recomputed."""
    x, w = inputs()

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op == torch.ops.aten.mm.default:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)

    def fn(x, w):
        return checkpoint(block, x, w, 0.0, use_reentrant=False, context_fn=contexts)

    got = grads(compiled(fn), x, w)
    want = grads(block, x, w)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    assert operators(graphs[1]).count("aten.mm.default") == 4  # the gradients' own


def test_attention_without_dropout_is_recomputed_without_keeping_a_generators_state(
    compiled, graphs
):
    """Attention operators are marked as random; with dropout 0 no state is saved around them."""

    def fn(q):
        def attend(q):
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[0] * 2

        return checkpoint(attend, torch.tanh(q), use_reentrant=False)

    q = torch.randn(1, 2, 8, 8, requires_grad=True)
    p = q.detach().clone().requires_grad_()
    compiled(fn)(q).sum().backward()
    fn(p).sum().backward()
    torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-5)
    names = operators(graphs[1])
    assert "aten._scaled_dot_product_flash_attention_for_cpu.default" in names
    assert not any("rng_state" in op for gm in graphs for op in operators(gm))


def test_random_operators_that_are_not_ours_are_saved(compiled, graphs):
    """A checkpointed draw by the library happens once, and its result is kept."""
    x = torch.randn(50, dtype=torch.float64, requires_grad=True)

    def fn(x):
        def inner(x):
            return torch.sin(x) * torch.empty_like(x).exponential_()

        return checkpoint(inner, x, use_reentrant=False)

    out = compiled(fn)(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, (out / torch.sin(x) * torch.cos(x)).detach())
    assert [op for op in operators(graphs[1]) if "exponential" in op] == []


def test_checkpointed_graphs_are_keyed(compiled, graphs):
    """After AOTAutograd nothing opaque is left: forward and backward have exact keys."""
    from kernelfarm.compiler.graph_key import graph_key_parts
    from kernelfarm.compiler.seam.target import Target
    from kernelfarm.compiler.seam.toolchain import Toolchain

    x = torch.randn(6, 8, requires_grad=True)
    w = torch.randn(8, 8, requires_grad=True)
    compiled(lambda x, w: checkpoint(block, x, w, 0.5, use_reentrant=False))(x, w).sum().backward()
    assert len(graphs) == 2
    for gm in graphs:
        values = [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]
        parts = graph_key_parts(
            gm, values, target=Target.parse("h200"), toolchain=Toolchain("content", ())
        )
        assert dict(parts)["graph.nodes"]


def test_nested_checkpoints(compiled):
    """A checkpoint inside of a checkpoint."""
    x, w = inputs()

    def fn(x, w):
        def outer(x):
            y = checkpoint(block, x, w, use_reentrant=False)
            return torch.cos(y) * x

        return checkpoint(outer, x, use_reentrant=False)

    got = grads(compiled(fn), x, w)
    want = grads(lambda x, w: torch.cos(block(x, w)) * x, x, w)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
