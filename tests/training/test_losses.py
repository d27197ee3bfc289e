"""Losses over classes and tables: values and gradients equal eager's, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

OPTIONS = {
    "plain": {},
    "ignored": {"ignore_index": 3},
    "ignored by default": {},
    "smoothed": {"label_smoothing": 0.1},
    "weighted": {"weight": True},
    "weighted, smoothed, ignored": {"weight": True, "label_smoothing": 0.2, "ignore_index": 0},
}


def agree(fn, compiled, *leaves, rest=(), rtol=1e-9, atol=1e-10):
    """Values and gradients of a compiled function of leaves equal eager's."""
    mine = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in leaves]
    theirs = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in leaves]
    got, want = compiled(fn)(*mine, *rest), fn(*theirs, *rest)
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
    weight = torch.randn_like(want)
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.every(4)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", OPTIONS)
def test_cross_entropy(compiled, name, reduction):
    """Every option and reduction: ignored targets, class weights, label smoothing."""
    options = dict(OPTIONS[name], reduction=reduction)
    logits = torch.randn(12, 7, dtype=torch.float64)
    target = torch.randint(0, 7, (12,))
    if name == "ignored by default":
        target[::3] = -100
    if options.get("weight"):
        options["weight"] = torch.rand(7, dtype=torch.float64) + 0.1
    agree(lambda x, t: F.cross_entropy(x, t, **options), compiled, logits, rest=(target,))


def test_cross_entropy_of_nothing_is_not_a_number(compiled):
    """A mean over no target is NaN with a zero gradient, as in eager."""
    logits, target = torch.randn(4, 5, dtype=torch.float64), torch.full((4,), -100)
    agree(lambda x, t: F.cross_entropy(x, t), compiled, logits, rest=(target,))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nll_loss_over_pictures(compiled, reduction):
    """Targets for each pixel, classes in the second dimension."""
    x = torch.randn(2, 5, 3, 4, dtype=torch.float64).log_softmax(1)
    target = torch.randint(0, 5, (2, 3, 4))
    weight = torch.rand(5, dtype=torch.float64)
    agree(
        lambda x, t: F.nll_loss(x, t, weight, reduction=reduction, ignore_index=1),
        compiled, x, rest=(target,),
    )  # fmt: skip


def test_cross_entropy_with_probabilities(compiled):
    """Targets that are distributions."""
    x, p = torch.randn(6, 5, dtype=torch.float64), torch.rand(6, 5, dtype=torch.float64)
    agree(lambda x, p: F.cross_entropy(x, p, label_smoothing=0.1), compiled, x, rest=(p,))


def test_cross_entropy_in_bfloat16(compiled):
    """Half-precision logits: the loss agrees to their precision, the gradient too."""
    x, target = torch.randn(16, 50).bfloat16(), torch.randint(0, 50, (16,))
    agree(lambda x, t: F.cross_entropy(x, t), compiled, x, rest=(target,), rtol=2e-2, atol=1e-3)


def test_a_target_out_of_range_gives_no_number(compiled):
    """Undefined in a kernel: the loss is NaN, and nothing outside the tensor is read or written."""
    x = torch.randn(4, 5, requires_grad=True)
    loss = compiled(lambda x, t: F.cross_entropy(x, t))(x, torch.tensor([0, 1, 77, 3]))
    assert torch.isnan(loss)
    loss.backward()


def test_cross_entropy_is_not_computed_by_library_calls(backend, compiled):
    """Forward and backward are kernels; no operator of the loss is left to the library."""
    x, target = torch.randn(8, 11, requires_grad=True), torch.randint(0, 11, (8,))
    compiled(lambda x, t: F.cross_entropy(x, t))(x, target).backward()
    assert backend.REPORT.operators["fallback"] == {}


LOSSES = {
    "mse": F.mse_loss, "l1": F.l1_loss, "smooth l1": F.smooth_l1_loss, "huber": F.huber_loss,
    "kl": lambda a, b: F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="batchmean"),
    "bce": lambda a, b: F.binary_cross_entropy(a.sigmoid(), b.sigmoid()),
    "bce logits": lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid()),
    "cosine": lambda a, b: F.cosine_similarity(a, b),
    "margin": lambda a, b: F.margin_ranking_loss(a[0], b[0], torch.ones(7, dtype=a.dtype)),
    "hinge": lambda a, b: F.hinge_embedding_loss(a, b.sign()),
    "gaussian": lambda a, b: F.gaussian_nll_loss(a, b, b.exp()),
    "poisson": lambda a, b: F.poisson_nll_loss(a, b.exp()),
}  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("name", LOSSES)
def test_other_losses(compiled, name):
    """Values and both gradients."""
    a, b = (torch.randn(4, 7, dtype=torch.float64) for _ in range(2))
    agree(LOSSES[name], compiled, a, b)


