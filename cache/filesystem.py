"""Which directories may hold an LMDB store, and which one does when nobody said.

LMDB on a filesystem that several machines see loses acknowledged records without an error, so it
is refused there by the filesystem's name in /proc/self/mountinfo.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from .errors import ForeignOwner, NetworkFilesystem, NotWritable

#: Filesystems that machines share, or that pass through a server of unknown manners.
NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "coda", "davfs", "fhgfs", "gfs"),
        *("gfs2", "glusterfs", "gpfs", "lustre", "mmfs", "ncpfs", "nfs", "nfs4", "ocfs2"),
        *("orangefs", "panfs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs"),
        *("vmhgfs", "wekafs"),
    )
)
#: Fine for a named directory, but lost with the container, so not where the default one should be.
LAYERED = frozenset(("overlay", "overlayfs", "aufs"))

SHARED_MEMORY = Path("/dev/shm")


def filesystem_of(path: Path) -> str:
    """Return the name of the filesystem that holds ``path`` (which exists), or "unknown"."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            number = _mount_number(fd)
            device = os.fstat(fd).st_dev
        finally:
            os.close(fd)
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            lines = [line.split() for line in table]
    except OSError:
        return "unknown"
    numbers = f"{os.major(device)}:{os.minor(device)}"
    by_device = "unknown"
    for fields in lines:
        name = fields[fields.index("-", 6) + 1]
        if fields[0] == number:
            return name
        if fields[2] == numbers:
            by_device = name
    return by_device


def is_network(name: str) -> bool:
    """Say whether a filesystem of this name is one that LMDB must not be put on."""
    return name in NETWORK or name == "fuse" or name.startswith(("fuse.", "fuseblk"))


def prepare(path: Path) -> str:
    """Make ``path`` a directory that can hold a store, or raise StoreUnusable.

    Returns the name of its filesystem.

    It must lie on a local filesystem, belong to this user or root, and not be open to others.
    """
    name = filesystem_of(_nearest_existing(path))
    if is_network(name):
        raise NetworkFilesystem(
            path,
            f"it lies on a network filesystem ({name}), where LMDB loses records",
            "name a directory on a local disk or under /dev/shm, on each machine",
        )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except FileExistsError:
        raise NotWritable(path, "it is not a directory", "name a directory") from None
    except OSError as error:
        raise NotWritable(path, _why(error), "name a directory that you may create") from None
    _check_owner(path, status)
    if not os.access(path, os.W_OK | os.X_OK):
        raise NotWritable(
            path, "it cannot be written", "make it writable, or name a directory that is"
        )
    return name


def own_directory(path: Path) -> None:
    """Make ``path``, inside a prepared directory, ours alone (0700), or raise StoreUnusable."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotWritable(path, "it is not a directory", "remove it")
        if status.st_uid != os.geteuid():
            raise _foreign(path, status.st_uid)
        if stat.S_IMODE(status.st_mode) != 0o700:
            path.chmod(0o700)
    except OSError as error:
        raise NotWritable(path, _why(error), "make its parent writable") from None


def default_directory(environ: Mapping[str, str]) -> tuple[Path, str | None]:
    """Return where the store lies if nobody names a directory, and a notice if that is unusual.

    ``$XDG_CACHE_HOME/kernelfarm`` or ``~/.cache/kernelfarm``; /dev/shm if that is on a network or
    layered filesystem or cannot be written.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / ".cache"
    usual = home / "kernelfarm"
    nearest = _nearest_existing(usual)
    name = filesystem_of(nearest)
    if not usual.is_absolute():
        why = "belongs to a user without a home"
    elif is_network(name) or name in LAYERED:
        why = f"lies on {name}"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        why = "cannot be written"
    else:
        return usual, None
    memory = SHARED_MEMORY / f"kernelfarm-{os.geteuid()}"
    return memory, (
        f"the usual store directory {usual} {why}; this machine's store is {memory}, in memory and"
        " until the next boot. Name a directory on a local disk to keep it."
    )


def free_bytes(path: Path) -> int:
    """Return how many bytes this user may still write on the filesystem of ``path``."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise _foreign(path, status.st_uid)
    mode = status.st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise ForeignOwner(
            path,
            "every user may write in it, and what is stored is run on the GPU",
            f"chmod o-w {path}, or name a private directory",
        )


def _foreign(path: Path, owner: int) -> ForeignOwner:
    return ForeignOwner(
        path,
        f"it belongs to user {owner}, and you are user {os.geteuid()}",
        "name a directory of your own",
    )


def _mount_number(fd: int) -> str:
    try:
        with open(f"/proc/self/fdinfo/{fd}") as info:
            for line in info:
                if line.startswith("mnt_id:"):
                    return line.split()[1]
    except OSError:
        pass  # an older kernel, or none at all: the device number is the second best
    return ""


def _nearest_existing(path: Path) -> Path:
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return path


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
