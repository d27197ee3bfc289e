"""Training on the GPU at hand: every size from one compilation, and dropout's distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from kernelfarm import backend

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

#: Twenty pairs of batch and length; batch 1 is Dynamo's own special case.
SIZES = [
    (2 + n % 5, length + n // 10)
    for n, length in enumerate([17, 33, 64, 100, 129, 200, 255, 256, 300, 511] * 2)
]


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A store of the test's own, a fresh report, and no fallback without a word."""
    monkeypatch.setenv("KERNELFARM_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("KERNELFARM_STRICT", "1")
    torch._dynamo.reset()
    monkeypatch.setattr(backend, "REPORT", backend.Report())
    yield
    torch._dynamo.reset()


def _gpt2() -> Any:
    config = GPT2Config(n_layer=3, use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    return GPT2LMHeadModel(config)


def _llama() -> Any:
    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=2,
            hidden_size=512,
            num_attention_heads=8,
            num_key_value_heads=4,
            intermediate_size=1408,
            vocab_size=32000,
            use_cache=False,
        )
    )


@pytest.mark.parametrize("make", [_gpt2, _llama])
def test_twenty_sizes_train_from_one_compilation(make: Any) -> None:
    """One forward and one backward program serve twenty batch and sequence sizes."""
    model = make().to(torch.bfloat16).cuda()
    model.loss_type = "ForCausalLM"
    compiled = torch.compile(model, backend="kernelfarm", dynamic=True)
    for batch, length in SIZES:
        ids = torch.randint(0, 32000, (batch, length), device="cuda")
        gradients = []
        losses = []
        for call in (compiled, model):
            loss = call(input_ids=ids, labels=ids).loss
            loss.backward()
            losses.append(loss.item())
            gradients.append([p.grad.float() for p in model.parameters()])
            model.zero_grad(set_to_none=True)
        assert abs(losses[0] - losses[1]) < 5e-3, (batch, length)
        for mine, eager in zip(*gradients, strict=True):
            assert (mine - eager).norm() <= 0.1 * eager.norm() + 1e-6, (batch, length)
    assert backend.REPORT.graphs["total"] == 2
    assert not backend.REPORT.eager and not backend.REPORT.uncached


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_rate_and_moments(share: float) -> None:
    """What is dropped, what is kept, and two calls, are as independent draws would be."""
    x = torch.ones(4 << 20, device="cuda")
    compiled = torch.compile(lambda x: F.dropout(x, share, True), backend="kernelfarm")
    torch.manual_seed(1)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(1)
    assert torch.equal(first, compiled(x))
    gone, again = first == 0, second == 0
    sigma = math.sqrt(share * (1 - share) / x.numel())
    assert abs(gone.double().mean().item() - share) < 5 * sigma
    both = share * share
    sigma = math.sqrt(both * (1 - both) / x.numel())
    assert abs((gone & again).double().mean().item() - both) < 5 * sigma
    kept = first[~gone]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - share)))


def test_the_backward_of_dropout_uses_the_same_mask() -> None:
    """The gradient is what was kept, scaled alike."""
    x = torch.randn(1 << 16, device="cuda", requires_grad=True)
    y = torch.compile(lambda x: F.dropout(x, 0.3, True), backend="kernelfarm")(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(y == 0, 0.0, 1 / 0.7))


def test_random_numbers_have_their_moments() -> None:
    """Uniform and normal numbers of one graph: range, mean, variance, fourth moment."""

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        size = 1 << 22
        return torch.rand(size, device="cuda"), torch.randn(size, device="cuda")

    uniform, normal = torch.compile(draw, backend="kernelfarm")()
    assert uniform.min().item() >= 0 and uniform.max().item() < 1
    assert abs(uniform.double().mean().item() - 0.5) < 1e-3
    assert abs(uniform.double().var().item() - 1 / 12) < 1e-3
    assert abs(normal.double().mean().item()) < 3e-3
    assert abs(normal.double().var().item() - 1) < 5e-3
    assert abs(normal.double().pow(4).mean().item() - 3) < 5e-2
