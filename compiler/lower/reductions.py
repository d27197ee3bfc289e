"""Reductions over dimensions: sums, extremes, their positions, truth, mean and variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..body import Recorder
from ..index import Index
from ..ir import Lazy, Tensor, cost_of
from ..ops import is_float
from ..sym import Size, known_at_least, plus, product
from .context import Lowering
from .pointwise import truth
from .registry import lower

aten = torch.ops.aten


def all_dims(tensor: Tensor, dims: int | Sequence[int] | None) -> list[int]:
    """Normalised dimensions; None or an empty list means all of them."""
    rank = len(tensor.sizes)
    if isinstance(dims, int):
        dims = [dims]
    if dims is None or len(dims) == 0:
        return list(range(rank))
    return sorted({d % rank if rank else 0 for d in dims}) if rank else []


@lower(aten.sum, aten.prod)
def sum_(
    ctx: Lowering, a: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Sum or product; integers and booleans accumulate in int64 as eager does."""
    assert ctx.node is not None
    kind = ctx.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    out = ctx.out_dtype()
    (result,) = ctx.reduce(
        kind, a, all_dims(a, dim), compute=out, out_dtypes=[out], keepdim=keepdim, unroll=True
    )
    return result


def count_value(recorder: Recorder, count: Size, dtype: str) -> int:
    """A number of elements as a floating-point value."""
    if isinstance(count, int):
        return recorder.const(float(count), dtype)
    return recorder.cast(recorder.index(Index((), count)), dtype)


