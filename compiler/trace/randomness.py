"""Random operators of a joint graph become pure functions of a seed.

Eager's generators count launches and threads, which no compiled program repeats. Here each graph
draws one seed for each random operator and call, all at once, from torch's own generator of the
device; what the operator computes (`random_ops`) depends on nothing else. The rewrite comes before
the graph is split, so a backward that computes something again, whether the partitioner or a
checkpoint wants it, sees the same numbers, and draws none.

What stays random (operators that are not ours, and all of them under the knob ``fallback_random``)
is never computed twice: its results are saved.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.shape_prop import _extract_tensor_metadata
from torch.utils.checkpoint import CheckpointPolicy

from ..seam.device import DeviceModel
from .layout import propagate_layout
from .random_ops import PRECISION

aten = torch.ops.aten
ours = torch.ops.kernelfarm
_CONVERT = torch.ops.prims.convert_element_type.default

#: Replaces one node; returns what stands for it, or for each of its results.
Rewrite = Callable[["_Rewriter", Node], Node | tuple[Node, ...] | None]


def partition(
    joint: GraphModule, inputs: Any, *, model: DeviceModel, fallback_random: bool, **options: Any
) -> tuple[GraphModule, GraphModule]:
    """Split a joint graph into forward and backward so that no random number is drawn twice.

    Before that its convolutions get the layout that ``model`` prefers.
    """
    if not fallback_random:
        replace_random(joint.graph)
    propagate_layout(joint.graph, model)
    left = [node for node in joint.graph.nodes if draws(node)]
    for node in left:
        _save(node)
    with _quiet(joint.graph) as speak:
        halves = _split(joint, inputs, bool(left), options)
        if _drawn_twice(*halves):  # a memory budget that saves nothing but the inputs
            halves = _split(joint, inputs, True, options)
        for half in halves:
            speak(half.graph)
            half.recompile()
    twice = _drawn_twice(*halves)
    if twice:
        raise RuntimeError(f"the backward graph would draw new numbers for {', '.join(twice)}")
    return halves


def draws(node: Node) -> bool:
    """Does this node take numbers from a generator?"""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return torch.Tag.nondeterministic_seeded in target.tags and not _without_dropout(node)


def _without_dropout(node: Node) -> bool:
    """Is this an attention call that is marked as random and drops nothing?"""
    target: Any = node.target
    for position, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[position] if position < len(node.args) else None
            given = node.kwargs.get("dropout_p", given)
            default = argument.default_value if argument.has_default_value() else 0.0
            return bool((default if given is None else given) == 0)
    return False


def _save(node: Node) -> None:
    """Forbid the partitioner to compute a node again."""
    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    for user in node.users:
        if user.target is operator.getitem:
            user.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _drawn_twice(forward: GraphModule, backward: GraphModule) -> list[str]:
    first = {node.name for node in forward.graph.nodes if draws(node)}
    return [n.name for n in backward.graph.nodes if draws(n) and n.name in first]


@contextmanager
def _quiet(graph: Graph) -> Iterator[Callable[[Graph], None]]:
    """Hide that calls without dropout carry the mark of random operators.

    A checkpoint that computes a marked operator again wraps it into one that keeps the generator's
    state, which no kernel needs here. Yields what shows the operators again in another graph.
    """
    names: dict[Any, Any] = {}

    def show(shown: Graph) -> None:
        for node in shown.nodes:
            node.target = names.get(node.target, node.target)

    for node in graph.nodes:
        target = node.target
        if (
            isinstance(target, torch._ops.OpOverload)
            and torch.Tag.nondeterministic_seeded in target.tags
            and _without_dropout(node)
        ):
            node.target = _stand_in(target)
            names[node.target] = target
    try:
        yield show
    finally:
        show(graph)


@functools.cache
def _stand_in(target: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    call.__name__ = call.__qualname__ = str(target).replace(".", "_")
    return call


def _split(
    joint: GraphModule, inputs: Any, drawing: bool, options: dict[str, Any]
) -> tuple[GraphModule, GraphModule]:
    """Split by min-cut; with ``drawing``, so that nothing random is computed again or merged.

    A memory budget may choose any node to be computed again, and torch's merging of equal nodes
    does not know all random operators.
    """
    settings = {"activation_memory_budget": 1.0, "cse": False} if drawing else {}
    with functorch_config.patch(settings):
        return min_cut_rematerialization_partition(joint, inputs, **options)


def replace_random(graph: Graph) -> int:
    """Replace the random operators of a graph by pure ones; return how many."""
    rewriter = _Rewriter(graph)
    for node in list(graph.nodes):
        rewriter.visit(node)
    rewriter.finish()
    return rewriter.count


class _Rewriter:
    """One pass over one graph: a seed for each random operator, all drawn at once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.count = 0
        self._draws: dict[torch.device, Node] = {}
        self._counts: dict[torch.device, int] = {}
        self._source: Node | None = None

    def visit(self, node: Node) -> None:
        """Replace one node if it is a random operator that we have."""
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or not draws(node):
            return
        rewrite = _REWRITES.get(target)
        if rewrite is None or node.kwargs.get("generator") is not None:
            return
        self._source = node
        with self.graph.inserting_before(node):
            new = rewrite(self, node)
        if new is None:
            return
        self.count += 1
        if isinstance(new, tuple):
            for user in list(node.users):
                user.replace_all_uses_with(new[user.args[1]])  # type: ignore[index]
                self.graph.erase_node(user)
        else:
            node.replace_all_uses_with(new)
        self.graph.erase_node(node)

    def emit(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        """Add a call in place of the node being replaced, with its metadata and marks."""
        assert self._source is not None
        node = self.graph.call_function(op, args, kwargs)
        marks = ("recompute", "ac_graph_id", "custom", "stack_trace", "nn_module_stack", "seq_nr")
        node.meta.update({k: self._source.meta[k] for k in marks if k in self._source.meta})
        node.meta["partitioner_tag"] = self._source.meta.get("partitioner_tag")
        if node.meta["partitioner_tag"] is None:
            del node.meta["partitioner_tag"]
        _describe(node, self._source)
        return node

    def numbers(self, op: Any, node: Node, *dtype: torch.dtype) -> Node:
        """Add ``op`` with a seed of its own, for a result of the shape and layout of ``node``."""
        value = _first(node.meta["val"])
        size = [self._size(node, d, s) for d, s in enumerate(value.shape)]
        return self.emit(op, self._seed(value.device), size, memory_order(value), *dtype)

    def _size(self, node: Node, d: int, size: Any) -> Any:
        if isinstance(size, int):
            return size
        shape = next((a for a in node.args if isinstance(a, (list, tuple))), None)
        if shape is not None:
            return shape[d]
        found = self.graph.call_function(aten.sym_size.int, (node.args[0], d))
        found.meta["val"] = size
        return found

    def _seed(self, device: torch.device) -> Node:
        if device not in self._draws:
            first = next(n for n in self.graph.nodes if n.op != "placeholder")
            with self.graph.inserting_before(first):
                self._draws[device] = self._draw(device, 1)
        row = self._counts.get(device, 0)
        self._counts[device] = row + 1
        return self.emit(ours.seed.default, self._draws[device], row)

    def _draw(self, device: torch.device, rows: int) -> Node:
        """Draw ``rows`` seeds, each at an address that kernels take for aligned."""
        limits = torch.iinfo(torch.int64)
        draw = self.graph.call_function(
            aten.randint.low,
            (limits.min, limits.max, [rows, 2]),
            {"dtype": torch.int64, "device": device, "pin_memory": False},
        )
        assert self._source is not None
        _describe(draw, self._source)
        draw.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        return draw

    def finish(self) -> None:
        """Let each draw be for as many seeds as were asked for."""
        for device, draw in self._draws.items():
            with self.graph.inserting_before(draw):
                whole = self._draw(device, self._counts[device])
            draw.replace_all_uses_with(whole)
            self.graph.erase_node(draw)


def memory_order(value: torch.Tensor) -> list[int]:
    """The dimensions of a dense tensor from the outermost in memory to the innermost."""
    strides = value.stride()
    if not all(isinstance(s, int) for s in strides):
        return list(range(value.dim()))
    return sorted(range(value.dim()), key=lambda d: (-int(strides[d]), d))


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) else value


