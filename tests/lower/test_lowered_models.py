"""Small models train as in eager: every graph that AOTAutograd makes, lowered and executed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from body_eval import execute
from torch import nn

from kernelfarm.compiler.lower.context import Lowering
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.trace.dynamo import compile_fx

pytestmark = pytest.mark.slow


class Language(nn.Module):
    """Token and position embeddings, one masked attention block, tied logits, a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(97, 32)
        self.places = nn.Embedding(16, 32)
        self.norm = nn.LayerNorm(32)
        self.joint = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The mean loss of predicting each next token."""
        at = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.places(at)
        q, k, v = self.joint(self.norm(x)).view(*ids.shape, 3, 4, 8).permute(2, 0, 3, 1, 4)
        scores = torch.where(at[None] <= at[:, None], q @ k.mT * 8**-0.5, float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        logits = nn.functional.gelu(self.norm(x)) @ self.tokens.weight.t()
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def convolutional() -> nn.Module:
    """Convolutions with batch and group norm, pooling, padding and a head."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.ZeroPad2d((1, 0, 2, 0)), nn.Conv2d(8, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), nn.LogSoftmax(-1),
    )  # fmt: skip


def _compiled(model: nn.Module, kinds: list[str]) -> Callable[..., torch.Tensor]:
    def compile_graph(
        gm: Any, inputs: Sequence[Any], info: Any
    ) -> Callable[[list[Any]], list[Any]]:
        kinds.append(info.kind)
        graph = Lowering(gm, device_type="cpu").run()

        def run(args: list[Any]) -> list[Any]:
            given = list(args)
            args.clear()
            return execute(graph, given)

        return run

    def backend(gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_fx(gm, inputs, compile_graph=compile_graph, target=Target.parse("h200"))

    torch._dynamo.reset()
    return torch.compile(model, backend=backend)


@pytest.mark.parametrize("name", ("language", "convolutional"))
def test_training_steps_equal_eager(name: str) -> None:
    """Loss, gradients and updated buffers of one step agree."""
    if name == "language":
        model, x = Language(), torch.randint(0, 97, (2, 11))
    else:
        model, x = convolutional(), torch.randn(4, 3, 12, 12)
    twin, kinds = copy.deepcopy(model), []
    got, want = _compiled(model, kinds)(x).square().mean(), twin(x).square().mean()
    got.backward()
    want.backward()
    assert kinds == ["forward", "backward"]
    torch.testing.assert_close(got, want)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b)
