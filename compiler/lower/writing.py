"""Writes at positions that are data: scatter, index_add, index_put, gradients of reads.

Two loop nests fill one buffer: the first stores what was there before (a copy, or zeros), the
second writes at the positions. Sums are atomic additions in float32, float64, int32 or int64;
narrower dtypes are summed in the next of these that is wide enough and rounded once, as eager does
on a GPU. Where several elements are *set* to one position, any of them wins, as in eager.

Where eager on a GPU stops with a device assert, at a position outside of its dimension, nothing
outside of the tensor is touched: a sum of floats is NaN in the first place of that dimension, which
no loss survives unnoticed; other writes are dropped.

Additions in no fixed order round differently from run to run, so under
``torch.use_deterministic_algorithms`` everything here is the library call that torch then makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..body import Recorder, loop_vars
from ..index import Index, indirect, linear
from ..ir import Compute, Lazy, Tensor, cost_of
from ..ops import is_float
from ..sym import Size, known_at_least, strides_of
from .context import Lowering, broadcast_index, wrapped
from .creation import constant
from .indexing import index_dims, position
from .joining import both
from .pointwise import converted
from .registry import lower

aten = torch.ops.aten

#: The dtype in which a stored dtype is summed; the others have no atomic addition.
_SUMMED_IN = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "int32": "int32",
    "int64": "int64",
}

#: Gives the value, where it goes in the result, and whether it counts at all (None: it does).
Write = Callable[["_Writer", Sequence[Index]], tuple[int, Sequence[Index], int | None]]


class _Writer:
    """Records the second loop nest; remembers whether all positions so far are inside."""

    def __init__(self, poisons: bool) -> None:
        self.recorder = Recorder()
        self.poisons = poisons
        self.inside: int | None = None

    def place(self, drawn: int, size: Size, *, wraps: bool = False) -> Index:
        """Where a value lies along a dimension; 0 if it is outside and that is to be seen."""
        recorder = self.recorder
        at, inside = position(recorder, drawn, size, wraps)
        self.inside = both(recorder, self.inside, inside)
        if inside is None or not self.poisons:
            return at
        found = at.indirects()
        kept = recorder.op("where", inside, *found, recorder.const(0, "int64"))
        return indirect(kept, size)


def written(
    ctx: Lowering, before: Tensor, loops: Sequence[Size], write: Write, *, adds: bool
) -> Any:
    """``before`` with one value for each iteration of ``loops`` added or stored somewhere."""
    dtype = before.dtype
    held = _SUMMED_IN.get(dtype) if adds else dtype
    if held is None or torch.are_deterministic_algorithms_enabled():
        return NotImplemented
    strides = strides_of(ctx.meta) if held == dtype else None
    # a lazy tensor of its own, so that the memory is nobody else's
    initial = Lazy(
        before.sizes, held, lambda r, i: r.cast(before.load(r, i), held), *cost_of(before)
    )
    target = ctx.realize(initial, strides)
    buffer = target.buffer
    ctx.defined.pop(buffer.name, None)  # it no longer holds what it was filled with
    poisons = adds and is_float(held) and all(known_at_least(s, 1) for s in before.sizes)
    writer = _Writer(poisons)
    recorder = writer.recorder
    value, place, counts = write(writer, loop_vars("p", loops))
    value = recorder.cast(value, held)
    if writer.inside is not None and poisons:
        value = recorder.op("where", writer.inside, value, recorder.const(math.nan, held))
    elif writer.inside is not None:
        counts = both(recorder, counts, writer.inside)
    mode = "add" if adds else "set"
    recorder.store(buffer.name, linear(place, target.strides), value, held, mode, counts)
    ctx.graph.nodes.append(Compute(ctx.fresh("write"), recorder.finish(loops), ctx.origin()))
    return target if held == dtype else converted(ctx, target, dtype)


def _is_row(before: Tensor, indices: Tensor) -> bool:
    return bool(before.sizes) and len(before.sizes) == len(indices.sizes)


def _scattered(
    ctx: Lowering, before: Tensor, dim: int, indices: Tensor, source: Any, *, adds: bool
) -> Any:
    """One write for each element of ``indices``, displaced along ``dim``."""
    if not _is_row(before, indices):
        return NotImplemented
    dim %= len(before.sizes)

    def write(writer: _Writer, index: Sequence[Index]) -> tuple[int, Sequence[Index], int | None]:
        recorder = writer.recorder
        drawn = indices.load(recorder, index)
        at = writer.place(drawn, before.sizes[dim])
        if isinstance(source, Tensor):
            value = recorder.cast(source.load(recorder, index), before.dtype)
        else:
            value = recorder.const(wrapped(source, before.dtype), before.dtype)
        return value, [*index[:dim], at, *index[dim + 1 :]], None

    return written(ctx, before, indices.sizes, write, adds=adds)


@lower(aten.scatter_add)
def scatter_add(ctx: Lowering, a: Tensor, dim: int, indices: Tensor, source: Tensor) -> Any:
    """``a`` with the elements of ``source`` added along one dimension."""
    return _scattered(ctx, a, dim, indices, source, adds=True)


@lower(aten.scatter_reduce.two)
def scatter_reduce(
    ctx: Lowering,
    a: Tensor,
    dim: int,
    indices: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    """Sums that include ``a``; other reductions are library calls."""
    if reduce != "sum" or not include_self:
        return NotImplemented
    return _scattered(ctx, a, dim, indices, source, adds=True)


def scatter_set(ctx: Lowering, a: Tensor, dim: int, indices: Tensor, source: Any) -> Any:
    """``a`` with elements replaced along one dimension, several in each row."""
    return _scattered(ctx, a, dim, indices, source, adds=False)


def _along(
    ctx: Lowering, a: Tensor, dim: int, indices: Tensor, source: Tensor, alpha: Any, *, adds: bool
) -> Any:
    """Slices of ``source`` written to positions of one dimension that a vector names."""
    if not a.sizes or len(source.sizes) != len(a.sizes) or len(indices.sizes) != 1:
        return NotImplemented
    dim %= len(a.sizes)

    def write(writer: _Writer, index: Sequence[Index]) -> tuple[int, Sequence[Index], int | None]:
        recorder = writer.recorder
        at = writer.place(indices.load(recorder, [index[dim]]), a.sizes[dim])
        value = recorder.cast(source.load(recorder, index), a.dtype)
        if alpha != 1:
            factor = recorder.const(wrapped(alpha, a.dtype), a.dtype)
            value = recorder.op("mul", value, factor)
        return value, [*index[:dim], at, *index[dim + 1 :]], None

    return written(ctx, a, source.sizes, write, adds=adds)


@lower(aten.index_add)
def index_add(
    ctx: Lowering, a: Tensor, dim: int, indices: Tensor, source: Tensor, *, alpha: Any = 1
) -> Any:
    """``a`` with slices added at positions of one dimension."""
    if not isinstance(alpha, (int, float)):
        return NotImplemented
    return _along(ctx, a, dim, indices, source, alpha, adds=True)


@lower(aten.index_copy)
def index_copy(ctx: Lowering, a: Tensor, dim: int, indices: Tensor, source: Tensor) -> Any:
    """``a`` with slices replaced at positions of one dimension."""
    return _along(ctx, a, dim, indices, source, 1, adds=False)


@lower(aten.index_put, aten._unsafe_index_put)
def index_put(
    ctx: Lowering,
    a: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
) -> Any:
    """``a`` with elements added or replaced at positions that tensors name, as `index_` reads."""
    where = index_dims(indices, a)
    if where is None:
        return NotImplemented
    given, lead, shared = where
    kept = [size for d, size in enumerate(a.sizes) if d not in given]
    sizes = (*kept[:lead], *shared, *kept[lead:])
    if len(values.sizes) > len(sizes):
        return NotImplemented

    def write(writer: _Writer, index: Sequence[Index]) -> tuple[int, Sequence[Index], int | None]:
        recorder = writer.recorder
        own = index[lead : lead + len(shared)]
        rest = iter([*index[:lead], *index[lead + len(shared) :]])
        at: list[Index] = []
        for d, size in enumerate(a.sizes):
            if d not in given:
                at.append(next(rest))
                continue
            drawn = given[d].load(recorder, broadcast_index(own, given[d].sizes, shared))
            at.append(writer.place(drawn, size, wraps=True))
        value = values.load(recorder, broadcast_index(index, values.sizes, sizes))
        return recorder.cast(value, a.dtype), at, None

    return written(ctx, a, sizes, write, adds=accumulate)


@lower(aten.embedding_dense_backward)
def embedding_dense_backward(
    ctx: Lowering,
    gradient: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Any:
    """The gradient of a table: rows of ``gradient`` summed at the positions that read them."""
    if scale_grad_by_freq:
        return NotImplemented
    width = gradient.sizes[-1]

    def write(writer: _Writer, index: Sequence[Index]) -> tuple[int, Sequence[Index], int | None]:
        recorder = writer.recorder
        drawn = recorder.cast(indices.load(recorder, index[:-1]), "int64")
        at = writer.place(drawn, num_weights)
        counts: int | None = None
        if padding_idx >= 0:
            counts = recorder.op("ne", drawn, recorder.const(padding_idx, "int64"))
        return gradient.load(recorder, index), [at, index[-1]], counts

    zeros = constant((num_weights, width), 0, gradient.dtype)
    return written(ctx, zeros, gradient.sizes, write, adds=True)
