"""GPU-only attention operators, computed by their formula on CPU tensors.

``ATTENTION`` maps an operator's name to a function that takes the real overload and returns its
stand-in: same arguments, same results, in number, dtype and strides. Sizes and strides come from
the overload's own shape function, run on meta tensors, so they are what the compiler was told while
it traced. The softmax is taken in float32 at least. Results that only a GPU's backward kernel reads
(seeds, padding of the log-sum-exp) are zero; the backward forms start again from query, key, value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..host_errors import RunError

Operator = Callable[..., Any]


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention and the log-sum-exp of each row; (batch, heads, length, width) arguments."""
    groups = query.size(-3) // key.size(-3)
    if groups > 1:  # grouped queries: several query heads share a key and value head
        key = key.repeat_interleave(groups, -3)
        value = value.repeat_interleave(groups, -3)
    factor = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if bias is not None:
        blocked = bias.dtype == torch.bool
        scores = scores.masked_fill(~bias, -math.inf) if blocked else scores + bias
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    total = torch.logsumexp(scores, -1, keepdim=True)
    # A row that may look at nothing yields zeros and not NaN.
    weights = torch.where(torch.isinf(total) & (total < 0), 0.0, torch.exp(scores - total))
    return weights @ value, total.squeeze(-1)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32)).contiguous()


def _bias(bias: torch.Tensor | None) -> torch.Tensor | None:
    return bias if bias is None or bias.dtype == torch.bool else _wide(bias)


def _shapes(overload: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Run the operator's shape function: meta tensors in, meta tensors and numbers out."""

    def to_meta(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(
            value.size(), value.stride(), dtype=value.dtype, device="meta", requires_grad=False
        )

    with torch.no_grad():
        outputs = overload(
            *[to_meta(value) for value in args], **{k: to_meta(v) for k, v in kwargs.items()}
        )
    return tuple(outputs)


def _filled(shape: Any, values: torch.Tensor | None = None) -> Any:
    """Return a CPU tensor laid out like a meta tensor, holding ``values`` or zeros."""
    if not isinstance(shape, torch.Tensor):
        return shape
    result = torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype)
    if values is None:
        return result.zero_()
    if result.numel() == 0:
        return result
    if result.dim() > values.dim():
        values = values.unsqueeze(-1)
    # The log-sum-exp may be padded at its end.
    window = result[tuple(slice(0, n) for n in values.shape)]
    if window.shape != result.shape:
        result.zero_()
    window.copy_(values)
    return result


def _no_dropout(op: Operator, dropout: float) -> None:
    if dropout:
        raise RunError(
            f"{op} with dropout {dropout} draws its random numbers on the GPU; "
            "the interpreter runtime computes it for dropout 0 only"
        )


def _named(overload: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments by schema name, defaults filled in."""
    schema = overload._schema.arguments
    named = {a.name: a.default_value for a in schema if a.has_default_value()}
    named.update(zip((a.name for a in schema), args, strict=False))
    named.update(kwargs)
    return named


def _forward(overload: Any) -> Operator:
    def run(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = _named(overload, args, kwargs)
        _no_dropout(overload, given["dropout_p"])
        output, total = _attend(
            _wide(given["query"]),
            _wide(given["key"]),
            _wide(given["value"]),
            _bias(given.get("attn_bias")),
            given["is_causal"],
            given["scale"],
        )
        shapes = _shapes(overload, args, kwargs)
        rest = (_filled(shape) for shape in shapes[2:])
        return (_filled(shapes[0], output), _filled(shapes[1], total), *rest)

    return run


def _backward(overload: Any) -> Operator:
    def run(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = _named(overload, args, kwargs)
        _no_dropout(overload, given["dropout_p"])
        bias = _bias(given.get("attn_bias"))
        wanted = [_wide(given[name]).detach() for name in ("query", "key", "value")]
        if bias is not None and bias.dtype != torch.bool:
            bias = bias.detach()
            wanted.append(bias)
        gradient = _wide(given["grad_out"] if "grad_out" in given else given["grad_out_"])
        with torch.enable_grad():
            for tensor in wanted:
                tensor.requires_grad_()
            output, _ = _attend(
                wanted[0], wanted[1], wanted[2], bias, given["is_causal"], given["scale"]
            )
            found = torch.autograd.grad(output, wanted, gradient)
        shapes = _shapes(overload, args, kwargs)
        pairs = zip(shapes, [*found, *([None] * (len(shapes) - len(found)))], strict=True)
        return tuple(_filled(shape, values) for shape, values in pairs)

    return run


ATTENTION: dict[str, Callable[[Any], Operator]] = {
    f"aten._scaled_dot_product_{form}_attention{suffix}.default": make
    for form in ("flash", "efficient", "cudnn")
    for suffix, make in (("", _forward), ("_backward", _backward))
}
