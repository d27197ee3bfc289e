"""Which convolutions become channels-last, and what that leaves alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from networks import NETWORKS
from networks import network as make
from torch import nn

from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.trace.dynamo import compile_fx
from kernelfarm.compiler.trace.fake import trace_for

aten = torch.ops.aten
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def graphs(function, target="h200"):
    """The graphs that a function's model becomes, by kind."""
    found = {}

    def keep(gm, inputs, info):
        found[info.kind] = gm.graph
        return lambda args: list(gm(*args))

    trace_for(function, Target.parse(target), compile_graph=keep)
    return found


def network(module, *shape, mode="infer", dtype=torch.float32, layout=torch.contiguous_format):
    """A function for `graphs`: the module, on the GPU, with one argument of this shape."""

    def function():
        model = module().to("cuda", dtype).train(mode == "train")
        x = torch.randn(shape, device="cuda", dtype=dtype)
        return model, (x.to(memory_format=layout),), mode

    return function


def values(graph, *targets):
    """The fake results of all calls of these operators."""
    return [node.meta["val"] for node in graph.nodes if node.target in targets]


def last(value):
    """Whether a tensor is channels-last and nothing else."""
    return value.is_contiguous(memory_format=LAST[value.dim()]) and not value.is_contiguous()


def stack(*layers):
    """A function that makes a sequence of layers."""
    return lambda: nn.Sequential(*(layer() for layer in layers))


def conv(*args, **kwargs):
    """A function that makes a 2D convolution."""
    return lambda: nn.Conv2d(*args, **kwargs)


PLAIN = stack(
    conv(3, 16, 7, stride=2, padding=3),
    lambda: nn.BatchNorm2d(16),
    nn.ReLU,
    conv(16, 32, 3, padding=1),
    lambda: nn.MaxPool2d(2),
    conv(32, 32, 1),
)


def test_a_network_is_channels_last_from_the_stem_on():
    """Every convolution's image and result; the image and each larger weight are copied once."""
    graph = graphs(network(PLAIN, 2, 3, 32, 32))["inference"]
    calls = [n for n in graph.nodes if n.target is aten.convolution.default]
    assert len(calls) == 3
    assert all(last(n.meta["val"]) and last(n.args[0].meta["val"]) for n in calls)
    copies = [tuple(v.shape) for v in values(graph, aten.clone.default)]
    back = [tuple(n.meta["val"].shape) for n in graph.find_nodes(op="output")[0].args[0]]
    assert sorted(copies) == sorted([(2, 3, 32, 32), (16, 3, 7, 7), (32, 16, 3, 3), *back])
    (result,) = graph.find_nodes(op="output")[0].args[0]
    assert result.meta["val"].is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_are_channels_last_inside_and_the_parameters_outside(dtype):
    """What the backward computes with is channels-last; what it returns has the traced strides."""
    found = graphs(network(PLAIN, 2, 3, 32, 32, mode="train", dtype=dtype))
    backward = found["backward"]
    calls = [n for n in backward.nodes if n.target is aten.convolution_backward.default]
    assert len(calls) == 3
    assert all(last(n.args[0].meta["val"]) and last(n.args[1].meta["val"]) for n in calls)
    for gradient in backward.find_nodes(op="output")[0].args[0]:
        if gradient is not None:
            assert gradient.meta["val"].is_contiguous()
    # the weights were copied in the forward, and their gradients are copied back once
    copies = [tuple(v.shape) for v in values(backward, aten.clone.default)]
    # and the gradient that comes in is copied, since the result went out as in eager
    assert sorted(copies) == [(2, 32, 8, 8), (16, 3, 7, 7), (32, 16, 3, 3)]


@pytest.mark.parametrize(
    ("module", "shape", "options"),
    [
        (PLAIN, (2, 3, 32, 32), {"target": "mi300x"}),
        (PLAIN, (2, 3, 32, 32), {"dtype": torch.float64}),
        (stack(conv(3, 64, 7), nn.ReLU, nn.Flatten), (2, 3, 32, 32), {}),
        (stack(conv(16, 32, 3, groups=4), conv(32, 32, 3)), (2, 16, 9, 9), {}),
        (stack(lambda: nn.Conv1d(16, 32, 3), lambda: nn.Conv1d(32, 32, 3)), (2, 16, 9), {}),
        (stack(lambda: nn.Linear(16, 16), nn.ReLU), (2, 16), {}),
    ],
    ids=["other target", "double", "stem alone", "grouped", "1d", "none"],
)
def test_a_graph_that_gains_nothing_is_left_alone(module, shape, options):
    """Not a single node differs from the plain trace."""
    target = options.pop("target", "h200")
    graph = graphs(network(module, *shape, **options), target)["inference"]
    assert values(graph, aten.clone.default) == []
    for value in values(graph, aten.convolution.default):
        assert value.is_contiguous()


def test_what_is_channels_last_already_is_not_copied():
    """A model that its owner laid out gives the same convolutions and no copies."""

    def function():
        model, args, mode = network(PLAIN, 2, 3, 32, 32, layout=torch.channels_last)()
        return model.to(memory_format=torch.channels_last), args, mode

    graph = graphs(function)["inference"]
    assert values(graph, aten.clone.default) == []
    assert all(last(v) for v in values(graph, aten.convolution.default))


