"""Locks between processes that are given up after a while, and the gate that a fork must pass.

A process that was stopped inside a transaction would block every other one for ever if they
waited on LMDB's own mutex. Writers therefore queue on a flock first, and stop waiting.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_FIRST_PAUSE = 0.0001
_LONGEST_PAUSE = 0.002


class LockTimeout(Exception):
    """Somebody held a lock for longer than we are willing to wait."""


class FileLock:
    """An exclusive lock on a file, between the threads and processes of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = threading.RLock()
        self._depth = 0
        self._fd = -1

    @contextmanager
    def hold(self, timeout: float) -> Iterator[None]:
        """Hold it for a block; re-entrant. Raises LockTimeout, or OSError if it cannot be made."""
        if not self._thread.acquire(timeout=max(timeout, 0.0)):
            raise LockTimeout(str(self._path))
        try:
            if self._depth == 0:
                self._lock(timeout)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._thread.release()

    def close(self) -> None:
        """Close the file; the next hold opens it again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def forget(self) -> None:
        """In a forked child: drop the parent's descriptor and whoever held the thread lock."""
        self._thread = threading.RLock()
        self._depth = 0
        self.close()

    def _lock(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        pause = _FIRST_PAUSE
        while True:
            if self._fd < 0 or not _is_at(self._fd, self._path):
                self.close()
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise LockTimeout(str(self._path)) from None
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


class Gate:
    """Counts who is inside; shut for a fork, and runs chores whenever nobody is inside.

    LMDB must not be forked over while a transaction is open: the child's close would free the
    reader slot that the parent is reading under.
    """

    def __init__(self) -> None:
        self._change = threading.Condition(threading.Lock())
        #: Threads between `__enter__` and `__exit__`.
        self._inside = 0
        self._shut = False
        self._chores: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        with self._change:
            while self._shut:
                self._change.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._change:
            self._inside -= 1
            if self._inside == 0:
                self._run_chores()
                if self._shut:
                    self._change.notify_all()

    def when_empty(self, chore: Callable[[], None]) -> None:
        """Run ``chore`` as soon as nobody is inside; now, if nobody is."""
        with self._change:
            self._chores.append(chore)
            if self._inside == 0:
                self._run_chores()

    def shut(self, timeout: float) -> bool:
        """Let nobody in and wait until everybody is out; False if that took too long."""
        with self._change:
            self._shut = True
            return self._change.wait_for(lambda: self._inside == 0, timeout)

    def open(self) -> None:
        """Let everybody in again."""
        with self._change:
            self._shut = False
            self._change.notify_all()

    def _run_chores(self) -> None:
        chores, self._chores = self._chores, []
        for chore in chores:
            chore()


def _is_at(fd: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
