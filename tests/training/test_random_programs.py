"""Random programs, forward and backward: kernels on poisoned memory agree with eager.

In float64 both agree to rounding. In mixed precision the kernels may be as far from the float64
program as eager is, and a little more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest
import torch
from differentiate import compiled
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from programs import KINDS, Step, run, sensible

T = torch.Tensor
SHAPES = ((4, 6), (6,), (2, 1, 6), (4, 1))
NARROW = (torch.float32, torch.bfloat16, torch.float32, torch.float16)

#: Set FUZZ to try more.
EXAMPLES = int(os.environ.get("FUZZ", "20"))

step = st.tuples(
    st.sampled_from(KINDS), st.integers(0, 60), st.integers(0, 20), st.integers(0, 20),
    st.integers(0, 100),
)  # fmt: skip
programs = st.lists(step, min_size=2, max_size=9)
relaxed = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


def leaves(seed: int, dtype: torch.dtype, others: Sequence[torch.dtype] = ()) -> list[T]:
    """Inputs that require gradients; one is laid out transposed."""
    torch.manual_seed(seed)
    made = [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]
    made[0] = made[0].t().contiguous().t()
    kinds = [dtype, *others, *[dtype] * len(made)]
    return [x.to(k).requires_grad_() for x, k in zip(made, kinds, strict=False)]


def both(fn: Callable[..., list[T]], inputs: list[T], seed: int) -> list[T | None]:
    """Results and the gradients of all inputs for one weighting of the results."""
    results = fn(*inputs)
    torch.manual_seed(seed + 1)
    weights = [torch.randn(r.shape, dtype=torch.float64) for r in results]
    total = sum((r.double() * w).sum() for r, w in zip(results, weights, strict=True))
    inexact = [x for x in inputs if x.is_floating_point()]
    grads: Sequence[T | None] = [None] * len(inexact)
    if isinstance(total, T) and total.requires_grad:
        grads = torch.autograd.grad(total, inexact, allow_unused=True)
    return [*(r.detach() for r in results), *grads]


def accepted(fn: Callable[..., list[T]], inputs: list[T], seed: int) -> list[T | None]:
    """The same by eager; a program that writes over what its backward needs does not count."""
    try:
        return both(fn, inputs, seed)
    except RuntimeError as error:
        assume("modified by an inplace operation" not in str(error))
        raise


def _finite(values: Sequence[T | None]) -> bool:
    return all(v is None or bool(torch.isfinite(v).all()) for v in values)


def check_exactly(steps: Sequence[Step], seed: int) -> None:
    """The float64 program, compiled, against itself run by eager."""

    inputs = leaves(seed, torch.float64)
    kept = sensible(steps, inputs, (torch.float64,))

    def program(*inputs: T) -> list[T]:
        return run(kept, inputs, (torch.float64,))

    want = accepted(program, inputs, seed)
    got = both(compiled(program, inputs), inputs, seed)
    for position, (a, b) in enumerate(zip(got, want, strict=True)):
        assert (a is None) == (b is None), position
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9, equal_nan=True)


def check_nearly(steps: Sequence[Step], seed: int, dtype: torch.dtype) -> None:
    """A program of several precisions against eager and against the same in float64."""
    inputs = leaves(seed, dtype, (torch.float32, dtype, torch.float64))
    kept = sensible(steps, inputs, NARROW)

    def program(*inputs: T) -> list[T]:
        return run(kept, inputs, NARROW)

    def exact(*inputs: T) -> list[T]:
        return run(kept, inputs, (torch.float64,))

    want = accepted(program, inputs, seed)
    ideal = both(exact, [x.detach().double().requires_grad_() for x in inputs], seed)
    got = both(compiled(program, inputs), inputs, seed)
    for position, (a, b, c) in enumerate(zip(got, want, ideal, strict=True)):
        assert (a is None) == (b is None), position
        if a is None or b is None or c is None:
            continue
        assert a.dtype == b.dtype, position
        assert a.shape == b.shape, position
        if not _finite([b, c]):
            continue
        scale = float(c.abs().max()) + 1e-3
        eager_error = float((b.double() - c).abs().max())
        if eager_error > 0.05 * scale:
            continue  # chaotic, or a discontinuity lies between the precisions
        error = float((a.double() - c).abs().max())
        assert error <= 4 * eager_error + 0.02 * scale, (position, error, eager_error, scale)


@settings(relaxed, max_examples=EXAMPLES)
@given(programs, st.integers(0, 1000))
def test_programs_in_double_precision(steps, seed):
    """Values and gradients are eager's to rounding."""
    check_exactly(steps, seed)


@settings(relaxed, max_examples=8)
@given(programs, st.integers(0, 1000), st.sampled_from((torch.float32, torch.bfloat16)))
def test_programs_in_mixed_precision(steps, seed, dtype):
    """Values and gradients are about as good as eager's, in the same dtypes."""
    check_nearly(steps, seed, dtype)


@pytest.mark.slow
@settings(relaxed, max_examples=400)
@given(programs, st.integers(0, 10_000))
def test_many_programs_in_double_precision(steps, seed):
    """Hundreds more of the same."""
    check_exactly(steps, seed)


@pytest.mark.slow
@settings(relaxed, max_examples=200)
@given(programs, st.integers(0, 10_000), st.sampled_from((torch.float32, torch.bfloat16)))
def test_many_programs_in_mixed_precision(steps, seed, dtype):
    """Hundreds more of the same."""
    check_nearly(steps, seed, dtype)
