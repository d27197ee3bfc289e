"""What a runtime gives to a host program: launchers for its kernels and a few host functions.

`CudaRuntime` runs binaries on a GPU; `InterpreterRuntime` runs kernel text on CPU tensors. The
printed program is the same for both, so whatever differs between them is in here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..host import KernelDef
from ..seam.request import Artifact, SourceRequest

#: A kernel as it comes from the service (GPU) or straight from code generation (interpreter).
LoadableKernel = Artifact | SourceRequest

#: ``launch(grid_x, grid_y, grid_z, stream, *args)`` on one device. A pointer argument is an address
#: (what printed programs pass), a tensor, or None for a null pointer; the grid is not zero.
Launch = Callable[..., None]


class Launcher(Protocol):
    """One kernel of a program, loaded once for each device that it is used on."""

    def __call__(self, grid_x: int, grid_y: int, grid_z: int, stream: int, *args: Any) -> None:
        """Launch on the current device; an empty grid launches nothing."""
        ...

    def on_device(self, index: int) -> Launch:
        """Return the launch function for device ``index``, loading the kernel there at need.

        Raises LaunchError, naming the kernel and the next step, when that is impossible.
        """
        ...


class Runtime(Protocol):
    """Where programs run. ``name`` is "cuda" or "interpreter"."""

    name: str

    def load_kernel(self, kdef: KernelDef, loadable: LoadableKernel) -> Launcher:
        """Return a launcher; whatever can be checked without a device is checked here."""
        ...

    def current_device(self) -> int:
        """Return the ordinal of the current target device (-1: CPU)."""
        ...

    def on_device(self, index: int) -> AbstractContextManager[Any]:
        """Make ``index`` the current device for a while; raises RunError for a wrong device."""
        ...

    def raw_stream(self, index: int) -> int:
        """Return the current stream of a device as an integer handle."""
        ...

    def device(self, index: int) -> Any:
        """Return the torch.device of a target ordinal."""
        ...

    def empty(self, sizes: Sequence[int], strides: Sequence[int], dtype: Any) -> Any:
        """Return an uninitialised tensor on the current target device."""
        ...

    def resolve(self, op: str) -> Callable[..., Any]:
        """Return an operator as a callable; raises HostProgramError if it may not be called."""
        ...
