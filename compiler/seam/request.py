"""What is asked for and what is answered: SourceRequest, CompileRequest, Artifact.

Requests are values: equal parts, equal result. Their ``key_parts`` name everything that the binary
depends on; whoever stores them digests the parts. ``to_wire`` gives values that msgpack takes,
``from_wire`` refuses what does not decode to the very same kind of request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .artifact import Artifact as Artifact
from .artifact import KernelMetadata as KernelMetadata
from .canonical import Plain, encode, plain
from .errors import RequestError
from .options import Options
from .target import Target
from .toolchain import Toolchain

KeyParts = tuple[tuple[str, bytes], ...]
Signature = tuple[tuple[str, str], ...]
Constexprs = tuple[tuple[str, Plain], ...]
Attributes = tuple[tuple[int, tuple[tuple[str, int], ...]], ...]

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """A kernel as Python text that we emitted, and everything that turns it into TTIR.

    ``text`` begins with ``@triton.jit`` and defines ``entry``. ``signature`` is (argument, type) in
    argument order, a constexpr's type being "constexpr" (one that is left out counts as such);
    ``attributes`` are (argument index, (("tt.divisibility", 16), ...)).
    """

    text: str
    helper_digest: str
    entry: str
    signature: Signature
    constexprs: Constexprs
    attributes: Attributes
    options: Options
    target: Target
    toolchain: Toolchain

    def __post_init__(self) -> None:
        _check_name(self.entry)

    def key_parts(self) -> KeyParts:
        """Return the named parts of the alias key: text, arguments, options, target, toolchain."""
        return (
            ("text", self.text.encode()),
            ("helper_digest", self.helper_digest.encode()),
            ("entry", self.entry.encode()),
            ("signature", encode(self.signature, "signature")),
            ("constexprs", encode(self.constexprs, "constexprs")),
            ("attributes", encode(self.attributes, "attributes")),
            ("target", self.target.arch_key.encode()),
            *self.options.key_parts(),
            *self.toolchain.key_parts(),
        )

    def to_wire(self) -> dict[str, object]:
        """Return the request as values that msgpack takes."""
        return {
            "kind": "source",
            "text": self.text,
            "helper_digest": self.helper_digest,
            "entry": self.entry,
            "signature": self.signature,
            "constexprs": plain(self.constexprs, "constexprs"),
            "attributes": self.attributes,
            **_common_wire(self.options, self.target, self.toolchain),
        }

    @staticmethod
    def from_wire(wire: Mapping[str, Any]) -> SourceRequest:
        """Rebuild a request from `to_wire`'s form; raises RequestError for anything else."""
        with _decoding("source", wire):
            return SourceRequest(
                text=_text(wire["text"]),
                helper_digest=_text(wire["helper_digest"]),
                entry=_text(wire["entry"]),
                signature=tuple((_text(name), _text(kind)) for name, kind in wire["signature"]),
                constexprs=tuple(
                    (_text(name), plain(value, name)) for name, value in wire["constexprs"]
                ),
                attributes=tuple(
                    (int(index), tuple((_text(name), int(value)) for name, value in marks))
                    for index, marks in wire["attributes"]
                ),
                options=Options.from_wire(wire["options"]),
                target=_target(wire["target"]),
                toolchain=_toolchain(wire["toolchain"]),
            )


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """A kernel as TTIR: the argument of the pure function that the farm computes.

    ``local`` says that the text holds locations of this machine (debug, device asserts, line
    info), or that its environment reads files beside the compiler: it must not leave the machine.
    """

    ttir: str
    entry: str
    target: Target
    options: Options
    toolchain: Toolchain
    local: bool = False

    def __post_init__(self) -> None:
        _check_name(self.entry)

    def key_parts(self) -> KeyParts:
        """Return the named parts of the kernel key; of the target only the architecture counts."""
        return (
            ("ttir", self.ttir.encode()),
            ("entry", self.entry.encode()),
            ("arch", self.target.arch_key.encode()),
            *self.options.key_parts(),
            *self.toolchain.key_parts(),
        )

    def to_wire(self) -> dict[str, object]:
        """Return the request as values that msgpack takes."""
        return {
            "kind": "compile",
            "ttir": self.ttir,
            "entry": self.entry,
            "local": self.local,
            **_common_wire(self.options, self.target, self.toolchain),
        }

    @staticmethod
    def from_wire(wire: Mapping[str, Any]) -> CompileRequest:
        """Rebuild a request from `to_wire`'s form; raises RequestError for anything else."""
        with _decoding("compile", wire):
            return CompileRequest(
                ttir=_text(wire["ttir"]),
                entry=_text(wire["entry"]),
                target=_target(wire["target"]),
                options=Options.from_wire(wire["options"]),
                toolchain=_toolchain(wire["toolchain"]),
                local=bool(wire["local"]),
            )


def request_from_wire(wire: Mapping[str, Any]) -> SourceRequest | CompileRequest:
    """Rebuild whichever request a wire form holds; raises RequestError for anything else."""
    match wire.get("kind"):
        case "source":
            return SourceRequest.from_wire(wire)
        case "compile":
            return CompileRequest.from_wire(wire)
        case other:
            raise RequestError("request", f"unknown kind {other!r}")


def _common_wire(options: Options, target: Target, toolchain: Toolchain) -> dict[str, object]:
    return {
        "options": options.to_wire(),
        "target": [target.backend, target.arch, target.model],
        "toolchain": [toolchain.identity, toolchain.parts, toolchain.local],
    }


class _decoding:
    """Turn whatever goes wrong while a wire form is read into one RequestError."""

    def __init__(self, kind: str, wire: Mapping[str, Any]) -> None:
        self._kind = kind
        if wire.get("kind") != kind:
            raise RequestError(f"{kind} request", f"kind is {wire.get('kind')!r}")

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (KeyError, TypeError, ValueError)):
            raise RequestError(f"{self._kind} request", f"does not decode: {error!r}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value


def _target(wire: Any) -> Target:
    backend, arch, model = wire
    if backend not in ("cuda", "hip"):
        raise ValueError(f"unknown backend {backend!r}")
    return Target(backend, _text(arch), _text(model))


def _toolchain(wire: Any) -> Toolchain:
    identity, parts, local = wire
    if identity not in ("content", "release"):
        raise ValueError(f"unknown toolchain identity {identity!r}")
    return Toolchain(
        identity, tuple((_text(name), _text(value)) for name, value in parts), bool(local)
    )


def _check_name(entry: str) -> None:
    if not _NAME.fullmatch(entry):
        raise RequestError("entry", f"{entry!r} is no function name")
