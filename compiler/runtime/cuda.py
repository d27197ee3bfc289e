"""The CUDA runtime: programs on a GPU, kernels from binaries, no compiler anywhere."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..host import KernelDef
from ..host_errors import LaunchError, RunError
from ..seam.request import Artifact
from . import driver_api, operators
from .contract import Launch, LoadableKernel
from .driver_launcher import load_with_driver
from .static_launcher import can_launch, load_static, static_launcher_class

_log = logging.getLogger("kernelfarm.runtime")
# The bare C functions: their Python wrappers cost a microsecond each, once per call.
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda index: torch.cuda.current_stream(index).cuda_stream
)
_empty_strided_cuda = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)


class CudaRuntime:
    """Runs programs on the GPU that their inputs lie on.

    ``static`` False leaves torch's static launcher aside (for comparison and for tests).
    """

    name = "cuda"

    def __init__(self, *, static: bool = True, driver: driver_api.Driver | None = None) -> None:
        self._static = static_launcher_class() if static else None
        self._driver = driver
        self.current_device: Callable[[], int] = _current_device
        self.raw_stream: Callable[[int], int] = _raw_stream
        self.empty: Callable[..., torch.Tensor] = _empty_strided_cuda or _empty
        if driver is None:
            torch.cuda.init()

    def driver(self) -> driver_api.Driver:
        """Return the driver in use; raises LaunchError where there is none."""
        return self._driver or driver_api.driver()

    def load_kernel(self, kdef: KernelDef, loadable: LoadableKernel) -> CudaKernel:
        """Check what needs no device and return a launcher that loads at its first use.

        Raises LaunchError for text, for another GPU maker's binary, and for a driver that is
        older than the binary needs.
        """
        if not isinstance(loadable, Artifact) or loadable.kind != "cubin":
            raise LaunchError(
                kdef.name, "this is no CUDA binary", "compile it for this machine's GPU first"
            )
        have = self.driver().version()
        if have < loadable.min_driver:
            raise LaunchError(
                kdef.name,
                f"its binary needs a driver of CUDA {_version(loadable.min_driver)}, "
                f"this machine's is {_version(have)}",
                "update the driver, or compile with a toolkit that this driver knows",
            )
        return CudaKernel(self, kdef, loadable)

    def launch_on(self, kdef: KernelDef, artifact: Artifact, index: int) -> Launch:
        """Load a kernel on one device: torch's launcher where it can, else the driver."""
        if self._static is None or not can_launch(artifact, kdef.arg_kinds):
            return self._with_driver(kdef, artifact, index)
        try:
            with torch.cuda.device(index):
                large = _Late(lambda: self._with_driver(kdef, artifact, index))
                return load_static(self._static, artifact, kdef.arg_kinds, index, large)
        except RuntimeError as error:
            _log.info("static launcher refused %s (%s); trying the driver", kdef.name, error)
            return self._with_driver(kdef, artifact, index)

    def _with_driver(self, kdef: KernelDef, artifact: Artifact, index: int) -> Launch:
        return load_with_driver(self.driver(), artifact, kdef.arg_kinds, index, _scratch)

    def on_device(self, index: int) -> AbstractContextManager[Any]:
        """Make a GPU current for a while; raises RunError for a tensor that is on none."""
        if index < 0:
            raise RunError(
                "an input lies on the CPU, but this program was compiled for a GPU; "
                "move the inputs to the GPU"
            )
        return torch.cuda.device(index)

    def device(self, index: int) -> torch.device:
        """Return the torch.device of an ordinal."""
        return torch.device("cuda", index)

    def resolve(self, op: str) -> Callable[..., Any]:
        """Return the operator; raises HostProgramError when it may not be called."""
        return operators.resolve(op)


class CudaKernel:
    """One kernel; its module is loaded on each device at the first use there."""

    def __init__(self, runtime: CudaRuntime, kdef: KernelDef, artifact: Artifact) -> None:
        self._runtime = runtime
        self._kdef = kdef
        self._artifact = artifact
        self._loaded: dict[int, Launch] = {}
        self._lock = threading.Lock()

    def on_device(self, index: int) -> Launch:
        """Return the launch function for one device."""
        found = self._loaded.get(index)
        if found is None:
            with self._lock:
                found = self._loaded.get(index)
                if found is None:
                    found = self._runtime.launch_on(self._kdef, self._artifact, index)
                    self._loaded[index] = found
        return found

    def __call__(self, grid_x: int, grid_y: int, grid_z: int, stream: int, *args: Any) -> None:
        """Launch on the current device; an empty grid launches nothing."""
        if grid_x > 0 and grid_y > 0 and grid_z > 0:
            launch = self.on_device(self._runtime.current_device())
            launch(grid_x, grid_y, grid_z, stream, *args)


class _Late:
    """A launch function that is made at its first call."""

    def __init__(self, make: Callable[[], Launch]) -> None:
        self._make = make
        self._made: Launch | None = None

    def __call__(self, *args: Any) -> None:
        if self._made is None:
            self._made = self._make()
        self._made(*args)


def _empty(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(sizes, strides, dtype=dtype, device="cuda")


def _scratch(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
