"""Random numbers as part of a kernel: each element from the seed and its own position.

See `trace.random_ops` for the operators and `trace.randomness` for how they get into a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..body import Recorder
from ..index import ZERO, Index, linear
from ..ir import Lazy, Tensor
from ..ops import OPS
from ..sym import contiguous_strides
from ..trace import random_ops as random_ops
from .context import Lowering
from .registry import lower

_OPERATION = {
    ("uniform", "float32"): "uniform",
    ("uniform", "float64"): "uniform64",
    ("uniform", "float16"): "uniform_f16",
    ("uniform", "bfloat16"): "uniform_bf16",
    ("normal", "float64"): "normal64",
}


@lower(torch.ops.kernelfarm.seed.default)
def seed(ctx: Lowering, seeds: Tensor, row: int) -> Any:
    """A seed as memory with a name of its own: kernels that differ in nothing else are one."""
    memory = ctx.realize(seeds)
    return ctx.extern("aten.select.int", (memory, 0, row), {}, ctx.meta)


@lower(
    torch.ops.kernelfarm.uniform.default,
    torch.ops.kernelfarm.normal.default,
    torch.ops.kernelfarm.bits.default,
)
def random(ctx: Lowering, seed: Tensor, *_layout: Any) -> Any:
    """One random number for each element, by its row-major position."""
    assert ctx.node is not None
    sizes, dtype = ctx.out_sizes(), ctx.out_dtype()
    kind: str = ctx.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    operation = _OPERATION.get((kind, dtype), kind)
    strides = contiguous_strides(sizes)

    def fn(recorder: Recorder, index: Sequence[Index]) -> int:
        drawn = seed.load(recorder, [ZERO])
        position = recorder.index(linear(index, strides))
        return recorder.cast(recorder.op(operation, drawn, position), dtype)

    return Lazy(sizes, dtype, fn, OPS[operation].cost, 1)
