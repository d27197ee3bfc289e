"""What the plan remembers: compile times, results for late askers, kernels not to try again."""

from __future__ import annotations

from collections import OrderedDict, deque
from statistics import median

from .errors import Failure
from .jobs import Job


class History:
    """Compile times by kernel name, for "longest first" and the deadlines of autotuning."""

    #: Seconds per byte of request text while a name has no history: 2 KB take about 0.1 s.
    SECONDS_PER_BYTE = 5e-5

    def __init__(self, names: int = 4096) -> None:
        self._names = names
        self._seconds: OrderedDict[str, deque[float]] = OrderedDict()

    def add(self, kernel: str, seconds: float) -> None:
        """Remember one compile."""
        self._seconds.setdefault(kernel, deque(maxlen=15)).append(seconds)
        self._seconds.move_to_end(kernel)
        while len(self._seconds) > self._names:
            self._seconds.popitem(last=False)

    def median(self, kernel: str) -> float | None:
        """Return the median compile time in seconds, None for a name never seen."""
        found = self._seconds.get(kernel)
        return median(found) if found else None

    def expected(self, job: Job) -> float:
        """Return the expected compile time of a job in seconds."""
        known = self.median(job.kernel)
        return job.size * self.SECONDS_PER_BYTE if known is None else known


class Recent:
    """Stored jobs by digest with the size of their results, bounded in bytes and in age."""

    def __init__(self, max_bytes: int, max_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._found: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self.bytes = 0

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._found

    def add(self, digest: bytes, size: int, now: float) -> None:
        """Remember one result."""
        self._found[digest] = (size, now)
        self.bytes += size

    def touch(self, digest: bytes) -> None:
        """Note that a result was asked for again: others go before it."""
        self._found.move_to_end(digest)

    def trim(self, now: float) -> list[bytes]:
        """Forget what is too much or too old, least recently used first, and return it."""
        gone = []
        while self._found:
            digest, (size, at) = next(iter(self._found.items()))
            if now - at <= self._max_seconds and self.bytes <= self._max_bytes:
                break
            del self._found[digest]
            self.bytes -= size
            gone.append(digest)
        return gone


class Quarantine:
    """Requests that failed in a way that will come again; they fail at once for a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._found: dict[bytes, tuple[float, Failure]] = {}

    def add(self, digest: bytes, failure: Failure, now: float) -> None:
        """Let a request fail at once from now on."""
        self._found[digest] = (now + self._seconds, failure)

    def get(self, digest: bytes, now: float) -> Failure | None:
        """Return how the request failed, None once that is too long ago."""
        until, failure = self._found.get(digest, (0.0, None))
        return failure if now < until else None

    def trim(self, now: float) -> None:
        """Forget what is over."""
        for digest in [found for found, (until, _) in self._found.items() if now >= until]:
            del self._found[digest]
