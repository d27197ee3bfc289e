"""Tells how long Dynamo took, which nobody else can: the backend only sees where Dynamo ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from torch._dynamo.callback import callback_handler

#: Receives a phase's name and its seconds.
Recorder = Callable[[str, float], None]


class _Backend(threading.local):
    """Seconds that `compile_fx` spent on this thread since the current compile began."""

    seconds = 0.0


_backend = _Backend()


def backend_took(seconds: float) -> None:
    """Note time of a Dynamo compile that was not Dynamo's; `compile_fx` calls this."""
    _backend.seconds += seconds


def watch_dynamo(record: Recorder) -> Callable[[], None]:
    """Report ("dynamo", seconds) after every compile by our backend; return the off switch.

    The seconds are those between the start and the end of Dynamo's work on one frame, without what
    was spent in `compile_fx`. Compiles for other backends are not reported.
    """
    started = threading.local()

    def start(*_: Any) -> None:
        started.at, _backend.seconds = time.perf_counter(), 0.0

    def end(*_: Any) -> None:
        began = getattr(started, "at", None)
        if began is not None and _backend.seconds > 0.0:
            record("dynamo", time.perf_counter() - began - _backend.seconds)
        started.at = None

    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)

    def stop() -> None:
        callback_handler.remove_start_callback(start)
        callback_handler.remove_end_callback(end)

    return stop
