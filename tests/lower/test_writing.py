"""Writes and sums at positions that are data equal eager's, for every dtype and layout."""

from __future__ import annotations

import math

import pytest
import torch
from body_eval import check, execute, trace
from interpret import interpret

from kernelfarm.compiler.body import Body
from kernelfarm.compiler.fuse import fuse
from kernelfarm.compiler.ir import Compute
from kernelfarm.compiler.lower.context import Lowering

aten = torch.ops.aten
SUMMED = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers whose sums overflow the narrow integers and round in the narrow floats."""
    return (torch.randn(shape) * 60).to(dtype)


@pytest.mark.parametrize("dtype", SUMMED)
def test_sums_at_positions(dtype):
    """scatter_add, index_add and index_put with duplicates; integers wrap, floats round once."""
    a, s = numbers(5, 7, dtype=dtype), numbers(5, 4, dtype=dtype)
    rows = torch.randint(0, 7, (5, 4))
    columns = torch.randint(0, 7, (4,))
    tolerance = (1e-2, 1.0) if dtype in (torch.float16, torch.bfloat16) else None
    checked = {"interpreted": True, "tolerance": tolerance}
    check(lambda a, i, s: a.scatter_add(1, i, s), a, rows, s, **checked)
    check(lambda a, i, s: a.scatter_reduce(1, i, s, "sum"), a, rows, s, **checked)
    check(lambda a, i, s: a.index_add(1, i, s, alpha=2), a, columns, s, **checked)
    check(lambda a, i, s: a.index_put((i,), s[:, :1], accumulate=True), a, rows[:, 0] % 5 - 5, s)


@pytest.mark.parametrize("dtype", (*SUMMED, torch.bool))
def test_replacements_at_positions(dtype):
    """scatter, index_copy and index_put without duplicates put each element in its place."""
    a, s = numbers(5, 7, dtype=dtype), numbers(5, 4, dtype=dtype)
    rows = torch.stack([torch.randperm(7)[:4] for _ in range(5)])
    check(lambda a, i, s: a.scatter(1, i, s), a, rows, s, interpreted=True)
    check(lambda a, i: a.scatter(1, i, 1), a, rows, interpreted=True)
    check(lambda a, i, s: a.index_copy(1, i, s), a, rows[0], s, interpreted=True)
    check(
        lambda a, i, j, s: a.index_put((i, j), s),
        a, torch.randperm(5)[:4] - 5, rows[0], s[0], interpreted=True,
    )  # fmt: skip


INDICES = {
    "last": lambda i, j: (None, None, i),
    "middle": lambda i, j: (None, i),
    "two together": lambda i, j: (None, i, j),
    "two apart": lambda i, j: (i, None, j),
    "all": lambda i, j: (i, j, j),
    "broadcast": lambda i, j: (i[:, None], None, j),
    "whole slices": lambda i, j: (i,),
}


@pytest.mark.parametrize("name", INDICES)
def test_index_put_writes_where_index_reads(name):
    """Whichever dimensions tensors name, the written elements are those that indexing returns."""
    a = torch.randn(6, 5, 4)
    i, j = torch.randint(-4, 4, (3,)), torch.randint(-4, 4, (3,))
    where = INDICES[name](i, j)
    values = torch.randn_like(torch.ops.aten.index(a, where))

    def fn(a, values, *given):
        return aten.index_put(a, INDICES[name](*given), values, True)

    check(fn, a, values, i, j, interpreted=True)
    check(lambda a, v, *g: aten.index_put(a, INDICES[name](*g), v.sum() * 2, True), a, values, i, j)


def test_layout_of_the_operand_is_kept():
    """A transposed operand gives a transposed result, as the trace promised."""
    a, i, s = torch.randn(7, 5).t(), torch.randint(0, 7, (5, 9)), torch.randn(9, 5).t()
    check(lambda a, i, s: a.scatter_add(1, i, s), a, i, s, interpreted=True)


def test_empty_positions_change_nothing():
    """No position, or no element, leaves the operand as it was."""
    none = torch.zeros(0, dtype=torch.int64)
    check(lambda a, i, s: a.index_add(0, i, s), torch.randn(3, 4), none, torch.zeros(0, 4),
          interpreted=True)  # fmt: skip
    check(lambda a, i, s: a.index_add(0, i, s), torch.randn(3, 0), none, torch.zeros(0, 0),
          interpreted=True)  # fmt: skip
    check(lambda a, i, s: a.index_put((i,), s, True), torch.randn(3), none, torch.zeros(0),
          interpreted=True)  # fmt: skip


def test_producers_and_consumers_fuse_around_a_sum():
    """What is added is computed on the way, and the result is read again after all sums."""

    def fn(a, i, s):
        total = torch.tanh(a).scatter_add(1, i, torch.exp(s) * 2)
        return torch.softmax(total, -1), total.sum(0), a + 1

    a, i, s = torch.randn(6, 9), torch.randint(0, 9, (6, 20)), torch.randn(6, 20)
    check(fn, a, i, s, interpreted=True)


def test_what_fills_a_buffer_and_what_adds_to_it_never_share_a_kernel():
    """Equal loops tempt to fuse the copy with the sums; programs would add to what is not there."""
    a, i = torch.randn(8, 64), torch.randint(0, 8, (8, 64))
    gm = trace(lambda a, i: a.scatter_add(0, i, a * 2) + a, (a, i))
    groups = fuse(Lowering(gm, "cpu").run())
    for group in groups:
        stores = [s for _, _, body in group.members for s in body.stmts if s.op == "store"]
        assert len({s.attrs[0] for s in stores}) == len(stores)
    check(lambda a, i: a.scatter_add(0, i, a * 2) + a, a, i, interpreted=True)


def test_two_sums_into_one_operand_are_two_results():
    """Each sum starts from the operand, not from what another one left."""

    def fn(a, i, s):
        return a.index_add(0, i, s), a.index_add(0, i, -s), a * 2

    check(fn, torch.randn(6, 4), torch.randint(0, 6, (9,)), torch.randn(9, 4), interpreted=True)


def test_chained_sums():
    """A sum into the result of a sum sees all of it."""

    def fn(a, i, s):
        return a.index_add(0, i, s).index_add(0, i + 1, s * 2).index_copy(0, i[:1], s[:1])

    check(fn, torch.randn(8, 4), torch.randint(0, 6, (9,)), torch.randn(9, 4), interpreted=True)


@pytest.mark.parametrize("padding", (-1, 3))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64))
@pytest.mark.parametrize("index", (torch.int32, torch.int64))
def test_the_gradient_of_a_table(dtype, index, padding):
    """Rows are summed where they were read, the padding's row stays zero."""
    g, i = torch.randn(3, 40, 6, dtype=dtype), torch.randint(0, 11, (3, 40), dtype=index)
    check(
        lambda g, i: aten.embedding_dense_backward(g, i, 11, padding, False), g, i,
        interpreted=True, tolerance=(2e-2, 5e-2) if dtype == torch.bfloat16 else None,
    )  # fmt: skip


