"""Attention becomes the form that the device model names, and computes what eager computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from kernelfarm.compiler.trace.attention import (
    AttentionFacts,
    Form,
    additive_mask,
    aligned_bias,
    attend,
    choose,
    choose_attention_everywhere,
)

SELF = AttentionFacts(
    q=(2, 4, 16, 64),
    k=(2, 4, 16, 64),
    v=(2, 4, 16, 64),
    dtype=torch.bfloat16,
    same_dtype=True,
    on_gpu=True,
    unit_stride=True,
    mask=False,
    is_causal=False,
    gqa=False,
)


@pytest.mark.parametrize(
    ("changes", "form"),
    [
        ({}, Form.FLASH),
        ({"is_causal": True}, Form.FLASH),
        ({"dtype": torch.float16}, Form.FLASH),
        ({"dtype": torch.float32}, Form.EFFICIENT),
        ({"dtype": torch.float64}, Form.MATH),
        ({"mask": True}, Form.EFFICIENT),
        ({"mask": True, "is_causal": True}, Form.MATH),
        ({"on_gpu": False}, Form.MATH),
        ({"unit_stride": False}, Form.MATH),
        ({"same_dtype": False}, Form.MATH),
        ({"flash_enabled": False}, Form.EFFICIENT),
        ({"flash_enabled": False, "efficient_enabled": False}, Form.MATH),
        # A causal rectangle: flash would align it to the other corner.
        ({"k": (2, 4, 24, 64), "v": (2, 4, 24, 64), "is_causal": True}, Form.EFFICIENT),
        ({"k": (2, 4, 24, 64), "v": (2, 4, 24, 64)}, Form.FLASH),
        ({"k": (2, 2, 16, 64), "v": (2, 2, 16, 64), "gqa": True}, Form.FLASH),
        ({"k": (2, 2, 16, 64), "v": (2, 2, 16, 64), "gqa": True, "mask": True}, Form.EFFICIENT),
        ({"k": (2, 2, 16, 64), "v": (2, 2, 16, 64)}, Form.MATH),
        ({"k": (2, 3, 16, 64), "v": (2, 3, 16, 64), "gqa": True}, Form.MATH),
        ({"v": (2, 4, 16, 32)}, Form.EFFICIENT),
        ({"q": (2, 4, 16, 512), "k": (2, 4, 16, 512), "v": (2, 4, 16, 512)}, Form.EFFICIENT),
        ({"q": (2, 4, 16, 20), "k": (2, 4, 16, 20), "v": (2, 4, 16, 20)}, Form.FLASH),
        (
            {"q": (2, 4, 16, 20), "k": (2, 4, 16, 20), "v": (2, 4, 16, 20), "mask": True},
            Form.MATH,
        ),
        ({"q": (2, 16, 64), "k": (2, 16, 64), "v": (2, 16, 64)}, Form.MATH),
        ({"q": (2, 4, 0, 64)}, Form.MATH),
        ({"k": (1, 4, 16, 64), "v": (1, 4, 16, 64)}, Form.MATH),
    ],
)
def test_form_follows_from_the_facts(changes: dict[str, Any], form: Form) -> None:
    """The choice is a pure function of shapes, dtypes, mask and the user's switches."""
    assert choose(replace(SELF, **changes), flash=True) is form


def test_a_model_without_flash_gets_the_efficient_form() -> None:
    """The device model has the last word on flash."""
    assert choose(SELF, flash=False) is Form.EFFICIENT


def _qkv(heads: int = 4, kv_heads: int = 4, length: int = 5) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, n, length, 8) for n in (heads, kv_heads, kv_heads)]


MASKS = {
    "bool": torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(1)) > 0.4,
    "float": torch.randn(5, 5, generator=torch.Generator().manual_seed(1)),
    "a row that keeps nothing": torch.ones(5, 5).tril(-1).bool(),
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"is_causal": True, "scale": 2.0},
        *({"attn_mask": mask} for mask in MASKS.values()),
    ],
    ids=str,
)
def test_off_the_gpu_it_computes_what_eager_computes(options: dict[str, Any]) -> None:
    """Masks of both kinds, causality and scale give eager's numbers in the math form."""
    q, k, v = _qkv()
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(attend(q, k, v, flash=True, **options), expected)


def test_grouped_queries_reach_the_math_form() -> None:
    """enable_gqa is honoured where heads differ in number."""
    q, k, v = _qkv(heads=4, kv_heads=2)
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(attend(q, k, v, enable_gqa=True, flash=True), expected)


def test_dropout_reaches_the_math_form() -> None:
    """With every weight dropped the result is zero."""
    q, k, v = _qkv()
    assert attend(q, k, v, dropout_p=1.0, flash=True).abs().max() == 0


