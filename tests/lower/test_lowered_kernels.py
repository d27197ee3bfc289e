"""Every lowering as kernels, in float32 and bfloat16, on poisoned memory, in sizes that need loops.

The sizes cross the limits of `tile`: rows longer than a program keeps (looped reductions), reduced
outer dimensions, transposes wide enough for two axes, and extents that no block divides.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from body_eval import check
from tensors import rand

functional = torch.nn.functional
T = torch.Tensor


def attention(q: T, k: T, v: T) -> T:
    """The math form with a causal mask made of ranges."""
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    at = torch.arange(scores.shape[-1])
    scores = torch.where(at[None] <= at[:, None], scores, float("-inf"))
    return torch.softmax(scores, -1).to(v.dtype) @ v


def rope(x: T, angles: T) -> T:
    """Rotary embedding by halves."""
    c, s = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return x * torch.cat([c, c], -1) + torch.cat([-b, a], -1) * torch.cat([s, s], -1)


def rms_norm(x: T, w: T) -> T:
    """Root-mean-square norm in float32, as language models spell it."""
    wide = x.float()
    scale = (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return (wide * scale).to(x.dtype) * w


#: name -> (function, sizes of its inputs)
CASES: dict[str, tuple[Callable[..., object], tuple[tuple[int, ...], ...]]] = {
    "pointwise chain": (lambda a, b: torch.tanh(a * 2 + b).relu() - b, ((37, 129), (129,))),
    "broadcast both ways": (lambda a, b: a * b + a, ((50, 1), (1, 70))),
    "transpose": (lambda a, b: a.t() + b, ((65, 40), (40, 65))),
    "transpose and merge": (lambda a: (a.permute(2, 0, 1) * 2).reshape(33, -1), ((4, 40, 33),)),
    "heads": (
        lambda a: (a + 1).view(3, 40, 4, 16).permute(0, 2, 1, 3).contiguous(),
        ((3, 40, 64),),
    ),
    "slices": (lambda a: a[1::2, 3:-2].exp() - a[::2, :-5], ((64, 70),)),
    "flip and repeat": (lambda a: a.flip(1).repeat(2, 2) * 2, ((20, 50),)),
    "long row sum": (lambda a: a.sum(-1), ((3, 9001),)),
    "long column sum": (lambda a: a.sum(0), ((700, 9),)),
    "outer sum": (lambda a: a.mean(1, keepdim=True) * 2, ((4, 130, 33),)),
    "sum of everything": (lambda a: (a * a).sum() / 7, ((70, 130),)),
    "two dimensions": (lambda a: a.amax((0, 2)) + 1, ((6, 5, 300),)),
    "long product": (lambda a: (a.float() * 0.01 + 1).prod(-1), ((2, 5001),)),
    "long variance": (lambda a: torch.var_mean(a + 5, -1), ((3, 5001),)),
    "outer variance": (lambda a: torch.var(a, 0), ((150, 40),)),
    "long extremes": (lambda a: (*torch.max(a, -1), *torch.min(a, -1)), ((3, 5001),)),
    "outer argmax": (lambda a: torch.argmax(a, 0), ((150, 33),)),
    "argmax of everything": (lambda a: torch.argmax(a), ((71, 99),)),
    "any and all": (lambda a: ((a > 3).any(-1), (a > -3).all(-1)), ((40, 333),)),
    "norms": (lambda a: (a.norm(dim=-1), torch.linalg.vector_norm(a, 1)), ((5, 600),)),
    "softmax": (lambda a: torch.softmax(a * 3, -1), ((33, 129),)),
    "long softmax": (lambda a: torch.softmax(a * 3, -1), ((2, 5001),)),
    "outer softmax": (lambda a: torch.softmax(a, 1), ((3, 70, 40),)),
    "log softmax": (lambda a: torch.log_softmax(a.float(), -1).to(a.dtype), ((5, 1000),)),
    "layer norm": (
        lambda x, y, w, b: functional.layer_norm(x + y, (96,), w, b),
        ((40, 96), (40, 96), (96,), (96,)),
    ),
    "long layer norm": (lambda x, w: functional.layer_norm(x, (5001,), w), ((3, 5001), (5001,))),
    "rms norm": (rms_norm, ((17, 130), (130,))),
    "group norm": (lambda x: functional.group_norm(x, 4), ((2, 8, 9, 9),)),
    "attention": (attention, ((2, 3, 33, 16), (2, 3, 33, 16), (2, 3, 33, 16))),
    "rope": (rope, ((2, 4, 33, 32), (33, 16))),
    "cat": (lambda a, b: torch.cat([a, b * 2, a[:, :3]], 1), ((40, 33), (40, 50))),
    "stack": (lambda a, b: torch.stack([a, b], -1).reshape(40, -1), ((40, 33), (40, 33))),
    "pad": (lambda a: functional.pad(a, (2, 3, 1, 0), value=0.5) * 2, ((40, 33),)),
    "pad a sum": (lambda a: functional.pad(a.sum(-1), (1, 0)), ((3, 5001),)),
    "triangle": (lambda a: torch.tril(a) + torch.eye(40, 50), ((40, 50),)),
    "gelu and silu": (lambda a, b: functional.gelu(a) * functional.silu(b), ((9, 99), (9, 99))),
    "glu": (lambda a: functional.glu(a, -1), ((9, 130),)),
    "scalars": (lambda a, b: a * b.sum() + b[0], ((33, 9), (5,))),
}  # fmt: skip

LIBRARY = ("aten.mm.default", "aten.bmm.default")


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_eager(name: str, dtype: torch.dtype) -> None:
    """Fused, tiled, printed, interpreted and compared with eager."""
    fn, sizes = CASES[name]
    loose = (5e-2, 5e-2) if dtype == torch.bfloat16 else (1e-4, 1e-4)
    check(
        fn, *(rand(*s, dtype=dtype) for s in sizes), fallbacks=LIBRARY, tolerance=loose,
        interpreted=True,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_kernels_that_read_at_positions_equal_eager(dtype: torch.dtype) -> None:
    """Embeddings, gathers and advanced indexing."""
    table, x = rand(50, 33, dtype=dtype), rand(9, 40, dtype=dtype)
    at, columns = torch.randint(0, 50, (7, 11)), torch.randint(0, 40, (9, 5))
    tight = (5e-2, 5e-2) if dtype == torch.bfloat16 else (1e-5, 1e-5)

    def embed(w: T, i: T) -> T:
        tokens = functional.embedding(i, w) + functional.embedding(torch.arange(11), w)
        return functional.layer_norm(tokens, (33,))

    check(embed, table, at, tolerance=tight, interpreted=True)
    check(lambda x, i: x.gather(1, i) * 2, x, columns, tolerance=tight, interpreted=True)
    check(
        lambda x, i: x[:, i - 40].sum(-1), x, columns, tolerance=tight, interpreted=True
    )  # fmt: skip


@pytest.mark.parametrize("dtype", (torch.float8_e4m3fn, torch.float8_e5m2), ids=str)
def test_8_bit_floats_equal_eager(dtype: torch.dtype) -> None:
    """Every value, ties between neighbours, subnormal numbers, and all that is too large."""
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    numbers = every.float()
    known = numbers[numbers.isfinite()].unique()
    ties = (known[1:] + known[:-1]) / 2
    beyond = torch.tensor([1.001, 1.0357, 1.072, 1.0721, 1.2, 9e9, torch.inf, torch.nan])
    x = torch.cat([numbers, ties, -ties, beyond * known.max(), -beyond * known.max()])
    check(lambda x: x.to(dtype).float(), x, tolerance=(0, 0), interpreted=True)
    check(lambda x: x.float() * 1, every, tolerance=(0, 0), interpreted=True)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_a_loss_over_a_vocabulary_equals_eager(dtype: torch.dtype) -> None:
    """Log softmax over a long row, gathered at the targets, averaged without the ignored ones."""
    logits = rand(6, 5003, dtype=dtype)
    target = torch.tensor([1, 5002, 0, -100, 3, 5])
    check(
        lambda x, t: functional.cross_entropy(x.float(), t), logits, target, interpreted=True
    )  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", (torch.int64, torch.int32, torch.uint8, torch.bool), ids=str)
def test_integer_kernels_equal_eager(dtype: torch.dtype) -> None:
    """Sums, extremes, positions, comparisons and joins of integers and booleans."""
    x = rand(5, 5001, dtype=dtype)
    for fn in (
        lambda x: x.sum(-1),
        lambda x: x.amax(-1),
        lambda x: tuple(x.min(-1)),
        lambda x: torch.cat([x, x]) == x[:1],
        lambda x: functional.pad(x, (1, 1)).to(torch.float32) / 2,
        lambda x: x.any(-1),
    ):
        check(fn, x, interpreted=True)


def test_nan_and_infinity_pass_through_long_reductions() -> None:
    """NaN wins in loops too, and rows of -inf behave as in eager."""
    nan, inf = float("nan"), float("inf")
    x = rand(5, 5001)
    x[0, 4000], x[1, 17], x[1, 4999] = nan, inf, inf
    x[2] = -inf
    x[3, 1:], x[4, 5000] = -inf, -inf
    for fn in (
        lambda x: x.amax(-1),
        lambda x: tuple(x.max(-1)),
        lambda x: tuple(x.min(-1)),
        lambda x: x.sum(-1),
        lambda x: torch.softmax(x, -1),
        lambda x: torch.logsumexp(x, -1),
    ):
        check(fn, x, interpreted=True)


def test_poison_shows_what_a_kernel_forgot_to_write() -> None:
    """Fresh memory is NaN: an output with a hole cannot pass."""
    from interpret import PoisoningRuntime

    assert PoisoningRuntime().empty((2, 3), (3, 1), torch.bfloat16).isnan().all()
    assert PoisoningRuntime().empty((2, 3), (7, 1), torch.int32).ne(0).all()
