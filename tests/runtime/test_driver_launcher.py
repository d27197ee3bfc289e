"""The driver launcher against a driver that records what it is asked."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kernelfarm.compiler.host_errors import LaunchError
from kernelfarm.compiler.runtime import driver_api as api
from kernelfarm.compiler.runtime.driver_launcher import (
    ArgumentPacker,
    launch_attributes,
    load_with_driver,
)
from kernelfarm.compiler.seam.request import Artifact, KernelMetadata

OPTIN, FIXED = 227 * 1024, 1024


@dataclass
class FakeLibrary:
    """libcuda, as far as it is called: records calls, answers from tables, fails on demand."""

    formats: str = ""
    fails: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    launches: list[dict[str, Any]] = field(default_factory=list)
    current: list[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        handler = getattr(type(self), f"on_{name}", None)

        def function(*args: Any) -> int:
            self.calls.append((name, *args))
            if name in self.fails:
                return self.fails[name]
            if handler is not None:
                handler(self, *args)
            return 0

        self.__dict__[name] = function
        return function

    def on_cuDriverGetVersion(self, out: Any) -> None:
        out._obj.value = 12080

    def on_cuDeviceGet(self, out: Any, ordinal: int) -> None:
        out._obj.value = ordinal

    def on_cuDevicePrimaryCtxRetain(self, out: Any, device: int) -> None:
        out._obj.value = 100 + device

    def on_cuCtxPushCurrent_v2(self, context: int) -> None:
        self.current.append(context)

    def on_cuCtxPopCurrent_v2(self, out: Any) -> None:
        self.current.pop()

    def on_cuModuleLoadData(self, out: Any, binary: bytes) -> None:
        out._obj.value = 1000

    def on_cuModuleGetFunction(self, out: Any, module: Any, name: bytes) -> None:
        out._obj.value = self.current[-1] * 10

    def on_cuDeviceGetAttribute(self, out: Any, which: int, device: int) -> None:
        out._obj.value = {api.DEVICE_MAX_SHARED_PER_BLOCK_OPTIN: OPTIN}[which]

    def on_cuFuncGetAttribute(self, out: Any, which: int, function: int) -> None:
        out._obj.value = {api.FUNC_SHARED_SIZE_BYTES: FIXED}[which]

    def on_cuGetErrorName(self, status: int, out: Any) -> None:
        out._obj.value = f"CUDA_ERROR_{status}".encode()

    def _values(self, pointers: Any) -> list[Any]:
        found = []
        for code, pointer in zip(self.formats, pointers, strict=True):
            data = ctypes.string_at(pointer, struct.calcsize(code))
            found.append(struct.unpack("<" + code, data)[0])
        return found

    def on_cuLaunchKernel(self, function: int, *rest: Any) -> None:
        *numbers, stream, pointers, extra = rest
        assert extra is None
        self.launches.append(
            {
                "function": function,
                "grid": tuple(numbers[:3]),
                "block": tuple(numbers[3:6]),
                "shared": numbers[6],
                "stream": stream,
                "args": self._values(pointers),
            }
        )

    def on_cuLaunchKernelEx(self, config: Any, function: int, pointers: Any, extra: Any) -> None:
        c = config._obj
        attributes = [c.attributes[i] for i in range(c.attribute_count)]
        self.launches.append(
            {
                "function": function,
                "grid": (c.grid_x, c.grid_y, c.grid_z),
                "block": (c.block_x, c.block_y, c.block_z),
                "shared": c.shared,
                "stream": c.stream,
                "attributes": [(a.id, list(a.value[:3])) for a in attributes],
                "args": self._values(pointers),
            }
        )


class Tensor:
    """Something with an address."""

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def artifact(**meta: Any) -> Artifact:
    return Artifact(b"\x7fELF", "cubin", KernelMetadata("kern", **meta))


def load(
    library: FakeLibrary, made: Artifact, kinds: tuple[str, ...] = (), index: int = 0
) -> Callable[..., None]:
    def allocate(size: int) -> Tensor:
        library.calls.append(("allocate", size))
        return Tensor(0xABC000)

    return load_with_driver(api.Driver(library), made, kinds, index, allocate)


def test_every_kind_of_argument_is_packed() -> None:
    """Pointers, integers, floats and halves land in the parameters as the kernel reads them."""
    kinds = ("*fp32", "*ki8", "*fp32", "i1", "i8", "i32", "i64", "u8", "u32", "u64")
    kinds = (*kinds, "fp16", "bf16", "fp32", "fp64")
    library = FakeLibrary("QQQ?biqBIQ" + "eHfd" + "QQ")
    args = (4096, Tensor(2**40), None, 1, -7, -(2**31), -(2**63), 255, 2**32 - 1, 2**64 - 1)
    load(library, artifact(), kinds)(2, 3, 4, 77, *args, 0.5, 1.0, 0.25, 1e-300)
    (launch,) = library.launches
    assert launch["args"] == [
        *(4096, 2**40, 0, True, -7, -(2**31), -(2**63), 255, 2**32 - 1, 2**64 - 1),
        *(0.5, 0x3F80, 0.25, 1e-300),
        *(0, 0),  # the two scratch pointers that Triton appends
    ]
    assert launch["grid"] == (2, 3, 4)
    assert launch["stream"] == 77


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (float("nan"), 0x7FC0)],
)
def test_bfloat16_scalars_round_to_nearest_even(value: float, bits: int) -> None:
    """A bfloat16 scalar is rounded as the hardware would."""
    library = FakeLibrary("HQQ")
    load(library, artifact(), ("bf16",))(1, 1, 1, 0, value)
    assert library.launches[0]["args"][0] == bits


def test_block_and_shared_memory_come_from_the_metadata() -> None:
    """Threads are warps times warp size; dynamic shared memory is what the kernel asked for."""
    library = FakeLibrary("QQ")
    load(library, artifact(num_warps=8, shared=4096))(1, 1, 1, 0)
    (launch,) = library.launches
    assert launch["block"] == (256, 1, 1)
    assert launch["shared"] == 4096
    assert not any(call[0] == "cuFuncSetAttribute" for call in library.calls)


def test_much_shared_memory_is_allowed_first() -> None:
    """Beyond 48 KB the kernel's limit is raised to what the device has beside its static part."""
    library = FakeLibrary("QQ")
    load(library, artifact(shared=100 * 1024))
    wanted = ("cuFuncSetAttribute", 1000, api.FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, OPTIN - FIXED)
    assert wanted in library.calls


