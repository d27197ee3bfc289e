"""When two kernels are one: names, texts, the order of definitions, and the width of indices."""

from __future__ import annotations

import pytest
import torch
from generated import example, generated
from torch._subclasses import FakeTensorMode

from kernelfarm.compiler import host
from kernelfarm.compiler.body import Recorder, loop_vars
from kernelfarm.compiler.index import Index, floordiv, mod, var
from kernelfarm.compiler.kernel import needs_64_bits
from kernelfarm.compiler.reach import magnitude

BF16 = torch.bfloat16


def test_equal_computations_on_different_buffers_are_one_kernel() -> None:
    """Layers that differ only in their weights share every kernel."""

    def fn(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = torch.tanh(torch.nn.functional.layer_norm(x, (16,)) @ w)
        return x

    program, kernels, service = generated(fn, example(4, 16), *(example(16, 16),) * 3)
    calls = [line for line in program.lines if isinstance(line, host.KernelCall)]
    assert len(calls) > len(kernels) == len(service.requests)
    first = list(dict.fromkeys(c.kernel for c in calls))
    assert first == sorted(first), "kernels are defined in order of first use"


def test_equal_kernels_of_different_graphs_are_equal_requests() -> None:
    """A kernel's name and text do not know the graph that it came from."""
    _, one, _ = generated(lambda x, y: (x + y).sin(), example(40, 7), example(40, 7))
    _, two, _ = generated(
        lambda a, x, y: (a @ a, (x + y).sin()), example(3, 3), example(40, 7), example(40, 7)
    )
    assert [k.request for k in one] == [k.request for k in two]


@pytest.mark.parametrize(
    "other",
    (
        lambda x: x.to(BF16) * 2,
        lambda x: x * -2,
        lambda x: x * 2.0000002,
        lambda x: (x * 2).to(BF16),
        lambda x: x[:-1] * 2,
        lambda x: x.double() * 2,
    ),
)
def test_what_changes_a_kernel_changes_its_name(other: object) -> None:
    """Dtypes, constants and sizes are in the name."""
    _, one, _ = generated(lambda x: x * 2, example(1000))
    _, two, _ = generated(other, example(1000))  # type: ignore[arg-type]
    assert {k.name for k in one}.isdisjoint(k.name for k in two)


def test_alignment_is_part_of_a_kernel() -> None:
    """The same text for an unaligned input is another request under another name."""
    whole = example(1001)
    _, one, _ = generated(lambda x: x * 2, whole[:1000])
    _, two, _ = generated(lambda x: x * 2, whole[1:])
    assert one[0].name != two[0].name
    assert len(one[0].request.attributes) == 2
    assert len(two[0].request.attributes) == 1


def test_zeros_of_both_signs_are_two_constants() -> None:
    """0.0 == -0.0 makes neither one constant nor one kernel of them."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.copysign(x, torch.full((3,), 0.0)), torch.copysign(
            x @ w, torch.full((3,), -0.0)
        )

    _, kernels, _ = generated(fn, example(3, 3), example(3, 3))
    assert len({k.name for k in kernels}) == 2


def test_nan_is_one_constant() -> None:
    """NaN != NaN does not make a second kernel."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * float("nan")), (x @ w) * float("nan")

    _, kernels, _ = generated(fn, example(3, 3), example(3, 3))
    assert len(kernels) == 1


def test_generating_twice_gives_the_same_program() -> None:
    """Nothing in a program or a kernel depends on the run: order, names, constants."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.softmax(x @ w, -1)
        return y, y.sum(0), (y * x).amax(), torch.cat([x, w])

    one = generated(fn, example(16, 16), example(16, 16))
    two = generated(fn, example(16, 16), example(16, 16))
    assert one[0] == two[0]
    assert [k.request for k in one[1]] == [k.request for k in two[1]]


def _stored(index: Index, size: int) -> bool:
    recorder = Recorder()
    (p,) = loop_vars("p", [size])
    recorder.store("out", p, recorder.load("in0", index, "float32"), "float32")
    return needs_64_bits(recorder.finish([size]))


def test_indices_are_wide_where_32_bits_may_not_do() -> None:
    """Large spaces, strides, constant offsets and intermediate values ask for 64 bits."""
    p = var("p0", 100)
    assert not _stored(p.scale(20_000_000), 100)
    assert _stored(p.scale(30_000_000), 100)
    assert _stored(p + 2**31, 100), "a constant base"
    assert _stored(p.scale(-1) - 2**31, 100)
    assert _stored(mod(p.scale(30_000_000) + 1, 7), 100), "inside a remainder"
    assert _stored(floordiv(p.scale(30_000_001), 2**20), 100), "inside a division"
    assert not _stored(var("p0", 2**31 - 1), 2**31 - 1)
    assert _stored(var("p0", 2**31 + 1), 2**31 + 1)


def test_a_loop_counter_does_not_step_over_32_bits() -> None:
    """A reduction that ends just below 2**31 counts in 64 bits, or it would never end."""
    ends = {}
    for length in (2**31 - 2048, 2**31 - 1, 2**31 + 1):
        with FakeTensorMode():
            x = torch.empty(length, dtype=torch.bfloat16)
        _, kernels, _ = generated(lambda x: (x.argmax(), x.float().sum()), x)
        (text,) = {k.request.text for k in kernels}
        ends[length] = text.split("in range(0, ")[1].split(",")[0]
        assert "tl.arange(0, RBLOCK).to(tl.int64)" in text
    assert list(ends.values()) == ["rnumel", str(2**31), "rnumel"]


def test_magnitude_bounds_every_partial_sum() -> None:
    """Terms that cancel still count, in whatever order they are added."""
    p, q = var("p0", 10), var("p1", 10)
    assert magnitude(p.scale(1000) - q.scale(1000) + 5) == 18005
    assert magnitude(mod(p.scale(7) + q, 4) + 1) >= 72


def test_a_far_view_of_a_small_space_is_wide() -> None:
    """Two rows far apart in a large buffer are addressed in 64 bits (pytorch#186057)."""
    _, narrow, _ = generated(lambda x: x + 1, example(2, 8))
    assert ".to(tl.int64)" not in narrow[0].request.text
    with FakeTensorMode():
        far = torch.empty_strided((2, 8), (3_000_000_000, 1))
    _, wide, _ = generated(lambda x: x + 1, far)
    assert "tl.program_id(0).to(tl.int64)" in wide[0].request.text
