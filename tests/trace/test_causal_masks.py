"""Masks that say no more than is_causal are replaced by it, and no other mask ever is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernelfarm.compiler.trace.masks import state_causality

T = torch.Tensor
LENGTH = 6
INF = float("inf")


def _positions() -> tuple[T, T]:
    return torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None, :]


def _plain(x: T) -> T:
    query, key = _positions()
    return (key <= query).expand(2, 1, LENGTH, LENGTH)


def _packed(x: T) -> T:
    """What a model does that would also accept several texts in one row."""
    ids = torch.arange(LENGTH)[None].expand(2, -1)
    text = (torch.diff(ids, prepend=ids[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    batch = torch.arange(2)[:, None, None, None]
    query, key = (p[None, None] for p in _positions())
    return (key <= query) & (text[batch, query] == text[batch, key])


def _minus_infinity(x: T) -> T:
    return torch.full((LENGTH, LENGTH), -INF).triu(1)


def _lowest(x: T) -> T:
    query, key = _positions()
    return torch.zeros(LENGTH, LENGTH).masked_fill(key > query, torch.finfo(torch.float32).min)


CAUSAL = [_plain, _packed, _minus_infinity, _lowest]


def _window(x: T) -> T:
    query, key = _positions()
    return (key <= query) & (key > query - 3)


def _everything(x: T) -> T:
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool)


def _strict(x: T) -> T:
    query, key = _positions()
    return (key < query) | (key == 0)


def _slopes(x: T) -> T:
    query, key = _positions()
    return torch.where(key <= query, (key - query) * 0.5, -INF)


def _finite(x: T) -> T:
    query, key = _positions()
    return torch.where(key <= query, 0.0, -10_000.0)


def _from_input(x: T) -> T:
    query, key = _positions()
    return (key <= query) & (x[0, 0, :, :1] < INF)


def _written(x: T) -> T:
    query, key = _positions()
    mask = (key <= query).contiguous()
    mask[0, 3] = True
    return mask


def _written_through_a_view(x: T) -> T:
    query, key = _positions()
    mask = (key <= query).contiguous()
    mask.view(-1)[3:4].fill_(True)
    return mask


def _written_as_at_least_2d(x: T) -> T:
    query, key = _positions()
    mask = (key <= query).contiguous()
    torch.atleast_2d(mask)[0, 3] = True
    return mask


def _written_broadcast(x: T) -> T:
    query, key = _positions()
    mask = (key <= query).contiguous()
    torch.broadcast_tensors(mask, mask)[0].fill_(True)
    return mask


def _written_on_the_cpu(x: T) -> T:
    query, key = _positions()
    mask = (key <= query).contiguous()
    mask.cpu()[0, 3] = True
    return mask


def _written_as_data(x: T) -> T:
    query, key = _positions()
    mask = (key <= query).contiguous()
    mask.data.fill_(True)
    return mask


def _written_by_a_switch(x: T) -> T:
    mask = torch.full((LENGTH, LENGTH), -INF).triu(1)
    F.relu(mask, inplace=True)
    return mask


def _written_by_a_switch_at_its_place(x: T) -> T:
    mask = torch.full((LENGTH, LENGTH), -INF).triu(1)
    F.relu(mask, True)
    return mask


def _written_by_an_operator(x: T) -> T:
    mask = torch.full((LENGTH, LENGTH), -INF).triu(1)
    torch.ops.aten.relu_(mask)
    return mask


def _random(x: T) -> T:
    query, key = _positions()
    return (key <= query) & (torch.rand(LENGTH, LENGTH) < 2)


OTHER = [
    _window, _everything, _strict, _slopes, _finite, _from_input, _written,
    _written_through_a_view, _random, _written_as_at_least_2d, _written_broadcast,
    _written_on_the_cpu, _written_as_data, _written_by_a_switch,
    _written_by_a_switch_at_its_place, _written_by_an_operator,
]  # fmt: skip


def _replaced(mask: Callable[[T], T]) -> tuple[int, T, T]:
    """How many masks were replaced in the graph of one attention call; its result, and eager's."""
    counts = []

    def backend(module: Any, inputs: Any) -> Any:
        counts.append(state_causality(module.graph))
        module.recompile()
        return module

    def fn(x: T) -> T:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask(x))

    torch._dynamo.reset()
    x = torch.randn(2, 3, LENGTH, 4)
    got = torch.compile(fn, backend=backend, fullgraph=True)(x)
    return sum(counts), got, fn(x)


@pytest.mark.parametrize("mask", CAUSAL)
def test_a_causal_triangle_is_replaced(mask: Callable[[T], T]) -> None:
    """Whatever a model builds the triangle with, attention is told that it is causal."""
    count, got, want = _replaced(mask)
    assert count == 1
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("mask", OTHER)
def test_every_other_mask_stays(mask: Callable[[T], T]) -> None:
    """A mask that says more, or that is not known while tracing, is left alone."""
    count, got, want = _replaced(mask)
    assert count == 0
    torch.testing.assert_close(got, want)


def test_a_rectangle_stays() -> None:
    """Fewer queries than keys have no triangle of their own."""

    def fn(q: T, k: T) -> T:
        mask = torch.arange(4)[None, :] <= torch.arange(2)[:, None]
        return F.scaled_dot_product_attention(q, k, k, mask)

    seen = []

    def backend(module: Any, inputs: Any) -> Any:
        seen.append(state_causality(module.graph))
        return module

    torch._dynamo.reset()
    torch.compile(fn, backend=backend)(torch.randn(1, 1, 2, 4), torch.randn(1, 1, 4, 4))
    assert seen == [0]


def test_sizes_that_may_change_say_nothing() -> None:
    """A mask over a symbolic length is not computed for one length."""

    def fn(x: T) -> T:
        at = torch.arange(x.shape[2])
        return F.scaled_dot_product_attention(x, x, x, at[None, :] <= at[:, None])

    seen = []

    def backend(module: Any, inputs: Any) -> Any:
        seen.append(state_causality(module.graph))
        return module

    torch._dynamo.reset()
    x = torch.randn(2, 3, 6, 4)
    torch._dynamo.mark_dynamic(x, 2)
    torch.compile(fn, backend=backend)(x)
    assert seen == [0]
