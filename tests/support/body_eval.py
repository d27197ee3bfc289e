"""A reference executor of lowered graphs: loop bodies by torch on the CPU, library calls by torch.

Every loop body runs statement by statement, each one vectorised over the whole iteration space, in
the compute dtypes that `ops` promises. Memory starts poisoned, loads outside a buffer and stores
that hit one element twice are errors, so a wrong index cannot pass by luck.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kernelfarm.compiler.body import Body, Stmt
from kernelfarm.compiler.host import DeviceRef, DType, MemoryFormat
from kernelfarm.compiler.index import Div, Index, Indirect, Mod, Var
from kernelfarm.compiler.ir import Buffer, Compute, Extern, LoweredGraph, View
from kernelfarm.compiler.lower.context import Lowering
from kernelfarm.compiler.trace import random_ops
from kernelfarm.compiler.trace.decomposition import decomposition_table

POISON_INT = 0x5A
#: Set LOWER_INTERPRET=1 to send every graph of these tests through the interpreter as well.
INTERPRET_ALL = os.environ.get("LOWER_INTERPRET") == "1"


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of our name."""
    return getattr(torch, name)


def poisoned(extent: int, dtype: str) -> torch.Tensor:
    """Memory that nobody wrote yet: NaN, or a byte pattern."""
    made = torch_dtype(dtype)
    if made.is_floating_point or made.is_complex:
        return torch.full((extent,), math.nan).to(made)
    return torch.full((extent,), POISON_INT, dtype=torch.uint8).to(made)


def storage_of(tensor: torch.Tensor, buffer: Buffer) -> torch.Tensor:
    """The flat memory that a tensor of this buffer's layout covers."""
    return torch.as_strided(tensor, (int(buffer.extent()),), (1,), tensor.storage_offset()).clone()


