"""Upsampling equals eager in values, gradients and layout; by whole factors it needs no atomics."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernelfarm.compiler.trace.upsampling import whole_factors

LAYOUTS = (torch.contiguous_format, torch.channels_last)


def agree(fn, compiled, x):
    """Values, gradients and strides of a compiled function equal eager's."""
    mine, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
    got, want = compiled(fn)(mine), fn(theirs)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    assert got.stride() == want.stride()
    weight = torch.randn(want.shape, dtype=want.dtype)
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-5)
    assert mine.grad.stride() == theirs.grad.stride()


@pytest.mark.every(4)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"scale_factor": 2},
        {"scale_factor": (3.0, 1.0)},
        {"size": (10, 8)},
        {"size": (5, 4)},
        {"size": (7, 9)},
        {"scale_factor": 1.5},
        {"scale_factor": 0.5},
        {"scale_factor": 2.0, "recompute_scale_factor": True},
        {"scale_factor": 2.0, "mode": "bilinear"},
        {"size": (7, 9), "mode": "bilinear", "align_corners": True},
        {"scale_factor": 2.0, "mode": "nearest-exact"},
    ],
    ids=str,
)
def test_interpolate(compiled, options, layout):
    """Whole factors and others, by size and by scale, both layouts."""
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64).to(memory_format=layout)
    agree(lambda x: F.interpolate(x * 2, **options), compiled, x)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 2, 3, 2)])
def test_other_ranks_are_torchs_own(compiled, shape):
    """Lines and volumes."""
    agree(lambda x: F.interpolate(x, scale_factor=2.0), compiled, torch.randn(shape))


def test_a_repeated_image_takes_no_atomic_additions(backend, compiled):
    """The gradient is a sum over blocks, the same in every run."""
    x = torch.randn(2, 3, 5, 4, requires_grad=True)
    compiled(lambda x: F.interpolate(x, scale_factor=2.0))(x).sum().backward()
    names = {name for table in backend.REPORT.operators.values() for name in table}
    assert not any("index" in name for name in names), names
    torch.testing.assert_close(x.grad, torch.full_like(x, 4.0))


def test_nothing_is_shared_with_the_argument(compiled):
    """A factor of one is a copy, as in eager."""
    x = torch.randn(2, 3, 5, 4)
    y = compiled(lambda x: F.interpolate(x, scale_factor=1.0))(x)
    y.zero_()
    assert x.abs().sum() > 0


def test_a_factor_that_rounds_down_is_not_taken():
    """Where a float32 product falls short of a whole number eager repeats the pixel before."""
    taken = [n for n in range(1, 200) if whole_factors((64, 64), None, float(n)) == [n, n]]
    assert {1, 2, 3, 4, 8, 16} <= set(taken)
    rejected = sorted(set(range(1, 200)) - set(taken))
    assert rejected  # there are some, and eager shows why
    n = rejected[0]
    x = torch.arange(64.0).reshape(1, 1, 1, 64)
    y = F.interpolate(x, size=(1, 64 * n))
    assert not torch.equal(y, x.repeat_interleave(n, -1))
    assert whole_factors((5, 4), None, 1.5) is None
    assert whole_factors((5, 4), (10, 6), None) is None
