"""Attention learns from the loops of its mask whether the future is forbidden."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from kernelfarm.compiler.ir import Extern
from kernelfarm.compiler.lower.context import Lowering
from kernelfarm.compiler.trace.decomposition import decomposition_table
from kernelfarm.compiler.trace.shim import ensure_device_guard

LENGTH = 16
Mask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def causal_in(mask: Mask, *, low: float = float("-inf"), copies: int = 2) -> list[bool]:
    """Whether each attention call of a graph with this mask is told that it is causal."""

    def attend(x: torch.Tensor, segment: torch.Tensor) -> torch.Tensor:
        allowed = mask(torch.arange(LENGTH, device="cuda"), segment)
        bias = torch.where(allowed, 0.0, low).to(torch.bfloat16)
        bias = bias.expand(2, 4, LENGTH, LENGTH)
        for _ in range(copies):
            x = torch.ops.aten._scaled_dot_product_efficient_attention(x, x, x, bias, False)[0]
        return x

    ensure_device_guard()
    with FakeTensorMode(), torch.no_grad():
        x = torch.empty(2, 4, LENGTH, 8, device="cuda", dtype=torch.bfloat16)
        segment = torch.empty(2, 1, LENGTH, device="cuda", dtype=torch.int64)
        gm = make_fx(attend, decomposition_table=decomposition_table())(x, segment)
    graph = Lowering(gm).run()
    calls = [n for n in graph.nodes if isinstance(n, Extern) and "attention" in n.op]
    assert len(calls) == copies
    return [len(c.args) > 6 and c.args[6] is True for c in calls]


def order(p: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return p[None, :] <= p[:, None]


PROVEN: dict[str, Mask] = {
    "key at most query": order,
    "query at least key": lambda p, s: p[:, None] >= p[None, :],
    "strictly before": lambda p, s: p[None, :] < p[:, None],
    "and in one segment": lambda p, s: order(p, s) & (s[..., :, None] == s[..., None, :]),
    "positions of positions": lambda p, s: p[p][None, :] <= p[p[:, None]],
}
UNPROVEN: dict[str, Mask] = {
    "everything": lambda p, s: torch.ones(LENGTH, LENGTH, dtype=torch.bool, device="cuda"),
    "the past forbidden": lambda p, s: p[None, :] >= p[:, None],
    "one key ahead allowed": lambda p, s: p[None, :] <= p[:, None] + 1,
    "order or segment": lambda p, s: order(p, s) | (s[..., :, None] == s[..., None, :]),
    "order of data": lambda p, s: s[..., None, :] <= s[..., :, None],
    "negated": lambda p, s: ~order(p, s),
}


@pytest.mark.parametrize("name", PROVEN)
def test_a_mask_that_forbids_the_future_makes_attention_causal(name: str) -> None:
    """Where positions prove that no key after the query counts, every call says is_causal."""
    assert causal_in(PROVEN[name]) == [True, True]


@pytest.mark.parametrize("name", UNPROVEN)
def test_any_other_mask_is_only_applied(name: str) -> None:
    """A mask that allows some key after the query, or that data decides, is left to the bias."""
    assert causal_in(UNPROVEN[name]) == [False, False]


def test_a_large_negative_bias_is_not_infinity() -> None:
    """A finite bias forbids nothing: a row of nothing else still attends to such keys."""
    assert causal_in(order, low=-1e9) == [False, False]