def _describe(node: Node, source: Node) -> None:
    """Give a new node the fake value that the partitioner and the lowering look at."""
    mode = _first(source.meta["val"]).fake_mode
    args, kwargs = torch.fx.node.map_aggregate(
        (node.args, node.kwargs), lambda a: a.meta["val"] if isinstance(a, Node) else a
    )
    with mode:
        result = node.target(*args, **kwargs)  # type: ignore[operator]
    node.meta["val"] = result
    node.meta["tensor_meta"] = _extract_tensor_metadata(result)


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, Node) else argument


# -- the operators --------------------------------------------------------------------------------


def _native_dropout(rewriter: _Rewriter, node: Node) -> tuple[Node, ...] | None:
    """``x * mask / (1 - p)``, where the mask is true with probability 1 - p."""
    x, p, train = node.args
    value = _value(x)
    if train is False:  # None trains
        return None
    kept = 1.0 - float(p)  # type: ignore[arg-type]
    if kept == 0.0:
        nothing = rewriter.emit(aten.zeros_like.default, x)
        return nothing, rewriter.emit(aten.zeros_like.default, x, dtype=torch.bool)
    wide = torch.float64 if value.dtype == torch.float64 else torch.float32
    number = rewriter.numbers(ours.uniform.default, node, wide)
    mask = rewriter.emit(aten.lt.Scalar, number, kept)
    thinned = rewriter.emit(aten.mul.Tensor, x, mask)
    return rewriter.emit(aten.mul.Tensor, thinned, 1.0 / kept), mask


