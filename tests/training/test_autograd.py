"""Training through the backend: modes, hooks, accumulation, aliases and optimisers as in eager."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.convert_frame import ConvertFrame

from kernelfarm.compiler import pipeline

#: Dynamo looks for gradients on inputs that are no leaves; it hides the warning unless it is fatal.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


def mlp(dtype: torch.dtype = torch.float64) -> nn.Module:
    """A small network with a norm, an activation and tied weights."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            self.norm = nn.LayerNorm(8)
            self.inner = nn.Linear(8, 16)
            self.outer = nn.Linear(16, 8)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens)
            x = x + self.outer(F.gelu(self.inner(self.norm(x))))
            return x @ self.embed.weight.t()

    return Tied().to(dtype)


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    data = torch.randint(0, 11, (3, 5))
    return data[:, :-1], data[:, 1:].flatten()


def loss_of(model, x, y):
    """Cross entropy of the next token."""
    return F.cross_entropy(model(x).flatten(0, 1), y)


def same_grads(mine: nn.Module, theirs: nn.Module, **tolerance: float) -> None:
    """Every parameter has eager's gradient, or none where eager has none."""
    for (name, a), (_, b) in zip(mine.named_parameters(), theirs.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if b.grad is not None:
            torch.testing.assert_close(
                a.grad, b.grad, **tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_tied_weights_add_both_gradients(compiled):
    """An embedding that is the output layer too receives the sum."""
    mine, theirs, (x, y) = mlp(), None, tokens()
    theirs = copy.deepcopy(mine)
    loss_of(compiled(mine), x, y).backward()
    loss_of(theirs, x, y).backward()
    same_grads(mine, theirs)


def test_gradients_accumulate_over_several_backwards(compiled):
    """Three backward calls add up, and zero_grad starts again."""
    mine, theirs = mlp(), None
    theirs = copy.deepcopy(mine)
    run = compiled(mine)
    for _ in range(3):
        x, y = tokens()
        loss_of(run, x, y).backward()
        loss_of(theirs, x, y).backward()
    same_grads(mine, theirs)
    mine.zero_grad(), theirs.zero_grad()
    x, y = tokens()
    loss_of(run, x, y).backward()
    loss_of(theirs, x, y).backward()
    same_grads(mine, theirs)


def test_frozen_parameters_get_no_gradient(compiled):
    """What does not require a gradient has none; the rest is unchanged."""
    mine, (x, y) = mlp(), tokens()
    mine.inner.weight.requires_grad_(False)
    mine.norm.requires_grad_(False)
    theirs = copy.deepcopy(mine)
    loss_of(compiled(mine), x, y).backward()
    loss_of(theirs, x, y).backward()
    same_grads(mine, theirs)
    assert mine.inner.weight.grad is None


def test_inputs_that_require_gradients(compiled):
    """A leaf input and an input that is itself computed both get theirs."""
    w = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    v = w.detach().clone().requires_grad_()

    def fn(x, y):
        return torch.tanh(x @ y) + x

    compiled(fn)(w, w * 2).sum().backward()
    fn(v, v * 2).sum().backward()
    torch.testing.assert_close(w.grad, v.grad)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_without_gradients(compiled, mode):
    """The same callable in training, without gradients, and in training again."""
    mine, (x, _) = mlp(), tokens()
    run = compiled(mine)
    trained = run(x)
    with mode():
        silent = run(x)
    assert trained.requires_grad
    assert not silent.requires_grad
    torch.testing.assert_close(silent, mine(x).detach())
    assert run(x).requires_grad


def test_grad_modes_inside_the_function(compiled):
    """no_grad and enable_grad inside decide which parts are differentiated."""

    def fn(x):
        with torch.no_grad():
            scale = torch.sigmoid(x * 3)
            with torch.enable_grad():
                y = torch.sin(x)
        return y * scale + x.detach() * x

    a = torch.randn(6, dtype=torch.float64, requires_grad=True)
    b = a.detach().clone().requires_grad_()
    compiled(fn)(a).sum().backward()
    fn(b).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)
    with torch.no_grad():
        torch.testing.assert_close(compiled(fn)(a), fn(b))


def test_retain_graph_gives_the_gradient_twice(compiled):
    """A graph that is kept can be gone through again."""
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    out = compiled(lambda x: torch.tanh(x) * torch.exp(x))(x).sum()
    (first,) = torch.autograd.grad(out, x, retain_graph=True)
    (second,) = torch.autograd.grad(out, x)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, x)


