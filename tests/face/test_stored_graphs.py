"""The graph store over the record store."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest

from kernelfarm.cache.key import Key
from kernelfarm.cache.record import Record

PARTS = (("graph", b"canonical text"), ("knob.interpret", b"False"))


@pytest.fixture
def kernel(bench, source):
    """One kernel in the store; its key digest."""
    future = bench.service.submit(source("def kf_add(x): pass"))
    bench.farm.settle()
    assert bench.writer.flush()
    return future.result(5).key


def test_a_saved_graph_comes_back_with_all_its_kernels(bench, kernel, artifact):
    """A load after a save gives the program's bytes and every artifact it names."""
    bench.graphs.save(PARTS, b"program", [kernel, kernel])
    bench.writer.flush()
    other = bench.again()
    found = other.graphs.load(PARTS)
    assert found is not None
    assert (found.program, dict(found.kernels)) == (b"program", {kernel: artifact()})
    assert other.tally.kernels() == {"distinct": 1, "compiled": 0, "from_store": 1, "failed": 0}
    assert other.tally.graphs()["loaded"] == 1


def test_a_graph_saved_right_after_its_kernels_settle_is_published_after_them(bench, source):
    """Saving needs no waiting: the queue keeps kernels before the graph that names them."""
    future = bench.service.submit(source("def kf_add(x): pass"))
    bench.farm.settle()
    bench.graphs.save(PARTS, b"program", [future.result(5).key])
    bench.writer.flush()
    assert bench.tally.graphs()["saved"] == 1


def test_a_graph_is_not_published_without_its_kernels(bench):
    """A graph that names a kernel that the store does not hold stays unpublished, with a notice."""
    bench.graphs.save(PARTS, b"program", [b"\x01" * 32])
    bench.writer.flush()
    assert bench.graphs.load(PARTS) is None
    assert bench.tally.graphs()["unpublished"] == 1
    assert len(bench.said) == 1


def test_a_graph_with_a_missing_kernel_is_a_miss(bench, kernel):
    """A graph whose kernel has gone since is compiled again."""
    payload = msgpack.packb({"program": b"program", "kernels": [kernel, b"\x02" * 32]})
    bench.store.put(Record.of(Key.of("graph", PARTS), payload))
    assert bench.graphs.load(PARTS) is None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgpack.packb([1, 2]),
        msgpack.packb({"program": b""}),
        msgpack.packb({"program": "text", "kernels": []}),
        msgpack.packb({"program": b"", "kernels": [b"short"]}),
        msgpack.packb({"program": b"", "kernels": 3}),
    ],
)
def test_a_malformed_graph_record_is_a_miss(bench, payload):
    """Whatever a graph record's payload holds, loading it never raises."""
    bench.store.put(Record.of(Key.of("graph", PARTS), payload))
    assert bench.graphs.load(PARTS) is None
    assert bench.notices.counts() == {"graph_malformed": 1}


def test_a_malformed_graph_record_is_replaced_by_the_next_save(bench, kernel):
    """What cannot be read does not keep its place: the graph compiled anew is kept and found."""
    bench.store.put(Record.of(Key.of("graph", PARTS), b"planted"))
    assert bench.graphs.load(PARTS) is None
    bench.graphs.save(PARTS, b"program", [kernel])
    bench.writer.flush()
    assert bench.graphs.load(PARTS).program == b"program"


def test_a_refused_graph_is_replaced_by_the_next_save(bench, kernel):
    """A program that its reader refused is a miss until another is saved."""
    bench.graphs.save(PARTS, b"planted", [kernel])
    bench.writer.flush()
    bench.graphs.refuse(PARTS)
    assert bench.graphs.load(PARTS) is None
    bench.graphs.save(PARTS, b"program", [kernel])
    bench.writer.flush()
    assert bench.graphs.load(PARTS).program == b"program"


@pytest.mark.parametrize("spoil", ["not an artifact", "cut short", "another kernel"])
def test_a_stored_kernel_that_is_none_is_compiled_again_and_replaced(bench, source, spoil):
    """A kernel record with sound checksums and no fit binary is a miss, and the farm's is kept."""
    request = source("def kf_add(x): pass")
    future = bench.service.submit(request)
    bench.farm.settle()
    bench.writer.flush()
    compiled = future.result(5)
    record = bench.store.get(compiled.key)
    good = compiled.artifact
    payload = {
        "not an artifact": b"rubbish",
        "cut short": replace(good, binary=good.binary[:-9]).to_payload(),
        "another kernel": replace(
            good, metadata=replace(good.metadata, name="kf_other")
        ).to_payload(),
    }[spoil]
    bench.store.reject(compiled.key)
    assert bench.store.put(replace(record, payload=payload))
    again = bench.service.submit(request)
    bench.farm.settle(1)
    bench.writer.flush()
    assert again.result(5).artifact == good
    assert bench.store.get(compiled.key).payload == good.to_payload()


def test_other_parts_are_another_graph(bench, kernel):
    """One changed part makes a miss."""
    bench.graphs.save(PARTS, b"program", [kernel])
    bench.writer.flush()
    assert bench.graphs.load((("graph", b"canonical text"), ("knob.interpret", b"True"))) is None
