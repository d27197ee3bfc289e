"""What one launch costs: torch's static launcher, the driver by ctypes, Triton's own.

    python benchmarks/launch.py

Times the host side only: many launches of a kernel of six arguments with nothing to wait for,
the best of several rounds, in microseconds per launch; then a printed program of 20 launches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from kernelfarm.compiler import host
from kernelfarm.compiler.host_plan import plan
from kernelfarm.compiler.runtime.contract import Launch
from kernelfarm.compiler.runtime.cuda import CudaRuntime
from kernelfarm.compiler.runtime.loader import load_program
from kernelfarm.compiler.seam.back import back_half
from kernelfarm.compiler.seam.front import front_half
from kernelfarm.compiler.seam.options import backend_options
from kernelfarm.compiler.seam.request import Artifact, SourceRequest
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import current_toolchain, devicelib_digest

TEXT = """\
@triton.jit
def kf_add4(a, b, c, out, n, m, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + i, i < n) + tl.load(b + i, i < n) + tl.load(c + i, i < m)
    tl.store(out + i, x, i < n)
"""
KINDS = ("*fp32", "*fp32", "*fp32", "*fp32", "i32", "i32")
NAMES = ("a", "b", "c", "out", "n", "m")
SIZE = 256
LAUNCHES = 2000


@triton.jit
def stock(a, b, c, out, n, m, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + i, i < n) + tl.load(b + i, i < n) + tl.load(c + i, i < m)
    tl.store(out + i, x, i < n)


def compile_kernel() -> Artifact:
    """Compile the kernel for this machine's GPU."""
    major, minor = torch.cuda.get_device_capability()
    target = Target.parse(f"sm_{major}{minor}")
    return back_half(
        front_half(
            SourceRequest(
                text=TEXT,
                helper_digest=devicelib_digest(),
                entry="kf_add4",
                signature=(*zip(NAMES, KINDS, strict=True), ("BLOCK", "constexpr")),
                constexprs=(("BLOCK", SIZE),),
                attributes=tuple((i, (("tt.divisibility", 16),)) for i in range(4)),
                options=backend_options(target),
                target=target,
                toolchain=current_toolchain(target),
            )
        )
    )


def best(run: Callable[[], Any], count: int, rounds: int = 7) -> float:
    """Return the best round's microseconds for each of ``count`` repetitions inside ``run``."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times) / count * 1e6


def launches(launch: Launch, args: tuple[Any, ...], stream: int) -> float:
    """Time a launch function."""

    def run() -> None:
        for _ in range(LAUNCHES):
            launch(1, 1, 1, stream, *args)

    run()
    return best(run, LAUNCHES)


def chain(length: int) -> host.HostProgram:
    """A program of ``length`` launches, each on the result of the one before."""
    spec = host.TensorSpec((SIZE,), (1,), "float32")
    lines: list[host.Line] = []
    source = "x"
    for i in range(length):
        refs = (host.Ref(source), host.Ref("x"), host.Ref("x"), host.Ref(f"b{i}"))
        lines.append(host.Allocate(f"b{i}", spec))
        lines.append(host.KernelCall(0, (*refs, SIZE, SIZE), host.GridSpec(1)))
        source = f"b{i}"
    kernel = host.KernelDef("kf_add4", b"", KINDS)
    inputs = (host.Input("x", spec),)
    return plan(host.HostProgram(inputs, (), (kernel,), tuple(lines), (host.Ref(source),)))


def main() -> None:
    """Print the table."""
    artifact = compile_kernel()
    tensors = tuple(torch.ones(SIZE, device="cuda") for _ in range(4))
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    stream = torch.cuda.current_stream().cuda_stream
    kdef = host.KernelDef("kf_add4", b"", KINDS)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    for name, static in (("static launcher", True), ("driver by ctypes", False)):
        launch = CudaRuntime(static=static).load_kernel(kdef, artifact).on_device(0)
        by_address = launches(launch, (*addresses, SIZE, SIZE), stream)
        by_tensor = launches(launch, (*tensors, SIZE, SIZE), stream)
        print(f"{name:18} {by_address:6.2f} us by address, {by_tensor:6.2f} us by tensor")

    def triton_launches() -> None:
        for _ in range(LAUNCHES):
            stock[(1,)](*tensors, SIZE, SIZE, BLOCK=SIZE)

    triton_launches()
    print(f"{'triton.jit':18} {best(triton_launches, LAUNCHES):6.2f} us")
    for name, static in (("static", True), ("driver", False)):
        call = load_program(chain(20), [artifact], CudaRuntime(static=static))
        print(f"program of 20 launches, {name}: {calls(call, tensors[0]):.1f} us a call")


def calls(call: Callable[[list[Any]], list[Any]], x: torch.Tensor) -> float:
    """Time a program's call."""

    def run() -> None:
        for _ in range(200):
            call([x])

    run()
    return best(run, 200)


if __name__ == "__main__":
    main()
