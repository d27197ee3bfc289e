"""What a printed program looks like."""

from __future__ import annotations

import pytest

from kernelfarm.compiler import host
from kernelfarm.compiler.emit.host_python import emit_python, extern_names
from kernelfarm.compiler.host_errors import HostProgramError
from kernelfarm.compiler.host_plan import plan

PRINTED = """\
# _op0: aten.mm.out
# _op1: aten.topk.default
# _op2: aten.full.default
# _k0: kf_pointwise(*fp32, *fp32, i32)
# _k1: kf_reduce(*bf16, *fp32)
def call(args):
    _index = args[0].get_device()
    if _index != _current_device():
        with _on_device(_index):
            return call(args)
    (arg0, arg1, arg2, s1,) = args
    args.clear()
    (table,) = _constants(_index)
    (_k0, _k1,) = _kernels(_index)
    _stream = _raw_stream(_index)
    _device = _device_of(_index)
    if (arg0.data_ptr() | arg1.data_ptr()) & 15:
        (arg0, arg1,) = _realign(arg0, arg1)
    del arg2
    s0 = arg0.size(0)
    s2 = s1
    _check_layout(arg1, (16, 8,), (8, 1,), 'arg1 has the layout of the trace')
    # first group
    buf0 = _empty((s0, 8,), (8, 1,), _dt_float32)
    if (-((s0 * 8) // -1024)) > 0:
        _k0((-((s0 * 8) // -1024)), 1, 1, _stream, arg0.data_ptr(), buf0.data_ptr(), (s0 * 8))
    del arg0
    view0 = _view(arg1, (64,), (1,), 64)
    buf1 = _empty((), (), _dt_float32)
    _k1(1, 1, 1, _stream, view0.data_ptr(), buf1.data_ptr())
    del buf1, view0
    buf2 = buf0
    del buf0
    buf3 = _empty((16, 16,), (16, 1,), _dt_bfloat16)
    arg1_t = _view(arg1, (8, 16,), (1, 8,), 0)
    mm0 = _op0(arg1, arg1_t, out=buf3)
    del arg1, arg1_t, mm0
    top = _op1(buf3, 2, -1, True, True)
    del buf3
    top0 = top[0]
    top1 = top[1]
    del top, top1
    full = _op2([2, (s0 + 1)], _inf, dtype=_dt_float32, device=_device, layout=_mf_strided, pin_memory=None)
    return [buf2, top0, full, table.clone(), None, 7, s0]
"""  # noqa: E501


def test_the_sample_prints_like_this(sample: host.HostProgram) -> None:
    """A planned program reads as plain Python without a device ordinal or an unneeded line."""
    assert emit_python(plan(sample)) == PRINTED


def test_operators_are_numbered_by_first_use(sample: host.HostProgram) -> None:
    """The loader binds operators in the order that the printer numbers them."""
    assert extern_names(sample) == ("aten.mm.out", "aten.topk.default", "aten.full.default")


def test_an_unplanned_mark_is_refused() -> None:
    """FreeIfNotReused has no printed form: a program must be planned first."""
    spec = host.TensorSpec((4,), (1,), "float32")
    program = host.HostProgram((host.Input("x", spec),), lines=(host.FreeIfNotReused("x"),))
    with pytest.raises(HostProgramError, match="planned first"):
        emit_python(program)


def test_an_empty_static_grid_is_no_launch() -> None:
    """A kernel with nothing to do is a comment in the program."""
    spec = host.TensorSpec((0,), (1,), "float32")
    program = host.HostProgram(
        (host.Input("x", spec),),
        kernels=(host.KernelDef("k", b"", ("*fp32",)),),
        lines=(host.KernelCall(0, (host.Ref("x"),), host.GridSpec(0)),),
    )
    text = emit_python(program)
    assert "# nothing to launch: _k0(0, 1, 1, _stream, x.data_ptr())" in text
    assert "\n    _k0(" not in text


@pytest.mark.parametrize(
    ("size", "printed"),
    [
        (host.SizeExpr("add", (host.SizeExpr("sym", ("n",)), -1)), "(n + (-1))"),
        (host.SizeExpr("mul", (2, host.SizeExpr("sym", ("n",)), 3)), "(2 * n * 3)"),
        (host.SizeExpr("floordiv", (host.SizeExpr("sym", ("n",)), 4)), "(n // 4)"),
        (host.SizeExpr("mod", (host.SizeExpr("sym", ("n",)), 4)), "(n % 4)"),
        (host.SizeExpr("ceildiv", (host.SizeExpr("sym", ("n",)), -4)), "(-(n // -(-4)))"),
        (host.SizeExpr("max", (host.SizeExpr("sym", ("n",)), 4)), "_max(n, 4)"),
        (host.SizeExpr("min", (host.SizeExpr("sym", ("n",)),)), "n"),
    ],
)
def test_size_expressions(size: host.SizeExpr, printed: str) -> None:
    """Every head of the table has a printed form with its own parentheses."""
    program = host.HostProgram((host.Input("n", None),), outputs=(size,))
    assert emit_python(program).endswith(f"    return [{printed}]\n")


@pytest.mark.parametrize(
    "value", ["it's", 'a "quote"', "line\nbreak", "\\", "'); import os #", "\u2028"]
)
def test_text_prints_by_repr(value: str) -> None:
    """A string argument is a literal, whatever is in it."""
    spec = host.TensorSpec((4,), (1,), "float32")
    program = host.HostProgram(
        (host.Input("x", spec),),
        lines=(
            host.ExternCall("y", "aten.gelu.default", (host.Ref("x"),), (("approximate", value),)),
        ),
    )
    assert f"    y = _op0(x, approximate={value!r})\n" in emit_python(program)