@pytest.mark.parametrize("length", [5, 8, 13])
@pytest.mark.parametrize("shape", [(1, 1), (2, 4), (2, 1), (1,), ()])
def test_a_bias_keeps_its_values_and_gets_aligned_rows(length: int, shape: tuple[int, ...]) -> None:
    """Whatever broadcasts over batch and heads does, on rows of a multiple of eight elements."""
    q, k = torch.randn(2, 4, length, 8), torch.randn(2, 4, length, 8)
    mask = torch.randn(*shape, length, length)
    bias = aligned_bias(mask, q, k)
    torch.testing.assert_close(bias, mask.expand(2, 4, length, length))
    assert bias.stride(-1) == 1
    assert all(stride % 8 == 0 for stride in bias.stride()[:-1])


def test_a_bias_that_is_one_wide_is_spread_over_the_keys() -> None:
    """A mask of one column applies to every key and still has unit stride."""
    q = torch.randn(2, 4, 5, 8)
    mask = torch.randn(2, 1, 5, 1)
    bias = aligned_bias(mask, q, q)
    torch.testing.assert_close(bias, mask.expand(2, 4, 5, 5))
    assert bias.stride(-1) == 1


def test_a_bias_of_symbolic_length_serves_every_length() -> None:
    """Tracing guards nothing that a multiple of eight answers otherwise than other lengths do."""

    def attention(mask: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        bias = aligned_bias(mask, q, q)
        return torch.ops.aten._scaled_dot_product_efficient_attention.default(q, q, q, bias, True)[
            0
        ]

    graph = make_fx(
        attention,
        tracing_mode="symbolic",
        decomposition_table=get_decompositions([torch.ops.aten.constant_pad_nd]),
    )(torch.randn(2, 1, 13, 13), torch.randn(2, 4, 13, 8))
    guards = [guard.expr for guard in graph.shape_env.guards]
    asked = [(guard, symbol, n) for guard in guards for symbol in guard.free_symbols
             for n in range(2, 66)]  # fmt: skip
    assert asked
    assert not [case for case in asked if case[0].subs(*case[1:]) != sympy.true]


def test_an_aligned_bias_is_not_copied() -> None:
    """A mask that is fine as it stands is only viewed."""
    q = torch.randn(2, 4, 16, 8)
    mask = torch.randn(2, 4, 16, 16)
    assert aligned_bias(mask, q, q).data_ptr() == mask.data_ptr()


def test_true_keeps_and_false_removes() -> None:
    """A bool mask becomes 0 and minus infinity in the dtype of the query."""
    q = torch.randn(1, 1, 2, 8, dtype=torch.bfloat16)
    bias = additive_mask(torch.tensor([True, False]), q)
    assert bias.tolist() == [0.0, float("-inf")]
    assert bias.dtype == torch.bfloat16


def test_every_spelling_in_every_subgraph_is_replaced() -> None:
    """The operator is found under torch's, ATen's and nested modules' names."""
    inner = torch.fx.symbolic_trace(lambda q: F.scaled_dot_product_attention(q, q, q))

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = inner

        def forward(self, q: torch.Tensor) -> torch.Tensor:
            first = torch.ops.aten.scaled_dot_product_attention.default(q, q, q, None, 0.0, True)
            return first + torch._C._nn.scaled_dot_product_attention(q, q, q, scale=0.5)

    outer = torch.fx.symbolic_trace(Outer())
    outer.add_submodule("body", inner)
    q = _qkv()[0]
    expected = outer(q), inner(q)
    assert choose_attention_everywhere(outer, flash=True) == 3
    assert [n.target for n in outer.graph.nodes].count(attend) == 2
    torch.testing.assert_close((outer(q), inner(q)), expected)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-3), (torch.bfloat16, 2e-2), (torch.float16, 4e-3)]
)
@pytest.mark.parametrize("head", [20, 64])
@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": "bool"}], ids=str
)
def test_on_the_gpu_every_form_agrees_with_float64(
    options: dict[str, Any], head: int, dtype: torch.dtype, tolerance: float
) -> None:
    """The chosen form and its gradients are those of the exact computation."""
    torch.manual_seed(0)
    length = 13
    options = dict(options)
    if "attn_mask" in options:
        options["attn_mask"] = torch.rand(2, 1, length, length, device="cuda") > 0.3
        options["attn_mask"][..., 0] = True
    exact = [torch.randn(2, 4, length, head, device="cuda").double() for _ in range(3)]
    ours = [t.to(dtype).requires_grad_() for t in exact]
    exact = [t.detach().double().requires_grad_() for t in ours]
    out = attend(*ours, flash=True, **options)
    reference = F.scaled_dot_product_attention(*exact, **options)
    out.sum().backward()
    reference.sum().backward()
    torch.testing.assert_close(out.double(), reference, atol=tolerance, rtol=tolerance)
    for a, b in zip(ours, exact, strict=True):
        torch.testing.assert_close(a.grad.double(), b.grad, atol=4 * tolerance, rtol=tolerance)