READS = {
    "embedding": lambda w, i: F.embedding(i, w),
    "padding": lambda w, i: F.embedding(i, w, padding_idx=2),
    "frequency": lambda w, i: F.embedding(i, w, scale_grad_by_freq=True),
    "index": lambda w, i: w[i],
    "negative": lambda w, i: w[i - 5],
    "columns": lambda w, i: w[:, i % 4],
    "select": lambda w, i: w.index_select(0, i.flatten()),
    "gather": lambda w, i: w.gather(0, i.flatten()[:4].expand(5, 4)),
    "take": lambda w, i: w.take(i),
    "take along": lambda w, i: torch.take_along_dim(w, i.flatten()[:5, None] % 4, 1),
    "scatter add": lambda w, i: w.scatter_add(0, i.flatten()[:4].expand(3, 4), w[:3] * w[:3]),
    "index add": lambda w, i: w.index_add(0, i.flatten(), w[i.flatten()] * 2),
    "index copy": lambda w, i: w.index_copy(0, torch.tensor([2, 0]), w[:2] * w[3:5]),
    "index put": lambda w, i: w.clone().index_put((torch.tensor([1, 3]),), w[0] * w[2]),
    "assigned": lambda w, i: _assigned(w),
    "masked": lambda w, i: w.masked_fill(w > 0, 2.0) * w,
    "scatter": lambda w, i: w.scatter(1, torch.tensor([[1, 3]] * 5), w[:, :2] ** 2),
    "unfold": lambda w, i: w.unfold(0, 2, 1).sum(-1),
    "sort": lambda w, i: w.sort(0).values * torch.arange(5.0, dtype=w.dtype)[:, None],
    "topk": lambda w, i: w.topk(2, -1).values,
    "max": lambda w, i: w.max(0).values,
    "amax": lambda w, i: w.amax(1) + w.amin(1),
    "median": lambda w, i: w.median(0).values,
    "cumsum": lambda w, i: w.cumsum(0) * w.cumprod(1),
    "roll, flip": lambda w, i: w.roll(1, 0) * w.flip(1) + w.diagonal().sum(),
    "tril": lambda w, i: w.tril() * w.triu(1).sum(),
    "repeat": lambda w, i: w.repeat_interleave(2, 0) * 2 + w.repeat(2, 1),
}  # fmt: skip


def _assigned(w):
    y = w * 2
    y[1:3, ::2] = w[3:5, ::2] * w[0, 0]
    y[4] += w[1]
    y[:, -1] = 0
    return y


@pytest.mark.every(3)
@pytest.mark.parametrize("name", READS)
def test_gradients_of_reads_and_writes(compiled, name):
    """Whatever is read at positions gets its gradient back there, summed where read twice."""
    w, i = torch.randn(5, 4, dtype=torch.float64), torch.randint(0, 5, (2, 6))
    agree(lambda w, i: READS[name](w, i), compiled, w, rest=(i,))


def test_an_assertion_of_eager_is_kept(backend, compiled):
    """one_hot asserts that classes are not negative; the graph compiles and still asserts."""
    run = compiled(lambda x, i: (x * F.one_hot(i, 4).to(x.dtype)).sum(0))
    x, good = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 3, 2])
    torch.testing.assert_close(run(x, good), (x * F.one_hot(good, 4)).sum(0))
    assert "aten._assert_async.msg" in backend.REPORT.operators["fallback"]
    with pytest.raises(RuntimeError, match="non-negative"):
        run(x, torch.tensor([0, -1, 2]))


@pytest.mark.every(3)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_margin_loss_of_several_classes(compiled, reduction):
    """Only what stands before the first -1 names a class, in rows that are full, short or empty."""
    x = torch.randn(4, 5, dtype=torch.float64)
    rows = [[2, 0, 4, 1, 3], [3, -1, 0, 0, 0], [-1, 1, 2, 3, 4], [1, 1, 4, -1, 2]]
    target = torch.tensor(rows)

    def both(x, t):
        few = F.multilabel_margin_loss(x[3], t[3], reduction=reduction)
        return F.multilabel_margin_loss(x, t, reduction=reduction) + few

    agree(both, compiled, x, rest=(target,))
