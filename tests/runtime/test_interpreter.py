"""Kernel text on CPU tensors, beside a Triton that compiles."""

from __future__ import annotations

import functools
import operator
import os
import sys
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

from kernelfarm.compiler import host
from kernelfarm.compiler.host_errors import LaunchError, RunError
from kernelfarm.compiler.runtime.interpreted_language import language
from kernelfarm.compiler.runtime.interpreter import InterpreterRuntime
from kernelfarm.compiler.seam.request import Artifact, KernelMetadata, SourceRequest

MakeRequest = Callable[..., SourceRequest]

HEAD = """\
@triton.jit
def k({args}, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
"""


def launcher(request: SourceRequest) -> Callable[..., None]:
    kinds = tuple(kind for _, kind in request.signature)
    return InterpreterRuntime().load_kernel(host.KernelDef("k", b"", kinds), request)


@pytest.fixture
def run(interpreted: MakeRequest) -> Callable[..., torch.Tensor]:
    """Run one program over a block: ``run(body, out dtype, *inputs)``, inputs a, b, ..."""

    names = {
        torch.float32: "*fp32",
        torch.float16: "*fp16",
        torch.bfloat16: "*bf16",
        torch.float64: "*fp64",
        torch.int32: "*i32",
        torch.int64: "*i64",
        torch.bool: "*i1",
    }

    def go(
        body: str, dtype: torch.dtype, *inputs: torch.Tensor, size: int | None = None
    ) -> torch.Tensor:
        letters = "abcdef"[: len(inputs)]
        block = inputs[0].numel()
        out = torch.empty(size or block, dtype=dtype)
        args = ", ".join([*letters, "out"])
        lines = [f"    {c} = tl.load({c} + i)" for c in letters]
        lines += ["    " + line for line in body.splitlines()]
        text = HEAD.format(args=args) + "\n".join(lines) + "\n"
        signature = [(c, names[t.dtype]) for c, t in zip(letters, inputs, strict=True)]
        request = interpreted(text, "k", [*signature, ("out", names[dtype])], BLOCK=block)
        launcher(request)(1, 1, 1, 0, *inputs, out)
        return out

    return go


def test_a_normal_triton_is_left_as_it_was() -> None:
    """After the copy is imported, triton compiles as before and the environment is unchanged."""
    known = language()
    assert sys.modules["triton"] is triton
    assert sys.modules["triton.language"] is tl
    assert known.triton is not triton
    assert "TRITON_INTERPRET" not in os.environ
    assert type(tl.sum).__name__ == "JITFunction"
    assert type(known.tl.sum).__name__ == "InterpretedFunction"
    assert not triton.knobs.runtime.interpret


def test_interpreting_patches_nobody_elses_language(run: Callable[..., torch.Tensor]) -> None:
    """A run in the interpreter leaves the functions of the compiling language in place."""
    before = dict(vars(tl.core))
    run("tl.store(out + i, tl.sum(a, 0))", torch.float32, torch.ones(8))
    assert dict(vars(tl.core)) == before


def test_and_or_not_are_elementwise(run: Callable[..., torch.Tensor]) -> None:
    """Python's connectives between tensors mean what the compiler makes of them."""
    x = torch.arange(16, dtype=torch.int32)
    body = "tl.store(out + i, (a > 3 and a < 9) or (BLOCK == 99 or a == 15))"
    want = ((x > 3) & (x < 9)) | (x == 15)
    assert torch.equal(run(body, torch.int32, x), want.int())


def test_masks_and_grids(interpreted: MakeRequest) -> None:
    """Programs of a three-dimensional grid see their places, and masked lanes are not stored."""
    text = """\
@triton.jit
def k(out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) + 2 * (tl.program_id(1) + 3 * tl.program_id(2))
    i = place * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, i + tl.num_programs(1) * 1000, mask=i < n)
"""
    request = interpreted(text, "k", [("out", "*i32"), ("n", "i32")], BLOCK=4)
    out = torch.full((96,), -1, dtype=torch.int32)
    launcher(request)(2, 3, 4, 0, out, 90)
    assert out[:90].tolist() == [i + 3000 for i in range(90)]
    assert out[90:].tolist() == [-1] * 6


def test_an_empty_grid_runs_nothing(interpreted: MakeRequest) -> None:
    """No program runs when any axis is empty."""
    text = "@triton.jit\ndef k(out):\n    tl.store(out, 1)\n"
    out = torch.zeros(1, dtype=torch.int32)
    launcher(interpreted(text, "k", [("out", "*i32")]))(3, 0, 1, 0, out)
    assert out.item() == 0


