"""The composition root: who gets which store and which farm.

Everything advisory is allowed to fail here: a store that cannot be opened becomes one in memory,
a farm that cannot be started becomes this process; each with one notice and a counter.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .cache.errors import CacheError
from .cache.filesystem import default_directory
from .cache.store import MemoryStore, Store
from .compiler.seam.target import Target
from .compiler.seam.toolchain import Toolchain, current_toolchain
from .contract import Farm
from .farm.errors import FarmClosed, FarmUnavailable, UnsafeDirectory, WireMismatch
from .graphs import StoredGraphs
from .inline import InlineFarm
from .knobs import Knobs
from .notices import Notices
from .service import CachedService
from .tally import Tally
from .writer import Writer

#: Failures of the farm itself; any other error is the kernel's own and is passed on.
BROKEN_FARM = (FarmUnavailable, UnsafeDirectory, WireMismatch, FarmClosed, ConnectionError)


@dataclass(frozen=True, slots=True)
class Session:
    """What compiling for one target needs, and the tally of what happened."""

    target: Target
    toolchain: Toolchain
    service: CachedService
    graphs: StoredGraphs
    tally: Tally


class World:
    """One process's store, farm and writer under one set of knobs."""

    def __init__(self, knobs: Knobs, notices: Notices, store: Store, farm: Farm) -> None:
        self.knobs = knobs
        self.notices = notices
        self.store = store
        self.farm = farm
        self.writer = Writer(notices)
        self.desk = Writer(notices, "kernelfarm-desk")
        self._lock = threading.Lock()
        self._spare: InlineFarm | None = None
        self._services: dict[Tally, tuple[CachedService, StoredGraphs]] = {}

    def session(self, target: Target, tally: Tally | None = None) -> Session:
        """Return the services for one target; raises ToolchainError when triton is missing.

        Sessions with one tally share their service, so that equal kernels of all their graphs
        are one job. The toolchain is identified anew, since the environment is part of it.
        """
        tally = Tally() if tally is None else tally
        with self._lock:
            services = self._services.get(tally)
            if services is None:
                services = self._services[tally] = self._build(tally)
        toolchain = current_toolchain(target, identity=self.knobs.identity)
        self.farm.prepare(target, toolchain)
        # Starts the desk's thread and touches the store's pages, ahead of the first kernel.
        self.desk.add(lambda: services[0].get_ready(toolchain))
        return Session(target, toolchain, *services, tally)

    def store_place(self) -> str:
        """Say where records are kept: a directory, or "memory"."""
        if isinstance(self.store, MemoryStore):
            return "memory"
        if self.knobs.store is not None:
            return os.path.abspath(self.knobs.store)
        return str(default_directory(os.environ)[0])

    def farm_place(self) -> str:
        """Say where kernels are compiled: "farm" or "in this process"."""
        alone = isinstance(self.farm, InlineFarm) or self._spare is not None
        return "in this process" if alone else "farm"

    def close(self) -> None:
        """Write what is left to write, then let go of farm and store; may be called twice."""
        self.desk.close()
        self.writer.close()
        self.farm.close()
        self.store.close()

    def _build(self, tally: Tally) -> tuple[CachedService, StoredGraphs]:
        shared: dict[str, Any] = {
            "writer": self.writer,
            "tally": tally,
            "notices": self.notices,
        }
        service = CachedService(
            self.store,
            self.farm,
            desk=self.desk,
            spare=self._spare_farm,
            is_broken=lambda error: isinstance(error, BROKEN_FARM),
            **shared,
        )
        return service, StoredGraphs(self.store, **shared)

    def _spare_farm(self) -> InlineFarm:
        with self._lock:
            if self._spare is None:
                self._spare = InlineFarm()
            return self._spare


def compose(knobs: Knobs, notices: Notices | None = None, *, demand_store: bool = False) -> World:
    """Build a world from knobs.

    With ``demand_store`` an unusable store directory raises its `StoreUnusable`, as a command
    wants; otherwise a store in memory takes its place, as a training job wants.
    """
    notices = Notices() if notices is None else notices
    return World(knobs, notices, _store(knobs, notices, demand_store), _farm(knobs, notices))


def _store(knobs: Knobs, notices: Notices, demand: bool) -> Store:
    from .cache.opening import open_store

    try:
        return open_store(knobs.store, quota_bytes=knobs.store_bytes, notice=notices.say)
    except (CacheError, OSError) as error:
        if demand:
            raise
        notices.tell(
            "store_unusable",
            f"kernelfarm: {error}; this process keeps its kernels in memory only",
        )
        return MemoryStore(notice=notices.say)


def _farm(knobs: Knobs, notices: Notices) -> Farm:
    if not knobs.farm:
        return InlineFarm()
    from .farm.client import FarmClient

    try:
        return FarmClient(socket_dir=knobs.farm_dir, notice=notices.say)
    except (*BROKEN_FARM, OSError) as error:
        notices.tell(
            "farm_broken",
            f"kernelfarm: no farm ({error}); kernels are compiled in this process, which is slower",
        )
        return InlineFarm()


_LOCK = threading.Lock()
#: This process's worlds by what makes them differ; a forked child builds its own.
_WORLDS: dict[tuple[Any, ...], World] = {}


def shared_world(knobs: Knobs, build: Callable[[Knobs], World] = compose) -> World:
    """Return this process's world for these knobs, built on first use."""
    names = ("store", "store_bytes", "identity", "farm", "farm_dir")
    wanted = (os.getpid(), *(getattr(knobs, name) for name in names))
    with _LOCK:
        world = _WORLDS.get(wanted)
        if world is None:
            world = _WORLDS[wanted] = build(knobs)
        return world


def _after_fork() -> None:
    """In a forked child: nobody holds the lock any more. The parent's worlds stay referenced:
    taking them down would touch what they share with the parent."""
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
