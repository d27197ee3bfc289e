"""GPU attention operators by their formula: arity, strides, values, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernelfarm.compiler.host_errors import RunError
from kernelfarm.compiler.runtime.interpreter import InterpreterRuntime

RUNTIME = InterpreterRuntime()


def operator(name: str) -> Any:
    return RUNTIME.resolve(f"aten._scaled_dot_product_{name}.default")


def tensors(transposed: bool, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(2, 4, 16, 32, dtype=dtype) for _ in range(3)]
    return [t.transpose(1, 2).contiguous().transpose(1, 2) for t in made] if transposed else made


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_flash_forward(transposed: bool, causal: bool) -> None:
    """Nine results, laid out as torch's shape function says, with the right values."""
    q, k, v = tensors(transposed)
    results = operator("flash_attention")(q, k, v, 0.0, causal, scale=0.3)
    meta = torch.ops.aten._scaled_dot_product_flash_attention.default(
        *(t.to("meta") for t in (q, k, v)), 0.0, causal, scale=0.3
    )
    assert len(results) == 9
    for found, wanted in zip(results, meta, strict=True):
        if isinstance(wanted, torch.Tensor):
            assert (found.size(), found.stride()) == (wanted.size(), wanted.stride())
            assert found.dtype == wanted.dtype
        else:
            assert found == wanted
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3)
    assert torch.allclose(results[0], want, atol=1e-5)


def test_flash_keeps_half_precision_and_accumulates_wide() -> None:
    """bfloat16 in, bfloat16 out, computed in float32 between."""
    q, k, v = tensors(True, torch.bfloat16)
    found = operator("flash_attention")(q, k, v)[0]
    want = F.scaled_dot_product_attention(q.float(), k.float(), v.float()).bfloat16()
    assert found.dtype == torch.bfloat16
    # One bfloat16 step apart at most: the two round their float32 sums in another order.
    assert torch.allclose(found.float(), want.float(), rtol=2**-7, atol=1e-3)


def test_grouped_queries() -> None:
    """Eight query heads share two key and value heads."""
    q, k, v = torch.randn(1, 8, 8, 16), torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 16)
    found = operator("flash_attention")(q, k, v)[0]
    want = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert torch.allclose(found, want, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_efficient_forward_with_a_mask(causal: bool) -> None:
    """The mask is added, never dropped; the log-sum-exp may be padded at its end."""
    q, k, v = tensors(True)
    bias = torch.randn(2, 4, 16, 16)
    results = operator("efficient_attention")(q, k, v, bias, True, 0.0, causal)
    assert len(results) == 4
    full = bias.masked_fill(~torch.ones(16, 16).tril().bool(), float("-inf")) if causal else bias
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=full)
    assert torch.allclose(results[0], want, atol=1e-5)
    scores = q @ k.transpose(-2, -1) / 32**0.5 + full
    assert torch.allclose(results[1][..., :16], scores.logsumexp(-1), atol=1e-5)


def test_a_row_that_sees_nothing_is_zero() -> None:
    """A fully masked row yields zeros."""
    q, k, v = tensors(False)
    bias = torch.zeros(2, 4, 16, 16)
    bias[:, :, 3] = float("-inf")
    found = operator("efficient_attention")(q, k, v, bias, False)[0]
    assert torch.equal(found[:, :, 3], torch.zeros(2, 4, 32))
    assert not found.isnan().any()


@pytest.mark.parametrize("form", ["flash", "efficient"])
def test_backward(form: str) -> None:
    """Gradients are those of autograd through the formula, laid out as torch says."""
    q, k, v = (t.requires_grad_() for t in tensors(True))
    grad = torch.randn(2, 4, 16, 32)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    want = torch.autograd.grad(out, (q, k, v), grad)
    q, k, v = (t.detach() for t in (q, k, v))
    seed = torch.zeros((), dtype=torch.int64)
    if form == "flash":
        forward = operator("flash_attention")(q, k, v, 0.0, True)
        found = operator("flash_attention_backward")(
            grad, q, k, v, forward[0], forward[1], None, None, 16, 16, 0.0, True, seed, seed
        )
        assert len(found) == 3
    else:
        forward = operator("efficient_attention")(q, k, v, None, True, 0.0, True)
        found = operator("efficient_attention_backward")(
            grad, q, k, v, None, *forward[:2], seed, seed, 0.0, [True, True, True, False], True
        )
        assert len(found) == 4
    for one, other in zip(found[:3], want, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
        assert one.stride() == q.stride()


def test_dropout_is_refused() -> None:
    """Random numbers of the GPU are not imitated: an error, not other numbers."""
    q, k, v = tensors(False)
    with pytest.raises(RunError, match="dropout"):
        operator("flash_attention")(q, k, v, 0.5)
