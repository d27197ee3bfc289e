"""Answers a model's questions about the GPU from the DeviceModel, while there is none to ask.

Model code branches on ``torch.cuda.is_available()`` and on capabilities. During a trace such
questions are about the target. torch's own code asks too, in order to talk to a driver, and keeps
getting the truth; only Dynamo, when it evaluates a call on the model's behalf, is told the target.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ..seam.device import DeviceModel

#: Modules of torch that ask on the model's behalf: Dynamo where it evaluates constant calls of the
#: traced program, and autocast, which a model enters.
_ON_BEHALF_OF_THE_MODEL = frozenset(
    {"torch._dynamo.variables.functions", "torch.amp.autocast_mode"}
)


def device_properties(model: DeviceModel) -> SimpleNamespace:
    """Return what ``torch.cuda.get_device_properties`` would, as far as the table knows it.

    An attribute that the table has no figure for (memory sizes, clock rates) is absent, so asking
    for it is an AttributeError and not an invented number.
    """
    major, minor = model.capability
    return SimpleNamespace(
        name=_live_name(model),
        major=major,
        minor=minor,
        multi_processor_count=model.multiprocessors,
        warp_size=model.warp_size,
        regs_per_multiprocessor=model.registers_per_sm,
        shared_memory_per_multiprocessor=model.shared_per_sm,
        shared_memory_per_block=48 * 1024,
        shared_memory_per_block_optin=model.shared_per_block,
        max_threads_per_multi_processor=model.max_threads_per_sm,
        L2_cache_size=model.l2_bytes,
        gcnArchName=model.arch if model.backend == "hip" else "",
        is_integrated=0,
    )


def _live_name(model: DeviceModel) -> str:
    return model.live_names[0] if model.live_names else model.name


def _arch_name(model: DeviceModel) -> str:
    return model.arch if model.backend == "hip" else f"sm_{model.arch}"


def _answers(model: DeviceModel) -> dict[tuple[Any, str], Callable[..., Any]]:
    """Map (module, function name) to a function of the same arguments."""
    halves = model.backend == "hip" or model.capability >= (8, 0)
    cuda: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": _live_name(model),
        "get_device_capability": model.capability,
        "get_device_properties": device_properties(model),
        "get_arch_list": [_arch_name(model)],
        "is_bf16_supported": halves,
        "synchronize": None,
        "empty_cache": None,
        "manual_seed": None,
        "manual_seed_all": None,
    }
    accelerator: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_accelerator": torch.device("cuda"),
        "synchronize": None,
    }
    table: dict[tuple[Any, str], Callable[..., Any]] = {}
    for module, answers in ((torch.cuda, cuda), (torch.accelerator, accelerator)):
        for name, value in answers.items():
            if hasattr(module, name):
                table[(module, name)] = _constant(value)
    return table


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: value


def _asked_by_torch(caller: str) -> bool:
    in_torch = caller == "torch" or caller.startswith("torch.")
    return in_torch and caller not in _ON_BEHALF_OF_THE_MODEL


def _two_faced(original: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return original(*args, **kwargs) if _asked_by_torch(caller) else answer(*args, **kwargs)

    # Dynamo then calls it once, with the constant arguments, instead of tracing into it.
    result: Callable[..., Any] = torch.compiler.assume_constant_result(ask)
    return result


@contextlib.contextmanager
def answering_for(model: DeviceModel) -> Iterator[None]:
    """While inside, the model's questions about the device are answered for ``model``."""
    replaced = [(*place, getattr(*place)) for place in _answers(model)]
    try:
        for (module, name), answer in _answers(model).items():
            setattr(module, name, _two_faced(getattr(module, name), answer))
        yield
    finally:
        for module, name, original in replaced:
            setattr(module, name, original)
