"""The gradient of everything that people call, whether it is lowered or a library call.

A decomposition that disagrees with the backward operator it meets, a saved tensor of another
meaning, a layout that only the forward had: all of that shows here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from differentiate import compiled

T = torch.Tensor
D = torch.float64
torch.manual_seed(20261201)


def r(*shape: int) -> T:
    """A leaf."""
    return torch.randn(shape, dtype=D)


def positive(*shape: int) -> T:
    """A leaf of positive numbers."""
    return torch.rand(shape, dtype=D) + 0.5


def _lstm(x: T, *weights: T) -> Any:
    h = torch.zeros(1, 3, 4, dtype=D)
    return torch.lstm(x, (h, h), list(weights), True, 1, 0.0, False, False, False)[0]


#: name -> function, leaves
CASES: dict[str, tuple[Callable[..., Any], tuple[T, ...]]] = {
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), (r(2, 3, 8), r(4, 3, 3), r(4))),
    "conv2d": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), (r(2, 3, 6, 6), r(4, 3, 3, 3))),
    "conv2d grouped": (lambda x, w: F.conv2d(x, w, groups=2), (r(2, 4, 5, 5), r(4, 2, 3, 3))),
    "conv transpose": (lambda x, w: F.conv_transpose2d(x, w, stride=2), (r(1, 3, 4, 4), r(3, 2, 3, 3))),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (r(2, 2, 7, 7),)),
    "max pool 1d": (lambda x: F.max_pool1d(x, 2), (r(2, 2, 8),)),
    "avg pool": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (r(2, 2, 7, 7),)),
    "adaptive avg": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), (r(1, 2, 5, 7),)),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, 2), (r(1, 2, 5, 7),)),
    "lp pool": (lambda x: F.lp_pool2d(x.abs() + 1, 2.0, 2), (r(1, 2, 4, 4),)),
    "fold": (lambda x: F.fold(F.unfold(x, 2), (4, 4), 2), (r(1, 2, 4, 4),)),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), (r(1, 4, 3, 3),)),
    "bilinear": (lambda x: F.interpolate(x, size=(5, 7), mode="bilinear"), (r(1, 2, 3, 4),)),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic"), (r(1, 2, 3, 4),)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.0), (r(1, 2, 3, 4),)),
    "grid sample": (lambda x, g: F.grid_sample(x, g.tanh(), align_corners=True), (r(1, 2, 4, 4), r(1, 3, 3, 2))),
    "affine grid": (lambda t: F.affine_grid(t, [1, 2, 3, 3], align_corners=False), (r(1, 2, 3),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (r(3, 4), r(4), r(4))),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (r(2, 4, 5), r(4), r(4))),
    "instance norm": (lambda x: F.instance_norm(x), (r(2, 3, 5),)),
    "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (r(4, 3, 5), r(3), r(3))),
    "rms norm": (lambda x, w: F.rms_norm(x, (4,), w), (r(3, 4), r(4))),
    "local response": (lambda x: F.local_response_norm(x, 2), (r(1, 4, 3, 3),)),
    "weight norm": (lambda v, g: torch._weight_norm(v, g, 0), (r(3, 4), positive(3, 1))),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (r(1, 2, 4, 8),) * 3),
    "attention causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (r(1, 2, 4, 8),) * 3),
    "attention masked": (lambda q, k, m: F.scaled_dot_product_attention(q, k, k, m), (r(1, 2, 4, 8), r(1, 2, 4, 8), r(4, 4))),
    "lstm": (_lstm, (r(2, 3, 5), r(16, 5), r(16, 4), r(16), r(16))),
    "gru cell": (lambda x, h, w, u, b: torch.gru_cell(x, h, w, u, b, b), (r(2, 3), r(2, 4), r(12, 3), r(12, 4), r(12))),
    "bilinear form": (lambda a, b, w: F.bilinear(a, b, w), (r(3, 2), r(3, 4), r(5, 2, 4))),
    "cdist": (lambda a, b: torch.cdist(a, b), (r(3, 4), r(5, 4))),
    "pdist": (lambda a: F.pdist(a), (r(4, 3),)),
    "pairwise": (lambda a, b: F.pairwise_distance(a, b), (r(3, 4), r(3, 4))),
    "triplet": (lambda a, b, c: F.triplet_margin_loss(a, b, c), (r(3, 4), r(3, 4), r(3, 4))),
    "multi margin": (lambda x: F.multi_margin_loss(x, torch.tensor([0, 2])), (r(2, 4),)),
    "soft margin": (lambda x: F.soft_margin_loss(x, x.detach().sign()), (r(2, 4),)),
    "embedding bag": (lambda w: F.embedding_bag(torch.tensor([[0, 1], [3, 3]]), w, mode="mean"), (r(4, 3),)),
    "embedding bag max": (lambda w: F.embedding_bag(torch.tensor([[0, 1], [3, 2]]), w, mode="max"), (r(4, 3),)),
    "inverse": (lambda x: torch.linalg.inv(x + 5 * torch.eye(3, dtype=D)), (r(3, 3),)),
    "det": (lambda x: torch.linalg.slogdet(x @ x.t() + torch.eye(3, dtype=D)).logabsdet, (r(3, 3),)),
    "cholesky": (lambda x: torch.linalg.cholesky(x @ x.t() + torch.eye(3, dtype=D)), (r(3, 3),)),
    "svd": (lambda x: torch.linalg.svdvals(x), (r(3, 4),)),
    "eigh": (lambda x: torch.linalg.eigvalsh(x + x.t()), (r(3, 3),)),
    "solve": (lambda a, b: torch.linalg.solve(a + 5 * torch.eye(3, dtype=D), b), (r(3, 3), r(3, 2))),
    "qr": (lambda x: torch.linalg.qr(x).R.abs(), (r(4, 3),)),
    "matrix exp": (lambda x: torch.matrix_exp(x), (r(3, 3),)),
    "norms": (lambda x: torch.linalg.matrix_norm(x) + x.norm(1) + x.norm(3.0, 0).sum() + x.norm(float("inf")), (r(3, 4),)),
    "fft": (lambda x: torch.fft.rfft(x).abs(), (r(3, 8),)),
    "fft parts": (lambda x: torch.view_as_real(torch.fft.fft(x)) * 2, (r(3, 8),)),
    "complex": (lambda x: torch.view_as_real(torch.complex(x, x * 2) * torch.complex(x.sin(), x)), (r(5),)),
    "polar": (lambda x: torch.polar(x.abs() + 1, x).angle(), (r(5),)),
    "cumprod": (lambda x: x.cumprod(0), (r(4, 3),)),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), (r(4, 3),)),
    "cummax": (lambda x: x.cummax(0).values + x.cummin(1).values, (r(4, 3),)),
    "prod with zeros": (lambda x: (x * (x > 0)).prod(1), (r(3, 4),)),
    "std": (lambda x: x.std(0) + torch.std_mean(x, 1)[1].sum(), (r(4, 4),)),
    "kthvalue": (lambda x: x.kthvalue(2, 1).values + x.mode(0).values.sum(), (r(4, 4),)),
    "quantile": (lambda x: x.quantile(0.3, 1) + x.nanmedian(), (r(4, 5),)),
    "masked select": (lambda x: torch.where(x > 0, x, 0.0).sum(1), (r(4, 5),)),
    "masked scatter": (lambda x, s: x.masked_scatter(x.detach() > 0, s), (r(3, 4), r(12))),
    "scatter mean": (lambda x, s: x.scatter_reduce(0, torch.zeros(2, 4, dtype=torch.long), s, "mean"), (r(3, 4), r(2, 4))),
    "scatter amax": (lambda x, s: x.scatter_reduce(0, torch.zeros(2, 4, dtype=torch.long), s, "amax"), (r(3, 4), r(2, 4))),
    "scatter prod": (lambda x, s: x.scatter_reduce(0, torch.zeros(2, 4, dtype=torch.long), s, "prod", include_self=False), (r(3, 4), r(2, 4))),
    "put": (lambda x, s: x.put(torch.tensor([1, 5]), s, accumulate=True), (r(3, 4), r(2))),
    "slice scatter": (lambda x, s: x.slice_scatter(s, 1, 1, 3), (r(3, 4), r(3, 2))),
    "select scatter": (lambda x, s: x.select_scatter(s, 0, 1).diagonal_scatter(s[:3]), (r(3, 4), r(4))),
    "as strided": (lambda x: x.as_strided((3, 2), (1, 2), 1) * x.as_strided((3, 2), (2, 1)), (r(3, 4),)),
    "unfold": (lambda x: x.unfold(1, 3, 2), (r(2, 8),)),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 2), (r(3, 2, 4), r(2, 4, 5))),
    "kron": (lambda a, b: torch.kron(a, b), (r(2, 2), r(2, 3))),
    "cross": (lambda a, b: torch.linalg.cross(a, b), (r(4, 3), r(4, 3))),
    "renorm": (lambda x: x.renorm(2, 0, 1.0), (r(3, 4),)),
    "dist": (lambda a, b: torch.dist(a, b, 3), (r(4), r(4))),
    "special": (lambda x: torch.special.i0(x) + torch.digamma(x) + torch.lgamma(x) + torch.special.ndtri(x / 3), (positive(5),)),
    "more special": (lambda x: torch.special.erfcx(x) + torch.special.entr(x) + torch.polygamma(1, x) + torch.sinc(x), (positive(5),)),
    "erfinv": (lambda x: torch.erfinv(x.tanh() * 0.9) + torch.logit(x.sigmoid()), (r(5),)),
    "trig": (lambda x: torch.acosh(x + 1) + torch.acos(x / 3) + torch.asin(x / 3) + torch.atanh(x / 3) + torch.tan(x / 2), (positive(5),)),
    "rounding": (lambda x: x.frac() + x.trunc() * x + x.floor() + x.round(decimals=1) * x, (r(6),)),
    "remainders": (lambda a, b: torch.remainder(a, b) + torch.fmod(a, b), (r(6), positive(6))),
    "lerp tensor": (lambda a, b, w: torch.lerp(a, b, w), (r(4), r(4), r(4))),
    "pow": (lambda a, b: a**b + 2.0**b + a**2.5 + a.float_power(1.5), (positive(5), r(5))),
    "xlogy": (lambda a, b: torch.xlogy(a, b) + torch.special.xlog1py(a, b) + torch.logaddexp2(a, b), (positive(4), positive(4))),
    "hypot, heaviside": (lambda a, b: torch.hypot(a, b) + torch.heaviside(a.detach(), b.detach()) * b, (r(4), r(4))),
    "activations": (lambda x: F.selu(x) + F.celu(x) + F.hardshrink(x) + F.tanhshrink(x) + F.threshold(x, 0.1, 2.0) + F.relu6(x), (r(12),)),
    "prelu": (lambda x, w: F.prelu(x, w), (r(2, 3, 4), r(3))),
    "rrelu": (lambda x: F.rrelu(x, training=False), (r(5),)),
    "gumbel": (lambda x: F.softmin(x, 0) + F.softsign(x), (r(5),)),
    "pads": (lambda x: F.pad(x, (1, 2, 0, 1), "replicate") + F.pad(x, (2, 1, 1, 0), "reflect"), (r(1, 3, 4),)),
    "circular": (lambda x: F.pad(x, (1, 2), "circular") * F.pad(x, (2, 1), value=2.0), (r(1, 3, 4),)),
    "trace": (lambda x: x.trace() + x.diag().prod() + torch.diag_embed(x).sum(0), (r(3, 3),)),
    "trapezoid": (lambda x: torch.trapezoid(x, dim=0) + torch.diff(x, dim=0).sum(0), (r(4, 3),)),
    "rot90": (lambda x: x.rot90() + x.fliplr().t() + x.swapaxes(0, 1), (r(3, 3),)),
    "meshgrid": (lambda a, b: sum(torch.meshgrid(a, b, indexing="ij")), (r(3), r(4))),
    "cartesian": (lambda a, b: torch.cartesian_prod(a, b) + torch.block_diag(a, b).sum(), (r(3), r(4))),
    "segment": (lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([1, 3])), (r(4, 2),)),
    "cosine": (lambda a, b: F.cosine_similarity(a, b, 0), (r(3, 4), r(3, 4))),
    "chain": (lambda a, b, c: torch.linalg.multi_dot([a, b, c]), (r(2, 3), r(3, 4), r(4, 2))),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2), (r(2, 3, 5), r(2, 3, 4), r(2, 4, 5))),
    "addmv": (lambda c, a, b: torch.addmv(c, a, b) + torch.addr(a, c, b).sum(1) + a.mv(b), (r(3), r(3, 4), r(4))),
}  # fmt: skip
# ruff: noqa: E501

#: Graphs that run op by op, and a word of the reason.
REFUSED = {
    "inverse": "with_effects", "cholesky": "with_effects", "solve": "with_effects",
    "complex": "conjugated", "polar": "complex number",
}  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients(name):
    """The compiled function and its backward equal eager's, in float64."""
    fn, leaves = CASES[name]
    mine = [x.clone().requires_grad_() for x in leaves]
    theirs = [x.clone().requires_grad_() for x in leaves]
    refused: list[str] = []
    (got,) = compiled(lambda *a: [fn(*a)], mine, refused)(*mine)
    want = fn(*theirs)
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9, equal_nan=True)
    weight = torch.randn_like(want)
    grads = torch.autograd.grad((got * weight).sum(), mine, allow_unused=True)
    wants = torch.autograd.grad((want * weight).sum(), theirs, allow_unused=True)
    for position, (a, b) in enumerate(zip(grads, wants, strict=True)):
        if b is None:
            assert a is None or not bool(a.any()), position
        else:
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9, equal_nan=True)
    assert bool(refused) == (name in REFUSED)
    assert all(REFUSED[name] in reason for reason in refused)
