"""Liveness and reuse: memory is handed on only when nobody can see it any more."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelfarm.compiler import host
from kernelfarm.compiler.host_plan import plan
from kernelfarm.compiler.host_verify import verify
from kernelfarm.compiler.runtime.interpreter import InterpreterRuntime
from kernelfarm.compiler.runtime.loader import load_program

SPEC = host.TensorSpec((4, 4), (4, 1), "float32")
FLAT = host.TensorSpec((16,), (1,), "float32")
OTHER = host.TensorSpec((4, 4), (4, 1), "int32")
BIG = host.TensorSpec((4096,), (1,), "float32")


def program(*lines: host.Line, outputs: tuple[host.Arg, ...]) -> host.HostProgram:
    return host.HostProgram((host.Input("x", SPEC),), lines=lines, outputs=outputs)


def add(out: str, left: str, right: str | None = None) -> host.ExternCall:
    """out = left + right into a preallocated buffer."""
    args = (host.Ref(left), host.Ref(right or left))
    return host.ExternCall(f"{out}_done", "aten.add.out", args, out=out)


def kinds(planned: host.HostProgram) -> list[str]:
    return [type(line).__name__ for line in planned.lines]


def reuses(planned: host.HostProgram) -> list[tuple[str, str]]:
    return [(line.old, line.new) for line in planned.lines if isinstance(line, host.Reuse)]


def frees(planned: host.HostProgram) -> list[str]:
    return [line.name for line in planned.lines if isinstance(line, host.Free)]


def test_a_chain_of_equal_buffers_uses_two() -> None:
    """Six steps of equal size keep at most two buffers alive."""
    lines: list[host.Line] = []
    for i in range(6):
        lines += [host.Allocate(f"b{i}", SPEC), add(f"b{i}", f"b{i - 1}" if i else "x")]
    planned = plan(program(*lines, outputs=(host.Ref("b5"),)))
    verify(planned)
    assert kinds(planned).count("Allocate") == 2
    assert reuses(planned) == [("b0", "b2"), ("b1", "b3"), ("b2", "b4"), ("b3", "b5")]


def test_inputs_are_deleted_after_their_last_use() -> None:
    """The program owns its inputs once the list is cleared: holding them would cost memory."""
    planned = plan(
        program(
            host.Allocate("b0", SPEC),
            add("b0", "x"),
            host.Allocate("b1", SPEC),
            add("b1", "b0"),
            outputs=(host.Ref("b1"),),
        )
    )
    at = next(i for i, line in enumerate(planned.lines) if line == host.Free("x"))
    assert planned.lines[at - 1] == add("b0", "x")


def test_an_input_that_nobody_reads_is_deleted_first() -> None:
    """An unused input does not live for the length of the program."""
    planned = plan(
        host.HostProgram(
            (host.Input("x", SPEC), host.Input("unused", SPEC)),
            lines=(host.Allocate("b0", SPEC), add("b0", "x")),
            outputs=(host.Ref("b0"),),
        )
    )
    assert planned.lines[0] == host.Free("unused")


def test_an_inputs_storage_is_never_handed_on() -> None:
    """The caller may still look at an input, so its storage is not reused."""
    planned = plan(
        program(
            host.Allocate("b0", SPEC),
            add("b0", "x"),
            host.Allocate("b1", SPEC),
            add("b1", "b0"),
            outputs=(host.Ref("b1"),),
        )
    )
    assert all(old != "x" for old, _ in reuses(planned))


def test_a_viewed_buffer_waits_for_its_view() -> None:
    """A buffer whose view is still read is not handed on, whoever made the view."""
    for view in (
        host.Reinterpret("v", "b0", FLAT),
        host.ExternCall("v", "aten.view.default", (host.Ref("b0"), (16,))),
        host.ExternCall("v", "aten.dropout.default", (host.Ref("b0"), 0.5, False)),
    ):
        planned = plan(
            program(
                host.Allocate("b0", SPEC),
                add("b0", "x"),
                view,
                host.Allocate("b1", SPEC),
                add("b1", "x"),
                host.Allocate("b2", FLAT),
                host.ExternCall("v2", "aten.relu.default", (host.Ref("v"),)),
                outputs=(host.Ref("v2"), host.Ref("b1")),
            )
        )
        assert reuses(planned) == [], view


def test_elements_of_a_split_keep_their_source() -> None:
    """Both halves of a split are views: the source is not handed on while one is read."""
    planned = plan(
        program(
            host.Allocate("b0", SPEC),
            add("b0", "x"),
            host.ExternCall("s", "aten.split.Tensor", (host.Ref("b0"), 2)),
            host.MultiOutput("s0", "s", (0,)),
            host.MultiOutput("s1", "s", (1,)),
            host.ExternCall("r", "aten.relu.default", (host.Ref("s0"),)),
            host.Allocate("b1", SPEC),
            add("b1", "x"),
            host.ExternCall("q", "aten.relu.default", (host.Ref("s1"),)),
            outputs=(host.Ref("r"), host.Ref("q"), host.Ref("b1")),
        )
    )
    assert reuses(planned) == []
    assert "s" in frees(planned)


def test_a_returned_view_keeps_its_buffer() -> None:
    """A buffer that an output can see is neither handed on nor deleted wrongly."""
    planned = plan(
        program(
            host.Allocate("b0", SPEC),
            add("b0", "x"),
            host.Reinterpret("v", "b0", FLAT),
            host.Allocate("b1", SPEC),
            add("b1", "x"),
            outputs=(host.Ref("v"), host.Ref("b1")),
        )
    )
    assert reuses(planned) == []


def test_only_equal_dtype_bytes_and_alignment_are_reused() -> None:
    """An int32 buffer does not take over a float32 one; a flat view of equal bytes does."""

    def second(spec: host.TensorSpec) -> list[tuple[str, str]]:
        return reuses(
            plan(
                program(
                    host.Allocate("b0", SPEC),
                    add("b0", "x"),
                    host.ExternCall("r", "aten.relu.default", (host.Ref("b0"),)),
                    host.Allocate("b1", spec),
                    host.ExternCall("f", "aten.fill_.Scalar", (host.Ref("b1"), 1)),
                    outputs=(host.Ref("r"), host.Ref("b1")),
                )
            )
        )

    assert second(FLAT) == [("b0", "b1")]
    assert second(OTHER) == []
    assert second(host.TensorSpec((4, 4), (4, 1), "float32", aligned=False)) == []
    assert second(host.TensorSpec((4, 4), (4, 1), "float32", "cpu")) == []


def test_reuse_never_raises_the_peak() -> None:
    """A buffer is not kept through the program's most crowded point just to be reused."""

    def run(crowd: int) -> list[tuple[str, str]]:
        return reuses(
            plan(
                program(
                    host.Allocate("early", BIG),
                    host.ExternCall("f", "aten.fill_.Scalar", (host.Ref("early"), 1)),
                    host.Allocate("crowd", host.TensorSpec((crowd,), (1,), "float64")),
                    host.ExternCall("g", "aten.fill_.Scalar", (host.Ref("crowd"), 1)),
                    host.ExternCall("h", "aten.relu.default", (host.Ref("g"),)),
                    host.Allocate("late", BIG),
                    host.ExternCall("i", "aten.fill_.Scalar", (host.Ref("late"), 1)),
                    host.Allocate("top", host.TensorSpec((1 << 16,), (1,), "int8")),
                    host.ExternCall("j", "aten.fill_.Scalar", (host.Ref("top"), 1)),
                    outputs=(host.Ref("h"), host.Ref("i"), host.Ref("j")),
                )
            )
        )

    assert run(1 << 20) == []  # keeping "early" would add to the peak
    assert run(16) == [("early", "late")]  # here the peak is where "top" is made


