"""One process of `cold_warm`: a system's first call, steady state and memory, for one model."""

from __future__ import annotations

import argparse
import importlib
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from agreement import compare, follow
from clock import Clock
from comparing import called, loss_of
from device import Device, device_of
from systems import details, phases, prepare

#: Called with a step's outcome so far: "forward" after the forward pass.
Mark = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, its arguments and what is done with them."""

    model: torch.nn.Module
    args: Any
    training: bool

    def step(self, call: Callable[..., Any], mark: Mark = lambda _name: None) -> None:
        """Do once what is measured: an inference, or a forward and backward pass."""
        if not self.training:
            with torch.no_grad():
                called(call, self.args)
            mark("forward")
            return
        self.model.zero_grad(set_to_none=True)
        output = called(call, self.args)
        mark("forward")
        loss_of(output).backward()


def load(model: str, mode: str) -> Subject:
    """Build what the function ``mode`` of the module ``model`` returns; the seed is fixed."""
    torch.manual_seed(0)
    module, args, *kind = getattr(importlib.import_module(model), mode)()
    return Subject(module, args, kind == ["train"])


class Other(torch.nn.Module):
    """A small model that uses each of the GPU's libraries: products, attention, convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 64, 3)
        self.products = torch.nn.Linear(64, 64)
        self.attention = torch.nn.MultiheadAttention(64, 1, batch_first=True)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """From (B, 3, H, W) to (B, (H - 2) * (W - 2), 64)."""
        rows = self.products(self.convolution(image).flatten(2).mT)
        return self.attention(rows, rows, rows, need_weights=False)[0]


def eager_step_of_another(where: torch.device) -> None:
    """Take one eager step, forward and backward, of a model that is not the measured one."""
    for dtype in (torch.float32, torch.bfloat16):
        image = torch.randn(2, 3, 10, 10, device=where, dtype=dtype)
        Other().to(where, dtype)(image).sum().backward()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the line of this process: ``options`` name one system, model and mode."""
    system = options.child
    subject = load(options.model[0], options.mode[0])
    device = device_of(subject.model)
    if options.after_eager:
        eager_step_of_another(next(subject.model.parameters()).device)
    device.synchronize()
    held = device.allocated_mib()
    clock = Clock()
    device.reset_peak()
    clock.start()
    before_backward: dict[str, float] = {}

    def mark(name: str) -> None:
        clock.mark(name)
        before_backward.update(phases(system))

    call = prepare(system, subject.model, clock)
    subject.step(call, mark)
    clock.mark("called")
    device.synchronize()
    clock.mark("end")
    clock.add_all(phases(system))
    line: dict[str, Any] = {
        "first_call_s": clock.seconds("end"),
        **clock.breakdown(),
        "first_peak_mib": device.peak_mib(),
        **steady(device, lambda: subject.step(call), options.measured),
        "held_mib": held,
        "torch": torch.__version__,
        "device": device.name,
        **details(system, before_backward if subject.training else None),
    }
    if options.check is not None:
        line["check"] = compare(subject, call, options.check)
    if options.losses and subject.training:
        line["losses"] = follow(subject, call, options.losses, options.optimizer, options.rate)
    return line


def steady(device: Device, step: Callable[[], None], measured: int) -> dict[str, Any]:
    """Return milliseconds of a step, one at a time and queued, and the peak of memory meanwhile."""
    for _ in range(max(3, measured // 3)):
        step()
    device.synchronize()
    device.reset_peak()
    times = [device.milliseconds(step) for _ in range(measured)]
    peak = device.peak_mib()

    def queued() -> None:
        for _ in range(measured):
            step()

    return {
        "steady_ms": round(statistics.median(times), 4),
        "queued_ms": round(device.milliseconds(queued) / measured, 4),
        "steady_peak_mib": peak,
        "measured": measured,
    }
