"""On a GPU: both launchers, big shared memory, clusters, alignment, a second device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from kernelfarm.compiler import host
from kernelfarm.compiler.host_errors import RunError
from kernelfarm.compiler.host_plan import plan
from kernelfarm.compiler.runtime.loader import load_program
from kernelfarm.compiler.seam.request import Artifact, SourceRequest

pytestmark = pytest.mark.gpu

SCALE = """\
@triton.jit
def kf_scale(a, out, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, i < n) * factor, i < n)
"""
SCALE_KINDS = (("a", "*fp32"), ("out", "*fp32"), ("n", "i32"), ("factor", "fp32"))

MATMUL = """\
@triton.jit
def kf_matmul(a, b, out, K, BLOCK: tl.constexpr, STEP: tl.constexpr):
    r = tl.arange(0, BLOCK)
    k = tl.arange(0, STEP)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, K, STEP):
        x = tl.load(a + r[:, None] * K + start + k[None, :])
        y = tl.load(b + (start + k[:, None]) * BLOCK + r[None, :])
        total += tl.dot(x, y)
    tl.store(out + r[:, None] * BLOCK + r[None, :], total)
"""

FAR = """\
@triton.jit
def kf_far(out):
    place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    if place == tl.num_programs(0).to(tl.int64) * tl.num_programs(1) - 1:
        tl.store(out, 1)
"""


@pytest.fixture(scope="module")
def build() -> Callable[..., Artifact]:
    """Compile a kernel for the GPU of this machine: ``build(text, entry, signature, ...)``."""
    from kernelfarm.compiler.seam.back import back_half
    from kernelfarm.compiler.seam.front import front_half
    from kernelfarm.compiler.seam.options import backend_options
    from kernelfarm.compiler.seam.target import Target
    from kernelfarm.compiler.seam.toolchain import current_toolchain, devicelib_digest

    major, minor = torch.cuda.get_device_capability()
    target = Target.parse(f"sm_{major}{minor}")

    def make(
        text: str,
        entry: str,
        signature: Sequence[tuple[str, str]],
        constexprs: dict[str, Any] | None = None,
        **options: Any,
    ) -> Artifact:
        fixed = constexprs or {}
        aligned = tuple(
            (i, (("tt.divisibility", 16),)) for i, (_, k) in enumerate(signature) if k[0] == "*"
        )
        request = SourceRequest(
            text=text,
            helper_digest=devicelib_digest(),
            entry=entry,
            signature=(*signature, *((name, "constexpr") for name in fixed)),
            constexprs=tuple(fixed.items()),
            attributes=aligned,
            options=backend_options(target, **options),
            target=target,
            toolchain=current_toolchain(target),
        )
        return back_half(front_half(request))

    return make


@pytest.fixture(params=[True, False], ids=["static", "driver"])
def runtime(request: pytest.FixtureRequest) -> Any:
    """The CUDA runtime with and without torch's static launcher."""
    from kernelfarm.compiler.runtime.cuda import CudaRuntime

    return CudaRuntime(static=request.param)


def kernel(runtime: Any, artifact: Artifact, kinds: Sequence[tuple[str, str]]) -> Any:
    kdef = host.KernelDef(artifact.metadata.name, b"", tuple(kind for _, kind in kinds))
    return runtime.load_kernel(kdef, artifact)


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def test_a_kernel_computes(runtime: Any, build: Callable[..., Artifact]) -> None:
    """Tensors, addresses, integers and floats arrive; the grid covers everything."""
    launch = kernel(runtime, build(SCALE, "kf_scale", SCALE_KINDS, {"BLOCK": 256}), SCALE_KINDS)
    x = torch.randn(1000, device="cuda")
    for form in (lambda t: t, torch.Tensor.data_ptr):
        out = torch.zeros_like(x)
        launch(4, 1, 1, stream(), form(x), form(out), 1000, 2.5)
        assert torch.equal(out, x * 2.5)


