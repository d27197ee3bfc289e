"""A whole small GPT-2 through torch.compile, kernels run by the interpreter, against eager."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

pytestmark = pytest.mark.slow


@pytest.fixture
def compile_strictly(monkeypatch):
    """torch.compile with our backend, the interpreter, and no way out into eager."""
    monkeypatch.setenv("KERNELFARM_FARM", "0")
    from kernelfarm import backend, compose
    from kernelfarm.cache.store import MemoryStore
    from kernelfarm.inline import InlineFarm

    monkeypatch.setattr(
        backend,
        "shared_world",
        lambda knobs: compose.World(knobs, backend.NOTICES, MemoryStore(), InlineFarm()),
    )
    torch._dynamo.reset()

    def call(model: torch.nn.Module) -> torch.nn.Module:
        options = {"interpret": True, "strict": True}
        return torch.compile(model, backend=backend.kernelfarm, options=options, dynamic=False)

    yield call
    torch._dynamo.reset()


def small(dtype: torch.dtype) -> GPT2LMHeadModel:
    """Two layers, small sizes, random weights."""
    config = GPT2Config(
        n_layer=2, n_embd=32, n_head=2, n_positions=32, vocab_size=97, use_cache=False
    )
    return GPT2LMHeadModel(config).eval().to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_agree_with_eager(compile_strictly, dtype):
    """For fresh random inputs and two batch sizes the logits are as close to float64 as eager's."""
    model = small(dtype)
    compiled = compile_strictly(model)
    for batch in (2, 3):
        ids = torch.randint(0, 97, (batch, 16))
        with torch.no_grad():
            got, expected = compiled(ids).logits, model(ids).logits
            exact = small(torch.float64)
            exact.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
            reference = exact(ids).logits
        ours = (got.double() - reference).abs().max().item()
        eagers = (expected.double() - reference).abs().max().item()
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        step = torch.finfo(dtype).eps * reference.abs().max().item()
        assert ours <= 1.5 * eagers + 2 * step


def test_a_padding_mask_is_honoured(compile_strictly):
    """Masked positions change nothing: whatever attention the mask selects, it takes the mask."""
    model = small(torch.float32)
    ids = torch.randint(0, 97, (2, 12))
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[0, :5] = 0
    with torch.no_grad():
        got = compile_strictly(model)(ids, attention_mask=mask).logits
        expected = model(ids, attention_mask=mask).logits
        unmasked = model(ids).logits
    torch.testing.assert_close(got[0, 5:], expected[0, 5:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[1], expected[1], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(unmasked[0, 5:], expected[0, 5:], atol=1e-3)
