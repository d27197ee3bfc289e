"""Recording, pruning and layout questions of loop bodies."""

from __future__ import annotations

import time

import pytest
import torch
from body_eval import BodyRun, check, operation, trace
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import rand
from torch.fx.experimental.proxy_tensor import make_fx

from kernelfarm.compiler.body import Recorder, loop_vars, varies
from kernelfarm.compiler.errors import CodegenError, GraphError
from kernelfarm.compiler.index import ZERO, indirect
from kernelfarm.compiler.ir import is_dense, is_writable, same_layout
from kernelfarm.compiler.lower.context import Lowering, wrapped
from kernelfarm.compiler.ops import OPS


def test_equal_statements_are_recorded_once() -> None:
    """Two loads of one element are one, two stores are two."""
    recorder = Recorder()
    (p,) = loop_vars("p", (8,))
    a, b = recorder.load("x", p, "float32"), recorder.load("x", p, "float32")
    assert a == b
    recorder.store("y", p, a, "float32")
    recorder.store("y", p, a, "float32")
    assert len(recorder.finish((8,)).stmts) == 3


def test_constants_that_compare_equal_stay_apart() -> None:
    """0.0 and -0.0 are different constants."""
    recorder = Recorder()
    assert recorder.const(0.0, "float32") != recorder.const(-0.0, "float32")
    assert recorder.const(1.0, "float32") != recorder.const(1, "int32")


def test_masked_and_unmasked_loads_stay_apart() -> None:
    """Nested masks are conjunctions; outside they end."""
    recorder = Recorder()
    (p,) = loop_vars("p", (8,))
    plain = recorder.load("x", p, "float32")
    first = recorder.op("lt", recorder.index(p), recorder.const(5, "int64"))
    second = recorder.op("ge", recorder.index(p), recorder.const(2, "int64"))
    with recorder.masked(first):
        once = recorder.load("x", p, "float32")
        with recorder.masked(second):
            twice = recorder.load("x", p, "float32")
    assert len({plain, once, twice}) == 3
    assert recorder.load("x", p, "float32") == plain
    assert recorder.stmts[recorder.stmts[twice].args[0]].op == "and"


def test_pruning_keeps_what_an_index_reads() -> None:
    """Statements that no store needs go; indirect positions are renumbered."""
    recorder = Recorder()
    (p,) = loop_vars("p", (8,))
    recorder.load("unused", p, "float32")
    at = recorder.load("positions", p, "int64")
    value = recorder.load("table", indirect(at, 100), "float32")
    recorder.store("out", p, value, "float32")
    body = recorder.finish((8,))
    assert body.reads() == {"positions", "table"} and body.writes() == {"out"}
    assert body.stmts[1].attrs[1].indirects() == {0}


def test_values_vary_along_the_reduction_only_before_it() -> None:
    """A reduction ends the dependence on its loop."""
    recorder = Recorder()
    (p,), (r,) = loop_vars("p", (4,)), loop_vars("r", (8,))
    x = recorder.load("x", p.scale(8) + r, "float32")
    total = recorder.reduce("sum", x, "float32")
    y = recorder.op("mul", total, total)
    assert [varies(recorder.stmts)[v] for v in (x, total, y)] == [True, False, False]


