"""Pooling equals eager, forward and backward, and becomes library calls elsewhere."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from body_eval import check
from tensors import FLOATS, rand

aten = torch.ops.aten
LAYOUTS = (torch.contiguous_format, torch.channels_last)

#: kernel, stride, padding, dilation, ceil_mode
MAXIMA = {
    "halves": (2, 2, 0, 1, False),
    "stem": (3, 2, 1, 1, False),
    "overlap": (3, 1, 1, 1, False),
    "ceil": (3, 2, 0, 1, True),
    "ceil, padded": (2, 2, 1, 1, True),
    "dilated": (2, 1, 1, 3, False),
    "uneven": ((3, 2), (2, 3), (1, 0), (1, 2), False),
    "gaps": (2, 3, 0, 1, False),
}


def image(*sizes, dtype=torch.float32, layout=torch.contiguous_format):
    """A random image in a layout."""
    return rand(*sizes, dtype=dtype).to(memory_format=layout)


def pool(op, *options):
    """A function of one tensor: the operator with these options."""
    return lambda x: op(x, *options)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", MAXIMA)
def test_max_pool(name, layout):
    """Values and positions of the largest elements, of computed images too, with their layout."""
    options = MAXIMA[name]
    for size in ((9, 11), (8, 7)):
        x = image(2, 3, *size, layout=layout)
        check(lambda x: aten.max_pool2d_with_indices(x, *options), x)
        check(lambda x: aten.max_pool2d_with_indices((x * 2).relu() - 1, *options)[0], x)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", MAXIMA)
def test_max_pool_backward(name, layout):
    """Each gradient reaches the one pixel, and those of overlapping windows are added."""
    kernel, stride, padding, dilation, ceil = MAXIMA[name]
    for size in ((9, 11), (8, 7)):
        x = image(2, 3, *size, layout=layout)
        y, at = aten.max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil)
        gradient = torch.randn_like(y)
        rest = (_pair(kernel), _pair(stride), _pair(padding), _pair(dilation), ceil)
        check(
            lambda g, x, at: aten.max_pool2d_with_indices_backward(g * 2, x, *rest, at),  # noqa: B023
            gradient, x, at,
        )  # fmt: skip


def _pair(value):
    return [value, value] if isinstance(value, int) else list(value)


@pytest.mark.parametrize("dtype", (*FLOATS, torch.float64), ids=str)
def test_pools_of_every_precision(dtype):
    """Maxima are exact; means are accumulated in float32 at least."""
    x = image(2, 3, 8, 8, dtype=dtype)
    check(lambda x: aten.max_pool2d_with_indices(x, 3, 2, 1), x, tolerance=(0.0, 0.0))
    check(lambda x: aten.avg_pool2d(x, 3, 2, 1), x)


def test_the_maximum_of_nothing_known():
    """NaN wins, the last one its position; a window of infinities has its first position."""
    x = rand(1, 2, 9, 9)
    x[0, 0, ::4, ::3] = math.nan
    x[0, 0, 1, 1] = math.nan
    x[0, 1] = -math.inf
    x[0, 1, 4, 4] = math.inf
    for name in MAXIMA:
        check(pool(aten.max_pool2d_with_indices, *MAXIMA[name]), x)


def test_an_image_without_a_batch_and_one_in_parts():
    """Three dimensions, and a view with holes."""
    check(lambda x: aten.max_pool2d_with_indices(x, 2, 2), rand(3, 8, 8))
    check(lambda x: aten.avg_pool2d(x[:, 1:3, ::2], 2, 2), rand(2, 4, 16, 8))


@pytest.mark.every(4)
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(
    "window", [(2, 2, 0), (3, 2, 1), (3, 1, 1), ((2, 3), (3, 2), (1, 0)), (4, 3, 2)]
)
def test_mean_pool_and_its_backward(window, ceil, layout, include):
    """What counts at the border is as asked; windows cut off by it, too."""
    kernel, stride, padding = map(_pair, window)
    for size in ((9, 11), (8, 8)):
        x = image(2, 3, *size, layout=layout)
        for override in (None, 3):
            options = (kernel, stride, padding, ceil, include, override)
            check(pool(aten.avg_pool2d, *options), x)
            gradient = torch.randn_like(aten.avg_pool2d(x, *options))
            check(lambda g, x: aten.avg_pool2d_backward(g, x, *options), gradient, x)  # noqa: B023


def test_a_masked_tap_of_a_computed_image_adds_nothing():
    """exp of what is not there is not one."""
    x = rand(1, 2, 5, 5)
    check(lambda x: aten.avg_pool2d(x + 1, 3, 1, 1, False, False), x)
    check(lambda x: aten.max_pool2d_with_indices(5 - x.abs(), 3, 1, 1)[0] - 9, x)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("output", [(4, 4), (2, 4), (8, 2), (1, 8)])
def test_adaptive_means_of_equal_windows(output, layout):
    """A size that divides the image's is a plain mean, one that does not is eager's own call."""
    x = image(2, 3, 8, 8, layout=layout)
    check(lambda x: aten._adaptive_avg_pool2d(x, output), x)
    y = torch.randn_like(aten._adaptive_avg_pool2d(x, output))
    check(lambda y, x: aten._adaptive_avg_pool2d_backward(y, x), y, x)


def test_what_is_left_to_the_library():
    """Large windows, integers, images of nothing and unequal windows are its calls."""
    call = "aten.max_pool2d_with_indices.default"
    check(lambda x: aten.max_pool2d_with_indices(x, 7, 2), rand(1, 2, 16, 16), fallbacks=[call])
    x = rand(1, 2, 8, 8, dtype=torch.int64)
    check(lambda x: aten.max_pool2d_with_indices(x, 2, 2), x, fallbacks=[call])
    check(lambda x: aten.max_pool2d_with_indices(x, 2, 2), rand(0, 2, 8, 8), fallbacks=[call])
    adaptive = "aten._adaptive_avg_pool2d.default"
    check(
        lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
        rand(1, 2, 8, 8),
        strides=False,
        fallbacks=[adaptive],
    )