def test_too_much_shared_memory_names_kernel_and_cure() -> None:
    """More shared memory than the device has is a LaunchError before any launch."""
    with pytest.raises(
        LaunchError, match=r"kernel kern.*shared memory.*this GPU's model"
    ) as caught:
        load(FakeLibrary("QQ"), artifact(shared=OPTIN))
    assert caught.value.kernel == "kern"


def test_clusters_use_the_extended_launch() -> None:
    """num_ctas multiplies the grid and becomes a cluster attribute, spread over the GPU."""
    library = FakeLibrary("QQQ")
    load(library, artifact(num_ctas=2), ("*fp32",))(3, 4, 5, 9, 4096)
    (launch,) = library.launches
    assert launch["grid"] == (6, 4, 5)
    assert launch["attributes"] == [
        (api.LAUNCH_CLUSTER_DIMENSION, [2, 1, 1]),
        (api.LAUNCH_CLUSTER_SCHEDULING, [1, 0, 0]),
    ]
    assert launch["args"] == [4096, 0, 0]
    assert launch["stream"] == 9


def test_cooperative_and_serialised_launches() -> None:
    """Both flags become launch attributes; an ordinary kernel has none."""
    found = launch_attributes(artifact(cooperative=True, pdl=True))
    assert [a.id for a in found] == [
        api.LAUNCH_PROGRAMMATIC_SERIALIZATION,
        api.LAUNCH_COOPERATIVE,
    ]
    assert launch_attributes(artifact()) == ()


