"""sha256 of files, remembered on disk by what ``stat`` says of them.

A memo entry is a small file named by the digest of (path, size, mtime_ns, ctime_ns, inode) of
every file it covers, so that entries are immutable, never go stale and need no lock. The inode and
the change time are there because copying tools preserve sizes and modification times.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

#: A file changed this recently may change again within one clock tick of its filesystem.
_SETTLED_NS = 2_000_000_000

#: One line: signature, value, check.
_MAX_ENTRY_BYTES = 4096

Signature = tuple[str, int, int, int, int]


def default_memo_dir() -> Path:
    """Return where digests are remembered: ``$XDG_CACHE_HOME/kernelfarm/digests``."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "kernelfarm" / "digests"


def signature_of(path: str) -> Signature:
    """Return (path, size, mtime_ns, ctime_ns, inode) of one file; OSError if it is not there."""
    info = os.stat(path)
    return (path, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


def hash_file(path: str) -> str:
    """Return the sha256 of a file's bytes as hex, always reading it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FileDigests:
    """Digests of files, each computed once per content and machine.

    ``memo_dir`` None means the default place. A directory that is not ours alone, or that cannot
    be written, only costs the memo: digests are then computed each time.
    """

    def __init__(
        self, memo_dir: Path | None = None, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._dir = memo_dir if memo_dir is not None else default_memo_dir()
        self._now_ns = now_ns
        self._known: dict[str, str] = {}

    def file(self, path: str) -> str:
        """Return the sha256 of one file's content as hex; OSError if it cannot be read."""
        return self.remembered("file", [path], lambda: hash_file(path))

    def remembered(self, kind: str, paths: Sequence[str], compute: Callable[[], str]) -> str:
        """Return ``compute()``'s hex digest over ``paths``, or what it was for the same files."""
        before = [signature_of(path) for path in paths]
        name = _name(kind, before)
        if (value := self._known.get(name)) is not None:
            return value
        value = self._read(name)
        if value is None:
            value = compute()
            after = [signature_of(path) for path in paths]
            if before != after or not self._settled(before):
                return value  # still being written: true now, not worth remembering
            self._write(name, value)
        self._known[name] = value
        return value

    def _settled(self, signatures: Sequence[Signature]) -> bool:
        newest = max((max(mtime, ctime) for _, _, mtime, ctime, _ in signatures), default=0)
        return self._now_ns() - newest > _SETTLED_NS

    def _read(self, name: str) -> str | None:
        if not _is_private(self._dir):
            return None
        try:
            with open(self._dir / name, "rb") as file:
                text = file.read(_MAX_ENTRY_BYTES).decode("ascii")
        except (OSError, UnicodeDecodeError):
            return None
        stored, _, rest = text.partition(" ")
        value, _, check = rest.partition(" ")
        return value if stored == name and check == _check(name, value) else None

    def _write(self, name: str, value: str) -> None:
        # Imported here: a process whose memo is filled never writes, and starts 10 ms sooner.
        import tempfile

        try:
            self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(self._dir):
                return
            handle, temporary = tempfile.mkstemp(dir=self._dir, prefix=".new-")
            try:
                with os.fdopen(handle, "w", encoding="ascii") as file:
                    file.write(f"{name} {value} {_check(name, value)}")
                os.replace(temporary, self._dir / name)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            import logging

            log = logging.getLogger("kernelfarm.seam")
            log.debug("digest memo %s is not writable: %s", self._dir, error)


def _name(kind: str, signatures: Sequence[Signature]) -> str:
    hasher = hashlib.sha256(f"kernelfarm digest memo 1 {kind}\0".encode())
    for path, *numbers in signatures:
        hasher.update(f"{len(path)} {path} {numbers}\0".encode("utf-8", "surrogateescape"))
    return hasher.hexdigest()


def _check(name: str, value: str) -> str:
    return hashlib.sha256(f"{name} {value}".encode()).hexdigest()[:16]


def _is_private(directory: Path) -> bool:
    # Whoever can write here decides what our keys say.
    try:
        info = os.stat(directory)
    except OSError:
        return False
    return (
        stat.S_ISDIR(info.st_mode)
        and info.st_uid == os.geteuid()
        and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )
