"""One byte encoding for every value that enters a key or crosses a wire.

Values are None, bool, int, float, str, bytes and tuples or lists of those (equal here: msgpack has
one array type). Anything else, above all anything whose repr holds an address, is refused.
"""

from __future__ import annotations

import msgpack

from .errors import RequestError

#: What a key may hold; mypy cannot say the recursion without help, so tuples are of object.
Plain = None | bool | int | float | str | bytes | tuple[object, ...]


def plain(value: object, what: str) -> Plain:
    """Return ``value`` with lists turned into tuples; raise RequestError for any other type."""
    match value:
        case None | bool() | float() | str() | bytes():
            return value
        case int():
            if type(value) is not int or not -(2**63) <= value < 2**64:
                raise RequestError(
                    what, f"the integer {value!r} does not fit 64 bits or has a type"
                )
            return value
        case tuple() | list():
            return tuple(plain(item, what) for item in value)
        case _:
            raise RequestError(what, f"a value of type {type(value).__qualname__} cannot be keyed")


def encode(value: object, what: str = "value") -> bytes:
    """Return the canonical bytes of a plain value: equal for equal values, and only for those."""
    packed = msgpack.packb(plain(value, what), use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed
