"""Equal computations are merged where nobody can tell, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from kernelfarm.compiler.trace.tidy import tidy


def _traced(function: Callable[..., Any], *args: torch.Tensor) -> GraphModule:
    return make_fx(function)(*args)


def _count(gm: GraphModule, op: Any) -> int:
    return sum(node.target is op for node in gm.graph.nodes)


X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
aten = torch.ops.aten


def test_equal_computations_become_one() -> None:
    """Two sines of one tensor are computed once, and so is what follows from them."""
    gm = _traced(lambda x: (x.sin() + 1).exp() * (x.sin() + 1).exp().cos(), X)
    expected = gm(X)
    assert tidy(gm) == 3
    assert _count(gm, aten.sin.default) == 1
    torch.testing.assert_close(gm(X), expected)


def test_two_outputs_stay_two_tensors() -> None:
    """A caller who writes into one output must not change the other, not even through a view."""
    gm = _traced(lambda x: (x.sin().view(-1), x.sin().view(-1)), X)
    tidy(gm)
    first, second = gm(X)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


def test_numbers_of_different_kinds_are_different_arguments() -> None:
    """1, 1.0 and True are equal in Python and not as arguments; 0.0 is not -0.0."""
    gm = _traced(lambda x: (x * 1 + x * 1.0) + (x / 0.0 + x / -0.0), X)
    assert tidy(gm) == 0


def test_random_numbers_are_drawn_as_often_as_written() -> None:
    """Two draws are two draws."""
    gm = _traced(lambda x: torch.rand_like(x) + torch.rand_like(x), X)
    tidy(gm)
    assert _count(gm, aten.rand_like.default) == 2


def test_a_graph_that_writes_is_left_alone() -> None:
    """Where an operator changes its argument, two equal reads may differ."""

    def writes(x: torch.Tensor) -> torch.Tensor:
        copy = x.clone()
        before = copy.sin()
        copy.add_(1)
        return before + copy.sin()

    gm = _traced(writes, X)
    expected = gm(X)
    tidy(gm)
    torch.testing.assert_close(gm(X), expected)
    assert _count(gm, aten.sin.default) == 2


def test_unused_computations_go() -> None:
    """What no output needs is dropped."""

    def wasteful(x: torch.Tensor) -> torch.Tensor:
        x.exp()
        return x.sin()

    gm = _traced(wasteful, X)
    tidy(gm)
    assert _count(gm, aten.exp.default) == 0
