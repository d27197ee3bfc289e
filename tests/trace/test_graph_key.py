"""Two graphs have equal keys exactly if code generation cannot tell them apart."""

from __future__ import annotations

import copy
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from kernelfarm.compiler.graph_key import compiler_sources_digest, graph_key_parts
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import Toolchain
from kernelfarm.compiler.trace.dynamo import GraphInfo
from kernelfarm.compiler.trace.errors import Unkeyable
from kernelfarm.compiler.trace.shim import ensure_device_guard

aten = torch.ops.aten
H200 = Target.parse("h200")
TOOLCHAIN = Toolchain("content", (("toolchain.triton", "aa"), ("env.X", "1")))


@dataclass(frozen=True)
class Recipe:
    """A small graph, mul then a two-result op then its first result, with every part in reach."""

    op: Any = aten.mul.Tensor
    scalar: Any = 2.0
    dtype: torch.dtype = torch.float32
    stride: tuple[int, int] = (4, 1)
    offset: int = 0
    device: str = "cuda:0"
    names: tuple[str, ...] = ("a", "b", "c", "d")
    trace: str = "somewhere.py:1"
    constant: float = 1.0
    item: int = 0
    dims: Any = (0,)
    args_device: str = "cuda:0"

    def build(self) -> tuple[GraphModule, list[Any]]:
        graph = Graph()
        mode = FakeTensorMode()
        with mode:
            base = torch.empty(64, dtype=self.dtype, device=self.device)
            value = torch.as_strided(base, (3, 4), self.stride, self.offset)
        root = torch.nn.Module()
        root.weight = torch.full((2,), self.constant)
        x = graph.placeholder(self.names[0])
        x.meta.update(val=value, stack_trace=self.trace)
        w = graph.create_node("get_attr", "weight", name=self.names[1])
        y = graph.create_node("call_function", self.op, (x, self.scalar), name=self.names[2])
        y.meta["val"] = value
        m = graph.call_function(aten.var_mean.correction, (y, list(self.dims)), {"correction": 1})
        m.meta["val"] = (value, value)
        g = graph.create_node("call_function", operator.getitem, (m, self.item), name=self.names[3])
        g.meta["val"] = value
        full = graph.call_function(
            aten.full.default, ([3, 4], 1), {"device": torch.device(self.args_device)}
        )
        full.meta["val"] = value
        graph.output((g, w, full, None))
        return GraphModule(root, graph), [value]


@pytest.fixture(scope="module", autouse=True)
def fake_gpu() -> None:
    ensure_device_guard()


def _parts(
    recipe: Recipe = Recipe(),
    *,
    knobs: tuple[tuple[str, bytes], ...] = (("split", b"1"),),
    target: Target = H200,
    toolchain: Toolchain = TOOLCHAIN,
    info: GraphInfo | None = None,
    sources: str = "s",
) -> dict[str, bytes]:
    gm, inputs = recipe.build()
    parts = graph_key_parts(
        gm,
        inputs,
        knobs=knobs,
        target=target,
        toolchain=toolchain,
        info=info,
        sources_digest=sources,
    )
    assert len({name for name, _ in parts}) == len(parts)
    return dict(parts)


