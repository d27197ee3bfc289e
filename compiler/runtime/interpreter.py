"""The interpreter runtime: host programs and kernel text on CPU tensors, without a GPU.

For tests and for looking at what a kernel does. "target" means the CPU here, a kernel's loadable
is its SourceRequest, and the grid is walked one program after the other (about half a
millisecond each).
"""

from __future__ import annotations

import itertools
import linecache
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from .. import host_ops
from ..host import KernelDef
from ..host_errors import LaunchError, RunError
from ..seam.request import SourceRequest
from . import operators
from .contract import Launch, LoadableKernel
from .interpreted_attention import ATTENTION
from .interpreted_language import Language, language

#: The interpreter keeps the grid position in one global builder: one launch at a time.
_running = threading.RLock()


class InterpreterRuntime:
    """Runs programs on CPU tensors with kernels interpreted from their text."""

    name = "interpreter"

    def load_kernel(self, kdef: KernelDef, loadable: LoadableKernel) -> InterpretedKernel:
        """Return a launcher for a SourceRequest; raises LaunchError for a binary."""
        if not isinstance(loadable, SourceRequest):
            raise LaunchError(
                kdef.name,
                "a binary cannot be interpreted",
                "hand the interpreter its SourceRequest",
            )
        return InterpretedKernel(loadable)

    def current_device(self) -> int:
        """Return -1, torch's ordinal of the CPU."""
        return -1

    def on_device(self, index: int) -> AbstractContextManager[Any]:
        """Raise RunError: the interpreter has one device, the CPU, and an input is elsewhere."""
        raise RunError(
            f"an input lies on device {index}, but this program runs in the interpreter; "
            "move the inputs to the CPU"
        )

    def raw_stream(self, index: int) -> int:
        """Return 0: there are no streams."""
        return 0

    def device(self, index: int) -> torch.device:
        """Return the CPU."""
        return torch.device("cpu")

    def empty(
        self, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """Return an uninitialised CPU tensor."""
        return torch.empty_strided(sizes, strides, dtype=dtype)

    def resolve(self, op: str) -> Callable[..., Any]:
        """Return the operator, or its math form where only GPUs have the operator itself."""
        computed = ATTENTION.get(op)
        return operators.resolve(op) if computed is None else computed(host_ops.resolve(op))


class InterpretedKernel:
    """One kernel's text, executed for every program of the grid."""

    def __init__(self, request: SourceRequest) -> None:
        self._request = request
        constexprs = dict(request.constexprs)
        self._kinds = [
            (name, kind)
            for name, kind in request.signature
            if kind != "constexpr" and name not in constexprs
        ]
        self._constexprs = constexprs
        self._function: Callable[..., None] | None = None

    def on_device(self, index: int) -> Launch:
        """Return the launcher itself: there is one device."""
        return self

    def __call__(self, grid_x: int, grid_y: int, grid_z: int, stream: int, *args: Any) -> None:
        """Run the whole grid in order, x slowest; an empty grid runs nothing."""
        known = language()
        if len(args) != len(self._kinds):
            raise LaunchError(
                self._request.entry,
                f"{len(args)} arguments for {len(self._kinds)} parameters",
                "the program and the kernel do not belong together",
            )
        with _running, np.errstate(all="ignore"), warnings.catch_warnings():
            # Triton 3.6 takes loop bounds out of arrays of one element, which NumPy deprecates
            warnings.filterwarnings("ignore", "Conversion of an array with ndim > 0")
            function = self._load(known)
            named = {
                name: _argument(known, kind, value)
                for (name, kind), value in zip(self._kinds, args, strict=True)
            }
            named.update(self._constexprs)
            builder = known.interpreter.interpreter_builder
            builder.set_grid_dim(grid_x, grid_y, grid_z)
            for place in itertools.product(range(grid_x), range(grid_y), range(grid_z)):
                builder.set_grid_idx(*place)
                try:
                    function(**named)
                except Exception as error:
                    error.add_note(f"in program {place} of kernel {self._request.entry}")
                    raise

    def _load(self, known: Language) -> Callable[..., None]:
        if self._function is None:
            self._function = _interpreted(known, self._request)
        return self._function


def _interpreted(known: Language, request: SourceRequest) -> Callable[..., None]:
    """Execute the text as `seam.front` does, with the interpreted language in its globals."""
    name = f"<kernelfarm kernel {request.entry} {abs(hash(request.text)):x}>"
    linecache.cache[name] = (
        len(request.text),
        None,
        request.text.splitlines(keepends=True),
        name,
    )
    space = {
        "__name__": f"kernelfarm_interpreted.{request.entry}",
        "triton": known.triton,
        "tl": known.tl,
        "libdevice": known.libdevice,
        "kf": known.kf,
    }
    # Text that this process emitted: a SourceRequest never comes out of a record.
    exec(compile(request.text, name, "exec"), space)
    function = space[request.entry]
    rewritten: Callable[..., None] = function.rewrite()
    return rewritten


def _argument(known: Language, kind: str, value: Any) -> Any:
    """Return a launch argument as the interpreter's tensor of exactly the declared type."""
    tl, interpreter = known.tl, known.interpreter
    if kind.startswith("*"):
        address = value if isinstance(value, int) else 0 if value is None else value.data_ptr()
        pointer = tl.str_to_ty(kind.replace("*k", "*"), None)
        data = np.array([address], dtype=np.uint64)
        return tl.tensor(interpreter.TensorHandle(data, pointer), pointer)
    scalar = tl.str_to_ty("fp32" if kind == "f32" else kind, None)
    if kind in ("fp16", "bf16"):
        single = interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.float32)
        handle = interpreter.interpreter_builder.create_fp_trunc(single, scalar)
    else:
        data = np.array([value]).astype(interpreter._get_np_dtype(scalar))
        handle = interpreter.TensorHandle(data, scalar)
    return tl.tensor(handle, scalar)
