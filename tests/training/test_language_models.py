"""Small GPT-2 and Llama: the loss and the gradients of all parameters are as good as eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

pytestmark = pytest.mark.slow

WORDS = 97


def gpt2() -> torch.nn.Module:
    """Two layers, without dropout."""
    config = GPT2Config(
        n_layer=2, n_embd=32, n_head=2, n_positions=32, vocab_size=WORDS, use_cache=False,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    return model


def llama() -> torch.nn.Module:
    """Two layers, two query heads for each pair of key and value."""
    config = LlamaConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, vocab_size=WORDS, max_position_embeddings=32, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def trained(run, model, ids):
    """The loss, the logits and all gradients of one step."""
    model.zero_grad()
    output = run(input_ids=ids, labels=ids.clone())
    output.loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return {"loss": output.loss.detach(), "logits": output.logits.detach(), **gradients}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("build", [gpt2, llama])
def test_a_training_step_is_as_close_to_float64_as_eagers(compiled, backend, build, dtype):
    """Loss, logits and every gradient have at most half again eager's error."""
    model = build().train().to(dtype)
    exact = copy.deepcopy(model).double()
    ids = torch.randint(0, WORDS, (2, 16))
    got = trained(compiled(model), model, ids)
    eager = trained(model, model, ids)
    reference = trained(exact, exact, ids)
    assert backend.REPORT.graphs["total"] == 2, backend.heard
    for name, value in reference.items():
        assert got[name].dtype == eager[name].dtype, name
        norm = value.norm()
        ours, theirs = ((r[name].double() - value).norm() / norm for r in (got, eager))
        assert ours <= 1.5 * theirs + 2 * torch.finfo(dtype).eps, (name, ours, theirs)


@pytest.mark.parametrize("build", [gpt2, llama])
def test_losses_follow_eager_from_step_to_step(compiled, build):
    """Five steps of AdamW from the same weights have the same losses, and these fall."""
    model = build().train()
    twin = copy.deepcopy(model)
    ids = torch.randint(0, WORDS, (2, 16))
    curves = []
    for run, module in ((compiled(model), model), (twin, twin)):
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        curve = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = run(input_ids=ids, labels=ids.clone()).loss
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(curve)
    got, want = curves
    assert want[-1] < 0.9 * want[0]
    assert got == pytest.approx(want, rel=1e-4)
