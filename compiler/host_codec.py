"""Host programs as bytes: strict, bounded msgpack in which nothing is executable.

Every node is an array ``[tag, field, ...]`` with the fields in the order of its dataclass. A bare
scalar stands for itself, so an array is always a node. Dtypes, devices, formats and size heads
travel as positions in the tables of `host_tables`. ``decode`` accepts exactly what ``encode``
writes: an unknown tag, a missing or surplus field, a wrong type or a bad name is an error that
names the field's path. Round trips are identity, down to NaN payload sign and negative zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import msgpack

from . import host
from . import host_tables as tables
from .host_errors import HostProgramError

_MAGIC = "kernelfarm-host"


class _Codec(NamedTuple):
    """Both directions of one kind of field; ``path`` is where the value stands, for errors."""

    encode: Callable[[Any, str, int], Any]
    decode: Callable[[Any, str, int], Any]


def encode(program: host.HostProgram) -> bytes:
    """Return ``program`` as bytes; raises HostProgramError for a field outside the grammar."""
    body = _PROGRAM.encode(program, "", 0)
    return msgpack.packb([_MAGIC, host.HOST_SCHEMA, body], use_bin_type=True)


def decode(data: bytes) -> host.HostProgram:
    """Return the program that ``encode`` wrote; raises HostProgramError for anything else."""
    if len(data) > tables.MAX_PROGRAM_BYTES:
        raise HostProgramError("", f"{len(data)} bytes are too many for a program")
    try:
        outer = msgpack.unpackb(
            data,
            raw=False,
            use_list=True,
            strict_map_key=True,
            max_map_len=0,
            max_ext_len=0,
            max_array_len=tables.MAX_LINES,
            max_str_len=tables.MAX_TEXT * 4,
            max_bin_len=tables.MAX_CONSTANT_BYTES,
        )
    except (ValueError, TypeError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise HostProgramError("", f"not an encoded program ({error!r})") from None
    if type(outer) is not list or len(outer) != 3 or outer[0] != _MAGIC:
        raise HostProgramError("", "not an encoded program (no header)")
    if type(outer[1]) is not int or outer[1] != host.HOST_SCHEMA:
        raise HostProgramError("", f"schema {outer[1]!r}, this version reads {host.HOST_SCHEMA}")
    return _PROGRAM.decode(outer[2], "", 0)


def _leaf(check: Callable[[Any], str | None]) -> _Codec:
    def both(value: Any, path: str, depth: int) -> Any:
        problem = check(value)
        if problem is not None:
            raise HostProgramError(path, problem)
        return value

    return _Codec(both, both)


def _check_int(value: Any) -> str | None:
    if type(value) is not int:
        return f"expected an integer, found {type(value).__name__}"
    if not -(2**63) <= value < 2**64:
        return "an integer of more than 64 bits"
    return None


def _check_text(value: Any) -> str | None:
    if type(value) is not str:
        return f"expected text, found {type(value).__name__}"
    if len(value) > tables.MAX_TEXT:
        return f"text of {len(value)} characters (limit {tables.MAX_TEXT})"
    if any(0xD800 <= ord(c) <= 0xDFFF for c in value):
        return "text with a lone surrogate"
    return None


def _check_bytes(value: Any) -> str | None:
    if type(value) is not bytes:
        return f"expected bytes, found {type(value).__name__}"
    if len(value) > tables.MAX_CONSTANT_BYTES:
        return f"{len(value)} bytes (limit {tables.MAX_CONSTANT_BYTES})"
    return None


def _check_bool(value: Any) -> str | None:
    return None if type(value) is bool else f"expected a bool, found {type(value).__name__}"


def _table(names: Sequence[str], what: str) -> _Codec:
    """A name of a fixed table, written as its position."""
    position = {name: i for i, name in enumerate(names)}

    def encode_name(value: Any, path: str, depth: int) -> int:
        if type(value) is not str or value not in position:
            raise HostProgramError(path, f"unknown {what} {value!r}")
        return position[value]

    def decode_name(value: Any, path: str, depth: int) -> str:
        if type(value) is not int or not 0 <= value < len(names):
            raise HostProgramError(path, f"unknown {what} number {value!r}")
        return names[value]

    return _Codec(encode_name, decode_name)


def _seq(item: _Codec, limit: int) -> _Codec:
    """A tuple of ``item``, written as an array."""

    def run(value: Any, path: str, depth: int, kind: Any, one: Callable[..., Any]) -> list[Any]:
        if type(value) is not kind:
            raise HostProgramError(path, f"expected a sequence, found {type(value).__name__}")
        if len(value) > limit:
            raise HostProgramError(path, f"{len(value)} elements (limit {limit})")
        if depth > tables.MAX_DEPTH:
            raise HostProgramError(path, f"nested more than {tables.MAX_DEPTH} deep")
        return [one(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]

    return _Codec(
        lambda value, path, depth: run(value, path, depth, tuple, item.encode),
        lambda value, path, depth: tuple(run(value, path, depth, list, item.decode)),
    )


def _optional(inner: _Codec) -> _Codec:
    return _Codec(
        lambda v, path, depth: None if v is None else inner.encode(v, path, depth),
        lambda v, path, depth: None if v is None else inner.decode(v, path, depth),
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _node(kind: type, /, **codecs: _Codec) -> _Codec:
    """A dataclass without a tag: an array of its fields in order."""
    names = tuple(f.name for f in fields(kind))
    assert names == tuple(codecs), (kind, names)
    items = tuple(codecs.items())

    def encode_node(value: Any, path: str, depth: int) -> list[Any]:
        if type(value) is not kind:
            raise HostProgramError(path, f"expected {kind.__name__}, found {type(value).__name__}")
        return [c.encode(getattr(value, n), _join(path, n), depth + 1) for n, c in items]

    def decode_node(value: Any, path: str, depth: int) -> Any:
        if type(value) is not list or len(value) != len(items):
            raise HostProgramError(path, f"expected the {len(items)} fields of {kind.__name__}")
        if depth > tables.MAX_DEPTH:
            raise HostProgramError(path, f"nested more than {tables.MAX_DEPTH} deep")
        pairs = zip(items, value, strict=True)
        return kind(*[c.decode(v, _join(path, n), depth + 1) for (n, c), v in pairs])

    return _Codec(encode_node, decode_node)


class _Union:
    """One of several dataclasses, told apart by a tag; also bare scalars and tuples if allowed."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.by_tag: dict[int, _Codec] = {}
        self.by_type: dict[type, tuple[int, _Codec]] = {}
        self.scalars: dict[type, _Codec] = {}
        self.codec = _Codec(self._encode, self._decode)

    def add(self, tag: int, kind: type, codec: _Codec) -> None:
        self.by_tag[tag] = codec
        self.by_type[kind] = (tag, codec)

    def _encode(self, value: Any, path: str, depth: int) -> Any:
        scalar = self.scalars.get(type(value))
        if scalar is not None:
            return scalar.encode(value, path, depth)
        entry = self.by_type.get(type(value))
        if entry is None:
            raise HostProgramError(path, f"{type(value).__name__} is no {self.what}")
        if depth > tables.MAX_DEPTH:
            raise HostProgramError(path, f"nested more than {tables.MAX_DEPTH} deep")
        return [entry[0], entry[1].encode(value, path, depth + 1)]

    def _decode(self, value: Any, path: str, depth: int) -> Any:
        scalar = self.scalars.get(type(value))
        if scalar is not None:
            return scalar.decode(value, path, depth)
        if type(value) is not list or len(value) != 2 or type(value[0]) is not int:
            raise HostProgramError(path, f"expected a {self.what}, found {type(value).__name__}")
        codec = self.by_tag.get(value[0])
        if codec is None:
            raise HostProgramError(path, f"unknown {self.what} tag {value[0]}")
        if depth > tables.MAX_DEPTH:
            raise HostProgramError(path, f"nested more than {tables.MAX_DEPTH} deep")
        return codec.decode(value[1], path, depth + 1)


