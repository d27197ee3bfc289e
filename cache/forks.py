"""Keeps open stores right across fork: hooked in once, for all stores of the process.

Before a fork, every gate is shut, so that no LMDB transaction is open while the process is copied.
The child lets go of the parent's files and locks, and opens its own when it first needs them.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from .locks import Gate

#: Seconds that a fork waits for transactions to end, all gates together.
FORK_TIMEOUT = 2.0


class Forkable(Protocol):
    """Something whose locks or files a forked child must not share with its parent."""

    @property
    def gate(self) -> Gate | None:
        """Shut while the process is copied; None where there is nothing to wait for."""
        ...

    def forget(self, *, clean: bool) -> None:
        """In the child: let go of the parent's; ``clean`` unless a gate could not be shut."""
        ...


class _Hooks:
    """Who takes part, and the fork in progress."""

    def __init__(self) -> None:
        self.targets: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self.installed = False
        #: Held from before a fork until after it: two threads may fork at once.
        self.turn = threading.Lock()
        self.shut: list[Gate] = []
        self.clean = True


_hooks = _Hooks()


def register(target: Forkable) -> None:
    """Have ``target.forget`` called in every child forked from now on."""
    _hooks.targets.add(target)
    if not _hooks.installed:
        _hooks.installed = True
        os.register_at_fork(
            before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
        )


def _before() -> None:
    _hooks.turn.acquire(timeout=2 * FORK_TIMEOUT)
    _hooks.clean = True
    for target in list(_hooks.targets):
        if target.gate is not None:
            _hooks.shut.append(target.gate)
            _hooks.clean &= target.gate.shut(FORK_TIMEOUT if _hooks.clean else 0.0)


def _after_in_parent() -> None:
    while _hooks.shut:
        _hooks.shut.pop().open()
    if _hooks.turn.locked():
        _hooks.turn.release()


def _after_in_child() -> None:
    _hooks.turn = threading.Lock()
    _hooks.shut = []
    for target in list(_hooks.targets):
        target.forget(clean=_hooks.clean)
