"""Which loop nests may share a kernel: every rule of legality, on nests made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from body_eval import trace
from generated import example, generated
from group_eval import GroupRun

from kernelfarm.compiler.body import Body, Recorder, loop_vars
from kernelfarm.compiler.fuse import Group, fuse, live_after, merged_body
from kernelfarm.compiler.index import Index, indirect, linear
from kernelfarm.compiler.ir import Buffer, Compute, LoweredGraph, View
from kernelfarm.compiler.loops import align, common_factors, simplify
from kernelfarm.compiler.lower.context import Lowering
from kernelfarm.compiler.sym import contiguous_strides

F32 = "float32"


def _graph(
    buffers: Sequence[Buffer], nodes: Sequence[Compute], outputs: Sequence[str]
) -> LoweredGraph:
    graph = LoweredGraph()
    graph.buffers = {b.name: b for b in buffers}
    graph.inputs = [b for b in buffers if b.role == "input"]
    graph.nodes = list(nodes)
    graph.outputs = [
        View(graph.buffers[n], graph.buffers[n].sizes, graph.buffers[n].strides) for n in outputs
    ]
    return graph


def _buffer(name: str, *sizes: int, dtype: str = F32) -> Buffer:
    role = "input" if name.startswith("in") else "compute"
    return Buffer(name, sizes, contiguous_strides(sizes), dtype, role=role)


def _doubled(source: str, target: str, size: int) -> Compute:
    recorder = Recorder()
    (p,) = loop_vars("p", [size])
    value = recorder.load(source, p, F32)
    recorder.store(target, p, recorder.op("add", value, value), F32)
    return Compute(target, recorder.finish([size]))


def _reader(
    source: str, target: str, size: int, at: Index, dtype: str = F32, mask: bool = False
) -> Compute:
    recorder = Recorder()
    (p,) = loop_vars("p", [size])
    if mask:
        early = recorder.op("lt", recorder.index(p), recorder.const(3, "int64"))
        with recorder.masked(early):
            value = recorder.load(source, at, dtype)
    else:
        value = recorder.load(source, at, dtype)
    recorder.store(target, p, value, dtype)
    return Compute(target, recorder.finish([size]))


def _fused(graph: LoweredGraph) -> list[Group]:
    return fuse(graph)


def test_a_value_read_where_it_was_written_stays_in_a_register() -> None:
    """Writer and reader are one group, and a buffer that nobody else reads is never stored."""
    (p,) = loop_vars("p", [8])
    buffers = [_buffer("in0", 8), _buffer("mid", 8), _buffer("out", 8)]
    graph = _graph(buffers, [_doubled("in0", "mid", 8), _reader("mid", "out", 8, p)], ["out"])
    (group,) = _fused(graph)
    live = live_after([group], graph.outputs)[group.number]
    assert live == {"out"}
    assert merged_body(group, live).writes() == {"out"}


def test_a_value_read_elsewhere_comes_from_memory() -> None:
    """A reader of the neighbouring element is a kernel of its own."""
    (p,) = loop_vars("p", [8])
    buffers = [_buffer("in0", 9), _buffer("mid", 9), _buffer("out", 8)]
    nodes = [_doubled("in0", "mid", 9), _reader("mid", "out", 8, p + 1)]
    assert len(_fused(_graph(buffers, nodes, ["out"]))) == 2
    buffers = [_buffer("in0", 8), _buffer("mid", 8), _buffer("out", 8)]
    nodes = [_doubled("in0", "mid", 8), _reader("mid", "out", 8, p.scale(-1) + 7)]
    assert len(_fused(_graph(buffers, nodes, ["out"]))) == 2


def test_a_masked_read_of_a_register_is_zero_where_the_mask_is_off() -> None:
    """Forwarding keeps what a masked load promises."""
    (p,) = loop_vars("p", [8])
    buffers = [_buffer("in0", 8), _buffer("mid", 8), _buffer("out", 8)]
    nodes = [_doubled("in0", "mid", 8), _reader("mid", "out", 8, p, mask=True)]
    graph = _graph(buffers, nodes, ["out"])
    (group,) = _fused(graph)
    body = merged_body(group, {"out"})
    memory = {"in0": torch.arange(8.0) + 1, "out": torch.full((8,), torch.nan)}
    GroupRun(body, memory).run()
    assert memory["out"].tolist() == [2.0, 4.0, 6.0, 0, 0, 0, 0, 0]


def test_bits_of_a_value_come_from_memory() -> None:
    """A reader under another dtype is not fused with the writer."""
    (p,) = loop_vars("p", [8])
    buffers = [_buffer("in0", 8), _buffer("mid", 8), _buffer("out", 8, dtype="int32")]
    nodes = [_doubled("in0", "mid", 8), _reader("mid", "out", 8, p, dtype="int32")]
    assert len(_fused(_graph(buffers, nodes, ["out"]))) == 2


def test_values_written_at_positions_from_data_are_not_forwarded() -> None:
    """Equal statement numbers in two bodies are not the same position."""
    buffers = [_buffer("in0", 8, dtype="int64"), _buffer("mid", 8), _buffer("out", 8)]
    (p,) = loop_vars("p", [8])
    write = Recorder()
    at = write.load("in0", p, "int64")
    write.store("mid", indirect(at, 8), write.cast(at, F32), F32)
    read = Recorder()
    again = read.load("in0", p, "int64")
    read.store("out", p, read.load("mid", indirect(again, 8), F32), F32)
    nodes = [Compute("mid", write.finish([8])), Compute("out", read.finish([8]))]
    assert len(_fused(_graph(buffers, nodes, ["out"]))) == 2


def test_a_buffer_written_in_parts_is_not_forwarded() -> None:
    """A reader of a buffer that one nest stores twice waits for memory."""
    buffers = [_buffer("in0", 4), _buffer("mid", 8), _buffer("out", 4)]
    (p,) = loop_vars("p", [4])
    write = Recorder()
    value = write.load("in0", p, F32)
    write.store("mid", p, value, F32)
    write.store("mid", p + 4, write.op("neg", value), F32)
    nodes = [Compute("mid", write.finish([4])), _reader("mid", "out", 4, p)]
    assert len(_fused(_graph(buffers, nodes, ["out"]))) == 2


def test_a_library_call_between_two_nests_keeps_them_apart() -> None:
    """A nest that also needs a product of the other's result cannot run with it."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x) * 2
        return y + y @ w

    graph = Lowering(trace(fn, (example(8, 8), example(8, 8))), "cpu").run()
    groups = fuse(graph)
    assert [g.extern is not None for g in groups] == [False, True, False]