def test_stores_to_bfloat16_round_to_nearest_even(run: Callable[..., torch.Tensor]) -> None:
    """bfloat16 results are torch's to the bit, not-a-numbers and infinities included."""
    torch.manual_seed(0)
    x = torch.cat([torch.randn(1018), torch.tensor([0.0, -0.0, 3.4e38, -3.4e38])])
    x = torch.cat([x, torch.tensor([float("inf"), float("nan")])])
    found = run("tl.store(out + i, a)", torch.bfloat16, x)
    assert torch.equal(found.nan_to_num(7.0), x.bfloat16().nan_to_num(7.0))
    assert found.isnan().sum() == 1


def test_bfloat16_constants_and_loads(run: Callable[..., torch.Tensor]) -> None:
    """A bfloat16 load becomes float32 exactly, and a masked lane's other value is bfloat16."""
    x = torch.randn(64).bfloat16()
    body = "v = tl.where(i < 32, a.to(tl.float32) * 2, 0.1)\ntl.store(out + i, v)"
    found = run(body, torch.float32, x)
    assert torch.equal(found[:32], x[:32].float() * 2)
    assert torch.allclose(found[32:], torch.tensor(0.1))


@pytest.mark.parametrize("op", ["sum", "max", "min", "argmax", "argmin", "xor_sum"])
def test_reductions(run: Callable[..., torch.Tensor], op: str) -> None:
    """Reductions of rows equal torch's."""
    torch.manual_seed(1)
    x = torch.randint(0, 50, (8, 32), dtype=torch.int32)
    body = f"m = tl.reshape(a, [8, 32])\ntl.store(out + tl.arange(0, 8), tl.{op}(m, 1))"
    found = run(body, torch.int32, x.flatten(), size=8)
    if op == "xor_sum":
        assert found.tolist() == [functools.reduce(operator.xor, row) for row in x.tolist()]
    elif op.startswith("arg"):
        # The leftmost of equal values wins, as when compiled.
        best = x.max(1).values if op == "argmax" else x.min(1).values
        assert found.tolist() == [(x[r] == best[r]).nonzero()[0].item() for r in range(8)]
    else:
        want_tensor = {"sum": x.sum(1), "max": x.amax(1), "min": x.amin(1)}[op]
        assert found.tolist() == want_tensor.tolist()


COMBINE = """\
@triton.jit
def pick(v1, i1, v2, i2):
    keep = (v1 > v2) | ((v1 == v2) & (i1 < i2))
    return tl.where(keep, v1, v2), tl.where(keep, i1, i2)

@triton.jit
def k(a, values, places, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v, p = tl.reduce((tl.load(a + i), i), 0, pick)
    tl.store(values, v)
    tl.store(places, p)
"""


def test_a_custom_reduction_over_a_tuple(interpreted: MakeRequest) -> None:
    """A combine function of our own over (value, index) finds the leftmost maximum."""
    request = interpreted(
        COMBINE, "k", [("a", "*fp32"), ("values", "*fp32"), ("places", "*i32")], BLOCK=1024
    )
    x = torch.randint(0, 30, (1024,)).float()
    value, place = torch.empty(1), torch.empty(1, dtype=torch.int32)
    launcher(request)(1, 1, 1, 0, x, value, place)
    assert value.item() == x.max()
    assert place.item() == (x == x.max()).nonzero()[0].item()


