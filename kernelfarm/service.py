"""Kernels from the store, else from the farm.

A request's own key is its alias (kernel text) or already the kernel key (TTIR). Equal requests in
flight in this process are one job. A submit costs its caller the hand-over to the service's desk;
keys, look-ups and the farm are the desk's affair. A caller that did them itself would give up the
interpreter in every look-up, and wait for it behind whichever thread took it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from .cache.key import DIGEST_BYTES, Key
from .cache.record import Record
from .cache.store import Store
from .compiler.seam.binary import inspect_binary
from .compiler.seam.request import Artifact, CompileRequest, SourceRequest
from .compiler.seam.toolchain import Toolchain
from .compiler.service import Compiled, KeyParts, Priority
from .contract import Farm, Result
from .notices import Notices
from .tally import Span, Tally
from .writer import Writer


@dataclass(eq=False, slots=True)
class _Flight:
    """A request on its way: what callers hold, what the farm holds, and what is known so far."""

    key: Key
    entry: str
    future: Future[Compiled]
    submitted: float
    farm_future: Future[Any] | None = None
    #: Set when the kernel turned out to be stored under its kernel key.
    found: bool = False


class CachedService:
    """The compiler's `KernelService`: store first, then farm, then the store is told.

    Requests are taken up on ``desk``'s thread; without one, by the caller itself. ``spare``
    compiles in this process when the farm itself fails (as opposed to the kernel); ``is_broken``
    tells the two apart by the exception.
    """

    def __init__(
        self,
        store: Store,
        farm: Farm,
        *,
        writer: Writer,
        tally: Tally,
        notices: Notices,
        desk: Writer | None = None,
        spare: Callable[[], Farm] | None = None,
        is_broken: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        self._store = store
        self._farm = farm
        self._writer = writer
        self._desk = desk
        self._notices = notices
        self._spare = spare
        self._is_broken = is_broken
        self.tally = tally
        self._lock = threading.Lock()
        #: By the digest of the request's own key; an entry leaves once its records are written.
        self._flights: dict[bytes, _Flight] = {}
        #: The unsettled ones by what callers hold, for `wanted`.
        self._waiting: dict[Future[Compiled], _Flight] = {}
        #: What callers hold while the desk works for them, by the flight's own future.
        self._handed: dict[Future[Compiled], Future[Compiled]] = {}

    def submit(
        self,
        request: SourceRequest | CompileRequest,
        priority: Priority = Priority.EMITTED,
    ) -> Future[Compiled]:
        """Queue one request and return at once; the future always settles."""
        started = time.monotonic()
        if self._desk is None:
            future = self._admit(request, priority, started)
        else:
            future = Future()
            future.set_running_or_notify_cancel()
            self._desk.add(lambda: self._take_up(future, request, priority, started))
        self.tally.cost(time.monotonic() - started)
        return future

    def _take_up(
        self,
        future: Future[Compiled],
        request: SourceRequest | CompileRequest,
        priority: Priority,
        started: float,
    ) -> None:
        """Admit a request on the desk's thread and pass its outcome on to the caller's future."""
        try:
            inner = self._admit(request, priority, started)
        except Exception as error:  # e.g. a request that cannot be keyed: its submitter's to know
            future.set_exception(error)
            return
        with self._lock:
            self._handed[future] = inner
        inner.add_done_callback(lambda done: self._pass_on(future, done))

    def _pass_on(self, future: Future[Compiled], done: Future[Compiled]) -> None:
        with self._lock:
            self._handed.pop(future, None)
        error = done.exception()
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result())

    def _admit(
        self, request: SourceRequest | CompileRequest, priority: Priority, started: float
    ) -> Future[Compiled]:
        """Join the flight of a request's key, or begin it."""
        kind = "kernel" if isinstance(request, CompileRequest) else "alias"
        key = Key.of(kind, request.key_parts())
        flight, is_new = self._join(key, request.entry, started)
        if is_new:
            try:
                self._begin(flight, request, priority)
            except Exception as error:
                self._fail(flight, error)
        elif flight.farm_future is not None:
            self._farm.raise_priority((flight.farm_future,), priority)
        return flight.future

    def get_ready(self, toolchain: Toolchain) -> None:
        """Do what the first submit would pay for: encode the toolchain, look into the store."""
        self._store.contains(Key.of("alias", toolchain.key_parts()))

    def wanted(self, futures: Sequence[Future[Compiled]]) -> None:
        """Raise these to ``Priority.WAITING``: a load is about to block on them."""
        if self._desk is None:
            self._raise(futures)
        else:
            wished = tuple(futures)
            self._desk.add(lambda: self._raise(wished))

    def _raise(self, futures: Sequence[Future[Compiled]]) -> None:
        with self._lock:
            own = [self._handed.get(future, future) for future in futures]
            flights = [self._waiting[future] for future in own if future in self._waiting]
        inner = [flight.farm_future for flight in flights if flight.farm_future is not None]
        if inner:
            self._farm.raise_priority(inner, Priority.WAITING)

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is in flight; False if ``timeout`` seconds were too few."""
        if self._desk is not None:
            self._desk.flush(timeout)
        with self._lock:
            waiting = [*self._waiting, *self._handed]
        return not wait(waiting, timeout).not_done

    def stats(self) -> dict[str, Any]:
        """Return kernels by origin, submit costs and the farm's own counters."""
        return {
            "kernels": self.tally.kernels(),
            "joined": self.tally.joined(),
            "submit_us": self.tally.submit_us(),
            "graphs": self.tally.graphs(),
            "farm": self._farm.stats(),
            "store": self._store.stats(),
            "notices": self._notices.counts(),
        }

    def _join(self, key: Key, entry: str, now: float) -> tuple[_Flight, bool]:
        """Return the flight of this key and whether it begins now."""
        with self._lock:
            flight = self._flights.get(key.digest)
            if flight is not None:
                return flight, False
            flight = _Flight(key, entry, Future(), now)
            flight.future.set_running_or_notify_cancel()  # callers share it: none may cancel it
            self._flights[key.digest] = flight
            self._waiting[flight.future] = flight
        self.tally.requested(entry)
        return flight, True

    def _begin(
        self, flight: _Flight, request: SourceRequest | CompileRequest, priority: Priority
    ) -> None:
        stored = self._look_up(flight.key)
        if stored is not None:
            kernel_key, artifact = stored
            self._settle(flight, Compiled(kernel_key, artifact, "store"))
            self._land(flight)
            return

        def on_keyed(kernel_key: bytes, parts: KeyParts) -> Artifact | None:
            artifact = self._kernel(kernel_key)
            flight.found = artifact is not None
            return artifact

        try:
            inner = self._farm.submit(request, priority, on_keyed=on_keyed)
        except Exception as error:
            if self._spare is None or not self._is_broken(error):
                raise
            inner = self._retreat(error).submit(request, priority, on_keyed=on_keyed)
        flight.farm_future = inner
        inner.add_done_callback(lambda done: self._finish(flight, request, priority, done))

    def _look_up(self, key: Key) -> tuple[bytes, Artifact] | None:
        if key.kind == "kernel":
            artifact = self._kernel(key)
            return None if artifact is None else (key.digest, artifact)
        alias = self._store.get(key)
        if alias is None or len(alias.payload) != DIGEST_BYTES:
            return None
        artifact = self._kernel(alias.payload)
        return None if artifact is None else (alias.payload, artifact)

    def _kernel(self, key: Key | bytes) -> Artifact | None:
        record = self._store.get(key)
        return None if record is None else artifact_of(record, self._store, self._notices)

    def _retreat(self, error: BaseException) -> Farm:
        assert self._spare is not None
        self._notices.tell(
            "farm_broken",
            f"kernelfarm: the farm does not answer ({error}); kernels are compiled in this "
            "process, which is slower; `kernelfarm stats` shows its state",
        )
        return self._spare()

    def _finish(
        self,
        flight: _Flight,
        request: SourceRequest | CompileRequest,
        priority: Priority,
        done: Future[Any],
    ) -> None:
        """Pass a settled farm future on; runs on a thread of the farm client."""
        try:
            result: Result = done.result()
        except BaseException as error:
            if self._spare is None or not self._is_broken(error):
                self._fail(flight, error)
                return
            try:
                again = self._retreat(error).submit(request, priority)
            except Exception as second:
                self._fail(flight, second)
                return
            again.add_done_callback(lambda done: self._deliver_or_fail(flight, done))
            return
        self._deliver(flight, result)

    def _deliver_or_fail(self, flight: _Flight, done: Future[Any]) -> None:
        try:
            result: Result = done.result()
        except BaseException as error:
            self._fail(flight, error)
            return
        self._deliver(flight, result)

    def _deliver(self, flight: _Flight, result: Result) -> None:
        origin = "store" if flight.found else "joined" if result.joined else "compiled"
        times = (0.0, 0.0) if flight.found else (result.started, result.finished)
        # Queued before the future settles: whoever saves a graph next queues behind it.
        self._writer.add(lambda: self._remember(flight, result))
        self._settle(flight, Compiled(result.key, result.artifact, origin, *times))

    def _remember(self, flight: _Flight, result: Result) -> None:
        try:
            records = []
            if not flight.found:
                build_ms = round(1000 * (result.finished - result.started))
                key = Key.of("kernel", result.parts)
                if key.digest != result.key:
                    raise ValueError(f"the key of {flight.entry} is not the digest of its parts")
                records.append(Record.of(key, result.artifact.to_payload(), build_ms=build_ms))
            if flight.key.kind == "alias":
                records.append(Record.of(flight.key, result.key))
            self._store.put_many(records)
        finally:
            self._land(flight)

    def _settle(self, flight: _Flight, compiled: Compiled) -> None:
        self.tally.kernel(compiled.key, compiled.origin)
        self.tally.span(
            Span(
                flight.entry,
                flight.submitted,
                compiled.started,
                compiled.finished,
                compiled.origin,
            )
        )
        with self._lock:
            self._waiting.pop(flight.future, None)
        flight.future.set_result(compiled)

    def _fail(self, flight: _Flight, error: BaseException) -> None:
        self.tally.kernel(flight.key.digest, "failed")
        self._land(flight)
        flight.future.set_exception(error)

    def _land(self, flight: _Flight) -> None:
        """Forget a flight: the store answers from now on, or a later request tries again."""
        with self._lock:
            self._flights.pop(flight.key.digest, None)
            self._waiting.pop(flight.future, None)


def artifact_of(record: Record, store: Store, notices: Notices) -> Artifact | None:
    """Return the artifact in a kernel record; None, a notice and a counter if it is no artifact.

    The record is then rejected, so that the kernel compiled anew takes its place.
    """
    if record.kind != "kernel":
        return None
    try:
        artifact = Artifact.from_payload(record.payload)
        inspect_binary(artifact.kind, artifact.binary, artifact.metadata.name)
        return artifact
    except Exception as error:  # whatever the payload holds, a doubt is a miss
        store.reject(record.digest)
        notices.tell(
            "artifact_malformed",
            f"kernelfarm: a stored kernel cannot be read ({error}) and is compiled again",
        )
        return None
