"""Convolutions are library calls; their biases and the biases' gradients are ours."""

from __future__ import annotations

import pytest
import torch
from body_eval import check
from tensors import rand

from kernelfarm.compiler.ir import Compute, Extern

aten = torch.ops.aten
FORWARD, BACKWARD = aten.convolution.default, aten.convolution_backward.default

#: image, weight, (stride, padding, dilation, transposed, output padding, groups)
CASES = {
    "1d": ((2, 4, 9), (6, 4, 3), ([2], [1], [1], False, [0], 1)),
    "2d": ((2, 4, 7, 6), (6, 4, 3, 3), ([1, 2], [1, 0], [1, 1], False, [0, 0], 1)),
    "grouped": ((2, 4, 7, 6), (6, 2, 3, 3), ([1, 1], [0, 0], [2, 1], False, [0, 0], 2)),
    "transposed": ((2, 4, 5, 6), (4, 6, 2, 2), ([2, 2], [0, 0], [1, 1], True, [1, 0], 1)),
    "3d": ((2, 4, 5, 4, 6), (6, 4, 2, 2, 2), ([1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1)),
}


@pytest.mark.parametrize("layout", ["plain", "channels last"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_convolution(name, bias, layout):
    """With and without a bias, one library call; what follows is in the bias's kernel."""
    image, weight, options = CASES[name]
    x, w, b = rand(*image), rand(*weight), rand(6)
    if layout == "channels last" and name != "1d":
        x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    inputs = (x, w, b)
    lowering = check(
        lambda x, w, b: torch.relu(FORWARD(x, w, b if bias else None, *options)) * b[0],
        *inputs,
        fallbacks=[] if bias else [str(FORWARD)],
    )
    kinds = [type(node) for node in lowering.graph.nodes]
    assert kinds == [Extern, Compute]
    call = lowering.graph.nodes[0]
    assert call.args[2] is None


@pytest.mark.parametrize("mask", [(1, 1, 1), (0, 1, 1), (1, 1, 0), (0, 0, 1), (1, 0, 1)])
@pytest.mark.parametrize("name", CASES)
def test_gradients(name, mask):
    """Every combination of gradients that may be wanted; no sum is left to the library."""
    image, weight, options = CASES[name]
    x, w = rand(*image), rand(*weight)
    gradient = torch.randn_like(FORWARD(x, w, None, *options))
    wanted = [bool(m) for m in mask]

    def fn(g, x, w):
        found = BACKWARD(g * 2, x, w, [6], *options, wanted)
        return tuple(f for f, asked in zip(found, wanted, strict=True) if asked)

    lowering = check(
        fn, gradient, x, w,
        fallbacks=[] if mask[2] else [str(BACKWARD)], tolerance=(1e-4, 1e-4),
    )  # fmt: skip
    calls = [node for node in lowering.graph.nodes if isinstance(node, Extern)]
    assert len(calls) == int(any(mask[:2]))
    assert all(not call.args[-1][2] for call in calls)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_precisions(dtype):
    """A half-precision bias is added in float32 and rounded once."""
    x, w, b = rand(2, 4, 6, 6, dtype=dtype), rand(6, 4, 3, 3, dtype=dtype), rand(6, dtype=dtype)
    options = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    tolerance = (5e-2, 1e-1) if dtype == torch.bfloat16 else None
    check(lambda x, w, b: FORWARD(x, w, b, *options), x, w, b, tolerance=tolerance)
