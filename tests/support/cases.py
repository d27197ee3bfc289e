"""Functions that together use every dtype, operation, reduction and access of kernel text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from generated import example

BF16, F64, I64 = torch.bfloat16, torch.float64, torch.int64
SUMMED = (torch.float32, F64, torch.float16, BF16, torch.int8, torch.int32, torch.int64)
RANDOM = (torch.float32, F64, torch.float16, BF16)
SMALL = (torch.int8, torch.int16, torch.uint8, torch.int32, torch.int64)


def _integers(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        x + y, x - y, x * y, -x, ~x, x.abs(), x // y, x % y, x & y, x << 1, x > y, x.float(),
        x.bool(), torch.where(x > y, x, y), torch.maximum(x, y), x.sign(),
    )  # fmt: skip


def _reductions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kept = (x.sum(-1), x.prod(-1), x.amax(-1), x.amin(-1), x.argmax(-1), x.argmin(-1), x.any(-1))
    same = x.sum(-1, dtype=x.dtype)
    return (*kept, same, same.float() + 1, x.all(-1))


def _floats(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        x / y, torch.floor_divide(x, y), x % y, torch.fmod(x, y), x.pow(y), x.exp(), -x,
        torch.sigmoid(x), x.tanh(), torch.maximum(x, y), x.sign(), x.round(), F.gelu(x),
        x.signbit(), x.isnan(), x.isinf(), torch.copysign(x, torch.full((1,), -0.0)), x.rsqrt(),
        torch.atan2(x, y), x.erf(), x.log1p(), x.floor(), x.trunc().to(torch.int32), x.to(I64),
        x + 0.1, torch.full((1,), 0.1).to(x.dtype) * x, x * float("inf"), torch.hypot(x, y),
    )  # fmt: skip


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    normal = (x - x.mean(-1, keepdim=True)) / x.amax(-1, keepdim=True)
    return (
        *torch.var_mean(x, -1),
        torch.softmax(x, -1),
        normal,
        x.argmax(-1),
        normal.abs().sum(-1),
    )


def _norm(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    total = x + y
    return total, F.layer_norm(total, w.shape, w, b)


def _embedding(w: torch.Tensor, i: torch.Tensor, g: torch.Tensor) -> Any:
    return F.layer_norm(F.embedding(i, w), g.shape, g, g)


def _outer(x: torch.Tensor) -> Any:
    return x.sum(0), torch.softmax(x, 0), x.var(0), x.argmax(0)


def _sums(a: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
    # Which of several writes to one place wins is undefined, so scatter's rows are distinct.
    rows = torch.arange(0, 490, 7)[:, None].expand(70, 9)
    added = (a.index_add(0, i, s), a.index_put((i,), s, accumulate=True))
    return (*added, a.scatter(0, rows, s))


def _random(seed: torch.Tensor) -> tuple[torch.Tensor, ...]:
    ops = torch.ops.kernelfarm
    shape = ([9, 60], [0, 1])
    return (
        *(ops.uniform(seed, *shape, d) for d in RANDOM),
        *(ops.normal(seed, *shape, d) for d in RANDOM),
        ops.bits(seed, *shape),
        torch.where(ops.uniform(seed, *shape, torch.float32) < 0.9, 1.0, 0.0).sum(-1),
    )


#: name -> function, inputs
# ruff: noqa: E501
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    **{f"integers {d}": (_integers, (example(999, dtype=d),) * 1 + (example(999, dtype=d),)) for d in SMALL},
    **{f"kept {d}": (_reductions, (example(9, 60, dtype=d),)) for d in (*SMALL, F64)},
    **{f"looped {d}": (_reductions, (example(9, 6000, dtype=d),)) for d in (*SMALL, F64)},
    **{f"floats {d}": (_floats, (example(999, dtype=d), example(999, dtype=d)))
       for d in (torch.float32, BF16, torch.float16, F64)},
    **{f"moments {d} {n}": (_moments, (example(64, n, dtype=d),))
       for d in (torch.float32, BF16, F64) for n in (60, 6000)},
    **{f"sums {d}": (_sums,
                     (example(500, 9, dtype=d), example(70, dtype=I64), example(70, 9, dtype=d)))
       for d in SUMMED},
    "random": (_random, (example(1, dtype=I64),)),
    "bools": (lambda x, y: (x & y, x | y, x ^ y, ~x, x.any(1), x.all(1), x.sum(1), x.float(),
                            torch.where(x, y, x), torch.maximum(x, y), x < y),
              (example(9, 60, dtype=torch.bool), example(9, 60, dtype=torch.bool))),
    "bools looped": (lambda x: (x.any(1), x.all(1), x.sum(1)), (example(9, 6000, dtype=torch.bool),)),
    "float8": (lambda x: (x.to(torch.float8_e4m3fn), x.to(torch.float8_e5m2),
                          x.to(torch.float8_e5m2).float() + 1), (example(999),)),
    "bits": (lambda x: (x.view(torch.int32) + x.to(torch.int32), x.view(torch.int32) < 0),
             (example(999),)),
    "positions": (lambda x: (torch.arange(2**40, 2**40 + 5) + x, torch.arange(5) * x),
                  (example(5, dtype=I64),)),
    "transposed": (lambda x, y: (x.t() + y, (x.t() + y).sum(1)), (example(70, 50), example(50, 70))),
    "outer": (_outer, (example(5000, 300),)),
    "outer short": (_outer, (example(50, 300),)),
    "cat": (lambda x, y: torch.cat([x, y], 1).sum(1), (example(16, 48), example(16, 80))),
    "pad": (lambda x: F.pad(x, (1, 2), value=3.0), (example(16, 48),)),
    "flip": (lambda x: (x.flip(0) + x, torch.roll(x, 3, 1)), (example(16, 48),)),
    "gather": (lambda x, i: (x[i], F.pad(x[:, i], (1, 1))), (example(9, 9), example(4, dtype=torch.int32))),
}  # fmt: skip

#: Kernels over rows whose speed is that of memory: they must not spill.
ROWS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "softmax kept": (lambda x: torch.softmax(x, -1), (example(4096, 4096, dtype=BF16),)),
    "softmax looped": (lambda x: torch.softmax(x, -1), (example(1024, 50304, dtype=BF16),)),
    "norm kept": (_norm, (example(4096, 768, dtype=BF16), example(4096, 768, dtype=BF16),
                          example(768, dtype=BF16), example(768, dtype=BF16))),
    "norm widest": (_norm, (example(4096, 4096), example(4096, 4096), example(4096), example(4096))),
    "norm looped": (_norm, (example(1024, 8192), example(1024, 8192), example(8192), example(8192))),
    "embedding": (_embedding, (example(500, 768), example(4, 32, dtype=I64), example(768))),
    "gelu": (lambda x, b: F.gelu(x + b), (example(4096, 3072, dtype=BF16), example(3072, dtype=BF16))),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), (example(4096, 3072, dtype=BF16),)),
    "column sum": (lambda x: x.sum(0), (example(4096, 1024),)),
}  # fmt: skip


def filled(inputs: tuple[torch.Tensor, ...], device: str) -> tuple[torch.Tensor, ...]:
    """Inputs of the same shapes with numbers in them, small positive integers where they index."""
    out = []
    for number, like in enumerate(inputs):
        if like.dtype.is_floating_point:
            value = torch.randn(like.shape, dtype=torch.float64)
            if number == 0 and value.dim() == 1:
                special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-30, 3e4, -470.0]
                value[: len(special)] = torch.tensor(special, dtype=torch.float64)
            if number == 1:
                value = value.abs() + 0.1
        elif like.dtype == torch.bool:
            value = torch.rand(like.shape) < 0.4
        elif like.numel() < 200 and like.numel() != 5:
            value = torch.randint(0, 9, like.shape)
        else:
            limits = torch.iinfo(like.dtype)
            value = torch.randint(limits.min, limits.max, like.shape)
            value = torch.where((value == 0) | (value == -1), 3, value)
        out.append(value.to(like.dtype).to(device))
    return tuple(out)
