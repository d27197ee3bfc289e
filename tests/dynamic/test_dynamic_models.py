"""Models compiled once for all batch and sequence sizes, forward and backward, against eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from symbolic import Interpreted

transformers = pytest.importorskip("transformers")

#: Dynamo makes a program of its own for a size of one; all others share one program.
PAIRS = [
    (2, 7), (3, 5), (5, 16), (2, 33), (7, 2), (4, 4), (3, 17), (2, 2), (6, 9), (2, 64),
    (8, 3), (5, 5), (4, 31), (3, 8), (2, 12), (9, 2), (7, 11), (2, 21), (3, 3), (6, 6),
]  # fmt: skip


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Dynamo remembers nothing of other tests."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gpt2() -> Any:
    """A GPT-2 of two small layers."""
    none: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 61, "n_positions": 64}
    config = transformers.GPT2Config(**sizes, **drops, **none, use_cache=False)
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    """A Llama of two small layers with shared key heads."""
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=61,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


MODELS = {"gpt2": gpt2, "llama": llama}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_twenty_sizes_are_one_compilation(name: str) -> None:
    """Twenty batch and sequence sizes through one program give eager's logits."""
    model = MODELS[name]().eval()
    backend = Interpreted()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        for batch, length in PAIRS:
            tokens = torch.randint(0, 61, (batch, length))
            want = model(tokens).logits
            torch.testing.assert_close(compiled(tokens).logits, want, rtol=1e-4, atol=1e-5)
        assert backend.compiled == 1
        tokens = torch.randint(0, 61, (1, 9))
        torch.testing.assert_close(compiled(tokens).logits, model(tokens).logits)
    assert backend.compiled == 2
    assert backend.ctx.report.graphs["uncached"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_many_sizes_are_one_compilation(name: str) -> None:
    """Forward and backward are compiled once each for twenty sizes; gradients are eager's."""
    model = MODELS[name]().train()
    backend = Interpreted()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    graphs = 0
    for number, (batch, length) in enumerate(PAIRS):
        tokens = torch.randint(0, 61, (batch, length))
        gradients = []
        for call in (model, compiled):
            model.zero_grad()
            loss = (call(tokens).logits.float() ** 2).mean()
            loss.backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        for mine, theirs in zip(gradients[1], gradients[0], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)
        graphs = backend.compiled if number == 0 else graphs
    assert backend.compiled == graphs == 2


@pytest.mark.slow
def test_a_convolution_takes_any_batch_and_image() -> None:
    """A convolutional net of any batch and image size, trained, is one forward and one backward."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(6, 5),
    )  # fmt: skip
    backend = Interpreted()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for sizes in ((2, 3, 20, 24), (4, 3, 32, 20), (5, 3, 17, 40)):
        x = torch.randn(sizes)
        gradients = []
        for call in (model, compiled):
            model.zero_grad()
            call(x).square().sum().backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        for mine, theirs in zip(gradients[1], gradients[0], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    assert backend.compiled == 2


def _two_layers(x: torch.Tensor) -> torch.Tensor:
    return (x.softmax(-1) * x.shape[0]).sum(0)


def test_a_second_size_makes_one_program_for_all_others() -> None:
    """Without being asked, Dynamo turns the size that changed into a symbol; so do we."""
    backend = Interpreted()
    compiled = torch.compile(_two_layers, backend=backend)
    for rows in (5, 6, 7, 9, 12):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), _two_layers(x))
    assert backend.compiled == 2


def test_a_size_outside_of_its_marked_range_is_compiled_anew() -> None:
    """A dimension marked with a range has one program inside of it; outside is another one."""
    backend = Interpreted()
    compiled = torch.compile(_two_layers, backend=backend)
    for rows in (6, 9, 16):
        x = torch.randn(rows, 8)
        torch._dynamo.mark_dynamic(x, 0, min=4, max=16)
        torch.testing.assert_close(compiled(x), _two_layers(x))
    assert backend.compiled == 1
    x = torch.randn(40, 8)
    torch.testing.assert_close(compiled(x), _two_layers(x))
    assert backend.compiled == 2


def test_a_size_that_depends_on_data_runs_op_by_op_and_says_so() -> None:
    """An unbacked size keeps a graph from being compiled, with the reason in the report."""
    backend = Interpreted()

    def nonzero(x: torch.Tensor) -> torch.Tensor:
        return x.nonzero() + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(nonzero, backend=backend, dynamic=True)
        x = torch.randn(5, 4)
        torch.testing.assert_close(compiled(x), nonzero(x))
    (reason,) = backend.ctx.report.uncached
    assert "depends on the data" in reason
