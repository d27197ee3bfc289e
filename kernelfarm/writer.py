"""Writing to the store behind everybody's back: puts happen in order, on a thread of their own."""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable

from .notices import Notices

#: How long a process that ends waits for its last puts, in seconds.
LAST_PUTS_S = 10.0

Task = Callable[[], None]


class Writer:
    """Runs tasks one after another on a daemon thread that starts with the first of them.

    A task that raises is a notice and a counter, never an exception in the caller. Survives a
    fork: the child starts with an empty queue and a thread of its own.
    """

    def __init__(self, notices: Notices, name: str = "kernelfarm-writer") -> None:
        self._notices = notices
        self._name = name
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._owner = 0  # process whose thread serves the queue; 0: none yet

    def add(self, task: Task) -> None:
        """Queue a task and return at once."""
        if self._owner != os.getpid():
            self._start()
        self._queue.put(task)

    def flush(self, timeout: float = LAST_PUTS_S) -> bool:
        """Wait until every task queued so far has run; False if it takes over ``timeout`` s."""
        if self._owner != os.getpid():
            return True
        done = threading.Event()
        self._queue.put(done.set)
        return done.wait(timeout)

    def close(self) -> None:
        """Run what is queued and let the thread go; a later task starts another one."""
        self.flush()
        with self._lock:
            if self._owner == os.getpid():
                self._queue.put(None)
                self._owner = 0
        atexit.unregister(self.flush)

    def _start(self) -> None:
        with self._lock:
            if self._owner == os.getpid():
                return
            self._queue = queue.SimpleQueue()
            atexit.register(self.flush)
            thread = threading.Thread(
                target=self._serve, args=(self._queue,), name=self._name, daemon=True
            )
            thread.start()
            self._owner = os.getpid()

    def _serve(self, tasks: queue.SimpleQueue[Task | None]) -> None:
        while (task := tasks.get()) is not None:
            try:
                task()
            except Exception as error:
                self._notices.tell(
                    "write_failed",
                    f"kernelfarm: a result was not stored: {error}; compiling goes on without it",
                )
            del task  # what it holds must not live until the next one comes
