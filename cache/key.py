"""Keys: ordered, named parts under a kind and a schema, digested by sha256.

Encoding, all lengths little-endian::

    "kernelfarm/key/1\\0"
    u16 length, kind    u32 schema
    then what a record keeps, `Key.encoded`:
    u32 number of parts
    per part:  u16 length, name    u8 form    u64 length of the value    bytes

``form`` 0 holds the value itself, ``form`` 1 (values longer than ``SHORT_LIMIT``) its sha256. What
is digested is thus exactly what a record keeps, so a record proves by itself that its parts
belong to its key. Nothing is joined by a separator: two keys encode alike only if they are equal.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .errors import BadKey

#: Values up to this many bytes are kept in records as they are.
SHORT_LIMIT = 256
#: Bounds on what a key may be made of; a decoder relies on them.
MAX_PARTS = 4096
MAX_NAME = 200

DIGEST_BYTES = 32

KeyParts = tuple[tuple[str, bytes], ...]

_PREFIX = b"kernelfarm/key/1\0"
_NUMBER = struct.Struct("<I")
_NAME = struct.Struct("<H")
_VALUE = struct.Struct("<BQ")


class Kind(NamedTuple):
    """A sort of record: its number on disk, its key schema, and whether it may leave the machine.

    ``schema`` goes up whenever the meaning or the set of the key's parts changes; records of an
    older schema are then simply never asked for.
    """

    name: str
    code: int
    schema: int
    shared: bool = True


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("kernel", 1, 1),  # CompileRequest -> Artifact
        Kind("alias", 2, 1),  # emitted kernel text -> kernel key
        Kind("graph", 3, 1),  # canonical graph -> host program and its kernels' keys
        Kind("timing", 4, 1),  # one config of a family -> samples
        Kind("pin", 5, 1),  # a set of configs -> the winner
        Kind("failure", 6, 1, shared=False),  # CompileRequest -> why it must not be tried again
    )
}
KIND_NAMES: dict[int, str] = {kind.code: kind.name for kind in KINDS.values()}


class ShortPart(NamedTuple):
    """A key part as a record keeps it; ``hashed``: the value is a sha256 of ``length`` bytes."""

    name: str
    value: bytes
    hashed: bool
    length: int


@dataclass(frozen=True, slots=True)
class Key:
    """What a record is found by: ``kind``, ``schema`` and ordered (name, bytes) parts.

    ``digest`` is 32 raw bytes, ``encoded`` the parts as a record keeps them. Raises BadKey for an
    unknown kind, an empty or repeated name.
    """

    kind: str
    schema: int
    parts: KeyParts = field(repr=False)
    encoded: bytes = field(init=False, repr=False, compare=False)
    digest: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        encoded = _encode(self.parts)
        object.__setattr__(self, "encoded", encoded)
        object.__setattr__(self, "digest", digest_of_encoded(self.kind, self.schema, encoded))

    @classmethod
    def of(cls, kind: str, parts: Iterable[tuple[str, bytes]]) -> Key:
        """Return the key of ``kind`` under the schema of this version (the KINDS table)."""
        return cls(kind, _known(kind).schema, tuple(parts))

    def short_parts(self) -> tuple[ShortPart, ...]:
        """Return the parts as a record keeps them: long values replaced by their sha256."""
        return decode_parts(self.encoded)

    def __str__(self) -> str:
        return f"{self.kind}:{self.digest.hex()[:16]}"


def digest_of(kind: str, parts: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the 32-byte digest of a key of ``kind`` under the schema of this version."""
    return Key.of(kind, parts).digest


def digest_of_encoded(kind: str, schema: int, encoded: bytes) -> bytes:
    """Return a key's digest from its parts as a record keeps them; raises BadKey."""
    name = _known(kind).name.encode()
    try:
        head = b"".join((_PREFIX, _NAME.pack(len(name)), name, _NUMBER.pack(schema)))
    except struct.error:
        raise BadKey(f"schema {schema!r} of a {kind} key is no unsigned 32-bit number") from None
    return hashlib.sha256(head + encoded).digest()


def decode_parts(encoded: bytes) -> tuple[ShortPart, ...]:
    """Return the parts that `Key.encoded` holds; raises BadKey if they are malformed."""
    parts = []
    try:
        (count,) = _NUMBER.unpack_from(encoded)
        at = _NUMBER.size
        for _ in range(count):
            (name_length,) = _NAME.unpack_from(encoded, at)
            at += _NAME.size
            name = encoded[at : at + name_length].decode()
            at += name_length
            form, length = _VALUE.unpack_from(encoded, at)
            at += _VALUE.size
            value = encoded[at : at + (DIGEST_BYTES if form else length)]
            at += DIGEST_BYTES if form else length
            parts.append(ShortPart(name, value, form == 1, length))
    except (struct.error, UnicodeDecodeError):
        raise BadKey("key parts are cut short or are not text") from None
    if at != len(encoded) or any(part.hashed not in (0, 1) for part in parts):
        raise BadKey("key parts do not end where they should")
    return tuple(parts)


def digest_bytes(key: Key | bytes) -> bytes:
    """Return the digest of a Key, or the digest itself; raises BadKey if it is not 32 bytes."""
    if isinstance(key, Key):
        return key.digest
    if len(key) != DIGEST_BYTES:
        raise BadKey(f"a key digest has {DIGEST_BYTES} bytes, not {len(key)}")
    return bytes(key)


def _known(kind: str) -> Kind:
    found = KINDS.get(kind)
    if found is None:
        raise BadKey(f"no record kind {kind!r}; there are {', '.join(KINDS)}")
    return found


def _encode(parts: KeyParts) -> bytes:
    if len(parts) > MAX_PARTS:
        raise BadKey(f"a key has at most {MAX_PARTS} parts, not {len(parts)}")
    seen: set[str] = set()
    chunks = [_NUMBER.pack(len(parts))]
    for name, value in parts:
        if not isinstance(name, str) or not 0 < len(name.encode()) <= MAX_NAME:
            raise BadKey(f"a key part's name is text of 1 to {MAX_NAME} bytes, not {name!r}")
        if name in seen:
            raise BadKey(f"key part {name!r} is there twice")
        seen.add(name)
        if not isinstance(value, bytes):
            raise BadKey(f"key part {name!r} is {type(value).__name__}, not bytes")
        name_bytes = name.encode()
        form = 1 if len(value) > SHORT_LIMIT else 0
        chunks += (
            _NAME.pack(len(name_bytes)),
            name_bytes,
            _VALUE.pack(form, len(value)),
            hashlib.sha256(value).digest() if form else value,
        )
    return b"".join(chunks)
