"""Private directories and the broker's socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kernelfarm.farm.errors import UnsafeDirectory
from kernelfarm.farm.places import (
    address,
    connect,
    import_roots,
    peer_uid,
    private_directory,
    socket_directory,
)
from kernelfarm.farm.server import listen


def test_directory_is_made_private(tmp_path: Path) -> None:
    """A new directory is for this user alone, and is accepted the next time."""
    path = private_directory(tmp_path / "a" / "b")
    assert path.stat().st_mode & 0o777 == 0o700
    assert private_directory(path) == path


def test_open_directory_is_refused(tmp_path: Path) -> None:
    """A directory that others may enter is refused by name."""
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(UnsafeDirectory, match="mode is 0755"):
        private_directory(tmp_path / "open")


def test_link_is_refused(tmp_path: Path) -> None:
    """A link in place of the directory is refused, wherever it leads."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UnsafeDirectory, match="no directory"):
        private_directory(tmp_path / "link")


def test_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that belongs to somebody else is refused, though its mode be right."""
    (tmp_path / "theirs").mkdir(mode=0o700)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(UnsafeDirectory, match=f"belongs to user {owner}"):
        private_directory(tmp_path / "theirs")


def test_socket_is_for_this_user_alone(tmp_path: Path) -> None:
    """The socket has mode 0600, and each end sees the other's user."""
    directory = private_directory(tmp_path / "d")
    with listen(directory) as listening:
        path = Path(listening.getsockname())
        assert path.stat().st_mode & 0o777 == 0o600
        with connect(path, 1.0) as ours:
            theirs, _ = listening.accept()
            with theirs:
                assert peer_uid(ours) == peer_uid(theirs) == os.getuid()


def test_long_paths_work(tmp_path: Path) -> None:
    """A directory whose path is longer than a socket's address may be is used all the same."""
    directory = private_directory(tmp_path / ("x" * 100) / ("y" * 100))
    with listen(directory), connect(directory / "broker-w1.sock", 1.0) as ours:
        assert ours.family == socket.AF_UNIX


def test_short_paths_are_plain(tmp_path: Path) -> None:
    """A path that fits is used as it is."""
    with address(Path("/tmp/s")) as name:
        assert name == "/tmp/s"


def test_runtime_directory_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket lies below XDG_RUNTIME_DIR where there is one, else in a directory by user."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert socket_directory() == tmp_path / "kernelfarm"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert socket_directory() == Path(f"/tmp/kernelfarm-{os.getuid()}")


def test_import_roots_hold_no_installed_packages() -> None:
    """Only what a fresh interpreter would not find is put on its path."""
    roots = import_roots()
    assert all(not root.endswith("site-packages") for root in roots)
    import kernelfarm

    parent = str(Path(next(iter(kernelfarm.__path__))).parent)
    assert parent in roots or parent.endswith("site-packages")
