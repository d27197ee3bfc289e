"""Lowering: walk an ATen graph once and leave loop nests, library calls and views behind."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import gcd
from typing import Any

import torch
from sympy import Expr
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from ..body import Recorder, loop_vars
from ..errors import GraphError, LoweringError
from ..index import ZERO, Index, linear
from ..ir import (
    Buffer,
    Compute,
    Extern,
    Lazy,
    LoweredGraph,
    Output,
    Tensor,
    View,
    cost_of,
    is_dense,
    is_writable,
    same_layout,
)
from ..ops import INTS, ITEMSIZE, KERNEL_DTYPES
from ..sym import (
    Size,
    SizeSymbol,
    as_size,
    contiguous_strides,
    hint,
    known_multiple,
    naming,
    strides_of,
)
from ..symbols import Symbols
from .registry import LoweringFn, lowering_for

#: A lazy that is used more than once stays lazy only below these: one read and a little arithmetic
#: cost less than writing the value and reading it, say a normalised row.
CHEAP_READS, CHEAP_COST = 1, 8
#: The same where a library call is among the readers: it needs memory anyway, and each would make
#: its own.
CHEAP_FOR_CALLS = 2
#: A lazy never grows beyond these; a longer chain is cut by a buffer, which fusion may remove.
MAX_READS, MAX_COST = 24, 400

#: An operator that reads its input in several loops reads a lazy one only below these.
REREAD_READS, REREAD_COST = 4, 64


def dtype_name(dtype: torch.dtype) -> str:
    """Our name of a torch dtype."""
    return str(dtype).removeprefix("torch.")


def wrapped(number: bool | int | float, dtype: str) -> bool | int | float:
    """A number as a tensor of this dtype holds it: integers wrap around."""
    if dtype == "bool":
        return bool(number)
    if dtype not in INTS:
        return number
    bits = 8 * ITEMSIZE[dtype]
    low = int(number) & ((1 << bits) - 1)
    return low - (1 << bits) if dtype != "uint8" and low >> (bits - 1) else low


def is_marked(value: Any) -> bool:
    """Whether a tensor is conjugated or negated when it is read, which its memory does not show."""
    return isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())


class Lowering:
    """The state of one walk: the graph built so far and the node being lowered."""

    def __init__(
        self, gm: fx.GraphModule, device_type: str = "cuda", symbols: Symbols | None = None
    ) -> None:
        self.gm = gm
        self.symbols = Symbols(gm) if symbols is None else symbols
        self.device_type = device_type
        self.graph = LoweredGraph()
        self.env: dict[fx.Node, Any] = {}
        self.node: fx.Node | None = None
        self.lowered_ops: dict[str, int] = {}
        self.fallback_ops: dict[str, int] = {}
        self._count = 0
        #: What buffers that loop nests fill hold, for analyses that look through memory.
        self.defined: dict[str, Tensor] = {}
        self._realized: dict[tuple[int, tuple[Size, ...]], tuple[Tensor, View]] = {}

    # -- naming and metadata -------------------------------------------------------------------

    def fresh(self, prefix: str) -> str:
        """A name that no other buffer has."""
        self._count += 1
        return f"{prefix}{self._count}"

    def device_of(self, val: torch.Tensor) -> str:
        """ "target" for tensors on the compiled-for device, "cpu" for the rest."""
        return "target" if val.device.type == self.device_type else "cpu"

    @property
    def meta(self) -> Any:
        """The fake value(s) of the node being lowered."""
        assert self.node is not None
        return self.node.meta["val"]

    def out_sizes(self) -> tuple[Size, ...]:
        """Sizes of the (single) output of the node being lowered."""
        return tuple(as_size(s) for s in self.meta.shape)

    def out_dtype(self) -> str:
        """Stored dtype of the (single) output of the node being lowered."""
        return dtype_name(self.meta.dtype)

    def origin(self) -> tuple[str, ...]:
        """What new nodes record as their source."""
        return (self.node.name,) if self.node is not None else ()

    # -- building -------------------------------------------------------------------------------

    def buffer(
        self,
        sizes: tuple[Size, ...],
        dtype: str,
        strides: tuple[Size, ...] | None = None,
        *,
        role: str = "compute",
        device: str = "target",
        name: str | None = None,
        aligned: bool = True,
    ) -> Buffer:
        """Declare memory; contiguous unless strides are given."""
        out = Buffer(
            name or self.fresh("buf"),
            sizes,
            contiguous_strides(sizes) if strides is None else strides,
            dtype,
            device,
            role,
            aligned,
        )
        self.graph.buffers[out.name] = out
        return out

    def whole(self, buffer: Buffer) -> View:
        """The view of a whole buffer."""
        return View(buffer, buffer.sizes, buffer.strides)

    def realize(self, tensor: Tensor, strides: tuple[Size, ...] | None = None) -> View:
        """Memory that holds the tensor, with exactly these strides if they are given.

        A view that already has them is returned as it is; otherwise one loop nest is added that
        stores the elements, its loops ordered so that the innermost runs along the smallest stride.
        Strides may leave holes; where one is zero the elements along it are equal and stored once.
        Other overlaps cannot be written and become contiguous.
        """
        if isinstance(tensor, View) and (
            strides is None or same_layout(tensor.sizes, tensor.strides, strides)
        ):
            if strides is None or tensor.strides == strides:
                return tensor
            return View(tensor.buffer, tensor.sizes, strides, tensor.offset, tensor.dtype)
        if tensor.dtype not in KERNEL_DTYPES:
            where = (self.node.name, str(self.node.target)) if self.node is not None else ("", "")
            raise LoweringError(*where, f"{tensor.dtype} would have to be moved by a kernel")
        sizes = tensor.sizes
        wanted = contiguous_strides(sizes)
        if strides is not None and (is_dense(sizes, strides) or is_writable(sizes, strides)):
            wanted = strides
        # one tensor that two library calls read is stored once; the tensor is kept for its id
        known = self._realized.get((id(tensor), wanted))
        if known is not None:
            return known[1]
        repeats = [wanted[d] == 0 and sizes[d] != 1 for d in range(len(sizes))]
        stored = tuple(1 if r else s for s, r in zip(sizes, repeats, strict=True))
        out = self.buffer(stored, tensor.dtype, wanted)
        order = _loop_order(stored, wanted)
        loops = loop_vars("p", [stored[d] for d in order])
        index = [ZERO] * len(sizes)
        for position, dim in enumerate(order):
            index[dim] = loops[position]
        recorder = Recorder()
        value = tensor.load(recorder, index)
        recorder.store(out.name, linear(index, wanted), value, out.dtype)
        body = recorder.finish([stored[d] for d in order])
        self.graph.nodes.append(Compute(out.name, body, self.origin()))
        view = View(out, sizes, wanted)
        self._realized[id(tensor), wanted] = (tensor, view)
        self.defined[out.name] = tensor
        return view

    def reduce(
        self, kind: str, tensor: Tensor, dims: Sequence[int], **options: Any
    ) -> tuple[Tensor, ...]:
        """Reduce over ``dims``; see `reducing.reduce` for the options."""
        from .reducing import reduce

        return reduce(self, kind, tensor, dims, **options)

    def rereadable(self, tensor: Tensor) -> Tensor:
        """The tensor, in memory if computing its elements in several loops would cost too much."""
        cost, reads = cost_of(tensor)
        return self.realize(tensor) if reads > REREAD_READS or cost > REREAD_COST else tensor

    def extern(self, op: str, args: tuple, kwargs: dict[str, object], meta: Any) -> Any:
        """Add a library call whose results have the fake metadata ``meta``."""
        name = self.fresh("ext")
        outputs: list[Output] = []

        def build(val: Any, path: tuple[int, ...]) -> Any:
            if isinstance(val, torch.Tensor):
                out = self.buffer(
                    tuple(as_size(s) for s in val.shape),
                    dtype_name(val.dtype),
                    strides_of(val),
                    role="extern",
                    device=self.device_of(val),
                    name=name if not path else None,
                )
                outputs.append(Output(out, path))
                return self.whole(out)
            if isinstance(val, (tuple, list)):
                return tuple(build(v, (*path, i)) for i, v in enumerate(val))
            return None  # a number or nothing: whoever uses it gets a LoweringError

        result = build(meta, ())
        self.graph.nodes.append(
            Extern(name, op, args, tuple(kwargs.items()), tuple(outputs), self.origin())
        )
        return result

    # -- the walk -------------------------------------------------------------------------------

    def run(self) -> LoweredGraph:
        """Lower every node; raises `LoweringError` or `GraphError` naming node, op and reason."""
        with naming(self.symbols.rename):
            self._walk()
        self.node = None
        return self.graph

    def _walk(self) -> None:
        for node in self.gm.graph.nodes:
            self.node = node
            if node.op == "call_function" and isinstance(node.meta.get("val"), torch.SymInt):
                # whatever computes it, it is an expression over sizes
                self.env[node] = as_size(node.meta["val"])
                continue
            if node.op == "call_function" and isinstance(node.meta.get("val"), torch.SymFloat):
                self.env[node] = self.symbols.rename_float(node.meta["val"].node.expr)
                continue
            match node.op:
                case "placeholder":
                    self.env[node] = self._placeholder(node)
                case "get_attr":
                    self.env[node] = self._constant(node)
                case "call_function":
                    self.env[node] = self._settle(node, self._call(node))
                case "output":
                    self._output(node)
                case _:
                    raise GraphError(f"node {node.name} is a {node.op}; not a functional graph")

    def _placeholder(self, node: fx.Node) -> Any:
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt):
            return self._scalar(node, as_size(val))
        if not isinstance(val, torch.Tensor):
            self.graph.inputs.append(node.name)
            return val
        if is_marked(val):
            raise GraphError(f"input {node.name} is a lazily conjugated or negated view")
        sizes = tuple(as_size(s) for s in val.shape)
        strides = strides_of(val)
        offset = val.storage_offset()
        aligned = known_multiple(as_size(offset), 16 // gcd(16, val.element_size()))
        out = self.buffer(
            sizes,
            dtype_name(val.dtype),
            strides,
            role="input",
            device=self.device_of(val),
            name=self.fresh("arg"),
            aligned=aligned,
        )
        self.graph.inputs.append(out)
        return self.whole(out)

    def _scalar(self, node: fx.Node, size: Size) -> Size:
        """A size among the inputs: named like its symbol if it is one that has no name yet."""
        own = isinstance(size, SizeSymbol) and size.name not in self.graph.scalars
        name = size.name if own else self.fresh("n")  # type: ignore[union-attr]
        self.graph.inputs.append(name)
        self.graph.scalars[name] = size
        return size

    def _constant(self, node: fx.Node) -> Tensor:
        owner: Any = self.gm
        for part in str(node.target).split("."):
            owner = getattr(owner, part)
        if not isinstance(owner, torch.Tensor) or isinstance(owner, torch._subclasses.FakeTensor):
            kind = type(owner).__name__
            raise GraphError(f"constant {node.target} is a {kind}, not a real tensor")
        with _disable_current_modes():  # AOTAutograd compiles under its fake mode
            tensor = owner.detach().to("cpu").contiguous()
            if tensor.numel() * tensor.element_size() > 1 << 20:
                raise GraphError(f"constant {node.target} is larger than 1 MiB")
            data = bytes(tensor.flatten().view(torch.uint8).numpy())
        if not data and self.device_of(owner) == "target":
            dtype = dtype_name(tensor.dtype)
            return Lazy(tuple(tensor.shape), dtype, lambda r, i: r.const(0, dtype), 0, 0)
        out = self.buffer(
            tuple(tensor.shape),
            dtype_name(tensor.dtype),
            role="constant",
            device=self.device_of(owner),
            name=self.fresh("const"),
        )
        self.graph.constants[out.name] = data
        return self.whole(out)

    def _call(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            source, position = node.args
            return self.env[source][position]  # type: ignore[index]
        args = fx.node.map_arg(node.args, lambda n: self.env[n])
        kwargs = fx.node.map_arg(node.kwargs, lambda n: self.env[n])
        fn = lowering_for(node.target)
        if fn is not None and self._in_scope(node):
            result = self._lowered(fn, args, kwargs)
            if result is not NotImplemented:
                _count(self.lowered_ops, str(node.target))
                return result
        from .fallback import fallback

        _count(self.fallback_ops, str(node.target))
        return fallback(self, node, args, kwargs)

    def _lowered(self, fn: LoweringFn, args: Any, kwargs: Any) -> Any:
        """What a lowering gives; a library call where it asks a symbol for a number."""
        if not self.symbols:
            return fn(self, *args, **kwargs)
        try:
            return fn(self, *args, **kwargs)
        except TypeError:  # from sympy, of a symbol that was compared or converted
            return NotImplemented

    def _in_scope(self, node: fx.Node) -> bool:
        """Whether all tensors in and out are on the target with dtypes that kernels can hold."""
        vals = [n.meta.get("val") for n in node.all_input_nodes]
        outs = node.meta.get("val")
        vals += list(outs) if isinstance(outs, (tuple, list)) else [outs]
        flat = [v for v in vals if isinstance(v, torch.Tensor)]
        return all(
            self.device_of(v) == "target" and dtype_name(v.dtype) in KERNEL_DTYPES for v in flat
        )

    def _settle(self, node: fx.Node, result: Any) -> Any:
        """Give a lazy result memory where recomputing it would cost more."""
        if not isinstance(result, Lazy):
            return result
        from .matmul import padded_rows

        padded = padded_rows(node)
        if padded is not None:
            return self.realize(result, padded)
        cost, reads = cost_of(result)
        cheap = CHEAP_FOR_CALLS if _feeds_calls(node) else CHEAP_COST
        shared = len(node.users) > 1 and (reads > CHEAP_READS or cost > cheap)
        if shared or reads > MAX_READS or cost > MAX_COST:
            return self.realize(result, strides_of(node.meta["val"]))
        return result

    def _output(self, node: fx.Node) -> None:
        (results,) = node.args
        for item in results if isinstance(results, (tuple, list)) else (results,):  # type: ignore[union-attr]
            if not isinstance(item, fx.Node):
                self.graph.outputs.append(item)
                continue
            value = self.env[item]
            if isinstance(value, Tensor):
                strides = strides_of(item.meta["val"])
                value = self.realize(value, strides)
                if not same_layout(value.sizes, value.strides, strides):
                    raise LoweringError(item.name, str(item.target), "returns overlapping memory")
            elif value is not None and not isinstance(value, (int, float, bool, Expr)):
                raise LoweringError(item.name, str(item.target), "returns what is no tensor")
            self.graph.outputs.append(value)


_VIEWS = ("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "slice",
          "unsqueeze", "squeeze", "select", "alias", "detach", "constant_pad_nd")  # fmt: skip
_CALLS = ("mm", "addmm", "bmm", "baddbmm")


def _feeds_calls(node: fx.Node) -> bool:
    """Whether a library call reads a node's result, or a view of it."""
    waiting = list(node.users)
    seen = set(waiting)
    while waiting:
        user = waiting.pop()
        packet = getattr(user.target, "overloadpacket", None)
        name = "" if packet is None else packet.__name__
        if name in _VIEWS:
            waiting += [u for u in user.users if u not in seen]
            seen |= set(user.users)
        elif (
            name in _CALLS
            or "attention" in name
            or "convolution" in name
            or (user.op == "call_function" and packet is not None and not lowering_for(user.target))
        ):
            return True
    return False


def _count(table: dict[str, int], name: str) -> None:
    table[name] = table.get(name, 0) + 1


def _loop_order(sizes: Sequence[Size], strides: Sequence[Size]) -> list[int]:
    """Dimensions from the largest stride to the smallest."""
    return sorted(range(len(sizes)), key=lambda d: (-hint(strides[d]), d))


def broadcast_index(
    index: Sequence[Index], sizes: Sequence[Size], out_sizes: Sequence[Size]
) -> list[Index]:
    """Coordinates in an operand of ``sizes`` for coordinates of a broadcast result."""
    lead = len(out_sizes) - len(sizes)
    out: list[Index] = []
    for d, size in enumerate(sizes):
        whole = out_sizes[lead + d]
        stretched = isinstance(size, int) and size == 1 and whole != 1
        out.append(ZERO if stretched else index[lead + d])
    return out
