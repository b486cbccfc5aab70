"""Group commit: logs are synced in the background, so that one sync serves every append that was waiting for it.

Where only a file needs syncing, which is nearly always, the kernel does it by itself and says so through
``descriptor``; whoever watches it calls `reap`. A log whose directory or sealed segments have to be seen to goes to a
thread. A log is synced once at a time. A request that comes meanwhile has it synced again, because that sync may have
begun before the append. Requests never wait; who asked hears through ``on_synced``, or from `reap`, how long the sync
took, and reads ``durable_offset`` or ``failure`` off the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from itertools import count
from queue import SimpleQueue
from typing import Final, NamedTuple

from penstock.errors import LogFailed, TooManyOpenFiles
from penstock.storage.kernel_sync import KernelSync
from penstock.storage.log import Log

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 0.05
_RETRY_S: Final = 0.05


class Synced(NamedTuple):
    """A log that was synced, or failed to be, and how long it took."""

    log: Log
    seconds: float


class _Submitted(NamedTuple):
    log: Log
    end_offset: int
    began: float


class GroupCommit:
    """A few threads and, where there is one, the kernel's own way."""

    def __init__(
        self,
        on_synced: Callable[[Log, float], None],
        *,
        threads: int = 4,
        open_kernel: Callable[[], KernelSync | None] = KernelSync.open,
    ) -> None:
        self._on_synced = on_synced
        self._kernel = open_kernel()
        self._submitted: dict[int, _Submitted] = {}
        self._numbers = count()
        self._queue: SimpleQueue[Log | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._queued: set[Log] = set()
        self._running: set[Log] = set()
        self._again: set[Log] = set()
        self._idle = threading.Condition(self._lock)
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-sync-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def descriptor(self) -> int | None:
        """Becomes readable when `reap` has something to give; None where threads do everything."""
        return None if self._kernel is None else self._kernel.descriptor

    def request(self, log: Log) -> None:
        """See to it that everything appended to ``log`` before this call becomes durable soon."""
        with self._lock:
            if log in self._running:
                self._again.add(log)
            elif log not in self._queued:
                self._begin(log)

    def wait(self, log: Log) -> None:
        """Return once no sync of ``log`` is queued or under way, as before it is truncated or closed."""
        while True:
            with self._idle:
                if log not in self._queued and log not in self._running:
                    return
                if not self._submitted:
                    self._idle.wait(_LOOK_EVERY_S)
                    continue
            self._deliver(self.reap(_LOOK_EVERY_S))

    def close(self) -> None:
        """Finish what is queued and stop the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._kernel is not None:
            while self._submitted:
                self._deliver(self.reap(_LOOK_EVERY_S))
            self._kernel.close()

    def _begin(self, log: Log) -> None:
        """Have a log synced that is not, by the kernel if it can. The lock is held."""
        plain = None if self._kernel is None else log.begin_sync()
        if plain is not None and self._kernel is not None:
            number = next(self._numbers)
            self._submitted[number] = _Submitted(log, plain.end_offset, time.monotonic())
            if self._kernel.submit(plain.descriptor, number):
                self._running.add(log)
                return
            del self._submitted[number]
        self._queued.add(log)
        self._queue.put(log)

    def _end(self, log: Log) -> None:
        """A sync of a log is over. The lock is held."""
        self._running.discard(log)
        if log in self._again:
            self._again.discard(log)
            self._begin(log)
        else:
            self._idle.notify_all()

    # -- by the kernel ------------------------------------------------------------------------------------------------

    def reap(self, patience_s: float = 0.0) -> list[Synced]:
        """The logs that the kernel has synced; if there are none yet, wait for one that long."""
        if self._kernel is None:
            return []
        synced: list[Synced] = []
        finished = self._kernel.reap(patience_s)
        with self._idle:
            for number, error in finished:
                log, end_offset, began = self._submitted.pop(number)
                log.finish_sync(end_offset, error)
                self._end(log)
                synced.append(Synced(log, time.monotonic() - began))
        return synced

    def _deliver(self, synced: list[Synced]) -> None:
        for log, seconds in synced:
            self._on_synced(log, seconds)

    # -- by threads ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (log := self._queue.get()) is not None:
            with self._lock:
                self._queued.discard(log)
                self._running.add(log)
            began = time.monotonic()
            try:
                log.sync()
            except LogFailed:
                pass  # the log remembers its failure, and on_synced hands it to everyone who waits
            except TooManyOpenFiles:
                time.sleep(_RETRY_S)  # nothing was synced, and nothing failed: producers go on waiting
                with self._lock:
                    self._again.add(log)
            except Exception as error:  # what is on disk is not known, and those who wait must hear of it
                logger.exception("Syncing %s met a bug.", log.directory)
                log.fail(f"Syncing {log.directory} met a bug ({error!r}).")
            with self._idle:
                self._end(log)
            try:
                self._on_synced(log, time.monotonic() - began)
            except Exception:  # the thread has other logs to sync
                logger.exception("Telling that %s is synced met a bug.", log.directory)
