"""Record bytes: round trips, and every kind of damage."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.cache import codec
from kernelfarm.cache import record as records
from kernelfarm.cache.errors import BadRecord
from kernelfarm.cache.key import KINDS, Key
from kernelfarm.cache.record import Record, decode, encode


@given(
    kind=st.sampled_from(sorted(KINDS)),
    parts=st.dictionaries(st.text(min_size=1, max_size=20), st.binary(max_size=600), max_size=6),
    payload=st.binary(max_size=3000),
    build_ms=st.integers(0, 2**32 - 1),
    created=st.integers(0, 2**63),
)
def test_a_record_survives_its_encoding(
    kind: str, parts: dict[str, bytes], payload: bytes, build_ms: int, created: int
) -> None:
    """decode(encode(record)) is the record, asked by Key, by digest, or by nothing."""
    key = Key.of(kind, parts.items())
    record = Record.of(key, payload, build_ms=build_ms, created=created)
    data = encode(record)
    assert decode(data, key) == decode(data, key.digest) == decode(data, deep=True) == record
    assert records.stated_length(data[:64]) == len(data)


# A change here makes every stored record unreadable: raise VERSION with it.
GOLDEN = bytes.fromhex(
    "4b46523101000000d800000002000000010000000700000020000000000000002000000000000000"
    "9ab190b13d39ce81e437de11f1e53407b97e43c8197fa7159c7463250e67d2da02d449a31fbb267c"
    "8f352e9968a79e3e5fc95c1bbeaa502fd6454ebde5a4bedc77d3dfa2e955490212d014f3a3034302"
    "00f1536500000000814b00000002000000040074657874012c010000000000000afa5eb0871c38e7"
    "2e8dfed71861ecde977c9635456a24bc289c0edeae50e1cc06007461726765740007000000000000"
    "00637564613a39304413b8c72b704f10111111111111111111111111111111111111111111111111"
    "1111111111111111"
)


def test_the_layout_of_records_has_not_changed_without_a_new_version() -> None:
    """A fixed record has the bytes that were written down with version 1, both ways."""
    key = Key.of("alias", (("text", b"t" * 300), ("target", b"cuda:90")))
    record = Record.of(key, b"\x11" * 32, build_ms=7, created=1_700_000_000)
    assert (records.VERSION, encode(record)) == (1, GOLDEN)
    assert decode(GOLDEN, key) == record
    assert [part.name for part in decode(GOLDEN).parts] == ["text", "target"]


def test_every_flipped_bit_is_detected(record: Callable) -> None:
    """Each bit of a record, flipped alone, makes the read refuse it, asked by Key or digest."""
    wanted = record("a", 700)
    key = Key.of("kernel", (("name", b"a"), ("ttir", b"module {}" * 60)))
    data = bytearray(encode(wanted))
    assert decode(bytes(data), key) == wanted
    for position in range(len(data)):
        for bit in range(8):
            data[position] ^= 1 << bit
            for asked in (key, key.digest):
                with pytest.raises(BadRecord):
                    decode(bytes(data), asked)
            data[position] ^= 1 << bit


def test_every_shorter_length_is_detected(record: Callable) -> None:
    """A record cut at any length, or longer than it says, is refused."""
    data = encode(record("a", 700))
    for length in range(len(data)):
        with pytest.raises(BadRecord):
            decode(data[:length])
    with pytest.raises(BadRecord, match="truncated"):
        decode(data + b"\0")


def test_a_wrong_sha256_with_a_right_checksum_is_found_by_a_deep_read(record: Callable) -> None:
    """What enters the machine is checked by sha256 too, so that a made-up checksum is no help."""
    data = forge(encode(record("a")), offset=72, new=bytes(32))
    decode(data)
    with pytest.raises(BadRecord, match="sha256"):
        decode(data, deep=True)


def test_a_record_under_another_key_is_refused(record: Callable, key: Callable) -> None:
    """Key equality is part of every read: by digest, by kind and by each part."""
    data = encode(record("a"))
    for other in (key("b"), key("a", "alias"), key("a", text=b"t"), key("b").digest):
        with pytest.raises(BadRecord, match="key_mismatch"):
            decode(data, other)


def test_parts_that_do_not_give_the_digest_are_refused(record: Callable) -> None:
    """A writer cannot encode, and a reader by digest does not accept, another key's parts."""
    lie = replace(record("a"), encoded=record("b").encoded)
    with pytest.raises(BadRecord, match="key_mismatch"):
        encode(lie)
    data = forge(encode(record("a")), offset=40, new=record("b").digest)
    with pytest.raises(BadRecord, match="key_mismatch"):
        decode(data)