def test_more_than_48_kb_of_shared_memory(runtime: Any, build: Callable[..., Artifact]) -> None:
    """A pipelined matrix product that needs more than the default limit runs and is right."""
    kinds = (("a", "*bf16"), ("b", "*bf16"), ("out", "*fp32"), ("K", "i32"))
    made = build(MATMUL, "kf_matmul", kinds, {"BLOCK": 128, "STEP": 64}, num_stages=4, num_warps=8)
    assert made.metadata.shared > 48 * 1024
    a = torch.randn(128, 512, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(512, 128, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(128, 128, device="cuda")
    kernel(runtime, made, kinds)(1, 1, 1, stream(), a, b, out, 512)
    assert torch.allclose(out, a.float() @ b.float(), rtol=1e-2, atol=1e-1)


def test_clusters(runtime: Any, build: Callable[..., Artifact]) -> None:
    """Two blocks a cluster launch through the driver and compute the same."""
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("clusters need compute capability 9.0")
    made = build(SCALE, "kf_scale", SCALE_KINDS, {"BLOCK": 256}, num_ctas=2)
    assert made.metadata.num_ctas == 2
    x = torch.randn(1000, device="cuda")
    out = torch.zeros_like(x)
    kernel(runtime, made, SCALE_KINDS)(4, 1, 1, stream(), x, out, 1000, 2.0)
    assert torch.equal(out, x * 2)


def test_a_grid_beyond_2_to_the_31_is_launched(
    runtime: Any, build: Callable[..., Artifact]
) -> None:
    """A grid whose product overflows 32 bits runs to its last program."""
    kinds = (("out", "*i32"),)
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    kernel(runtime, build(FAR, "kf_far", kinds), kinds)(2**17, 2**15, 1, stream(), out)
    assert out.item() == 1


def program(spec: host.TensorSpec) -> host.HostProgram:
    """out = relu(3 * x + c), the factor by a kernel, the rest by operators."""
    size = host.TensorSpec((1024,), (1,), "float32")
    data = torch.full((1024,), -0.5).numpy().tobytes()
    return plan(
        host.HostProgram(
            (host.Input("x", spec),),
            (host.Constant("c", size, data),),
            (host.KernelDef("kf_scale", b"", tuple(kind for _, kind in SCALE_KINDS)),),
            (
                host.Allocate("scaled", size),
                host.KernelCall(0, (host.Ref("x"), host.Ref("scaled"), 1024, 3), host.GridSpec(4)),
                host.ExternCall("total", "aten.add.Tensor", (host.Ref("scaled"), host.Ref("c"))),
                host.ExternCall("y", "aten.relu.default", (host.Ref("total"),)),
            ),
            (host.Ref("y"),),
        )
    )


def test_a_program_runs_and_copies_a_misaligned_input(
    runtime: Any, build: Callable[..., Artifact]
) -> None:
    """A whole program is right for aligned inputs and for x[1:], on the caller's stream."""
    artifact = build(SCALE, "kf_scale", SCALE_KINDS, {"BLOCK": 256})
    call = load_program(program(host.TensorSpec((1024,), (1,), "float32")), [artifact], runtime)
    base = torch.randn(1030, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    for start in range(5):
        x = base[start : start + 1024]
        with torch.cuda.stream(side):
            (found,) = call([x])
        side.synchronize()
        assert torch.equal(found, torch.relu(x * 3 - 0.5))


def test_a_program_captures_in_a_graph(runtime: Any, build: Callable[..., Artifact]) -> None:
    """A loaded program launches without anything that a stream capture forbids."""
    artifact = build(SCALE, "kf_scale", SCALE_KINDS, {"BLOCK": 256})
    call = load_program(program(host.TensorSpec((1024,), (1,), "float32")), [artifact], runtime)
    x = torch.randn(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (found,) = call([x])
    x.copy_(torch.randn(1024, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, torch.relu(x * 3 - 0.5))


def test_one_program_serves_two_devices(runtime: Any, build: Callable[..., Artifact]) -> None:
    """A program loaded while cuda:0 is current runs where its input lies, and back again."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    artifact = build(SCALE, "kf_scale", SCALE_KINDS, {"BLOCK": 256})
    call = load_program(program(host.TensorSpec((1024,), (1,), "float32")), [artifact], runtime)
    for index in (1, 0, 1):
        x = torch.randn(1024, device=f"cuda:{index}")
        (found,) = call([x])
        assert found.device == x.device
        assert torch.equal(found, torch.relu(x * 3 - 0.5))
        assert torch.cuda.current_device() == 0


def test_a_cpu_input_is_named(runtime: Any, build: Callable[..., Artifact]) -> None:
    """A CPU tensor where a GPU tensor is due is an error that says so."""
    artifact = build(SCALE, "kf_scale", SCALE_KINDS, {"BLOCK": 256})
    call = load_program(program(host.TensorSpec((1024,), (1,), "float32")), [artifact], runtime)
    with pytest.raises(RunError, match="lies on the CPU"):
        call([torch.randn(1024)])
