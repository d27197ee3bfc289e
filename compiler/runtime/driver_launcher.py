"""Launching through the CUDA driver: everything that a Triton kernel may ask for.

Slower per launch than torch's static launcher, but complete: more than 48 KB of shared memory,
clusters, cooperative grids, programmatic serialisation, scratch memory, half-precision scalars.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from ..seam.request import Artifact
from . import driver_api as api
from .contract import Launch

#: How a scalar argument is packed. Every argument has an 8-byte slot of its own.
_FORMATS = {
    "i1": "B",
    "u1": "B",
    "i8": "b",
    "u8": "B",
    "i16": "h",
    "u16": "H",
    "i32": "i",
    "u32": "I",
    "i64": "q",
    "u64": "Q",
    "fp16": "e",
    "bf16": "H",
    "fp32": "f",
    "f32": "f",
    "fp64": "d",
}
#: Scratch pointers that Triton appends to the parameters of every kernel: global and profiling.
_SCRATCH = 2
_STATIC_SHARED = 48 * 1024

#: Returns something with ``data_ptr()`` for a number of bytes on the current device and stream.
ScratchAllocator = Callable[[int], Any]


class ArgumentPacker:
    """Turns launch arguments into the driver's array of pointers to values.

    Frames are taken from a pool and put back, since filling one is cheaper than making one; the
    driver copies the values before the launch call returns. Threads never share a frame.
    """

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self._layout = struct.Struct("<" + "".join(_slot(kind) for kind in kinds) + "Q" * _SCRATCH)
        self._kinds = kinds
        self._count = len(kinds) + _SCRATCH
        self._convert = tuple(_converter(kind) for kind in kinds)
        self._pool: list[tuple[Any, Any]] = []

    def take(self, args: tuple[Any, ...], scratch: tuple[int, int]) -> tuple[Any, Any]:
        """Return a (pointers, storage) frame that holds ``args``; give it back after the launch."""
        try:
            frame = self._pool.pop()
        except IndexError:
            frame = self._make()
        values = [convert(arg) for convert, arg in zip(self._convert, args, strict=True)]
        self._layout.pack_into(frame[1], 0, *values, *scratch)
        return frame

    def give_back(self, frame: tuple[Any, Any]) -> None:
        """Return a frame to the pool."""
        self._pool.append(frame)

    def _make(self) -> tuple[Any, Any]:
        storage = (ctypes.c_uint64 * self._count)()
        base = ctypes.addressof(storage)
        pointers = (ctypes.c_void_p * self._count)(*(base + 8 * i for i in range(self._count)))
        return pointers, storage


def _slot(kind: str) -> str:
    code = "Q" if kind.startswith("*") else _FORMATS[kind]
    padding = 8 - struct.calcsize(code)
    return code + f"{padding}x" * bool(padding)


def _address(value: Any) -> int:
    if type(value) is int:
        return value
    return 0 if value is None else int(value.data_ptr())


def _bfloat16_bits(value: float) -> int:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    if value != value:
        return 0x7FC0
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def _identity(value: Any) -> Any:
    return value


def _converter(kind: str) -> Callable[[Any], Any]:
    if kind.startswith("*"):
        return _address
    return _bfloat16_bits if kind == "bf16" else _identity


def load_with_driver(
    driver: api.Driver,
    artifact: Artifact,
    kinds: tuple[str, ...],
    index: int,
    allocate: ScratchAllocator,
) -> Launch:
    """Load an artifact on device ``index`` and return its launch function.

    Raises LaunchError, naming the kernel and the next step, when the driver refuses it.
    """
    name = artifact.metadata.name
    function = driver.load(name, artifact.binary, index)
    _allow_shared(driver, artifact, function, index)
    if artifact.metadata.num_ctas == 16:
        # Clusters of more than eight blocks are outside what the driver promises everywhere.
        number = api.FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        driver.call(name, "cuFuncSetAttribute", function, number, 1)
    packer = ArgumentPacker(kinds)
    attributes = launch_attributes(artifact)
    send = (
        _plain(driver, artifact, function)
        if not attributes
        else _extended(driver, artifact, function, attributes)
    )
    return _with_arguments(artifact, packer, send, allocate)


def _allow_shared(driver: api.Driver, artifact: Artifact, function: int, index: int) -> None:
    """Raise the kernel's limit of dynamic shared memory beyond the default 48 KB if need be."""
    name, wanted = artifact.metadata.name, artifact.metadata.shared
    if wanted <= _STATIC_SHARED:
        return
    limit = driver.device_attribute(name, api.DEVICE_MAX_SHARED_PER_BLOCK_OPTIN, index)
    fixed = driver.function_attribute(name, api.FUNC_SHARED_SIZE_BYTES, function)
    if wanted > limit - fixed:
        driver.check(name, f"asking for {wanted} of {limit - fixed} bytes of shared memory", 701)
    number = api.FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.call(name, "cuFuncSetAttribute", function, number, limit - fixed)


