"""Index expressions equal Python integer arithmetic, whatever path built them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelfarm.compiler.index import (
    Index,
    bounds,
    const,
    floordiv,
    indirect,
    linear,
    mod,
    unravel,
    var,
)
from kernelfarm.compiler.sym import contiguous_strides, next_power_of_two

SIZES = {"a": 3, "b": 4, "c": 6}
POINTS = [dict(zip(SIZES, p, strict=True)) for p in itertools.product(*map(range, SIZES.values()))]


@st.composite
def indices(draw: st.DrawFn, depth: int = 3) -> tuple[Index, str]:
    """An index and the Python expression that it stands for."""
    if depth == 0 or draw(st.booleans()):
        name = draw(st.sampled_from([*SIZES, "k"]))
        if name == "k":
            number = draw(st.integers(-13, 13))
            return const(number), f"({number})"
        return var(name, SIZES[name]), name
    left, text = draw(indices(depth - 1))
    match draw(st.sampled_from(("add", "sub", "scale", "div", "mod", "join"))):
        case "add":
            right, other = draw(indices(depth - 1))
            return left + right, f"({text} + {other})"
        case "sub":
            right, other = draw(indices(depth - 1))
            return left - right, f"({text} - {other})"
        case "scale":
            factor = draw(st.sampled_from((-2, 0, 1, 2, 3, 4, 6, 12)))
            return left.scale(factor), f"({text} * {factor})"
        case "div":
            by = draw(st.sampled_from((1, 2, 3, 4, 6, 8, 12)))
            return floordiv(left, by), f"({text} // {by})"
        case "mod":
            by = draw(st.sampled_from((1, 2, 3, 4, 6, 8, 12)))
            return mod(left, by), f"({text} % {by})"
        case _:
            by = draw(st.sampled_from((2, 3, 4, 6)))
            whole = floordiv(left, by).scale(by) + mod(left, by)
            return whole, text


@settings(max_examples=400, deadline=None)
@given(indices())
def test_simplified_indices_equal_python_arithmetic(built: tuple[Index, str]) -> None:
    """Every value agrees and lies inside the bounds."""
    index, text = built
    limits = bounds(index)
    assert limits is not None
    code = compile(text, "index", "eval")
    for point in POINTS:
        value = index.evaluate(point)
        assert value == eval(code, {}, dict(point)), (index, text)
        assert limits[0] <= value <= limits[1]


@settings(max_examples=200, deadline=None)
@given(indices(), indices(2), indices(2))
def test_substitution_equals_evaluation_in_two_steps(
    built: tuple[Index, str], first: tuple[Index, str], second: tuple[Index, str]
) -> None:
    """Replacing variables by in-range indices commutes with evaluating."""
    index = built[0]
    replaced = {"a": mod(first[0], 3), "b": mod(second[0], 4)}
    moved = index.substitute(replaced)
    for point in POINTS[::5]:
        inner = {**point, **{n: i.evaluate(point) for n, i in replaced.items()}}
        assert moved.evaluate(point) == index.evaluate(inner)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_unravel_inverts_linear(sizes: list[int]) -> None:
    """Coordinates of a linear position are the coordinates, as plain variables."""
    shape = tuple(sizes)
    loops = [var(f"v{i}", s) for i, s in enumerate(shape)]
    assert unravel(linear(loops, contiguous_strides(shape)), shape) == loops


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_linear_inverts_unravel(sizes: list[int], data: st.DataObject) -> None:
    """A flat variable taken apart and put together again is the variable."""
    shape = tuple(sizes)
    total = 1
    for s in shape:
        total *= s
    flat = var("f", total)
    assert linear(unravel(flat, shape), contiguous_strides(shape)) == flat
    order = data.draw(st.permutations(range(len(shape))))
    parts = unravel(flat, shape)
    strides = contiguous_strides(shape)
    assert linear([parts[d] for d in order], [strides[d] for d in order]) == flat


@pytest.mark.parametrize(
    ("built", "text"),
    [
        (floordiv(var("a", 3).scale(4) + var("b", 4), 4), "a"),
        (mod(var("a", 3).scale(4) + var("b", 4), 4), "b"),
        (floordiv(var("b", 4), 4), "0"),
        (mod(var("c", 6) + 6, 6), "c"),
        (floordiv(floordiv(var("f", 100), 3), 4), "(f // 12)"),
        (mod(mod(var("f", 100), 12), 4), "(f % 4)"),
        (mod(var("a", 3) - 1, 3), "(a + 2 % 3)"),
        (floordiv(var("a", 3) - 3, 3), "-1"),
    ],
    ids=str,
)
def test_ranges_simplify(built: Index, text: str) -> None:
    """The ranges of variables decide divisions."""
    assert repr(built) == text


def test_equal_indices_along_different_paths_are_equal() -> None:
    """The order of additions does not matter."""
    a, b = var("a", 3), var("b", 4)
    assert a.scale(4) + b + 2 == b + 1 + a.scale(4) + 1
    assert hash(a.scale(4) + b) == hash(b + a.scale(4))
    assert (a - a) == const(0)


def test_variables_of_size_one_vanish() -> None:
    """A loop of one iteration is the constant 0."""
    assert var("x", 1).is_const


def test_indirect_atoms_are_renumbered() -> None:
    """A pruned body moves the values that an index reads."""
    index = indirect(7, 10).scale(3) + var("a", 3)
    assert index.indirects() == {7}
    assert index.renumber({7: 2}).indirects() == {2}
    assert index.renumber({7: 2}).evaluate({"a": 1}, {2: 5}.__getitem__) == 16


@given(st.integers(0, 5000))
def test_next_power_of_two_is_the_smallest(n: int) -> None:
    """It covers n, and half of it does not."""
    p = next_power_of_two(n)
    assert p >= n and p & (p - 1) == 0 and (p == 1 or p // 2 < n)
