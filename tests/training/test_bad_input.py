"""What we do not compile runs eagerly or raises: never wrong, and never without a word of why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from kernelfarm.compiler.admission import admit
from kernelfarm.compiler.errors import GraphError

T = torch.Tensor
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
    pytest.mark.filterwarnings("ignore:Sparse"),
]


class Plain(torch.Tensor):
    """A subclass that adds nothing."""


@torch.library.custom_op("kernelfarm_tests::shaped", mutates_args=())
def shaped(x: torch.Tensor) -> torch.Tensor:
    """An operator of somebody else's, with a shape function and a gradient."""
    return torch.sin(x)


shaped.register_fake(lambda x: torch.empty_like(x))
shaped.register_autograd(
    lambda ctx, gradient: gradient * torch.cos(ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@torch.library.custom_op("kernelfarm_tests::shapeless", mutates_args=())
def shapeless(x: torch.Tensor) -> torch.Tensor:
    """One without a shape function."""
    return torch.sin(x)


@torch.library.custom_op("kernelfarm_tests::writes", mutates_args=("x",))
def writes(x: torch.Tensor) -> None:
    """One that changes its argument."""
    x.sin_()


def _written(x: T) -> T:
    y = x * 2
    writes(y)
    return y + 1


def x() -> T:
    """A small matrix."""
    return torch.randn(4, 4)


#: Graphs that are refused: function, inputs, and words of the reason (node, operator, why).
REFUSED: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], tuple[str, ...]]] = {
    "an operator in an effect": (
        lambda x: torch.linalg.inv(x + 9 * torch.eye(4)) + 1,
        lambda: (x(),),
        ("with_effects", "around aten._linalg_check_errors.default"),
    ),
    "a complex number": (
        lambda x: torch.view_as_real(torch.fft.fft(x) * 2j),
        lambda: (x(),),
        ("node mul", "aten.mul.Tensor", "complex"),
    ),
    "a complex tensor in another layout": (
        lambda x: torch.fft.hfft(x, n=5),
        lambda: (torch.randn(5, 6, 7),),
        ("complex64",),
    ),
    "a complex input that is marked": (
        lambda x: torch.view_as_real(x * 2),
        lambda: (x().to(torch.complex64).conj(),),
        ("conjugated",),
    ),
    "a quantised tensor": (
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() + 1,
        lambda: (x(),),
        ("quantize_per_tensor", "qint8"),
    ),
    "another device": (
        lambda x: x * 2 + 1,
        lambda: (x().to("meta"),),
        ("placeholder", "device meta"),
    ),
    "a branch": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
        lambda: (x(),),
        ("node cond", "higher-order operator"),
    ),
    "an operator that writes": (
        _written,
        lambda: (x(),),
        ("auto_functionalized", "around kernelfarm_tests.writes.default"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_runs_eagerly_and_says_why(backend, compiled, name):
    """The result is eager's; one notice and one entry of the report name the cause."""
    fn, inputs, words = REFUSED[name]
    given = inputs()
    run = compiled(fn, strict=False)
    for _ in range(2):
        got, want = run(*given), fn(*given)
        assert got.device == want.device
        if got.device.type != "meta":
            torch.testing.assert_close(got, want)
    (reason,) = backend.REPORT.eager
    assert all(word in reason for word in words), reason
    assert sum(backend.NOTICES.counts().values()) == 1
    assert sum(reason in line for line in backend.heard) == 1


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_raises_under_strict(compiled, name):
    """With the strict knob the same reason is raised."""
    fn, inputs, words = REFUSED[name]
    with pytest.raises(Exception, match=words[0].removeprefix("node ")):
        compiled(fn)(*inputs())


#: What needs no refusal: Dynamo or AOTAutograd leave graphs of plain tensors, or none.
TAKEN: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "a subclass of two tensors": (lambda x: x * 2 + 1, lambda: (TwoTensor(x(), x()),)),
    "a plain subclass": (lambda x: x * 2 + 1, lambda: (x().as_subclass(Plain),)),
    "a sparse input": (lambda x: x.to_dense() * 2, lambda: (x().to_sparse(),)),
    "a sparse product": (lambda s, x: torch.sparse.mm(s, x) * 2, lambda: (x().to_sparse(), x())),
    "a compressed matrix": (lambda s, x: s @ x, lambda: (x().to_sparse_csr(), x())),
    "a fake quantisation": (
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127) + 1, lambda: (x(),)),
    "a mask's elements": (lambda x: x[x > 0] * 2, lambda: (x(),)),
    "a number from a tensor": (lambda x: x * x.sum().item(), lambda: (x(),)),
    "distinct values": (lambda x: x.round().unique() * 2, lambda: (x(),)),
    "other integers": (lambda x: x.abs().to(torch.uint16).to(torch.int32) + 1, lambda: (x(),)),
    "an operator with a shape": (lambda x: shaped(x * 2) + 1, lambda: (x(),)),
    "a generator": (
        lambda x: x + torch.rand(4, 4, generator=torch.Generator().manual_seed(1)), lambda: (x(),)),
    "numpy": (lambda x: torch.from_numpy(x.numpy() * 2) + 1, lambda: (x(),)),
    "another size": (lambda x: x.clone().resize_(2, 2) + 1, lambda: (x(),)),
    "other memory": (lambda x: torch.empty(0).set_(x) + 1, lambda: (x(),)),
    "an out argument": (lambda x: torch.add(x, 1, out=torch.empty(4, 4)) * 2, lambda: (x(),)),
}  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("name", TAKEN)
def test_what_torch_leaves_to_us_is_right(backend, compiled, name):
    """Subclasses, sparse tensors and values that shapes depend on give eager's results."""
    fn, inputs = TAKEN[name]
    given = inputs()
    got, want = compiled(fn, strict=False)(*given), fn(*given)
    if isinstance(want, TwoTensor):
        got, want = got.a, want.a
    torch.testing.assert_close(got, want)
    assert backend.REPORT.eager == []


