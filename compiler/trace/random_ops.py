"""Random numbers as pure functions of a seed: the operators that stand in a graph for eager's.

``kernelfarm::seed`` takes one row of the seeds that a graph has drawn, for one random operator.
``uniform``, ``normal`` and ``bits`` take one of them, a shape, and the order of the
dimensions in memory, outermost first. Element i (row-major) is what Philox-4x32-10 makes of the
seed as its key and of i as its counter, so equal arguments give equal numbers whenever and wherever
they are computed: in a kernel (`seam.devicelib` has the same arithmetic), or here, by torch
operators, where a graph runs op by op. A seed is data and no constant of a kernel, so that the
dropouts of all layers are one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

#: Multipliers and key increments of Philox-4x32 (Salmon et al., 2011).
_ROUND = (0xD2511F53, 0xCD9E8D57)
_KEY = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF
#: Bits of a uniform number in [0, 1) that a dtype holds exactly.
PRECISION = {
    torch.bfloat16: 8,
    torch.float16: 11,
    torch.float32: 24,
    torch.float64: 53,
}

_SHAPE = "Tensor seed, SymInt[] size, int[] order"
_LIBRARY = torch.library.Library("kernelfarm", "FRAGMENT")
_LIBRARY.define("seed(Tensor seeds, int row) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
_LIBRARY.define(f"uniform({_SHAPE}, ScalarType dtype) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
_LIBRARY.define(f"normal({_SHAPE}, ScalarType dtype) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
_LIBRARY.define(f"bits({_SHAPE}) -> Tensor", tags=torch.Tag.pt2_compliant_tag)


def _seed(seeds: torch.Tensor, row: int) -> torch.Tensor:
    return seeds[row].clone()


def _shaped_seed(seeds: torch.Tensor, row: int) -> torch.Tensor:
    return seeds.new_empty(seeds.shape[1])


def words(seed: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """Return the four 32-bit words of the first ``count`` elements, as int64 tensors."""
    position = torch.arange(count, dtype=torch.int64, device=seed.device)
    return words_at(seed, position)


def words_at(seed: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the four 32-bit words of the elements at these positions, as int64 tensors."""
    zero = torch.zeros_like(position)
    c = [position & _LOW, (position >> 32) & _LOW, zero, zero]
    key = seed.reshape(-1)[:1]
    k = [key & _LOW, (key >> 32) & _LOW]
    for _ in range(_ROUNDS):
        high0, low0 = _product(c[0], _ROUND[0])
        high1, low1 = _product(c[2], _ROUND[1])
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(part + step) & _LOW for part, step in zip(k, _KEY, strict=True)]
    return tuple(c)


def _product(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The upper and lower half of a product of 32-bit numbers, without 64-bit overflow."""
    low = a * (b & 0xFFFF)
    middle = a * (b >> 16) + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)


def uniform_from(w: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Uniform numbers in [0, 1): the leading bits that the dtype holds without rounding."""
    bits = PRECISION[dtype]
    if dtype == torch.float64:
        whole = ((w[0] >> 5) << 26) | (w[1] >> 6)
    else:
        whole = w[0] >> (32 - bits)
    return (whole.to(torch.float64) * 2.0**-bits).to(dtype)


def normal_from(w: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Standard normal numbers, by Box and Muller."""
    if dtype == torch.float64:
        first = uniform_from(w, dtype) + 2.0**-54
        angle = uniform_from(w[2:], dtype) * (2 * math.pi)
    else:
        single = torch.float32
        first = (w[0].to(single) + 0.5) * 2.0**-32
        angle = uniform_from(w[1:], single) * (2 * math.pi)
    return (torch.sqrt(-2.0 * torch.log(first)) * torch.cos(angle)).to(dtype)


def bits_from(w: Sequence[torch.Tensor]) -> torch.Tensor:
    """Random non-negative int64 numbers: 63 bits."""
    return ((w[0] & 0x7FFFFFFF) << 32) | w[1]


def _placed(flat: torch.Tensor, size: Sequence[int], order: Sequence[int]) -> torch.Tensor:
    out = torch.empty_permuted(tuple(size), tuple(order), dtype=flat.dtype, device=flat.device)
    return out.copy_(flat.view(size))


def _uniform(seed: torch.Tensor, size: Any, order: Any, dtype: torch.dtype) -> torch.Tensor:
    flat = uniform_from(words(seed, math.prod(size)), dtype)
    return _placed(flat, size, order)


def _normal(seed: torch.Tensor, size: Any, order: Any, dtype: torch.dtype) -> torch.Tensor:
    flat = normal_from(words(seed, math.prod(size)), dtype)
    return _placed(flat, size, order)


def _bits(seed: torch.Tensor, size: Any, order: Any) -> torch.Tensor:
    return _placed(bits_from(words(seed, math.prod(size))), size, order)


def _shaped(
    seed: torch.Tensor, size: Any, order: Any, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    return torch.empty_permuted(size, order, dtype=dtype, device=seed.device)


_IMPLEMENTED = (
    ("seed", _seed, _shaped_seed),
    ("uniform", _uniform, _shaped),
    ("normal", _normal, _shaped),
    ("bits", _bits, _shaped),
)
for _name, _function, _fake in _IMPLEMENTED:
    for _device in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _function, _device)
    torch.library.register_fake(f"kernelfarm::{_name}", _fake, lib=_LIBRARY)