def test_volumes_and_transposed_convolutions_too():
    """3D convolutions have their own channels-last layout; transposed ones take part."""
    volume = stack(lambda: nn.Conv3d(16, 32, 3), lambda: nn.ConvTranspose3d(32, 16, 2, stride=2))
    graph = graphs(network(volume, 2, 16, 5, 6, 7))["inference"]
    found = values(graph, aten.convolution.default)
    assert len(found) == 2 and all(last(v) for v in found)


def test_a_depthwise_convolution_goes_along():
    """It is no reason to change the layout, and none to change it back."""
    module = stack(conv(16, 32, 1), conv(32, 32, 3, groups=32), conv(32, 16, 1))
    graph = graphs(network(module, 2, 16, 9, 9))["inference"]
    assert all(last(v) for v in values(graph, aten.convolution.default))
    depthwise = stack(conv(32, 32, 3, groups=32))
    graph = graphs(network(depthwise, 2, 32, 9, 9))["inference"]
    assert values(graph, aten.clone.default) == []


class Looking(nn.Module):
    """Uses of an image that depend on its layout."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3)

    def forward(self, x):
        y = self.conv(x)
        return (
            y.view(2, -1).sum(1),
            torch.as_strided(y, (3,), (2,), 1),
            torch.fft.fft(y).real,
            y[:, 4:],
        )


def test_an_operator_that_looks_at_the_layout_gets_the_traced_one():
    """Views of lines of memory, strided windows, libraries, and slices that the caller gets."""
    graph = graphs(network(Looking, 2, 16, 9, 9))["inference"]
    (window,) = [n for n in graph.nodes if n.target is aten.as_strided.default]
    (library,) = [n for n in graph.nodes if n.target is aten._fft_r2c.default]
    assert window.args[0].meta["val"].is_contiguous()
    assert library.args[0].meta["val"].is_contiguous()
    part = graph.find_nodes(op="output")[0].args[0][-1].meta["val"]
    assert part.stride() == (16 * 49, 49, 7, 1)


def test_the_answer_does_not_depend_on_the_size_of_the_image():
    """Only the weights are looked at."""

    def targets(side):
        graph = graphs(network(PLAIN, 2, 3, side, side))["inference"]
        return [(str(n.target), n.op) for n in graph.nodes]

    assert targets(16) == targets(64)


def test_dropout_behind_a_convolution_keeps_its_numbers_apart():
    """A random operator that stays eager's gets the layout that eager would give it."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 3)

        def forward(self, x):
            return F.dropout(self.conv(x), 0.5, True)

    found = {}

    def keep(gm, inputs, info):
        found[info.kind] = gm.graph
        return lambda args: list(gm(*args))

    function = network(Model, 2, 16, 9, 9, mode="train")
    trace_for(function, Target.parse("h200"), compile_graph=keep, fallback_random=True)
    (drawn,) = [n for n in found["forward"].nodes if n.target is aten.native_dropout.default]
    assert drawn.args[0].meta["val"].is_contiguous()


class Watching(torch.fx.Interpreter):
    """Runs a graph on real tensors and compares each result's layout with the recorded one."""

    def __init__(self, module):
        super().__init__(module)
        self.watched = 0

    def run_node(self, node):
        """Compute a node; its strides must be those of its metadata."""
        result = super().run_node(node)
        found, told = (
            [v] if isinstance(v, torch.Tensor) else v for v in (result, node.meta.get("val"))
        )
        if node.op != "output" and told is not None and not isinstance(told, torch.SymInt):
            for real, fake in zip(found, told, strict=True):
                if isinstance(real, torch.Tensor):
                    self.watched += 1
                    sides = zip(real.shape, real.stride(), fake.stride(), strict=True)
                    assert real.shape == fake.shape, node.format_node()
                    assert all(a == b for n, a, b in sides if n != 1), node.format_node()
        return result


@pytest.mark.every(5)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", NETWORKS)
def test_recorded_layouts_are_those_that_operators_give(name, training):
    """Whole networks on real tensors, node by node, forward and backward."""
    target = Target.parse("h200")
    watching = []

    def compile_graph(gm, inputs, info):
        watching.append(Watching(gm))

        def run(given):
            return list(watching[-1 if info.kind == "backward" else 0].run(*given))

        run._boxed_call = True
        return run

    def backend(gm, inputs):
        return compile_fx(gm, inputs, compile_graph=compile_graph, target=target)

    torch._dynamo.reset()
    module = make(name).train(training)
    run = torch.compile(module, backend=backend, dynamic=False)
    x = torch.randn(NETWORKS[name][1]).requires_grad_(training)
    with torch.set_grad_enabled(training):
        out = run(x)
    out = out if isinstance(out, tuple) else (out,)
    if training:
        sum((y * y).sum() for y in out).backward()
    assert len(watching) == (2 if training else 1)
    assert all(w.watched > 3 for w in watching)
