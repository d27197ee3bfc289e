"""What is known of positions and constants is not computed."""

from __future__ import annotations

import pytest

from kernelfarm.compiler.body import Recorder
from kernelfarm.compiler.index import const, indirect, var

I = var("p0", 8)  # noqa: E741  (a loop variable)
J = var("p1", 4)


@pytest.mark.parametrize(
    ("op", "left", "right", "verdict"),
    [
        ("lt", I, const(8), True),
        ("lt", I, const(7), None),
        ("lt", I, const(0), False),
        ("le", I, const(7), True),
        ("ge", I, const(0), True),
        ("ge", I, const(8), False),
        ("gt", I + 1, const(0), True),
        ("eq", I, const(9), False),
        ("eq", I, I, True),
        ("ne", I, const(-1), True),
        ("le", I, J, None),
        ("le", I, I + 1, True),
    ],
)
def test_comparisons_of_positions_are_decided_by_their_ranges(op, left, right, verdict) -> None:
    """A comparison whose outcome no iteration changes is a constant; any other stays."""
    r = Recorder()
    value = r.stmts[r.op(op, r.index(left), r.index(right))]
    assert (value.attrs[0] if value.op == "const" else None) is verdict


def test_arithmetic_of_positions_is_an_address() -> None:
    """Sums and multiples of positions are positions, whatever statements they were made of."""
    r = Recorder()
    total = r.op("add", r.op("mul", r.index(I), r.const(4, "int64")), r.index(J))
    assert r.stmts[total].attrs == (I.scale(4) + J,)


def test_arithmetic_that_would_wrap_is_computed() -> None:
    """A product beyond the dtype is left to the kernel, which wraps as eager does."""
    r = Recorder()
    value = r.op("mul", r.index(I, "int32"), r.const(2**30, "int32"))
    assert r.stmts[value].op == "mul"


def test_reading_a_table_of_positions_is_direct() -> None:
    """A load at a position that was computed as a value has the position in its address."""
    r = Recorder()
    at = r.index(I.scale(2))
    load = r.stmts[r.load("b", indirect(at, 16) + J, "float32")]
    assert load.attrs[1] == I.scale(2) + J


def test_masks_that_always_hold_are_no_masks() -> None:
    """A load under a true mask is plain, one under a false mask is the constant zero."""
    r = Recorder()
    with r.masked(r.op("lt", r.index(I), r.const(8, "int64"))):
        plain = r.stmts[r.load("b", I, "float32")]
    with r.masked(r.op("lt", r.index(I), r.const(0, "int64"))):
        nothing = r.stmts[r.load("b", I, "float32")]
    assert plain.op == "load" and plain.args == ()
    assert nothing.op == "const" and nothing.attrs == (0.0,)


def test_choices_and_logic_with_constants_vanish() -> None:
    """where, and, or with a known operand are the operand that is left."""
    r = Recorder()
    yes, no = r.const(True, "bool"), r.const(False, "bool")
    a, b = r.load("a", I, "float32"), r.load("b", I, "float32")
    flag = r.op("lt", a, b)
    assert r.op("where", yes, a, b) == a and r.op("where", no, a, b) == b
    assert r.op("and", flag, yes) == flag and r.op("and", no, flag) == no
    assert r.op("or", flag, no) == flag and r.op("or", yes, flag) == yes
