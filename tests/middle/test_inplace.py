"""Elementwise kernels write over operands that die in them, and over nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from body_eval import trace
from generated import example, generated
from interpret import interpret

from kernelfarm.compiler import host
from kernelfarm.compiler.body import Body, Recorder, loop_vars
from kernelfarm.compiler.inplace import elementwise_pairs

T = torch.Tensor


def _allocated(fn: Callable[..., Any], *inputs: Any) -> int:
    program, _, _ = generated(fn, *inputs)
    return sum(isinstance(line, (host.Allocate, host.Reuse)) for line in program.lines)


def test_a_product_is_overwritten_by_its_last_reader() -> None:
    """What follows a product needs no memory of its own."""
    assert _allocated(lambda a, b: (a @ b).relu(), example(8, 8), example(8, 8)) == 0


KEPT: dict[str, Callable[[T, T], Any]] = {
    "it is returned": lambda a, b: ((c := a @ b), c.relu()),
    "a view of it is returned": lambda a, b: ((c := a @ b)[0], c.relu()),
    "it is read again": lambda a, b: (c := a @ b).relu() @ c,
    "it is read elsewhere": lambda a, b: (c := a @ b).relu() + c.t(),
    "a call may have kept a view of it": lambda a, b: (
        (c := a @ b).relu(), torch.ops.aten.unfold(c, 0, 4, 4)
    ),
    "it is an input": lambda a, b: a.relu(),
    "the type is another": lambda a, b: (a @ b).relu().double(),
    "the rows are summed": lambda a, b: (a @ b).softmax(-1),
}  # fmt: skip


@pytest.mark.parametrize("reason", KEPT)
def test_an_operand_is_kept_where(reason: str) -> None:
    """Its reader's result gets memory of its own, and all results are eager's."""
    fn = KEPT[reason]
    inputs = (torch.randn(8, 8), torch.randn(8, 8))
    assert _allocated(fn, example(8, 8), example(8, 8)) >= 1
    got, _ = interpret(trace(fn, inputs), inputs)
    want = fn(*inputs)
    for mine, eager in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(mine, eager)


def test_two_results_do_not_take_one_operand() -> None:
    """Only one of two results of a kernel can lie where its operand was."""

    def fn(a: T, b: T) -> tuple[T, T]:
        c = a @ b
        return c.sin(), c.cos()

    assert _allocated(fn, example(8, 8), example(8, 8)) == 1
    inputs = (torch.randn(8, 8), torch.randn(8, 8))
    got, _ = interpret(trace(fn, inputs), inputs)
    for mine, eager in zip(got, fn(*inputs), strict=True):
        torch.testing.assert_close(mine, eager)


def test_a_result_does_not_take_an_operand_that_is_read_behind_it() -> None:
    """A load of the operand that follows the result's store would read the result."""
    (loop,) = loop_vars("p", (8,))

    def pairs(*, again: bool) -> tuple[tuple[str, str], ...]:
        recorder = Recorder()
        x, y = (recorder.load(name, loop, "float32") for name in ("x", "y"))
        recorder.store("first", loop, y, "float32")
        late = recorder.load("z", loop, "float32") if again else x
        recorder.store("second", loop, late, "float32")
        return elementwise_pairs(Body((8,), (), tuple(recorder.stmts)))

    assert ("z", "second") in pairs(again=True)
    assert ("z", "first") not in pairs(again=True)
    assert {("x", "first"), ("y", "first"), ("x", "second")} <= set(pairs(again=False))


def test_a_chain_keeps_one_place() -> None:
    """Product, elementwise, product, elementwise: two products' memory serves everything."""

    def fn(a: T, b: T) -> T:
        c = (a @ b).erfc()
        return ((c @ b) + c).sigmoid()

    inputs = (torch.randn(8, 8), torch.randn(8, 8))
    assert _allocated(fn, example(8, 8), example(8, 8)) == 0
    got, _ = interpret(trace(fn, inputs), inputs)
    torch.testing.assert_close(got[0], fn(*inputs))
