"""Which ATen operator is lowered by which function.

A lowering has the signature ``fn(ctx, *args, **kwargs)``; tensors among the arguments are
`ir.Tensor`, everything else is as in the FX graph. It returns a Tensor, a tuple of them, or
`NotImplemented` when this particular call (a dtype, a device, an option) is not its business: the
generic fallback takes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LoweringFn = Callable[..., Any]

LOWERINGS: dict[object, LoweringFn] = {}


def lower(*ops: object) -> Callable[[LoweringFn], LoweringFn]:
    """Register a lowering for operator overloads, or for all overloads of a packet."""

    def register(fn: LoweringFn) -> LoweringFn:
        for op in ops:
            if op in LOWERINGS:
                raise ValueError(f"{op} has a lowering already")
            LOWERINGS[op] = fn
        return fn

    return register


def lowering_for(op: object) -> LoweringFn | None:
    """The lowering of an operator overload, if there is one."""
    if op in LOWERINGS:
        return LOWERINGS[op]
    if isinstance(op, torch._ops.OpOverload):
        return LOWERINGS.get(op.overloadpacket)
    return None