_INT = _leaf(_check_int)
_TEXT = _leaf(_check_text)
_BYTES = _leaf(_check_bytes)
_BOOL = _leaf(_check_bool)
_NONE = _leaf(lambda value: None)
_FLOAT = _leaf(lambda value: None)
_NAME = _leaf(tables.name_problem)
_LABEL = _leaf(tables.label_problem)
_DTYPE = _table(tuple(tables.DTYPES), "dtype")
_DEVICE = _table(tables.DEVICES, "device")

# Sizes and arguments refer to each other and to themselves, hence the two unions filled later.
_size = _Union("size")
_size.scalars[int] = _INT
_symbol_or_size = _Union("size")
_symbol_or_size.scalars.update({int: _INT, str: _NAME})
_expr = _node(
    host.SizeExpr,
    op=_table(tuple(tables.SIZE_OPS), "size operation"),
    args=_seq(_symbol_or_size.codec, 64),
)
_size.add(1, host.SizeExpr, _expr)
_symbol_or_size.add(1, host.SizeExpr, _expr)
_SIZE = _size.codec
_SIZES = _seq(_SIZE, tables.MAX_RANK)

_ref = _node(host.Ref, name=_NAME)
_ref_or_size = _Union("reference or size")
_ref_or_size.scalars[int] = _INT
_ref_or_size.add(1, host.SizeExpr, _expr)
_ref_or_size.add(2, host.Ref, _ref)

