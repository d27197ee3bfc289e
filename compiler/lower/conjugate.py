"""Conjugation and negation that eager leaves for later.

Eager marks a view as conjugated or negated and computes when somebody reads it. Kernels and
reinterpreted memory know no such marks, so here both are computed at once, and no tensor of a
program carries one: `context` refuses inputs that do, `fallback` library calls that return one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..ir import Tensor
from ..sym import strides_of
from .context import Lowering
from .registry import LOWERINGS, lower

aten = torch.ops.aten

_COMPUTED = {
    aten._conj.default: aten.conj_physical.default,
    aten._neg_view.default: aten.neg.default,
}
_RESOLVED = (aten.resolve_conj.default, aten.resolve_neg.default)


@lower(aten._neg_view.default)
def neg_view(ctx: Lowering, a: Tensor) -> Any:
    """The negative of a real tensor, as part of a kernel."""
    return LOWERINGS[aten.neg](ctx, a)


def computed(ctx: Lowering, node: fx.Node, a: Any) -> Any:
    """What a node of this family is as a library call; None for any other node."""
    if not isinstance(a, Tensor):
        return None
    if node.target in _RESOLVED:  # computed already
        return a
    op = _COMPUTED.get(node.target)  # type: ignore[call-overload]
    if op is None:
        return None
    traced: Any = node.args[0].meta["val"]  # type: ignore[union-attr]
    with traced.fake_mode:
        plain = torch.empty_strided(
            traced.shape, traced.stride(), dtype=traced.dtype, device=traced.device
        )
        meta = op(plain)
    memory = ctx.realize(a, strides_of(traced))
    return ctx.extern(str(op), (memory,), {}, meta)
