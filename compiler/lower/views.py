"""Operators that only rename elements: reshapes, permutations, slices, repeats.

A view of memory whose layout is the traced one stays memory (`fallback.as_view`: strides from the
metadata, exactly eager's). Anything else becomes a lazy tensor that maps indices, so chains of
views over computed values cost nothing but index arithmetic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ..body import Recorder
from ..index import ZERO, Index, const, linear, mod, unravel
from ..ir import Lazy, Tensor, View, cost_of, same_layout
from ..sym import (
    Size,
    as_size,
    contiguous_strides,
    is_static,
    known_at_least,
    known_at_most,
    known_equal,
    known_multiple,
    plus,
    strides_of,
    times,
)
from .context import Lowering, broadcast_index
from .fallback import as_view
from .registry import lower

aten = torch.ops.aten

#: Coordinates of the source for coordinates of the result.
Mapping = Callable[[Sequence[Index]], Sequence[Index]]


def remapped(source: Tensor, sizes: tuple[Size, ...], mapping: Mapping) -> Lazy:
    """The elements of ``source`` under other coordinates."""

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        return source.load(recorder, mapping(index))

    return Lazy(sizes, source.dtype, fn, *cost_of(source))


def aliased(ctx: Lowering, source: Tensor) -> Any:
    """Views of the same memory if ``source`` is memory in the traced layout, else None."""
    assert ctx.node is not None
    if not isinstance(source, View) or not isinstance(ctx.node.args[0], fx.Node):
        return None
    traced = strides_of(ctx.node.args[0].meta["val"])
    if not same_layout(source.sizes, source.strides, traced):
        return None
    return as_view(ctx, ctx.node, (source,))


# -- reshapes -------------------------------------------------------------------------------------


def reshape_mapping(source: tuple[Size, ...], result: tuple[Size, ...]) -> Mapping:
    """Coordinates in ``source`` of the element with the same row-major position in ``result``.

    Dimensions are matched in the smallest runs of equal volume, so that a dimension that both
    shapes share stays a plain variable and symbols do not meet division.
    """
    if any(isinstance(s, int) and s == 0 for s in source):
        return lambda index: [ZERO] * len(source)
    groups = _equal_volumes(source, result)

    def mapping(index: Sequence[Index]) -> list[Index]:
        out = [ZERO] * len(source)
        for ours, theirs in groups:
            sizes = tuple(result[d] for d in theirs)
            flat = linear([index[d] for d in theirs], contiguous_strides(sizes))
            parts = unravel(flat, tuple(source[d] for d in ours))
            for d, part in zip(ours, parts, strict=True):
                out[d] = part
        return out

    return mapping


def _equal_volumes(a: tuple[Size, ...], b: tuple[Size, ...]) -> list[tuple[list[int], list[int]]]:
    """The dimensions of two shapes of equal volume in the smallest runs of equal volume."""
    left = [d for d, s in enumerate(a) if s != 1]
    right = [d for d, s in enumerate(b) if s != 1]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, begin = i, j
        va, vb = a[left[i]], b[right[j]]
        i, j = i + 1, j + 1
        while not known_equal(va, vb):
            grow_a = va < vb if is_static(va, vb) else known_multiple(vb, va)
            if grow_a and i < len(left):
                va, i = times(va, a[left[i]]), i + 1
            elif not grow_a and j < len(right):
                vb, j = times(vb, b[right[j]]), j + 1
            else:
                return [(left, right)]  # symbols that do not compare: one run of everything
        groups.append((left[start:i], right[begin:j]))
    if i < len(left) or j < len(right):
        return [(left, right)]
    return groups


def reshaped(source: Tensor, sizes: tuple[Size, ...]) -> Lazy:
    """The elements in another shape of the same volume, row-major."""
    return remapped(source, sizes, reshape_mapping(source.sizes, sizes))


@lower(
    aten.view.default,
    aten._unsafe_view,
    aten.reshape,
    aten.flatten.using_ints,
    aten.squeeze,
    aten.unsqueeze,
)
def view(ctx: Lowering, a: Tensor, *_shape: Any) -> Any:
    """Another shape with the same row-major order; the shape comes from the metadata."""
    alias = aliased(ctx, a)
    if alias is not None:
        return alias
    sizes = ctx.out_sizes()
    strides = reshaped_strides(a, sizes) if isinstance(a, View) else None
    if strides is not None:
        assert isinstance(a, View)
        return View(a.buffer, sizes, strides, a.offset, a.dtype)
    return reshaped(a, sizes)


def reshaped_strides(view: View, sizes: tuple[Size, ...]) -> tuple[Size, ...] | None:
    """The strides of memory under another shape, None where that takes a copy.

    Memory in a layout of our own, such as padded rows, is not what the trace promised; a library
    call that relies on the promise gets a copy.
    """
    if not is_static(*view.sizes, *view.strides, *sizes) or 0 in view.sizes:
        return None
    strides: list[Size] = [1] * len(sizes)
    for ours, theirs in _equal_volumes(view.sizes, sizes):
        for outer, inner in itertools.pairwise(ours):
            if view.strides[outer] != view.strides[inner] * view.sizes[inner]:
                return None
        steps = contiguous_strides(tuple(sizes[d] for d in theirs))
        for d, step in zip(theirs, steps, strict=True):
            strides[d] = step * view.strides[ours[-1]]
    return tuple(strides)


# -- permutations and broadcasts ------------------------------------------------------------------


def permuted(source: Tensor, dims: Sequence[int]) -> Tensor:
    """Dimension ``d`` of the result is dimension ``dims[d]`` of the source."""
    if isinstance(source, View):
        sizes, strides = (tuple(t[d] for d in dims) for t in (source.sizes, source.strides))
        return View(source.buffer, sizes, strides, source.offset, source.dtype)

    def mapping(index: Sequence[Index]) -> list[Index]:
        out = [ZERO] * len(dims)
        for position, d in enumerate(dims):
            out[d] = index[position]
        return out

    return remapped(source, tuple(source.sizes[d] for d in dims), mapping)


@lower(aten.permute)
def permute(ctx: Lowering, a: Tensor, dims: Sequence[int]) -> Any:
    """Dimensions in another order."""
    alias = aliased(ctx, a)
    return permuted(a, [d % len(dims) for d in dims]) if alias is None else alias


@lower(aten.transpose.int)
def transpose(ctx: Lowering, a: Tensor, dim0: int, dim1: int) -> Any:
    """Two dimensions swapped."""
    alias = aliased(ctx, a)
    if alias is not None:
        return alias
    order = list(range(len(a.sizes)))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return permuted(a, order)


@lower(aten.t)
def t(ctx: Lowering, a: Tensor) -> Any:
    """A matrix transposed; fewer dimensions stay as they are."""
    alias = aliased(ctx, a)
    return permuted(a, list(reversed(range(len(a.sizes))))) if alias is None else alias


@lower(aten.expand)
def expand(ctx: Lowering, a: Tensor, size: Any, *, implicit: bool = False) -> Any:
    """Broadcast to a larger shape."""
    alias = aliased(ctx, a)
    if alias is not None:
        return alias
    sizes = ctx.out_sizes()
    return remapped(a, sizes, lambda index: broadcast_index(index, a.sizes, sizes))


@lower(aten.repeat)
def repeat(ctx: Lowering, a: Tensor, repeats: Sequence[Any]) -> Any:
    """Tile along each dimension; new dimensions come first."""
    lead = len(repeats) - len(a.sizes)
    if any(isinstance(s, int) and s == 0 for s in a.sizes):
        return remapped(a, ctx.out_sizes(), lambda index: [ZERO] * len(a.sizes))

    def mapping(index: Sequence[Index]) -> list[Index]:
        return [mod(index[lead + d], size) for d, size in enumerate(a.sizes)]

    return remapped(a, ctx.out_sizes(), mapping)


@lower(aten.flip)
def flip(ctx: Lowering, a: Tensor, dims: Sequence[int]) -> Any:
    """Dimensions run backwards."""
    rank = len(a.sizes)
    turned = {d % rank for d in dims} if rank else set()

    def mapping(index: Sequence[Index]) -> list[Index]:
        return [const(plus(a.sizes[d], -1)) - i if d in turned else i for d, i in enumerate(index)]

    return remapped(a, a.sizes, mapping)


# -- parts ----------------------------------------------------------------------------------------


def narrowed(source: Tensor, dim: int, start: Size, size: Size, step: int = 1) -> Lazy:
    """``size`` elements along ``dim`` from ``start``, every ``step``-th."""
    sizes = (*source.sizes[:dim], size, *source.sizes[dim + 1 :])

    def mapping(index: Sequence[Index]) -> list[Index]:
        return [*index[:dim], index[dim].scale(step) + start, *index[dim + 1 :]]

    return remapped(source, sizes, mapping)


def slice_start(start: Any, size: Size) -> Size | None:
    """The first element of a slice, wrapped and clamped as Python does; None if that is not known.

    For symbolic sizes a start beyond the end is not clamped: such a slice has no elements.
    """
    if start is None:
        return 0
    if isinstance(start, int) and isinstance(size, int):
        return min(max(start + size if start < 0 else start, 0), size)
    if known_at_least(start, 0):
        return as_size(start)
    from_end = plus(start, size)
    return from_end if known_at_most(start, -1) and known_at_least(from_end, 0) else None


@lower(aten.slice.Tensor)
def slice_(
    ctx: Lowering, a: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """A range of one dimension; how many elements there are is in the metadata."""
    alias = aliased(ctx, a)
    if alias is not None:
        return alias
    dim %= len(a.sizes)
    first = slice_start(start, a.sizes[dim])
    if first is None or not isinstance(step, int):
        return NotImplemented
    return narrowed(a, dim, first, ctx.out_sizes()[dim], step)


@lower(aten.select.int)
def select(ctx: Lowering, a: Tensor, dim: int, index: Any) -> Any:
    """One position of one dimension, which goes away."""
    alias = aliased(ctx, a)
    if alias is not None:
        return alias
    dim %= len(a.sizes)
    if not known_at_least(index, 0) and not known_at_most(index, -1):
        return NotImplemented
    at = const(index if known_at_least(index, 0) else plus(a.sizes[dim], index))
    return remapped(a, ctx.out_sizes(), lambda i: [*i[:dim], at, *i[dim:]])


@lower(aten.split_with_sizes, aten.split.Tensor, aten.unbind.int)
def split(ctx: Lowering, a: Tensor, *arguments: Any, dim: int = 0) -> Any:
    """Consecutive parts of one dimension; their sizes are in the metadata."""
    assert ctx.node is not None
    alias = aliased(ctx, a)
    if alias is not None:
        return alias
    unbinds = ctx.node.target is aten.unbind.int
    dim = arguments[-1] if len(arguments) == (1 if unbinds else 2) else dim
    dim %= len(a.sizes)
    parts: list[Lazy] = []
    start: Size = 0
    for meta in ctx.meta:
        size = 1 if unbinds else as_size(meta.shape[dim])
        part = narrowed(a, dim, start, size)
        sizes = tuple(as_size(s) for s in meta.shape)
        parts.append(reshaped(part, sizes) if unbinds else part)
        start = plus(start, size)
    return tuple(parts)


# -- the same elements ----------------------------------------------------------------------------


@lower(aten.alias, aten.detach)
def alias(ctx: Lowering, a: Tensor) -> Any:
    """The tensor itself."""
    return a


@lower(aten.clone, aten.lift_fresh_copy, aten.contiguous)
def clone(ctx: Lowering, a: Tensor, *, memory_format: Any = None) -> Any:
    """The same elements in memory of their own: lazy, so that no output shares an input's."""
    return remapped(a, a.sizes, lambda index: index)
