"""Random small graphs of views, elementwise operators and reductions equal eager, end to end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from body_eval import check
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from tensors import layouts, rand

T = torch.Tensor
#: (kind, operand, other operand, parameter); a program interprets them by the shapes at hand.
Step = tuple[str, int, int, int]

UNARY: tuple[Callable[[T], T], ...] = (
    torch.tanh, torch.neg, torch.abs, torch.sigmoid, torch.relu, lambda x: x * 0.5 - 0.25,
    lambda x: torch.nn.functional.gelu(x), lambda x: torch.where(x > 1e9, x, x * 0.75),
    lambda x: x.to(torch.bfloat16).float(), lambda x: x.clamp(-2, 2),
)  # fmt: skip
BINARY: tuple[Callable[[T, T], T], ...] = (
    torch.add, torch.sub, torch.maximum, torch.minimum, lambda a, b: torch.tanh(a) * torch.tanh(b),
)  # fmt: skip
REDUCE = ("sum", "mean", "amax", "amin", "var")
KINDS = ("unary", "binary", "permute", "reshape", "slice", "reduce", "softmax", "cat", "pad",
         "flip", "expand", "index", "unsqueeze", "norm", "roll", "repeat")  # fmt: skip
LIMIT = 600


def _compatible(a: T, b: T) -> bool:
    pairs = list(zip(reversed(a.shape), reversed(b.shape), strict=False))
    joint = math.prod(max(x, y) for x, y in pairs)
    fits = joint * max(a.numel(), b.numel()) < LIMIT**2
    return fits and all(x == y or 1 in (x, y) for x, y in pairs)


def _reshape(x: T, k: int) -> T:
    n = x.numel()
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    first = divisors[k % len(divisors)]
    rest = [d for d in range(1, n // first + 1) if (n // first) % d == 0]
    second = rest[(k // 7) % len(rest)]
    return x.reshape(first, second, n // first // second)


def _shape(step: Step, x: T) -> T:
    """Operators that rename elements."""
    kind, _, _, k = step
    rank = x.dim()
    d = k % rank
    match kind:
        case "permute":
            order = sorted(range(rank), key=lambda i: ((i + k) * 7919) % 13)
            return x.permute(order)
        case "reshape":
            return _reshape(x, k)
        case "slice":
            start = (k // 3) % x.shape[d]
            return x.narrow(d, start, x.shape[d] - start)[..., :: 1 + k % 2]
        case "flip":
            return x.flip(d)
        case "roll":
            return x.roll(k % 5 - 2, d)
        case "unsqueeze":
            return x.unsqueeze(k % (rank + 1)) if rank < 4 else x.squeeze()
        case "expand":
            return x[..., None].expand(*x.shape, 1 + k % 3) if rank < 4 else x
        case "repeat":
            return x.repeat(*[1] * (rank - 1), 1 + k % 2)
    return x


def _compute(step: Step, x: T, y: T) -> T:
    """Operators that compute."""
    kind, _, _, k = step
    d = k % x.dim()
    match kind:
        case "unary":
            return UNARY[k % len(UNARY)](x)
        case "binary":
            return BINARY[k % len(BINARY)](x, y) if _compatible(x, y) else x - 1
        case "reduce":
            name = REDUCE[k % len(REDUCE)]
            fn = getattr(torch, name)
            if name == "var":
                return fn(x, dim=d, correction=0, keepdim=k % 2 == 0)
            return fn(x, dim=d, keepdim=k % 2 == 0)
        case "softmax":
            return torch.softmax(x, d)
        case "norm":
            return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=0.1)
        case "cat":
            return torch.cat([x, torch.tanh(x)], d)
        case "pad":
            return torch.nn.functional.pad(x, (k % 3, k % 2 - (x.shape[-1] > 2)), value=0.5)
        case "index":
            at = torch.arange(3, device=x.device) % x.shape[d]
            return torch.index_select(x, d, at * (k % 2))
    return _shape(step, x)


def program(steps: Sequence[Step]) -> Callable[..., tuple[T, ...]]:
    """The function that the steps describe; it returns its last values."""

    def run(*inputs: T) -> tuple[T, ...]:
        values = list(inputs)
        for step in steps:
            x, y = values[step[1] % len(values)], values[step[2] % len(values)]
            x = x.unsqueeze(0) if x.dim() == 0 else x
            result = _compute(step, x, y)
            if 0 < result.numel() <= LIMIT:
                values.append(result)
        return tuple(v + 1 for v in values[-1:]) + tuple(v * 1 for v in values[-3:-1])

    return run


step = st.tuples(
    st.sampled_from(KINDS), st.integers(0, 40), st.integers(0, 40), st.integers(0, 200)
)
relaxed = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def _inputs(layout: int) -> list[T]:
    torch.manual_seed(layout)
    return [layouts(4, 6)[layout % 5], rand(6), rand(2, 1, 6)]


@seed(20261130)
@settings(max_examples=60, deadline=None, suppress_health_check=relaxed)
@given(st.lists(step, min_size=2, max_size=9), st.integers(0, 4))
def test_random_graphs_equal_eager_after_lowering(steps: list[Step], layout: int) -> None:
    """Whatever is chained, loop bodies compute what eager computes."""
    check(program(steps), *_inputs(layout), tolerance=(1e-3, 1e-3), interpreted=False)


@pytest.mark.slow
@seed(20261201)
@settings(max_examples=150, deadline=None, suppress_health_check=relaxed)
@given(st.lists(step, min_size=2, max_size=9), st.integers(0, 4))
def test_random_graphs_equal_eager_as_kernels(steps: list[Step], layout: int) -> None:
    """Fused, tiled, printed and interpreted on poisoned memory, the same graphs still agree."""
    check(program(steps), *_inputs(layout), tolerance=(1e-3, 1e-3), interpreted=True)
