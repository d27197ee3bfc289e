"""A host program that uses every construct of the grammar."""

from __future__ import annotations

import pytest

from kernelfarm.compiler import host


def sample_program() -> host.HostProgram:
    """Two kernels, symbols, views, tuples, constants, an out variant, every kind of argument."""
    rows = host.SizeExpr("sym", ("s0",))
    flat = host.SizeExpr("mul", (rows, 8))
    grid = host.GridSpec(host.SizeExpr("ceildiv", (flat, 1024)))
    open_spec = host.TensorSpec((rows, 8), (8, 1), "float32")
    fixed = host.TensorSpec((16, 8), (8, 1), "bfloat16")
    return host.HostProgram(
        inputs=(
            host.Input("arg0", open_spec),
            host.Input("arg1", fixed),
            host.Input("arg2", host.TensorSpec((), (), "float64", "cpu", False)),
            host.Input("s1", None),
        ),
        constants=(
            host.Constant("table", host.TensorSpec((2,), (1,), "int32"), b"\1\0\0\0\2\0\0\0"),
        ),
        kernels=(
            host.KernelDef("kf_pointwise", b"", ("*fp32", "*fp32", "i32")),
            host.KernelDef("kf_reduce", b"k" * 32, ("*bf16", "*fp32")),
        ),
        lines=(
            host.SymbolDef("s0", "arg0", 0),
            host.SymbolDef("s2", "s1", None),
            host.Assert("arg1", fixed, "arg1 has the layout of the trace"),
            host.Comment("first group"),
            host.Allocate("buf0", open_spec),
            host.KernelCall(0, (host.Ref("arg0"), host.Ref("buf0"), flat), grid),
            host.Reinterpret("view0", "arg1", host.TensorSpec((64,), (1,), "bfloat16"), 64),
            host.Allocate("buf1", host.TensorSpec((), (), "float32")),
            host.KernelCall(1, (host.Ref("view0"), host.Ref("buf1")), host.GridSpec(1)),
            host.Reuse("buf0", "buf2", open_spec),
            host.Allocate("buf3", host.TensorSpec((16, 16), (16, 1), "bfloat16")),
            host.Reinterpret("arg1_t", "arg1", host.TensorSpec((8, 16), (1, 8), "bfloat16")),
            host.ExternCall(
                "mm0", "aten.mm.out", (host.Ref("arg1"), host.Ref("arg1_t")), out="buf3"
            ),
            host.ExternCall("top", "aten.topk.default", (host.Ref("buf3"), 2, -1, True, True)),
            host.MultiOutput("top0", "top", (0,)),
            host.MultiOutput("top1", "top", (1,)),
            host.ExternCall(
                "full",
                "aten.full.default",
                ((2, host.SizeExpr("add", (rows, 1))), float("inf")),
                (
                    ("dtype", host.DType("float32")),
                    ("device", host.DeviceRef("target")),
                    ("layout", host.MemoryFormat("strided")),
                    ("pin_memory", None),
                ),
            ),
            host.FreeIfNotReused("buf1"),
            host.Free("view0"),
        ),
        outputs=(
            host.Ref("buf2"),
            host.Ref("top0"),
            host.Ref("full"),
            host.Ref("table"),
            None,
            7,
            rows,
        ),
        symbols=("s0", "s2"),
    )


@pytest.fixture
def sample() -> host.HostProgram:
    """See `sample_program`."""
    return sample_program()