def _changed(before: dict[str, bytes], after: dict[str, bytes]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"op": aten.mul.Scalar}, {"graph.nodes"}),
        ({"op": aten.add.Tensor}, {"graph.nodes"}),
        ({"scalar": 3.0}, {"graph.nodes"}),
        ({"scalar": 2}, {"graph.nodes"}),
        ({"scalar": True}, {"graph.nodes"}),
        ({"scalar": -0.0}, {"graph.nodes"}),
        ({"scalar": "2.0"}, {"graph.nodes"}),
        ({"scalar": None}, {"graph.nodes"}),
        ({"item": 1}, {"graph.nodes"}),
        ({"dims": (0, 1)}, {"graph.nodes"}),
        ({"dtype": torch.bfloat16}, {"graph.nodes", "graph.inputs"}),
        ({"stride": (1, 3)}, {"graph.nodes", "graph.inputs"}),
        ({"offset": 4}, {"graph.nodes", "graph.inputs"}),
        ({"device": "cpu"}, {"graph.nodes", "graph.inputs"}),
        ({"args_device": "cpu"}, {"graph.nodes"}),
        ({"constant": 1.5}, {"graph.constants"}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_what_code_generation_sees_is_in_the_key(change: dict[str, Any], parts: set[str]) -> None:
    """Each change moves the parts that it should, and only those."""
    assert _changed(_parts(), _parts(replace(Recipe(), **change))) == parts


@pytest.mark.parametrize(
    "change",
    [
        {"names": ("q", "r", "s", "t")},
        {"trace": "/home/somebody/elsewhere.py:77"},
        {"device": "cuda", "args_device": "cuda:3"},
    ],
    ids=str,
)
def test_what_code_generation_does_not_see_is_not(change: dict[str, Any]) -> None:
    """Node names, stack traces and device ordinals change nothing."""
    assert _changed(_parts(), _parts(replace(Recipe(), **change))) == set()


def test_an_ordinal_is_in_no_part() -> None:
    """Rank 3 finds what rank 0 compiled."""
    parts = _parts(replace(Recipe(), args_device="cuda:3"))
    assert not any(b"cuda:3" in value for value in parts.values())


def test_settings_target_toolchain_and_sources_are_parts() -> None:
    """Whatever else decides the code has a part of its own."""
    base = _parts()
    assert _changed(base, _parts(knobs=(("split", b"2"),))) == {"knob.split"}
    assert _changed(base, _parts(knobs=())) == {"knob.split"}
    assert _changed(base, _parts(sources="t")) == {"compiler.sources"}
    other = Toolchain("content", (("toolchain.triton", "bb"), ("env.X", "1")))
    assert _changed(base, _parts(toolchain=other)) == {"toolchain.triton"}
    assert _changed(base, _parts(toolchain=replace(TOOLCHAIN, identity="release"))) == {
        "toolchain.identity"
    }
    assert "model.name" in _changed(base, _parts(target=Target.parse("h100-sxm")))
    assert "target.arch" not in _changed(base, _parts(target=Target.parse("h100-sxm")))
    assert "target.arch" in _changed(base, _parts(target=Target.parse("mi300x")))
    assert _changed(_parts(info=GraphInfo("inference")), _parts(info=GraphInfo("forward"))) == {
        "graph.kind"
    }
    assert base["torch"].decode().startswith(torch.__version__)


def test_a_misaligned_input_is_another_graph() -> None:
    """The alignment class of an input is told apart by name."""
    (aligned,) = _parts(replace(Recipe(), offset=4))["graph.inputs"].decode().splitlines()
    (misaligned,) = _parts(replace(Recipe(), offset=1))["graph.inputs"].decode().splitlines()
    assert aligned.endswith(" aligned")
    assert misaligned.endswith("misaligned")


def test_a_copied_graph_has_the_same_key() -> None:
    """Keys do not depend on the identity of objects."""
    gm, inputs = Recipe().build()
    keys = [
        graph_key_parts(g, inputs, target=H200, toolchain=TOOLCHAIN)
        for g in (gm, copy.deepcopy(gm))
    ]
    assert keys[0] == keys[1]


class Branch(torch.nn.Module):
    """cond over two sub-graphs; ``scale`` sits in one of them."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, pred: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(pred, lambda t: t * self.scale, lambda t: t.cos(), (x,))


def _captured(module: Callable[..., Any], *args: torch.Tensor) -> GraphModule:
    graphs: list[GraphModule] = []

    def keep(gm: GraphModule, _: Sequence[Any], __: GraphInfo) -> Any:
        graphs.append(gm)
        return lambda inputs: list(gm(*inputs))

    from kernelfarm.compiler.trace.dynamo import compile_fx

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(
            module, backend=lambda gm, a: compile_fx(gm, a, compile_graph=keep, target=H200)
        )(*args)
    torch._dynamo.reset()
    (graph,) = graphs
    return graph


def test_subgraphs_are_in_the_key() -> None:
    """Two conds that differ inside a branch only are two graphs."""
    args = torch.tensor(True), torch.ones(3)
    keys = [
        dict(
            graph_key_parts(_captured(Branch(scale), *args), args, target=H200, toolchain=TOOLCHAIN)
        )
        for scale in (2.0, 2.0, 3.0)
    ]
    assert keys[0] == keys[1]
    assert _changed(keys[0], keys[2]) == {"graph.subgraphs"}


@torch.library.custom_op("kernelfarm_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_custom_operator_is_keyed_by_its_schema() -> None:
    """What it mutates and returns is in the schema, its code runs in the caller's process."""
    gm = make_fx(lambda x: twice(x) + 1, tracing_mode="fake")(torch.ones(3))
    parts = dict(graph_key_parts(gm, [torch.ones(3)], target=H200, toolchain=TOOLCHAIN))
    assert b"kernelfarm_test::twice(Tensor x) -> Tensor" in parts["graph.nodes"]


def _mystery(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("op", "scalar", "message"),
    [
        (_mystery, 1.0, "opaque function.*op _mystery, node c"),
        (aten.mul.Tensor, torch.Generator(), "an argument is a Generator.*op aten.mul.Tensor"),
        (aten.mul.Tensor, object(), "an argument is a object"),
        (operator.mul, 2, "opaque function.*op mul"),
    ],
    ids=("a function", "a generator", "an object", "a builtin"),
)
def test_what_has_no_exact_key_is_named(op: Any, scalar: Any, message: str) -> None:
    """An opaque function or argument raises, with operator and node in the message."""
    gm, inputs = replace(Recipe(), op=op).build()
    (node,) = [n for n in gm.graph.nodes if n.target is op]
    node._args = (node.args[0], scalar)  # fx itself lets few kinds of argument in
    with pytest.raises(Unkeyable, match=message):
        graph_key_parts(gm, inputs, target=H200, toolchain=TOOLCHAIN)


def _symbolic_parts(fn: Any, *sizes: int) -> dict[str, bytes]:
    gm = make_fx(fn, tracing_mode="symbolic")(torch.ones(sizes))
    inputs = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
    return dict(graph_key_parts(gm, inputs, target=H200, toolchain=TOOLCHAIN))


def test_symbolic_sizes_are_keyed_by_their_expressions_and_ranges() -> None:
    """Two traces of one function at different sizes have one key; other expressions another."""
    first = _symbolic_parts(lambda x: torch.cat([x, x]), 3, 4)
    assert first == _symbolic_parts(lambda x: torch.cat([x, x]), 7, 9)
    assert first["graph.symbols"] == b"s0 2 None\ns1 2 None"
    other = _symbolic_parts(lambda x: torch.cat([x, x], 1), 3, 4)
    assert first["graph.nodes"] != other["graph.nodes"]


def test_the_sources_digest_is_stable_and_cheap() -> None:
    """The digest of our own sources is computed once per process."""
    first = compiler_sources_digest()
    start = time.perf_counter()
    assert compiler_sources_digest() == first
    assert time.perf_counter() - start < 0.001
    assert len(first) == 64
