"""The one way to build a reduction: a loop nest with one buffer for each result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from ..body import Recorder, loop_vars
from ..index import ZERO, Index, const, linear
from ..ir import Compute, Lazy, Tensor, cost_of, is_dense
from ..ops import REDUCTIONS, compute_dtype
from ..sym import Size, as_size, contiguous_strides, product, strides_of

if TYPE_CHECKING:
    from .context import Lowering

#: Takes the recorder and the results of a reduction, returns the values to store.
Finish = Callable[[Recorder, list[int]], list[int]]

#: What a reduction over nothing gives; the others have no value there.
_EMPTY: dict[str, tuple[bool | int | float, ...]] = {
    "sum": (0,),
    "prod": (1,),
    "any": (False,),
    "all": (True,),
    "welford": (math.nan, 0.0),
}

#: How two results of a reduction combine, for those that a short row unrolls into.
_COMBINE = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "any": "or",
    "all": "and",
}
#: Rows this short are unrolled: a loop over them would keep few lanes busy, and what reads the
#: result can fuse with it. Not where an element takes more than this to compute.
UNROLLED, UNROLLED_COST, UNROLLED_READS = 8, 8, 2


def reduce(
    ctx: Lowering,
    kind: str,
    tensor: Tensor,
    dims: Sequence[int],
    *,
    compute: str,
    out_dtypes: Sequence[str],
    keepdim: bool,
    finish: Finish | None = None,
    result_dtype: str | None = None,
    unroll: bool = False,
) -> tuple[Tensor, ...]:
    """Reduce over ``dims``; one loop nest, one buffer for each output.

    ``compute`` is the dtype the operand is converted to first; ``finish`` maps the reduction's
    results to the values that are stored (default: the results themselves).
    ``result_dtype`` is the reduction's own result dtype (default: ``compute``).
    Reductions over nothing or over single elements need no loop and come back lazy, and with
    ``unroll`` those of a few cheap elements (not where every element of the row reads the result).
    """
    rank = len(tensor.sizes)
    over = sorted({d % rank for d in dims}) if rank else []
    kept = [d for d in range(rank) if d not in over]
    out_sizes = tuple(
        1 if d in over else tensor.sizes[d] for d in range(rank) if keepdim or d not in over
    )
    result = compute_dtype(result_dtype or compute)
    reduced = [tensor.sizes[d] for d in over]
    cost = cost_of(tensor) if unroll else None
    short = _without_loop(kind, reduced, compute, result, cost)

    def coordinates(outer: Sequence[Index], inner: Sequence[Index]) -> list[Index]:
        index = [ZERO] * rank
        for d, i in zip((*kept, *over), (*outer, *inner), strict=True):
            index[d] = i
        return index

    if short is not None:
        return _lazies(tensor, out_dtypes, out_sizes, coordinates, kept, keepdim, short, finish)
    loops = loop_vars("p", [tensor.sizes[d] for d in kept])
    rloops = loop_vars("r", reduced)
    recorder = Recorder()
    value = recorder.cast(tensor.load(recorder, coordinates(loops, rloops)), compute)
    total = recorder.reduce(kind, value, result)
    parts = REDUCTIONS[kind]
    results = [total] if parts == 1 else [recorder.part(total, k) for k in range(parts)]
    if finish is not None:
        results = finish(recorder, results)
    outs = []
    layouts = _layouts(ctx, out_sizes, len(out_dtypes))
    for number, dtype, strides in zip(results, out_dtypes, layouts, strict=True):
        out = ctx.buffer(out_sizes, dtype, strides)
        at = kept if keepdim else range(len(kept))
        index = linear(loops, [out.strides[d] for d in at])
        recorder.store(out.name, index, recorder.cast(number, dtype), dtype)
        outs.append(ctx.whole(out))
    body = recorder.finish([tensor.sizes[d] for d in kept], reduced)
    ctx.graph.nodes.append(Compute(outs[0].buffer.name, body, ctx.origin()))
    return tuple(outs)


#: Records the results of a reduction without a loop from a loader of each element, by position.
_Short = Callable[[Recorder, Sequence[Callable[[], int]]], list[int]]


def _without_loop(
    kind: str, sizes: Sequence[Size], compute: str, result: str, cost: tuple[int, int] | None
) -> _Short | None:
    """How to reduce over nothing, one element or a few; None for a real loop."""
    if any(isinstance(s, int) and s == 0 for s in sizes) and kind in _EMPTY:
        return lambda recorder, elements: [recorder.const(x, result) for x in _EMPTY[kind]]
    count = product(sizes)
    if not isinstance(count, int) or count == 0:
        return None
    if count > 1:
        cheap = cost is not None and cost[0] <= UNROLLED_COST and cost[1] <= UNROLLED_READS
        return _unrolled(kind, compute, result) if count <= UNROLLED and cheap else None

    def single(recorder: Recorder, elements: Sequence[Callable[[], int]]) -> list[int]:
        value = recorder.cast(elements[0](), compute)
        match kind:
            case "argmax" | "argmin":
                return [recorder.const(0, result)]
            case "welford":
                off = recorder.op("sub", value, value)  # NaN for an infinite element, as in eager
                return [value, recorder.op("mul", off, off)]
            case _:
                return [recorder.cast(value, result)]

    return single


def _unrolled(kind: str, compute: str, result: str) -> _Short | None:
    """A few elements combined one after the other."""
    if kind not in _COMBINE:
        return None

    def chain(recorder: Recorder, elements: Sequence[Callable[[], int]]) -> list[int]:
        total = recorder.cast(elements[0](), compute)
        for element in elements[1:]:
            total = recorder.op(_COMBINE[kind], total, recorder.cast(element(), compute))
        return [recorder.cast(total, result)]

    return chain


def _lazies(
    tensor: Tensor,
    dtypes: Sequence[str],
    sizes: tuple[Size, ...],
    coordinates: Callable[[Sequence[Index], Sequence[Index]], list[Index]],
    kept: Sequence[int],
    keepdim: bool,
    short: _Short,
    finish: Finish | None,
) -> tuple[Tensor, ...]:
    """The results of a reduction without a loop."""
    over = [int(tensor.sizes[d]) for d in range(len(tensor.sizes)) if d not in kept]
    positions = list(itertools.product(*map(range, over)))

    def output(number: int, dtype: str) -> Lazy:
        def fn(recorder: Recorder, index: Sequence[Index]) -> int:
            outer = [index[d] for d in kept] if keepdim else list(index)
            elements = [
                partial(tensor.load, recorder, coordinates(outer, [const(i) for i in position]))
                for position in positions
            ]
            results = short(recorder, elements)
            if finish is not None:
                results = finish(recorder, results)
            return recorder.cast(results[number], dtype)

        cost, reads = cost_of(tensor)
        count = max(len(positions), 1)
        return Lazy(sizes, dtype, fn, (cost + 1) * count + 2, reads * count)

    return tuple(output(n, d) for n, d in enumerate(dtypes))


def _layouts(ctx: Lowering, sizes: tuple[Size, ...], count: int) -> list[tuple[Size, ...]]:
    """The strides that the traced results have where they are ours, else contiguous ones."""
    metas = ctx.meta if isinstance(ctx.meta, (tuple, list)) else [ctx.meta]
    plain = contiguous_strides(sizes)
    if len(metas) != count:
        return [plain] * count
    out = []
    for meta in metas:
        strides = plain
        if isinstance(meta, torch.Tensor) and tuple(as_size(s) for s in meta.shape) == sizes:
            traced = strides_of(meta)
            strides = traced if is_dense(sizes, traced) else plain
        out.append(strides)
    return out
