"""Reductions of few long rows: split in pieces that fill a GPU, with the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from body_eval import trace
from generated import example, generated
from group_eval import execute_groups
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpret import interpret

from kernelfarm.compiler import split
from kernelfarm.compiler.fuse import fuse, split_groups
from kernelfarm.compiler.lower.context import Lowering
from kernelfarm.compiler.split import FILL, pieces_wanted

T = torch.Tensor


@pytest.fixture
def eager_to_split(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Split reductions of a handful of elements."""
    monkeypatch.setattr(split, "WORTH_IT", 8)
    monkeypatch.setattr(split, "SHORTEST_INNER", 2)
    monkeypatch.setattr(split, "FEWEST_PIECES", 2)
    monkeypatch.setattr(split, "SHORTEST_OUTER", 2)
    yield


def test_only_few_long_rows_are_split() -> None:
    """Rows that fill the device, and sums too small for a second launch, stay whole."""
    assert pieces_wanted(4096, 768, True, FILL) == 1
    assert pieces_wanted(1, 4096, True, FILL) == 1
    assert pieces_wanted(1, 1 << 20, True, FILL) == 256
    assert pieces_wanted(768, 4096, False, FILL) > 8
    assert pieces_wanted(1 << 20, 64, False, FILL) == 1
    assert pieces_wanted(1, 1_000_003, True, FILL) == 1, "a prime length has no equal pieces"


def test_a_column_sum_fills_the_gpu() -> None:
    """Column sums are two kernels: sums of pieces, and the sum of those."""
    _, kernels, _ = generated(lambda x: x.sum(0), example(4096, 768))
    first, second = kernels
    assert first.grid.x >= FILL
    assert second.grid.x < first.grid.x


def test_what_fills_a_buffer_joins_the_sum_of_its_columns() -> None:
    """A pointwise result and its column sum are one pass over memory, and a small finish."""
    _program, kernels, _ = generated(
        lambda x, y: ((x * y).tanh(), (x * y).tanh().sum(0)), example(4096, 768), example(4096, 768)
    )
    assert len(kernels) == 2
    assert len(kernels[0].arg_kinds) == 4
    assert len(kernels[1].arg_kinds) == 2


def test_a_loop_that_needs_the_result_is_a_kernel_of_its_own() -> None:
    """Normalising by statistics of a split reduction happens in a third kernel."""
    _, kernels, _ = generated(
        lambda x: (x - x.mean(0)) * x.var(0, correction=0), example(100_352, 64)
    )
    assert len(kernels) == 3
    assert all(k.grid.x >= FILL for k in (kernels[0], kernels[2]))


CASES: dict[str, Callable[[T], Any]] = {
    "sum": lambda x: x.sum(-1),
    "columns": lambda x: x.sum(0),
    "everything": lambda x: (x.sum(), x.mean(), x.amax()),
    "moments": lambda x: torch.var_mean(x, -1, correction=1),
    "moments of columns": lambda x: torch.var_mean(x.flatten(0, -2), 0, correction=0),
    "middle": lambda x: x.sum(1),
    "around": lambda x: (x.sum((0, -1)), (x * 2).amin((0, -1))),
    "truth": lambda x: ((x > 0.99).any(0), (x > -9).all(-1)),
    "with a result": lambda x: (x.sin(), x.sin().sum(0), x.sin().amax(-1)),
    "finish": lambda x: x.exp().sum(0, keepdim=True).log() + 1,
    "product": lambda x: (1 + x / 100).prod(0),
    "softmax": lambda x: torch.softmax(x, 0),
    "cast": lambda x: (x.bfloat16().sum(0), (x * 8).int().sum(-1), x.double().var(0, correction=0)),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", CASES)
@given(
    shape=st.sampled_from(
        [(64, 6), (4, 96), (6, 8, 12), (3, 30, 4), (2, 5, 7, 4), (1, 64, 2), (128, 1), (16, 1, 9)]
    ),
    fill=st.sampled_from([2, 5, 16, 64]),
    permuted=st.booleans(),
)
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_pieces_add_up(
    eager_to_split: None, name: str, shape: tuple[int, ...], fill: int, permuted: bool
) -> None:
    """Every kind of reduction gives what eager gives, whatever the layout and the pieces."""
    if shape[-1] == 1 and name == "moments":
        return  # the variance of one element divides by nothing
    x = torch.randn(shape)
    if permuted:
        x = (
            x.permute(*reversed(range(len(shape))))
            .contiguous()
            .permute(*reversed(range(len(shape))))
        )
    fn = CASES[name]
    graph = Lowering(trace(fn, (x,)), "cpu").run()
    groups = split_groups(fuse(graph, fill), graph, fill)
    got = execute_groups(graph, (x,), groups)
    want = fn(x)
    for mine, eager in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        assert mine.dtype == eager.dtype and mine.stride() == eager.stride()
        torch.testing.assert_close(
            mine, eager, rtol=2e-2 if mine.dtype == torch.bfloat16 else 1e-4, atol=1e-4
        )


def test_split_reductions_run_as_kernels() -> None:
    """The interpreter runs pieces and finish, and agrees with float64."""
    x = torch.randn(2048, 96)
    fn = lambda x: (*torch.var_mean(x, 0), (x * 2).sum(0), x.sum(), x.relu())  # noqa: E731
    got, _report = interpret(trace(fn, (x,)), (x,))
    for mine, exact in zip(got, fn(x.double()), strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-4)
