"""The shelf: the generations of one directory, as one process sees them.

::

    <directory>/gen-00000007.134217728.mdb    newest generation; all writes go here
               /gen-00000006.134217728.mdb    ...up to ``keep`` of them; the oldest is dropped
               /large/00000007-<key>.kfr      values too long for LMDB, dropped with generation 7
               /damaged/                      files set aside, the last two
               /write.lock  files.lock        who writes; who adds or removes generations
               /BOOT                          the boot in which the files were last opened

A shelf moves bytes and raises; what is a hit, a miss or a notice is decided in `local`. Nothing
is deleted from a generation and no file grows, so a reader needs no lock: it looks from the
newest file to the oldest. A record found in the two oldest is written again to the newest.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from . import aside, atomic, generation, salvage
from .counters import Counters
from .generation import Damaged, Full, Generation, GenerationName, Trouble
from .locks import FileLock, Gate, LockTimeout

#: `Shelf.lock_timeout` unless somebody sets another.
LOCK_TIMEOUT = 5.0
#: Seconds that one damaged file may be searched for records.
SALVAGE_BUDGET = 5.0
#: A directory's mtime proves nothing about changes within the clock tick it was taken in.
_TICK_NS = 20_000_000

_BOOT = "last_boot"

Accept = Callable[[bytes, bytes], bool]
Standing = Callable[[bytes, bytes, bytes], bool]
Event = tuple[str, str]


class Shelf:
    """The generations in ``directory``, which exists, is ours, and lies on a local filesystem.

    ``quota`` bounds the bytes on disk, over ``keep`` files of equal size. Thread-safe; one shelf
    per directory and process, because LMDB forbids opening a file twice.
    """

    def __init__(self, directory: Path, quota: int, keep: int, counters: Counters) -> None:
        self.directory = directory
        self.gate: Gate = Gate()
        #: Seconds after which a put or a change of files gives up on a lock.
        self.lock_timeout = LOCK_TIMEOUT
        self._size = max(quota // keep, generation.MIN_SIZE) // generation.PAGE * generation.PAGE
        self._keep = keep
        self._counters = counters
        self._writing = FileLock(directory / "write.lock")
        self._filing = FileLock(directory / "files.lock")
        self._listing = threading.RLock()
        #: Newest first. Replaced, never changed, so that a reader may keep the tuple it took.
        self._open: tuple[Generation, ...] = ()
        #: mtime and inode of the directory when `_open` was taken from it.
        self._seen: tuple[int, int] | None = None
        self._events: list[Event] = []
        self._boot_checked = False
        #: Files set aside whose records are still to be put back.
        self._unsearched: list[Path] = []
        #: Generations that a forked child must keep mapped and never touch.
        self._untouchable: list[Generation] = []

    def read(self, wanted: Iterable[bytes], accept: Accept) -> None:
        """Offer the bytes found under each digest, newest first, until ``accept`` takes them.

        One transaction per generation. Damaged generations are set aside, their records written
        again, and what is still missing is looked for once more.
        """
        left = dict.fromkeys(wanted)
        for _ in range(2):
            broken, aged = self._read_once(left, accept)
            if aged:
                self._copy_forward(aged)
            for gen, why in broken:
                self._set_aside(gen, why)
            if not (self._put_back() or broken) or not left:
                return

    def has(self, digest: bytes) -> bool:
        """Say whether some generation holds a value under ``digest``."""
        with self.gate:
            for gen in self._current():
                with contextlib.suppress(Damaged, Trouble):
                    if gen.has(digest):
                        return True
        return False

    def write(
        self,
        items: Sequence[tuple[bytes, bytes]],
        standing: Standing,
    ) -> set[bytes]:
        """Put all items or none into the newest generation; return the digests newly kept.

        ``standing(digest, kept, offered)`` says whether what is there already stands; then that
        item is left out. Raises Full (larger than a generation), Trouble, LockTimeout, OSError.
        """
        if not os.path.exists(self.directory):  # deleted under us by a person; begin again
            self.directory.mkdir(mode=0o700, parents=True)
        with self._writing.hold(self.lock_timeout):
            for attempt in range(4):
                broken: list[tuple[Generation, Damaged]] = []
                with self.gate:
                    gens = self._writable()
                    fresh = self._without_standing(gens, dict(items), standing, broken)
                    if not fresh:
                        return set()
                    try:
                        if gens and not broken:
                            gens[0].write_many(fresh)
                            return {digest for digest, _ in fresh}
                    except Full:
                        if attempt == 3 or not self._fits(fresh):
                            raise
                    except Damaged as error:
                        broken.append((gens[0], error))
                    except Trouble:
                        self._reopen_later(gens[0])
                        raise
                    if not broken:
                        self._rotate()
                for gen, why in broken:
                    self._set_aside(gen, why)
                self._put_back()
            raise Trouble("damaged", f"{self.directory} keeps breaking")

    def scan(self, visit: Callable[[bytes, bytes], None]) -> None:
        """Show every (digest, bytes) kept, newest first, in batches so that no reader lingers."""
        with self.gate:
            for gen in self._current():
                last = b""
                with contextlib.suppress(Damaged, Trouble):
                    while keys := gen.keys(last):
                        last = keys[-1]
                        for start in range(0, len(keys), 16):
                            for digest, data in gen.read_many(keys[start : start + 16]).items():
                                visit(digest, data)

    def files(self) -> list[Path]:
        """Return the files of all generations."""
        with self.gate:
            return [path for gen in self._current() for path in gen.files()]

    def take_events(self) -> list[Event]:
        """Return what a person should hear, as (reason, text), and forget it."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Close every file once no transaction of this process is open."""
        self._boot_checked, self._seen = False, None
        with self._listing:
            gens, self._open = self._open, ()
        for gen in gens:
            self.gate.when_empty(gen.close)
        self._writing.close()
        self._filing.close()

    def forget(self, *, clean: bool) -> None:
        """In a forked child: let go of what the parent holds and open again when asked.

        ``clean``: no transaction was open at the fork, so that closing here disturbs nobody.
        """
        self.gate = Gate()
        self._listing = threading.RLock()
        self._writing.forget()
        self._filing.forget()
        if not clean:  # closing could free a reader slot that the parent reads under
            self._untouchable += self._open
            self._open = ()
        self.close()

    def _read_once(
        self, left: dict[bytes, None], accept: Accept
    ) -> tuple[list[tuple[Generation, Damaged]], list[tuple[bytes, bytes]]]:
        broken: list[tuple[Generation, Damaged]] = []
        aged: list[tuple[bytes, bytes]] = []
        with self.gate:
            for place, gen in enumerate(self._current()):
                if not left:
                    break
                try:
                    found = gen.read_many(left if len(left) == 1 else sorted(left))
                except Damaged as error:
                    broken.append((gen, error))
                    continue
                except Trouble as error:
                    self._events.append((error.reason, f"cannot read the store: {error}"))
                    self._reopen_later(gen)
                    continue
                for digest, data in found.items():
                    if accept(digest, data):
                        del left[digest]
                        if place >= max(self._keep - 2, 1):
                            aged.append((digest, data))
        return broken, aged

    def _without_standing(
        self,
        gens: tuple[Generation, ...],
        items: dict[bytes, bytes],
        standing: Standing,
        broken: list[tuple[Generation, Damaged]],
    ) -> list[tuple[bytes, bytes]]:
        for gen in gens:
            try:
                kept = gen.read_many(sorted(items))
            except Damaged as error:
                broken.append((gen, error))
                continue
            for digest, data in kept.items():
                if standing(digest, data, items[digest]):
                    del items[digest]
        return list(items.items())

    def _copy_forward(self, aged: list[tuple[bytes, bytes]]) -> None:
        # Never waits: somebody who is writing now matters more than a record's further life.
        with (
            contextlib.suppress(Full, Trouble, Damaged, LockTimeout, OSError),
            self._writing.hold(0.0),
            self.gate,
        ):
            gens = self._writable()
            there = gens[0].read_many([digest for digest, _ in aged])
            moved = [(digest, data) for digest, data in aged if digest not in there]
            gens[0].write_many(moved)
            self._counters.add("copied_forward", len(moved))

    def _current(self, *, fresh: bool = False) -> tuple[Generation, ...]:
        """Return the open generations, after a look at the directory for changes."""
        try:
            status = os.stat(self.directory)
        except FileNotFoundError:
            self._replace(())
            return ()
        seen = (status.st_mtime_ns, status.st_ino)
        if seen == self._seen and not fresh:
            return self._open
        with self._listing:
            names = generation.listed(self.directory)
            if names != [gen.name for gen in self._open] or not self._boot_checked:
                with contextlib.suppress(LockTimeout), self._filing.hold(self.lock_timeout):
                    self._doubt_last_boot()
                    self._reopen(generation.listed(self.directory))
            settled = time.time_ns() - status.st_mtime_ns > _TICK_NS
            self._seen = seen if settled else None
        return self._open

    def _writable(self) -> tuple[Generation, ...]:
        """Return the open generations if the newest one is among them or there is none yet."""
        gens = self._current(fresh=True)
        names = generation.listed(self.directory)
        if names and (not gens or gens[0].name != names[0]):
            # A new generation instead would push out the oldest, for no fault of any file.
            raise Trouble("storage", f"{self.directory / str(names[0])} cannot be opened now")
        return gens

    def _reopen(self, names: list[GenerationName]) -> None:
        held = {gen.name: gen for gen in self._open}
        gens: list[Generation] = []
        for name in names:
            gen = held.get(name)
            if gen is None:
                try:
                    gen = Generation(self.directory, name)
                except Damaged as error:
                    self._move_aside(name, error)
                    continue
                except (Trouble, OSError) as error:
                    self._events.append(("storage", f"cannot open {name}: {error}"))
                    continue
            gens.append(gen)
        self._replace(tuple(gens))

    def _replace(self, gens: tuple[Generation, ...]) -> None:
        gone = [gen for gen in self._open if gen not in gens]
        self._open = gens
        for gen in gone:
            # We are inside the gate ourselves, so this waits at least until we leave.
            self.gate.when_empty(gen.close)

    def _reopen_later(self, gen: Generation) -> None:
        # LMDB refuses all further work after some failures until the file is opened again.
        with self._listing:
            self._replace(tuple(other for other in self._open if other is not gen))
            self._seen = None

    def _fits(self, items: Sequence[tuple[bytes, bytes]]) -> bool:
        inline = generation.max_inline(self._size)
        return generation.room_for(items, inline) < self._size - inline - 16 * generation.PAGE

    def _rotate(self) -> None:
        with self._listing, self._filing.hold(self.lock_timeout):
            os.makedirs(self.directory / "large", mode=0o700, exist_ok=True)
            atomic.sweep(self.directory)
            atomic.sweep(self.directory / "large")
            names = generation.listed(self.directory)
            number = max(names[0].number if names else 0, aside.highest_number(self.directory)) + 1
            name = GenerationName(number, self._size)
            generation.create(self.directory, name)
            if names:
                self._counters.add("rotations")
            room = max(self._keep - len(aside.files(self.directory)), 2)
            for old in [name, *names][room:]:
                self._drop(old)
            for gen in self._open:
                gen.drop_dead_readers()
            self._reopen(generation.listed(self.directory))

    def _drop(self, name: GenerationName) -> None:
        path = self.directory / str(name)
        for file in (path, Path(f"{path}-lock"), *generation.beside(self.directory, name)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file)

    def _doubt_last_boot(self) -> None:
        if not self._boot_checked:
            for name in aside.doubtful_since_boot(self.directory):
                self._move_aside(name, Damaged(_BOOT, "the machine went down after it was written"))
            self._boot_checked = True

    def _set_aside(self, gen: Generation, why: Damaged) -> None:
        """Take a damaged generation out of use, unless another process did already."""
        try:
            with (
                self._writing.hold(self.lock_timeout),
                self._listing,
                self._filing.hold(self.lock_timeout),
            ):
                self._replace(tuple(other for other in self._open if other is not gen))
                self._seen = None
                if gen.is_in_place():
                    self._move_aside(gen.name, why)
        except (LockTimeout, OSError) as error:
            self._events.append(("storage", f"cannot set {gen.path} aside: {error}"))

    def _move_aside(self, name: GenerationName, why: Damaged) -> None:
        target = aside.move(self.directory, name)
        self._unsearched.append(target)
        if why.reason != _BOOT:
            self._counters.add("damaged")
            self._events.append(
                (
                    f"damaged {name}",
                    f"store file {self.directory / str(name)} is damaged ({why}); it was set aside"
                    f" as {target}, whatever verifies in it is kept, the rest is compiled again",
                )
            )

    def _put_back(self) -> bool:
        """Write the sound records of files set aside again; True if there were any files."""
        searched = False
        while self._unsearched:
            path = self._unsearched.pop()
            searched = True
            try:
                self._put_back_from(path)
            except (Full, Trouble, LockTimeout, OSError) as error:
                self._events.append(("storage", f"cannot search {path} for records: {error}"))
        if searched:
            with contextlib.suppress(OSError):
                aside.prune(self.directory, self._unsearched)
        return searched

    def _put_back_from(self, path: Path) -> None:
        batch: list[tuple[bytes, bytes]] = []
        for record, data in salvage.records_in(path, SALVAGE_BUDGET):
            batch.append((record.digest, data))
            if len(batch) == 64:
                self._put_back_batch(batch)
                batch = []
        name = GenerationName.parse(path.name.rpartition(".")[0])
        for long in generation.beside(self.directory, name) if name else ():
            for record, data in salvage.records_in(long, SALVAGE_BUDGET):
                self._put_back_batch([(record.digest, data)])
            os.unlink(long)
        self._put_back_batch(batch)

    def _put_back_batch(self, batch: list[tuple[bytes, bytes]]) -> None:
        if batch:
            kept = self.write(batch, lambda digest, kept, offered: salvage.verifies(kept))
            self._counters.add("salvaged", len(kept))
