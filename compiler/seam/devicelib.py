"""Device functions that emitted kernels call as ``kf.name(...)``.

They take values and constexprs only; shapes come from the values. NaN wins in every maximum and
minimum, as in eager. Editing this file changes the helper digest and so every alias key.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def floor_div(a, b):
    quotient = a // b
    wrong = (a % b != 0) & ((a < 0) != (b < 0))
    return tl.where(wrong, quotient - 1, quotient)


@triton.jit
def remainder(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def remainder_float(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def _quotient(a, b):
    # Triton's own float32 division is off by up to two units in the last place
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def floor_div_float(a, b):
    # eager's definition: from the remainder, so that a == b * floor_div(a, b) + remainder(a, b)
    rest = libdevice.fmod(a, b)
    quotient = _quotient(a - rest, b)
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1.0, quotient)
    rounded = libdevice.floor(quotient)
    rounded = tl.where(quotient - rounded > 0.5, rounded + 1.0, rounded)
    rounded = tl.where(quotient == 0.0, (a / b) * 0.0, rounded)
    return tl.where(b == 0.0, a / b, rounded)


@triton.jit
def to_float8_e4m3fn(a):
    # no infinity: what rounds past 448 is NaN; 464 lies half way to 480 and rounds to even
    return tl.where(tl.abs(a) > 464.0, float("nan"), a).to(tl.float8e4nv)


@triton.jit
def to_float8_e4m3fn_saturated(a):
    # clamped here because not every target's conversion stops at the largest number; NaN stays
    return tl.clamp(a, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv)


@triton.jit
def to_float8_e5m2(a):
    # from half way between 57344, the largest number, and 65536 on: infinity
    infinity = tl.where(a < 0.0, 0xFC, 0x7C).to(tl.uint8)
    bits = a.to(tl.float8e5).to(tl.uint8, bitcast=True)
    return tl.where(tl.abs(a) >= 61440.0, infinity, bits).to(tl.float8e5, bitcast=True)


@triton.jit
def sigmoid(a):
    return 1.0 / (1.0 + libdevice.exp(-a))


@triton.jit
def sign(a):
    zero = tl.zeros_like(a)
    one = zero + 1
    return tl.where(a > zero, one, zero) - tl.where(a < zero, one, zero)


@triton.jit
def signbit32(a):
    return a.to(tl.int32, bitcast=True) < 0


@triton.jit
def signbit64(a):
    return a.to(tl.int64, bitcast=True) < 0


# Random numbers: Philox with the seed as its key and the position as its counter. The same
# arithmetic stands in compiler/trace/random_ops.py for graphs that run op by op.


@triton.jit
def _words(seed, position):
    low, high = position.to(tl.uint32), (position >> 32).to(tl.uint32)
    return tl.philox(seed, low, high, low * 0, low * 0)


@triton.jit
def _leading(word, dropped, scale):
    return (word >> dropped).to(tl.int32).to(tl.float32) * scale


@triton.jit
def uniform(seed, position):
    a, _b, _c, _d = _words(seed, position)
    return _leading(a, 8, 5.9604644775390625e-08)


@triton.jit
def uniform_f16(seed, position):
    a, _b, _c, _d = _words(seed, position)
    return _leading(a, 21, 0.00048828125)


@triton.jit
def uniform_bf16(seed, position):
    a, _b, _c, _d = _words(seed, position)
    return _leading(a, 24, 0.00390625)


@triton.jit
def _uniform53(high, low):
    whole = ((high >> 5).to(tl.int64) << 26) | (low >> 6).to(tl.int64)
    return whole.to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def uniform64(seed, position):
    a, b, _c, _d = _words(seed, position)
    return _uniform53(a, b)


@triton.jit
def normal(seed, position):
    # Box and Muller; the half keeps the logarithm finite
    a, b, _c, _d = _words(seed, position)
    first = (a.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    radius = libdevice.sqrt(-2.0 * libdevice.log(first))
    return radius * libdevice.cos(_leading(b, 8, 5.9604644775390625e-08) * 6.283185307179586)


@triton.jit
def normal64(seed, position):
    a, b, c, d = _words(seed, position)
    first = _uniform53(a, b) + 5.551115123125783e-17
    radius = libdevice.sqrt(-2.0 * libdevice.log(first))
    return radius * libdevice.cos(_uniform53(c, d) * 6.283185307179586)


@triton.jit
def bits(seed, position):
    a, b, _c, _d = _words(seed, position)
    return ((a & 0x7FFFFFFF).to(tl.int64) << 32) | b.to(tl.int64)


# Reductions of a tile along one axis. tl.max and tl.min drop NaN, hence the combine functions.


@triton.jit
def _mul(a, b):
    return a * b


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _and(a, b):
    return a & b


@triton.jit
def sum(value, axis):
    return tl.sum(value, axis).to(value.dtype)  # tl.sum widens small integers


@triton.jit
def prod(value, axis):
    return tl.reduce(value, axis, _mul)


@triton.jit
def max(value, axis):
    return tl.reduce(value, axis, maximum)


@triton.jit
def min(value, axis):
    return tl.reduce(value, axis, minimum)


@triton.jit
def any(value, axis):
    return tl.reduce(value.to(tl.int32), axis, _or) != 0


@triton.jit
def all(value, axis):
    return tl.reduce(value.to(tl.int32), axis, _and) != 0


@triton.jit
def _argmax_pick(a, i, b, j):
    # the first NaN, else the first largest
    a_nan = a != a
    b_nan = b != b
    first = (a > b) | (a_nan & (b_nan == 0)) | (((a == b) | (a_nan & b_nan)) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def _argmin_pick(a, i, b, j):
    a_nan = a != a
    b_nan = b != b
    first = (a < b) | (a_nan & (b_nan == 0)) | (((a == b) | (a_nan & b_nan)) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def argmax(value, index, axis):
    _, at = tl.reduce((value, index), axis, _argmax_pick)
    return at


@triton.jit
def argmin(value, index, axis):
    _, at = tl.reduce((value, index), axis, _argmin_pick)
    return at


@triton.jit
def argmax_step(best, at, value, index, mask):
    new_best, new_at = _argmax_pick(best, at, value, index)
    return tl.where(mask, new_best, best), tl.where(mask, new_at, at)


@triton.jit
def argmin_step(best, at, value, index, mask):
    new_best, new_at = _argmin_pick(best, at, value, index)
    return tl.where(mask, new_best, best), tl.where(mask, new_at, at)


@triton.jit
def _welford_combine(mean_a, square_a, n_a, mean_b, square_b, n_b):
    # Chan, Golub and LeVeque: parallel combination of mean and sum of squared deviations
    n = n_a + n_b
    share = tl.where(n == 0.0, 0.0, n_b / n)
    delta = mean_b - mean_a
    return mean_a + delta * share, square_a + square_b + delta * delta * n_a * share, n


@triton.jit
def welford(mean, square, count, axis):
    return tl.reduce((mean, square, count), axis, _welford_combine)


@triton.jit
def welford_step(mean, square, step, value):
    # every lane has seen ``step`` values, this one included
    share = 1.0 / tl.full([1, 1], step, value.dtype)
    delta = value - mean
    new_mean = mean + delta * share
    return new_mean, square + delta * (value - new_mean)


@triton.jit
def welford_masked_step(mean, square, step, value, mask):
    new_mean, new_square = welford_step(mean, square, step, value)
    return tl.where(mask, new_mean, mean), tl.where(mask, new_square, square)
