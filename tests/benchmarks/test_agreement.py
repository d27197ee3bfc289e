"""The benchmark's judgement of results: what float64 and eager say of ours."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agreement import compare, cut, follow, judge, largest, losses
from torch import nn


def subject(training: bool = True) -> Any:
    """A small network with a buffer, its arguments, and whether it is trained."""
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(self.inner(x))
            return (y - x).square().mean() if self.training else y

    return SimpleNamespace(
        model=Net().train(training), args=(torch.randn(6, 8),), training=training
    )


class Slanted(torch.autograd.Function):
    """The identity, with a gradient that is ``by`` times too large."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, by: float) -> torch.Tensor:
        ctx.by = by
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad * ctx.by, None


@pytest.mark.parametrize("training", (False, True))
def test_eager_agrees_with_itself_and_leaves_the_model_as_it_was(training):
    """No result is wrong, at both batch sizes, and buffers and parameters are put back."""
    one = subject(training)
    before = {name: value.clone() for name, value in one.model.state_dict().items()}
    report = compare(one, one.model, [4])
    assert report["wrong"] is False
    counts = [batch["compared"] for batch in report["batches"]]
    assert counts == ([8, 8] if training else [1, 1])  # loss, four gradients, three buffers
    assert all(torch.equal(before[k], v) for k, v in one.model.state_dict().items())
    assert all(p.grad is None for p in one.model.parameters())


def test_a_wrong_gradient_is_found_and_named():
    """A right loss with gradients that are a thousandth too large is wrong, by name."""
    one = subject()

    class Wrong:
        _orig_mod = one.model

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return Slanted.apply(one.model(x), 1.001)

    report = compare(one, Wrong(), [])
    assert report["wrong"] is True
    (found,) = report["batches"]
    assert {"gradient inner.weight", "gradient norm.bias"} <= found["wrong_ones"].keys()
    assert "loss" not in found["wrong_ones"]


def test_a_buffer_that_was_not_updated_is_found():
    """A forward pass that forgets the running mean is wrong."""
    one = subject()

    def forgetful(x: torch.Tensor) -> torch.Tensor:
        kept = one.model.norm.running_mean.clone()
        loss = one.model(x)
        one.model.norm.running_mean.data.copy_(kept)
        return loss

    forgetful._orig_mod = one.model  # type: ignore[attr-defined]
    (found,) = compare(one, forgetful, [])["batches"]
    assert set(found["wrong_ones"]) == {"buffer norm.running_mean"}


def test_an_error_is_wrong_beyond_half_of_eagers_more():
    """1.5 of eager's error and the slack pass; more, another type, a NaN or nothing do not."""
    exact = {"y": torch.ones(4, dtype=torch.float64)}
    eager = {"y": torch.full((4,), 1.01)}

    def wrong(y: torch.Tensor | None) -> int:
        return judge({} if y is None else {"y": y}, eager, exact, slack=1e-4)["wrong"]

    assert not wrong(torch.full((4,), 1.015))
    assert wrong(torch.full((4,), 1.016))
    assert wrong(torch.full((4,), math.nan))
    assert wrong(torch.full((4,), 1.01, dtype=torch.float64))
    assert wrong(torch.full((1, 4), 1.01))
    assert wrong(None)
    assert judge({"y": torch.full((4,), math.nan)}, eager, None, slack=1e-4)["wrong"]
    assert not judge({"y": torch.full((4,), 1.5)}, eager, None, slack=1e-4)["wrong"]


@pytest.mark.parametrize("optimizer", ("adamw", "sgd"))
def test_losses_follow_and_differ_where_the_step_differs(optimizer):
    """Equal steps have equal losses; a gradient that is slanted shows within a few steps."""
    one = subject()
    report = follow(one, one.model, 4, optimizer, 0.05)
    assert report["largest"] == report["noise"] == 0.0
    assert report["eager"][-1] < report["eager"][0]
    slanted = losses(
        one.model, lambda x: Slanted.apply(one.model(x), -1.0), one.args, 4, optimizer, 0.05
    )
    assert largest(slanted, report["eager"]) > 0.01
    assert math.isnan(largest([math.nan, 1.0], [1.0, 1.0]))


def test_rounding_errors_of_a_zero_gradient_are_not_judged_by_its_own_size():
    """Where float64 has next to nothing, an error counts beside the largest of its kind."""
    kind = torch.full((4,), 2.0, dtype=torch.float64)
    exact = {"gradient a": kind, "gradient zero": kind * 1e-17, "buffer b": kind * 1e-17}
    eager = {name: value + 1e-9 for name, value in exact.items()}
    noise = {**eager, "gradient zero": exact["gradient zero"] + 1e-8}
    assert judge(noise, eager, exact, slack=1e-5)["wrong"] == 0
    wrong = {**eager, "gradient zero": exact["gradient zero"] + 1e-3}
    assert list(judge(wrong, eager, exact, slack=1e-5)["wrong_ones"]) == ["gradient zero"]
    off = {**eager, "buffer b": exact["buffer b"] + 1e-8}
    assert list(judge(off, eager, exact, slack=1e-5)["wrong_ones"]) == ["buffer b"]


def test_a_smaller_batch_cuts_every_argument():
    """Tensors lose rows, by name or by position; other arguments stay."""
    x = torch.arange(12).view(6, 2)
    assert cut((x, 3), 2)[0].tolist() == [[0, 1], [2, 3]]
    assert cut({"x": x, "flag": True}, 1)["flag"] is True
