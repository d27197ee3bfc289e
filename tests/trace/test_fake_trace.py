"""A callable is traced for a GPU that is not there: nothing is run, nothing real is changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule

from kernelfarm.compiler.graph_key import graph_key_parts
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import Toolchain
from kernelfarm.compiler.trace.dynamo import GraphInfo
from kernelfarm.compiler.trace.errors import FunctionFailed, NotTraceable
from kernelfarm.compiler.trace.fake import TraceOutcome, trace_call, trace_for

aten = torch.ops.aten
H200 = Target.parse("h200")
TOOLCHAIN = Toolchain("release", (("toolchain.release", "0"),))


class Graphs:
    """A compile_graph that keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[tuple[GraphModule, list[Any], GraphInfo]] = []

    def __call__(self, gm: GraphModule, inputs: Any, info: GraphInfo) -> Any:
        self.seen.append((gm, list(inputs), info))

    def ops(self) -> set[Any]:
        return {n.target for gm, _, _ in self.seen for n in gm.graph.nodes}

    def devices(self) -> set[str]:
        values = [n.meta.get("val") for gm, _, _ in self.seen for n in gm.graph.nodes]
        return {str(v.device) for v in values if isinstance(v, torch.Tensor)}

    def texts(self) -> list[bytes]:
        return [
            dict(graph_key_parts(gm, inputs, target=H200, toolchain=TOOLCHAIN, info=info))[
                "graph.nodes"
            ]
            for gm, inputs, info in self.seen
        ]


def _call(subject: Callable[..., Any], *args: Any, mode: Any = "infer") -> Graphs:
    graphs = Graphs()
    trace_call(subject, args, H200, mode, compile_graph=graphs)
    return graphs


def _for(function: Callable[[], Any]) -> tuple[Graphs, TraceOutcome]:
    graphs = Graphs()
    return graphs, trace_for(function, H200, compile_graph=graphs)


class Tied(nn.Module):
    """An output layer that is the embedding, as in GPT-2, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("shift", torch.ones(8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids) + self.shift)


def test_a_function_builds_on_the_gpu_that_is_not_there() -> None:
    """.cuda(), .to(), .bfloat16() and device= work, ties are kept, and every graph is on cuda."""
    seen: list[nn.Module] = []

    def function() -> Any:
        model = Tied().cuda().to(torch.bfloat16)
        seen.append(model)
        return model.eval(), (torch.randint(0, 10, (2, 3), device="cuda"),)

    graphs, outcome = _for(function)
    assert outcome.graphs == ("inference",)
    assert set(outcome.phases) == {"function", "dynamo", "aot", "compile_graph"}
    assert graphs.devices() == {"cuda:0"}
    (model,) = seen
    assert model.head.weight is model.table.weight
    assert model.shift.dtype == torch.bfloat16
    # The one shared weight, ids, the buffer.
    assert sorted(tuple(i.shape) for i in graphs.seen[0][1]) == [(2, 3), (8,), (10, 8)]


@pytest.mark.parametrize("function", ["cuda", "device", "default device", "cpu"])
def test_ways_of_building_give_one_graph(function: str) -> None:
    """However the function got its tensors to the device, and even if it did not, one graph."""

    def build() -> Any:
        match function:
            case "cuda":
                return nn.Linear(4, 4).cuda(), (torch.randn(2, 4).cuda(),)
            case "device":
                return nn.Linear(4, 4, device="cuda"), (torch.empty(2, 4, device="cuda:0"),)
            case "default device":
                with torch.device("cuda"):
                    return nn.Linear(4, 4), (torch.randn(2, 4),)
            case _:
                return nn.Linear(4, 4), (torch.randn(2, 4),)

    graphs, _ = _for(build)
    assert graphs.texts() == _call(nn.Linear(4, 4), torch.randn(2, 4)).texts()
    assert graphs.devices() == {"cuda:0"}


def test_real_modules_are_traced_and_not_touched() -> None:
    """warm_start's module keeps its parameters, its data and its device."""
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    before = {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}
    graphs = _call(model, x)
    assert graphs.devices() == {"cuda:0"}
    for name, parameter in model.named_parameters():
        assert id(parameter) == before[name][0]
        assert not isinstance(parameter, FakeTensor)
        torch.testing.assert_close(parameter.detach(), before[name][1])
    assert model(x).shape == (2, 4)


