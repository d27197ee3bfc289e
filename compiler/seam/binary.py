"""What a cubin or hsaco says about itself: its symbols, registers and local memory.

Read straight from the ELF file, because running the vendor's dump tool or the assembler a second
time would cost more than parsing (0.1 ms). A cubin keeps the figures in ``.nv.info`` as records
(u8 format, u8 attribute, u16 size, data); an hsaco keeps them as msgpack in a note. A compiler
that exits with success and leaves a truncated file is caught here, before anybody stores it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgpack

_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_MACHINES = {"cubin": 190, "hsaco": 224}

_SYMBOL_TABLES = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
_NOTE = 7
_FUNCTION = 2

#: Attributes of .nv.info that hold (symbol index, value) pairs.
_REGISTER_COUNT = 0x2F
_FRAME_SIZE = 0x11

_AMDGPU_METADATA = 32


class MalformedBinary(ValueError):
    """A binary that is no ELF file of its kind, or has no such kernel; becomes a BackHalfError."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Registers and local memory of one kernel, both in 32-bit words per thread."""

    registers: int
    spills: int


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    data: bytes
    link: int


def inspect_binary(kind: str, binary: bytes, entry: str) -> Resources:
    """Check that ``binary`` is an ELF file of ``kind`` that defines ``entry``; return its figures.

    Raises MalformedBinary, which says what is wrong.
    """
    try:
        sections = _sections(kind, binary)
        symbols = _functions(sections)
        if entry not in symbols:
            raise MalformedBinary(f"defines {sorted(symbols) or 'no function'}, not {entry!r}")
        if kind == "cubin":
            return _cuda_resources(sections, symbols[entry])
        return _amd_resources(sections, entry)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedBinary(f"is cut short or damaged: {error}") from error


def _sections(kind: str, binary: bytes) -> list[_Section]:
    if binary[:4] != b"\x7fELF":
        raise MalformedBinary(f"is no ELF file ({len(binary)} bytes)")
    header = _ELF_HEADER.unpack_from(binary)
    machine, table, size, count, names = header[2], header[6], header[11], header[12], header[13]
    if machine != _MACHINES[kind] or size != _SECTION.size:
        raise MalformedBinary(f"is for machine {machine}, not a {kind}")
    _check_segments(binary, header[5], header[10])
    rows = [_SECTION.unpack_from(binary, table + index * size) for index in range(count)]
    strings = _content(binary, rows[names])
    return [_Section(_text(strings, r[0]), r[1], _content(binary, r), r[6]) for r in rows]


def _check_segments(binary: bytes, table: int, count: int) -> None:
    # In a cubin this table is the last thing in the file.
    for index in range(count):
        row = _SEGMENT.unpack_from(binary, table + index * _SEGMENT.size)
        if (end := row[2] + row[5]) > len(binary):
            raise MalformedBinary(f"ends at {len(binary)}, a segment reaches to {end}")


def _content(binary: bytes, row: tuple[int, ...]) -> bytes:
    kind, offset, size = row[1], row[4], row[5]
    if kind in (0, 8):  # no bits in the file
        return b""
    if offset + size > len(binary):
        raise MalformedBinary(f"ends at {len(binary)}, a section reaches to {offset + size}")
    return binary[offset : offset + size]


def _text(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(0, offset)].decode()


def _functions(sections: list[_Section]) -> dict[str, int]:
    """Defined functions and their index in the symbol table."""
    found: dict[str, int] = {}
    for section in sections:
        if section.kind not in _SYMBOL_TABLES:
            continue
        strings = sections[section.link].data
        for index, row in enumerate(_SYMBOL.iter_unpack(section.data)):
            if row[1] & 0xF == _FUNCTION and row[3] != 0 and row[5] > 0:
                found.setdefault(_text(strings, row[0]), index)
    return found


def _cuda_resources(sections: list[_Section], symbol: int) -> Resources:
    figures: dict[int, int] = {}
    for section in sections:
        if section.name == ".nv.info":
            for attribute, data in _attributes(section.data):
                if len(data) == 8 and (pair := struct.unpack("<II", data))[0] == symbol:
                    figures[attribute] = pair[1]
    if _REGISTER_COUNT not in figures:
        raise MalformedBinary("has no register count for its kernel")
    return Resources(figures[_REGISTER_COUNT], figures.get(_FRAME_SIZE, 0) // 4)


def _attributes(data: bytes) -> list[tuple[int, bytes]]:
    found, offset = [], 0
    while offset < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, offset)
        offset += 4
        if form == 4:  # sized; the other forms hold their value in place of the size
            found.append((attribute, data[offset : offset + size]))
            offset += size
    return found


def _amd_resources(sections: list[_Section], entry: str) -> Resources:
    for section in sections:
        if section.kind != _NOTE or not section.data:
            continue
        name_size, size, kind = struct.unpack_from("<III", section.data)
        start = 12 + (name_size + 3) // 4 * 4
        if kind != _AMDGPU_METADATA:
            continue
        try:
            notes = msgpack.unpackb(section.data[start : start + size])
            kernel = next(k for k in notes["amdhsa.kernels"] if k[".name"] == entry)
            return Resources(
                int(kernel[".vgpr_count"]), int(kernel[".private_segment_fixed_size"]) // 4
            )
        except (ValueError, KeyError, TypeError, StopIteration, msgpack.UnpackException) as error:
            raise MalformedBinary(f"has unreadable kernel metadata: {error!r}") from error
    raise MalformedBinary("has no kernel metadata")
