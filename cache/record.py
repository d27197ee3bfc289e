"""Records: one format of bytes in every tier, checked on every read.

Layout (KFR1, little-endian)::

      0  4s  "KFR1"      4 u8 version    5 u8 codec (0 raw, 1 zstd)    6 u16 flags
      8  u32 header length              12 u16 kind    14 u16 reserved, 0
     16  u32 key schema                 20 u32 build cost, ms
     24  u64 raw length                 32 u64 stored length
     40  32s key digest                 72 32s sha256(stored payload)  104 16s xxh3_128(stored)
    120  u64 created, seconds since 1970
    128  fields: u8 tag, u32 length, bytes; the key's parts (`Key.encoded`) are tag 0x81
         last 8 of the header: xxh3_64 of everything before it
    then the stored payload, to the end

Flags 1 (MAC) and 2 (ed25519) announce a signature field, which comes last and covers the header
before it; that binds key, kind, schema and payload digest, so a record cannot be replayed under
another key. A field tag below 0x80 may be skipped by a reader that does not know it, one from
0x80 on may not. Nothing in a record is executable: no pickle, no source text, no paths.
"""

from __future__ import annotations

import hashlib
import struct
import time
from dataclasses import dataclass, field

from .codec import MAX_RAW, RAW, ZSTD, pack, unpack, xxh3_64, xxh3_128
from .errors import BadKey, BadRecord
from .key import KIND_NAMES, KINDS, Key, ShortPart, decode_parts, digest_of_encoded

MAGIC = b"KFR1"
VERSION = 1

FLAG_MAC = 1
FLAG_ED25519 = 2
#: Flags that this version can read past; any other one makes the record a miss.
KNOWN_FLAGS = FLAG_MAC | FLAG_ED25519

TAG_PARTS = 0x81
TAG_SIGNATURE = 0x01

MAX_HEADER = 4 << 20

_FIXED = struct.Struct("<4sBBHIHHIIQQ32s32s16sQ")
_FIELD = struct.Struct("<BI")
_TRAILER = struct.Struct("<Q")
assert _FIXED.size == 128


@dataclass(frozen=True, slots=True)
class Record:
    """A stored value with everything that says what it is.

    ``digest`` is the key's, ``encoded`` its parts as `Key.encoded` has them, ``payload`` is
    uncompressed, ``build_ms`` what it cost to make, ``created`` seconds since 1970.
    """

    digest: bytes
    kind: str
    schema: int
    encoded: bytes = field(repr=False)
    payload: bytes = field(repr=False)
    build_ms: int = 0
    created: int = 0

    @classmethod
    def of(
        cls, key: Key, payload: bytes, *, build_ms: int = 0, created: int | None = None
    ) -> Record:
        """Return the record that keeps ``payload`` under ``key``; made now, unless told."""
        at = int(time.time()) if created is None else created
        return cls(key.digest, key.kind, key.schema, key.encoded, payload, build_ms, at)

    @property
    def parts(self) -> tuple[ShortPart, ...]:
        """The key's parts, long values as their sha256; raises BadKey if they are malformed."""
        return decode_parts(self.encoded)


def encode(record: Record) -> bytes:
    """Return the record's bytes; raises BadRecord when it is too large or contradicts itself."""
    if len(record.payload) > MAX_RAW:
        raise BadRecord("too_large", f"a payload has at most {MAX_RAW} bytes")
    check_parts(record)
    codec, stored = pack(record.payload)
    fields = _FIELD.pack(TAG_PARTS, len(record.encoded)) + record.encoded
    header_length = _FIXED.size + len(fields) + _TRAILER.size
    if header_length > MAX_HEADER:
        raise BadRecord("too_large", f"the key parts of a record take at most {MAX_HEADER} bytes")
    head = (
        _FIXED.pack(
            MAGIC,
            VERSION,
            codec,
            0,
            header_length,
            KINDS[record.kind].code,
            0,
            record.schema,
            min(max(record.build_ms, 0), 0xFFFFFFFF),
            len(record.payload),
            len(stored),
            record.digest,
            hashlib.sha256(stored).digest(),
            xxh3_128(stored),
            max(record.created, 0),
        )
        + fields
    )
    return b"".join((head, _TRAILER.pack(xxh3_64(head)), stored))


