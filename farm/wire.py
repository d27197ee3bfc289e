"""Frames: a big-endian 32-bit length, then one msgpack map with its message's name under "op".

Between client and broker (``n`` is the client's number for a request)::

    client   hello {wire, pid}    environment {id, spec}    submit {n, env, kernel, prio, body}
             raise {n, prio}      release {n, satisfied}    stats {n}    ping
    broker   welcome {wire, pid}  refuse {wire, why}        pong         stats {n, data}
             keyed {n, key, parts}
             done {n, key, parts, payload, joined, started, finished, stages}
             failed {n, failure}

Between broker and zygote (``run`` is the broker's number for an attempt)::

    broker   hello {wire, code, toolchain, target, run_bytes}
             run {run, body, nice}       kill {run}
    zygote   ready {seconds}      unready {why}             began {run, pid}
             stage {run, stage}   keyed {run, key, parts}
             done {run, payload, started, finished, stages}      rejected {run, failure}
             died {run, signal, exit_code, memory, log}

``parts`` are the kernel key's (name, bytes) pairs, the TTIR among them. ``body`` is the packed wire
form of a SourceRequest or a CompileRequest; the broker never looks into it. ``spec`` is what a
zygote is started with: {python, roots, code, environ, toolchain, target}.
Unknown fields are ignored; any other change raises WIRE_VERSION.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from .errors import BadFrame

#: Part of the socket's name, so that two versions never meet; checked again in the handshake.
WIRE_VERSION = 1
#: More than any request or artifact has; a length beyond it means that the peer is not ours.
MAX_FRAME = 256 << 20

_LENGTH = struct.Struct(">I")

Message = dict[str, Any]


def pack(message: Message) -> bytes:
    """Return a message as one frame."""
    body = pack_body(message)
    return _LENGTH.pack(len(body)) + body


def pack_body(message: Message) -> bytes:
    """Return a message's bytes without their length; equal values give equal bytes."""
    return msgpack.packb(message, use_bin_type=True)


def unpack(body: bytes) -> Message:
    """Return the message in a frame's body; raises BadFrame."""
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise BadFrame(f"{len(body)} bytes are no message: {error}") from None
    if not isinstance(message, dict):
        raise BadFrame(f"a message is a map, not {type(message).__name__}")
    return message


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the bodies of the frames that are complete; raises BadFrame."""
        self._buffer += data
        bodies = []
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if length > MAX_FRAME:
                raise BadFrame(f"a frame of {length} bytes")
            end = at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[at + _LENGTH.size : end]))
            at = end
        del self._buffer[:at]
        return bodies


def frame(body: bytes) -> bytes:
    """Return a frame around a body that is packed already."""
    return _LENGTH.pack(len(body)) + body