LAYER = nn.Linear(4, 4)


def _uses_a_global(x: torch.Tensor) -> torch.Tensor:
    return LAYER(x)


def test_modules_are_found_in_closures_globals_partials_and_methods() -> None:
    """A callable's modules move to the target wherever the callable holds them."""
    layer, x = LAYER, torch.randn(2, 4)
    wanted = _call(layer, x).texts()
    for subject in (
        lambda value: layer(value),
        _uses_a_global,
        functools.partial(lambda module, value: module(value), layer),
        layer.forward,
    ):
        assert _call(subject, x).texts() == wanted
    assert next(layer.parameters()).device.type == "cpu"


def test_arguments_may_be_nested_or_named() -> None:
    """Dicts and lists of tensors move too, and a mapping of arguments is passed by name."""

    def model(pair: dict[str, list[torch.Tensor]], scale: float) -> torch.Tensor:
        return pair["x"][0] * scale

    graphs = Graphs()
    trace_call(model, {"pair": {"x": [torch.ones(3)]}, "scale": 2.0}, H200, compile_graph=graphs)
    assert graphs.devices() == {"cuda:0"}


def test_training_reaches_the_backward() -> None:
    """A train function gives a forward and a backward graph, batch norm and dropout included."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.1), nn.Flatten(), nn.Linear(144, 2)
    )
    graphs, outcome = _for(lambda: (net, (torch.randn(2, 3, 8, 8),), "train"))
    assert outcome.graphs == ("forward", "backward")
    assert graphs.devices() == {"cuda:0"}


class Attention(nn.Module):
    """Self attention that views the result the way only a fused kernel's layout allows."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (t.view(2, 16, 4, 16).transpose(1, 2) for t in x.chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        return out.transpose(1, 2).view(2, 16, 64)


def test_attention_has_the_targets_form_and_layout_forward_and_backward() -> None:
    """Without a mask in half precision it is flash, and its result can be viewed as on the GPU."""
    graphs = _call(Attention(), torch.randn(2, 16, 192).bfloat16().requires_grad_(), mode="train")
    assert aten._scaled_dot_product_flash_attention.default in graphs.ops()
    assert aten._scaled_dot_product_flash_attention_backward.default in graphs.ops()
    assert [info.kind for _, _, info in graphs.seen] == ["forward", "backward"]


@pytest.mark.parametrize("shape", [(16, 16), (2, 1, 16, 16), (1, 4, 16, 16)])
def test_a_mask_reaches_the_efficient_form(shape: tuple[int, ...]) -> None:
    """The bias argument is computed from the mask input: it is not dropped."""
    graphs = _call(Attention(), torch.randn(2, 16, 192).bfloat16(), torch.rand(*shape) > 0.5)
    ((gm, _, _),) = graphs.seen
    (call,) = gm.graph.find_nodes(
        op="call_function", target=aten._scaled_dot_product_efficient_attention.default
    )
    mask_input = gm.graph.find_nodes(op="placeholder")[1]
    assert mask_input.meta["val"].dtype == torch.bool
    reaching, pending = set(), [call.args[3]]
    while pending:
        node = pending.pop()
        reaching.add(node)
        pending += node.all_input_nodes
    assert mask_input in reaching
    assert tuple(call.args[3].meta["val"].shape) == (2, 4, 16, 16)


