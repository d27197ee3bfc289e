"""Which attention kernel a scaled_dot_product_attention call becomes, decided from the DeviceModel.

Eager asks the device that is present. We ask the model, so that a trace on a machine without a GPU
gives the same ATen graph as one with it. The call in Dynamo's graph is replaced by `attend`, which
runs while AOTAutograd traces and issues one of three forms, all differentiable:

flash       no mask, half precision, head size up to 256
efficient   anything with a mask, and float32; the bias is aligned the way its kernel wants it
math        everything else, and everything that is not on the GPU

A mask is never dropped; scale, is_causal, dropout_p and enable_gqa reach the form that is chosen.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)
#: The flash kernels take no larger heads.
_FLASH_HEAD = 256
#: Flash pads heads to a multiple of this many elements.
_FLASH_PAD = 8
#: A bias row must start on a multiple of this many elements.
_BIAS_ALIGN = 8


class Form(enum.Enum):
    """The three ATen forms of attention."""

    FLASH = "flash"
    EFFICIENT = "efficient"
    MATH = "math"


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """All that the choice looks at; sizes may be symbolic.

    ``mask`` says whether there is one; ``unit_stride`` that the last dimension of q, k and v is
    contiguous; ``same_dtype`` that the three agree; ``flash_enabled`` and ``efficient_enabled``
    are the user's switches (`torch.nn.attention.sdpa_kernel`).
    """

    q: tuple[Any, ...]
    k: tuple[Any, ...]
    v: tuple[Any, ...]
    dtype: torch.dtype
    same_dtype: bool
    on_gpu: bool
    unit_stride: bool
    mask: bool
    is_causal: bool
    gqa: bool
    flash_enabled: bool = True
    efficient_enabled: bool = True


def choose(facts: AttentionFacts, *, flash: bool) -> Form:
    """Return the form for one call; ``flash`` is the DeviceModel's word on flash kernels."""
    if not _regular(facts):
        return Form.MATH
    if flash and facts.flash_enabled and _flash_takes(facts):
        return Form.FLASH
    if facts.efficient_enabled and _efficient_takes(facts):
        return Form.EFFICIENT
    return Form.MATH


def _regular(facts: AttentionFacts) -> bool:
    """What both fused kernels require of shapes and layout."""
    q, k, v = facts.q, facts.k, facts.v
    if not (facts.on_gpu and facts.same_dtype and facts.unit_stride):
        return False
    if not len(q) == len(k) == len(v) == 4:
        return False
    if any(size == 0 for size in (*q, *k, *v)):
        return False
    if not (q[0] == k[0] == v[0] and k[1] == v[1] and k[2] == v[2] and q[3] == k[3]):
        return False
    if facts.mask and facts.is_causal:  # eager rejects the pair; its math form says so
        return False
    return q[1] % k[1] == 0 if facts.gqa else q[1] == k[1]


def _flash_takes(facts: AttentionFacts) -> bool:
    q, k, v = facts.q, facts.k, facts.v
    # Flash aligns a causal mask to the bottom right corner, the operator to the top left one.
    causal_ok = not facts.is_causal or q[2] == k[2]
    heads_ok = q[3] == v[3] and q[3] <= _FLASH_HEAD
    return not facts.mask and facts.dtype in _HALF and heads_ok and causal_ok


def _efficient_takes(facts: AttentionFacts) -> bool:
    if facts.dtype not in (*_HALF, torch.float32):
        return False
    multiple = 4 if facts.dtype == torch.float32 else 8
    return facts.q[3] % multiple == 0 and facts.v[3] % multiple == 0


