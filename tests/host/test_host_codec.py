"""Host programs as bytes: identity there and back, and nothing but the grammar."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelfarm.compiler import host
from kernelfarm.compiler.host_codec import decode, encode
from kernelfarm.compiler.host_errors import HostProgramError
from kernelfarm.compiler.host_tables import DEVICES, DTYPES, FORMATS, name_problem

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name_problem(name) is None
)
INTS = st.integers(-(2**63), 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
LEAF_SIZES = st.one_of(INTS, NAMES.map(lambda name: host.SizeExpr("sym", (name,))))
SIZES = st.recursive(
    LEAF_SIZES,
    lambda inner: st.builds(
        host.SizeExpr,
        st.sampled_from(("add", "mul", "floordiv", "mod", "ceildiv", "max", "min")),
        st.tuples(inner, inner),
    ),
    max_leaves=4,
)
REFS = st.builds(host.Ref, NAMES)
ARGS = st.recursive(
    st.one_of(
        REFS,
        SIZES,
        st.builds(host.DType, st.sampled_from(sorted(DTYPES))),
        st.builds(host.DeviceRef, st.sampled_from(DEVICES)),
        st.builds(host.MemoryFormat, st.sampled_from(FORMATS)),
        st.floats(),
        st.booleans(),
        TEXT,
        st.none(),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
SIZE_TUPLES = st.lists(SIZES, max_size=3).map(tuple)
SPECS = st.builds(
    host.TensorSpec,
    SIZE_TUPLES,
    SIZE_TUPLES,
    st.sampled_from(sorted(DTYPES)),
    st.sampled_from(DEVICES),
    st.booleans(),
)
LINES = st.one_of(
    st.builds(host.Allocate, NAMES, SPECS),
    st.builds(host.FreeIfNotReused, NAMES),
    st.builds(host.Free, NAMES),
    st.builds(host.Reuse, NAMES, NAMES, SPECS),
    st.builds(host.Reinterpret, NAMES, NAMES, SPECS, SIZES),
    st.builds(
        host.KernelCall,
        INTS,
        st.lists(st.one_of(REFS, SIZES), max_size=3).map(tuple),
        st.builds(host.GridSpec, SIZES, SIZES, SIZES),
        st.lists(NAMES, max_size=2).map(tuple),
    ),
    st.builds(
        host.ExternCall,
        NAMES,
        TEXT,
        st.lists(ARGS, max_size=3).map(tuple),
        st.lists(st.tuples(NAMES, ARGS), max_size=2).map(tuple),
        st.one_of(st.none(), NAMES),
    ),
    st.builds(host.MultiOutput, NAMES, NAMES, st.lists(INTS, max_size=2).map(tuple)),
    st.builds(host.SymbolDef, NAMES, NAMES, st.one_of(st.none(), INTS)),
    st.builds(host.Assert, NAMES, SPECS, TEXT),
    st.builds(host.Comment, TEXT),
)
PROGRAMS = st.builds(
    host.HostProgram,
    st.lists(st.builds(host.Input, NAMES, st.one_of(st.none(), SPECS)), max_size=2).map(tuple),
    st.lists(st.builds(host.Constant, NAMES, SPECS, st.binary(max_size=8)), max_size=1).map(tuple),
    st.lists(
        st.builds(
            host.KernelDef, NAMES, st.binary(max_size=32), st.lists(TEXT, max_size=2).map(tuple)
        ),
        max_size=2,
    ).map(tuple),
    st.lists(LINES, max_size=5).map(tuple),
    st.lists(ARGS, max_size=3).map(tuple),
    st.lists(NAMES, max_size=2).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(PROGRAMS)
def test_round_trip_is_identity(program: host.HostProgram) -> None:
    """decode(encode(p)) prints the same as p; bytes are equal when encoded again."""
    data = encode(program)
    again = decode(data)
    assert repr(again) == repr(program)  # repr, because NaN is unequal to itself
    assert encode(again) == data


def test_the_sample_round_trips(sample: host.HostProgram) -> None:
    """A program with every construct survives unchanged."""
    assert decode(encode(sample)) == sample


@pytest.mark.parametrize("value", [math.inf, -math.inf, -0.0, math.nan, 5e-324, 1.7e308])
def test_floats_keep_their_bits(sample: host.HostProgram, value: float) -> None:
    """Infinities, NaN, negative zero and the extremes keep their bits."""
    (found,) = decode(encode(replace(sample, outputs=(value,)))).outputs
    assert struct.pack("<d", found) == struct.pack("<d", value)


def test_scalars_keep_their_type(sample: host.HostProgram) -> None:
    """True is not 1, 1.0 is not 1 and an empty tuple is not None."""
    values = (True, 1, 1.0, False, 0, 0.0, (), None, "")
    found = decode(encode(replace(sample, outputs=values))).outputs
    assert [(type(v), v) for v in found] == [(type(v), v) for v in values]


@pytest.mark.parametrize("value", [-(2**63) - 1, 2**64])
def test_integers_beyond_64_bits_are_refused(sample: host.HostProgram, value: int) -> None:
    """An integer of more than 64 bits names its path."""
    with pytest.raises(HostProgramError, match=r"outputs\[0\]"):
        encode(replace(sample, outputs=(value,)))


def test_other_schemas_and_headers_are_refused(sample: host.HostProgram) -> None:
    """Bytes of another version or another kind are an error, not a guess."""
    magic, schema, body = msgpack.unpackb(encode(sample))
    for outer in ([magic, schema + 1, body], ["other", schema, body], [magic, schema], 3, {}):
        with pytest.raises(HostProgramError):
            decode(msgpack.packb(outer))


@pytest.mark.parametrize("cut", [0, 1, 10, 100, -1])
def test_torn_bytes_are_refused(sample: host.HostProgram, cut: int) -> None:
    """A prefix of a program is no program, and neither is one with a tail."""
    data = encode(sample)
    with pytest.raises(HostProgramError):
        decode(data[:cut])
    with pytest.raises(HostProgramError):
        decode(data + b"\0")


def test_deep_nesting_is_refused_without_recursion() -> None:
    """Arguments nested a thousand deep are an error on both sides, not a crash."""
    deep: tuple[object, ...] = ()
    for _ in range(1000):
        deep = (deep,)
    with pytest.raises(HostProgramError, match="nested"):
        encode(host.HostProgram((), outputs=(deep,)))  # type: ignore[arg-type]
    wire: list[object] = []
    for _ in range(200):
        wire = [6, [wire]]
    with pytest.raises(HostProgramError, match="nested"):
        decode(
            msgpack.packb(["kernelfarm-host", host.HOST_SCHEMA, [[], [], [], [], [wire], [], []]])
        )


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    """Any bytes either decode or raise HostProgramError."""
    with pytest.raises(HostProgramError):
        decode(data)
