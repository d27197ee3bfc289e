"""Nearest upsampling by whole factors as a broadcast, whose gradient is a small sum.

torch traces it as a read at computed positions, whose gradient adds atomically at them. Repeating
every pixel says the same in views: the forward reads where it is used, the backward sums blocks.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch._prims_common import suggest_memory_format


def interpolate(
    input: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.Tensor:
    """Do what F.interpolate does; (N, C, H, W) times whole factors by repeating pixels."""
    factors = None
    if mode == "nearest" and input.dim() == 4 and not antialias and not recompute_scale_factor:
        factors = whole_factors(input.shape[-2:], size, scale_factor)
    if factors is None or factors == [1, 1]:
        return F.interpolate(
            input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
        )
    batch, channels, height, width = input.shape
    down, across = factors
    blocks = input[:, :, :, None, :, None].expand(batch, channels, height, down, width, across)
    result = blocks.reshape(batch, channels, height * down, width * across)
    return result.contiguous(memory_format=suggest_memory_format(input))


def whole_factors(sizes: Sequence[Any], size: Any, scale: Any) -> list[int] | None:
    """How often a pixel is repeated down and across; None unless eager does exactly that.

    Eager multiplies a position by a float32 and rounds down, which may be one less than a division.
    """
    factors = []
    for number, have in enumerate(sizes):
        wanted, times = (
            given[number] if isinstance(given, (tuple, list)) else given for given in (size, scale)
        )
        if not isinstance(have, int) or have == 0:
            if wanted is None and times in (1, 2, 4, 8):  # powers of two are exact
                factors.append(int(times))
                continue
            return None
        if wanted is None:
            wanted = math.floor(have * times)
        if not isinstance(wanted, int) or wanted == 0 or wanted % have:
            return None
        factor = wanted // have
        step = _single(1.0 / times if times else have / wanted)
        if any(math.floor(_single(at * step)) != at // factor for at in range(wanted)):
            return None
        factors.append(factor)
    return factors


def _single(number: float) -> float:
    """The nearest float32, computed without torch, which traces what runs here."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded
