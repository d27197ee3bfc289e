"""Private directories, the broker's socket in them, and who is at its other end."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from .errors import UnsafeDirectory
from .wire import WIRE_VERSION

#: A Unix socket's address has room for so many bytes, the closing zero included.
_ADDRESS_BYTES = 108
_UCRED = struct.Struct("iII")


def socket_directory() -> Path:
    """Return where this user's broker has its socket: below XDG_RUNTIME_DIR, else in /tmp."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime) and os.stat(runtime).st_uid == os.getuid():
        return Path(runtime) / "kernelfarm"
    return Path("/tmp") / f"kernelfarm-{os.getuid()}"


def scratch_directory(fallback: Path) -> Path:
    """Return a private directory in memory for compilers' temporary files, else ``fallback``."""
    shm = Path("/dev/shm")
    if shm.is_dir() and os.access(shm, os.W_OK):
        with contextlib.suppress(UnsafeDirectory):
            return private_directory(shm / f"kernelfarm-{os.getuid()}")
    return private_directory(fallback)


def private_directory(path: Path) -> Path:
    """Create a directory that only this user may enter, or check the one that is there.

    Raises UnsafeDirectory if it is no directory (a link is none), belongs to somebody else, is
    open to others, or cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise UnsafeDirectory(str(path), str(error)) from None
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeDirectory(str(path), "it is no directory")
    if found.st_uid != os.getuid():
        raise UnsafeDirectory(str(path), f"it belongs to user {found.st_uid}")
    if found.st_mode & 0o077:
        raise UnsafeDirectory(str(path), f"its mode is {stat.S_IMODE(found.st_mode):04o}")
    return path


def socket_path(directory: Path) -> Path:
    """Return the socket of the broker that speaks our version of the wire."""
    return directory / f"broker-w{WIRE_VERSION}.sock"


@contextlib.contextmanager
def address(path: Path) -> Iterator[str]:
    """Yield an address for a socket's path, however long: through its directory if need be."""
    if len(os.fsencode(path)) < _ADDRESS_BYTES:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def connect(path: Path, timeout: float) -> socket.socket:
    """Connect to a broker of this user; raises OSError, PermissionError if it is another's."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        with address(path) as name:
            connection.connect(name)
        if peer_uid(connection) != os.getuid():
            raise PermissionError(f"{path} is served by user {peer_uid(connection)}")
    except BaseException:
        connection.close()
        raise
    return connection


def peer_uid(connection: socket.socket) -> int:
    """Return the user at the other end of a Unix socket, as the kernel knows it."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return _UCRED.unpack(data)[1]


@functools.cache
def import_roots() -> tuple[str, ...]:
    """Return the directories that a fresh interpreter lacks to import us and triton as we do.

    Directories of installed packages are not among them: they are found by themselves, and put on
    PYTHONPATH they would come before the standard library.
    """
    import importlib.util
    import site

    package = __name__.partition(".")[0]
    found = [Path(next(iter(sys.modules[package].__path__))).parent]
    for name in ("triton", "msgpack"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            found.append(Path(spec.origin).parent.parent)
    known = {os.path.realpath(path) for path in [*site.getsitepackages(), *_user_site()]}
    roots = [os.path.abspath(path) for path in found if os.path.realpath(path) not in known]
    return tuple(dict.fromkeys(roots))


@functools.cache
def code_signature() -> str:
    """Return what identifies our sources on disk, as they were when first asked, without a read.

    A zygote that loaded other sources than its client must not serve it: an installation may be
    replaced while processes live. Names, sizes and times suffice within a machine.
    """
    root = Path(__file__).parent.parent
    found = [
        (str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns)
        for folder in ("farm", "cache", "compiler/seam")
        for path in sorted((root / folder).glob("*.py"))
    ]
    return hashlib.sha256(repr(found).encode()).hexdigest()


def _user_site() -> list[str]:
    import site

    return [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