@pytest.mark.parametrize(
    ("offset", "new", "reason"),
    [
        (4, b"\x02", "version"),  # a later format
        (5, b"\x07", "version"),  # an unknown codec
        (6, b"\x04\x00", "version"),  # a flag that must be understood
        (12, b"\xff\xff", "version"),  # an unknown kind
        (14, b"\x01\x00", "version"),  # the reserved field in use
        (128, b"\x90", "version"),  # a field that must not be skipped
        (24, struct.pack("<Q", (64 << 20) + 1), "truncated"),  # more than any payload
        (24, struct.pack("<Q", 3), "malformed"),  # less than the frame holds
        (32, struct.pack("<Q", 3), "truncated"),
    ],
)
def test_headers_with_right_checksums_and_wrong_fields_are_refused(
    record: Callable, offset: int, new: bytes, reason: str
) -> None:
    """A header that another version or an attacker wrote gives its reason, never a value."""
    with pytest.raises(BadRecord) as caught:
        decode(forge(encode(record("a")), offset, new))
    assert caught.value.reason == reason


def test_unknown_fields_that_may_be_skipped_are_skipped(record: Callable) -> None:
    """A later version may add fields, such as a signature with its flag, that we read past."""
    wanted = record("a")
    data = encode(wanted)
    length = struct.unpack_from("<I", data, 8)[0]
    field = struct.pack("<BI", records.TAG_SIGNATURE, 5) + b"signs"
    head = bytearray(data[: length - 8] + field)
    head[6:8] = struct.pack("<H", records.FLAG_ED25519)
    head[8:12] = struct.pack("<I", length + len(field))
    signed = bytes(head) + struct.pack("<Q", codec.xxh3_64(bytes(head))) + data[length:]
    assert decode(signed) == wanted


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    """A small frame that claims, or really gives, more than the header says is refused."""
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 20))
    with pytest.raises(BadRecord, match="another length"):
        codec.unpack(codec.ZSTD, memoryview(bomb), 100)
    with pytest.raises(BadRecord, match="too_large"):
        codec.unpack(codec.ZSTD, memoryview(bomb), codec.MAX_RAW + 1)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 20))
    with pytest.raises(BadRecord):
        codec.unpack(codec.ZSTD, memoryview(silent), 100)


def test_a_payload_has_at_most_64_mib() -> None:
    """A larger one is refused when it is encoded."""
    key = Key.of("kernel", ())
    with pytest.raises(BadRecord, match="too_large"):
        encode(Record.of(key, bytes(codec.MAX_RAW + 1)))


def test_random_bytes_are_never_a_record_and_never_crash() -> None:
    """Garbage, with and without a right magic and header checksum, raises BadRecord only."""
    rng = random.Random(7)
    for _ in range(3000):
        junk = b"KFR1\x01" + rng.randbytes(rng.randrange(300))
        with pytest.raises(BadRecord):
            decode(junk)
        if len(junk) > 160:
            with pytest.raises(BadRecord):
                decode(forge(junk[:8] + struct.pack("<I", len(junk) - 9) + junk[12:], 140, b"x"))


def forge(data: bytes, offset: int, new: bytes) -> bytes:
    """Replace header bytes and make the header's checksum right again."""
    length = struct.unpack_from("<I", data, 8)[0]
    head = bytearray(data[: length - 8])
    head[offset : offset + len(new)] = new
    return bytes(head) + struct.pack("<Q", codec.xxh3_64(bytes(head))) + data[length:]
