"""A node's disk in simulation: files in memory, and syncs that take virtual time.

A process that is killed leaves what it wrote to its kernel; a power cut takes what was never synced. A sync does what
it does at a moment somewhere between when it was asked for and when its end is told, so that a crash may come on
either side of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from penstock.errors import LogFailed
from penstock.storage.commit import Synced
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles

_USUAL_S: Final = 0.002


@dataclass(slots=True)
class Spindle:
    """How fast a disk syncs."""

    sync_max_s: float = _USUAL_S


class SimulatedDisk:
    """What is under a node's data directory, through all lives of the node."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.spindle = Spindle()
        self.files = MemoryFiles(seed=random.getrandbits(32))

    def survive(self, *, keeps_unsynced: bool) -> None:
        """The process is dead. What it had open changes nothing any more; what is left is for the next one."""
        self.files = self.files.successor(keeps_unsynced=keeps_unsynced)
        self.files.capacity_bytes = None

    def wipe(self) -> None:
        """A new, empty disk."""
        self.files.stop()
        self.files = MemoryFiles(seed=self._random.getrandbits(32))

    def fill(self, spare_bytes: int) -> None:
        """Leave room for so many bytes and no more, until the next process or `empty`."""
        self.files.capacity_bytes = self.files.used_bytes + spare_bytes

    def empty(self) -> None:
        self.files.capacity_bytes = None
        self.files.is_failing_syncs = False


class SimulatedCommit:
    """Takes the place of `penstock.storage.commit.GroupCommit`."""

    descriptor: int | None = None

    def __init__(self, on_synced: Callable[[Log, float], None], random: Random, spindle: Spindle) -> None:
        self._on_synced = on_synced
        self._random = random
        self._spindle = spindle
        self._running: dict[Log, _Sync] = {}

    def request(self, log: Log) -> None:
        running = self._running.get(log)
        if running is not None:
            running.is_wanted_again = True
        else:
            self._begin(log)

    def _begin(self, log: Log) -> None:
        delay_s = self._random.random() * self._spindle.sync_max_s
        sync = self._running[log] = _Sync()
        sync.planned = asyncio.get_running_loop().call_later(delay_s, self._sync, log, sync, delay_s)

    def _sync(self, log: Log, sync: _Sync, took_s: float) -> None:
        sync.planned = None
        _make_durable(log)
        delay_s = self._random.random() * self._spindle.sync_max_s
        asyncio.get_running_loop().call_later(delay_s, self._end, log, sync, took_s + delay_s)

    def _end(self, log: Log, sync: _Sync, seconds: float) -> None:
        if self._running.get(log) is sync:
            del self._running[log]
            if sync.is_wanted_again:
                self._begin(log)
        self._on_synced(log, seconds)

    def wait(self, log: Log) -> None:
        """The caller cannot wait here, so a sync that has not begun is done now."""
        sync = self._running.pop(log, None)
        if sync is not None and (sync.planned is not None or sync.is_wanted_again):
            if sync.planned is not None:
                sync.planned.cancel()
            _make_durable(log)
            self._on_synced(log, 0.0)

    def close(self) -> None:
        for log in tuple(self._running):
            self.wait(log)

    def reap(self, patience_s: float = 0.0) -> list[Synced]:
        del patience_s
        return []


class _Sync:
    """A sync under way. It is ``planned`` until the disk does it."""

    def __init__(self) -> None:
        self.planned: asyncio.TimerHandle | None = None
        self.is_wanted_again = False


def _make_durable(log: Log) -> None:
    try:
        log.sync()
    except LogFailed:
        return  # the log remembers its failure and reports it to the producers that wait