def _facts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    enable_gqa: bool,
) -> AttentionFacts:
    tensors = (query, key, value)
    return AttentionFacts(
        q=tuple(query.shape),
        k=tuple(key.shape),
        v=tuple(value.shape),
        dtype=query.dtype,
        same_dtype=query.dtype == key.dtype == value.dtype,
        on_gpu=all(t.device.type == "cuda" and not t.is_nested for t in tensors),
        unit_stride=all(t.is_nested or t.dim() == 0 or t.stride(-1) == 1 for t in tensors),
        mask=attn_mask is not None,
        is_causal=bool(is_causal),
        gqa=bool(enable_gqa),
        flash_enabled=torch.backends.cuda.flash_sdp_enabled(),
        efficient_enabled=torch.backends.cuda.mem_efficient_sdp_enabled(),
    )


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    flash: bool = False,
) -> torch.Tensor:
    """Do what scaled_dot_product_attention does, through the form that `choose` names.

    Shapes as in torch: q (B, H, Q, E), k (B, G, K, E), v (B, G, K, D) to (B, H, Q, D), where
    G is H unless ``enable_gqa``. ``flash`` is the only argument that torch does not have.
    """
    if query.is_nested:  # nested tensors have attention code of their own, with no device in it
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    facts = _facts(query, key, value, attn_mask, is_causal, enable_gqa)
    match choose(facts, flash=flash):
        case Form.FLASH:
            return _flash(query, key, value, dropout_p, is_causal, scale)
        case Form.EFFICIENT:
            return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        case Form.MATH:
            bias = None if attn_mask is None else additive_mask(attn_mask, query)
            return aten._scaled_dot_product_attention_math.default(
                query, key, value, bias, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )[0]


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    head = query.shape[-1]
    missing = -head % _FLASH_PAD
    if missing:
        # Zeros add nothing to q.k and give output columns that are cut off again, but the
        # default scale must come from the true head size.
        scale = 1.0 / math.sqrt(head) if scale is None else scale
        query, key, value = (F.pad(t, (0, missing)) for t in (query, key, value))
    out = aten._scaled_dot_product_flash_attention.default(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return out[..., :head] if missing else out


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    group = query.shape[1] // key.shape[1]
    if group != 1:  # this kernel wants as many key heads as query heads
        key = key.repeat_interleave(group, dim=1)
        value = value.repeat_interleave(group, dim=1)
    bias = None if attn_mask is None else aligned_bias(attn_mask, query, key)
    tensors = (query, key, value) if bias is None else (query, key, value, bias)
    need_statistics = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return aten._scaled_dot_product_efficient_attention.default(
        query, key, value, bias, need_statistics, dropout_p, is_causal, scale=scale
    )[0]


def additive_mask(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Return ``mask`` as numbers to add to the scores, in the dtype of ``query``.

    True keeps a position and False removes it, as everywhere in torch. The ATen forms take numbers
    only: handed a bool mask, the math form adds ones and zeros to the scores.
    """
    if mask.dtype != torch.bool:
        return mask
    keep = torch.zeros((), dtype=query.dtype, device=query.device)
    remove = torch.full((), -math.inf, dtype=query.dtype, device=query.device)
    return torch.where(mask, keep, remove)


def aligned_bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return ``mask`` as an additive bias (B, H, Q, K) whose rows start on aligned addresses.

    Rows are padded in memory and the padding is sliced off, so the bias keeps its size; broadcast
    dimensions get stride 0.
    """
    length = key.shape[2]
    bias = additive_mask(mask, query).to(query.dtype)
    while bias.dim() < 4:
        bias = bias.unsqueeze(0)
    if bias.shape[-1] != length:
        bias = bias.expand(*bias.shape[:-1], length)
    if not _rows_aligned(bias):
        bias = F.pad(bias, (0, _padded(length) - length)).contiguous()[..., :length]
    return bias.expand(query.shape[0], query.shape[1], query.shape[2], length)


def _padded(length: Any) -> Any:
    """The elements of a padded row: a multiple, visibly so also where ``length`` is a symbol.

    A symbolic row is padded in any case. Rounded up, it could be exactly as long as its slice; the
    tracer then asks whether the slice is contiguous and guards the answer, and a length that is
    a multiple would be compiled apart from one that is not.
    """
    if isinstance(length, int):
        return -(-length // _BIAS_ALIGN) * _BIAS_ALIGN
    return (length // _BIAS_ALIGN + 1) * _BIAS_ALIGN


def _rows_aligned(bias: torch.Tensor) -> bool:
    """Whether that is known; asking a symbol whether it is a multiple would guard the answer."""
    steps = [bias.stride(d) for d in range(bias.dim() - 1)]
    return bias.stride(-1) == 1 and all(
        statically_known_true(step % _BIAS_ALIGN == 0) for step in (bias.storage_offset(), *steps)
    )


#: Every spelling under which the operator stands in Dynamo's graph.
_SPELLINGS = (
    F.scaled_dot_product_attention,
    torch._C._nn.scaled_dot_product_attention,
    aten.scaled_dot_product_attention,
    aten.scaled_dot_product_attention.default,
)


def is_attention(node: Node) -> bool:
    """Is this node a scaled_dot_product_attention call?"""
    return node.op == "call_function" and any(node.target is s for s in _SPELLINGS)


def choose_attention(graph: Graph, *, flash: bool) -> int:
    """Replace every attention call of one graph by `attend`; return how many there were."""
    count = 0
    for node in graph.nodes:
        if is_attention(node):
            node.target = attend
            node.kwargs = {**node.kwargs, "flash": flash}
            count += 1
    return count


def choose_attention_everywhere(module: GraphModule, *, flash: bool) -> int:
    """Apply `choose_attention` to a module and to the sub-graphs of its higher-order operators."""
    count = 0
    for part in module.modules():
        if isinstance(part, GraphModule):
            here = choose_attention(part.graph, flash=flash)
            if here:
                part.recompile()
            count += here
    return count
