"""Pooling over windows of an image: no loops, no atomics.

A window is unrolled into its taps, each read under a mask where it may lie outside of the image.
The backwards gather: a pixel looks at the few windows that contain it, so that no two programs
write to one place and the sums have one order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..body import Recorder
from ..index import Index, floordiv
from ..ir import Lazy, Tensor, View, cost_of
from ..ops import is_float
from ..sym import Size, as_size, is_static, strides_of
from .context import Lowering
from .joining import at_least, below, both
from .registry import lower

aten = torch.ops.aten

#: More taps (or windows around a pixel) than this are a library call.
MAX_TAPS = 25
#: What one tap may compute of its pixel anew; a longer chain is stored before.
TAP_READS, TAP_COST = 6, 12


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows along one dimension: element ``i`` of window ``o`` is ``o*stride-pad+i*step``."""

    size: int
    outputs: int
    kernel: int
    stride: int
    pad: int
    step: int = 1

    @property
    def around(self) -> int:
        """How many windows may contain one pixel."""
        return -(-((self.kernel - 1) * self.step + 1) // self.stride)

    def start(self, window: Index) -> Index:
        """The first position of a window, which may lie outside."""
        return window.scale(self.stride) - self.pad

    def inside(self, recorder: Recorder, at: Index, tap: int) -> int | None:
        """Whether tap ``tap`` of a window lies inside, None if it always does."""
        found = None
        if tap * self.step < self.pad:
            found = at_least(recorder, at, 0)
        if (self.outputs - 1) * self.stride - self.pad + tap * self.step >= self.size:
            found = both(recorder, found, below(recorder, at, self.size))
        return found


def _pair(values: Sequence[int] | int | None, default: tuple[int, int]) -> tuple[int, int]:
    if values is None or isinstance(values, int):
        return default if values is None else (values, values)
    return default if len(values) == 0 else (values[0], values[-1])


def _windows(
    sizes: Sequence[Size],
    outputs: Sequence[Size],
    kernel: Any,
    stride: Any,
    pad: Any,
    step: Any = 1,
) -> tuple[Windows, Windows] | None:
    """The windows along height and width; None for symbolic or empty images, or too many taps."""
    places = (*sizes, *outputs)
    if not is_static(*places) or 0 in places:
        return None
    k = _pair(kernel, (1, 1))
    parts = (k, _pair(stride, k), _pair(pad, (0, 0)), _pair(step, (1, 1)))
    shapes = zip(sizes[-2:], outputs[-2:], *parts, strict=True)
    high, wide = (Windows(*(int(v) for v in shape)) for shape in shapes)
    if high.kernel * wide.kernel > MAX_TAPS or high.around * wide.around > MAX_TAPS:
        return None
    return high, wide


def _cheap(ctx: Lowering, a: Tensor, position: int) -> Tensor:
    """The tensor, in memory of the traced layout if every tap would compute too much of it."""
    cost, reads = cost_of(a)
    if isinstance(a, View) or (reads <= TAP_READS and cost <= TAP_COST):
        return a
    assert ctx.node is not None
    source: Any = ctx.node.args[position]
    return ctx.realize(a, strides_of(source.meta["val"]))


def _masked(recorder: Recorder, a: Tensor, index: Sequence[Index], inside: int | None) -> int:
    """An element where ``inside`` holds, anything elsewhere."""
    if inside is None:
        return a.load(recorder, index)
    with recorder.masked(inside):
        return a.load(recorder, index)


def _taps(
    recorder: Recorder, shape: tuple[Windows, Windows], index: Sequence[Index]
) -> Iterator[tuple[Index, Index, int | None]]:
    """Row, column and condition of each tap of the window at ``index``, in row-major order."""
    high, wide = shape
    for i in range(high.kernel):
        row = high.start(index[-2]) + i * high.step
        in_row = high.inside(recorder, row, i)
        for j in range(wide.kernel):
            column = wide.start(index[-1]) + j * wide.step
            yield row, column, both(recorder, in_row, wide.inside(recorder, column, j))


def _around(
    recorder: Recorder, shape: tuple[Windows, Windows], index: Sequence[Index]
) -> Iterator[tuple[Index, Index, int | None]]:
    """Window row, column and condition for each window that may contain the pixel at ``index``."""
    high, wide = shape
    for i in range(high.around):
        row = floordiv(index[-2] + high.pad, high.stride) - i
        in_row = _exists(recorder, high, row, i)
        for j in range(wide.around):
            column = floordiv(index[-1] + wide.pad, wide.stride) - j
            yield row, column, both(recorder, in_row, _exists(recorder, wide, column, j))


def _exists(recorder: Recorder, along: Windows, window: Index, back: int) -> int | None:
    """Whether there is such a window, the last one that may contain a pixel less ``back``."""
    found = at_least(recorder, window, 0) if along.pad // along.stride < back else None
    if (along.size - 1 + along.pad) // along.stride - back >= along.outputs:
        found = both(recorder, found, below(recorder, window, along.outputs))
    return found


# -- maxima ---------------------------------------------------------------------------------------


@lower(aten.max_pool2d_with_indices)
def max_pool2d(
    ctx: Lowering,
    a: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """(largest element of each window, its position in the plane); the last NaN wins."""
    sizes = tuple(as_size(s) for s in ctx.meta[0].shape)
    shape = _windows(a.sizes, sizes, kernel, stride, padding, dilation)
    if shape is None or not is_float(a.dtype):
        return NotImplemented
    a = _cheap(ctx, a, 0)
    width = shape[1].size

    def run(recorder: Recorder, index: Sequence[Index]) -> tuple[int, int]:
        best = recorder.const(-math.inf, a.dtype)
        start = [_first(recorder, w, i) for w, i in zip(shape, index[-2:], strict=True)]
        place = recorder.op("mul", start[0], recorder.const(width, "int64"))
        place = recorder.op("add", place, start[1])
        for row, column, inside in _taps(recorder, shape, index):
            value = _masked(recorder, a, [*index[:-2], row, column], inside)
            larger = recorder.op("gt", value, best)
            larger = recorder.op("or", larger, recorder.op("isnan", value))
            larger = larger if inside is None else recorder.op("and", larger, inside)
            best = recorder.op("where", larger, value, best)
            here = recorder.index(row.scale(width) + column)
            place = recorder.op("where", larger, here, place)
        return best, place

    taps = shape[0].kernel * shape[1].kernel
    cost, reads = cost_of(a)
    cost, reads = taps * (cost + 6), taps * reads
    values = Lazy(sizes, a.dtype, lambda r, i: run(r, i)[0], cost, reads)
    places = Lazy(sizes, "int64", lambda r, i: run(r, i)[1], cost, reads)
    assert ctx.node is not None
    if not any(user.args[1] == 1 for user in ctx.node.users):
        return values, places
    # stored together, they are one kernel
    strides = [strides_of(m) for m in ctx.meta]
    return ctx.realize(values, strides[0]), ctx.realize(places, strides[1])


def _first(recorder: Recorder, along: Windows, window: Index) -> int:
    """The first position of a window that is not before the image, as a value."""
    start = recorder.index(along.start(window))
    if along.pad == 0:
        return start
    zero, step = recorder.const(0, "int64"), recorder.const(along.step, "int64")
    after = zero if along.step == 1 else recorder.op("remainder", start, step)
    return recorder.op("where", recorder.op("lt", start, zero), after, start)


@lower(aten.max_pool2d_with_indices_backward)
def max_pool2d_backward(
    ctx: Lowering,
    gradient: Tensor,
    a: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Tensor,
) -> Any:
    """Each pixel adds the gradients of the windows whose largest element it is."""
    shape = _windows(a.sizes, gradient.sizes, kernel, stride, padding, dilation)
    if shape is None or not is_float(gradient.dtype):
        return NotImplemented
    gradient, indices = _cheap(ctx, gradient, 0), _cheap(ctx, indices, 7)
    width = shape[1].size

    def term(recorder: Recorder, index: Sequence[Index], at: Sequence[Index], inside: Any) -> int:
        # a masked read gives zero, which is a position: the mask is asked again
        place = _masked(recorder, indices, at, inside)
        mine = recorder.op("eq", place, recorder.index(index[-2].scale(width) + index[-1]))
        mine = mine if inside is None else recorder.op("and", mine, inside)
        value = _masked(recorder, gradient, at, inside)
        return recorder.op("where", mine, value, recorder.const(0.0, gradient.dtype))

    return _gathered(ctx, shape, term, [gradient, indices])


def _gathered(
    ctx: Lowering,
    shape: tuple[Windows, Windows],
    term: Callable[[Recorder, Sequence[Index], Sequence[Index], Any], int],
    operands: Sequence[Tensor],
) -> Lazy:
    """The sum of ``term(recorder, pixel, window, condition)`` over the windows around a pixel."""

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        total = None
        for row, column, inside in _around(recorder, shape, index):
            value = term(recorder, index, [*index[:-2], row, column], inside)
            total = value if total is None else recorder.op("add", total, value)
        assert total is not None
        return total

    windows = shape[0].around * shape[1].around
    costs = [cost_of(t) for t in operands]
    cost, reads = sum(c for c, _ in costs), sum(r for _, r in costs)
    return Lazy(ctx.out_sizes(), ctx.out_dtype(), fn, windows * (cost + 6), windows * reads)


# -- means ----------------------------------------------------------------------------------------


@lower(aten.avg_pool2d)
def avg_pool2d(
    ctx: Lowering,
    a: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of each window, accumulated in float32 or float64."""
    shape = _windows(a.sizes, ctx.out_sizes(), kernel, stride, padding)
    if shape is None or not is_float(a.dtype):
        return NotImplemented
    a = _cheap(ctx, a, 0)

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        total = recorder.const(0.0, a.dtype)
        for row, column, inside in _taps(recorder, shape, index):
            value = _masked(recorder, a, [*index[:-2], row, column], inside)
            if inside is not None:  # a lazy operand may make something of a masked zero
                value = recorder.op("where", inside, value, recorder.const(0.0, a.dtype))
            total = recorder.op("add", total, value)
        count = _divisor(recorder, shape, index[-2:], a.dtype, count_include_pad, divisor_override)
        return recorder.op("div", total, count)

    taps = shape[0].kernel * shape[1].kernel
    cost, reads = cost_of(a)
    return Lazy(ctx.out_sizes(), a.dtype, fn, taps * (cost + 2) + 8, taps * reads)


def _divisor(
    recorder: Recorder,
    shape: tuple[Windows, Windows],
    window: Sequence[Index],
    dtype: str,
    padded: bool,
    given: int | None,
) -> int:
    """What the sum of a window is divided by."""
    if given is not None:
        return recorder.const(float(given), dtype)
    counts = [_count(recorder, w, i, padded) for w, i in zip(shape, window, strict=True)]
    whole = 1
    value = None
    for count in counts:
        if isinstance(count, Whole):
            whole *= count.elements
        else:
            value = count.value if value is None else recorder.op("mul", value, count.value)
    if value is None:
        return recorder.const(float(whole), dtype)
    return recorder.cast(recorder.op("mul", value, recorder.const(whole, "int64")), dtype)


@dataclass(frozen=True, slots=True)
class Whole:
    """All windows along a dimension count alike."""

    elements: int


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of elements that count, as an int64 value."""

    value: int


def _count(recorder: Recorder, along: Windows, window: Index, padded: bool) -> Whole | Counted:
    """How many elements of a window count: those inside the image, or inside it and its padding."""
    border = along.pad if padded else 0
    low, high = -border, along.size + border
    last = (along.outputs - 1) * along.stride - along.pad + along.kernel
    if -along.pad >= low and last <= high:
        return Whole(along.kernel)
    start = recorder.index(along.start(window))
    # the end is cut by the padding before what lies outside of the image is
    end = recorder.index(along.start(window) + along.kernel)
    end = recorder.op("minimum", end, recorder.const(high, "int64"))
    start = recorder.op("maximum", start, recorder.const(low, "int64"))
    return Counted(recorder.op("sub", end, start))


@lower(aten.avg_pool2d_backward)
def avg_pool2d_backward(
    ctx: Lowering,
    gradient: Tensor,
    a: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    """Each pixel adds its share of the gradients of all windows that contain it."""
    shape = _windows(a.sizes, gradient.sizes, kernel, stride, padding)
    if shape is None or not is_float(gradient.dtype):
        return NotImplemented
    gradient = _cheap(ctx, gradient, 0)

    def contains(recorder: Recorder, along: Windows, at: Index, window: Index) -> int | None:
        if along.kernel % along.stride == 0:
            return None  # then every candidate does
        return below(recorder, at - along.start(window), along.kernel)

    def term(recorder: Recorder, index: Sequence[Index], at: Sequence[Index], inside: Any) -> int:
        for along, pixel, window in zip(shape, index[-2:], at[-2:], strict=True):
            inside = both(recorder, inside, contains(recorder, along, pixel, window))
        value = _masked(recorder, gradient, at, inside)
        count = _divisor(
            recorder, shape, at[-2:], gradient.dtype, count_include_pad, divisor_override
        )
        share = recorder.op("div", value, count)
        if inside is None:
            return share
        return recorder.op("where", inside, share, recorder.const(0.0, gradient.dtype))

    return _gathered(ctx, shape, term, [gradient])


@lower(aten._adaptive_avg_pool2d)
def adaptive_avg_pool2d(ctx: Lowering, a: Tensor, output_size: Any) -> Any:
    """Means of equal windows; a size that does not divide the image is a library call."""
    kernel = _equal_windows(a.sizes, ctx.out_sizes())
    return NotImplemented if kernel is None else avg_pool2d(ctx, a, kernel)


@lower(aten._adaptive_avg_pool2d_backward)
def adaptive_avg_pool2d_backward(ctx: Lowering, gradient: Tensor, a: Tensor) -> Any:
    """Each pixel has its share of the gradient of its one window."""
    kernel = _equal_windows(a.sizes, gradient.sizes)
    if kernel is None:
        return NotImplemented
    return avg_pool2d_backward(ctx, gradient, a, kernel, kernel, 0, False, True, None)


def _equal_windows(sizes: Sequence[Size], outputs: Sequence[Size]) -> list[int] | None:
    pairs = list(zip(sizes[-2:], outputs[-2:], strict=True))
    if not is_static(*sizes, *outputs) or any(o == 0 or int(s) % int(o) for s, o in pairs):
        return None
    return [int(s) // int(o) for s, o in pairs]
