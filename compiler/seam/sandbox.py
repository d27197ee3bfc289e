"""The surroundings in which the back half runs: a private directory, and captured output.

In a forked child of the zygote nobody else shares our working directory, our standard streams or
the place for temporary files, so all three are redirected: TTIR is parsed under one constant
relative name, the assembler's files vanish with the directory, and what the compiler prints
becomes the error's log. In a process with other threads only the private directory remains; with
line info off the name of the parsed file does not reach the binary, so bytes are equal.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from .environment import names_relative_files

#: The file name that TTIR is parsed under.
TTIR_NAME = "kernel.ttir"

_MAX_LOG = 64 * 1024


@dataclass(frozen=True, slots=True)
class Sandbox:
    """``ttir_path`` is what the compiler is told to parse; ``log()`` is what it printed so far."""

    directory: str
    ttir_path: str
    captured: bool

    def log(self) -> str:
        """Return what was printed to both streams, at most the last 64 KiB."""
        if not self.captured:
            return ""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with open(os.path.join(self.directory, "output.log"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_LOG))
            return file.read().decode(errors="replace").strip()


@contextlib.contextmanager
def sandbox(ttir: str) -> Iterator[Sandbox]:
    """Make the surroundings for one compile of ``ttir`` and undo them afterwards."""
    directory = tempfile.mkdtemp(prefix="kernelfarm-")
    try:
        path = os.path.join(directory, TTIR_NAME)
        with open(path, "w", encoding="utf-8") as file:
            file.write(ttir)
        # A file that the environment names relative to here must stay where it is.
        if not alone() or names_relative_files(os.environ):
            yield Sandbox(directory, path, captured=False)
            return
        with _redirected(directory):
            yield Sandbox(directory, TTIR_NAME, captured=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def alone() -> bool:
    """Say whether this process has a single thread, native ones included."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


@contextlib.contextmanager
def _redirected(directory: str) -> Iterator[None]:
    home, temporary = os.getcwd(), tempfile.tempdir
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    saved = [os.dup(1), os.dup(2)]
    log = os.open(os.path.join(directory, "output.log"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(directory)
        tempfile.tempdir = directory
        yield
    finally:
        tempfile.tempdir = temporary
        os.chdir(home)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, original in zip((1, 2), saved, strict=True):
            os.dup2(original, number)
            os.close(original)
        os.close(log)
