"""What a benchmark asks of the device that its model is on; a CPU serves for trying things out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a CPU: its times are then of the wall clock and its memory is not known."""

    gpu: bool
    name: str

    def synchronize(self) -> None:
        """Wait until everything that was launched is done."""
        if self.gpu:
            torch.cuda.synchronize()

    def milliseconds(self, act: Callable[[], None]) -> float:
        """Return the milliseconds that ``act`` takes on the device, which is idle before it."""
        if not self.gpu:
            started = time.perf_counter()
            act()
            return 1e3 * (time.perf_counter() - started)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        act()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def reset_peak(self) -> None:
        """Let the peak of memory begin here."""
        if self.gpu:
            torch.cuda.reset_peak_memory_stats()

    def peak_mib(self) -> float | None:
        """Return the most MiB that tensors took since `reset_peak`."""
        return round(torch.cuda.max_memory_allocated() / 2**20, 1) if self.gpu else None

    def allocated_mib(self) -> float | None:
        """Return the MiB that tensors take now."""
        return round(torch.cuda.memory_allocated() / 2**20, 1) if self.gpu else None


def device_of(model: torch.nn.Module) -> Device:
    """Return the device of a model's parameters."""
    gpu = next(model.parameters()).device.type == "cuda"
    return Device(gpu, torch.cuda.get_device_name() if gpu else "cpu")
