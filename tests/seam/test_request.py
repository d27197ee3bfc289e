"""Requests and artifacts as values: their key parts and their wire forms."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from kernelfarm.compiler.seam import errors
from kernelfarm.compiler.seam.canonical import encode
from kernelfarm.compiler.seam.options import Options, backend_options
from kernelfarm.compiler.seam.request import (
    Artifact,
    CompileRequest,
    KernelMetadata,
    SourceRequest,
    request_from_wire,
)
from kernelfarm.compiler.seam.target import Target

H200, H100 = Target.parse("h200"), Target.parse("h100-sxm")

ARTIFACT = Artifact(
    binary=b"\x7fELF...",
    kind="cubin",
    metadata=KernelMetadata(
        "k", shared=16, tensordesc_meta=((("block_size", (64, 64)), ("fp4_padded", False)), ())
    ),
    registers=32,
    spills=4,
    min_driver=12000,
    ptx=".version 8.7",
)


def differing(first: Any, second: Any) -> list[str]:
    """Return the names of the key parts in which two requests differ."""
    one, two = dict(first.key_parts()), dict(second.key_parts())
    return sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))


def with_option(options: Options, name: str, value: Any) -> Options:
    """Return the options with one field changed."""
    fields = tuple((n, value if n == name else v) for n, v in options.fields)
    return dataclasses.replace(options, fields=fields)


def compile_request(source: SourceRequest) -> CompileRequest:
    """Return a compile request around some text."""
    return CompileRequest("module {}", "k", source.target, source.options, source.toolchain)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda r: {"text": r.text + "\n"}, "text"),
        (lambda r: {"helper_digest": "0" * 64}, "helper_digest"),
        (lambda r: {"entry": "other"}, "entry"),
        (lambda r: {"signature": (("source", "*fp16"), *r.signature[1:])}, "signature"),
        (lambda r: {"constexprs": (("BLOCK", 256),)}, "constexprs"),
        (lambda r: {"attributes": r.attributes[:1]}, "attributes"),
        (lambda r: {"target": Target.parse("sm_100")}, "target"),
        (
            lambda r: {"options": with_option(r.options, "num_stages", 9)},
            "options.num_stages",
        ),
        (
            lambda r: {"toolchain": dataclasses.replace(r.toolchain, identity="release")},
            "toolchain.identity",
        ),
    ],
)
def test_each_field_of_a_source_request_is_its_own_part(
    make_request: Callable[..., SourceRequest],
    change: Callable[[SourceRequest], dict[str, Any]],
    part: str,
) -> None:
    """Changing one field changes exactly the part that bears its name."""
    request = make_request()
    changed = dataclasses.replace(request, **change(request))
    assert differing(request, changed) == [part]


def test_options_and_toolchain_are_named_parts(
    make_request: Callable[..., SourceRequest],
) -> None:
    """A compile request's parts are the text, the entry, the architecture and all of the rest."""
    request = compile_request(make_request())
    names = [name for name, _ in request.key_parts()]
    assert names[:3] == ["ttir", "entry", "arch"]
    assert len(names) == len(set(names))
    assert {f"options.{name}" for name, _ in request.options.fields} < set(names)
    assert {name for name, _ in request.toolchain.parts} < set(names)
    assert all(isinstance(value, bytes) for _, value in request.key_parts())


def test_the_device_model_is_no_part_of_a_binarys_key(
    make_request: Callable[..., SourceRequest],
) -> None:
    """Two models of one architecture share binaries; another text or option does not."""
    request = compile_request(make_request())
    assert differing(request, dataclasses.replace(request, target=H100)) == []
    assert differing(request, dataclasses.replace(request, ttir="module { }")) == ["ttir"]
    assert differing(request, dataclasses.replace(request, entry="other")) == ["entry"]


def test_constexprs_are_told_apart_by_type(make_request: Callable[..., SourceRequest]) -> None:
    """1, 1.0, True and "1" are four different constants."""
    request = make_request()
    keys = {
        dict(dataclasses.replace(request, constexprs=(("BLOCK", value),)).key_parts())["constexprs"]
        for value in (1, 1.0, True, "1", b"1", None)
    }
    assert len(keys) == 6


def test_values_without_a_canonical_form_are_refused() -> None:
    """An object whose printed form may hold an address can be no part of a key."""
    for value in (object(), {"a": 1}, {1}, 2**70, 1 + 2j):
        with pytest.raises(errors.RequestError):
            encode(value)
    assert encode((1, (2, 3))) == encode([1, [2, 3]])


