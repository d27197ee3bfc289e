"""Checksums and compression; the libraries are imported at the first use."""

from __future__ import annotations

import threading
from typing import Any

from .errors import BadRecord

RAW = 0
ZSTD = 1

#: No payload is longer than this, packed or unpacked.
MAX_RAW = 64 << 20
#: Shorter payloads are stored as they are: a process that reads only aliases needs no zstd.
MIN_PACKED = 512

LEVEL = 3

# A zstd context must not be used by two threads at once; making one costs more than small frames.
_contexts = threading.local()


def xxh3_64(data: bytes | memoryview) -> int:
    """Return the 64-bit xxh3 of ``data``."""
    import xxhash

    return xxhash.xxh3_64_intdigest(data)


def xxh3_128(data: bytes | memoryview) -> bytes:
    """Return the 16 bytes of the 128-bit xxh3 of ``data``."""
    import xxhash

    digest: bytes = xxhash.xxh3_128_digest(data)
    return digest


def pack(payload: bytes) -> tuple[int, bytes]:
    """Return (codec, stored bytes), whichever codec stores ``payload`` shorter."""
    if len(payload) < MIN_PACKED:
        return RAW, payload
    packed = _context("compressor").compress(payload)
    return (ZSTD, packed) if len(packed) < len(payload) else (RAW, payload)


def unpack(codec: int, stored: memoryview, raw_length: int) -> bytes:
    """Return the payload of ``raw_length`` bytes; raises BadRecord if it is anything else.

    ``raw_length`` is the header's claim; memory is bounded by MAX_RAW before it is believed.
    """
    if raw_length > MAX_RAW:
        raise BadRecord("too_large", f"a payload of {raw_length} bytes is refused")
    if codec == RAW:
        if len(stored) != raw_length:
            raise BadRecord("malformed", f"{len(stored)} raw bytes, not {raw_length}")
        return bytes(stored)
    import zstandard

    try:
        if zstandard.frame_content_size(stored) != raw_length:
            raise BadRecord("malformed", "the zstd frame states another length than the header")
        payload: bytes = _context("decompressor").decompress(stored, max_output_size=raw_length)
    except zstandard.ZstdError as error:
        raise BadRecord("malformed", f"zstd: {error}") from error
    if len(payload) != raw_length:
        raise BadRecord("malformed", f"unpacked to {len(payload)} bytes, not {raw_length}")
    return payload


def _context(role: str) -> Any:
    found = getattr(_contexts, role, None)
    if found is None:
        import zstandard

        if role == "compressor":
            found = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False)
        else:
            found = zstandard.ZstdDecompressor()
        setattr(_contexts, role, found)
    return found
