"""Random small programs over everything that is lowered, for comparisons of values and gradients.

A program is data (a list of steps), so that a failure shrinks; `run` interprets it by the shapes at
hand, on leaves of any dtype. Every operator that is nowhere near a discontinuity keeps close to the
same program in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

T = torch.Tensor
#: (kind, which operator of the kind, operand, other operand, parameter).
Step = tuple[str, int, int, int, int]
#: No value is larger: the interpreter is slow, and repeats would grow without end.
LIMIT = 400

UNARY: tuple[Callable[[T], T], ...] = (
    torch.tanh, torch.sigmoid, torch.relu, torch.neg, torch.abs, torch.sin, torch.cos, torch.erf,
    torch.square, F.silu, F.softplus, F.mish, F.hardswish, F.elu, F.logsigmoid, F.hardtanh,
    F.gelu, lambda x: F.gelu(x, approximate="tanh"), lambda x: torch.exp(x.clamp(-4, 2)),
    lambda x: torch.log1p(x.abs()), lambda x: torch.sqrt(x.abs() + 0.5), lambda x: x.clamp(-1, 1.5),
    lambda x: torch.rsqrt(x * x + 0.5), lambda x: 1 / (x.abs() + 1), lambda x: x**3,
    lambda x: F.leaky_relu(x, 0.2), lambda x: x * 0.5 - 0.25, lambda x: torch.expm1(x.clamp(max=1)),
    lambda x: torch.where(x > 0.3, x * 2, x - 1), lambda x: x.masked_fill(x < -1, 0.25),
    lambda x: x.sign() * x, lambda x: torch.atan(x) + torch.asinh(x), lambda x: x / 3,
    lambda x: F.softshrink(x) + F.softsign(x), lambda x: torch.nan_to_num(x), lambda x: -x + 1,
    lambda x: x.detach() * x, lambda x: torch.cosh(x.clamp(-2, 2)), lambda x: 2 - x,
    lambda x: x % 3,
)  # fmt: skip
BINARY: tuple[Callable[[T, T], T], ...] = (
    torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.hypot,
    lambda a, b: a / (b.abs() + 1), lambda a, b: torch.where(a > b, a, b * 2),
    lambda a, b: torch.atan2(a, b.abs() + 1), lambda a, b: torch.lerp(a, b, 0.3),
    lambda a, b: torch.addcmul(a, a, b, value=0.5), lambda a, b: a - 2 * b,
    lambda a, b: torch.addcdiv(a, b, b.abs() + 1), lambda a, b: (a.abs() + 0.5) ** torch.tanh(b),
    lambda a, b: torch.where(b > 0, a, a.detach()), lambda a, b: torch.logaddexp(a, b),
    lambda a, b: a * (b > 0), lambda a, b: torch.xlogy(a, b.abs() + 1),
    lambda a, b: torch.fmax(a, b),
    lambda a, b: torch.copysign(a, b) + F.smooth_l1_loss(a - b, torch.zeros_like(a - b),
        reduction="none"),
)  # fmt: skip
REDUCE: tuple[Callable[[T, int, bool], T], ...] = (
    lambda x, d, k: x.sum(d, k), lambda x, d, k: x.mean(d, k), lambda x, d, k: x.amax(d, k),
    lambda x, d, k: x.amin(d, k), lambda x, d, k: x.var(d, correction=0, keepdim=k),
    lambda x, d, k: torch.sqrt(x.var(d, correction=0, keepdim=k) + 0.3),
    lambda x, d, k: x.logsumexp(d, k),
    lambda x, d, k: torch.linalg.vector_norm(x + 3, dim=d, keepdim=k),
    lambda x, d, k: (x.abs().clamp(0.5, 1.5)).prod(d, k), lambda x, d, k: x.max(d, k).values,
    lambda x, d, k: x.sum(), lambda x, d, k: x.mean((0, -1), k) if x.dim() > 1 else x.mean(),
    lambda x, d, k: x.min(d, k).values + x.max(d, k).values,
    lambda x, d, k: x.abs().sum(d, k).sqrt() if x.shape[d] > 2 else x.sum(d, k),
)  # fmt: skip
ROWS: tuple[Callable[[T, int], T], ...] = (
    lambda x, d: torch.softmax(x, d), lambda x, d: torch.log_softmax(x, d),
    lambda x, d: F.layer_norm(x, x.shape[-1:], eps=0.1), lambda x, d: x.cumsum(d),
    lambda x, d: F.normalize(x + 2, dim=d), lambda x, d: F.rms_norm(x, x.shape[-1:], eps=0.1),
    lambda x, d: F.group_norm(x[None, None].flatten(2), 1, eps=0.1).view_as(x),
    lambda x, d: F.batch_norm(x.reshape(1, -1, x.shape[-1]).transpose(1, 2), None, None,
                              training=True, eps=0.5).transpose(1, 2).reshape(x.shape),
    lambda x, d: F.layer_norm(x, x.shape[-1:], x.detach().flatten()[: x.shape[-1]],
                              torch.ones(x.shape[-1], dtype=x.dtype), eps=0.1),
    lambda x, d: torch.softmax(x.tril() if x.dim() > 1 else x, -1), lambda x, d: F.glu(
        torch.cat([x, x], d), d),
)  # fmt: skip


def _reshape(x: T, k: int) -> T:
    n = x.numel()
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    first = divisors[k % len(divisors)]
    rest = [d for d in range(1, n // first + 1) if (n // first) % d == 0]
    second = rest[(k // 7) % len(rest)]
    return x.reshape(first, second, n // first // second)


def _pad(x: T, k: int) -> T:
    width = min(1, x.shape[-1] - 1)
    mode = ("reflect", "replicate", "circular")[k % 3]
    return F.pad(x.reshape(1, -1, x.shape[-1]), (width, width), mode=mode).squeeze(0)


VIEWS: tuple[Callable[[T, int, int], T], ...] = (
    lambda x, d, k: x.permute(sorted(range(x.dim()), key=lambda i: ((i + k) * 7919) % 13)),
    lambda x, d, k: _reshape(x, k), lambda x, d, k: x.flip(d), lambda x, d, k: x.roll(k % 5 - 2, d),
    lambda x, d, k: x.narrow(d, k % x.shape[d], x.shape[d] - k % x.shape[d]),
    lambda x, d, k: x[..., :: 1 + k % 3], lambda x, d, k: x.unsqueeze(k % (x.dim() + 1)),
    lambda x, d, k: x.squeeze(), lambda x, d, k: x[..., None].expand(*x.shape, 1 + k % 3),
    lambda x, d, k: x.repeat(*[1] * (x.dim() - 1), 1 + k % 2), lambda x, d, k: x.flatten(),
    lambda x, d, k: x.select(d, k % x.shape[d]), lambda x, d, k: x.transpose(d, -1).contiguous(),
    lambda x, d, k: x.unfold(d, 1 + k % min(2, x.shape[d]), 1),
    lambda x, d, k: x.diagonal() if x.dim() == 2 else x * 1,
    lambda x, d, k: x.tril(k % 3 - 1) if x.dim() > 1 else x + 0,
    lambda x, d, k: torch.stack(x.unbind(d)[::-1], d), lambda x, d, k: x.chunk(2, d)[k % 2 - 1],
    lambda x, d, k: F.pad(x, (k % 3, k % 2 - (x.shape[-1] > 2)), value=0.5),
    lambda x, d, k: _pad(x, k),
    lambda x, d, k: torch.cat(x.split([x.shape[d] // 2, x.shape[d] - x.shape[d] // 2], d)[::-1], d),
    lambda x, d, k: x.repeat_interleave(2, d), lambda x, d, k: x.movedim(d, 0).clone(),
    lambda x, d, k: x.view(-1)[k % x.numel() :] if x.is_contiguous() else x.reshape(-1),
    lambda x, d, k: torch.as_strided(x.contiguous(), (x.numel(), 2), (1, 0)),
)  # fmt: skip


def _at(x: T, d: int, k: int, count: int = 3) -> T:
    return (torch.arange(count) * (k % 3) + k) % x.shape[d]


def _scatter(x: T, y: T, d: int, k: int) -> T:
    index = (torch.arange(x.numel()).view(x.shape) * 5 + k) % x.shape[d]
    source = torch.sin(x) * y.mean()
    match k % 3:
        case 0:
            return x.scatter_add(d, index, source)
        case 1:
            return torch.zeros_like(x).scatter_add(d, index, source)
        case _:
            whole = torch.arange(x.shape[d]).flip(0)
            shape = [x.shape[d] if i == d else 1 for i in range(x.dim())]
            return x.scatter(d, whole.view(shape).expand_as(x), source)


INDEX: tuple[Callable[[T, T, int, int], T], ...] = (
    lambda x, y, d, k: torch.index_select(x, d, _at(x, d, k)),
    lambda x, y, d, k: x.gather(d, (torch.arange(x.numel()).view(x.shape) * 3 + k) % x.shape[d]),
    lambda x, y, d, k: x[_at(x, 0, k), ..., _at(x, -1,
        k) - x.shape[-1]] if x.dim() > 1 else x[_at(x, 0, k)],
    lambda x, y, d, k: F.embedding(_at(x, 0, k, 4), x.reshape(x.shape[0], -1)),
    lambda x, y, d, k: x.index_add(d, _at(x, d, k), torch.tanh(torch.index_select(x, d, _at(x, d,
        k))), alpha=2),
    lambda x, y, d, k: _scatter(x, y, d, k),
    lambda x, y, d, k: x[:, _at(x, 1, k)] if x.dim() > 1 else x[None, :],
    lambda x, y, d, k: x.index_put((_at(x, 0, k),), y.mean(), accumulate=True),
    lambda x, y, d, k: x.index_copy(d, torch.arange(x.shape[d]).flip(0)[:2], 2 * x.narrow(d, 0,
        min(2, x.shape[d]))),
    lambda x, y, d, k: x.index_fill(d, _at(x, d, k), 0.5),
    lambda x, y, d, k: torch.take(x, _at(x.flatten(), 0, k, 5)),
    lambda x, y, d, k: x * F.one_hot(torch.arange(x.shape[-1]) % 2, 2)[:, 0].to(x.dtype),
    lambda x, y, d, k: x * (torch.arange(x.shape[d]) > k % 3).to(x.dtype).view(
        [-1 if i == d else 1 for i in range(x.dim())]),
    lambda x, y, d, k: F.cross_entropy(x.reshape(-1, x.shape[-1]), torch.arange(
        x.numel() // x.shape[-1]) % x.shape[-1], label_smoothing=0.1 * (k % 2)).reshape(1),
    lambda x, y, d, k: x.sort(d).values + x.argsort(d).to(x.dtype) * 0.1,
    lambda x, y, d, k: x.topk(1, d).values,
    lambda x, y, d, k: x + x.argmax(d, keepdim=True).to(x.dtype),
)  # fmt: skip


def _assign(x: T, y: T, k: int) -> T:
    out = x * 1
    match k % 6:
        case 0:
            out[..., 0] = out[..., -1] * 2
        case 1:
            out[..., ::2] += 1.5
            out.mul_(0.5)
        case 2:
            out.add_(y.mean()).tanh_()
        case 3:
            part = out.view(-1)[: max(1, out.numel() // 2)]
            part.mul_(3)
            return out + part.sum()
        case 4:
            out.masked_fill_(out > 0.5, -1.0)
            out[out.shape[0] // 2 :].zero_()
        case _:
            torch.relu_(out)
            out.flatten()[0] = 4.0
    return out


def _fits(a: T, b: T) -> bool:
    pairs = list(zip(reversed(a.shape), reversed(b.shape), strict=False))
    joint = math.prod(max(x, y) for x, y in pairs)
    fits = joint * max(a.numel(), b.numel()) < LIMIT**2
    return fits and all(x == y or 1 in (x, y) for x, y in pairs)


def _product(x: T, y: T, k: int) -> T:
    """Matrix products, whatever the operands' shapes."""
    a = x.reshape(-1, x.shape[-1])
    b = (y.reshape(-1, y.shape[-1]) if y.shape[-1] == x.shape[-1] else a + 1).t()
    match k % 6:
        case 0:
            return a @ b
        case 1:
            return torch.addmm(a.mean(), a, b, beta=0.5, alpha=0.25)
        case 2:
            return torch.bmm(torch.stack([a, a * 2]), torch.stack([b, b + 1]))
        case 3:
            return F.linear(a, b.t(), b.sum(0))
        case 4:
            return torch.einsum("ij,jk->k", a, b)
        case _:
            return torch.outer(a[0], b[0]) if a.shape[1] * b.shape[1] < LIMIT else a[0]