def test_double_backward_says_that_it_is_not_supported(compiled):
    """A gradient of a gradient is refused as by every compiled backward, never wrong."""
    x = torch.randn(5, requires_grad=True)
    out = compiled(lambda x: torch.sin(x).sum())(x)
    with pytest.raises(RuntimeError, match="double backward"):
        (first,) = torch.autograd.grad(out, x, create_graph=True)
        torch.autograd.grad(first.sum(), x)


def test_hooks_on_parameters_and_outputs(compiled):
    """Hooks see eager's gradients and may change them."""
    mine, (x, y) = mlp(), tokens()
    theirs = copy.deepcopy(mine)
    seen: list[list[torch.Tensor]] = [[], []]
    for model, log in zip((mine, theirs), seen, strict=True):
        model.inner.weight.register_hook(lambda g, log=log: log.append(g) or g * 2)
        model.outer.bias.register_post_accumulate_grad_hook(lambda p, log=log: log.append(p.grad))
        run = compiled(model) if model is mine else model
        out = run(x)
        out.register_hook(lambda g, log=log: log.append(g))
        F.cross_entropy(out.flatten(0, 1), y).backward()
    same_grads(mine, theirs)
    assert len(seen[0]) == len(seen[1]) == 3
    shapes = [sorted(tuple(g.shape) for g in log) for log in seen]
    assert shapes[0] == shapes[1]


