"""Graphs from the store: host programs and, with them, every kernel that they name."""

from __future__ import annotations

from collections.abc import Sequence

import msgpack

from .cache.key import DIGEST_BYTES, Key
from .cache.record import Record
from .cache.store import Store
from .compiler.seam.request import Artifact
from .compiler.service import KeyParts, StoredGraph
from .notices import Notices
from .service import artifact_of
from .tally import Tally
from .writer import Writer


class StoredGraphs:
    """The compiler's `GraphStore`: a hit only if every kernel that the graph names is there."""

    def __init__(self, store: Store, *, writer: Writer, tally: Tally, notices: Notices) -> None:
        self._store = store
        self._writer = writer
        self._tally = tally
        self._notices = notices

    def load(self, parts: KeyParts) -> StoredGraph | None:
        """Return a graph whose every kernel is present, or None; never raises for a bad record."""
        found = self._load(parts)
        self._tally.graph("missed" if found is None else "loaded")
        if found is not None:
            for key in found.kernels:
                self._tally.kernel(key, "store")
        return found

    def save(self, parts: KeyParts, program: bytes, kernels: Sequence[bytes]) -> None:
        """Queue the publication of a graph, behind the kernels that it names."""
        named = tuple(dict.fromkeys(kernels))

        def publish() -> None:
            if not all(self._store.contains(key) for key in named):
                self._tally.graph("unpublished")
                self._notices.tell(
                    "graph_unpublished",
                    "kernelfarm: a graph was not stored, because the store does not hold all of "
                    "its kernels; the next process compiles it again",
                )
                return
            payload = msgpack.packb({"program": program, "kernels": list(named)})
            kept = self._store.put(Record.of(Key.of("graph", parts), payload))
            self._tally.graph("saved" if kept else "unpublished")

        self._writer.add(publish)

    def refuse(self, parts: KeyParts) -> None:
        """Have the next graph saved under these parts replace the stored one."""
        self._store.reject(Key.of("graph", parts))

    def _load(self, parts: KeyParts) -> StoredGraph | None:
        record = self._store.get(Key.of("graph", parts))
        if record is None:
            return None
        opened = _open_graph(record.payload)
        if opened is None:
            self._store.reject(record.digest)
            self._notices.tell(
                "graph_malformed",
                "kernelfarm: a stored graph cannot be read and is compiled again",
            )
            return None
        program, keys = opened
        records = self._store.get_many(keys)
        artifacts: dict[bytes, Artifact] = {}
        for key in keys:
            kernel = records.get(key)
            artifact = None if kernel is None else artifact_of(kernel, self._store, self._notices)
            if artifact is None:
                return None
            artifacts[key] = artifact
        return StoredGraph(program, artifacts)


def _open_graph(payload: bytes) -> tuple[bytes, tuple[bytes, ...]] | None:
    """Take a graph record's payload apart: program and kernel digests, None if malformed."""
    try:
        value = msgpack.unpackb(payload)
        program, kernels = value["program"], tuple(value["kernels"])
    except Exception:  # msgpack raises a family of errors for damaged bytes
        return None
    if not isinstance(program, bytes):
        return None
    if not all(isinstance(key, bytes) and len(key) == DIGEST_BYTES for key in kernels):
        return None
    return program, kernels
