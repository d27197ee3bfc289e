"""The exact key of an ATen graph, as named parts.

Equal parts must mean an equal host program with equal kernels, so everything that code generation
can see is in them, and nothing else: nodes are numbers, devices have no ordinal, and names, paths
and stack traces are left out. What cannot be described exactly raises `Unkeyable`.

Grammar of the text in "nodes", one line per node, numbered from 0::

    line  := op "(" arg* ")" "{" (name "=" arg)* "}" ":" meta
    op    := "placeholder" | "output" | "getitem" | "constant" N | "subgraph" N | schema of the op
    arg   := "%" N | "i" int | "f" float | "s" str | "[" arg* "]" | ...   (see `_argument`)
    meta  := dtype sizes strides offset device-type, nested for several results
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import operator
from collections.abc import Mapping, Sequence
from math import gcd
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from .errors import GraphError
from .host import HOST_SCHEMA, Size, SizeExpr
from .host_sizes import to_host
from .seam.target import Target
from .seam.toolchain import Toolchain
from .service import KeyParts
from .sym import as_size, known_multiple, naming
from .symbols import Symbols
from .trace.dynamo import GraphInfo
from .trace.errors import Unkeyable as Unkeyable

#: Higher-order operators that their arguments and sub-graphs describe completely.
_DESCRIBED_HOPS = frozenset(
    {"auto_functionalized", "auto_functionalized_v2", "cond", "invoke_subgraph", "while_loop"}
)
#: A kernel may assume this much of a pointer; an input is either so aligned or it is not.
_ALIGNMENT = 16


def graph_key_parts(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    knobs: KeyParts = (),
    target: Target,
    toolchain: Toolchain,
    info: GraphInfo | None = None,
    sources_digest: str | None = None,
    symbols: Symbols | None = None,
) -> KeyParts:
    """Return the named parts of the key of one graph after AOTAutograd.

    ``knobs`` are (name, value) of those that change code; ``sources_digest`` defaults to
    `compiler_sources_digest`; pass ``info`` if code generation looks at it. Raises Unkeyable,
    which names the node in the way; then the graph is compiled and not cached. Takes about 15 ms
    for 700 nodes.
    """
    symbols = Symbols(gm) if symbols is None else symbols
    with naming(symbols.rename):
        return _parts(gm, example_inputs, knobs, target, toolchain, info, sources_digest, symbols)


def _parts(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    knobs: KeyParts,
    target: Target,
    toolchain: Toolchain,
    info: GraphInfo | None,
    sources_digest: str | None,
    symbols: Symbols,
) -> KeyParts:
    writer = _Writer()
    nodes = writer.graph(gm)
    texts = (
        ("graph.inputs", "\n".join(_input(i, value) for i, value in enumerate(example_inputs))),
        ("graph.nodes", nodes),
        ("graph.constants", "\n".join(writer.constants)),
        ("graph.subgraphs", "\n\n".join(writer.subgraphs)),
        ("graph.symbols", symbols.ranges()),
        ("graph.kind", info.kind if info else ""),
        ("graph.static_inputs", repr(info.static_inputs) if info else ""),
        ("target.arch", target.arch_key),
        *_model_parts(target),
        ("torch.deterministic", str(torch.are_deterministic_algorithms_enabled())),
        ("torch", f"{torch.__version__} {torch.version.git_version}"),
        ("compiler.sources", sources_digest or compiler_sources_digest()),
        ("program.schema", str(HOST_SCHEMA)),
    )
    encoded = tuple((name, text.encode("utf-8", "surrogateescape")) for name, text in texts)
    settings = tuple((f"knob.{name}", value) for name, value in sorted(knobs))
    return (*encoded, *settings, *toolchain.key_parts())


@functools.cache
def compiler_sources_digest() -> str:
    """Return one digest over the compiler's own source files, their places in the tree included.

    Computed once per process; what an editor writes later does not change the running code.
    """
    root = Path(__file__).parent
    whole = hashlib.sha256()
    files = (p for p in root.rglob("*") if p.suffix in (".py", ".cpp"))
    for path in sorted(files, key=lambda p: p.relative_to(root).as_posix()):
        for part in (path.relative_to(root).as_posix().encode(), path.read_bytes()):
            whole.update(len(part).to_bytes(8, "little"))
            whole.update(part)
    return whole.hexdigest()


def _model_parts(target: Target) -> list[tuple[str, str]]:
    """Return every figure of the device model that a heuristic could have used."""
    model = target.device_model
    names = [f.name for f in dataclasses.fields(model) if f.name != "live_names"]
    return [(f"model.{name}", repr(getattr(model, name))) for name in names]


def _input(position: int, value: Any) -> str:
    """Describe one example input; misaligned ones are another program than aligned ones."""
    where = ("input", f"number {position}")
    if isinstance(value, Tensor):
        offset = as_size(value.storage_offset())
        aligned = known_multiple(offset, _ALIGNMENT // gcd(_ALIGNMENT, value.dtype.itemsize))
        return f"{_tensor(value, *where)} {'aligned' if aligned else 'misaligned'}"
    return _argument(value, {}, *where)


class _Writer:
    """Writes a graph module and, once each, the sub-graphs and constants that it refers to."""

    def __init__(self) -> None:
        self.constants: list[str] = []
        self.subgraphs: list[str] = []
        self._places: dict[int, str] = {}

    def graph(self, gm: GraphModule) -> str:
        """Return the text of one graph, a line for each node."""
        numbers: dict[Node, str] = {}
        lines = []
        for node in gm.graph.nodes:
            lines.append(self._line(gm, node, numbers))
            numbers[node] = f"%{len(numbers)}"
        return "\n".join(lines)

    def _line(self, gm: GraphModule, node: Node, numbers: dict[Node, str]) -> str:
        match node.op:
            case "call_function":
                op = _operator(node)
            case "placeholder":
                return f"placeholder:{_value(node.meta.get('val'), 'placeholder', node.name)}"
            case "output":
                return f"output({_argument(node.args, numbers, 'output', node.name)})"
            case "get_attr":
                return self._attribute(gm, node)
            case _:
                raise Unkeyable(f"a {node.op} is opaque", op=str(node.target), node=node.name)
        args = _argument(node.args, numbers, op, node.name)
        kwargs = _argument(node.kwargs, numbers, op, node.name) if node.kwargs else ""
        return f"{op}({args}){kwargs}:{_value(node.meta.get('val'), op, node.name)}"

    def _attribute(self, gm: GraphModule, node: Node) -> str:
        value = operator.attrgetter(str(node.target))(gm)
        place = self._places.get(id(value))
        if place is None:
            place = self._store(value, node)
            self._places[id(value)] = place
        return place

    def _store(self, value: Any, node: Node) -> str:
        if isinstance(value, GraphModule):
            text = self.graph(value)
            self.subgraphs.append(text)
            return f"subgraph {len(self.subgraphs) - 1}"
        if isinstance(value, Tensor):
            self.constants.append(_constant(value, node))
            return f"constant {len(self.constants) - 1}"
        raise Unkeyable(
            f"the attribute is a {type(value).__name__}", op=str(node.target), node=node.name
        )


def _operator(node: Node) -> str:
    target: Any = node.target
    if target is operator.getitem:
        return "getitem"
    if isinstance(target, OpOverload):
        return _overload(target)
    if isinstance(target, HigherOrderOperator):
        if target.name() in _DESCRIBED_HOPS:
            return f"hop {target.name()}"
        raise Unkeyable(
            "its code is not part of the graph", op=f"higher_order.{target.name()}", node=node.name
        )
    name = getattr(target, "__name__", type(target).__name__)
    if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat)):
        return f"number {name}"  # a function of sizes that its name and arguments tell
    raise Unkeyable("it calls an opaque function", op=name, node=node.name)


@functools.cache
def _overload(op: OpOverload) -> str:
    """Return an overload with its schema: what it mutates and returns is in there too."""
    return f"{op} {op._schema}"


def _argument(value: Any, numbers: Mapping[Node, str], op: str, node: str) -> str:
    """Return the canonical text of one argument; lists and tuples are the same to ATen."""
    kind = type(value)
    if kind is Node:
        return numbers[value]
    if kind is int:
        return f"i{value}"
    if value is None:
        return "n"
    if kind is bool:
        return "b1" if value else "b0"
    if isinstance(value, (list, tuple)):
        inside = ",".join([_argument(item, numbers, op, node) for item in value])
        return f"[{inside}]"
    if kind is float or kind is complex:
        return f"f{value!r}"
    if kind is str:
        return f"s{value!r}"
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return f"t{value}"
    if kind is torch.device:
        return f"d{value.type}"
    return _rare_argument(value, numbers, op, node)


def _rare_argument(value: Any, numbers: Mapping[Node, str], op: str, node: str) -> str:
    match value:
        case dict():
            pairs = (
                f"{name!r}={_argument(value[name], numbers, op, node)}" for name in sorted(value)
            )
            return "{" + ",".join(pairs) + "}"
        case slice():
            bounds = (value.start, value.stop, value.step)
            return f"S{_argument(bounds, numbers, op, node)}"
        case OpOverload():
            return f"o{_overload(value)}"
        case torch.SymInt():
            return _size(value, op, node)
        case torch.SymFloat() | torch.SymBool():
            raise Unkeyable(
                f"it computes with the {type(value).__name__} {value}", op=op, node=node
            )
    raise Unkeyable(f"an argument is a {type(value).__name__}", op=op, node=node)


def _value(value: Any, op: str, node: str) -> str:
    """Describe the recorded result of a node: a tensor, several, a number or nothing."""
    if isinstance(value, torch.SymFloat):
        return "float"
    if isinstance(value, Tensor):
        return _tensor(value, op, node)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([_value(item, op, node) for item in value]) + "]"
    return _argument(value, {}, op, node)


def _tensor(value: Tensor, op: str, node: str) -> str:
    if value.layout is not torch.strided:
        raise Unkeyable(f"a tensor has the layout {value.layout}", op=op, node=node)
    sizes: Any = value.size()
    strides: Any = value.stride()
    offset: Any = value.storage_offset()
    if not all(type(number) is int for number in (*sizes, *strides, offset)):
        sizes = "(" + ", ".join(_size(s, op, node) for s in sizes) + ")"
        strides = "(" + ", ".join(_size(s, op, node) for s in strides) + ")"
        offset = _size(offset, op, node)
    else:
        sizes = tuple(sizes)
    flags = ""
    if value.dtype.is_complex or value.is_neg():
        flags = f" conj={value.is_conj():d} neg={value.is_neg():d}"
    return f"{value.dtype} {sizes} {strides} {offset} {value.device.type}{flags}"


def _size(value: Any, op: str, node: str) -> str:
    """Describe a size by its expression over the graph's symbols, as a tree in brackets."""
    try:
        return _tree(to_host(as_size(value)))
    except GraphError as error:
        raise Unkeyable(str(error), op=op, node=node) from None


def _tree(size: Size | str) -> str:
    match size:
        case SizeExpr("sym", (str(name),)):
            return name
        case SizeExpr(op, args):
            return f"({op} {' '.join(_tree(a) for a in args)})"
        case _:
            return str(size)


def _constant(value: Tensor, node: Node) -> str:
    """Describe a constant by its content, as a digest over its elements in row-major order."""
    where = ("constant", node.name)
    described = _tensor(value, *where)
    data = value.constant if isinstance(value, FakeTensor) else value
    if data is None:
        raise Unkeyable("a constant has no values, only sizes", op=where[0], node=where[1])
    if type(data) not in (Tensor, torch.nn.Parameter):
        raise Unkeyable(f"a constant is a {type(data).__name__}", op=where[0], node=where[1])
    with _disable_current_modes(), torch.no_grad():
        flat = data.detach().cpu().resolve_conj().resolve_neg().contiguous().view(-1)
        content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return f"{described} {hashlib.sha256(content).hexdigest()}"
