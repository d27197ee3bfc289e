"""Fresh random tensors for comparisons: every dtype, and layouts that trip index arithmetic."""

from __future__ import annotations

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)


def rand(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal floats, small integers of both signs, or coin flips; never zero for integers."""
    if dtype.is_floating_point:
        return torch.randn(sizes).to(dtype)
    if dtype == torch.bool:
        return torch.rand(sizes) < 0.5
    values = torch.randint(1, 9, sizes)
    if dtype != torch.uint8:
        values = values * (torch.randint(0, 2, sizes) * 2 - 1)
    return values.to(dtype)


def positive(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Floats from 0.5 to 2.5."""
    return (torch.rand(sizes) * 2 + 0.5).to(dtype)


def layouts(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """One (rows, columns) tensor in each layout: plain, transposed, sliced, expanded, offset."""
    return [
        rand(rows, columns, dtype=dtype),
        rand(columns, rows, dtype=dtype).t(),
        rand(2 * rows, columns + 3, dtype=dtype)[::2, 1 : columns + 1],
        rand(rows, 1, dtype=dtype).expand(rows, columns),
        rand(rows * columns + 5, dtype=dtype)[5:].view(rows, columns),
    ]


SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, float("inf"), float("-inf"), float("nan"),
     1e-30, 3e30, 100.0, -100.0]
)  # fmt: skip
