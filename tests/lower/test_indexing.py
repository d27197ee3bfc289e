"""Reads at positions that are data equal eager, and never touch memory outside a tensor."""

from __future__ import annotations

import pytest
import torch
from body_eval import check, execute, trace
from tensors import DTYPES, layouts, rand

from kernelfarm.compiler.lower.context import Lowering


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("positions", (torch.int64, torch.int32), ids=str)
def test_embedding_equals_eager(dtype: torch.dtype, positions: torch.dtype) -> None:
    """Rows by position of either integer width, any shape of positions."""
    table = rand(10, 6, dtype=dtype)
    for shape in ((3, 4), (5,), (), (0, 2)):
        at = torch.randint(0, 10, shape).to(positions)
        check(lambda w, i: torch.embedding(w, i), table, at)


def test_embedding_by_a_range_reads_without_indirection() -> None:
    """Position embeddings are plain addresses: no data decides them and no mask guards them."""

    def fn(w: torch.Tensor) -> torch.Tensor:
        return torch.embedding(w, torch.arange(2, 7)) + 1

    lowering = check(fn, rand(10, 4))
    (node,) = lowering.graph.nodes
    loads = [s for s in node.body.stmts if s.op == "load"]
    assert len(loads) == 1 and not loads[0].args and not loads[0].attrs[1].indirects()


@pytest.mark.parametrize("dim", (0, 1, -1))
def test_index_select_and_gather_equal_eager(dim: int) -> None:
    """Along every dimension and in every layout."""
    for x in layouts(4, 6):
        size = x.shape[dim]
        at = torch.randint(0, size, (5,))
        check(lambda x, i: torch.index_select(x, dim, i), x, at)
        many = torch.randint(0, size, (3, 2) if dim == 0 else (2, 9))
        check(lambda x, i: torch.gather(x, dim, i), x, many)
        check(lambda x, i: torch.gather(x * 2, dim, i) + 1, x, many)


def test_advanced_indexing_equals_eager() -> None:
    """One and several index tensors, adjacent or not, broadcasting, negative, beside slices."""
    x = rand(4, 5, 6)
    a, b = torch.tensor([0, -1, 2]), torch.tensor([[1], [-5]])
    c = torch.tensor([3, 0, -6])
    cases = (
        lambda x, a, b, c: x[a],
        lambda x, a, b, c: x[:, b],
        lambda x, a, b, c: x[a, b],
        lambda x, a, b, c: x[a, :, c],
        lambda x, a, b, c: x[:, b, c],
        lambda x, a, b, c: x[a, b, c],
        lambda x, a, b, c: x[..., c],
        lambda x, a, b, c: x[1:3, b, 0],
        lambda x, a, b, c: torch.ops.aten.index.Tensor(x, [a.sum()]),
        lambda x, a, b, c: x[None, a] + x[a.int()],
        lambda x, a, b, c: (x * 2)[a, :, c] + 1,
    )
    for fn in cases:
        check(fn, x, a, b, c)
        check(fn, rand(6, 5, 4).permute(2, 1, 0), a, b, c)


def test_a_random_read_does_not_compute_a_chain_again_and_again() -> None:
    """A costly chain that would be read more often than it has elements is stored first."""
    lowering = check(lambda x, i: x.exp().sin()[i], rand(3, 4), torch.randint(0, 3, (20,)))
    assert len(lowering.graph.nodes) == 2


@pytest.mark.parametrize("bad", (-1, 10, 2**40, -(2**40)))
def test_positions_outside_never_touch_memory_and_poison_floats(bad: int) -> None:
    """A position outside the table reads nothing and gives NaN, where eager stops."""

    def fn(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.embedding(w, i)

    table = rand(10, 3)
    good = torch.tensor([1, 2])
    lowering = Lowering(trace(fn, (table, good)), device_type="cpu")
    graph = lowering.run()
    (got,) = execute(graph, (table, torch.tensor([1, bad])))
    torch.testing.assert_close(got[0], table[1])
    assert got[1].isnan().all()


def test_negative_positions_wrap_once_in_advanced_indexing() -> None:
    """-size is the first element; beyond it nothing is read."""
    x, good = rand(5, 2), torch.tensor([0])
    lowering = Lowering(trace(lambda x, i: x[i], (x, good)), device_type="cpu")
    graph = lowering.run()
    (got,) = execute(graph, (x, torch.tensor([-5])))
    torch.testing.assert_close(got, x[:1])
    (got,) = execute(graph, (x, torch.tensor([-6])))
    assert got.isnan().all()


@pytest.mark.parametrize("step", (1, 2, 3))
@pytest.mark.parametrize("bounds", ((0, 8), (1, 6), (-5, None), (7, 2)))
def test_slice_scatter_equals_eager(step: int, bounds: tuple[int, int | None]) -> None:
    """A slice replaced, with any step and bounds; the rest is a copy."""
    start, end = bounds
    x = rand(8, 3)
    source = rand(*x[start:end:step].shape)
    check(lambda x, s: torch.slice_scatter(x, s, 0, start, end, step), x, source)
    check(lambda x, s: torch.slice_scatter(x + 1, s * 2, 0, start, end, step), x, source)


def test_select_and_diagonal_scatter_equal_eager() -> None:
    """The other copies with a part replaced arrive as parts or as a library call."""
    check(lambda x, s: torch.select_scatter(x, s, 1, -2), rand(4, 5), rand(4))


@pytest.mark.parametrize("dim", (0, 1))
def test_scatter_of_one_position_a_row_is_an_elementwise_loop(dim: int) -> None:
    """The gradient of a loss over classes needs no library call; several positions do."""
    x = rand(5, 7)
    at = torch.randint(0, x.shape[dim], (1, 7) if dim == 0 else (5, 1))
    check(lambda x, i: torch.scatter(x, dim, i, -1.0), x, at)
    check(lambda x, i, s: torch.scatter(x * 2, dim, i, s) + 1, x, at, rand(5, 7))
    many = torch.tensor([[0, 1]])
    check(lambda x, i: torch.scatter(x, 1, i, 2.0), x, many)


def test_functional_writes_run_as_library_calls() -> None:
    """masked_scatter has no lowering and still works in the middle."""
    check(
        lambda x, m, v: torch.masked_scatter(x + 1, m, v) * 2,
        rand(4, 5),
        rand(4, 5) > 0,
        rand(20),
        fallbacks=["aten.masked_scatter.default"],
    )


@pytest.mark.parametrize("name", ("index_add", "index_copy"))
def test_writes_at_negative_positions_are_never_the_last(name: str) -> None:
    """-1 is no position for these, and is never taken as the last one (pytorch#131321)."""

    def fn(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return getattr(torch, name)(x + 1, 0, i, s) * 2

    x, good, source = rand(4, 3), torch.tensor([2]), rand(1, 3)
    check(fn, x, good, source)
    graph = Lowering(trace(fn, (x, good, source)), device_type="cpu").run()
    (got,) = execute(graph, (x, torch.tensor([-1]), source))
    assert torch.equal(got[1:], (x[1:] + 1) * 2)


def test_gather_of_no_position_may_have_another_rank() -> None:
    """Eager takes an empty position tensor of any rank; that is a library call."""
    check(
        lambda x, i: torch.gather(x, 0, i) + 1,
        rand(5),
        torch.zeros(2, 0, dtype=torch.int64),
        fallbacks=["aten.gather.default"],
    )
