"""Programs as they run: boxed arguments, alignment, mutation, aliases, symbols."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelfarm.compiler import host
from kernelfarm.compiler.host_errors import HostProgramError, LayoutError, RunError
from kernelfarm.compiler.host_plan import plan
from kernelfarm.compiler.runtime.interpreter import InterpreterRuntime
from kernelfarm.compiler.runtime.loader import load_program
from kernelfarm.compiler.seam.request import SourceRequest

MakeRequest = Callable[..., SourceRequest]
SPEC = host.TensorSpec((8, 4), (4, 1), "float32")

DOUBLE = """\
@triton.jit
def double(a, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, i < n) * 2, i < n)
"""
KDEF = host.KernelDef("double", b"", ("*fp32", "*fp32", "i32"))


@pytest.fixture
def double(interpreted: MakeRequest) -> SourceRequest:
    """A kernel that doubles n elements."""
    return interpreted(DOUBLE, "double", [("a", "*fp32"), ("out", "*fp32"), ("n", "i32")], BLOCK=16)


def load(program: host.HostProgram, *kernels: SourceRequest) -> Callable[[list[Any]], list[Any]]:
    return load_program(plan(program), kernels, InterpreterRuntime())


def doubling(spec: host.TensorSpec = SPEC, outputs: tuple[host.Arg, ...] = ()) -> host.HostProgram:
    """out = 2 * x."""
    return host.HostProgram(
        (host.Input("x", spec),),
        kernels=(KDEF,),
        lines=(
            host.Allocate("out", SPEC),
            host.KernelCall(0, (host.Ref("x"), host.Ref("out"), 32), host.GridSpec(2)),
        ),
        outputs=outputs or (host.Ref("out"),),
    )


def test_arguments_are_boxed(double: SourceRequest) -> None:
    """The call empties its list, and the program drops an input after its last use."""
    call = load(doubling(), double)
    x = torch.randn(8, 4)
    want = x * 2
    args = [x]
    alive = weakref.ref(x)
    del x
    (out,) = call(args)
    gc.collect()
    assert args == []
    assert alive() is None
    assert torch.equal(out, want)
    assert call._boxed_call  # type: ignore[attr-defined]


def test_a_misaligned_input_is_copied_for_the_kernels(double: SourceRequest) -> None:
    """x[1:] starts at an odd address: kernels see an aligned copy, results are right."""
    addresses: list[int] = []
    runtime = InterpreterRuntime()
    real = runtime.load_kernel

    class Watching:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def on_device(self, index: int) -> Callable[..., None]:
            def launch(x: int, y: int, z: int, stream: int, *args: Any) -> None:
                addresses.append(args[0])
                self.kernel(x, y, z, stream, *args)

            return launch

    runtime.load_kernel = lambda kdef, kernel: Watching(real(kdef, kernel))  # type: ignore
    call = load_program(plan(doubling()), [double], runtime)
    base = torch.randn(40)
    for start in (0, 1, 2, 3, 4):
        x = base[start : start + 32].view(8, 4)
        assert torch.equal(call([x])[0], x * 2)
    assert all(address % 16 == 0 for address in addresses)
    assert addresses[0] == base.data_ptr(), "an aligned input is used where it is"


def test_a_misaligned_result_of_an_operator_is_copied(double: SourceRequest) -> None:
    """An operator may return a view at any address; kernels still see an aligned one."""
    whole = host.TensorSpec((33,), (1,), "float32")
    program = host.HostProgram(
        (host.Input("x", whole),),
        kernels=(KDEF,),
        lines=(
            host.ExternCall("parts", "aten.split_with_sizes.default", (host.Ref("x"), (1, 32))),
            host.MultiOutput("tail", "parts", (1,)),
            host.Reinterpret("seen", "tail", SPEC),
            host.Allocate("out", SPEC),
            host.KernelCall(0, (host.Ref("seen"), host.Ref("out"), 32), host.GridSpec(2)),
        ),
        outputs=(host.Ref("out"),),
    )
    call = load(program, double)
    assert "if tail.data_ptr() & 15:" in call.text  # type: ignore[attr-defined]
    x = torch.randn(33)
    assert torch.equal(call([x])[0], x[1:].view(8, 4) * 2)


def test_a_misaligned_strided_input_keeps_its_strides(interpreted: MakeRequest) -> None:
    """A copy has the strides that the kernels were compiled for, overlaps and gaps included."""
    text = """\
