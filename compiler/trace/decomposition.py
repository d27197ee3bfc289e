"""Which ATen operators AOTAutograd takes apart before the lowering sees them.

The rule: an operator stays whole if we lower it better than its parts (a reduction that keeps its
statistics in registers) or if a library does (a matmul with its bias); everything else that
torch's core table takes apart, is taken apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

aten = torch.ops.aten

#: Kept whole although the core table takes them apart, each with its reason.
_WHOLE: tuple[Any, ...] = (
    aten.baddbmm,  # one library call with an epilogue; its parts are three passes over memory
    # their parts write with index_put, where a negative position counts from the end: eager refuses
    aten.index_add,
    aten.index_copy,
    aten.embedding_dense_backward,  # one sum at positions; its library call is deterministic
    # its parts give the weights where the backward wants their logarithmic sums
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten.linspace,  # its parts round integers otherwise than eager
    aten.native_dropout,  # its parts compare in the operand's own dtype: 8 bits for bfloat16
)

#: Taken apart although the core table keeps them: their parts fuse, and their choice of library
#: kernel would otherwise depend on the device that happens to be present at trace time.
_APART: tuple[Any, ...] = (
    aten.native_batch_norm,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit_no_training,
    aten.native_batch_norm_backward,
    aten.cudnn_batch_norm,
    aten.cudnn_batch_norm_backward,
    aten.miopen_batch_norm_backward,
    aten.native_group_norm,
    aten.native_group_norm_backward,
    # the backward recomputes its result from the logits and two numbers a row, so that a loss does
    # not keep a float32 copy of them
    aten._log_softmax,
    aten.addcmul,
    aten.addcdiv,
    aten.lerp,
)


def _overloads(packet: Any) -> tuple[Any, ...]:
    return tuple(getattr(packet, name) for name in packet.overloads())


@functools.cache
def _table() -> dict[Any, Callable[..., Any]]:
    core = core_aten_decompositions()
    table: dict[Any, Callable[..., Any]] = {op: core[op] for op in core}
    table.update(get_decompositions(list(_APART)))
    for packet in _WHOLE:
        for overload in _overloads(packet):
            table.pop(overload, None)
    return table


def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """Return a fresh copy of the table that `compile_fx` hands to AOTAutograd.

    Keys are operator overloads, values Python functions. Layer norm, softmax, gelu,
    var_mean, embedding, index, gather, cat, pad and the matmuls are *not* in it: they reach the
    lowering whole.
    """
    return dict(_table())
