"""Files that other processes may read are replaced whole or not at all.

A file is written under a temporary name in the same directory and renamed over the target;
readers need no lock and see the old bytes or the new ones. Temporary names begin with "." and end
in ".tmp", are unique per call on every host, and are removed on any failure; those that a killed
process left behind are swept by age. Permissions follow the umask.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

#: A temporary file or directory that nobody has touched for this long is an orphan.
STALE_SECONDS = 600.0

_serial = itertools.count()


def put(path: Path, data: bytes | str, *, durable: bool = False) -> None:
    """Make ``path`` hold exactly ``data`` (text as UTF-8), creating its parents.

    ``durable`` also waits until the disk has file and name. Raises OSError; the target is then as
    it was before, and no temporary file is left.
    """
    path = Path(path)
    payload = data.encode() if isinstance(data, str) else data
    temporary = _temporary_beside(path)
    try:
        _write(temporary, payload, durable)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        _sync_directory(path.parent)


def put_dir(path: Path, files: Mapping[str, bytes], *, durable: bool = False) -> bool:
    """Make ``path`` a directory of exactly ``files`` (plain names), all or nothing.

    Returns False if a directory with all of these names was there first; ours is then dropped. A
    directory that lacks some of them is replaced. Raises OSError or ValueError (a name with "/").
    """
    path = Path(path)
    for name in files:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} is no plain file name")
    if _is_complete(path, files):
        return False
    temporary = _temporary_beside(path)
    try:
        os.mkdir(temporary)
        for name, data in files.items():
            _write(temporary / name, data, durable)
        for _ in range(3):
            try:
                os.rename(temporary, path)
                break
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
            if _is_complete(path, files):
                _remove_tree(temporary)
                return False
            _move_away(path)
        else:
            raise OSError(errno.EEXIST, "others keep replacing the directory", str(path))
    except BaseException:
        _remove_tree(temporary)
        raise
    if durable:
        _sync_directory(path.parent)
    return True


def sweep(directory: Path, older_than: float = STALE_SECONDS) -> int:
    """Remove temporaries in ``directory`` untouched for ``older_than`` seconds; return how many.

    Never raises: what cannot be removed stays.
    """
    removed = 0
    now = time.time()
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return 0
    for entry in entries:
        if not is_temporary(entry.name):
            continue
        try:
            if now - entry.stat(follow_symlinks=False).st_mtime < older_than:
                continue
            if entry.is_dir(follow_symlinks=False):
                _remove_tree(Path(entry.path))
            else:
                os.unlink(entry.path)
        except OSError:
            continue
        removed += 1
    return removed


def read_head(path: Path, limit: int) -> bytes:
    """Return the first ``limit`` bytes of a regular file; raises OSError for anything else.

    A pipe or a device under the name neither blocks nor fills memory.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        return os.read(fd, limit)
    finally:
        os.close(fd)


def make_way(path: Path) -> None:
    """Remove what stands at ``path`` unless it is a regular file or nothing; raises OSError."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        _move_away(path)


def names(directory: Path) -> Iterator[str]:
    """Yield the finished entries of a directory, passing over everybody's temporaries."""
    for name in os.listdir(directory):
        if not is_temporary(name):
            yield name


def is_temporary(name: str) -> bool:
    """Say whether a directory entry is one of our unfinished files."""
    return name.startswith(".") and name.endswith((".tmp", ".tmp-lock"))


def _temporary_beside(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    unique = f"{os.getpid()}-{threading.get_ident():x}-{next(_serial)}-{os.urandom(6).hex()}"
    return path.parent / f".{path.name[:100]}.{unique}.tmp"


def _write(path: Path, data: bytes, durable: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def _is_complete(path: Path, files: Mapping[str, bytes]) -> bool:
    try:
        return files.keys() <= set(os.listdir(path))
    except OSError:
        return False


def _move_away(path: Path) -> None:
    aside = _temporary_beside(path)
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return
    try:
        os.unlink(aside)  # first: to take down a pipe as a tree would wait for a writer
    except OSError:
        _remove_tree(aside)


def _remove_tree(path: Path) -> None:
    import shutil  # costs 2 ms, and few processes ever get here

    shutil.rmtree(path, ignore_errors=True)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