@pytest.mark.parametrize("reverse", [False, True])
def test_scans(interpreted: MakeRequest, reverse: bool) -> None:
    """Cumulative sums and a custom scan along rows equal torch's, in both directions."""
    text = f"""\
@triton.jit
def bigger(x, y):
    return tl.maximum(x, y)

@triton.jit
def k(a, sums, tops, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = tl.reshape(tl.load(a + i), [4, BLOCK // 4])
    s = tl.cumsum(m, 1, reverse={reverse})
    t = tl.associative_scan(m, 1, bigger, reverse={reverse})
    tl.store(sums + i, tl.reshape(s, [BLOCK]))
    tl.store(tops + i, tl.reshape(t, [BLOCK]))
"""
    signature = [(name, "*fp32") for name in ("a", "sums", "tops")]
    x = torch.randint(-9, 9, (4, 16)).float()
    sums, tops = torch.empty(64), torch.empty(64)
    launcher(interpreted(text, "k", signature, BLOCK=64))(1, 1, 1, 0, x, sums, tops)
    y = x.flip(1) if reverse else x
    want = y.cumsum(1), y.cummax(1).values
    if reverse:
        want = want[0].flip(1), want[1].flip(1)
    assert torch.equal(sums.view(4, 16), want[0])
    assert torch.equal(tops.view(4, 16), want[1])


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("exp2", torch.exp2),
        ("rsqrt", torch.rsqrt),
        ("erf", torch.erf),
        ("tanh", torch.tanh),
        ("log1p", torch.log1p),
        ("fast_expf", torch.exp),
        ("lgamma", torch.lgamma),
        ("isnan", torch.isnan),
        ("rint", torch.round),
        ("ilogb", lambda x: torch.frexp(x).exponent - 1),
    ],
)
def test_libdevice_of_one_argument(
    run: Callable[..., torch.Tensor], name: str, reference: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """libdevice functions compute what torch's do."""
    x = torch.rand(64) * 3 + 0.1
    found = run(f"tl.store(out + i, libdevice.{name}(a).to(tl.float32))", torch.float32, x)
    assert torch.allclose(found, reference(x).float(), rtol=1e-5, atol=1e-6)


def test_libdevice_of_two_arguments(run: Callable[..., torch.Tensor]) -> None:
    """pow and fmod take two tensors; a number on one side is broadcast."""
    x, y = torch.rand(32) + 0.5, torch.rand(32) * 3
    assert torch.allclose(run("tl.store(out + i, libdevice.pow(a, b))", torch.float32, x, y), x**y)
    found = run("tl.store(out + i, libdevice.fmod(b, 0.7))", torch.float32, x, y)
    assert torch.allclose(found, torch.fmod(y, 0.7))


def test_an_unknown_libdevice_function_says_where_to_add_it(
    run: Callable[..., torch.Tensor],
) -> None:
    """What the table lacks is a named error, not a wrong number."""
    with pytest.raises(RunError, match="interpreted_math"):
        run("tl.store(out + i, libdevice.byte_perm(a, a, a))", torch.int32, torch.ones(4).int())


def test_device_assertions_fire(run: Callable[..., torch.Tensor]) -> None:
    """tl.device_assert stops the run with its message and the program's place."""
    with pytest.raises(AssertionError, match="index out of range") as caught:
        run('tl.device_assert(a < 3, "index out of range")', torch.float32, torch.arange(8.0))
    assert "program (0, 0, 0) of kernel k" in str(caught.value.__notes__)


def test_scalars_have_the_signatures_type(interpreted: MakeRequest) -> None:
    """An i64 scalar does not wrap at 32 bits, and an fp64 scalar keeps its digits."""
    text = """\
@triton.jit
def k(ints, floats, n, f):
    tl.store(ints, n * 3)
    tl.store(floats, f + 1)
"""
    signature = [("ints", "*i64"), ("floats", "*fp64"), ("n", "i64"), ("f", "fp64")]
    ints, floats = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.float64)
    launcher(interpreted(text, "k", signature))(1, 1, 1, 0, ints, floats, 2**31 - 1, 1e-12)
    assert ints.item() == 3 * (2**31 - 1)
    assert floats.item() == 1 + 1e-12


def test_bool_tensors_load_and_store(run: Callable[..., torch.Tensor]) -> None:
    """Bool tensors are bytes of zero and one."""
    x = torch.tensor([True, False] * 16)
    assert torch.equal(run("tl.store(out + i, a == 0)", torch.bool, x), ~x)


def test_a_binary_is_refused() -> None:
    """The interpreter says what it wants instead of a binary."""
    artifact = Artifact(b"", "cubin", KernelMetadata("k"))
    with pytest.raises(LaunchError, match="SourceRequest"):
        InterpreterRuntime().load_kernel(host.KernelDef("k", b"", ()), artifact)


def test_wrong_argument_count_is_refused(interpreted: MakeRequest) -> None:
    """A kernel that does not fit the program's call is an error before anything runs."""
    request = interpreted("@triton.jit\ndef k(out):\n    pass\n", "k", [("out", "*i32")])
    with pytest.raises(LaunchError, match="1 parameters"):
        launcher(request)(1, 1, 1, 0)


def test_helpers_of_the_device_library_are_interpreted() -> None:
    """Every jit function of the device library exists as an interpreted one."""
    from kernelfarm.compiler.seam import devicelib

    kf = language().kf
    names = [n for n, f in vars(devicelib).items() if type(f).__name__ == "JITFunction"]
    for name in names:
        assert type(getattr(kf, name)).__name__ == "InterpretedFunction", name
