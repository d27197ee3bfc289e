"""Frames: how messages become bytes and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.farm.errors import BadFrame
from kernelfarm.farm.wire import Frames, pack, pack_body, unpack

MESSAGES = st.lists(
    st.dictionaries(st.text(max_size=5), st.binary(max_size=20) | st.integers(0, 9), max_size=3),
    max_size=5,
)


@given(MESSAGES, st.lists(st.integers(1, 30)))
def test_frames_survive_any_cutting(messages: list[dict[str, object]], cuts: list[int]) -> None:
    """However a stream is cut into pieces, the same messages come out in order."""
    stream = b"".join(pack(message) for message in messages)
    frames, bodies = Frames(), []
    for cut in cuts:
        piece, stream = stream[:cut], stream[cut:]
        bodies += frames.feed(piece)
    bodies += frames.feed(stream)
    assert [unpack(body) for body in bodies] == messages


def test_length_beyond_reason_is_refused() -> None:
    """Bytes of another protocol do not make us wait for gigabytes."""
    with pytest.raises(BadFrame, match="frame of"):
        Frames().feed(b"GET / HTTP/1.1\r\n")


@pytest.mark.parametrize("body", [b"", b"\xc1", pack_body({"a": 1})[:-1], b"\x93\x01\x02\x03"])
def test_what_is_no_message_is_refused(body: bytes) -> None:
    """Cut, malformed and unmapped bodies are BadFrame, not whatever msgpack raises."""
    with pytest.raises(BadFrame):
        unpack(body)