@lower(aten.mean)
def mean(
    ctx: Lowering, a: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Arithmetic mean, accumulated in float32 or float64."""
    out = ctx.out_dtype()
    if not is_float(out):
        return NotImplemented
    dims = all_dims(a, dim)
    count = product(a.sizes[d] for d in dims)

    def finish(r: Recorder, values: list[int]) -> list[int]:
        return [r.op("div", values[0], count_value(r, count, out))]

    (result,) = ctx.reduce(
        "sum", a, dims, compute=out, out_dtypes=[out], keepdim=keepdim, finish=finish, unroll=True
    )
    return result


@lower(aten.amax, aten.amin)
def amax(ctx: Lowering, a: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
    """Largest or smallest element; NaN wins."""
    assert ctx.node is not None
    kind = ctx.node.target.overloadpacket.__name__.removeprefix("a")  # type: ignore[union-attr]
    return _extreme(ctx, kind, a, all_dims(a, dim), keepdim)


def _extreme(ctx: Lowering, kind: str, a: Tensor, dims: list[int], keepdim: bool) -> Any:
    if a.dtype == "bool":
        kind = "any" if kind == "max" else "all"
    if any(isinstance(a.sizes[d], int) and a.sizes[d] == 0 for d in dims):
        return NotImplemented  # eager raises, and so does the library call
    (result,) = ctx.reduce(kind, a, dims, compute=a.dtype, out_dtypes=[a.dtype], keepdim=keepdim)
    return result


@lower(aten.max.default, aten.min.default)
def max_all(ctx: Lowering, a: Tensor) -> Any:
    """Largest or smallest element of a whole tensor."""
    assert ctx.node is not None
    kind = ctx.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    return _extreme(ctx, kind, a, all_dims(a, None), False)


@lower(aten.argmax, aten.argmin)
def argmax(ctx: Lowering, a: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Position of the first largest or smallest element; NaN wins.

    Over all dimensions the position is that in row-major order, and eager's, whatever the layout.
    """
    assert ctx.node is not None
    kind = ctx.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    if a.dtype == "bool" or any(isinstance(s, int) and s == 0 for s in a.sizes):
        return NotImplemented
    (result,) = ctx.reduce(
        kind,
        a,
        all_dims(a, dim),
        compute=a.dtype,
        out_dtypes=["int64"],
        keepdim=keepdim,
        result_dtype="int64",
    )
    return result


@lower(aten.any, aten.all)
def any_(ctx: Lowering, a: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether any or all elements are true; eager gives uint8 for uint8 input."""
    assert ctx.node is not None
    kind = ctx.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    out = ctx.out_dtype()
    flags = Lazy(a.sizes, "bool", lambda r, i: truth(r, a.load(r, i)), *cost_of(a))
    # unlike all others, these two take an empty list as no dimension at all
    dims = [] if isinstance(dim, (list, tuple)) and not dim else all_dims(a, dim)
    (result,) = ctx.reduce(kind, flags, dims, compute="bool", out_dtypes=[out], keepdim=keepdim)
    return result


def moments(
    ctx: Lowering,
    a: Tensor,
    dims: list[int],
    correction: float,
    keepdim: bool,
    outs: list[str],
    finish: Any,
) -> tuple[Any, ...]:
    """Mean and variance by Welford's method; ``finish(recorder, mean, variance)`` gives outputs."""
    compute = "float64" if a.dtype == "float64" else "float32"
    count = product(a.sizes[d] for d in dims)

    def done(r: Recorder, values: list[int]) -> list[int]:
        mean_, squares = values
        variance = r.op("div", squares, _divisor(r, count, correction, compute))
        return finish(r, mean_, variance)

    return ctx.reduce(
        "welford", a, dims, compute=compute, out_dtypes=outs, keepdim=keepdim, finish=done
    )


def _divisor(recorder: Recorder, count: Size, correction: float, dtype: str) -> int:
    """``count - correction``, not below zero."""
    if isinstance(count, int):
        return recorder.const(max(float(count) - correction, 0.0), dtype)
    if correction == int(correction):
        rest = plus(count, -int(correction))
        if known_at_least(rest, 0):
            return count_value(recorder, rest, dtype)
    whole = count_value(recorder, count, dtype)
    rest_value = recorder.op("sub", whole, recorder.const(correction, dtype))
    return recorder.op("maximum", rest_value, recorder.const(0.0, dtype))


@lower(aten.var.correction, aten.var_mean.correction)
def var(
    ctx: Lowering, a: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    """Variance, and with var_mean the mean beside it; ``correction`` defaults to 1."""
    assert ctx.node is not None
    if not is_float(a.dtype):
        return NotImplemented
    both = ctx.node.target.overloadpacket is aten.var_mean  # type: ignore[union-attr]
    by = 1.0 if correction is None else float(correction)
    outs = [a.dtype, a.dtype] if both else [a.dtype]
    results = moments(
        ctx,
        a,
        all_dims(a, dim),
        by,
        keepdim,
        outs,
        lambda r, m, v: [v, m] if both else [v],
    )
    return results if both else results[0]


@lower(aten.max.dim, aten.min.dim)
def max_along(ctx: Lowering, a: Tensor, dim: int, keepdim: bool = False) -> Any:
    """(largest or smallest element, its first position) along one dimension; NaN wins."""
    assert ctx.node is not None
    kind = ctx.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    dims = all_dims(a, dim)
    if any(isinstance(a.sizes[d], int) and a.sizes[d] == 0 for d in dims):
        return NotImplemented
    a = ctx.rereadable(a)
    values = _extreme(ctx, kind, a, dims, keepdim)
    (positions,) = ctx.reduce(
        f"arg{kind}",
        a,
        dims,
        compute="int32" if a.dtype == "bool" else a.dtype,
        out_dtypes=["int64"],
        keepdim=keepdim,
        result_dtype="int64",
    )
    return values, positions


@lower(aten.linalg_vector_norm)
def vector_norm(
    ctx: Lowering,
    a: Tensor,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    """The p-norm; accumulated in float32 or float64."""
    out = ctx.out_dtype()
    dims = all_dims(a, dim)
    if not is_float(a.dtype) or not isinstance(ord, (int, float)):
        return NotImplemented
    extreme = math.isinf(ord)
    if extreme and any(isinstance(a.sizes[d], int) and a.sizes[d] == 0 for d in dims):
        return NotImplemented
    compute = "float64" if "float64" in (out, a.dtype) else "float32"

    def term(r: Recorder, index: Any) -> int:
        value = r.cast(a.load(r, index), compute)
        match ord:
            case 2:
                return r.op("mul", value, value)
            case 0:
                return r.cast(truth(r, value), compute)
            case _:
                size = r.op("abs", value)
                return size if extreme or ord == 1 else r.op("pow", size, r.const(ord, compute))

    def finish(r: Recorder, values: list[int]) -> list[int]:
        if ord == 2:
            return [r.op("sqrt", values[0])]
        if extreme or ord in (0, 1):
            return values
        return [r.op("pow", values[0], r.const(1.0 / ord, compute))]

    kind = "sum" if not extreme else "max" if ord > 0 else "min"
    terms = Lazy(a.sizes, compute, term, *cost_of(a))
    (result,) = ctx.reduce(
        kind, terms, dims, compute=compute, out_dtypes=[out], keepdim=keepdim, finish=finish
    )
    return result