@triton.jit
def gather(a, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + (i // 4) * 3 + (i % 4) * 5))
"""
    request = interpreted(text, "gather", [("a", "*fp32"), ("out", "*fp32")], BLOCK=16)
    spec = host.TensorSpec((4, 4), (3, 5), "float32")
    program = host.HostProgram(
        (host.Input("x", spec),),
        kernels=(host.KernelDef("gather", b"", ("*fp32", "*fp32")),),
        lines=(
            host.Allocate("out", host.TensorSpec((4, 4), (4, 1), "float32")),
            host.KernelCall(0, (host.Ref("x"), host.Ref("out")), host.GridSpec(1)),
        ),
        outputs=(host.Ref("out"),),
    )
    x = torch.randn(50).as_strided((4, 4), (3, 5), 1)
    assert torch.equal(load(program, request)([x])[0], x)


def test_a_misaligned_input_is_returned_as_it_came(double: SourceRequest) -> None:
    """An input that is also an output stays the caller's tensor, copied or not."""
    x = torch.randn(33)[1:].view(8, 4)
    call = load(doubling(outputs=(host.Ref("x"), host.Ref("out"))), double)
    same, out = call([x])
    assert same is x
    assert torch.equal(out, x * 2)


@pytest.mark.parametrize("start", [0, 1])
def test_a_kernel_that_writes_an_input_reaches_the_callers_tensor(
    interpreted: MakeRequest, start: int
) -> None:
    """A mutated input holds the new values after the call, also when it had to be copied."""
    text = """\
@triton.jit
def bump(a, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(a + i, tl.load(a + i) + 1)
"""
    request = interpreted(text, "bump", [("a", "*fp32")], BLOCK=32)
    program = host.HostProgram(
        (host.Input("x", SPEC),),
        kernels=(host.KernelDef("bump", b"", ("*fp32",)),),
        lines=(
            host.Reinterpret("flat", "x", host.TensorSpec((32,), (1,), "float32")),
            host.KernelCall(0, (host.Ref("flat"),), host.GridSpec(1), ("flat",)),
        ),
        outputs=(),
    )
    x = torch.zeros(40)[start : start + 32].view(8, 4)
    assert load(program, request)([x]) == []
    assert torch.equal(x, torch.ones(8, 4))


@pytest.mark.parametrize("start", [0, 1])
def test_an_operator_that_writes_an_input_reaches_the_callers_tensor(
    double: SourceRequest, start: int
) -> None:
    """copy_ into an input that kernels read as well ends up in the caller's tensor."""
    program = doubling()
    program = host.HostProgram(
        program.inputs,
        kernels=program.kernels,
        lines=(
            *program.lines,
            host.ExternCall("done", "aten.copy_.default", (host.Ref("x"), host.Ref("out"))),
        ),
        outputs=(),
    )
    x = torch.ones(40)[start : start + 32].view(8, 4)
    load(program, double)([x])
    assert torch.equal(x, torch.full((8, 4), 2.0))


def test_inputs_that_no_kernel_reads_are_not_checked() -> None:
    """Operators take any address, so their inputs are neither tested nor copied."""
    program = host.HostProgram(
        (host.Input("x", SPEC),),
        lines=(host.ExternCall("y", "aten.relu.default", (host.Ref("x"),)),),
        outputs=(host.Ref("y"),),
    )
    assert "_realign" not in load(program).text  # type: ignore[attr-defined]


def test_symbols_and_sizes(double: SourceRequest) -> None:
    """One program serves every length: sizes, grids and arguments follow the input's shape."""
    n = host.SizeExpr("sym", ("n",))
    spec = host.TensorSpec((n,), (1,), "float32")
    program = host.HostProgram(
        (host.Input("x", spec), host.Input("extra", None)),
        kernels=(KDEF,),
        lines=(
            host.SymbolDef("n", "x", 0),
            host.Allocate("out", spec),
            host.KernelCall(
                0,
                (host.Ref("x"), host.Ref("out"), n),
                host.GridSpec(host.SizeExpr("ceildiv", (n, 16))),
            ),
        ),
        outputs=(host.Ref("out"), host.SizeExpr("add", (n, host.SizeExpr("sym", ("extra",))))),
        symbols=("n",),
    )
    call = load(program, double)
    for length in (0, 1, 16, 100):
        x = torch.randn(length)
        out, total = call([x, 5])
        assert torch.equal(out, x * 2)
        assert total == length + 5


def test_constants_cannot_be_changed_by_the_caller() -> None:
    """A returned constant is the caller's own copy."""
    spec = host.TensorSpec((3,), (1,), "int64")
    data = torch.tensor([1, 2, 3]).numpy().tobytes()
    program = host.HostProgram((), (host.Constant("c", spec, data),), outputs=(host.Ref("c"),))
    call = load(program)
    call([])[0].zero_()
    assert call([])[0].tolist() == [1, 2, 3]


def test_a_view_as_another_dtype() -> None:
    """Reinterpret counts its offset in elements of the new dtype from the source's first one."""
    program = host.HostProgram(
        (host.Input("x", host.TensorSpec((8,), (1,), "float32")),),
        lines=(host.Reinterpret("v", "x", host.TensorSpec((2, 3), (3, 1), "int16"), 4),),
        outputs=(host.Ref("v"),),
    )
    x = torch.arange(12, dtype=torch.int32)[4:].view(torch.float32)
    assert torch.equal(load(program)([x])[0], x.view(torch.int16)[4:10].view(2, 3))


def test_layout_assertions(double: SourceRequest) -> None:
    """A tensor of another layout is a LayoutError with the program's message."""
    program = host.HostProgram(
        (host.Input("x", SPEC),),
        lines=(host.Assert("x", SPEC, "x was traced contiguous"),),
        outputs=(host.Ref("x"),),
    )
    call = load(program)
    call([torch.zeros(8, 4)])
    with pytest.raises(LayoutError, match=r"x was traced contiguous.*found"):
        call([torch.zeros(4, 8).t()])


def test_a_tensor_without_elements_has_no_layout(double: SourceRequest) -> None:
    """Strides of nothing do not matter; the sizes still do."""
    spec = replace(SPEC, sizes=(0, 4, 4), strides=(16, 4, 1))
    program = host.HostProgram(
        (host.Input("x", spec),),
        lines=(host.Assert("x", spec, "x was traced contiguous"),),
        outputs=(host.Ref("x"),),
    )
    call = load(program)
    call([torch.zeros(0, 4, 4).mT])
    with pytest.raises(LayoutError, match="x was traced"):
        call([torch.zeros(0, 4, 5)])


def test_an_input_on_another_kind_of_device_is_named() -> None:
    """A tensor that is not where the program runs is an error, not a crash."""
    program = host.HostProgram((host.Input("x", SPEC),), outputs=(host.Ref("x"),))

    class Elsewhere(InterpreterRuntime):
        def current_device(self) -> int:
            return 3

    call = load_program(program, [], Elsewhere())
    with pytest.raises(RunError, match="device -1"):
        call([torch.zeros(8, 4)])


def test_programs_see_one_builtin_and_tracebacks_show_their_text() -> None:
    """Programs have one built-in, for C code; an error inside points at the printed line."""
    program = host.HostProgram(
        (host.Input("x", SPEC),),
        lines=(host.ExternCall("y", "aten.mm.default", (host.Ref("x"), host.Ref("x"))),),
        outputs=(host.Ref("y"),),
    )
    call = load(program)
    assert list(call.__globals__["__builtins__"]) == ["__import__"]  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError) as caught:
        call([torch.zeros(8, 4)])
    assert "y = _op0(x, x)" in "".join(traceback.format_exception(caught.value))


def test_kernels_must_match_the_program(double: SourceRequest) -> None:
    """A program with one kernel cannot be loaded with none."""
    with pytest.raises(HostProgramError, match="1 named, 0 given"):
        load(doubling())


def test_factory_operators_run_on_the_target() -> None:
    """DeviceRef target is the device that the program runs on, dtypes and formats are torch's."""
    program = host.HostProgram(
        (),
        lines=(
            host.ExternCall(
                "y",
                "aten.full.default",
                ((2, 3), 1.5),
                (
                    ("dtype", host.DType("float16")),
                    ("device", host.DeviceRef("target")),
                    ("layout", host.MemoryFormat("strided")),
                ),
            ),
            host.ExternCall(
                "z",
                "aten.clone.default",
                (host.Ref("y"),),
                (("memory_format", host.MemoryFormat("contiguous_format")),),
            ),
            host.ExternCall("w", "aten.cat.default", ((host.Ref("y"), host.Ref("z")), 1)),
        ),
        outputs=(host.Ref("w"),),
    )
    (found,) = load(program)([])
    assert found.dtype is torch.float16
    assert torch.equal(found, torch.full((2, 6), 1.5, dtype=torch.float16))