def test_model_questions_are_answered_for_the_target() -> None:
    """The function and the traced code see the target's device, and afterwards nobody does."""
    names: list[Any] = []

    def function() -> Any:
        names.append((torch.cuda.is_available(), torch.cuda.get_device_capability()))
        names.append(torch.cuda.get_device_properties(0).multi_processor_count)
        return model, (torch.ones(3),)

    def model(x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9:
            return x.sin()
        return x.cos()

    before = torch.cuda.is_available, torch.cuda.is_available()
    graphs, _ = _for(function)
    assert names == [(True, (9, 0)), 132]
    assert aten.sin.default in graphs.ops()
    assert (torch.cuda.is_available, torch.cuda.is_available()) == before


def test_autocast_casts_without_a_gpu() -> None:
    """A model that enters autocast is traced in the low precision that it asks for."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return self.layer(x)

    ((gm, _, _),) = _call(Mixed(), torch.randn(2, 8)).seen
    (product,) = gm.graph.find_nodes(op="call_function", target=aten.addmm.default)
    assert product.meta["val"].dtype == torch.bfloat16


def test_literals_need_no_gpu_and_no_copy() -> None:
    """Empty and one-element literals become fills; longer ones are constants with values."""

    def model(x: torch.Tensor) -> torch.Tensor:
        start = torch.tensor([], device=x.device, dtype=x.dtype)
        x = torch.cat([start, x * torch.tensor(0.5, device=x.device)])
        return x + torch.tensor([1.0, 2.0, 3.0], device=x.device) + torch.tensor(2.0).to(x.device)

    graphs = _call(model, torch.ones(3))
    assert {aten.empty.memory_format, aten.full.default} <= graphs.ops()
    assert len(graphs.texts()) == 1


def test_a_value_needed_between_graphs_is_named() -> None:
    """Code that needs a tensor's value cannot be traced, and the message says so."""
    torch._logging.set_logs(dynamo=50)
    try:
        with pytest.raises(NotTraceable, match="needs the value of a tensor"):
            _call(lambda x: x * x.sum().item(), torch.ones(3))
    finally:
        torch._logging.set_logs()


def test_graph_breaks_are_several_graphs() -> None:
    """Each piece goes to compile_graph by itself."""

    def model(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    assert len(_call(model, torch.ones(3)).seen) == 2


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: 1 // 0, "ZeroDivisionError"),
        (lambda: 3, "returned a int"),
        (lambda: (nn.ReLU(), 5), "returned \\(ReLU, int\\)"),
        (lambda: (nn.ReLU(), (1,), "eval"), "returned \\(ReLU, tuple, str\\)"),
        (lambda: (3, (1,)), "cannot be called"),
    ],
)
def test_a_bad_function_is_named_with_what_to_return(
    function: Callable[[], Any], message: str
) -> None:
    """A function that raises or returns something else gets one clear message."""
    with pytest.raises(FunctionFailed, match=message):
        trace_for(function, H200, compile_graph=Graphs())


def test_the_world_is_put_back_after_a_failure() -> None:
    """Whatever happened, modules move and devices answer as before."""
    apply, available = nn.Module._apply, torch.cuda.is_available
    with pytest.raises(FunctionFailed):
        trace_for(lambda: 1 // 0, H200, compile_graph=Graphs())
    assert nn.Module._apply is apply
    assert torch.cuda.is_available is available
    q = torch.randn(1, 1, 2, 8)
    assert not isinstance(F.scaled_dot_product_attention(q, q, q), FakeTensor)


def test_a_compilers_error_comes_through_unwrapped() -> None:
    """What compile_graph raises is what the caller catches."""

    class Refusal(Exception):
        pass

    def refuse(*_: Any) -> Any:
        raise Refusal("no")

    with pytest.raises(Refusal):
        trace_call(nn.ReLU(), (torch.ones(3),), H200, compile_graph=refuse)


@pytest.mark.slow
@pytest.mark.parametrize("cache", [False, True])
def test_gpt2_is_one_graph(cache: bool) -> None:
    """transformers' GPT-2 traces whole in both ways of calling it, its mask honoured."""
    from transformers import GPT2Config, GPT2LMHeadModel

    def function() -> Any:
        config = GPT2Config(n_layer=2) if cache else GPT2Config(n_layer=2, use_cache=False)
        model = GPT2LMHeadModel(config).cuda().bfloat16().eval()
        assert model.lm_head.weight is model.transformer.wte.weight
        return model, (torch.randint(0, 50257, (8, 512), device="cuda"),)

    graphs, outcome = _for(function)
    assert outcome.graphs == ("inference",)
    assert graphs.devices() == {"cuda:0"}
    fused = {
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
    }
    assert len(fused & graphs.ops()) == 1
    assert len(graphs.texts()) == 1
