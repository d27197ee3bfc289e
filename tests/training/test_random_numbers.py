"""Random numbers of compiled graphs: the generator, its reproducibility, and the distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._functorch import config as functorch_config

from kernelfarm.compiler.runtime.interpreted_language import language
from kernelfarm.compiler.trace import random_ops

ours = torch.ops.kernelfarm


def _kernel(name: str, seed: int, positions: list[int]) -> np.ndarray:
    """What a device function gives at these positions, by the interpreter."""
    lang = language()

    def block(values: list[int]):
        data = np.array(values, dtype=np.int64)
        handle = lang.interpreter.TensorHandle(data, lang.tl.int64)
        return lang.tl.tensor(handle, lang.tl.block_type(lang.tl.int64, [len(values)]))

    result = getattr(lang.kf, name)(block([seed]), block(positions))
    return result.handle.data


def test_the_generator_is_philox():
    """Seed and position zero give the published words for key and counter zero."""
    words = random_ops.words_at(torch.zeros(1, dtype=torch.int64), torch.zeros(1).long())
    assert [int(w) for w in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


PLACES = [0, 1023, 2**31 - 1, 2**31, 2**32 - 1, 2**32 + 1, 2**40 + 7, 2**62 + 3]


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF])
def test_kernels_and_torch_operators_draw_the_same_numbers(seed):
    """Uniform numbers and bits agree exactly, normal ones to rounding, at positions of 64 bits."""
    at = torch.tensor(PLACES)
    words = random_ops.words_at(torch.tensor([seed]), at)
    same = {
        "uniform": torch.float32,
        "uniform64": torch.float64,
        "uniform_f16": torch.float16,
        "uniform_bf16": torch.bfloat16,
    }
    for name, dtype in same.items():
        want = random_ops.uniform_from(words, dtype).double().numpy()
        np.testing.assert_array_equal(_kernel(name, seed, PLACES).astype(np.float64), want)
    np.testing.assert_array_equal(
        _kernel("bits", seed, PLACES), random_ops.bits_from(words).numpy()
    )
    for name, dtype in {"normal": torch.float32, "normal64": torch.float64}.items():
        want = random_ops.normal_from(words, dtype).numpy()
        np.testing.assert_allclose(_kernel(name, seed, PLACES), want, rtol=1e-4, atol=1e-6)


def test_positions_far_apart_share_no_numbers():
    """Elements that agree in the lower 32 bits of their position are unrelated."""
    near = torch.arange(4096)
    seed = torch.tensor([5])
    low = random_ops.uniform_from(random_ops.words_at(seed, near), torch.float64)
    for shift in (32, 40, 55):
        far = random_ops.uniform_from(random_ops.words_at(seed, near + (1 << shift)), low.dtype)
        assert abs(torch.corrcoef(torch.stack([low, far]))[0, 1]) < 5 / math.sqrt(4096)


def test_extreme_words_stay_in_range():
    """The largest words give numbers below one, the smallest a finite logarithm."""
    for word in (0, 0xFFFFFFFF):
        words = [torch.tensor([word])] * 4
        for dtype in random_ops.PRECISION:
            value = random_ops.uniform_from(words, dtype)
            assert 0 <= value < 1
            assert torch.isfinite(random_ops.normal_from(words, dtype)).all()


def test_a_seed_reproduces_a_run_and_calls_differ(compiled):
    """torch.manual_seed decides what is drawn; the next call draws something else."""
    run = compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(4096)
    torch.manual_seed(3)
    first, second = run(x), run(x)
    torch.manual_seed(3)
    assert torch.equal(run(x), first)
    assert torch.equal(run(x), second)
    assert not torch.equal(first, second)


def test_equal_calls_in_one_graph_are_independent(compiled):
    """Two dropouts of one tensor are two draws, and nothing merges them."""
    a, b = compiled(lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5)))(torch.ones(4096))
    both = (a * b != 0).float().mean()
    assert 0.21 < both < 0.29


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("p", [0.1, 0.75])
def test_dropout_keeps_its_share_and_scale(compiled, dtype, p):
    """Of many elements a share of 1 - p is kept and multiplied by 1 / (1 - p), in any precision."""
    out = compiled(lambda x: F.dropout(x, p))(torch.ones(200, 100, dtype=dtype))
    kept = out != 0
    assert torch.equal(out[kept], torch.full_like(out[kept], 1 / (1 - p)))
    deviation = math.sqrt(p * (1 - p) / out.numel())
    assert abs(float(kept.double().mean()) - (1 - p)) < 5 * deviation


@pytest.mark.slow
def test_dropout_in_bfloat16_is_not_quantised(compiled):
    """A probability finer than eight bits is kept: 0.4 percent and not the nearest 1/256."""
    out = compiled(lambda x: F.dropout(x, 0.001))(torch.ones(200, 400, dtype=torch.bfloat16))
    assert abs(float((out == 0).double().mean()) - 0.001) < 5 * math.sqrt(0.001 / 80_000)


def test_dropout_at_its_ends(compiled):
    """Nothing is dropped for p = 0 and in evaluation; for p = 1 zeros remain, of NaN as well."""
    x = torch.randn(64, 8)
    run = compiled(lambda x: (F.dropout(x, 0.0), F.dropout(x, 1.0), F.dropout(x, 0.5, False)))
    none, all_, evaluation = run(x)
    assert torch.equal(none, x)
    assert torch.equal(evaluation, x)
    assert torch.equal(all_, torch.zeros_like(x))
    nan = torch.full((64,), math.nan, requires_grad=True)
    torch._dynamo.reset()
    out = compiled(lambda x: F.dropout(x, 1.0))(nan)
    assert torch.equal(out, torch.zeros(64))
    out.sum().backward()
    assert torch.equal(nan.grad, torch.zeros(64))


def test_dropout_in_place(compiled):
    """The operand itself is thinned, and the gradient goes through the same mask."""
    x = torch.ones(512, requires_grad=True)

    def fn(x):
        y = x * 2
        F.dropout(y, 0.5, inplace=True)
        return y

    out = compiled(fn)(x)
    out.sum().backward()
    assert torch.equal(x.grad, out)
    assert 0.3 < float((out != 0).float().mean()) < 0.7


def test_gradients_use_the_mask_of_the_forward(compiled):
    """Backward multiplies by the very mask that forward drew, through several dropouts."""
    x = torch.randn(64, 32, dtype=torch.float64, requires_grad=True)
    w = torch.randn(32, 32, dtype=torch.float64, requires_grad=True)

    def fn(x, w):
        h = F.dropout(torch.tanh(x), 0.3)
        return F.dropout(h @ w, 0.5), (h != 0)

    out, first = compiled(fn)(x, w)
    out.sum().backward()
    second = (out != 0).double() / 0.5
    h = torch.tanh(x.detach()) * first / 0.7
    torch.testing.assert_close(out.detach(), (h @ w.detach()) * second)
    torch.testing.assert_close(w.grad, h.t() @ second)
    want = (second @ w.detach().t()) * first / 0.7 * (1 - torch.tanh(x.detach()) ** 2)
    torch.testing.assert_close(x.grad, want)


def test_a_backward_that_runs_op_by_op_sees_the_same_mask(backend, compiled, monkeypatch):
    """Where the backward graph cannot be compiled, torch operators compute what kernels did."""
    real, kinds = backend.compile_graph, []

    def only_forward(gm, inputs, context):
        kinds.append(gm)
        if len(kinds) > 1:
            raise RuntimeError("no backward today")
        return real(gm, inputs, context)

    monkeypatch.setattr(backend, "compile_graph", only_forward)
    x = torch.ones(512, requires_grad=True)
    with functorch_config.patch(activation_memory_budget=0.01):
        out = compiled(lambda x: F.dropout(torch.sin(x), 0.5).exp(), strict=False)(x)
        out.sum().backward()
    assert len(kinds) == 2
    kept = out.detach() != 1
    want = kept * 2 * math.cos(1) * torch.exp(torch.tensor(2 * math.sin(1)))
    torch.testing.assert_close(x.grad, want)


@pytest.mark.parametrize("budget", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("fallback", [False, True])
def test_a_memory_budget_never_draws_twice(compiled, budget, fallback):
    """However little may be saved, a seed (or what eager's operator drew) is not drawn again."""
    x = torch.randn(256, requires_grad=True)

    def fn(x):
        return F.dropout(torch.sin(x), 0.5) * torch.rand_like(x)

    with functorch_config.patch(activation_memory_budget=budget):
        out = compiled(fn, fallback_random=fallback)(x)
        out.sum().backward()
    factor = out.detach() / torch.sin(x.detach())
    torch.testing.assert_close(x.grad, factor * torch.cos(x.detach()), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_distributions(compiled):
    """Mean, deviation and range of every distribution that we draw ourselves."""
    n = 6_000

    def fn(x):
        p = torch.full((n,), 0.25)
        return (
            torch.rand(n), torch.rand_like(x.bfloat16()), torch.rand(n, dtype=torch.float64),
            torch.randn(n), torch.randn_like(x.double()), torch.randn(n, dtype=torch.float16),
            torch.bernoulli(p), torch.empty(n).bernoulli_(0.75), torch.empty(n).uniform_(2, 5),
            torch.empty(n).normal_(5, 2), torch.randint(0, 10, (n,)),
            torch.randint(-5, 5, (n,), dtype=torch.float32), torch.randint_like(x, 3, 7),
        )  # fmt: skip

    third = 1 / math.sqrt(12)
    want = [
        (0.5, third, 0, 1), (0.5, third, 0, 1), (0.5, third, 0, 1), (0, 1, -7, 7), (0, 1, -9, 9),
        (0, 1, -7, 7), (0.25, math.sqrt(3) / 4, 0, 1), (0.75, math.sqrt(3) / 4, 0, 1),
        (3.5, 3 * third, 2, 5), (5, 2, -9, 19), (4.5, math.sqrt(99 / 12), 0, 9),
        (-0.5, math.sqrt(99 / 12), -5, 4), (4.5, math.sqrt(15 / 12), 3, 6),
    ]  # fmt: skip
    results = compiled(fn)(torch.zeros(n))
    for position, (got, eager, (mean, deviation, low, high)) in enumerate(
        zip(results, fn(torch.zeros(n)), want, strict=True)
    ):
        assert got.dtype == eager.dtype, position
        value = got.double()
        assert abs(value.mean() - mean) < 6 * deviation / math.sqrt(n) + 2e-3, position
        assert abs(value.std() - deviation) < 0.06 * deviation, position
        assert low <= value.min(), position
        assert value.max() <= high, position
        if position in (0, 1, 2, 8):
            assert value.max() < high, position


@pytest.mark.slow
def test_normal_numbers_have_the_moments_of_the_normal_distribution(compiled):
    """Skewness zero, kurtosis three, and neighbours are not correlated."""
    x = compiled(lambda x: torch.randn_like(x))(torch.zeros(30_000)).double()
    assert abs((x**3).mean()) < 6 * math.sqrt(15 / x.numel())
    assert abs((x**4).mean() - 3) < 6 * math.sqrt(96 / x.numel())
    assert abs((x[1:] * x[:-1]).mean()) < 6 / math.sqrt(x.numel())


def test_fallback_random_keeps_eagers_numbers(compiled):
    """Under the knob, the same seed gives eager's own numbers, in eager's order."""

    def fn(x):
        a = torch.rand_like(x)
        b = torch.randn(100)
        c = torch.bernoulli(torch.full((100,), 0.3))
        return a * 2, b + 1, c - 1, torch.rand(100) + torch.rand(100)

    torch.manual_seed(9)
    want = fn(torch.zeros(100))
    torch.manual_seed(9)
    got = compiled(fn, fallback_random=True)(torch.zeros(100))
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


def test_fallback_random_is_part_of_the_graph_key(backend):
    """Graphs with and without the knob never meet in a store."""
    from kernelfarm.knobs import resolve

    plain = resolve({}, environ={}).key_parts()
    ours_off = resolve({"fallback_random": True}, environ={}).key_parts()
    assert plain != ours_off


def test_functional_random_operators_that_torch_would_merge_stay_apart(compiled):
    """Two equal in-place draws are two draws, also where eager's operators are kept."""

    def fn(x):
        a, b = (torch.empty(1000).exponential_() for _ in range(2))
        c, d = (torch.empty(1000).uniform_() for _ in range(2))
        return x * a, x * b, x * c, x * d

    for knob in (False, True):
        torch._dynamo.reset()
        a, b, c, d = compiled(fn, fallback_random=knob)(torch.ones(1000, requires_grad=True))
        assert not torch.equal(a, b)
        assert not torch.equal(c, d)


def test_layout_follows_the_operand(compiled):
    """rand_like of a transposed tensor is laid out as eager's, and elements are by position."""
    x = torch.zeros(6, 10).t()
    out = compiled(lambda x: torch.rand_like(x))(x)
    assert out.stride() == torch.rand_like(x).stride()
    assert out.unique().numel() == out.numel()


def test_feature_and_alpha_dropout_compile(compiled):
    """The other dropouts keep their meaning: whole channels go, moments stay."""
    x = torch.randn(32, 8, 5, 5)
    whole = compiled(lambda x: F.dropout2d(x, 0.5))(x)
    gone = (whole == 0).flatten(2)
    assert torch.equal(gone.all(-1), gone.any(-1))
    torch._dynamo.reset()
    alpha = compiled(lambda x: F.alpha_dropout(x, 0.2, training=True))(torch.randn(100, 100))
    assert abs(alpha.mean()) < 0.06
    assert abs(alpha.std() - 1) < 0.06


def test_the_dropouts_of_all_layers_are_one_kernel(backend, compiled):
    """A seed is data: equal layers need equal kernels, whatever they draw."""
    x = torch.randn(64, 32)

    def fn(x):
        for _ in range(6):
            x = F.dropout(torch.tanh(x), 0.1) @ x.t() @ x
        return x

    compiled(fn)(x)
    assert len({name for name, _ in backend.REPORT.emitted}) == 1


def test_one_draw_serves_a_graph(backend, compiled):
    """However many random operators there are, the generator is asked once a call."""
    compiled(lambda x: F.dropout(x, 0.5) + torch.rand_like(x) * torch.randn_like(x))(torch.ones(9))
    assert backend.REPORT.operators["fallback"] == {"aten.randint.low": 1}
