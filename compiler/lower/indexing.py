"""Reads at positions that are data: embedding, index, index_select, gather.

A position outside its dimension is undefined here where eager on a GPU stops with a device assert:
an assert would make a kernel a debug kernel, which no store may share. What holds instead: the read
is masked, so memory outside the tensor is never touched, and a floating-point result is NaN there
(an integer one is zero), which no loss survives unnoticed. Only `aten.index.Tensor` takes negative
positions, as in eager; they count from the end, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..body import Recorder
from ..index import Index, bounds, const, indirect, known_below
from ..ir import Lazy, Tensor, cost_of
from ..ops import is_float
from ..sym import Size, is_static, known_equal, product
from .context import CHEAP_COST, CHEAP_READS, Lowering, broadcast_index
from .joining import both, size_value
from .registry import lower

aten = torch.ops.aten

_INTEGERS = ("int64", "int32", "int16", "int8", "uint8")


def position(recorder: Recorder, value: int, size: Size, wraps: bool) -> tuple[Index, int | None]:
    """A value as an index below ``size``, and the condition under which it is (None: always)."""
    direct = _affine(recorder, value)
    if direct is not None:
        limits = bounds(direct)
        if limits is not None and isinstance(size, int) and limits[0] >= 0 and limits[1] < size:
            return direct, None
        if limits is None and known_below(direct, size):
            return direct, None
    at = recorder.cast(value, "int64")
    zero = recorder.const(0, "int64")
    end = size_value(recorder, size)
    if wraps:
        negative = recorder.op("lt", at, zero)
        at = recorder.op("where", negative, recorder.op("add", at, end), at)
    inside = recorder.op("and", recorder.op("ge", at, zero), recorder.op("lt", at, end))
    return indirect(at, size), inside


def _affine(recorder: Recorder, value: int) -> Index | None:
    """The index behind a value that is one: a range read as positions needs no data."""
    stmt = recorder.stmts[value]
    while stmt.op == "cast" and stmt.dtype in ("int32", "int64"):
        stmt = recorder.stmts[stmt.args[0]]
    if stmt.dtype not in ("int32", "int64"):
        return None
    match stmt.op:
        case "index":
            return stmt.attrs[0]
        case "const":
            return const(stmt.attrs[0])
        case _:
            return None


def read_at(recorder: Recorder, source: Tensor, index: Sequence[Index], inside: int | None) -> int:
    """An element of ``source`` where ``inside`` holds; NaN or zero elsewhere."""
    if inside is None:
        return source.load(recorder, index)
    with recorder.masked(inside):
        value = source.load(recorder, index)
    poison = recorder.const(math.nan if is_float(source.dtype) else 0, source.dtype)
    return recorder.op("where", inside, value, poison)


def _once(ctx: Lowering, source: Tensor, out_sizes: tuple[Size, ...]) -> Tensor:
    """The source in memory, if reading it at random would compute elements more than once."""
    cost, reads = cost_of(source)
    if cost <= CHEAP_COST and reads <= CHEAP_READS:
        return source
    total, wanted = product(source.sizes), product(out_sizes)
    if is_static(total, wanted) and wanted <= total:
        return source
    return ctx.realize(source)


def _lookup(
    ctx: Lowering,
    source: Tensor,
    positions: Sequence[Tensor],
    fn: Callable[[Recorder, Sequence[Index]], int],
) -> Lazy:
    """The lazy result of a read of ``source`` at ``positions``."""
    costs = [cost_of(t) for t in (source, *positions)]
    cost, reads = sum(c for c, _ in costs), sum(r for _, r in costs)
    return Lazy(ctx.out_sizes(), source.dtype, fn, cost + 3 * len(positions), reads)


@lower(aten.embedding)
def embedding(ctx: Lowering, weight: Tensor, indices: Tensor, *_options: Any, **_named: Any) -> Any:
    """Rows of a table; padding and gradient options do not change the result."""
    weight = _once(ctx, weight, ctx.out_sizes())

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        value = indices.load(recorder, index[:-1])
        row, inside = position(recorder, value, weight.sizes[0], wraps=False)
        return read_at(recorder, weight, [row, index[-1]], inside)

    return _lookup(ctx, weight, [indices], fn)


@lower(aten.index_select)
def index_select(ctx: Lowering, a: Tensor, dim: int, indices: Tensor) -> Any:
    """Positions of one dimension, chosen by a vector."""
    if not a.sizes:
        return NotImplemented
    dim %= len(a.sizes)
    a = _once(ctx, a, ctx.out_sizes())

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        value = indices.load(recorder, [index[dim]] if indices.sizes else [])
        at, inside = position(recorder, value, a.sizes[dim], wraps=False)
        return read_at(recorder, a, [*index[:dim], at, *index[dim + 1 :]], inside)

    return _lookup(ctx, a, [indices], fn)


@lower(aten.gather)
def gather(
    ctx: Lowering, a: Tensor, dim: int, indices: Tensor, *, sparse_grad: bool = False
) -> Any:
    """One element for each element of ``indices``, displaced along one dimension."""
    if not a.sizes or len(indices.sizes) != len(a.sizes):
        return NotImplemented
    dim %= len(a.sizes)
    a = _once(ctx, a, ctx.out_sizes())

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        value = indices.load(recorder, index)
        at, inside = position(recorder, value, a.sizes[dim], wraps=False)
        return read_at(recorder, a, [*index[:dim], at, *index[dim + 1 :]], inside)

    return _lookup(ctx, a, [indices], fn)


@lower(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_(ctx: Lowering, a: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """Advanced indexing by integer tensors, which broadcast; None keeps a dimension."""
    where = index_dims(indices, a)
    if where is None:
        return NotImplemented
    given, lead, shared = where[0], where[1], len(where[2])
    out_sizes = ctx.out_sizes()
    a = _once(ctx, a, out_sizes)

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        named = index[lead : lead + shared]
        kept = iter([*index[:lead], *index[lead + shared :]])
        inside: int | None = None
        at: list[Index] = []
        for d, size in enumerate(a.sizes):
            if d not in given:
                at.append(next(kept))
                continue
            own = broadcast_index(named, given[d].sizes, out_sizes[lead : lead + shared])
            value = given[d].load(recorder, own)
            place, condition = position(recorder, value, size, wraps=True)
            inside = both(recorder, inside, condition)
            at.append(place)
        return read_at(recorder, a, at, inside)

    return _lookup(ctx, a, list(given.values()), fn)


def index_dims(
    indices: Sequence[Tensor | None], a: Tensor
) -> tuple[dict[int, Tensor], int, tuple[Size, ...]] | None:
    """Which dimensions of ``a`` tensors name, where theirs stand in the result, and their shape.

    None for masks and for shapes that broadcast in a way that is not known.
    """
    given = {d: t for d, t in enumerate(indices) if t is not None}
    if not given or any(t.dtype not in _INTEGERS[:4] for t in given.values()):
        return None
    dims = sorted(given)
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    rank = max(len(t.sizes) for t in given.values())
    shape: list[Size] = [1] * rank
    for tensor in given.values():
        for d, size in enumerate(tensor.sizes, rank - len(tensor.sizes)):
            if not known_equal(size, 1):
                shape[d] = size
    return given, dims[0] if adjacent else 0, tuple(shape)
