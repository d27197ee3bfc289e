"""Which independent nests share a launch, and what that may cost."""

from __future__ import annotations

import torch
from body_eval import trace
from generated import example, generated
from interpret import interpret

from kernelfarm.compiler import prologue
from kernelfarm.compiler.fuse import MAX_BUFFERS, fuse
from kernelfarm.compiler.host import KernelCall
from kernelfarm.compiler.lower.context import Lowering
from kernelfarm.compiler.prologue import join_prologues


def launches(fn, *inputs):
    """How many kernels a function launches."""
    program, _, _ = generated(fn, *inputs)
    return sum(isinstance(line, KernelCall) for line in program.lines)


def counted(*counts):
    """One more in each tensor of one element."""
    return tuple(c + 1 for c in counts)


def test_counters_share_a_launch():
    """As many as a kernel has pointers for."""
    one = torch.zeros((), dtype=torch.int64)
    assert launches(counted, *[one.clone() for _ in range(6)]) == 1
    assert launches(counted, *[one.clone() for _ in range(53)]) == -(-53 * 2 // MAX_BUFFERS)


def test_weights_of_equal_shape_are_laid_out_together():
    """Other shapes have launches of their own, and so has what depends on a library call."""

    def fn(a, b, c, x):
        y = x @ x
        return a.t().contiguous(), b.t().contiguous(), c.t().contiguous(), y.t().contiguous()

    assert launches(fn, example(8, 4), example(8, 4), example(6, 6), example(8, 8)) == 3


def test_results_are_those_of_separate_launches():
    """Values of the joined nests, on poisoned memory."""
    inputs = [torch.randn(5, 3) for _ in range(4)]
    gm = trace(lambda *xs: tuple(x.t().contiguous() * n for n, x in enumerate(xs)), inputs)
    got, report = interpret(gm, inputs)
    assert len(report.emitted) == 1
    for n, (value, x) in enumerate(zip(got, inputs, strict=True)):
        torch.testing.assert_close(value, x.t() * n)


def test_waiting_results_are_bounded(monkeypatch):
    """Beyond the budget a nest stays where its result is needed."""

    def fn(*xs):
        return tuple(x.t().contiguous() for x in xs)

    inputs = [example(64, 32) for _ in range(5)]
    assert launches(fn, *inputs) == 1
    monkeypatch.setattr(prologue, "WAITING_BYTES", 2 * 64 * 32 * 4)
    graph = Lowering(trace(fn, inputs), "cpu").run()
    assert len(join_prologues(fuse(graph), graph)) == 3


def test_a_joined_nest_stands_before_everything_that_reads_it():
    """It takes the place of its first part."""

    def fn(a, b, x):
        y = x @ a.t().contiguous()
        return y @ b.t().contiguous()

    inputs = [torch.randn(4, 4) for _ in range(3)]
    gm = trace(fn, inputs)
    got, _ = interpret(gm, inputs)
    torch.testing.assert_close(got[0], fn(*inputs), rtol=1e-4, atol=1e-4)