def decode(
    data: bytes | memoryview, key: Key | bytes | None = None, *, deep: bool = False
) -> Record:
    """Return the record in ``data``; raises BadRecord, whose ``reason`` names the first doubt.

    With ``key`` (a Key or a digest) the record must be that key's; a Key's parts are compared one
    by one. ``deep`` checks the payload's sha256 as well, as is due when a record enters a machine.
    """
    view = memoryview(data)
    total = len(view)
    if total < _FIXED.size + _TRAILER.size:
        raise BadRecord("truncated", f"{total} bytes are no record")
    (
        magic,
        version,
        codec,
        flags,
        header_length,
        kind_code,
        reserved,
        schema,
        build_ms,
        raw_length,
        stored_length,
        digest,
        sha,
        checksum,
        created,
    ) = _FIXED.unpack_from(view)
    if magic != MAGIC:
        raise BadRecord("magic", "the bytes do not begin as a record does")
    if version != VERSION:
        raise BadRecord("version", f"record version {version} is not {VERSION}")
    if not _FIXED.size + _TRAILER.size <= header_length <= min(total, MAX_HEADER):
        raise BadRecord("truncated", f"a header of {header_length} in {total} bytes")
    body_end = header_length - _TRAILER.size
    if _TRAILER.unpack_from(view, body_end)[0] != xxh3_64(view[:body_end]):
        raise BadRecord("checksum", "the header's checksum is wrong")
    if flags & ~KNOWN_FLAGS or reserved or kind_code not in KIND_NAMES or codec not in (RAW, ZSTD):
        raise BadRecord("version", f"flags {flags}, kind {kind_code} or codec {codec} is not known")
    if key is not None and digest != (key.digest if isinstance(key, Key) else key):
        raise BadRecord("key_mismatch", "the record belongs to another key")
    if stored_length != total - header_length or raw_length > MAX_RAW:
        raise BadRecord("truncated", f"{total - header_length} payload bytes, not {stored_length}")
    stored = view[header_length:]
    if checksum != xxh3_128(stored):
        raise BadRecord("checksum", "the payload's checksum is wrong")
    if deep and hashlib.sha256(stored).digest() != sha:
        raise BadRecord("checksum", "the payload's sha256 is wrong")
    kind = KIND_NAMES[kind_code]
    encoded = _encoded_parts(view[_FIXED.size : body_end])
    if isinstance(key, Key) and (kind, schema, encoded) != (key.kind, key.schema, key.encoded):
        raise BadRecord("key_mismatch", f"the record's parts are not those of {key}")
    record = Record(
        digest, kind, schema, encoded, unpack(codec, stored, raw_length), build_ms, created
    )
    if not isinstance(key, Key):
        check_parts(record)
    return record


def stated_length(head: bytes) -> int | None:
    """Return how many bytes the record beginning with ``head`` claims, or None if none can."""
    if len(head) < 40 or head[:4] != MAGIC or head[4] != VERSION:
        return None
    header_length = int.from_bytes(head[8:12], "little")
    stored_length = int.from_bytes(head[32:40], "little")
    if not _FIXED.size < header_length <= MAX_HEADER or stored_length > MAX_RAW:
        return None
    return header_length + stored_length


def stored_digest(data: bytes | memoryview) -> bytes:
    """Return the sha256 of the stored payload that a record's header names (unchecked)."""
    return bytes(memoryview(data)[72:104])


def check_parts(record: Record) -> None:
    """Raise BadRecord unless the record's digest is the digest of its own parts."""
    try:
        expected = digest_of_encoded(record.kind, record.schema, record.encoded)
    except BadKey as error:
        raise BadRecord("key_mismatch", str(error)) from error
    if expected != record.digest:
        raise BadRecord("key_mismatch", "the record's parts do not give its digest")


def _encoded_parts(view: memoryview) -> bytes:
    """Return the field that holds the key's parts, passing over those that may be skipped."""
    encoded: bytes | None = None
    at, end = 0, len(view)
    while at < end:
        if end - at < _FIELD.size:
            raise BadRecord("malformed", "a field is cut short")
        tag, length = _FIELD.unpack_from(view, at)
        at += _FIELD.size
        if length > end - at:
            raise BadRecord("malformed", f"field {tag:#x} is longer than its header")
        if tag == TAG_PARTS and encoded is None:
            encoded = bytes(view[at : at + length])
        elif tag >= 0x80:
            raise BadRecord("version", f"field {tag:#x} must not be skipped and is not known")
        at += length
    if encoded is None:
        raise BadRecord("malformed", "the key's parts are not there")
    return encoded
