"""View operators rename elements exactly, over memory and over computed values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from body_eval import check, trace
from tensors import layouts, rand

from kernelfarm.compiler.errors import GraphError
from kernelfarm.compiler.ir import Compute, Extern
from kernelfarm.compiler.lower.context import Lowering

Fn = Callable[[torch.Tensor], object]

VIEWS: dict[str, Fn] = {
    "view": lambda x: x.reshape(3, 8),
    "split dimension": lambda x: x.reshape(2, 2, 3, 2),
    "merge": lambda x: x.reshape(-1),
    "add ones": lambda x: x.reshape(1, 4, 1, 6, 1),
    "regroup": lambda x: x.reshape(8, 3).reshape(2, 12),
    "flatten": lambda x: x.flatten(),
    "permute": lambda x: x.reshape(4, 3, 2).permute(2, 0, 1),
    "negative permute": lambda x: x.permute(-1, 0),
    "transpose": lambda x: x.transpose(0, -1),
    "t": lambda x: x.t(),
    "transpose and merge": lambda x: x.t().reshape(-1),
    "expand": lambda x: x.unsqueeze(0).expand(3, -1, -1),
    "expand ones": lambda x: x[:, :1].expand(4, 5),
    "squeeze": lambda x: x.reshape(1, 4, 1, 6).squeeze(),
    "squeeze one": lambda x: x.reshape(1, 4, 1, 6).squeeze(0),
    "squeeze several": lambda x: x.reshape(1, 4, 1, 6).squeeze((0, 2)),
    "squeeze nothing": lambda x: x.squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "slice": lambda x: x[1:3, 2:],
    "slice step": lambda x: x[::2, 1::3],
    "slice negative": lambda x: x[-2:, :-3],
    "slice beyond": lambda x: x[:100, -100:2],
    "slice empty": lambda x: x[3:2],
    "select": lambda x: x[2],
    "select negative": lambda x: x[:, -1],
    "select to scalar": lambda x: x[1, 1],
    "split": lambda x: x.split(4, dim=1),
    "split sizes": lambda x: x.split([1, 0, 3], dim=0),
    "chunk": lambda x: x.chunk(3, dim=-1),
    "unbind": lambda x: x.unbind(1),
    "flip": lambda x: x.flip(0),
    "flip both": lambda x: x.flip((0, -1)),
    "repeat": lambda x: x.repeat(2, 3),
    "repeat lead": lambda x: x.repeat(2, 1, 1),
    "repeat nothing": lambda x: x.repeat(0, 1),
    "tile and roll": lambda x: x.roll((1, -2), (0, 1)),
    "repeat interleave": lambda x: x.repeat_interleave(2, dim=1),
    "diagonal": lambda x: x.diagonal(1),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "movedim": lambda x: x.reshape(4, 3, 2).movedim(0, -1),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.t().contiguous(),
    "detach": lambda x: x.detach(),
    "pixel shuffle": lambda x: torch.pixel_shuffle(x.reshape(1, 4, 2, 3), 2),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "rot90": lambda x: x.rot90(),
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(-1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_computed_values_equal_eager(name: str) -> None:
    """A view of a lazy chain maps indices and continues into the next operator."""
    check(lambda x: _map(VIEWS[name](x * 2 + 1), torch.exp), rand(4, 6), fallbacks=BY_METADATA)
    check(lambda x: VIEWS[name](x * 2), rand(4, 6, dtype=torch.int64), fallbacks=BY_METADATA)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_memory_equal_eager_in_every_layout(name: str) -> None:
    """A view of a strided input reads the right elements before a pointwise operator."""
    for x in layouts(4, 6):
        check(lambda x: _map(VIEWS[name](x), lambda t: t + 1), x, fallbacks=BY_METADATA)


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_reductions_equal_eager(name: str) -> None:
    """A view of a reduction's buffer, whatever layout eager would have given it."""
    check(
        lambda x: _map(VIEWS[name](x.sum(1)), lambda t: t + 1),
        rand(6, 3, 4).permute(2, 1, 0),
        fallbacks=BY_METADATA,
    )


#: Views by metadata alone, without a lowering of their own.
BY_METADATA = ("aten.diagonal.default", "aten.unfold.default", "aten.view.dtype")


