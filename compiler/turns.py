"""Short turns: while code is generated, the threads that send it away must not wait for the GIL.

CPython hands the interpreter over every 5 ms. A kernel that is submitted while the tracer is busy
in Python would leave the process that much later, and each answer as well.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds a busy thread keeps the interpreter while another one wants it.
TURN = 0.0001

_lock = threading.Lock()
_inside = 0
_before = 0.005


@contextmanager
def short_turns() -> Iterator[None]:
    """Lower the interpreter's switch interval inside; the last one out puts it back."""
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(TURN, _before))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                sys.setswitchinterval(_before)
