"""A file system in memory that can lose what a real one may lose.

`MemoryFiles` keeps two states: the *live* one, which readers see, and what is *durable*. A crash goes back to the
durable state plus a random part of what was not synced: a prefix or some pages of each file, some of the names created,
renamed and removed since their directory was last synced. Every choice comes from the seed. A sync that fails drops
what it was to write, as Linux does: it is read until the power goes, and no later sync writes it unless it is written
once more.

Each mutating step is counted. Set ``crash_at`` to a number, and that step is done in part, raises `Crash`, and so does
every step after it until `MemoryFiles.crash` has decided what survives. Running a workload once for each step shows
that it can be stopped anywhere.

Each call is counted too, reads included. Set ``fail_at`` to a number, and that call alone is refused with the error
number ``fail_with``, having changed nothing. Running a workload once for each call shows that it gets over every error.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import DiskFull, StorageError
from penstock.storage.files import Buffer, DirectoryEntry, DirectoryLock, File, disk_error

_PAGE_BYTES: Final = 512
SECTOR_BYTES: Final = 4096  # what one bad sector makes unreadable


class Crash(BaseException):
    """The power went out. Not an `Exception`, so that nothing handles it by accident."""


class _Inode:
    """The content of one file, live and durable."""

    __slots__ = ("changed_ns", "dropped", "durable", "is_cold", "live", "shared_bytes", "shortest", "unreadable")

    def __init__(self) -> None:
        self.live = bytearray()
        self.durable = b""
        self.shared_bytes = 0  # how much of both is the same for certain
        self.shortest = 0  # every length that the file had since its length was durable is at least this
        self.changed_ns = 0
        self.is_cold = False  # not read since it left the memory
        self.unreadable: set[int] = set()  # pages
        self.dropped: set[int] = (
            set()
        )  # pages that a failed sync left clean: read, but not on disk, nor on the way there

    def truncate(self, size: int) -> None:
        del self.live[size:]
        self.live.extend(bytes(size - len(self.live)))
        self.shared_bytes = min(self.shared_bytes, size)
        self.shortest = min(self.shortest, size)
        self.dropped = {page for page in self.dropped if page < size // _PAGE_BYTES}

    def extend(self, data: Buffer) -> None:
        self._make_dirty(len(self.live), len(data))
        self.live.extend(data)

    def sync(self) -> None:
        self.durable = self._without_dropped()
        self.shared_bytes = min((page * _PAGE_BYTES for page in self.dropped), default=len(self.durable))
        self.shortest = self._written_bytes()

    def _written_bytes(self) -> int:
        """The length that a sync makes durable: pages at the end that a failed one dropped may be missing for good."""
        size = len(self.live)
        while size > self.shortest and (size - 1) // _PAGE_BYTES in self.dropped:
            size = (size - 1) // _PAGE_BYTES * _PAGE_BYTES
        return max(size, min(self.shortest, len(self.live)))

    def fail_to_sync(self) -> None:
        """Do as the kernel does: give up what was to be written, and show it as if it had been."""
        self.dropped |= set(range(self.shared_bytes // _PAGE_BYTES, -(-len(self.live) // _PAGE_BYTES)))

    def _make_dirty(self, position: int, size: int) -> None:
        self.dropped -= set(range(position // _PAGE_BYTES, -(-(position + size) // _PAGE_BYTES)))

    def _without_dropped(self) -> bytes:
        kept = bytearray(self.live)
        for page in self.dropped:
            start, end = page * _PAGE_BYTES, min((page + 1) * _PAGE_BYTES, len(kept))
            kept[start:end] = self.durable[start:end].ljust(end - start, b"\0")
        return bytes(kept)

    def survive(self, rng: random.Random) -> None:
        """Lose a part of what was never synced."""
        self.live, self.dropped = bytearray(self._without_dropped()), set()
        keep = rng.choice(("everything", "nothing", "prefix", "pages"))
        if keep == "nothing":
            self.live = bytearray(self.durable)
        elif keep != "everything":
            # What was added may be missing from any byte on. Writing over bytes changes no length.
            del self.live[rng.randint(max(self.shared_bytes, self.shortest), len(self.live)) :]
            if keep == "pages":
                self._lose_pages(rng)
        self.sync()

    def patch(self, position: int, data: Buffer) -> None:
        self._make_dirty(position, len(data))
        if self.live[position : position + len(data)] != data:  # bytes written over themselves can't be torn
            self.live[position : position + len(data)] = data
            self.shared_bytes = min(self.shared_bytes, position)

    def _lose_pages(self, rng: random.Random) -> None:
        for start in range(self.shared_bytes, len(self.live), _PAGE_BYTES):
            if rng.random() < 0.5:
                end = min(start + _PAGE_BYTES, len(self.live))
                self.live[start:end] = self.durable[start:end].ljust(end - start, b"\0")


class _NameChange(NamedTuple):
    """One change to a directory: a file created, removed (no target) or renamed."""

    source: Path
    target: Path | None
    created: _Inode | None = None


class MemoryFile:
    """An open file of `MemoryFiles`."""

    def __init__(self, files: MemoryFiles, path: Path, inode: _Inode) -> None:
        self._files = files
        self._inode = inode
        self.path = path

    @property
    def size(self) -> int:
        return len(self._inode.live)

    def write(self, data: Buffer) -> None:
        inode = self._inode
        self._files.call("write", self.path)
        self._files.step(f"write {self.path.name}", lambda: inode.extend(self._files.part_of(data)))
        if not self._files.has_room(len(data)):
            raise DiskFull(f"Cannot write {self.path}: the test disk is full.")
        inode.extend(data)
        inode.changed_ns = self._files.next_ns()

    def read(self, position: int, size: int) -> bytes:
        self._files.call("read", self.path)
        data = bytes(self._inode.live[position : position + size])
        pages = range(position // SECTOR_BYTES, -(-(position + len(data)) // SECTOR_BYTES))
        if not self._inode.unreadable.isdisjoint(pages):
            raise StorageError(f"Cannot read {self.path}: the test disk has a bad sector there.")
        self._inode.is_cold = False
        self._files.bytes_read += len(data)
        return data

    def current_size(self) -> int:
        return self.size

    def sync(self) -> None:
        self._files.call("sync", self.path)
        self._files.step(f"sync {self.path.name}", self._inode.sync)
        if self._files.is_failing_syncs:
            self._inode.fail_to_sync()
            raise StorageError(f"Cannot sync {self.path}: the test disk fails.")
        self._inode.sync()

    def truncate(self, size: int) -> None:
        self._files.call("truncate", self.path)
        self._files.step(f"truncate {self.path.name}", lambda: self._inode.truncate(size))
        self._inode.truncate(size)
        self._inode.changed_ns = self._files.next_ns()

    def reserve(self, size: int) -> None:
        if size and not self._files.has_room(size - self.size):
            raise DiskFull(f"Cannot reserve room for {self.path}: the test disk is full.")

    def patch(self, position: int, data: Buffer) -> None:
        self._files.call("write", self.path)
        self._files.step(f"patch {self.path.name}", lambda: self._inode.patch(position, self._files.part_of(data)))
        self._inode.patch(position, data)
        self._inode.changed_ns = self._files.next_ns()

    def changed_ns(self) -> int:
        self._files.call("look at", self.path)
        return self._inode.changed_ns

    def stamp_ns(self) -> int:
        return self._inode.changed_ns

    def fileno(self) -> int:
        return -1

    def sync_descriptor(self) -> int:
        return -1

    def close(self) -> None:
        return

    def is_cached(self, position: int, size: int = 1) -> bool:
        del position, size
        return not self._inode.is_cold

    def let_go(self, position: int, size: int) -> None:
        del position, size


class _Locked:
    def __init__(self, locked: set[Path], path: Path) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)


class MemoryFiles:
    """A file system in memory, with faults."""

    def __init__(self, *, seed: int = 0, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.is_failing_syncs = False
        self.crash_at: int | None = None
        self.on_crash: Callable[[], None] = _ignore
        self.steps = 0
        self.fail_at: int | None = None
        self.fail_with = errno.EIO
        self.calls = 0
        self.last_call = ""
        self.bytes_read = 0
        self.last_step = ""
        self.now_ms = 0  # stamps the files that are changed from now on
        self._stamps = 0
        self._rng = random.Random(seed)
        self._has_crashed = False
        self._live: dict[Path, _Inode] = {}
        self._durable: dict[Path, _Inode] = {}
        self._unsynced: dict[Path, list[_NameChange]] = {}  # by directory
        self._directories: set[Path] = set()
        self._locked: set[Path] = set()

    # -- faults -------------------------------------------------------------------------------------------------------

    def crash(self, *, keeps_unsynced: bool = False) -> None:
        """Go back to what survives: all of it if only the process died, else what was synced and a random part."""
        self._has_crashed = False
        self.crash_at = None
        self._locked = set()
        if keeps_unsynced:
            return
        self._live = self._surviving_names()
        self._durable = dict(self._live)
        self._unsynced.clear()
        for inode in dict.fromkeys(self._live.values()):  # each once, in an order that is the same every time
            inode.survive(self._rng)

    def stop(self) -> None:
        """Take no more changes: the process is dead, whatever its code still tries."""
        self._has_crashed = True

    def successor(self, *, keeps_unsynced: bool) -> MemoryFiles:
        """The disk as the next process finds it. This one, and whatever is open on it, changes nothing any more."""
        self.stop()
        files = MemoryFiles(seed=self._rng.getrandbits(32), capacity_bytes=self.capacity_bytes)
        files.steps, files.now_ms, files._stamps = self.steps, self.now_ms, self._stamps
        files._live, files._durable, files._unsynced = self._live, self._durable, self._unsynced
        files._directories = self._directories
        files.crash(keeps_unsynced=keeps_unsynced)
        return files

    def flip_bit(self, path: Path, position: int, bit: int = 0) -> None:
        """Damage one bit, in what is live and in what is durable."""
        inode = self._live[path]
        inode.live[position] ^= 1 << bit
        inode.sync()
        inode.changed_ns = self.next_ns()

    def rot(self, path: Path, position: int, bit: int = 0) -> None:
        """Damage one bit where no file system takes part: on the disk, after the file has left the memory."""
        inode = self._live[path]
        inode.live[position] ^= 1 << bit
        inode.sync()
        inode.is_cold = True

    def break_sector(self, path: Path, position: int) -> None:
        """Let every read of the page around a position fail."""
        self._live[path].unreadable.add(position // SECTOR_BYTES)

    def mend_sectors(self, path: Path) -> None:
        """Let them be read again."""
        self._live[path].unreadable.clear()

    def paths(self) -> list[Path]:
        """All files there are, in order."""
        return sorted(self._live)

    def size(self, path: Path) -> int:
        return len(self._live[path].live)

    def step(self, name: str, do_part: Callable[[], object]) -> None:
        """Count a mutating step; crash if it is the one to crash at, with or without having done it in part."""
        self.steps += 1
        self.last_step = name
        if self._has_crashed:
            raise Crash(name)
        if self.steps == self.crash_at:
            self._has_crashed = True
            if self._rng.random() < 0.5:
                do_part()
            self.on_crash()
            raise Crash(name)

    def call(self, action: str, path: Path) -> None:
        """Count a call of the port, and refuse it if it is the one to fail."""
        self.calls += 1
        if self.calls == self.fail_at:
            self.last_call = f"{action} {path.name}"
            raise disk_error(action, path, OSError(self.fail_with, os.strerror(self.fail_with)))

    def part_of(self, data: Buffer) -> Buffer:
        """A random prefix, as a torn write leaves it."""
        return data[: self._rng.randint(0, len(data))]

    def next_ns(self) -> int:
        self._stamps += 1
        return self.now_ms * 1_000_000 + self._stamps

    def has_room(self, wanted_bytes: int) -> bool:
        return self.capacity_bytes is None or self.used_bytes + wanted_bytes <= self.capacity_bytes

    @property
    def used_bytes(self) -> int:
        return sum(len(inode.live) for inode in self._live.values())

    def _surviving_names(self) -> dict[Path, _Inode]:
        names = dict(self._durable)
        for changes in self._unsynced.values():
            is_in_order = self._rng.random() < 0.5
            kept = self._rng.randint(0, len(changes))
            lost: set[Path] = set()  # changes to one name are never reordered
            for number, change in enumerate(changes):
                touched = {change.source, change.target or change.source}
                if touched & lost or (number >= kept if is_in_order else self._rng.random() < 0.5):
                    lost |= touched
                else:
                    _apply(names, change)
        return names

    # -- the port -----------------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> File:
        self.call("open", path)
        if path not in self._live:
            if not create:
                raise StorageError(f"Cannot open {path}: there is no such file.")
            if not self.has_room(1):
                raise DiskFull(f"Cannot open {path}: the test disk is full.")
            self._change(f"create {path.name}", _NameChange(path, None, _Inode()))
        return MemoryFile(self, path, self._live[path])

    def names(self, directory: Path) -> list[str]:
        return [entry.name for entry in self.entries(directory)]

    def entries(self, directory: Path) -> list[DirectoryEntry]:
        self.call("list", directory)
        live = tuple(self._live.items())  # others may change it from their threads meanwhile
        return [DirectoryEntry(path.name, len(inode.live)) for path, inode in live if path.parent == directory]

    def directories(self, directory: Path) -> list[Path]:
        self.call("list", directory)
        return sorted(path for path in self._directories if path.parent == directory)

    def exists(self, path: Path) -> bool:
        return path in self._live or path in self._directories

    def make_directory(self, path: Path) -> None:
        self.call("create", path)
        self._directories |= {path, *path.parents}

    def rename(self, source: Path, target: Path) -> None:
        self.call("rename", source)
        if source in self._directories:
            self._rename_directory(source, target)
        elif source in self._live:
            self._change(f"rename {source.name} to {target.name}", _NameChange(source, target))
        else:
            raise StorageError(f"Cannot rename {source}: there is no such file.")

    def remove(self, path: Path) -> None:
        self.call("remove", path)
        if path in self._live:
            self._change(f"remove {path.name}", _NameChange(path, None))

    def remove_tree(self, directory: Path) -> None:
        for path in [path for path in self._live if directory in path.parents]:
            self.remove(path)
        self._directories = {path for path in self._directories if path != directory and directory not in path.parents}

    def sync_directory(self, directory: Path) -> None:
        self.call("sync", directory)
        self.step(f"sync directory {directory.name}", lambda: self._sync_names(directory))
        if self.is_failing_syncs:
            raise StorageError(f"Cannot sync {directory}: the test disk fails.")
        self._sync_names(directory)

    def free_bytes(self, directory: Path) -> int:
        del directory
        return 1 << 40 if self.capacity_bytes is None else self.capacity_bytes - self.used_bytes

    def lock(self, path: Path) -> DirectoryLock | None:
        if path in self._locked:
            return None
        self._locked.add(path)
        return _Locked(self._locked, path)

    def _change(self, name: str, change: _NameChange) -> None:
        def do() -> None:
            _apply(self._live, change)
            self._unsynced.setdefault(change.source.parent, []).append(change)

        self.step(name, do)
        do()

    def _sync_names(self, directory: Path) -> None:
        for change in self._unsynced.pop(directory, []):
            _apply(self._durable, change)

    def _rename_directory(self, source: Path, target: Path) -> None:
        # Durable at once: nothing that Penstock promises hangs on the moment at which a directory gets its name.
        for names in (self._live, self._durable):
            for path in [path for path in names if source in path.parents]:
                names[target / path.relative_to(source)] = names.pop(path)
        self._unsynced.pop(source, None)
        self._directories = {
            target / path.relative_to(source) if path == source or source in path.parents else path
            for path in self._directories
        }


def _apply(names: dict[Path, _Inode], change: _NameChange) -> None:
    if change.created is not None:
        names[change.source] = change.created
    elif change.target is None:
        names.pop(change.source, None)
    elif change.source in names:
        names[change.target] = names.pop(change.source)


def _ignore() -> None:
    return
