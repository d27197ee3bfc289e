"""Whether an installed triton is what its wheel held: the files against the wheel's RECORD."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
from pathlib import Path

from .digests import FileDigests
from .errors import RecordMismatch
from .installation import is_compiler_file


def verify(root: Path, names: tuple[str, ...], digests: FileDigests) -> None:
    """Raise RecordMismatch unless every compiler file under ``root`` is as its RECORD says.

    ``names`` are paths relative to ``root``. A file that RECORD does not list, or one that it
    lists and that is gone, is a mismatch too: both change what is compiled.
    """
    listing = _record_of(root)
    paths = [os.path.join(root, name) for name in names]

    def compute() -> str:
        _compare(root, names, _recorded(root, listing))
        return hashlib.sha256(b"matches").hexdigest()

    digests.remembered("record", [str(listing), *paths], compute)


def _record_of(root: Path) -> Path:
    for directory in sorted(root.parent.glob("*.dist-info")):
        listing = directory / "RECORD"
        if "triton" in directory.name and listing.is_file() and _recorded(root, listing):
            return listing
    raise RecordMismatch(str(root), "no installed distribution records this directory")


def _recorded(root: Path, listing: Path) -> dict[str, str]:
    prefix = root.name + "/"
    with open(listing, encoding="utf-8", newline="") as file:
        return {
            row[0].removeprefix(prefix): row[1]
            for row in csv.reader(file)
            if len(row) >= 2 and row[0].startswith(prefix)
        }


def _compare(root: Path, names: tuple[str, ...], recorded: dict[str, str]) -> None:
    unlisted = [name for name in names if name not in recorded]
    if unlisted:
        raise RecordMismatch(str(root), "files that its RECORD does not list", unlisted)
    gone = [name for name in recorded if is_compiler_file(name) and name not in set(names)]
    if gone:
        raise RecordMismatch(str(root), "files of its RECORD are gone", gone)
    changed = [name for name in names if _encoded_sha256(root / name) != recorded[name]]
    if changed:
        raise RecordMismatch(str(root), "files differ from its RECORD", changed)


def _encoded_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
