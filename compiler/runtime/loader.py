"""From a host program and its kernels to a callable: verify, print, run.

The printed text runs in a namespace that holds the helpers it names and nothing else; of the
built-ins only what C code needs is in it. The text stays readable: ``call.text`` for people,
``linecache`` for tracebacks.
"""

from __future__ import annotations

import hashlib
import linecache
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .. import host
from .. import host_tables as tables
from ..emit.host_python import emit_python, extern_names
from ..host_errors import HostProgramError, LayoutError, SizesOutOfRange
from .contract import Launcher, LoadableKernel, Runtime

_guards = torch._C._dynamo.guards
_empty_strided_cpu = getattr(_guards, "_empty_strided_cpu", None)
_reinterpret = getattr(_guards, "_reinterpret_tensor", None)


def load_program(
    program: host.HostProgram,
    kernels: Sequence[LoadableKernel],
    runtime: Runtime,
    *,
    preload: bool = True,
) -> Callable[[list[Any]], list[Any]]:
    """Return ``call(args: list) -> list`` for a planned program; ``args`` is emptied by the call.

    ``kernels`` holds one loadable for each of ``program.kernels``, in that order. With ``preload``
    they and the constants are loaded on the current device now, so that a kernel that the driver
    refuses shows here (LaunchError) and not in the middle of the first call, and the first call may
    already be captured in a CUDA graph; other devices load at their first call.
    The callable carries its text as ``call.text``. Raises HostProgramError for a bad program.
    """
    if len(kernels) != len(program.kernels):
        raise HostProgramError("kernels", f"{len(program.kernels)} named, {len(kernels)} given")
    text = emit_python(program)
    launchers = [
        runtime.load_kernel(kdef, kernel)
        for kdef, kernel in zip(program.kernels, kernels, strict=True)
    ]
    namespace = _namespace(program, launchers, runtime)
    name = f"<kernelfarm program {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
    # Safe: `emit_python` verified the program, and the namespace has next to no built-ins.
    exec(compile(text, name, "exec"), namespace)
    call = namespace["call"]
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    call.text = text
    call._boxed_call = True  # AOTAutograd: give me the list itself, I shall clear it
    if preload and launchers:
        index = runtime.current_device()
        # AOTAutograd compiles with a fake mode on, in which nothing real could be made.
        with unset_fake_temporarily():
            namespace["_kernels"](index)
            namespace["_constants"](index)
    return call


def _namespace(
    program: host.HostProgram, launchers: Sequence[Launcher], runtime: Runtime
) -> dict[str, Any]:
    space: dict[str, Any] = {
        # Operators implemented in C import modules at need, and find the function here.
        "__builtins__": {"__import__": __import__},
        "_empty": runtime.empty,
        "_empty_cpu": _empty_strided_cpu or _make_empty_cpu,
        "_view": _reinterpret or _view,
        "_view_as": _view_as,
        "_realign": _realign,
        "_check_layout": _check_layout,
        "_out_of_range": _out_of_range,
        "_current_device": runtime.current_device,
        "_on_device": runtime.on_device,
        "_raw_stream": runtime.raw_stream,
        "_device_of": runtime.device,
        "_kernels": per_device(lambda index: tuple(each.on_device(index) for each in launchers)),
        "_constants": per_device(
            lambda index: tuple(
                _constant(constant, runtime.device(index)) for constant in program.constants
            )
        ),
        "_max": max,
        "_min": min,
        "_inf": float("inf"),
        "_nan": float("nan"),
        "_dt_cpu": torch.device("cpu"),
    }
    space.update({f"_dt_{name}": getattr(torch, name) for name in tables.DTYPES})
    space.update({f"_mf_{name}": getattr(torch, name) for name in tables.FORMATS})
    space.update({f"_op{i}": runtime.resolve(op) for i, op in enumerate(extern_names(program))})
    return space


def per_device(make: Callable[[int], Any]) -> Callable[[int], Any]:
    """Return a function of a device ordinal that calls ``make`` once for each ordinal."""
    made: dict[int, Any] = {}
    lock = threading.Lock()

    def get(index: int) -> Any:
        found = made.get(index)
        if found is None:
            with lock:
                found = made.get(index)
                if found is None:
                    found = made[index] = make(index)
        return found

    return get


def _constant(constant: host.Constant, device: torch.device) -> torch.Tensor:
    spec = constant.spec
    dtype = getattr(torch, spec.dtype)
    sizes = tuple(int(size) for size in spec.sizes if isinstance(size, int))
    if not constant.data:
        return torch.empty(sizes, dtype=dtype, device=_place(spec, device))
    # A bytearray, because torch warns about memory that it must not write to.
    flat = torch.frombuffer(bytearray(constant.data), dtype=dtype)
    return flat.view(sizes).to(_place(spec, device))


def _place(spec: host.TensorSpec, device: torch.device) -> torch.device:
    return torch.device("cpu") if spec.device == "cpu" else device


def _make_empty_cpu(sizes: Sequence[int], strides: Sequence[int], dtype: Any) -> torch.Tensor:
    return torch.empty_strided(sizes, strides, dtype=dtype)


def _view(
    source: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], offset: int
) -> torch.Tensor:
    return torch.as_strided(source, sizes, strides, source.storage_offset() + offset)


def _view_as(
    source: torch.Tensor,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
) -> torch.Tensor:
    """View the storage of ``source`` as another dtype; ``offset`` counts elements of that dtype."""
    start, rest = divmod(int(source.storage_offset()) * source.element_size(), dtype.itemsize)
    if rest:
        raise LayoutError("a view as another dtype starts inside an element", 0, rest)
    view = torch.empty(0, dtype=dtype, device=source.device)
    return view.set_(source.untyped_storage(), start + offset, sizes, strides)


def _realign(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors with those that do not start at a multiple of 16 bytes copied."""
    return tuple(_copied(t) if t.data_ptr() & 15 else t for t in tensors)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    # The kernels index with the strides they were compiled for, so the copy keeps them exactly,
    # gaps and overlaps included; ``clone`` would not.
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True))
    flat = torch.as_strided(tensor, (span,), (1,), tensor.storage_offset()).clone()
    return torch.as_strided(flat, tensor.size(), tensor.stride(), 0)


def _out_of_range(size: int, limit: int) -> None:
    raise SizesOutOfRange(size, limit)


def _check_layout(
    tensor: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], message: str
) -> None:
    found = (tuple(tensor.size()), tuple(tensor.stride()))
    if found[0] == sizes and (
        0 in sizes
        or all(
            n == 1 or have == want for n, have, want in zip(sizes, found[1], strides, strict=True)
        )
    ):
        return
    raise LayoutError(message, (sizes, strides), found)
