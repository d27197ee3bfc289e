"""The few calls of the CUDA driver that loading and launching need, by ctypes.

No C compiler is involved at any time. ``Driver`` takes the library as an argument, so tests hand it
a fake that records what it was called with.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from ..host_errors import LaunchError

# Numbers of cuda.h.
FUNC_SHARED_SIZE_BYTES = 1
FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
DEVICE_MAX_SHARED_PER_BLOCK_OPTIN = 97
LAUNCH_COOPERATIVE = 2
LAUNCH_CLUSTER_DIMENSION = 4
LAUNCH_CLUSTER_SCHEDULING = 5
LAUNCH_PROGRAMMATIC_SERIALIZATION = 6
CLUSTER_SCHEDULING_SPREAD = 1

#: Driver errors whose cause and cure are known.
_ADVICE = {
    2: "the GPU is out of memory; free some and load again",
    200: "the stored binary is damaged or no cubin; run `kernelfarm fsck` and compile again",
    209: "the binary was built for another GPU architecture; compile for this one "
    "(`kernelfarm doctor` names it)",
    218: "the binary needs a newer driver or is damaged; update the driver or compile again with "
    "an older toolkit",
    222: "the binary needs a newer driver; update it or compile again with an older toolkit",
    700: "an earlier kernel read or wrote outside its memory; run with CUDA_LAUNCH_BLOCKING=1 to "
    "find it",
    701: "the kernel needs more registers, shared memory or clusters than this GPU has; compile "
    "for this GPU's model",
}


class LaunchAttribute(ctypes.Structure):
    """``CUlaunchAttribute``: an id, then a 64-byte value aligned to 8."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16))


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        *((f"grid_{axis}", ctypes.c_uint) for axis in "xyz"),
        *((f"block_{axis}", ctypes.c_uint) for axis in "xyz"),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )


def attribute(number: int, *values: int) -> LaunchAttribute:
    """Return a launch attribute holding up to 16 32-bit values."""
    made = LaunchAttribute()
    made.id = number
    for i, value in enumerate(values):
        made.value[i] = value
    return made


_U = ctypes.c_uint
_P = ctypes.c_void_p
_ARGUMENT_TYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_U,),
    "cuDriverGetVersion": (_P,),
    "cuDeviceGet": (_P, ctypes.c_int),
    "cuDeviceGetAttribute": (_P, ctypes.c_int, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_P, ctypes.c_int),
    "cuCtxGetCurrent": (_P,),
    "cuCtxPushCurrent_v2": (_P,),
    "cuCtxPopCurrent_v2": (_P,),
    "cuModuleLoadData": (_P, ctypes.c_char_p),
    "cuModuleGetFunction": (_P, _P, ctypes.c_char_p),
    "cuFuncGetAttribute": (_P, ctypes.c_int, _P),
    "cuFuncSetAttribute": (_P, ctypes.c_int, ctypes.c_int),
    "cuLaunchKernel": (_P, _U, _U, _U, _U, _U, _U, _U, _P, _P, _P),
    "cuLaunchKernelEx": (_P, _P, _P, _P),
    "cuGetErrorName": (ctypes.c_int, _P),
}


class Driver:
    """Checked calls into libcuda; an error becomes a LaunchError that names kernel and cure."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._contexts: dict[int, int] = {}
        for name, types in _ARGUMENT_TYPES.items():
            function = getattr(library, name)
            function.argtypes = types
            function.restype = ctypes.c_int
        self.launch_kernel = library.cuLaunchKernel
        self.launch_kernel_ex = library.cuLaunchKernelEx
        self.call("driver", "cuInit", 0)

    def call(self, kernel: str, name: str, *args: Any) -> None:
        """Call a driver function; raises LaunchError for ``kernel`` on any error."""
        self.check(kernel, name, getattr(self._library, name)(*args))

    def check(self, kernel: str, name: str, status: int) -> None:
        """Raise LaunchError unless ``status`` is success."""
        if status == 0:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(status, ctypes.byref(text))
        found = text.value.decode() if text.value else f"error {status}"
        advice = _ADVICE.get(status, "compile again; if that does not help, report this error")
        raise LaunchError(kernel, f"{name} failed with {found}", advice)

    def version(self) -> int:
        """Return the driver's CUDA version, 12080 for 12.8."""
        return self._number("driver", "cuDriverGetVersion")

    def device_attribute(self, kernel: str, which: int, device: int) -> int:
        """Return a device attribute."""
        return self._number(kernel, "cuDeviceGetAttribute", which, self._device(kernel, device))

    def function_attribute(self, kernel: str, which: int, function: int) -> int:
        """Return a function attribute."""
        return self._number(kernel, "cuFuncGetAttribute", which, function)

    def _number(self, kernel: str, name: str, *args: Any) -> int:
        value = ctypes.c_int()
        self.call(kernel, name, ctypes.byref(value), *args)
        return value.value

    def _device(self, kernel: str, ordinal: int) -> int:
        device = ctypes.c_int()
        self.call(kernel, "cuDeviceGet", ctypes.byref(device), ordinal)
        return device.value

    def context(self, kernel: str, ordinal: int) -> int:
        """Return the primary context of a device, retained once for the process's life."""
        found = self._contexts.get(ordinal)
        if found is None:
            handle = ctypes.c_void_p()
            device = self._device(kernel, ordinal)
            self.call(kernel, "cuDevicePrimaryCtxRetain", ctypes.byref(handle), device)
            found = self._contexts[ordinal] = handle.value or 0
        return found

    def load(self, kernel: str, binary: bytes, ordinal: int) -> int:
        """Load a binary on a device and return the handle of the function called ``kernel``."""
        self.call(kernel, "cuCtxPushCurrent_v2", self.context(kernel, ordinal))
        try:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            self.call(kernel, "cuModuleLoadData", ctypes.byref(module), binary)
            name = kernel.encode()
            self.call(kernel, "cuModuleGetFunction", ctypes.byref(function), module, name)
            return function.value or 0
        finally:
            self.call(kernel, "cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@functools.cache
def driver() -> Driver:
    """Return the machine's driver; raises LaunchError where there is none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LaunchError(
            "driver", f"libcuda.so.1 cannot be loaded ({error})", "install the NVIDIA driver"
        ) from error
    return Driver(library)
