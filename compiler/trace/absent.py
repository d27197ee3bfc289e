"""What torch would ask an absent GPU while it traces, answered as the target's would be.

Everything here is in force only during a trace in a process without a GPU, and only where torch's
own code, below the graph, looks at the device or at the libraries that come with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx.experimental import proxy_tensor

from ..seam.target import Target
from .attention import attend

#: Backends of a convolution on the GPU whose result has the layout of its arguments.
_LIBRARY = {"cuda": "Cudnn", "hip": "Miopen"}
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@contextlib.contextmanager
def absent_gpu(target: Target) -> Iterator[None]:
    """While inside, fake tensors on "cuda" behave as on ``target``; needs a process without GPU."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_attention(target))
        stack.enter_context(_replaced(proxy_tensor, "CONSTANT_NUMEL_LIMIT", _NO_CONSTANTS))
        # Otherwise ``torch.autocast("cuda")`` warns and does nothing.
        amp = torch.cuda.amp.common
        stack.enter_context(_replaced(amp, "amp_definitely_not_available", lambda: False))
        for name, make in (
            ("_select_conv_backend", _convolution_backend),
            ("_conv_determine_backend_memory_format", _convolution_layout),
        ):
            replacement = make(getattr(torch._C, name), target)
            stack.enter_context(_replaced(torch._C, name, replacement))
        yield


#: torch computes with constants of up to so many elements, on the real device, in order to answer
#: ``.item()`` while tracing. The graph is the same without.
_NO_CONSTANTS = -1


@contextlib.contextmanager
def _replaced(place: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, original)


@contextlib.contextmanager
def _attention(target: Target) -> Iterator[None]:
    """Let attention outside of our graphs, too, have the target's form.

    Dynamo computes the layout of an attention's result before `compile_fx` sees the graph. Without
    a GPU that would be the math form's layout, on which ``.view()`` may fail where it works on the
    target.
    """
    flash = target.device_model.flash_attention

    def chosen(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        return attend(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, flash=flash
        )

    with torch.library._scoped_library("aten", "IMPL") as library:
        for key in ("CUDA", "AutogradCUDA"):
            library.impl("scaled_dot_product_attention", chosen, key)
        yield


def _convolution_backend(original: Callable[..., Any], target: Target) -> Callable[..., Any]:
    core: Any = torch._C  # its stub has another name for the enumeration
    library = getattr(core._ConvBackend, _LIBRARY[target.backend])

    def select(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        return library if input.device.type == "cuda" else original(input, *args, **kwargs)

    return select


def _convolution_layout(original: Callable[..., Any], target: Target) -> Callable[..., Any]:
    """Channels-last arguments give a channels-last result, except in double precision."""

    def layout(input: Tensor, weight: Tensor, backend: Any) -> Any:
        if input.device.type != "cuda":
            return original(input, weight, backend)
        wanted = _CHANNELS_LAST.get(weight.dim())
        if wanted is None or torch.float64 in (input.dtype, weight.dtype):
            return torch.contiguous_format
        last = any(_suggests(t, wanted) for t in (input, weight))
        return wanted if last else torch.contiguous_format

    del target
    return layout


def _suggests(tensor: Tensor, wanted: torch.memory_format) -> bool:
    """Do its strides read as this layout? (With one channel they read as the plain one.)"""
    return suggest_memory_format(tensor) == wanted