def test_large_clusters_are_allowed_explicitly() -> None:
    """Sixteen blocks a cluster is outside the portable size and must be permitted."""
    library = FakeLibrary("QQ")
    load(library, artifact(num_ctas=16))
    number = api.FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    assert ("cuFuncSetAttribute", 1000, number, 1) in library.calls


def test_scratch_memory_is_allocated_per_program() -> None:
    """Global and profiling scratch are allocated for the whole grid and passed last."""
    library = FakeLibrary("QQ")
    made = artifact(num_ctas=2, global_scratch_size=64, profile_scratch_size=8)
    load(library, made)(2, 3, 1, 0)
    assert [c for c in library.calls if c[0] == "allocate"] == [
        ("allocate", 2 * 3 * 2 * 64),
        ("allocate", 2 * 3 * 2 * 8),
    ]
    assert library.launches[0]["args"] == [0xABC000, 0xABC000]


def test_a_kernel_is_loaded_into_its_devices_primary_context() -> None:
    """Each device has its own module; the caller's context is current again afterwards."""
    library = FakeLibrary("QQ")
    driver = api.Driver(library)
    for index in (0, 1, 1):
        load_with_driver(driver, artifact(), (), index, Tensor)(1, 1, 1, 0)
    assert [launch["function"] for launch in library.launches] == [1000, 1010, 1010]
    assert library.current == []
    retained = [call for call in library.calls if call[0] == "cuDevicePrimaryCtxRetain"]
    assert len(retained) == 2, "a primary context is retained once for each device"


@pytest.mark.parametrize(
    ("call", "status", "advice"),
    [
        ("cuModuleLoadData", 209, "another GPU architecture"),
        ("cuModuleLoadData", 222, "newer driver"),
        ("cuModuleLoadData", 200, "damaged"),
        ("cuModuleGetFunction", 500, "report this error"),
    ],
)
def test_a_refused_binary_says_what_to_do(call: str, status: int, advice: str) -> None:
    """Driver errors while loading name the kernel, the call, the error and the next step."""
    library = FakeLibrary("QQ", fails={call: status})
    with pytest.raises(LaunchError, match=advice) as caught:
        load(library, artifact())
    assert f"{call} failed with CUDA_ERROR_{status}" in caught.value.reason
    assert library.current == [], "the context is popped after an error too"


def test_a_failed_launch_says_what_to_do() -> None:
    """An error of the launch itself is raised at once and names the kernel."""
    library = FakeLibrary("QQ", fails={"cuLaunchKernel": 701})
    with pytest.raises(LaunchError, match=r"kern.*cuLaunchKernel.*CUDA_ERROR_701"):
        load(library, artifact())(1, 1, 1, 0)


def test_frames_are_reused_and_never_shared() -> None:
    """A frame in use is not handed out again; a returned one is."""
    packer = ArgumentPacker(("i32",))
    first = packer.take((1,), (0, 0))
    second = packer.take((2,), (0, 0))
    assert first[1] is not second[1]
    packer.give_back(first)
    assert packer.take((3,), (0, 0))[1] is first[1]


def test_a_number_that_does_not_fit_its_type_is_an_error() -> None:
    """An i32 argument of 2**31 does not wrap around silently."""
    library = FakeLibrary("iQQ")
    launch = load(library, artifact(), ("i32",))
    with pytest.raises(struct.error):
        launch(1, 1, 1, 0, 2**31)
    assert library.launches == []


def test_the_static_launcher_is_asked_only_for_what_it_can_do() -> None:
    """Clusters, scratch, cooperative grids and half-precision scalars go to the driver."""
    from kernelfarm.compiler.runtime.static_launcher import can_launch

    assert can_launch(artifact(), ("*fp32", "i32", "fp64"))
    assert not can_launch(artifact(), ("bf16",))
    assert not can_launch(replace(artifact(), kind="hsaco"), ())
    for field_name, value in (
        ("num_ctas", 2),
        ("global_scratch_size", 8),
        ("profile_scratch_size", 8),
        ("cooperative", True),
        ("pdl", True),
        ("tensordesc_meta", ((),)),
    ):
        assert not can_launch(artifact(**{field_name: value}), ())


