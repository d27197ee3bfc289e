"""Standard streams of a command: stdout is for its result alone, and may be closed or go away."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator


def occupy_standard_descriptors() -> None:
    """Open /dev/null where a standard descriptor is closed.

    Otherwise the next file that is opened gets its number, and a store's file under number 1 would
    receive whatever some library prints.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is given out, which is this one.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)


@contextlib.contextmanager
def reserved_stdout() -> Iterator[Callable[[str], None]]:
    """Yield a function that prints to stdout; whatever else is printed inside goes to stderr.

    That holds for what the user's code, libraries in C and child processes write. A reader that
    has gone away is no error: there is nobody left to tell.
    """
    ours = sys.stdout
    number = _descriptor(ours)
    kept = -1
    if ours is not None and number >= 0:
        _flush()
        kept = os.dup(number)
        os.dup2(2, number)
    pending: list[str] = []
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield pending.append
    finally:
        if kept >= 0:
            _flush()
            os.dup2(kept, number)
            os.close(kept)
        for text in pending:
            _print(text)


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is left in the buffer must not raise again when the interpreter ends.
        number = _descriptor(sys.stdout)
        if number >= 0:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            os.close(null)


def _flush() -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()


def _descriptor(stream: object) -> int:
    """Return the number of a stream's descriptor, or -1 for none (closed, or a test's buffer)."""
    try:
        return int(stream.fileno())  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return -1