def launch_attributes(artifact: Artifact) -> tuple[api.LaunchAttribute, ...]:
    """Return the launch attributes a kernel needs; none means the plain launch call will do."""
    meta = artifact.metadata
    found = []
    if meta.pdl:
        found.append(api.attribute(api.LAUNCH_PROGRAMMATIC_SERIALIZATION, 1))
    if meta.cooperative:
        found.append(api.attribute(api.LAUNCH_COOPERATIVE, 1))
    if meta.num_ctas != 1:
        found.append(api.attribute(api.LAUNCH_CLUSTER_DIMENSION, meta.num_ctas, 1, 1))
        spread = api.CLUSTER_SCHEDULING_SPREAD
        found.append(api.attribute(api.LAUNCH_CLUSTER_SCHEDULING, spread))
    return tuple(found)


_Send = Callable[[int, int, int, int, Any], None]


def _plain(driver: api.Driver, artifact: Artifact, function: int) -> _Send:
    meta = artifact.metadata
    threads, shared, launch = meta.num_warps * meta.warp_size, meta.shared, driver.launch_kernel

    def send(x: int, y: int, z: int, stream: int, pointers: Any) -> None:
        status = launch(function, x, y, z, threads, 1, 1, shared, stream, pointers, None)
        if status:
            driver.check(meta.name, "cuLaunchKernel", status)

    return send


def _extended(
    driver: api.Driver,
    artifact: Artifact,
    function: int,
    attributes: tuple[api.LaunchAttribute, ...],
) -> _Send:
    meta = artifact.metadata
    listed = (api.LaunchAttribute * len(attributes))(*attributes)

    def send(x: int, y: int, z: int, stream: int, pointers: Any) -> None:
        config = api.LaunchConfig(
            # The grid counts clusters for the program and blocks for the driver.
            grid_x=x * meta.num_ctas,
            grid_y=y,
            grid_z=z,
            block_x=meta.num_warps * meta.warp_size,
            block_y=1,
            block_z=1,
            shared=meta.shared,
            stream=stream,
            attributes=listed,
            attribute_count=len(attributes),
        )
        status = driver.launch_kernel_ex(ctypes.byref(config), function, pointers, None)
        driver.check(meta.name, "cuLaunchKernelEx", status)

    return send


def _with_arguments(
    artifact: Artifact, packer: ArgumentPacker, send: _Send, allocate: ScratchAllocator
) -> Launch:
    meta = artifact.metadata
    sizes = (meta.global_scratch_size, meta.profile_scratch_size)

    def launch(x: int, y: int, z: int, stream: int, *args: Any) -> None:
        frame = packer.take(args, (0, 0))
        send(x, y, z, stream, frame[0])
        packer.give_back(frame)

    def launch_with_scratch(x: int, y: int, z: int, stream: int, *args: Any) -> None:
        programs = x * y * z * meta.num_ctas
        # Freed after the launch is queued: torch's allocator hands memory out in stream order.
        held = [allocate(programs * size) if size else None for size in sizes]
        frame = packer.take(args, (_address(held[0]), _address(held[1])))
        send(x, y, z, stream, frame[0])
        packer.give_back(frame)

    return launch_with_scratch if any(sizes) else launch