def test_buffers_are_updated_in_place(compiled):
    """A counter and running statistics change exactly as in eager, in training mode only."""

    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
            self.weight = nn.Parameter(torch.randn(4, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.steps += 1
                self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            return (x - self.mean) * self.weight

    mine = Running()
    theirs = copy.deepcopy(mine)
    run, where = compiled(mine), mine.mean.data_ptr()
    for training in (True, True, False, True):
        mine.train(training), theirs.train(training)
        x = torch.randn(3, 4, dtype=torch.float64)
        a, b = run(x), theirs(x)
        torch.testing.assert_close(a, b)
        a.sum().backward(), b.sum().backward()
    torch.testing.assert_close(mine.mean, theirs.mean)
    assert int(mine.steps) == int(theirs.steps) == 3
    assert mine.mean.data_ptr() == where
    same_grads(mine, theirs)


def test_batch_norm_in_training_and_evaluation(compiled):
    """Batch statistics, running statistics and their use."""
    mine = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).double()
    theirs = copy.deepcopy(mine)
    run = compiled(mine)
    for training in (True, True, False):
        mine.train(training), theirs.train(training)
        x = torch.randn(7, 5, dtype=torch.float64)
        a, b = run(x), theirs(x)
        torch.testing.assert_close(a, b)
        a.square().sum().backward(), b.square().sum().backward()
    same_grads(mine, theirs)
    for a, b in zip(mine.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_inputs_changed_in_place(compiled):
    """Mutations of inputs, of views of them and of inputs without gradients reach the caller."""

    def fn(x, y, z):
        x.add_(1)
        y[1:].mul_(2)
        z.view(-1)[0] = 7
        return x * y.sum() + z.sum()

    def fresh():
        torch.manual_seed(1)
        return [torch.randn(3, 3, dtype=torch.float64) for _ in range(3)]

    mine, theirs = fresh(), fresh()
    torch.testing.assert_close(compiled(fn)(*mine), fn(*theirs))
    torch.testing.assert_close(mine, theirs)


def test_an_intermediate_changed_in_place_keeps_its_gradient(compiled):
    """A non-leaf input that requires gradients may be written to inside."""

    def fn(x):
        x.mul_(2)
        return torch.sin(x)

    a = torch.randn(4, dtype=torch.float64, requires_grad=True)
    b = a.detach().clone().requires_grad_()
    compiled(fn)(a * 1).sum().backward()
    fn(b * 1).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_outputs_that_alias_inputs_and_each_other(compiled):
    """Views of inputs and of intermediates share memory as in eager, and carry gradients."""

    def fn(x):
        y = x * 2
        return x.view(-1), x, y, y[0], y.t()

    x = torch.randn(3, 4, requires_grad=True)
    flat, same, y, row, turned = compiled(fn)(x)
    assert flat.data_ptr() == x.data_ptr()
    assert same.data_ptr() == x.data_ptr()
    assert row.data_ptr() == y.data_ptr() == turned.data_ptr()
    with torch.no_grad():
        y.zero_()
    assert torch.equal(row, torch.zeros(4))
    (flat.sum() + row.sum() * 3).backward()
    want = torch.ones(3, 4)
    want[0] += 6
    torch.testing.assert_close(x.grad, want)


def test_some_outputs_are_not_differentiated(compiled):
    """Integers, detached values, and outputs whose gradient nobody asks for."""

    def fn(x, y):
        return x.argmax(), (x * y).detach(), torch.sin(x) * y, torch.cos(y)

    x, y = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    _, fixed, wave, _ = compiled(fn)(x, y)
    assert not fixed.requires_grad
    wave.sum().backward()
    torch.testing.assert_close(x.grad, (torch.cos(x) * y).detach())
    torch.testing.assert_close(y.grad, torch.sin(x).detach())


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inside", [False, True])
def test_autocast(compiled, dtype, inside):
    """Mixed precision around or inside the function: dtypes are eager's, numbers nearly so."""
    mine, (x, y) = mlp(torch.float32), tokens()
    theirs = copy.deepcopy(mine)

    def step(model):
        with torch.autocast("cpu", dtype=dtype):
            out = model(x)
        return out, F.cross_entropy(out.float().flatten(0, 1), y)

    def around(model):
        def fn(t):
            with torch.autocast("cpu", dtype=dtype):
                return model(t)

        return fn

    out, loss = step(compiled(around(mine)) if inside else compiled(mine))
    want, want_loss = step(theirs)
    assert out.dtype == want.dtype == dtype
    torch.testing.assert_close(out, want, rtol=5e-2, atol=5e-2)
    loss.backward()
    want_loss.backward()
    same_grads(mine, theirs, rtol=5e-2, atol=5e-2)
    assert all(p.grad.dtype == torch.float32 for p in mine.parameters())


def test_leaving_autocast_recompiles(compiled):
    """The same function outside of autocast is full precision again."""
    w = torch.randn(4, 4)
    run = compiled(lambda x: x @ w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(w).dtype == torch.bfloat16
    assert run(w).dtype == torch.float32


def test_grad_scaler_skips_a_step_that_overflowed(compiled):
    """Scaled losses, unscaling and the skipped step work on compiled gradients."""
    mine = nn.Linear(4, 1)
    theirs = copy.deepcopy(mine)
    run = compiled(mine)
    for model, call in ((mine, run), (theirs, theirs)):
        torch.manual_seed(2)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            x = torch.randn(8, 4)
            if step == 1:
                x[0, 0] = float("inf")
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = call(x).float().square().mean()
            optimiser.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()
        assert scaler.get_scale() == 2.0**9
    torch.testing.assert_close(mine.weight, theirs.weight, rtol=2e-2, atol=1e-3)


OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False, fused=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False, fused=False),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adamw capturable": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
}


def test_dynamo_keeps_out_of_our_compiler(compiled, monkeypatch):
    """A backward inside of the compiled function compiles its graph there; that is not traced."""
    seen = []
    original = ConvertFrame.__call__

    def watched(self, frame, *args, **kwargs):
        seen.append(frame.f_code.co_filename)
        return original(self, frame, *args, **kwargs)

    monkeypatch.setattr(ConvertFrame, "__call__", watched)

    def step(w, x):
        loss = (x @ w).tanh().sum()
        torch._dynamo.graph_break()
        loss.backward()
        return loss.detach()

    w, x = torch.randn(4, 2, requires_grad=True), torch.randn(3, 4)
    compiled(step)(w, x)
    torch.testing.assert_close(w.grad, x.t() @ (1 - (x @ w.detach()).tanh() ** 2))
    folder = str(Path(pipeline.__file__).parent)
    assert __file__ in seen
    assert not [name for name in seen if name.startswith(folder)]


@pytest.mark.every(2)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_compiled_optimiser_step(backend, compiled, name):
    """The step itself under torch.compile moves parameters as eager's."""
    mine = mlp(torch.float64)
    theirs = copy.deepcopy(mine)
    runs = []
    for model in (mine, theirs):
        optimiser = OPTIMISERS[name](list(model.parameters()))
        step = compiled(optimiser.step) if model is mine else optimiser.step
        runs.append((compiled(model) if model is mine else model, optimiser, step))
    for _ in range(3):
        x, y = tokens()
        for run, optimiser, step in runs:
            optimiser.zero_grad()
            loss_of(run, x, y).backward()
            step()
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        # Adam counts its steps in float32 once it is traced, whoever compiles it
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert backend.NOTICES.counts() == {}


def test_twenty_steps_follow_eager(compiled):
    """A whole training loop stays with eager's loss."""
    mine = mlp(torch.float32)
    theirs = copy.deepcopy(mine)
    run = compiled(mine)
    optimisers = [torch.optim.AdamW(m.parameters(), lr=0.05) for m in (mine, theirs)]
    for _ in range(20):
        x, y = tokens()
        losses = [loss_of(m, x, y) for m in (run, theirs)]
        for loss, optimiser in zip(losses, optimisers, strict=True):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-3)
