"""Small convolution networks: values, gradients, statistics and layouts equal eager's."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from networks import NETWORKS, network
from torch import nn


def results(run, module, x):
    """Everything that can be told apart: results, gradients and buffers, with their strides."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out = run(x)
    out = out if isinstance(out, tuple) else (out,)
    found = {f"result {n}": y for n, y in enumerate(out)}
    if module.training:
        torch.manual_seed(1)
        sum((y * torch.randn(y.shape)).sum() for y in out).backward()
        found["gradient of input"] = x.grad
        found |= {f"gradient of {n}": p.grad for n, p in module.named_parameters()}
    return found | {f"buffer {n}": b.clone() for n, b in module.named_buffers()}


def check(module, x, compiled):
    """Compare a compiled module with eager."""
    twin = copy.deepcopy(module)
    with torch.set_grad_enabled(module.training):
        compare(results(compiled(twin), twin, x), results(module, module, x))


def compare(got, want):
    """Equal strides, and values to a share of the largest."""
    assert got.keys() == want.keys()
    for name, value in want.items():
        mine = got[name]
        assert mine.stride() == value.stride(), name
        assert mine.dtype == value.dtype, name
        scale = float(value.detach().abs().max()) if value.numel() else 0.0
        tolerance = 2e-4 * scale + 1e-5
        torch.testing.assert_close(
            mine, value, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


#: The networks that take a second or two under the interpreter.
QUICK = ("generator", "grouped", "volume", "reshaped")


@pytest.mark.every(4)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS],
)
def test_a_network_agrees_with_eager(compiled, name, training):
    """Results, gradients and running statistics are eager's, and so is each one's layout."""
    check(network(name).train(training), torch.randn(NETWORKS[name][1]), compiled)


def test_an_empty_batch_has_eagers_gradients(compiled):
    """Zero images train as in eager, whatever layout the others would have."""
    layers = torch.nn.Conv2d(16, 16, 2), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 2)
    check(torch.nn.Sequential(*layers), torch.randn(0, 16, 6, 6), compiled)


class Pooled(nn.Module):
    """Returns what has one pixel, whose layouts differ in nothing but their strides."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 32, 3, padding=1)

    def forward(self, x):
        return F.adaptive_avg_pool2d(self.conv(x), 1)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", ["resnet", "unet", "encoder", "pooled"])
def test_a_network_of_any_batch_and_image_size(compiled, name, training):
    """One compilation serves them; layouts are eager's with symbolic sizes, too."""
    module = (Pooled() if name == "pooled" else network(name)).train(training)
    shape = (2, 16, 9, 7) if name == "pooled" else NETWORKS[name][1]
    twin = copy.deepcopy(module)
    run = compiled(twin, dynamic=True)
    with torch.set_grad_enabled(training):
        for batch, more in ((2, 0), (5, 0), (3, 4)):
            x = torch.randn(batch, shape[1], shape[2] + more, shape[3] + more)
            twin.load_state_dict(module.state_dict())
            with torch._dynamo.config.patch(error_on_recompile=batch != 2):
                compare(results(run, twin, x), results(module, module, x))
            twin.zero_grad()
            module.zero_grad()
