"""Batch, instance and group norms: values, gradients and running statistics equal eager's."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

SHAPES = {1: (4, 6, 5), 2: (3, 6, 5, 4), 3: (2, 6, 3, 4, 2)}
BATCH = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
OPTIONS = {
    "plain": {},
    "no parameters": {"affine": False},
    "no statistics": {"track_running_stats": False},
    "neither": {"affine": False, "track_running_stats": False},
    "slow": {"momentum": 0.01, "eps": 1e-2},
}


def randomised(module):
    """The module with parameters and statistics that do something."""
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if value.is_floating_point():
            low = 0.5 if name.endswith("var") else -1.0
            nn.init.uniform_(value, low, 1.5)
    return module


def check(module, x, compiled, *, steps=1, rtol=1e-8, atol=1e-8):
    """Run forward and backward some times; compare results, gradients and buffers."""
    twin = copy.deepcopy(module)
    run = compiled(twin)
    for _ in range(steps):
        mine, theirs = (x.detach().clone(memory_format=torch.preserve_format) for _ in range(2))
        found = []
        for call, part, value in ((run, twin, mine), (module, module, theirs)):
            value.requires_grad_()
            part.zero_grad()
            y = call(value)
            torch.manual_seed(7)
            y.backward(torch.randn(y.shape).to(y.dtype).to(memory_format=_format(y)))
            gradients = [p.grad for p in part.parameters()]
            found.append([y.detach(), value.grad, *gradients, *part.buffers()])
        for got, want in zip(*found, strict=True):
            assert got.dtype == want.dtype and got.stride() == want.stride()
            torch.testing.assert_close(got, want, rtol=rtol, atol=atol)


def _format(value):
    last = value.dim() == 4 and not value.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format


@pytest.mark.every(5)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("rank", BATCH)
def test_batch_norm(compiled, rank, name, training):
    """Statistics of the batch while training, running ones else; both updated over two steps."""
    module = randomised(BATCH[rank](6, dtype=torch.float64, **OPTIONS[name])).train(training)
    check(module, torch.randn(SHAPES[rank], dtype=torch.float64) * 3 + 1, compiled, steps=2)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_batch_norm_of_rows_and_of_channels_last_images(compiled, training):
    """Two dimensions, and an image whose channels lie side by side, which its result keeps."""
    module = randomised(nn.BatchNorm1d(6, dtype=torch.float64)).train(training)
    check(module, torch.randn(9, 6, dtype=torch.float64), compiled)
    module = randomised(nn.BatchNorm2d(6, dtype=torch.float64)).train(training)
    x = torch.randn(3, 6, 5, 4, dtype=torch.float64).to(memory_format=torch.channels_last)
    check(module, x, compiled)


def test_batch_norm_without_momentum_averages_all_batches(compiled):
    """The weight of a batch is one over their number, which is data."""
    module = randomised(nn.BatchNorm2d(6, momentum=None, dtype=torch.float64))
    module.reset_running_stats()
    check(module, torch.randn(3, 6, 5, 4, dtype=torch.float64), compiled, steps=3)


@pytest.mark.every(2)
@pytest.mark.parametrize("parameters", ["half", "single"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_batch_norm_in_half_precision(compiled, dtype, parameters):
    """Statistics are computed in float32, as eager does, whatever the parameters are."""
    if dtype == torch.float16 and parameters == "single":
        tolerance = {"rtol": 4e-3, "atol": 8e-3}
    else:
        tolerance = {"rtol": 3e-2, "atol": 6e-2}
    for training in (True, False):
        module = randomised(nn.BatchNorm2d(6)).train(training)
        if parameters == "half":
            module = module.to(dtype)
        x = (torch.randn(3, 6, 5, 4) + 2).to(dtype)
        check(module, x, compiled, **tolerance)


def test_statistics_of_half_precision_keep_float32(compiled):
    """A batch far from zero: running statistics in float32 are those of float32 inputs."""
    module = nn.BatchNorm2d(4, momentum=1.0)
    x = (torch.randn(8, 4, 16, 16) + 40).bfloat16()
    compiled(module)(x)
    torch.testing.assert_close(module.running_mean, x.float().mean((0, 2, 3)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(module.running_var, x.float().var((0, 2, 3)), rtol=1e-4, atol=1e-4)


@pytest.mark.every(5)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", ["plain", "statistics", "parameters", "both"])
@pytest.mark.parametrize("rank", INSTANCE)
def test_instance_norm(compiled, rank, name, training):
    """Each image by itself; running statistics are the means over the batch."""
    options = {"affine": name in ("parameters", "both")}
    options["track_running_stats"] = name in ("statistics", "both")
    module = randomised(INSTANCE[rank](6, dtype=torch.float64, **options)).train(training)
    check(module, torch.randn(SHAPES[rank], dtype=torch.float64) * 2 - 1, compiled, steps=2)


@pytest.mark.every(4)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm(compiled, groups, affine, layout):
    """Any number of groups, in both layouts."""
    module = randomised(nn.GroupNorm(groups, 6, affine=affine, dtype=torch.float64))
    x = torch.randn(3, 6, 5, 4, dtype=torch.float64).to(memory_format=layout)
    twin = copy.deepcopy(module)
    mine, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
    got, want = compiled(twin)(mine), module(theirs)
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)
    weight = torch.randn(want.shape, dtype=torch.float64)
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    pairs = [(mine, theirs), *zip(twin.parameters(), module.parameters(), strict=True)]
    for a, b in pairs:
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-8, atol=1e-8)


def test_a_residual_block_at_inference_is_one_kernel_behind_its_convolution(backend, compiled):
    """Normalisation with running statistics, addition and activation leave one launch."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)

        def forward(self, x):
            return F.relu(self.norm(self.conv(x)) + x)

    module = randomised(Block()).eval()
    x = torch.randn(2, 16, 6, 6).to(memory_format=torch.channels_last)
    module.to(memory_format=torch.channels_last)
    with torch.no_grad():
        got = compiled(module)(x)
    torch.testing.assert_close(got, module(x), rtol=1e-4, atol=1e-4)
    assert len(backend.REPORT.emitted) == 1