def _rand(rewriter: _Rewriter, node: Node) -> Node | None:
    """Uniform in [0, 1)."""
    dtype = node.meta["val"].dtype
    return rewriter.numbers(ours.uniform.default, node, dtype) if dtype in PRECISION else None


def _randn(rewriter: _Rewriter, node: Node) -> Node | None:
    """Standard normal."""
    dtype = node.meta["val"].dtype
    return rewriter.numbers(ours.normal.default, node, dtype) if dtype in PRECISION else None


def _below(rewriter: _Rewriter, node: Node, p: Any) -> Node:
    """One with probability ``p`` (a number or a tensor), else zero."""
    value = _value(p)
    tensor = isinstance(value, torch.Tensor)
    wide = tensor and value.dtype == torch.float64
    number = rewriter.numbers(ours.uniform.default, node, torch.float64 if wide else torch.float32)
    hit = rewriter.emit(aten.lt.Tensor if tensor else aten.lt.Scalar, number, p)
    return rewriter.emit(_CONVERT, hit, node.meta["val"].dtype)


def _bernoulli(rewriter: _Rewriter, node: Node) -> Node | None:
    """The probabilities are the operand itself, or come after it."""
    if len(node.args) > 1:
        return _below(rewriter, node, node.args[1])
    return _below(rewriter, node, node.kwargs.get("p", node.args[0]))


def _uniform(rewriter: _Rewriter, node: Node) -> Node | None:
    """Uniform in [low, high); what rounds up to ``high`` becomes ``low``, as in eager."""
    dtype = node.meta["val"].dtype
    if dtype not in PRECISION:
        return None
    low = float(_argument(node, 1, "from", 0.0))
    high = float(_argument(node, 2, "to", 1.0))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    number = rewriter.numbers(ours.uniform.default, node, wide)
    scaled = rewriter.emit(aten.mul.Tensor, number, high - low)
    moved = rewriter.emit(aten.add.Tensor, scaled, low)
    narrow = rewriter.emit(_CONVERT, moved, dtype)
    over = rewriter.emit(aten.ge.Scalar, narrow, high)
    bottom = rewriter.emit(aten.full_like.default, narrow, low)
    return rewriter.emit(aten.where.self, over, bottom, narrow)


def _normal(rewriter: _Rewriter, node: Node) -> Node | None:
    """Normal of a given mean and deviation."""
    dtype = node.meta["val"].dtype
    if dtype not in PRECISION:
        return None
    mean = float(_argument(node, 1, "mean", 0.0))
    deviation = float(_argument(node, 2, "std", 1.0))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    number = rewriter.numbers(ours.normal.default, node, wide)
    scaled = rewriter.emit(aten.mul.Tensor, number, deviation)
    return rewriter.emit(_CONVERT, rewriter.emit(aten.add.Tensor, scaled, mean), dtype)


def _randint(rewriter: _Rewriter, node: Node) -> Node | None:
    """Integers in [low, high): the remainder of 63 random bits, so the range must be far below."""
    schema = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    low = _argument(node, schema.index("low"), "low", 0) if "low" in schema else 0
    high = _argument(node, schema.index("high"), "high", None)
    if not isinstance(low, int) or not isinstance(high, int) or not 0 < high - low <= 1 << 40:
        return None
    dtype = node.meta["val"].dtype
    if dtype.is_complex:
        return None
    bits = rewriter.numbers(ours.bits.default, node)
    rest = rewriter.emit(aten.remainder.Scalar, bits, high - low)
    moved = rewriter.emit(aten.add.Tensor, rest, low) if low else rest
    return rewriter.emit(_CONVERT, moved, dtype)


def _argument(node: Node, position: int, name: str, default: Any) -> Any:
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, default)


_REWRITES: dict[Any, Rewrite] = {
    aten.native_dropout.default: _native_dropout,
    aten.rand.default: _rand,
    aten.rand_like.default: _rand,
    aten.randn.default: _randn,
    aten.randn_like.default: _randn,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli.Tensor: _bernoulli,
    aten.uniform.default: _uniform,
    aten.normal_functional.default: _normal,
    aten.randint.default: _randint,
    aten.randint.low: _randint,
    aten.randint_like.default: _randint,
    aten.randint_like.low_dtype: _randint,
}