def test_unused_buffers_and_views_disappear() -> None:
    """An allocation that nobody reads, even through an unread view, is not made."""
    planned = plan(
        program(
            host.Allocate("b0", SPEC),
            host.Reinterpret("v", "b0", FLAT),
            host.Allocate("b1", SPEC),
            add("b1", "x"),
            outputs=(host.Ref("b1"),),
        )
    )
    assert kinds(planned) == ["Allocate", "ExternCall"]


def test_planning_is_idempotent_on_frees(sample: host.HostProgram) -> None:
    """Planning a planned program plans it the same way."""
    once = plan(sample)
    verify(once)
    assert plan(once) == once


def test_a_reuse_made_by_the_compiler_is_kept() -> None:
    """An in-place decision taken earlier passes the storage on, and its end is planned too."""
    planned = plan(
        program(
            host.Allocate("b0", SPEC),
            add("b0", "x"),
            host.Reuse("b0", "b1", SPEC),
            add("b1", "b1"),
            host.ExternCall("r", "aten.relu.default", (host.Ref("b1"),)),
            host.Allocate("b2", SPEC),
            add("b2", "r"),
            outputs=(host.Ref("b2"),),
        )
    )
    verify(planned)
    assert reuses(planned) == [("b0", "b1"), ("b1", "b2")]


@dataclass
class Maker:
    """Draws random programs over one input; every name holds a (4, 4) float tensor."""

    lines: list[host.Line] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: ["x"])

    def step(self, kind: int, first: int, second: int) -> None:
        left = self.names[first % len(self.names)]
        right = self.names[second % len(self.names)]
        name = f"n{len(self.lines)}"
        match kind % 5:
            case 0 | 1:
                self.lines += [host.Allocate(name, SPEC), add(name, left, right)]
            case 2:
                self.lines.append(host.Reinterpret(name, left, SPEC))
            case 3:
                self.lines.append(
                    host.ExternCall(name, "aten.view.default", (host.Ref(left), (4, 4)))
                )
            case _:
                self.lines += [
                    host.ExternCall(f"{name}_s", "aten.split.Tensor", (host.Ref(left), 4)),
                    host.MultiOutput(name, f"{name}_s", (0,)),
                ]
        self.names.append(name)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50), st.integers(0, 50)), min_size=1),
    st.lists(st.integers(0, 50), min_size=1, max_size=3),
)
def test_planned_and_unplanned_programs_agree(
    steps: list[tuple[int, int, int]], chosen: list[int]
) -> None:
    """Planning changes no value: random programs of sums, views and splits compute the same."""
    maker = Maker()
    for step in steps:
        maker.step(*step)
    outputs = tuple(host.Ref(maker.names[i % len(maker.names)]) for i in chosen)
    plain = program(*maker.lines, outputs=outputs)
    runtime = InterpreterRuntime()
    x = torch.arange(16.0).reshape(4, 4)
    expected = load_program(plain, [], runtime)([x.clone()])
    planned = plan(plain)
    verify(planned)
    found = load_program(planned, [], runtime)([x.clone()])
    assert [t.tolist() for t in found] == [t.tolist() for t in expected]