class StaticLauncher:
    """torch's launcher as it looks from Python; ``width`` is how many values a load returns."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.files: list[tuple[str, bytes]] = []
        self.launched: list[tuple[Any, ...]] = []

    def _load_kernel(self, path: str, name: str, shared: int, device: int) -> tuple[int, ...]:
        with open(path, "rb") as file:
            self.files.append((path, file.read()))
        return (11, 22, 33, 44)[-self.width :]

    def _launch_kernel(self, *args: Any) -> None:
        self.launched.append(args)


@pytest.mark.parametrize("width", [3, 4])
def test_the_static_launcher_gets_a_file_and_two_null_pointers(width: int) -> None:
    """The binary passes through a private file that is gone afterwards; both torch forms load."""
    from pathlib import Path

    from kernelfarm.compiler.runtime.static_launcher import load_static

    static = StaticLauncher(width)
    large: list[tuple[Any, ...]] = []
    made = artifact(num_warps=8, shared=64)
    launch = load_static(
        static, made, ("*fp32", "i64", "fp64"), 0, lambda *args: large.append(args)
    )
    launch(2, 3, 4, 77, 4096, 5, 0.5)
    ((path, data),) = static.files
    assert data == made.binary
    assert not Path(path).exists() and not Path(path).parent.exists()
    assert static.launched == [
        (22, 2, 3, 4, 8, 64, "OldOO", (4096, 5, 0.5, None, None), 77),
    ]
    # A grid of 2**31 programs overflows in the static launcher, which then launches nothing.
    launch(2**16, 2**15, 1, 77, 4096, 5, 0.5)
    assert len(static.launched) == 1
    assert large == [(2**16, 2**15, 1, 77, 4096, 5, 0.5)]


def test_a_driver_that_is_too_old_is_found_before_loading() -> None:
    """A binary that needs a newer driver is refused with both versions and the next step."""
    from kernelfarm.compiler.host import KernelDef
    from kernelfarm.compiler.runtime.cuda import CudaRuntime

    library = FakeLibrary("QQ")
    runtime = CudaRuntime(static=False, driver=api.Driver(library))
    kdef = KernelDef("kern", b"", ())
    made = artifact()
    runtime.load_kernel(kdef, replace(made, min_driver=12080))
    with pytest.raises(LaunchError, match=r"CUDA 13\.0.*is 12\.8; update the driver"):
        runtime.load_kernel(kdef, replace(made, min_driver=13000))
    with pytest.raises(LaunchError, match="no CUDA binary"):
        runtime.load_kernel(kdef, replace(made, kind="hsaco"))
    assert not any(call[0] == "cuModuleLoadData" for call in library.calls)


def test_a_kernel_loads_once_on_each_device_and_skips_empty_grids() -> None:
    """Loading waits for the first launch on a device, and an empty grid does not launch."""
    from kernelfarm.compiler.host import KernelDef
    from kernelfarm.compiler.runtime.cuda import CudaRuntime

    library = FakeLibrary("QQ")
    runtime = CudaRuntime(static=False, driver=api.Driver(library))
    kernel = runtime.load_kernel(KernelDef("kern", b"", ()), artifact())
    assert not any(call[0] == "cuModuleLoadData" for call in library.calls)
    for index in (0, 1, 0):
        kernel.on_device(index)(1, 1, 1, 0)
    runtime.current_device = lambda: 1
    kernel(1, 1, 1, 0)
    kernel(1, 0, 1, 0)
    assert [launch["function"] for launch in library.launches] == [1000, 1010, 1000, 1010]
    assert sum(call[0] == "cuModuleLoadData" for call in library.calls) == 2