def _map(result: object, fn: Fn) -> object:
    if isinstance(result, (tuple, list)):
        return tuple(fn(t) for t in result)
    assert isinstance(result, torch.Tensor)
    return fn(result)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 4), (1, 1), ()])
def test_reshapes_of_unusual_shapes_equal_eager(shape: tuple[int, ...]) -> None:
    """Empty tensors, single elements and scalars reshape."""
    check(lambda x: (x + 1).reshape(-1) * 2 if x.numel() else (x + 1).reshape(0) * 2, rand(*shape))
    check(lambda x: (x + 1).unsqueeze(0).flip(0) * 2, rand(*shape))


def test_an_input_is_never_returned_as_its_own_copy() -> None:
    """A clone is memory of its own: writing to it must not change the input."""
    lowering = check(lambda x: (x.clone(), x.t().contiguous()), rand(4, 6))
    inputs = {b.name for b in lowering.graph.inputs}
    assert not inputs & {v.buffer.name for v in lowering.graph.outputs}


def test_views_of_memory_need_no_kernel() -> None:
    """Views in the traced layout are strides on the input; only the sum is a loop nest."""
    lowering = check(lambda x: x[:, 1:3].t().unsqueeze(0)[0, 1] + 1, rand(4, 6))
    assert len(lowering.graph.nodes) == 1


def test_a_library_call_sees_the_layout_that_eager_would_give_it() -> None:
    """A matmul of a transposed product gets the transposed strides, stored once for two calls."""
    lowering = check(
        lambda x, w: ((x * 2).t() @ w, (x * 2).t() @ (w + 1)), rand(4, 6), rand(4, 5),
        fallbacks=["aten.mm.default"],
    )  # fmt: skip
    calls = [n for n in lowering.graph.nodes if isinstance(n, Extern)]
    assert all(c.args[0].strides == (1, 6) for c in calls)


def test_a_lazy_value_that_two_calls_read_is_stored_once() -> None:
    """Three projections of one converted activation share its memory."""
    lowering = check(
        lambda x, a, b: (lambda y: (y @ a, y @ b))(x.to(torch.bfloat16)),
        rand(4, 6),
        rand(6, 2, dtype=torch.bfloat16),
        rand(6, 3, dtype=torch.bfloat16),
        fallbacks=["aten.mm.default"],
    )
    assert sum(isinstance(n, Compute) for n in lowering.graph.nodes) == 1


def test_same_values_in_another_dtype_keep_their_bits() -> None:
    """view(dtype) of memory reinterprets it."""
    check(lambda x: x.view(torch.int32) + 1, rand(4, 6), fallbacks=BY_METADATA)


def test_chains_of_reshapes_simplify_to_plain_indices() -> None:
    """Heads split, swapped, swapped back and merged leave no division in the kernel."""

    def heads(x: torch.Tensor) -> torch.Tensor:
        y = (x + 1).reshape(2, 5, 3, 4).permute(0, 2, 1, 3)
        return y.permute(0, 2, 1, 3).reshape(2, 5, 12) * 2

    lowering = check(heads, rand(2, 5, 12))
    (node,) = lowering.graph.nodes
    text = repr(node.body)
    assert "//" not in text and "%" not in text


def test_strides_by_hand_stay_inside_a_tensor() -> None:
    """as_strided of a dense tensor is a view; of an input's neighbourhood, torch's business."""
    by_hand = ["aten.as_strided.default"]
    check(lambda x: x.as_strided((2, 2), (1, 3), 1) + 1, rand(4, 4), fallbacks=by_hand)
    check(lambda x: (x * 2).as_strided((3, 2), (2, 5), 2) + 1, rand(4, 4), fallbacks=by_hand)
    window = rand(4, 4)[1:3, 1:3]
    gm = trace(lambda x: x.as_strided((4, 4), (4, 1), 0) + 1, (window,))
    graph = Lowering(gm, device_type="cpu").run()
    assert any(isinstance(n, Extern) for n in graph.nodes)


def test_strides_by_hand_beside_a_computed_slice_are_refused() -> None:
    """Elements that only eager's storage holds are never read from ours."""
    gm = trace(lambda x: (x * 2)[:, 1:3].as_strided((2, 2), (1, 2), 0) + 1, (rand(4, 4),))
    with pytest.raises(GraphError, match="as_strided"):
        Lowering(gm, device_type="cpu").run()