_arg = _Union("argument")
_arg.scalars.update({int: _INT, float: _FLOAT, bool: _BOOL, str: _TEXT, type(None): _NONE})
_arg.add(1, host.SizeExpr, _expr)
_arg.add(2, host.Ref, _ref)
_arg.add(3, host.DType, _node(host.DType, name=_DTYPE))
_arg.add(4, host.DeviceRef, _node(host.DeviceRef, kind=_DEVICE))
_format = _table(tables.FORMATS, "memory format")
_arg.add(5, host.MemoryFormat, _node(host.MemoryFormat, name=_format))
_ARG = _arg.codec
_ARGS = _seq(_ARG, tables.MAX_ARGS)
_arg.add(6, tuple, _ARGS)

_SPEC = _node(
    host.TensorSpec, sizes=_SIZES, strides=_SIZES, dtype=_DTYPE, device=_DEVICE, aligned=_BOOL
)
_GRID = _node(host.GridSpec, x=_SIZE, y=_SIZE, z=_SIZE)


def _pair(first: _Codec, second: _Codec) -> _Codec:
    def run(value: Any, path: str, depth: int, kind: Any, way: int) -> list[Any]:
        if type(value) is not kind or len(value) != 2:
            raise HostProgramError(path, "expected a pair")
        left = first[way](value[0], f"{path}[0]", depth + 1)
        return [left, second[way](value[1], f"{path}[1]", depth + 1)]

    return _Codec(
        lambda value, path, depth: run(value, path, depth, tuple, 0),
        lambda value, path, depth: tuple(run(value, path, depth, list, 1)),
    )


_line = _Union("line")
_LINES: tuple[tuple[type, dict[str, _Codec]], ...] = (
    (host.Allocate, {"name": _NAME, "spec": _SPEC}),
    (host.FreeIfNotReused, {"name": _NAME}),
    (host.Free, {"name": _NAME}),
    (host.Reuse, {"old": _NAME, "new": _NAME, "spec": _SPEC}),
    (host.Reinterpret, {"name": _NAME, "src": _NAME, "spec": _SPEC, "offset": _SIZE}),
    (
        host.KernelCall,
        {
            "kernel": _INT,
            "args": _seq(_ref_or_size.codec, tables.MAX_ARGS),
            "grid": _GRID,
            "mutates": _seq(_NAME, tables.MAX_ARGS),
        },
    ),
    (
        host.ExternCall,
        {
            "name": _NAME,
            "op": _TEXT,
            "args": _ARGS,
            "kwargs": _seq(_pair(_LABEL, _ARG), 256),
            "out": _optional(_NAME),
        },
    ),
    (host.MultiOutput, {"name": _NAME, "src": _NAME, "path": _seq(_INT, 8)}),
    (host.SymbolDef, {"name": _NAME, "source": _NAME, "dim": _optional(_INT)}),
    (host.Assert, {"name": _NAME, "spec": _SPEC, "message": _TEXT}),
    (host.Comment, {"text": _TEXT}),
)
for _tag, (_kind, _codecs) in enumerate(_LINES, start=1):
    _line.add(_tag, _kind, _node(_kind, **_codecs))

_PROGRAM = _node(
    host.HostProgram,
    inputs=_seq(_node(host.Input, name=_NAME, spec=_optional(_SPEC)), tables.MAX_NAMES),
    constants=_seq(_node(host.Constant, name=_NAME, spec=_SPEC, data=_BYTES), tables.MAX_NAMES),
    kernels=_seq(
        _node(host.KernelDef, name=_LABEL, key=_BYTES, arg_kinds=_seq(_TEXT, tables.MAX_ARGS)),
        tables.MAX_KERNELS,
    ),
    lines=_seq(_line.codec, tables.MAX_LINES),
    outputs=_ARGS,
    symbols=_seq(_NAME, tables.MAX_NAMES),
    guards=_seq(_node(host.Guard, size=_SIZE, limit=_INT), tables.MAX_NAMES),
)