def test_captured_shapes_that_depend_on_values(backend, compiled):
    """Captured into the graph, such a shape is a symbol: right, and the report says how it ran."""
    fn = lambda x: (x[x > 0] * 2).sum() + x.sum().item()  # noqa: E731
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        given = x()
        torch.testing.assert_close(compiled(fn, strict=False)(given), fn(given))


def test_an_operator_without_a_shape_function_is_named(compiled):
    """Nobody can trace it; the error is torch's own, and says which operator it is."""
    with pytest.raises(Exception, match=r"kernelfarm_tests\.shapeless"):
        compiled(lambda x: shapeless(x * 2) + 1, strict=False)(x())


def test_gradients_of_an_operator_of_somebody_elses(compiled):
    """A registered gradient is used, around kernels."""
    a = x().requires_grad_()
    compiled(lambda v: shaped(v * 2) * 3)(a).sum().backward()
    torch.testing.assert_close(a.grad, 6 * torch.cos(2 * a.detach()))


class StraightThrough(torch.autograd.Function):
    """Rounds, with a gradient that is not rounding's."""

    @staticmethod
    def forward(ctx: Any, v: T, scale: float) -> T:
        ctx.scale = scale
        return v.round()

    @staticmethod
    def backward(ctx: Any, gradient: T) -> tuple[T, None]:
        return gradient * ctx.scale, None


class Saved(torch.autograd.Function):
    """Saves an intermediate and has two outputs, one without a gradient."""

    @staticmethod
    def forward(ctx: Any, v: T, w: T) -> tuple[T, T]:
        h = torch.sigmoid(v)
        ctx.save_for_backward(h, w)
        ctx.mark_non_differentiable(index := h.argmax())
        return h * w, index

    @staticmethod
    def backward(ctx: Any, gradient: T, _: T) -> tuple[T, T]:
        h, w = ctx.saved_tensors
        return gradient * w * 7, (gradient * h).sum(0)


def test_custom_autograd_functions_keep_their_gradient(compiled):
    """The user's backward is what runs, also where it is not the derivative."""
    a = x().requires_grad_()
    compiled(lambda v: StraightThrough.apply(v * 2, 5.0) * 3)(a).sum().backward()
    torch.testing.assert_close(a.grad, torch.full((4, 4), 30.0))
    mine = [x().requires_grad_(), torch.randn(4, requires_grad=True)]
    theirs = [t.detach().clone().requires_grad_() for t in mine]
    got, want = compiled(lambda *t: Saved.apply(*t))(*mine), Saved.apply(*theirs)
    got[0].square().sum().backward()
    want[0].square().sum().backward()
    assert torch.equal(got[1], want[1])
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def _graph(*devices: str) -> torch.fx.GraphModule:
    """A graph that adds one input for each device."""
    mode = FakeTensorMode()
    graph = torch.fx.Graph()
    total = None
    for number, device in enumerate(devices):
        node = graph.placeholder(f"x{number}")
        node.meta["val"] = FakeTensor(mode, torch.empty(2, device="meta"), torch.device(device))
        if total is not None:
            node = graph.call_function(torch.ops.aten.add.Tensor, (total, node))
            node.meta["val"] = total.meta["val"]
        total = node
    graph.output((total,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_two_gpus_in_one_graph_are_refused():
    """A program has one device, and its key no ordinal: this must not reach a key."""
    with pytest.raises(GraphError, match=r"node x1 .* cuda:1.* cuda:0"):
        admit(_graph("cuda:0", "cuda:1"), "cuda")
    admit(_graph("cuda:1", "cuda:1", "cpu"), "cuda")


@pytest.mark.parametrize("device", ["mps", "xla", "xpu"])
def test_devices_of_other_kinds_are_refused(device):
    """Only the target's devices and the CPU are known."""
    with pytest.raises(GraphError, match=f"node x0 .* device {device}"):
        admit(_graph(f"{device}:0", "cuda:0"), "cuda")


def test_a_failed_backward_is_told_too(backend, compiled):
    """A backward graph that is refused is one more entry, and its gradients are right."""
    a = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    b = a.detach().clone().requires_grad_()

    def fn(v):
        return torch.linalg.slogdet(v @ v.t() + torch.eye(4, dtype=v.dtype)).logabsdet

    compiled(fn, strict=False)(a).backward()
    fn(b).backward()
    torch.testing.assert_close(a.grad, b.grad)
    assert all("cannot be compiled" in reason for reason in backend.REPORT.eager)
