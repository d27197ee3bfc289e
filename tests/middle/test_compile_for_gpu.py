"""Generated kernels compile for real GPUs on a machine without one, and the row kernels do not spill.

The interpreter does not type-check; these tests are where a text that only looks right is caught.
Run them with the oldest and the newest Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from generated import example, generated

from kernelfarm.compiler.seam.back import back_half
from kernelfarm.compiler.seam.front import devicelib_digest, front_half
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import current_toolchain

pytestmark = pytest.mark.slow
BF16, F64, I64 = torch.bfloat16, torch.float64, torch.int64
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
    return (*torch.var_mean(x, -1), torch.softmax(x, -1), normal, x.argmax(-1), normal.sum(-1))


def _norm(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    total = x + y
    return total, F.layer_norm(total, w.shape, w, b)


def _embedding(w: torch.Tensor, i: torch.Tensor, g: torch.Tensor) -> Any:
    return F.layer_norm(F.embedding(i, w), g.shape, g, g)


def _outer(x: torch.Tensor) -> Any:
    return x.sum(0), torch.softmax(x, 0), x.var(0), x.argmax(0)


#: name -> function, inputs
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    **{f"integers {d}": (_integers, (example(999, dtype=d),) * 1 + (example(999, dtype=d),)) for d in SMALL},
    **{f"kept {d}": (_reductions, (example(9, 60, dtype=d),)) for d in (*SMALL, F64)},
    **{f"looped {d}": (_reductions, (example(9, 6000, dtype=d),)) for d in (*SMALL, F64)},
    **{f"floats {d}": (_floats, (example(999, dtype=d), example(999, dtype=d)))
       for d in (torch.float32, BF16, torch.float16, F64)},
    **{f"moments {d} {n}": (_moments, (example(9, n, dtype=d),))
       for d in (torch.float32, BF16, F64) for n in (60, 6000)},
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


def compiled(fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...], name: str) -> list[Any]:
    """The artifacts of a function's kernels for one target."""
    target = Target.parse(name)
    toolchain = current_toolchain(target)
    _, kernels, _ = generated(fn, *inputs, target=name)
    assert kernels
    digest = devicelib_digest()
    requests = [replace(k.request, toolchain=toolchain, helper_digest=digest) for k in kernels]
    return [back_half(front_half(r)) for r in requests]


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_statement_compiles_for_hopper(case: str) -> None:
    """Every dtype, reduction and spelling passes Triton's type checks and its back half."""
    fn, inputs = CASES[case]
    assert all(a.binary for a in compiled(fn, inputs, "h200"))


@pytest.mark.parametrize("case", ("kept torch.int64", "floats torch.bfloat16", "bools", "cat", "gather"))
def test_kernels_compile_for_amd(case: str) -> None:
    """The same texts compile for a GPU of another vendor."""
    fn, inputs = CASES[case]
    assert all(a.kind == "hsaco" for a in compiled(fn, inputs, "mi300x"))


@pytest.mark.parametrize("target", ("h200", "mi300x"))
@pytest.mark.parametrize("case", ROWS)
def test_row_kernels_do_not_spill(case: str, target: str) -> None:
    """A kernel as fast as memory keeps its row in registers."""
    fn, inputs = ROWS[case]
    for artifact in compiled(fn, inputs, target):
        assert artifact.spills == 0, (artifact.metadata.name, artifact.registers)
