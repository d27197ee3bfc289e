"""The client: what a user's process has of the farm.

``submit`` only makes a future and hands the request to a thread; serialising, connecting, starting
a broker and settling happen there. Nothing here imports Ray or torch, and nothing here keeps an
interpreter from ending.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..compiler.seam.request import CompileRequest, SourceRequest
from ..compiler.seam.target import Target
from ..compiler.seam.toolchain import Toolchain, codegen_environment
from .commands import Call, Cancelled, Close, Command, Environment, OnKeyed, Prepare, Raise, Submit
from .errors import FarmClosed
from .exchange import Exchange
from .future import FarmFuture
from .future import FarmResult as FarmResult
from .hosting import ServerOptions
from .launch import KEPT_VARIABLES
from .levels import EMITTED, WAITING
from .link import Link
from .places import code_signature, import_roots, socket_directory
from .wire import pack_body

#: How long ``close`` waits for pending futures to be settled, in seconds.
CLOSE_SECONDS = 0.5


class FarmClient:
    """Submits requests to the user's broker, which all processes of this user share.

    ``socket_dir`` None means the user's own place. ``notice`` is told, once, in one sentence, when
    there is no shared broker. With ``start`` the broker is started at once, in the background,
    and not only at the first submit. ``options`` replaces how a broker is hosted.
    """

    def __init__(
        self,
        socket_dir: Path | str | None = None,
        notice: Callable[[str], None] | None = None,
        start: bool = True,
        *,
        options: ServerOptions | None = None,
    ) -> None:
        directory = Path(socket_dir) if socket_dir is not None else socket_directory()
        self._options = options or ServerOptions(str(directory))
        self._notice = notice or (lambda text: print(text, file=sys.stderr))
        self._environments: dict[tuple[Toolchain, str], Environment] = {}
        self._closed = False
        import_roots(), code_signature()  # found once, here and not in the first submit
        self._reset()
        _clients.add(self)
        if start:
            self._start()

    def submit(
        self,
        request: SourceRequest | CompileRequest,
        priority: int = EMITTED,
        *,
        on_keyed: OnKeyed | None = None,
    ) -> FarmFuture:
        """Queue a request and return at once; the future always settles.

        Once the front half is done, ``on_keyed(key, parts)`` is called on a thread of the client;
        an artifact that it returns settles the future and gives the compile up. ``priority`` is a
        compiler.service.Priority. Raises FarmClosed after ``close``.
        """
        if self._closed:
            raise FarmClosed("the farm's client was closed; open another one")
        future = FarmFuture(self._on_wait, self._on_cancel)
        environment = self._environment(request.toolchain, request.target)
        self._commands.put(Submit(request, int(priority), environment, future, on_keyed))
        if self._thread is None:
            self._start()
        return future

    def prepare(self, target: Target, toolchain: Toolchain) -> None:
        """Have the compile processes for a target started: kernels will be asked for soon."""
        self._commands.put(Prepare(self._environment(toolchain, target)))
        if self._thread is None:
            self._start()

    def raise_priority(self, futures: Sequence[FarmFuture], priority: int = WAITING) -> None:
        """Have these served sooner; by default before everything that nobody waits for."""
        self._commands.put(Raise(tuple(futures), int(priority)))

    def stats(self) -> dict[str, Any]:
        """Return this client's counters."""
        return {
            **self._exchange.counters,
            "broker_deaths": self._link.broker_deaths,
            "fallbacks": self._link.fallbacks,
        }

    def broker_stats(self, timeout: float = 2.0) -> dict[str, Any]:
        """Return the broker's counters, nothing if it does not answer in time."""
        answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        exchange = self._exchange
        self._commands.put(Call(lambda: exchange.ask_stats(answers.put)))
        try:
            return answers.get(timeout=timeout)
        except queue.Empty:
            return {}

    def close(self) -> None:
        """Let go of the broker; what is pending settles with FarmClosed. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._link.close()
        self._commands.put(Close())
        thread = self._thread
        if thread is None:
            self._exchange.run()  # settles what was queued before a thread was started
        elif thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)

    # -- inside -------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._link = Link(self._commands, self._options, self._notice)
        self._exchange = Exchange(self._commands, self._link.drop)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            link = threading.Thread(target=self._link.run, name="kernelfarm-link", daemon=True)
            thread = threading.Thread(
                target=self._exchange.run, name="kernelfarm-client", daemon=True
            )
            link.start()
            thread.start()
            self._thread = thread

    def _environment(self, toolchain: Toolchain, target: Target) -> Environment:
        """Return what a zygote for these is started with, taken from this process once."""
        found = self._environments.get((toolchain, target.arch_key))
        if found is None:
            environ = codegen_environment(os.environ)
            environ.update(
                {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
            )
            default = Target.parse(target.arch_key)  # the model does not reach the compiler
            spec = {
                "python": sys.executable,
                "roots": import_roots(),
                "code": code_signature(),
                "environ": environ,
                "toolchain": [toolchain.identity, toolchain.parts, toolchain.local],
                "target": [default.backend, default.arch, default.model],
            }
            found = Environment(hashlib.sha256(pack_body(spec)).digest(), spec)
            self._environments[(toolchain, target.arch_key)] = found
        return found

    def _on_wait(self, future: FarmFuture) -> None:
        self._commands.put(Raise((future,), WAITING))

    def _on_cancel(self, future: FarmFuture) -> None:
        self._commands.put(Cancelled(future))

    def _after_fork(self) -> None:
        """In a forked child: no threads, no connection; the next submit makes its own."""
        self._link.abandon()
        self._reset()


_clients: weakref.WeakSet[FarmClient] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._after_fork()


def _at_exit() -> None:
    for client in list(_clients):
        with contextlib.suppress(Exception):
            client.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
