"""The one way to build a reduction: a loop nest with one buffer for each result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from ..body import Recorder, loop_vars
from ..index import ZERO, Index, linear
from ..ir import Compute, Lazy, Tensor, cost_of, is_dense
from ..ops import REDUCTIONS, compute_dtype
from ..sym import Size, as_size, contiguous_strides

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
) -> tuple[Tensor, ...]:
    """Reduce over ``dims``; one loop nest, one buffer for each output.

    ``compute`` is the dtype the operand is converted to first; ``finish`` maps the reduction's
    results to the values that are stored (default: the results themselves).
    ``result_dtype`` is the reduction's own result dtype (default: ``compute``).
    Reductions over nothing or over single elements need no loop and come back lazy.
    """
    rank = len(tensor.sizes)
    over = sorted({d % rank for d in dims}) if rank else []
    kept = [d for d in range(rank) if d not in over]
    out_sizes = tuple(
        1 if d in over else tensor.sizes[d] for d in range(rank) if keepdim or d not in over
    )
    result = compute_dtype(result_dtype or compute)
    reduced = [tensor.sizes[d] for d in over]
    short = _without_loop(kind, reduced, compute, result)

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


#: Records the results of a reduction without a loop from the single element's loader.
_Short = Callable[[Recorder, Callable[[], int]], list[int]]


def _without_loop(kind: str, sizes: Sequence[Size], compute: str, result: str) -> _Short | None:
    """How to reduce over nothing or one element, or None for a real loop."""
    if any(isinstance(s, int) and s == 0 for s in sizes) and kind in _EMPTY:
        return lambda recorder, element: [recorder.const(x, result) for x in _EMPTY[kind]]
    if not all(isinstance(s, int) and s == 1 for s in sizes):
        return None

    def single(recorder: Recorder, element: Callable[[], int]) -> list[int]:
        match kind:
            case "argmax" | "argmin":
                return [recorder.const(0, result)]
            case "welford":
                value = recorder.cast(element(), compute)
                off = recorder.op("sub", value, value)  # NaN for an infinite element, as in eager
                return [value, recorder.op("mul", off, off)]
            case _:
                return [recorder.cast(recorder.cast(element(), compute), result)]

    return single


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
    count = len(tensor.sizes) - len(kept)

    def output(number: int, dtype: str) -> Lazy:
        def fn(recorder: Recorder, index: Sequence[Index]) -> int:
            outer = [index[d] for d in kept] if keepdim else list(index)
            at = coordinates(outer, [ZERO] * count)
            results = short(recorder, lambda: tensor.load(recorder, at))
            if finish is not None:
                results = finish(recorder, results)
            return recorder.cast(results[number], dtype)

        cost, reads = cost_of(tensor)
        return Lazy(sizes, dtype, fn, cost + 3, reads)

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
            traced = tuple(as_size(s) for s in meta.stride())
            strides = traced if is_dense(sizes, traced) else plain
        out.append(strides)
    return out
