"""Group commit: threads that sync logs, so that one fsync serves every append that was waiting for it.

A log is queued at most once and synced by at most one thread at a time. A request that comes while its log is being
synced queues it again, because that sync may have begun before the append. Requests never wait; who asked hears
through ``on_synced``, which runs in the syncing thread, is told how long the sync took, and reads ``durable_offset`` or
``failure`` off the log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from penstock.errors import LogFailed
from penstock.storage.log import Log


class GroupCommit:
    """A few threads, since syncs of different files overlap well."""

    def __init__(self, on_synced: Callable[[Log, float], None], *, threads: int = 4) -> None:
        self._on_synced = on_synced
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

    def request(self, log: Log) -> None:
        """See to it that everything appended to ``log`` before this call becomes durable soon."""
        with self._lock:
            if log in self._running:
                self._again.add(log)
            elif log not in self._queued:
                self._queued.add(log)
                self._queue.put(log)

    def wait(self, log: Log) -> None:
        """Return once no sync of ``log`` is queued or under way, as before it is truncated or closed."""
        with self._idle:
            self._idle.wait_for(lambda: log not in self._queued and log not in self._running)

    def close(self) -> None:
        """Finish what is queued and stop the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

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
            with self._idle:
                self._running.discard(log)
                if log in self._again:
                    self._again.discard(log)
                    self._queued.add(log)
                    self._queue.put(log)
                else:
                    self._idle.notify_all()
            self._on_synced(log, time.monotonic() - began)