def test_groups_are_in_an_order_that_respects_every_read() -> None:
    """Whatever reads a buffer comes after all that write it, library calls in parts included."""

    def fn(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = a @ b
        return product.float().sum(-1), x.sin() + 1, (x @ x).cos()

    inputs = (
        example(1200, 32, dtype=torch.bfloat16),
        example(32, 3001, dtype=torch.bfloat16),
        example(8, 8),
    )
    graph = Lowering(trace(fn, inputs), "cpu").run()
    groups = fuse(graph)
    for position, group in enumerate(groups):
        later = {name for g in groups[position + 1 :] for name in g.writes}
        assert not group.reads & later


def test_a_sum_and_a_result_of_one_input_share_the_pass_over_it() -> None:
    """A pointwise nest follows a reduction along the memory that both read, rows or columns."""
    _, kernels, _ = generated(lambda x: (x.sum(0), x + 1), example(64, 64))
    assert len(kernels) == 1
    _, kernels, _ = generated(lambda x: (x.sum(0), x.t() + 1), example(64, 64))
    assert len(kernels) == 1
    _, kernels, _ = generated(lambda x: (x.sum(1), x + 1), example(64, 64))
    assert len(kernels) == 1


def test_a_large_result_does_not_join_the_sum_of_everything() -> None:
    """One program per row would leave the GPU empty; enough rows, pieces, or short ones fill it."""
    _, kernels, _ = generated(lambda x: (x * 2, (x * 2).sum()), example(512, 512))
    assert len(kernels) == 2
    assert kernels[0].grid.x >= 64
    _, kernels, _ = generated(lambda x: (x * 2, (x * 2).sum()), example(131, 1021))
    assert len(kernels) == 2
    _, kernels, _ = generated(lambda x: (x * 2, (x * 2).sum()), example(64, 64))
    assert len(kernels) == 1
    _, kernels, _ = generated(lambda x: (x * 2, (x * 2).sum(-1)), example(64, 8192))
    assert len(kernels) == 1


def test_a_broadcast_consumer_joins_a_reduction() -> None:
    """A pointwise nest over rows and columns runs inside the row reduction it reads."""
    _, kernels, _ = generated(lambda x: x - x.sum(-1, keepdim=True), example(64, 100))
    assert len(kernels) == 1


@pytest.mark.parametrize(
    "a, b, want",
    (
        ((12, 2), (2, 12), [2, 6, 2]),
        ((6,), (2, 3), [2, 3]),
        ((4, 1, 3), (12,), [4, 3]),
        ((4, 3), (3, 4), None),
        ((), (1, 1), []),
        ((2,), (3,), None),
        ((0, 5), (5, 0), None),
        ((5, 0), (0,), [5, 0]),
        ((0,), (0,), [0]),
    ),
)
def test_common_factors(a: tuple[int, ...], b: tuple[int, ...], want: list[int] | None) -> None:
    """The coarsest shape that both shapes are unions of."""
    assert common_factors(a, b) == want
    assert common_factors(b, a) == want


def test_loops_merge_only_where_every_access_steps_over_both() -> None:
    """Two loops are one where all indices agree, and stay two for a transposed access."""

    def body(*indices: Index) -> Body:
        recorder = Recorder()
        for number, index in enumerate(indices):
            recorder.store(f"out{number}", index, recorder.load("in0", index, F32), F32)
        return simplify(recorder.finish([4, 6]))

    p = loop_vars("p", [4, 6])
    plain = linear(p, (6, 1))
    assert body(plain).sizes == (24,)
    assert body(plain, plain + 7, plain.scale(2)).sizes == (24,)
    assert body(plain, linear(p, (1, 4))).sizes == (4, 6)
    assert body(plain, linear(p, (7, 1))).sizes == (4, 6)
    assert body(plain, p[1]).sizes == (4, 6)


def test_alignment_keeps_what_each_nest_reads() -> None:
    """Under an alignment both nests visit the addresses they visited alone."""

    def nest(sizes: tuple[int, ...], rsizes: tuple[int, ...] = ()) -> Body:
        recorder = Recorder()
        loops, rloops = loop_vars("p", sizes), loop_vars("r", rsizes)
        index = linear([*loops, *rloops], contiguous_strides((*sizes, *rsizes)))
        value = recorder.load("in0", index, F32)
        if rsizes:
            value = recorder.reduce("sum", value, F32)
        recorder.store("out", linear(loops, contiguous_strides(sizes)), value, F32)
        return recorder.finish(sizes, rsizes)

    a, b = nest((4, 3), (10,)), nest((12, 5, 2))
    found = align(a, b)
    assert found is not None
    assert (found.sizes, found.rsizes) == ((4, 3), (5, 2))
    first = a.stmts[0].attrs[1].substitute(found.first)
    second = b.stmts[0].attrs[1].substitute(found.second)
    assert first == second
    assert align(nest((4,), (6,)), nest((4,), (5,))) is None
