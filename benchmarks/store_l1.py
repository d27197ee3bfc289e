"""What the local store costs: one JSON line per figure, times of this machine under this load.

    python benchmarks/store_l1.py [--directory DIR] [--records N]

The bars are of the design: a get with verification and decompression at most 40 us at the median,
opening and the first get at most 3 ms in a fresh process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kernelfarm.cache.key import Key
from kernelfarm.cache.opening import open_store
from kernelfarm.cache.record import Record

# A process that reaches the store has loaded these already: torch, and the face before it.
FRESH = """
import collections.abc, contextlib, dataclasses, hashlib, pathlib, platform, random, re, sys
import threading, time, typing, warnings, weakref
begin = time.perf_counter()
from kernelfarm.cache.opening import open_store
imported = time.perf_counter()
store = open_store(pathlib.Path(sys.argv[1]))
opened = time.perf_counter()
assert store.get(bytes.fromhex(sys.argv[2])) is not None
print(imported - begin, opened - imported, time.perf_counter() - opened)
"""


def main() -> None:
    """Fill a store with records the size of real kernels and time every operation on it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, help="a directory on the disk to measure")
    parser.add_argument("--records", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as place:
        measure(Path(place) / "store", options.records)


def measure(place: Path, count: int) -> None:
    """Print every figure for a store of ``count`` records at ``place``."""
    records = [kernel(n) for n in range(count)]
    keys = [key_of(n) for n in range(count)]
    absent = [key_of(n) for n in range(count, 2 * count)]
    store = open_store(place, parsed_bytes=0)
    report("l1_put", each(store.put, records))
    report("l1_get", each(store.get, keys), bar_us=40.0)
    report("l1_get_by_digest", each(store.get, [key.digest for key in keys]), bar_us=40.0)
    report("l1_miss", each(store.get, absent))
    report("l1_contains", each(store.contains, keys))
    some = [keys[n : n + 500] for n in range(0, count, 500)]
    report("l1_get_many_500", each(store.get_many, some))
    store.close()
    parsed = open_store(place)
    parsed.get_many(keys)
    report("l0_get", each(parsed.get, keys))
    parsed.close()
    fresh(place, keys[0])  # leaves bytecode behind, as an installation does
    parts = [fresh(place, keys[n % count]) for n in range(15)]
    names = ("fresh_import", "fresh_open", "fresh_first_get")
    for name, times in zip(names, zip(*parts, strict=True), strict=True):
        report(name, list(times))
    report("fresh_open_and_first_get", [part[1] + part[2] for part in parts], bar_us=3000.0)
    report("fresh_import_open_and_first_get", [sum(part) for part in parts])


def key_of(number: int) -> Key:
    """A key with parts like a kernel's: a long text and some thirty short ones."""
    parts = [("ttir", f"module @k{number} {{}}\n".encode() * 200)]
    parts += [(f"option{n}", b"%d" % (n * number)) for n in range(30)]
    return Key.of("kernel", parts)


def kernel(number: int) -> Record:
    """A record of a real kernel's median size and compressibility: 35 KB, four to one."""
    rng = random.Random(number)
    noise = rng.randbytes(8000)
    return Record.of(key_of(number), noise + noise[:2000] * 13, build_ms=200)


def each(act: Callable[..., object], arguments: Iterable[object]) -> list[float]:
    """Time ``act`` on each argument, in seconds."""
    times = []
    for argument in arguments:
        begin = time.perf_counter()
        act(argument)
        times.append(time.perf_counter() - begin)
    return times


def fresh(place: Path, key: Key) -> list[float]:
    """Time import, open and first get in a new process, in seconds."""
    child = subprocess.run(
        [sys.executable, "-c", FRESH, str(place), key.digest.hex()],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
        env={
            **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPYCACHEPREFIX": str(place.parent / "bytecode"),
        },
    )
    return [float(word) for word in child.stdout.split()]


def report(name: str, times: list[float], bar_us: float | None = None) -> None:
    """Print one figure: median and 99th percentile in microseconds, and the bar if there is one."""
    ordered = sorted(times)
    figure: dict[str, object] = {
        "figure": name,
        "p50_us": round(statistics.median(ordered) * 1e6, 1),
        "p99_us": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e6, 1),
        "count": len(ordered),
    }
    if bar_us is not None:
        figure["bar_us"] = bar_us
        figure["kept"] = statistics.median(ordered) * 1e6 <= bar_us
    print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