def test_a_diamond_of_depth_forty_is_recorded_in_linear_time() -> None:
    """Each lazy is computed once per index, not once per path to it."""

    def diamonds(x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = x + x.abs()
            x = x - x.neg()
        return x

    gm = trace(diamonds, (rand(4),))
    start = time.perf_counter()
    graph = Lowering(gm, device_type="cpu").run()
    assert time.perf_counter() - start < 2
    assert sum(len(n.body.stmts) for n in graph.nodes) < 1000


def test_an_operation_with_the_wrong_arity_is_refused() -> None:
    """The vocabulary states how many operands there are."""
    recorder = Recorder()
    with pytest.raises(CodegenError):
        recorder.op("add", recorder.const(1.0, "float32"))


def test_every_operation_of_the_vocabulary_can_be_executed() -> None:
    """The reference executor knows each name, and each spelling mentions its operands."""
    for name, definition in OPS.items():
        assert callable(operation(name)), name
        text = definition.spelling("float32")
        assert all(f"{{{k}}}" in text for k in range(definition.arity)), name


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(shapes, st.data())
def test_density_equals_a_count_of_addresses(sizes: list[int], data: st.DataObject) -> None:
    """Dense means that all addresses below the number of elements are used, each once."""
    strides = data.draw(
        st.one_of(
            st.permutations(range(len(sizes))).map(lambda order: _permuted(sizes, order)),
            st.lists(st.integers(0, 12), min_size=len(sizes), max_size=len(sizes)),
        )
    )
    addresses = [0]
    for size, stride in zip(sizes, strides, strict=True):
        addresses = [a + i * stride for a in addresses for i in range(size)]
    dense = sorted(addresses) == list(range(len(addresses)))
    assert is_dense(sizes, strides) == dense
    unique = len(set(addresses)) == len(addresses)
    if is_writable(sizes, strides) and all(
        t or s == 1 for s, t in zip(sizes, strides, strict=True)
    ):
        assert unique
    if dense:
        assert is_writable(sizes, strides)


def _permuted(sizes: list[int], order: list[int]) -> list[int]:
    strides, step = [0] * len(sizes), 1
    for d in order:
        strides[d] = step
        step *= sizes[d]
    return strides


def test_layouts_are_compared_where_they_matter() -> None:
    """Strides of single elements and of empty tensors do not count."""
    assert same_layout((1, 4), (9, 1), (4, 1))
    assert same_layout((0, 4), (9, 2), (4, 1))
    assert not same_layout((2, 4), (9, 1), (4, 1))


@pytest.mark.parametrize(
    ("number", "dtype", "want"),
    [(300, "uint8", 44), (-1, "uint8", 255), (128, "int8", -128), (2**31, "int32", -(2**31)),
     (-1, "int64", -1), (2, "bool", True), (2.5, "float32", 2.5)],
)  # fmt: skip
def test_numbers_wrap_as_a_tensor_would_hold_them(number: float, dtype: str, want: float) -> None:
    """Integers wrap around, floats stay."""
    assert wrapped(number, dtype) == want


def test_a_mutating_graph_is_refused_by_name() -> None:
    """Only functional graphs are lowered; the message names the node."""
    gm = make_fx(lambda x: x.add_(1), tracing_mode="fake")(rand(2))
    with pytest.raises(GraphError, match="add_"):
        Lowering(gm, device_type="cpu").run()


def test_outputs_keep_the_traced_layout_even_with_holes() -> None:
    """A returned slice of a computed value has the strides of the slice, as a backward expects."""
    check(lambda x: (x * 2)[:, 1:3], rand(4, 6))
    check(lambda x: (x * 2)[:, :1].expand(4, 5), rand(4, 6))
    check(lambda x: (x * 2).split(2, 1), rand(4, 6))


def test_the_executor_refuses_reads_outside_and_double_stores() -> None:
    """The reference itself fails on wrong indices."""
    with pytest.raises(AssertionError, match="outside"):
        _overrun()
    with pytest.raises(AssertionError, match="twice"):
        _double()


def _overrun() -> None:
    recorder = Recorder()
    (p,) = loop_vars("p", (4,))
    recorder.store("y", p, recorder.load("x", p + 1, "float32"), "float32")
    BodyRun(recorder.finish((4,)), {"x": torch.zeros(4), "y": torch.zeros(4)}).run()


def _double() -> None:
    recorder = Recorder()
    recorder.store("y", ZERO, recorder.const(1.0, "float32"), "float32")
    BodyRun(recorder.finish((4,)), {"y": torch.zeros(4)}).run()