KINDS = ("unary", "unary", "binary", "binary", "reduce", "rows", "view", "view", "index", "assign",
         "product", "dtype", "join")  # fmt: skip


def _step(step: Step, x: T, y: T) -> T:
    kind, which, _, _, k = step
    x = x.unsqueeze(0) if x.dim() == 0 else x
    d = k % x.dim()
    match kind:
        case "unary":
            return UNARY[which % len(UNARY)](x)
        case "binary":
            return BINARY[which % len(BINARY)](x, y) if _fits(x, y) else x - y.mean()
        case "reduce":
            return REDUCE[which % len(REDUCE)](x, d, k % 2 == 0)
        case "rows":
            return ROWS[which % len(ROWS)](x, d)
        case "view":
            return VIEWS[which % len(VIEWS)](x, d, k)
        case "index":
            return INDEX[which % len(INDEX)](x, y, d, k)
        case "assign":
            return _assign(x, y, which)
        case "product":
            return _product(x, y, which)
        case "join" if y.dim() == x.dim() and y.shape[1:] == x.shape[1:]:
            return torch.cat([x, y, x[:1]])
        case _:
            return torch.stack([x, torch.tanh(x)], d)


def _next(step: Step, values: Sequence[T], dtypes: Sequence[torch.dtype]) -> T | None:
    """The result of one step, unless it is too large to go on with."""
    x, y = values[step[2] % len(values)], values[step[3] % len(values)]
    if step[0] == "dtype":
        result = x.to(dtypes[step[4] % len(dtypes)]) * 1
    else:
        joint = torch.promote_types(x.dtype, y.dtype)
        result = _step(step, x.to(joint), y.to(joint))
    return result if 0 < result.numel() <= LIMIT and result.dim() < 6 else None


def sensible(
    steps: Sequence[Step], leaves: Sequence[T], dtypes: Sequence[torch.dtype]
) -> list[Step]:
    """The steps that eager accepts and that lead somewhere."""
    values, kept = [x.detach() for x in leaves], []
    for step in steps:
        try:
            result = _next(step, values, dtypes)
        except (RuntimeError, IndexError, ValueError):
            continue
        if result is not None:
            values.append(result)
            kept.append(step)
    return kept


def run(steps: Sequence[Step], leaves: Sequence[T], dtypes: Sequence[torch.dtype]) -> list[T]:
    """The last values of a `sensible` program; ``dtypes`` are what its conversions choose from."""
    values = list(leaves)
    for step in steps:
        result = _next(step, values, dtypes)
        assert result is not None
        values.append(result)
    return [v * 1.5 for v in values[-1:]] + values[-3:-1]
