"""The kernel service over store and farm."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from kernelfarm.cache.key import Key
from kernelfarm.cache.record import Record
from kernelfarm.compiler.service import Priority
from kernelfarm.inline import InlineResult
from kernelfarm.notices import Notices
from kernelfarm.writer import Writer

ADD = "@triton.jit\ndef kf_add(x): pass"


def test_a_new_kernel_goes_to_the_farm_and_its_future_carries_key_and_artifact(
    bench, source, ttir_of, artifact
):
    """A miss is one farm job; the future settles with the kernel's key, artifact and times."""
    future = bench.service.submit(source(ADD))
    assert not future.done()
    bench.farm.settle()
    compiled = future.result(5)
    assert compiled.key == Key.of("kernel", ttir_of(source(ADD)).key_parts()).digest
    assert compiled.artifact == artifact()
    assert (compiled.origin, compiled.started, compiled.finished) == ("compiled", 1.0, 1.25)


def test_equal_requests_in_flight_are_one_job(bench, source):
    """A second submit of an equal request while the first is under way returns the same future."""
    first, second = bench.service.submit(source(ADD)), bench.service.submit(source(ADD))
    assert first is second
    assert len(bench.farm.jobs) == 1


def test_a_second_process_compiles_nothing(bench, source):
    """Kernel and alias are stored, so that another process with that store asks no farm."""
    future = bench.service.submit(source(ADD))
    bench.farm.settle()
    expected = future.result(5)
    assert bench.writer.flush()

    other = bench.again()
    again = other.service.submit(source(ADD)).result(5)
    assert (again.key, again.artifact, again.origin) == (expected.key, expected.artifact, "store")
    assert other.farm.jobs == []
    assert other.tally.kernels() == {"distinct": 1, "compiled": 0, "from_store": 1, "failed": 0}


def test_another_text_of_the_same_kernel_stops_after_the_front_half(bench, source):
    """Text that becomes TTIR that is stored costs a front half, no compile, and gets an alias."""
    bench.service.submit(source(ADD))
    bench.farm.settle()
    bench.writer.flush()

    other = bench.again()
    respelled = source(ADD + "  ")
    future = other.service.submit(respelled)
    other.farm.settle()
    assert future.result(5).origin == "store"
    other.writer.flush()
    third = bench.again()
    assert third.service.submit(respelled).result(5).origin == "store"
    assert third.farm.jobs == []


def test_a_compile_request_is_looked_up_by_its_kernel_key(bench, source, ttir_of):
    """TTIR needs no alias: it finds what the same kernel's text has stored."""
    bench.service.submit(source(ADD))
    bench.farm.settle()
    bench.writer.flush()
    found = bench.again().service.submit(ttir_of(source(ADD))).result(5)
    assert found.origin == "store"


def test_a_rejected_kernel_fails_its_future_only_and_is_tried_again_later(bench, source):
    """A kernel's own error reaches its future unchanged; the next submit is a new job."""
    future = bench.service.submit(source(ADD))
    bench.farm.jobs[0][2].set_exception(ValueError("ptxas: kf_add uses too much shared memory"))
    with pytest.raises(ValueError, match="kf_add uses too much"):
        future.result(5)
    assert bench.tally.kernels()["failed"] == 1
    bench.service.submit(source(ADD))
    assert len(bench.farm.jobs) == 2


def test_a_broken_farm_is_replaced_by_the_spare_with_one_notice(make_bench, source):
    """When the farm itself fails, early or late, the spare compiles and a person hears once."""
    spare = make_bench().farm
    bench = make_bench(
        spare=lambda: spare, is_broken=lambda error: isinstance(error, ConnectionError)
    )
    late = bench.service.submit(source(ADD))
    bench.farm.jobs[0][2].set_exception(ConnectionResetError("the broker is gone"))
    bench.farm.broken = ConnectionRefusedError("no broker")
    early = bench.service.submit(source("def kf_mul(x): pass", "kf_mul"))
    spare.settle(0)
    spare.settle(1)
    assert late.result(5).artifact.metadata.name == "kf_add"
    assert early.result(5).artifact.metadata.name == "kf_mul"
    assert len(bench.said) == 1
    assert "compiled in this process" in bench.said[0]
    assert bench.notices.counts() == {"farm_broken": 2}


def test_a_submit_that_raises_settles_its_future(bench, source):
    """An exception of the farm's submit is the future's, never the tracer's."""
    bench.farm.broken = RuntimeError("out of file descriptors")
    future = bench.service.submit(source(ADD))
    with pytest.raises(RuntimeError, match="file descriptors"):
        future.result(5)


