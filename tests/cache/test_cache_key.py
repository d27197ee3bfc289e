"""Keys: what is in them, and that nothing else is."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.cache.errors import BadKey
from kernelfarm.cache.key import KINDS, SHORT_LIMIT, Key, ShortPart, digest_of, digest_of_encoded

PARTS = (("ttir", b"t" * 300), ("options", b"o"), ("target", b"cuda:90"), ("toolchain", b""))

# A change here changes every key that exists: raise the schema of each kind with it.
GOLDEN = {
    ("kernel", 1): "b3a6052cd887b36ac5ca8bc55e682829b214c34e34980338c43de0059285d47a",
    ("alias", 1): "726e271193e6c41fff8350a4450ab95083da99d2ba75150bfed35665361e7305",
    ("graph", 1): "225e6401fe1d801a60d7a8f49f3054ec1ebc166c3287405346da950e8eec731f",
    ("timing", 1): "e0a16c30797f897fc9154cfd41db7c57a83e071fb6a46466a42d373423760dba",
    ("pin", 1): "12beac378e5c5499e1cd9289d5f76c1ab788f35844cdc3e13580141e2e508123",
    ("failure", 1): "335b7bca142cbd8bde996ec2884a197c2afc5f8b427721895d4de97530e1984e",
}


def test_the_encoding_of_keys_has_not_changed_without_a_new_schema() -> None:
    """Digests of fixed keys equal those written down when the schemas were given their numbers."""
    found = {(kind.name, kind.schema): digest_of(kind.name, PARTS).hex() for kind in KINDS.values()}
    assert found == GOLDEN


@pytest.mark.parametrize("index", range(len(PARTS)))
def test_each_part_alone_changes_the_digest(index: int) -> None:
    """Changing the value of one part, short or long, gives another digest."""
    changed = list(PARTS)
    name, value = changed[index]
    changed[index] = (name, value + b"x")
    assert digest_of("kernel", changed) != digest_of("kernel", PARTS)


@pytest.mark.parametrize("index", range(len(PARTS)))
def test_each_name_alone_changes_the_digest(index: int) -> None:
    """Renaming one part gives another digest."""
    changed = list(PARTS)
    changed[index] = (changed[index][0] + "_", changed[index][1])
    assert digest_of("kernel", changed) != digest_of("kernel", PARTS)


def test_order_kind_and_schema_change_the_digest() -> None:
    """Parts are ordered, and kind and schema are in the digest."""
    base = Key.of("kernel", PARTS)
    assert Key.of("kernel", PARTS[::-1]).digest != base.digest
    assert Key.of("alias", PARTS).digest != base.digest
    assert Key("kernel", base.schema + 1, PARTS).digest != base.digest
    assert Key("kernel", base.schema, PARTS) == base


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((("a", b"bc"),), (("ab", b"c"),)),
        ((("a", b"b"), ("c", b"d")), (("a", b"bc"), ("d", b""))),
        ((("a", b""), ("b", b"")), (("a", b""),)),
        ((("a", b"1\0b2"),), (("a", b"1"), ("b", b"2"))),
    ],
)
def test_moving_bytes_across_a_boundary_changes_the_digest(
    one: tuple[tuple[str, bytes], ...], other: tuple[tuple[str, bytes], ...]
) -> None:
    """Keys whose concatenations are alike are different keys."""
    assert digest_of("kernel", one) != digest_of("kernel", other)


def test_a_value_is_not_its_own_digest() -> None:
    """A long value and the 32 bytes that stand for it in a record give different keys."""
    long = b"x" * (SHORT_LIMIT + 1)
    hashed = hashlib.sha256(long).digest()
    assert digest_of("kernel", (("a", long),)) != digest_of("kernel", (("a", hashed),))


def test_short_parts_keep_short_values_and_hash_long_ones() -> None:
    """The limit is 256 bytes; a hashed value says so and keeps its length."""
    at, beyond = b"x" * SHORT_LIMIT, b"x" * (SHORT_LIMIT + 1)
    key = Key.of("kernel", (("at", at), ("beyond", beyond)))
    assert key.short_parts() == (
        ShortPart("at", at, False, 256),
        ShortPart("beyond", hashlib.sha256(beyond).digest(), True, 257),
    )
    assert digest_of_encoded("kernel", key.schema, key.encoded) == key.digest


@pytest.mark.parametrize(
    ("kind", "parts", "message"),
    [
        ("kernl", (), "no record kind 'kernl'; there are kernel"),
        ("kernel", (("", b""),), "a key part's name"),
        ("kernel", (("n" * 201, b""),), "a key part's name"),
        ("kernel", (("a", b""), ("a", b"")), "'a' is there twice"),
        ("kernel", (("a", "text"),), "'a' is str, not bytes"),
    ],
)
def test_what_cannot_be_keyed_is_refused(kind: str, parts: tuple, message: str) -> None:
    """Unknown kinds, bad names, repeated names and values that are not bytes raise BadKey."""
    with pytest.raises(BadKey, match=message):
        Key.of(kind, parts)


@pytest.mark.parametrize("schema", [-1, 2**32])
def test_a_schema_is_an_unsigned_32_bit_number(schema: int) -> None:
    """Another schema raises BadKey."""
    with pytest.raises(BadKey, match="schema"):
        Key("kernel", schema, PARTS)


part_lists = st.lists(
    st.tuples(st.text(min_size=1, max_size=3), st.binary(max_size=3)),
    max_size=4,
    unique_by=lambda part: part[0],
).map(tuple)


@given(part_lists, part_lists)
def test_two_keys_are_equal_exactly_when_their_digests_are(one: tuple, other: tuple) -> None:
    """No two different keys that hypothesis finds have one digest."""
    assert (one == other) == (digest_of("pin", one) == digest_of("pin", other))


def test_a_key_prints_as_its_kind_and_the_head_of_its_digest() -> None:
    """Messages show a key as ``kernel:`` and 16 hex digits, never its parts."""
    key = Key.of("kernel", PARTS)
    assert str(key) == f"kernel:{key.digest.hex()[:16]}"
    assert "ttir" not in repr(key)
