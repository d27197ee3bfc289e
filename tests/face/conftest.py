"""Requests, artifacts and a farm that does what a test tells it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.cache.key import Key
from kernelfarm.cache.store import MemoryStore
from kernelfarm.compiler.seam.options import Options
from kernelfarm.compiler.seam.request import Artifact, CompileRequest, KernelMetadata, SourceRequest
from kernelfarm.compiler.seam.target import Target
from kernelfarm.compiler.seam.toolchain import Toolchain
from kernelfarm.graphs import StoredGraphs
from kernelfarm.inline import InlineResult
from kernelfarm.notices import Notices
from kernelfarm.service import CachedService
from kernelfarm.tally import Tally
from kernelfarm.writer import Writer

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from binaries import small_cubin

TARGET = Target.parse("h200")
TOOLCHAIN = Toolchain("content", (("compiler", "0" * 64),))
OPTIONS = Options("cuda", (("num_warps", 4),))


def source(text: str, entry: str = "kf_add") -> SourceRequest:
    """A kernel as text; nothing in these tests compiles it."""
    return SourceRequest(
        text=text,
        helper_digest="",
        entry=entry,
        signature=(("x", "*fp32"),),
        constexprs=(),
        attributes=(),
        options=OPTIONS,
        target=TARGET,
        toolchain=TOOLCHAIN,
    )


def ttir_of(request: SourceRequest) -> CompileRequest:
    """What a front half would make of it: texts that differ only in blanks are one kernel."""
    ttir = "ttir:" + "".join(request.text.split())
    return CompileRequest(ttir, request.entry, TARGET, OPTIONS, TOOLCHAIN)


def artifact(name: str = "kf_add") -> Artifact:
    """A binary that nothing loads."""
    metadata = KernelMetadata(name=name, shared=0, num_warps=4, num_ctas=1)
    return Artifact(
        binary=small_cubin(name),
        kind="cubin",
        metadata=metadata,
        registers=16,
        spills=0,
        min_driver=0,
    )


@dataclass
class FakeFarm:
    """Settles jobs when told to; ``broken`` makes it fail as a farm, ``rejects`` as a kernel."""

    jobs: list[tuple[SourceRequest | CompileRequest, Any, Future[Any]]] = field(
        default_factory=list
    )
    raised: list[tuple[Future[Any], int]] = field(default_factory=list)
    broken: Exception | None = None
    closed: bool = False

    def submit(
        self,
        request: SourceRequest | CompileRequest,
        priority: int,
        *,
        on_keyed: Callable[..., Artifact | None] | None = None,
    ) -> Future[Any]:
        """Remember the job."""
        if self.broken is not None:
            raise self.broken
        future: Future[Any] = Future()
        self.jobs.append((request, on_keyed, future))
        return future

    def settle(self, number: int = 0) -> None:
        """Compile job ``number`` as a farm would: front half, look-up, back half."""
        request, on_keyed, future = self.jobs[number]
        compiled = ttir_of(request) if isinstance(request, SourceRequest) else request
        parts = compiled.key_parts()
        key = Key.of("kernel", parts).digest
        found = None if on_keyed is None else on_keyed(key, parts)
        made = artifact(request.entry) if found is None else found
        future.set_result(InlineResult(key, parts, made, 1.0, 1.25))

    def prepare(self, target: Target, toolchain: Toolchain) -> None:
        """Be ready."""

    def raise_priority(self, futures: Sequence[Future[Any]], priority: int) -> None:
        """Remember what was raised, and how far."""
        self.raised.extend((future, priority) for future in futures)

    def stats(self) -> dict[str, Any]:
        """Count the jobs."""
        return {"jobs": len(self.jobs)}

    def close(self) -> None:
        """Remember it."""
        self.closed = True


@dataclass
class Bench:
    """A service over a store in memory and a fake farm, with everything it reports to."""

    store: MemoryStore
    farm: FakeFarm
    writer: Writer
    tally: Tally
    notices: Notices
    said: list[str]
    service: CachedService
    graphs: StoredGraphs

    def again(self) -> Bench:
        """Another process over the same store: nothing else is shared."""
        return make_bench(self.store)


def make_bench(store: MemoryStore | None = None, **service: Any) -> Bench:
    """Build one."""
    store = MemoryStore() if store is None else store
    said: list[str] = []
    notices = Notices(said.append)
    writer, tally, farm = Writer(notices), Tally(), FakeFarm()
    shared: dict[str, Any] = {"writer": writer, "tally": tally, "notices": notices}
    return Bench(
        store,
        farm,
        writer,
        tally,
        notices,
        said,
        CachedService(store, farm, **shared, **service),
        StoredGraphs(store, **shared),
    )


@pytest.fixture
def bench() -> Bench:
    """A service over a store in memory and a fake farm."""
    return make_bench()


@pytest.fixture(name="make_bench")
def _make_bench() -> Callable[..., Bench]:
    return make_bench


@pytest.fixture(name="source")
def _source() -> Callable[..., SourceRequest]:
    return source


@pytest.fixture(name="ttir_of")
def _ttir_of() -> Callable[[SourceRequest], CompileRequest]:
    return ttir_of


@pytest.fixture(name="artifact")
def _artifact() -> Callable[..., Artifact]:
    return artifact
