"""Tensors made from nothing: constants, ranges and memory without content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sympy import Expr

from ..body import Recorder
from ..index import Index
from ..ir import Lazy
from ..ops import compute_dtype, is_float
from ..sym import Size
from .context import Lowering, wrapped
from .registry import lower
from .symbolic import number_value

aten = torch.ops.aten


def constant(sizes: tuple[Size, ...], number: bool | int | float, dtype: str) -> Lazy:
    """A tensor of one number, which costs nothing to read."""
    fixed = wrapped(number, dtype)

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        return recorder.round_to(recorder.const(fixed, dtype), dtype)

    return Lazy(sizes, dtype, fn, cost=0, reads=0)


def size_everywhere(sizes: tuple[Size, ...], number: Expr, dtype: str) -> Lazy:
    """A tensor of one number that depends on sizes."""

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        return recorder.round_to(number_value(recorder, number, compute_dtype(dtype)), dtype)

    return Lazy(sizes, dtype, fn, cost=1, reads=0)


@lower(aten.full, aten.full_like, aten.new_full)
def full(ctx: Lowering, like: Any, *values: Any, fill_value: Any = None, **_options: Any) -> Any:
    """One number everywhere; shape and dtype are in the metadata."""
    number = values[-1] if values else fill_value
    if isinstance(number, Expr):
        return size_everywhere(ctx.out_sizes(), number, ctx.out_dtype())
    if not isinstance(number, (bool, int, float)):
        return NotImplemented
    return constant(ctx.out_sizes(), number, ctx.out_dtype())


@lower(aten.scalar_tensor)
def scalar_tensor(ctx: Lowering, number: Any, **_options: Any) -> Any:
    """A number as a tensor without dimensions."""
    if isinstance(number, Expr):
        return size_everywhere((), number, ctx.out_dtype())
    if not isinstance(number, (bool, int, float)):
        return NotImplemented
    return constant((), number, ctx.out_dtype())


@lower(aten.zeros, aten.zeros_like, aten.new_zeros)
def zeros(ctx: Lowering, *_arguments: Any, **_options: Any) -> Any:
    """Zeros."""
    return constant(ctx.out_sizes(), 0, ctx.out_dtype())


@lower(aten.ones, aten.ones_like, aten.new_ones)
def ones(ctx: Lowering, *_arguments: Any, **_options: Any) -> Any:
    """Ones."""
    return constant(ctx.out_sizes(), 1, ctx.out_dtype())


@lower(
    aten.empty.memory_format,
    aten.empty_like,
    aten.empty_strided,
    aten.empty_permuted,
    aten.new_empty,
    aten.new_empty_strided,
)
def empty(ctx: Lowering, *_arguments: Any, **_options: Any) -> Any:
    """Memory without content. Whoever reads it must accept any value; we choose zero."""
    return constant(ctx.out_sizes(), 0, ctx.out_dtype())


def ramp(size: Size, start: Size | float, step: int | float, dtype: str) -> Lazy:
    """``start + i * step`` for i below ``size``; floats are computed in float32 or float64."""

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        if not isinstance(start, float) and isinstance(step, int) and not is_float(dtype):
            return recorder.cast(recorder.index(index[0].scale(step) + start), dtype)
        assert isinstance(start, (int, float))  # a symbolic one is for integers
        compute = "float64" if dtype == "float64" or not is_float(dtype) else "float32"
        at = recorder.cast(recorder.index(index[0]), compute)
        scaled = recorder.op("mul", at, recorder.const(step, compute))
        return recorder.cast(recorder.op("add", scaled, recorder.const(start, compute)), dtype)

    return Lazy((size,), dtype, fn, cost=1, reads=0)


@lower(aten.arange.start_step)
def arange(ctx: Lowering, start: Any, end: Any, step: Any = 1, **_options: Any) -> Any:
    """Evenly spaced numbers from ``start``; how many is in the metadata."""
    if not isinstance(start, (int, float, Expr)) or not isinstance(step, (int, float)):
        return NotImplemented
    if isinstance(start, Expr) and (isinstance(step, float) or is_float(ctx.out_dtype())):
        return NotImplemented
    return ramp(ctx.out_sizes()[0], start, step, ctx.out_dtype())


@lower(torch.ops.prims.iota.default)
def iota(ctx: Lowering, length: Any, *, start: Any, step: Any, **_options: Any) -> Any:
    """``length`` evenly spaced integers."""
    if not isinstance(start, (int, Expr)) or not isinstance(step, int):
        return NotImplemented
    return ramp(ctx.out_sizes()[0], start, step, ctx.out_dtype())
