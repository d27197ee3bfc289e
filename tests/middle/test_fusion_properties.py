"""Random graphs: fused groups compute what the unfused nodes compute, and what eager computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from body_eval import TOLERANCE, execute, trace
from group_eval import execute_groups
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from interpret import interpret

from kernelfarm.compiler import split
from kernelfarm.compiler.fuse import fuse, split_groups
from kernelfarm.compiler.lower.context import Lowering

T = torch.Tensor
#: (operator, first operand, second operand, variant)
Step = tuple[str, int, int, int]
ROWS, COLUMNS = 6, 8

OPERATORS = (
    "unary", "binary", "scale", "where", "reduce", "reduce", "softmax", "norm", "transpose",
    "reshape", "slice", "cat", "narrow", "argmax", "product", "moments", "cast",
)  # fmt: skip


def _matrix(x: T) -> T:
    """Any value as a (ROWS, COLUMNS) matrix, by broadcasting, cutting or repeating."""
    x = x.float()
    while x.dim() < 2:
        x = x.unsqueeze(-1)
    x = x[:ROWS, :COLUMNS]
    if x.shape[0] not in (1, ROWS):
        x = x[:1]
    if x.shape[1] not in (1, COLUMNS):
        x = x[:, :1]
    return x.expand(ROWS, COLUMNS)


def _apply(step: Step, values: list[T]) -> T:
    kind, first, second, k = step
    x = values[first % len(values)]
    y = values[second % len(values)]
    matrix = _matrix(x)
    match kind:
        case "unary":
            return (torch.sigmoid, torch.abs, torch.tanh, torch.neg)[k % 4](x.float())
        case "binary":
            return (torch.add, torch.mul, torch.maximum)[k % 3](matrix, _matrix(y))
        case "scale":
            return x.float() * 0.5 + k % 3
        case "where":
            return torch.where(matrix > 0.1, matrix, _matrix(y))
        case "reduce":
            return (torch.sum, torch.amax, torch.mean)[k % 3](matrix, k % 2, keepdim=k % 5 < 3)
        case "softmax":
            return torch.softmax(matrix, k % 2)
        case "norm":
            return F.layer_norm(matrix, (COLUMNS,), eps=0.1)
        case "transpose":
            return matrix.t().contiguous().view(ROWS, COLUMNS)
        case "reshape":
            return matrix.reshape(4, 3, 4).sum(k % 3)
        case "slice":
            return matrix[k % 3 :, :: 1 + k % 2]
        case "cat":
            return torch.cat([matrix[: k % ROWS], _matrix(y)[k % ROWS :]])
        case "narrow":
            return F.pad(matrix[:, 2:], (k % 3, 2 - k % 3), value=0.25)
        case "argmax":
            return (matrix * 4).round().argmax(k % 2)
        case "product":
            return matrix @ _matrix(y).t().contiguous()
        case "moments":
            return torch.var_mean(matrix, k % 2, correction=0)[k // 2 % 2]
        case _:
            return matrix.to(torch.bfloat16)


def program(steps: list[Step], outputs: list[int]) -> Callable[..., tuple[T, ...]]:
    """The function that the steps describe, and which of its values it returns."""

    def run(*inputs: T) -> tuple[T, ...]:
        values = list(inputs)
        for step in steps:
            values.append(_apply(step, values))
        made = values[len(inputs) :]
        # a sum is a value of the graph's own: an output must not be an input
        return tuple(made[o % len(made)] + 0 for o in outputs)

    return run


steps = st.lists(
    st.tuples(
        st.sampled_from(OPERATORS), st.integers(0, 20), st.integers(0, 20), st.integers(0, 30)
    ),
    min_size=2,
    max_size=12,
)
outputs = st.lists(st.integers(0, 12), min_size=1, max_size=4)
relaxed = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def _inputs() -> list[T]:
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randn(ROWS, COLUMNS, generator=generator),
        torch.randn(COLUMNS, generator=generator),
        torch.randn(ROWS, 1, generator=generator),
        torch.randn(COLUMNS, ROWS, generator=generator).t(),
    ]


def _close(got: Any, want: T, what: str) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape, what
    # values that pass in registers are not rounded to bfloat16 on the way
    loose = 5e-2 if want.dtype == torch.bfloat16 else 1e-3
    rtol, atol = (loose, loose) if want.dtype in TOLERANCE else (0.0, 0.0)
    torch.testing.assert_close(
        got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )


@seed(20261130)
@settings(max_examples=40, deadline=None, suppress_health_check=relaxed)
@given(steps, outputs)
def test_fused_groups_equal_unfused_nodes_and_eager(chain: list[Step], chosen: list[int]) -> None:
    """Whatever is fused, every output is stored, once, in place, with eager's value."""
    fn, inputs = program(chain, chosen), _inputs()
    want = fn(*inputs)
    graph = Lowering(trace(fn, inputs), "cpu").run()
    plain = execute(graph, inputs)
    groups = fuse(graph)
    fused = execute_groups(graph, inputs, groups)
    for a, b, c in zip(plain, fused, want, strict=True):
        _close(a, c, "unfused")
        _close(b, c, "fused")
    assert len(groups) <= len(graph.nodes)


@seed(20261202)
@settings(max_examples=30, deadline=None, suppress_health_check=relaxed)
@given(steps, outputs, st.sampled_from([3, 8, 40]))
def test_split_groups_equal_eager(
    monkeypatch: pytest.MonkeyPatch, chain: list[Step], chosen: list[int], fill: int
) -> None:
    """The same where every reduction that can be split is split."""
    monkeypatch.setattr(split, "WORTH_IT", 1)
    monkeypatch.setattr(split, "SHORTEST_INNER", 1)
    monkeypatch.setattr(split, "FEWEST_PIECES", 2)
    monkeypatch.setattr(split, "SHORTEST_OUTER", 1)
    fn, inputs = program(chain, chosen), _inputs()
    graph = Lowering(trace(fn, inputs), "cpu").run()
    groups = split_groups(fuse(graph, fill), graph, fill)
    for got, want in zip(execute_groups(graph, inputs, groups), fn(*inputs), strict=True):
        _close(got, want, "split")


@pytest.mark.slow
@seed(20261201)
@settings(max_examples=300, deadline=None, suppress_health_check=relaxed)
@given(steps, outputs)
def test_kernels_of_random_graphs_equal_eager(chain: list[Step], chosen: list[int]) -> None:
    """The same graphs as kernel text, interpreted on poisoned memory."""
    fn, inputs = program(chain, chosen), _inputs()
    results, _ = interpret(trace(fn, inputs), inputs)
    for got, want in zip(results, fn(*inputs), strict=True):
        _close(got, want, "interpreted")
