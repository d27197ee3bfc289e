"""What the cluster plan remembers: holders, usual times, and what is due when."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Held:
    """A key's holders, and what is needed to have it compiled once more.

    ``toolchain`` is empty where nobody asked, so that no request is kept.
    """

    toolchain: bytes
    priority: int
    expected: float
    size: int
    refetches: int
    used: float
    #: The holder that said so last; the others may be expected ones.
    sure: str = ""
    #: Holder -> since when it has it, as far as is known.
    holders: dict[str, float] = field(default_factory=dict)
    #: When all that are expected have it.
    ready: float = 0.0


class Holdings:
    """Finished keys, bounded in number, in bytes of their requests and in age."""

    #: Holders that are remembered of one key: enough that none of them is asked by all.
    HOLDERS = 8

    def __init__(self, max_keys: int, max_bytes: int, max_seconds: float) -> None:
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        #: The least recently used first.
        self._found: OrderedDict[bytes, Held] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, key: bytes) -> bool:
        return key in self._found

    def get(self, key: bytes) -> Held | None:
        """Return what is known of a key."""
        return self._found.get(key)

    def use(self, key: bytes, now: float) -> None:
        """Note that a key was asked for: others go before it."""
        self._found[key].used = now
        self._found.move_to_end(key)

    def add(self, key: bytes, held: Held) -> None:
        """Remember a key that is not known."""
        self._found[key] = held
        self.bytes += held.size

    def describe(self, key: bytes, toolchain: bytes, size: int) -> None:
        """Note the request of a key that was finished before anybody asked for it."""
        held = self._found[key]
        if not held.toolchain:
            held.toolchain = toolchain
            self.bytes += size - held.size
            held.size = size

    def add_holder(self, key: bytes, holder: str, since: float) -> None:
        """Remember one more holder of a key that is known; the oldest beyond a few is dropped."""
        held = self._found[key]
        held.sure = holder
        held.holders[holder] = since
        if len(held.holders) > self.HOLDERS:
            del held.holders[next(iter(held.holders))]

    def pop(self, key: bytes) -> Held:
        """Forget a key and return what was known of it."""
        held = self._found.pop(key)
        self.bytes -= held.size
        return held

    def trim(self, now: float) -> list[bytes]:
        """Forget what is too much or too old and return the keys."""
        gone = []
        while self._found:
            key, held = next(iter(self._found.items()))
            if (
                now - held.used <= self._max_seconds
                and len(self._found) <= self._max_keys
                and self.bytes <= self._max_bytes
            ):
                break
            self.pop(key)
            gone.append(key)
        return gone


class Usual:
    """The 95th percentile of the last times from assignment to result, in seconds."""

    def __init__(self, window: int = 512) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._window = window

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, seconds: float) -> None:
        """Take one more; the oldest beyond the window is dropped."""
        self._latest.append(seconds)
        insort(self._sorted, seconds)
        if len(self._latest) > self._window:
            oldest = self._latest.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]

    def p95(self) -> float:
        """Return the time that 95 of 100 took at most; needs at least one."""
        return self._sorted[-(-len(self._sorted) * 95 // 100) - 1]


class Timers:
    """What to call when; nothing is ever taken out, so what is called must see if it is due."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._number = 0

    def add(self, at: float, what: Callable[..., None], *whom: object) -> None:
        """Call ``what(*whom)`` at the first ``run`` from a time on."""
        self._number += 1
        heapq.heappush(self._heap, (at, self._number, what, whom))

    def next(self) -> float:
        """Return the earliest time; there must be one."""
        return self._heap[0][0]

    def run(self, now: float) -> None:
        """Call all that is due."""
        while self._heap and self._heap[0][0] <= now:
            _, _, what, whom = heapq.heappop(self._heap)
            what(*whom)