def test_a_table_whose_gradient_counts_is_a_library_call():
    """scale_grad_by_freq divides by how often a row was read, which a sum does not know."""
    g, i = torch.randn(5, 6), torch.randint(0, 4, (5,))
    op = "aten.embedding_dense_backward.default"
    check(lambda g, i: aten.embedding_dense_backward(g, i, 4, -1, True), g, i, fallbacks=[op])


def test_sums_in_bfloat16_do_not_lose_small_terms():
    """A thousand small numbers add up, where adding in bfloat16 stops at 256."""
    a = torch.zeros(1, dtype=torch.bfloat16)
    one, where = torch.ones(1000, dtype=torch.bfloat16), torch.zeros(1000, dtype=torch.int64)
    gm = trace(lambda a, i, s: a.index_add(0, i, s), (a, where, one))
    (got,), _ = interpret(gm, (a, where, one))
    assert float(got) == 1000


OUTSIDE = {
    "index_add": (lambda a, i, s: a.index_add(0, i, s), 3),
    "index_copy": (lambda a, i, s: a.index_copy(0, i, s), 3),
    "scatter_add": (lambda a, i, s: a.scatter_add(0, i[:, None].expand(6, 3), s), 3),
    "index_put": (lambda a, i, s: a.index_put((i,), s, accumulate=True), 6),  # -1 is the last
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int32, torch.int8))
@pytest.mark.parametrize("name", OUTSIDE)
def test_positions_out_of_range(name, dtype):
    """No memory outside is touched; a sum of floats shows what happened, the rest is dropped."""
    fn, last = OUTSIDE[name]
    a, s = torch.zeros(4, 3, dtype=dtype), torch.ones(6, 3, dtype=dtype)
    gm = trace(fn, (a, torch.zeros(6, dtype=torch.int64), s))
    for bad in (4, 2**40, -5, -(2**62)):
        i = torch.tensor([0, 3, bad, bad, -1 if name == "index_put" else bad, bad])
        (got,), _ = interpret(gm, (a, i, s))
        rows = got.double().sum(1).tolist()
        assert rows[1:] == [0, 0, last]
        seen = dtype.is_floating_point and name != "index_copy"
        assert math.isnan(rows[0]) if seen else rows[0] == 3


OPERATORS = {
    "aten.scatter_add.default": lambda a, i, s: a.scatter_add(0, i, s),
    "aten.index_put.default": lambda a, i, s: a.index_put((i,), s, accumulate=True),
    "aten.index_add.default": lambda a, i, s: a.index_add(0, i, s),
    "aten.scatter.src": lambda a, i, s: a.scatter(0, i, s),
    "aten.embedding_dense_backward.default": lambda a, i, s: aten.embedding_dense_backward(
        s[:, None], i, 4, -1, False
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_deterministic_algorithms_are_library_calls(name):
    """Where a fixed order is demanded, the operator that torch then makes deterministic runs."""
    a, i, s = torch.zeros(4), torch.randint(0, 4, (6,)), torch.randn(6)
    gm = trace(OPERATORS[name], (a, i, s))
    torch.use_deterministic_algorithms(True)
    try:
        lowering = Lowering(gm, "cpu")
        graph = lowering.run()
    finally:
        torch.use_deterministic_algorithms(False)
    assert list(lowering.fallback_ops) == [name]
    torch.testing.assert_close(execute(graph, (a, i, s))[0], OPERATORS[name](a, i, s))


def _bodies(gm) -> list[Body]:
    return [n.body for n in Lowering(gm, "cpu").run().nodes if isinstance(n, Compute)]


def test_a_read_by_known_positions_is_no_atomic_sum_of_data():
    """Positions that a range gives are proven to be inside: the store carries no condition."""

    def fn(a, s):
        return a.index_add(0, torch.arange(4), s)

    a, s = torch.randn(6, 3), torch.randn(4, 3)
    check(fn, a, s, interpreted=True)
    stores = [s for b in _bodies(trace(fn, (a, s))) for s in b.stmts if s.op == "store"]
    assert [len(s.args) for s in stores] == [1, 1]