def test_requests_survive_the_wire(make_request: Callable[..., SourceRequest]) -> None:
    """Through msgpack and back, both kinds of request are what they were."""
    source = make_request(num_warps=8)
    for request in (source, dataclasses.replace(compile_request(source), local=True)):
        wire = msgpack.unpackb(msgpack.packb(request.to_wire()))
        assert request_from_wire(wire) == request
        assert request_from_wire(wire).key_parts() == request.key_parts()


@pytest.mark.parametrize("field", ["options", "target", "toolchain", "ttir", "entry", "kind"])
@pytest.mark.parametrize("value", [None, 7, "x", [], [1, 2, 3]])
def test_a_damaged_wire_form_is_refused(
    make_request: Callable[..., SourceRequest], field: str, value: Any
) -> None:
    """A peer that sends rubbish gets one named error, never another exception."""
    request = compile_request(make_request())
    wire = {**request.to_wire(), field: value}
    if field in ("entry", "ttir") and value == "x":
        return  # a valid text
    with pytest.raises(errors.RequestError):
        request_from_wire(wire)


def test_an_entry_must_be_a_name(make_request: Callable[..., SourceRequest]) -> None:
    """What could not be a function's name is refused where the request is made."""
    for entry in ("", "a b", "1a", "k;", "é"):
        with pytest.raises(errors.RequestError):
            dataclasses.replace(make_request(), entry=entry)


def test_an_artifact_survives_its_payload() -> None:
    """Equal artifacts are equal bytes, and the bytes give the artifact back."""
    payload = ARTIFACT.to_payload()
    assert Artifact.from_payload(payload) == ARTIFACT
    assert Artifact.from_payload(payload).to_payload() == payload
    assert ARTIFACT.metadata.tensor_descriptors() == [
        {"block_size": (64, 64), "fp4_padded": False},
        {},
    ]


def test_a_damaged_payload_is_refused() -> None:
    """Cut short, extended, of another format or with another field: one named error."""
    payload = ARTIFACT.to_payload()
    row = msgpack.unpackb(payload)
    bad = [payload[:cut] for cut in range(0, len(payload), 7)]
    bad += [payload + b"\0", b"", b"\xc1", msgpack.packb({"a": 1}), msgpack.packb([2, *row[1:]])]
    bad.append(msgpack.packb([*row[:-1], [["name", "k"]]]))
    bad.append(msgpack.packb([*row[:3], -1, *row[4:]]))
    bad.append(msgpack.packb([*row[:2], "text", *row[3:]]))
    for damaged in bad:
        with pytest.raises(errors.RequestError):
            Artifact.from_payload(damaged)


def test_options_name_every_field_and_are_explicit() -> None:
    """What is in force by default is said, not left to Triton's changing defaults."""
    options = backend_options(H200, num_warps=8)
    assert options.num_warps == 8
    assert options.get("enable_fp_fusion") is True
    assert options.get("debug") is False and options.get("sanitize_overflow") is False
    assert options.get("arch") == "sm90"
    (name, digest) = options.libraries[0]
    assert name == "libdevice" and len(digest) == 64
    assert "/" not in str(options.fields)


def test_an_unknown_option_is_an_error() -> None:
    """A misspelled option, or one of another backend, is not silently dropped."""
    for name in ("num_warp", "waves_per_eu"):
        with pytest.raises(errors.OptionsError, match=name):
            backend_options(H200, **{name: 2})
    with pytest.raises(errors.OptionsError, match="num_warps"):
        backend_options(H200, num_warps=3)
    with pytest.raises(errors.OptionsError, match="locally"):
        backend_options(H200, ir_override="/tmp/k.ptx")


@pytest.mark.parametrize(
    "error",
    [
        errors.UnknownTarget("x", ["h200"]),
        errors.OptionsError("num_warp", "cuda", "unknown"),
        errors.TritonMissing("/x"),
        errors.RecordMismatch("/x", "changed", ["a.py"]),
        errors.LibraryMissing("libdevice", "ab" * 32, ["/x"]),
        errors.ToolchainMismatch("k", [("env.X", None, "1")]),
        errors.RequestError("artifact", "short"),
        errors.FrontHalfError("k", "ttir", "log"),
        errors.BackHalfError("k", "cubin", "log"),
    ],
)
def test_errors_cross_processes(error: errors.SeamError) -> None:
    """A pickled error keeps its class, its message and its attributes."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error) and vars(copy) == vars(error)
