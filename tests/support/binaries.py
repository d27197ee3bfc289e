"""The smallest file that passes for a cubin: one symbol, its register count, nothing to run."""

from __future__ import annotations

import struct


def small_cubin(name: str, registers: int = 16) -> bytes:
    """Return an ELF file that defines the kernel ``name``; no GPU would load it."""
    names = b"\0.shstrtab\0.symtab\0.strtab\0.nv.info\0"
    strings = b"\0" + name.encode() + b"\0"
    # A null symbol, then a global function in section 1.
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 0, 8)
    info = struct.pack("<BBHII", 4, 0x2F, 8, 1, registers)
    contents = [(names, 3, 0, 1), (symbols, 2, 3, 11), (strings, 3, 0, 19)]
    contents.append((info, 0x70000000, 0, 27))
    body, rows = b"", [bytes(64)]
    for data, kind, link, label in contents:
        place = (kind, 0, 0, 64 + len(body), len(data), link, 0, 1, 0)
        rows.append(struct.pack("<IIQQQQIIQQ", label, *place))
        body += data
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(b"\x7fELF\2\1\1".ljust(16, b"\0"), 2, 190, 1, 0, 0, 64 + len(body)),
        *(0, 64, 0, 0, 64, len(rows), 1),
    )
    return head + body + b"".join(rows)
