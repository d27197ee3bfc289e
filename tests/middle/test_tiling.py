"""Axes and blocks: which loops run together, and how much of them one program takes."""

from __future__ import annotations

import pytest

from kernelfarm.compiler.body import Body, Recorder, loop_vars
from kernelfarm.compiler.index import floordiv, indirect, linear
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.sym import contiguous_strides
from kernelfarm.compiler.tile import MAX_GRID_YZ, Tiling, access_table, tile

MODEL = Target.parse("h200").device_model
F32 = "float32"


def pointwise(sizes: tuple[int, ...], *strides: tuple[int, ...], dtype: str = F32) -> Body:
    """A nest that adds up one input for each stride tuple and stores a contiguous result."""
    recorder = Recorder()
    loops = loop_vars("p", sizes)
    value = recorder.const(0.0, F32)
    for number, steps in enumerate(strides):
        loaded = recorder.load(f"in{number}", linear(loops, steps), dtype)
        value = recorder.op("add", value, recorder.cast(loaded, F32))
    recorder.store("out", linear(loops, contiguous_strides(sizes)), value, F32)
    return recorder.finish(sizes)


def reduction(rows: int, length: int, row_step: int, step: int) -> Body:
    """The sum over the inner loop of one input with these strides."""
    recorder = Recorder()
    (p,), (r,) = loop_vars("p", [rows]), loop_vars("r", [length])
    total = recorder.reduce(
        "sum", recorder.load("in0", p.scale(row_step) + r.scale(step), F32), F32
    )
    recorder.store("out", p, total, F32)
    return recorder.finish([rows], [length])


def axes(tiling: Tiling) -> list[tuple[str, int, int]]:
    """(name, extent, block) of each axis."""
    return [(a.name, int(a.extent), a.block) for a in tiling.axes]


def test_contiguous_accesses_have_one_axis() -> None:
    """Where every access runs along the innermost loop there is nothing to tile."""
    found = tile(pointwise((256, 300), (300, 1), (300, 1)), MODEL)
    assert [a[0] for a in axes(found)] == ["x"]


def test_a_transposed_access_gets_a_second_axis() -> None:
    """Both inputs are read along a tile's side, whichever dtype they have."""
    for dtype in (F32, "float64", "bfloat16"):
        found = tile(pointwise((256, 256), (256, 1), (1, 256), dtype=dtype), MODEL)
        assert axes(found) == [("y", 256, 32), ("x", 256, 32)]


def test_the_second_axis_takes_all_outer_loops() -> None:
    """A transposed middle dimension is cut after the loop that it runs along."""
    sizes = (2, 128, 64, 32)
    last = pointwise(sizes, contiguous_strides(sizes), (128 * 64 * 32, 1, 128 * 32, 128))
    assert axes(tile(last, MODEL)) == [("y", 256, 32), ("x", 64 * 32, 32)]


def test_a_short_second_axis_is_rejected() -> None:
    """Four elements side by side waste most of a transaction."""
    found = tile(pointwise((4, 2000), (2000, 1), (1, 4)), MODEL)
    assert [a[0] for a in axes(found)] == ["x"]


def test_a_small_gain_is_rejected() -> None:
    """A small transposed operand under a large plain one is not worth an axis."""
    sizes = (64, 64, 4096)
    found = tile(pointwise(sizes, contiguous_strides(sizes), (1, 64, 0)), MODEL)
    assert [a[0] for a in axes(found)] == ["x"]


def test_too_many_blocks_for_the_second_axis() -> None:
    """The grid's y is limited by the hardware; beyond it there is one axis."""
    rows = 32 * MAX_GRID_YZ
    fits = pointwise((rows, 64), (64, 1), (1, rows))
    assert [a[0] for a in axes(tile(fits, MODEL))] == ["y", "x"]
    beyond = pointwise((rows + 1, 64), (64, 1), (1, rows + 1))
    assert [a[0] for a in axes(tile(beyond, MODEL))] == ["x"]


def test_gathers_do_not_vote() -> None:
    """An address that depends on data says nothing about loops."""
    recorder = Recorder()
    p = loop_vars("p", [64, 64])
    at = recorder.load("at", p[1], "int64")
    row = indirect(at, 64)
    value = recorder.load("in0", row.scale(64) + p[0], F32)
    recorder.store("out", linear(p, (64, 1)), value, F32)
    assert [a[0] for a in axes(tile(recorder.finish([64, 64]), MODEL))] == ["x"]


@pytest.mark.parametrize("numel", (1, 7, 128, 1000, 10**6))
def test_blocks_cover_small_and_large_spaces(numel: int) -> None:
    """A block is a power of two, no larger than the space needs, and never empty."""
    (x,) = tile(pointwise((numel,), (1,)), MODEL).axes
    assert x.block & (x.block - 1) == 0 and 1 <= x.block <= 1024
    assert x.block < 2 * numel


def test_a_row_that_fits_is_kept_whole() -> None:
    """Rows to 4096 along memory stay in registers; longer ones are looped."""
    assert tile(reduction(1000, 4096, 4096, 1), MODEL).persistent
    assert not tile(reduction(1000, 4097, 4097, 1), MODEL).persistent


def test_a_column_is_kept_whole_only_if_short() -> None:
    """Reduced across rows, a program takes many columns at once, so 64 rows are the limit."""
    kept = tile(reduction(1000, 64, 1, 1000), MODEL)
    assert kept.persistent and kept.axes[0].block >= 16
    looped = tile(reduction(1000, 65, 1, 1000), MODEL)
    assert not looped.persistent and looped.axes[0].block >= 8


def test_registers_bound_a_kept_row() -> None:
    """No program holds more than 32 values of a row in a thread."""
    for length in (1, 33, 1024, 2049, 4096):
        for rows in (1, 100, 10**6):
            found = tile(reduction(rows, length, length, 1), MODEL)
            x, r = found.axes
            assert x.block * r.block <= 32 * 32 * found.num_warps
            assert r.block >= length


def test_warps_are_a_power_of_two() -> None:
    """Triton takes nothing else."""
    for rows in (1, 3, 1000):
        for length in (1, 100, 1000, 3000, 4096, 100_000):
            for body in (reduction(rows, length, length, 1), reduction(rows, length, 1, rows)):
                warps = tile(body, MODEL).num_warps
                assert warps & (warps - 1) == 0 and 1 <= warps <= 16


def test_accesses_are_counted_once_and_writes_twice() -> None:
    """A load that occurs twice is one access; a store moves its bytes there and back."""
    recorder = Recorder()
    (p,) = loop_vars("p", [8])
    value = recorder.op("add", recorder.load("a", p, F32), recorder.load("a", p, F32))
    value = recorder.op("add", value, recorder.load("a", floordiv(p, 2), F32))
    recorder.store("out", p, value, F32)
    table = access_table(recorder.finish([8]))
    assert sorted(a.weight for a in table) == [4, 4, 8]
