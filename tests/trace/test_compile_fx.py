"""Dynamo's graph becomes functional ATen graphs that compute what eager computes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.trace.clock import watch_dynamo
from kernelfarm.compiler.trace.decomposition import decomposition_table
from kernelfarm.compiler.trace.dynamo import GraphInfo, compile_fx
from kernelfarm.compiler.trace.fake import trace_call

aten = torch.ops.aten
H200 = Target.parse("h200")


class Traced:
    """A backend that runs every graph as it is and remembers it."""

    def __init__(self) -> None:
        self.graphs: list[tuple[GraphModule, GraphInfo]] = []
        self.phases: Counter[str] = Counter()

    def compile_graph(
        self, gm: GraphModule, inputs: Sequence[Any], info: GraphInfo
    ) -> Callable[[list[Any]], list[Any]]:
        self.graphs.append((gm, info))

        def run(args: list[Any]) -> list[Any]:
            values = tuple(args)
            args.clear()
            return list(gm(*values))

        return run

    def __call__(self, gm: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return compile_fx(
            gm,
            inputs,
            compile_graph=self.compile_graph,
            target=H200,
            record=lambda name, seconds: self.phases.update({name: seconds}),
        )

    def ops(self) -> set[Any]:
        return {n.target for gm, _ in self.graphs for n in gm.graph.nodes}


@pytest.fixture
def traced() -> Iterator[Traced]:
    torch._dynamo.reset()
    yield Traced()
    torch._dynamo.reset()


class Block(nn.Module):
    """Attention with a mask, layer norm, batch norm and gelu."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.norm = nn.LayerNorm(16)
        self.batch = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(2, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, mask)
        out = F.gelu(out.transpose(1, 2).reshape(2, 8, 16))
        return self.batch(out.transpose(1, 2)).sum(1) + x.softmax(-1).sum(-1)


def _inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 8, 16), torch.ones(8, 8).tril().bool()


def test_inference_is_one_graph_with_eagers_numbers(traced: Traced) -> None:
    """Under no_grad there is one inference graph, and it knows which inputs are parameters."""
    model, inputs = Block().eval(), _inputs()
    with torch.no_grad():
        result = torch.compile(model, backend=traced)(*inputs)
        torch.testing.assert_close(result, model(*inputs))
    ((_, info),) = traced.graphs
    assert info.kind == "inference"
    assert len(info.static_inputs) == 8  # 6 parameters, 2 buffers: eval leaves the counter alone


def test_training_gives_eagers_gradients_and_buffers(traced: Traced) -> None:
    """Forward and backward graphs; gradients and running statistics are those of eager."""
    model, inputs = Block().train(), _inputs()
    eager = copy.deepcopy(model)
    torch.compile(model, backend=traced)(*inputs).square().sum().backward()
    eager(*inputs).square().sum().backward()
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)
    for ours_b, theirs_b in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(ours_b, theirs_b)
    assert [info.kind for _, info in traced.graphs] == ["forward", "backward"]


def test_operators_that_we_lower_whole_arrive_whole(traced: Traced) -> None:
    """Layer norm, softmax, gelu and addmm are in the graph; attention and batch norm are not."""
    with torch.no_grad():
        torch.compile(Block().eval(), backend=traced)(*_inputs())
    whole = {
        aten.native_layer_norm.default,
        aten._softmax.default,
        aten.gelu.default,
        aten.addmm.default,
    }
    assert whole <= traced.ops()
    assert not {aten.native_batch_norm.default, aten.scaled_dot_product_attention.default} & (
        traced.ops()
    )


#: What the lowering counts on.
WHOLE = (
    *("_softmax", "native_layer_norm", "gelu", "embedding", "index.Tensor"),
    *("gather", "cat", "constant_pad_nd", "mm", "bmm", "addmm", "baddbmm", "convolution"),
    *("sum.dim_IntList", "mean.dim", "amax", "argmax", "var_mean.correction", "native_dropout"),
)


def test_the_table_leaves_whole_what_the_lowering_takes() -> None:
    """The names that the lowering counts on are not decomposed."""
    table = decomposition_table()
    for name in WHOLE:
        packet, _, overload = name.partition(".")
        assert getattr(getattr(aten, packet), overload or "default") not in table, name
    for name in ("native_batch_norm", "silu", "gelu_backward", "native_layer_norm_backward"):
        assert getattr(aten, name).default in table, name


def test_the_table_is_the_callers_own() -> None:
    """Changing the returned table changes nobody else's."""
    decomposition_table().clear()
    assert decomposition_table()


def test_checkpointed_attention_follows_the_choice_too(traced: Traced) -> None:
    """Attention inside a higher-order operator's sub-graph goes through the same choice."""

    def attention(q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    def run(q: torch.Tensor) -> torch.Tensor:
        return checkpoint(attention, q, use_reentrant=False)

    q = torch.randn(1, 2, 4, 8, requires_grad=True)
    mine = q.detach().clone().requires_grad_()
    torch.compile(run, backend=traced)(mine).sum().backward()
    run(q).sum().backward()
    torch.testing.assert_close(mine.grad, q.grad)
    assert aten._scaled_dot_product_flash_attention_for_cpu.default not in traced.ops()


def test_sdpa_kernel_inside_the_model_is_obeyed() -> None:
    """The user's switch narrows the choice for the calls under it, and only for them."""
    seen: list[set[Any]] = []

    def model(q: torch.Tensor) -> torch.Tensor:
        first = F.scaled_dot_product_attention(q, q, q)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return F.scaled_dot_product_attention(first, q, q)

    def collect(gm: GraphModule, inputs: Any, info: GraphInfo) -> Any:
        seen.append({n.target for n in gm.graph.nodes})

    trace_call(model, (torch.randn(1, 2, 8, 16).half(),), H200, compile_graph=collect)
    (ops,) = seen
    assert aten._scaled_dot_product_flash_attention.default in ops
    assert aten._scaled_dot_product_efficient_attention.default in ops


def test_seconds_are_told_apart(traced: Traced) -> None:
    """AOTAutograd's seconds leave out compile_graph's, and Dynamo's leave out both."""
    told: Counter[str] = Counter()
    stop = watch_dynamo(lambda name, seconds: told.update({name: seconds}))
    try:
        torch.compile(lambda x: x.sin() + 1, backend=traced)(torch.ones(3))
        torch.compile(lambda x: x.cos(), backend="eager")(torch.ones(3))
    finally:
        stop()
    assert set(traced.phases) == {"aot", "compile_graph"}
    assert traced.phases["aot"] > 0
    assert told["dynamo"] > 0
    before = told["dynamo"]
    torch.compile(lambda x: x.tan(), backend=traced)(torch.ones(3))
    assert told["dynamo"] == before


def test_what_compile_graph_raises_comes_through() -> None:
    """An error of the compiler reaches the caller as the cause of Dynamo's."""

    class Refusal(Exception):
        pass

    def refuse(*_: Any) -> Any:
        raise Refusal("no")

    def backend(gm: GraphModule, inputs: list[Any]) -> Any:
        return compile_fx(gm, inputs, compile_graph=refuse, target=H200)

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
    assert isinstance(caught.value.inner_exception, Refusal)
    torch._dynamo.reset()
