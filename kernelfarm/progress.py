"""What a person sees while `kernelfarm warm` works: a live bar on a terminal, else plain lines.

Only the command line imports this module, and rich only when there is a terminal.
"""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager
from typing import IO, Protocol

from .tally import Tally

#: Seconds between two looks at the tally.
REFRESH_S = 0.1


class Progress(Protocol):
    """Follows the targets of one command."""

    def target(self, name: str, tally: Tally) -> AbstractContextManager[None]:
        """Follow one target's tally for as long as the context lasts."""
        ...


class Lines:
    """One plain line when a target begins and one when it ends; for logs and pipes."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream

    def target(self, name: str, tally: Tally) -> AbstractContextManager[None]:
        """Follow one target."""
        return _Lines(name, tally, self._stream)


class _Lines(AbstractContextManager[None]):
    def __init__(self, name: str, tally: Tally, stream: IO[str]) -> None:
        self._name, self._tally, self._stream = name, tally, stream

    def __enter__(self) -> None:
        print(f"{self._name}: tracing and compiling", file=self._stream, flush=True)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:  # otherwise the error says what there is to say
            print(f"{self._name}: {summary(self._tally)}", file=self._stream, flush=True)


class Bar:
    """A live bar on a terminal: kernels settled of kernels known so far."""

    def target(self, name: str, tally: Tally) -> AbstractContextManager[None]:
        """Follow one target."""
        return _Bar(name, tally)


class _Bar(AbstractContextManager[None]):
    def __init__(self, name: str, tally: Tally) -> None:
        from rich import progress
        from rich.console import Console

        self._tally = tally
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[latest]}"),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(name, total=None, latest="tracing")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="kernelfarm-bar", daemon=True)

    def __enter__(self) -> None:
        self._bar.start()
        self._thread.start()

    def __exit__(self, kind: object, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._look()
        self._bar.update(self._task, latest=summary(self._tally) if kind is None else "stopped")
        self._bar.stop()

    def _follow(self) -> None:
        while not self._end.wait(REFRESH_S):
            self._look()

    def _look(self) -> None:
        settled, asked, latest = self._tally.standing()
        if asked:
            self._bar.update(self._task, completed=settled, total=asked, latest=latest)


def summary(tally: Tally) -> str:
    """Return one line on a tally's kernels."""
    counts = tally.kernels()
    return (
        f"{counts['distinct']} kernels: {counts['compiled']} compiled, "
        f"{counts['from_store']} from store, {counts['failed']} failed"
    )


def for_stream(stream: IO[str] | None = None) -> Progress:
    """Return the bar if ``stream`` (stderr) is a terminal, plain lines otherwise."""
    stream = sys.stderr if stream is None else stream
    return Bar() if stream.isatty() else Lines(stream)