def test_wanted_raises_the_farm_job_of_an_unsettled_kernel(bench, source):
    """Raising priority reaches the farm's own futures; settled and foreign ones are ignored."""
    first = bench.service.submit(source(ADD))
    second = bench.service.submit(source("def kf_mul(x): pass", "kf_mul"))
    bench.farm.settle(0)
    bench.service.wanted([first, second, Future()])
    assert bench.farm.raised == [(bench.farm.jobs[1][2], Priority.WAITING)]


def test_a_join_by_a_waiting_caller_raises_the_job(bench, source):
    """A waiting caller that joins a job takes it along to its own priority."""
    bench.service.submit(source(ADD), Priority.SPECULATIVE)
    bench.service.submit(source(ADD), Priority.WAITING)
    assert bench.farm.raised == [(bench.farm.jobs[0][2], Priority.WAITING)]


def test_a_stored_kernel_that_cannot_be_read_is_compiled_again(bench, source, ttir_of):
    """A record with a valid checksum and a meaningless payload is a miss with one notice."""
    key = Key.of("kernel", ttir_of(source(ADD)).key_parts())
    bench.store.put(Record.of(key, b"no artifact"))
    future = bench.service.submit(ttir_of(source(ADD)))
    bench.farm.settle()
    assert future.result(5).origin == "compiled"
    assert bench.notices.counts()["artifact_malformed"] >= 1


def test_an_alias_without_its_kernel_is_a_miss(bench, source):
    """An alias whose kernel was evicted leads to the farm."""
    alias = Key.of("alias", source(ADD).key_parts())
    bench.store.put(Record.of(alias, b"\x01" * 32))
    bench.service.submit(source(ADD))
    assert len(bench.farm.jobs) == 1


def test_a_failing_store_fails_no_compile(bench, source, monkeypatch):
    """A put that raises is a counter and a notice; the kernel is delivered."""

    def refuse(records):
        raise OSError("disk full")

    monkeypatch.setattr(bench.store, "put_many", refuse)
    future = bench.service.submit(source(ADD))
    bench.farm.settle()
    assert future.result(5).origin == "compiled"
    assert bench.writer.flush()
    assert bench.notices.counts() == {"write_failed": 1}
    bench.service.submit(source(ADD))
    assert len(bench.farm.jobs) == 2, "what could not be stored must not stay in flight"


def test_a_submit_leaves_all_work_to_the_desk(make_bench, source):
    """The caller's thread asks neither store nor farm; what it spent is counted (`submit.py`)."""

    waiting: list[Callable[[], None]] = []

    class Desk:
        def add(self, act: Callable[[], None]) -> None:
            waiting.append(act)

    bench = make_bench(desk=Desk())
    before = dict(bench.store.stats())
    future = bench.service.submit(source(ADD))
    assert bench.store.stats() == before and not bench.farm.jobs
    assert bench.service.stats()["submit_us"]["count"] == 1
    for act in waiting:
        act()
    assert len(bench.farm.jobs) == 1 and not future.done()


def test_a_key_that_is_not_the_digest_of_its_parts_is_not_stored(bench, source, artifact):
    """A farm that answers with another key than its parts' stores nothing and is told about."""
    future = bench.service.submit(source(ADD))
    _, _, inner = bench.farm.jobs[0]
    made = InlineResult(b"\x07" * 32, (("ttir", b"x"),), artifact(), 1.0, 2.0)
    inner.set_result(made)
    future.result(5)
    bench.writer.flush()
    assert bench.store.inventory().records == {}
    assert bench.notices.counts() == {"write_failed": 1}


def test_a_desk_takes_requests_up_and_passes_outcomes_on(make_bench, source):
    """With a desk a submit is a hand-over: equal requests are one job, errors are the future's."""
    desk = Writer(Notices(), "desk")
    bench = make_bench(desk=desk)
    first, second = bench.service.submit(source(ADD)), bench.service.submit(source(ADD))
    bench.service.wanted([second])
    assert desk.flush(5)
    assert len(bench.farm.jobs) == 1
    assert bench.farm.raised[-1] == (bench.farm.jobs[0][2], Priority.WAITING)
    bench.farm.settle()
    assert first.result(5).key == second.result(5).key
    bench.farm.broken = RuntimeError("out of file descriptors")
    late = bench.service.submit(source("def kf_mul(x): pass", "kf_mul"))
    assert isinstance(late.exception(5), RuntimeError)
    assert bench.service.drain(5)


def test_a_closed_writer_keeps_no_thread_and_starts_anew():
    """Closing runs what is queued and ends the thread; a task after that is run all the same."""
    writer = Writer(Notices(), "a-writer-of-this-test")
    ran: list[int] = []

    def alive() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == "a-writer-of-this-test"]

    writer.add(lambda: ran.append(1))
    (thread,) = alive()
    writer.close()
    thread.join(5)
    assert ran == [1] and alive() == []
    writer.add(lambda: ran.append(2))
    assert writer.flush(5) and ran == [1, 2]
    writer.close()