def view_of(view: View, memory: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A View as a torch tensor over the flat memory."""
    flat = memory[view.buffer.name]
    if view.dtype != view.buffer.dtype:
        flat = flat.view(torch_dtype(view.dtype))
    return torch.as_strided(
        flat,
        tuple(int(s) for s in view.sizes),
        tuple(int(s) for s in view.strides),
        int(view.offset),
    )


def _safe_divisor(b: torch.Tensor) -> torch.Tensor:
    if b.dtype.is_floating_point:
        return b
    return torch.where(b == 0, torch.ones_like(b), b)  # a lane that is not chosen


def _floor_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, _safe_divisor(b), rounding_mode="floor")


def _trunc_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, _safe_divisor(b), rounding_mode="trunc")


OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "floor_div": _floor_div,
    "trunc_div": _trunc_div,
    "remainder": lambda a, b: torch.remainder(a, _safe_divisor(b)),
    "fmod": lambda a, b: torch.fmod(a, _safe_divisor(b)),
    "fma": lambda a, b, c: torch.addcmul(c, a, b),
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": torch.bitwise_not,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "uniform": lambda *a: random_ops.uniform_from(random_ops.words_at(*a), torch.float32),
    "uniform64": lambda *a: random_ops.uniform_from(random_ops.words_at(*a), torch.float64),
    "uniform_f16": lambda *a: random_ops.uniform_from(
        random_ops.words_at(*a), torch.float16
    ).float(),
    "uniform_bf16": lambda *a: random_ops.uniform_from(
        random_ops.words_at(*a), torch.bfloat16
    ).float(),
    "normal": lambda *a: random_ops.normal_from(random_ops.words_at(*a), torch.float32),
    "normal64": lambda *a: random_ops.normal_from(random_ops.words_at(*a), torch.float64),
    "bits": lambda *a: random_ops.bits_from(random_ops.words_at(*a)),
}


def operation(name: str) -> Callable[..., torch.Tensor]:
    """The torch function of a vocabulary name; most names are torch's own."""
    return OPERATIONS.get(name) or getattr(torch, name)


def evaluate_index(
    index: Index, env: Mapping[str, torch.Tensor], values: Sequence[torch.Tensor]
) -> torch.Tensor:
    """An index over the whole iteration space, int64."""
    total = torch.tensor(int(index.const), dtype=torch.int64)
    for atom, coefficient in index.terms:
        match atom:
            case Var():
                part = env[atom.name]
            case Div():
                part = torch.div(
                    evaluate_index(atom.base, env, values), int(atom.by), rounding_mode="floor"
                )
            case Mod():
                part = torch.remainder(evaluate_index(atom.base, env, values), int(atom.by))
            case Indirect():
                part = values[atom.value].to(torch.int64)
            case _:
                raise TypeError(atom)
        total = total + part * int(coefficient)
    return total


def _welford(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = flat.mean(-1, keepdim=True)
    return mean.squeeze(-1), ((flat - mean) ** 2).sum(-1)


def _reduce(kind: str, flat: torch.Tensor, dtype: str) -> tuple[torch.Tensor, ...]:
    match kind:
        case "sum":
            return (flat.sum(-1, dtype=torch_dtype(dtype)),)
        case "prod":
            return (flat.prod(-1, dtype=torch_dtype(dtype)),)
        case "max":
            return (flat.amax(-1),)
        case "min":
            return (flat.amin(-1),)
        case "any" | "all" | "argmax" | "argmin":
            return (getattr(flat, kind)(-1),)
        case "welford":
            return _welford(flat)
    raise ValueError(kind)


class BodyRun:
    """One execution of one loop body."""

    def __init__(self, body: Body, memory: dict[str, torch.Tensor]) -> None:
        self.body = body
        self.memory = memory
        self.sizes = [int(s) for s in (*body.sizes, *body.rsizes)]
        self.rank = len(body.sizes)
        names = [f"p{i}" for i in range(self.rank)] + [f"r{i}" for i in range(len(body.rsizes))]
        self.env = {}
        for d, (name, size) in enumerate(zip(names, self.sizes, strict=True)):
            shape = [1] * len(self.sizes)
            shape[d] = size
            self.env[name] = torch.arange(size).view(shape)
        self.values: list[Any] = []

    def run(self) -> None:
        """Execute all statements in order."""
        for stmt in self.body.stmts:
            result = self._statement(stmt)
            if stmt.op not in ("store", "reduce") or isinstance(result, torch.Tensor):
                want = torch_dtype(stmt.dtype)
                assert result.dtype == want, f"{stmt} computed {result.dtype}"
            self.values.append(result)

    def _statement(self, stmt: Stmt) -> Any:
        args = [self.values[a] for a in stmt.args]
        match stmt.op:
            case "load":
                return self._load(stmt, args)
            case "store":
                return self._store(stmt, *args)
            case "const":
                return torch.tensor(stmt.attrs[0], dtype=torch_dtype(stmt.dtype))
            case "index":
                return evaluate_index(stmt.attrs[0], self.env, self.values).to(
                    torch_dtype(stmt.dtype)
                )
            case "cast":
                return args[0].to(torch_dtype(stmt.dtype))
            case "round_to":
                return args[0].to(torch_dtype(stmt.attrs[0])).to(torch_dtype(stmt.dtype))
            case "bitcast":
                return args[0].view(torch_dtype(stmt.dtype))
            case "reduce":
                return self._reduce(stmt, args[0])
            case "part":
                return args[0][stmt.attrs[0]]
            case name:
                dtypes = {a.dtype for a in (args[1:] if name == "where" else args)}
                assert len(dtypes) == 1, f"{stmt} mixes {dtypes}"
                return operation(name)(*args)

    def _load(self, stmt: Stmt, args: list[torch.Tensor]) -> torch.Tensor:
        name, index, dtype = stmt.attrs
        flat = self.memory[name]
        if torch_dtype(dtype) != flat.dtype:
            flat = flat.view(torch_dtype(dtype))
        at = evaluate_index(index, self.env, self.values)
        keep = torch.ones((), dtype=torch.bool) if not args else args[0]
        at, keep = torch.broadcast_tensors(at, keep)
        at, keep = self._live(at), self._live(keep)
        outside = keep & ((at < 0) | (at >= flat.numel()))
        assert not bool(outside.any()), f"{stmt} reads outside {name} ({flat.numel()})"
        safe = torch.where(keep, at, torch.zeros_like(at))
        if flat.numel() == 0:
            value = torch.zeros(at.shape, dtype=flat.dtype)
        else:
            value = flat[safe]
        value = torch.where(keep, value, torch.zeros_like(value))
        return value.to(torch_dtype(stmt.dtype))

    def _live(self, value: torch.Tensor) -> torch.Tensor:
        """An empty iteration space has no lanes, not even for what does not vary."""
        return value.expand(self.sizes) if 0 in self.sizes else value

    def _store(self, stmt: Stmt, value: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        name, index, mode, dtype = stmt.attrs
        flat = self.memory[name]
        assert torch_dtype(dtype) == flat.dtype, f"{stmt} into {flat.dtype}"
        at = evaluate_index(index, self.env, self.values)
        varies = [at, value] if mask is None else [at, value, mask]
        shape = torch.broadcast_shapes(*(v.shape for v in varies))
        whole = [*self.sizes[: self.rank], *([1] * (len(self.sizes) - self.rank))]
        space = torch.broadcast_shapes(shape, whole)
        at = at.expand(space).reshape(-1)
        value = value.expand(space).reshape(-1).to(flat.dtype)
        if mask is not None:
            kept = mask.expand(space).reshape(-1)
            at, value = at[kept], value[kept]
        assert bool(((at >= 0) & (at < flat.numel())).all()), f"{stmt} writes outside {name}"
        if mode == "add":
            flat.index_add_(0, at, value)
            return
        if not index.indirects():
            assert at.unique().numel() == at.numel(), f"{stmt} stores twice to one element"
        flat[at] = value

    def _reduce(self, stmt: Stmt, value: torch.Tensor) -> Any:
        space = self.sizes
        flat = value.expand(space).reshape(*space[: self.rank], math.prod(space[self.rank :]))
        shape = (*space[: self.rank], *([1] * (len(space) - self.rank)))
        results = tuple(r.reshape(shape) for r in _reduce(stmt.attrs[0], flat, stmt.dtype))
        return results[0] if len(results) == 1 else results


def _host_argument(value: Any, memory: Mapping[str, torch.Tensor]) -> Any:
    match value:
        case View():
            return view_of(value, memory)
        case DType():
            return torch_dtype(value.name)
        case DeviceRef():
            return torch.device("cpu")
        case MemoryFormat():
            return getattr(torch, value.name)
        case tuple():
            return [_host_argument(v, memory) for v in value]
        case _:
            return value


def _call(node: Extern, memory: dict[str, torch.Tensor]) -> None:
    namespace, packet, overload = node.op.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    args = [_host_argument(a, memory) for a in node.args]
    kwargs = {k: _host_argument(v, memory) for k, v in node.kwargs}
    result = op(*args, **kwargs)
    for output in node.outputs:
        item = result
        for step in output.path:
            item = item[step]
        want = tuple(int(s) for s in output.buffer.strides)
        assert item.numel() == 0 or item.stride() == want, f"{node.op}: {item.stride()} for {want}"
        memory[output.buffer.name] = storage_of(item, output.buffer)


def execute(graph: LoweredGraph, inputs: Sequence[Any]) -> list[Any]:
    """Run a lowered graph on CPU tensors; the results own their memory."""
    memory: dict[str, torch.Tensor] = {}
    for buffer, tensor in zip(graph.inputs, inputs, strict=True):
        if isinstance(buffer, Buffer):
            memory[buffer.name] = storage_of(tensor, buffer)
    for name, data in graph.constants.items():
        octets = torch.tensor(list(data), dtype=torch.uint8)
        memory[name] = octets.view(torch_dtype(graph.buffers[name].dtype))
    for name, buffer in graph.buffers.items():
        if buffer.role == "compute":
            memory[name] = poisoned(int(buffer.extent()), buffer.dtype)
    for node in graph.nodes:
        match node:
            case Compute():
                BodyRun(node.body, memory).run()
            case Extern():
                _call(node, memory)
    return [view_of(o, memory) if isinstance(o, View) else o for o in graph.outputs]


def trace(fn: Callable[..., Any], inputs: Sequence[Any], decompositions: Any = None) -> Any:
    """The ATen graph of a function on fake tensors, with our decompositions."""
    table = decomposition_table() if decompositions is None else decompositions
    pure = torch.func.functionalize(fn, remove="mutations")
    tracer = make_fx(
        pure, decomposition_table=table, tracing_mode="fake", _allow_non_fake_inputs=True
    )
    return tracer(*inputs)


def flat_outputs(result: Any) -> list[Any]:
    """The results of a function as a list."""
    return list(result) if isinstance(result, (tuple, list)) else [result]


#: (relative, absolute) tolerances by dtype; integers and booleans are exact.
TOLERANCE = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (2e-5, 1e-5),
    torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (3e-2, 3e-2),
}


def assert_same(
    got: Any, want: Any, context: str = "", tolerance: tuple[float, float] | None = None
) -> None:
    """Equal dtype, shape and, within the dtype's tolerance, equal elements."""
    if not isinstance(want, torch.Tensor):
        assert got == want, context
        return
    assert got.dtype == want.dtype, f"{context}: dtype {got.dtype}, eager has {want.dtype}"
    assert got.shape == want.shape, f"{context}: shape {got.shape}, eager has {want.shape}"
    rtol, atol = tolerance or TOLERANCE.get(want.dtype, (0.0, 0.0))
    torch.testing.assert_close(
        got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{context}: {m}"
    )


def assert_layout(got: torch.Tensor, traced: torch.Tensor, context: str = "") -> None:
    """The strides that the traced graph promised, where they matter."""
    if got.numel() == 0:
        return
    pairs = zip(got.shape, got.stride(), traced.stride(), strict=True)
    assert all(a == b for s, a, b in pairs if s > 1), (
        f"{context}: strides {got.stride()}, traced {traced.stride()}"
    )


def traced_outputs(gm: Any) -> list[Any]:
    """The fake values of a graph's outputs."""
    (results,) = next(n for n in gm.graph.nodes if n.op == "output").args
    return [n.meta["val"] if hasattr(n, "meta") else n for n in flat_outputs(results)]


def check(
    fn: Callable[..., Any],
    *inputs: Any,
    fallbacks: Sequence[str] = (),
    strides: bool = True,
    decompositions: Any = None,
    tolerance: tuple[float, float] | None = None,
    interpreted: bool = INTERPRET_ALL,
) -> Lowering:
    """Lower, execute, compare with eager; only ``fallbacks`` may have become library calls.

    With ``interpreted`` the graph also goes through fusion, tiling and kernel text (slower).
    """
    want = flat_outputs(fn(*inputs))
    gm = trace(fn, inputs, decompositions)
    lowering = Lowering(gm, device_type="cpu")
    got = execute(lowering.run(), inputs)
    assert len(got) == len(want)
    for position, (g, w, t) in enumerate(zip(got, want, traced_outputs(gm), strict=True)):
        assert_same(g, w, f"output {position}", tolerance)
        if strides and isinstance(t, torch.Tensor):
            assert_layout(g, t, f"output {position}")
    assert set(lowering.fallback_ops) <= set(fallbacks), lowering.fallback_ops
    if interpreted:
        from interpret import interpret

        results, _ = interpret(gm, inputs)
        for position, (g, w, t) in enumerate(zip(results, want, traced_outputs(gm), strict=True)):
            assert_same(g, w, f"interpreted output {position}", tolerance)
            if strides and isinstance(t, torch.Tensor):
                assert_layout(g, t, f"interpreted output {position}")
    return lowering
