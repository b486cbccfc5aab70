"""The work no client waits for: background syncs, retention, compaction and the scrub."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from penstock.clock import Clock
from penstock.config.settings import Fsync
from penstock.errors import PenstockError
from penstock.partitions.config import PartitionsConfig
from penstock.partitions.partition import Partition
from penstock.partitions.replicas import Replicas
from penstock.partitions.scrub import Scrub
from penstock.storage.compaction import plan_compaction
from penstock.storage.config import UNBOUNDED
from penstock.supervision import Supervision

log = logging.getLogger(__name__)

_FLUSH_MS_MIN: Final = 10  # more often than this no log is synced in the background


class Housekeeping:
    """A quick clock for syncs, slower ones for compaction and retention, and the scrub with its own."""

    def __init__(
        self, replicas: Replicas, config: PartitionsConfig, clock: Clock, scrub: Scrub, supervision: Supervision
    ) -> None:
        self._replicas = replicas
        self._config = config
        self._clock = clock
        self._scrub = scrub
        self._supervision = supervision
        self._retention_due = clock.monotonic() + config.storage.retention_check_interval_ms / 1000
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = asyncio.Event()

    def start(self) -> None:
        start = self._supervision.start
        self._tasks = [
            start("background syncs", self._sync_forever),
            start("housekeeping", self._tidy_forever),
            start("scrub", self._scrub.run),
        ]

    async def stop(self) -> None:
        """Begin nothing new, and return once what is under way is done: threads work on files that are closed next."""
        self._is_stopping.set()
        self._scrub.stop()
        await asyncio.gather(*self._tasks)

    async def _pause(self, duration_ms: int) -> None:
        try:
            async with asyncio.timeout(duration_ms / 1000):
                await self._is_stopping.wait()
        except TimeoutError:
            return

    async def _sync_forever(self) -> None:
        due = self._clock.monotonic()
        while not self._is_stopping.is_set():
            flush_ms = min((partition.settings.log.flush_ms for partition in self._replicas), default=UNBOUNDED)
            await self._pause(min(self._config.storage.fsync_interval_ms, max(flush_ms, _FLUSH_MS_MIN)))
            if self._clock.monotonic() < due:
                self.flush_round()
                continue
            due = self._clock.monotonic() + self._config.storage.fsync_interval_ms / 1000
            self.sync_round()
            if self._replicas.has_unopened:
                await self._replicas.open_missing()

    def sync_round(self) -> None:
        """Ask for a sync wherever records have waited for one, or a segment waits to be sealed."""
        is_lazy = self._config.storage.fsync is Fsync.NONE
        for partition in self._replicas:
            log = partition.log
            may_wait = is_lazy and partition.settings.log.flush_ms == UNBOUNDED
            if log.failure is None and (log.is_sealing or (not may_wait and log.durable_offset < log.end_offset)):
                self._replicas.request_sync(partition)

    def flush_round(self) -> None:
        """Ask for a sync of the topics that have ``flush.ms``, between two rounds for all of them."""
        for partition in self._replicas:
            log = partition.log
            if log.config.flush_ms < UNBOUNDED and log.failure is None and log.durable_offset < log.end_offset:
                self._replicas.request_sync(partition)

    async def _tidy_forever(self) -> None:
        while not self._is_stopping.is_set():
            await self._pause(
                min(self._config.storage.housekeeping_interval_ms, self._config.storage.retention_check_interval_ms)
            )
            now = self._clock.monotonic()
            retires = now >= self._retention_due
            if retires:
                self._retention_due = now + self._config.storage.retention_check_interval_ms / 1000
            await self.tidy_round(retires=retires)

    async def tidy_round(self, *, retires: bool = True) -> None:
        """Look at every partition once: for what compaction can do, and, if it ``retires``, for what is too old."""
        for partition in self._replicas:
            if self._is_stopping.is_set():
                return
            try:
                await self._tidy(partition, retires=retires)
            except PenstockError as error:
                log.error("Housekeeping of %s failed and is tried again later: %s", partition.id, error.message)
            except Exception as error:  # the other partitions are looked after all the same
                self._supervision.note("housekeeping", error)

    async def _tidy(self, partition: Partition, *, retires: bool) -> None:
        now_ms = self._clock.now_ms()
        async with self._replicas.upkeep(partition):
            if partition.log.is_released:
                return
            if partition.log.has_unsettled_swaps:
                await asyncio.to_thread(partition.log.settle_swaps)
            partition.log.roll_aged(now_ms)
            if retires:
                await self._retire(partition, now_ms)
            if partition.log.has_undeleted_files:
                await asyncio.to_thread(partition.log.delete_files, [], now_ms)
            if partition.log.has_condemned(now_ms):
                await asyncio.to_thread(partition.log.remove_condemned, now_ms)
            if partition.settings.log.is_compacting:
                await self._compact(partition)
        await asyncio.sleep(0)

    async def _retire(self, partition: Partition, now_ms: int) -> None:
        """Remove what retention no longer covers, and say so."""
        dropped = partition.log.expire(now_ms, partition.high_watermark)
        if not dropped:
            return
        config = partition.settings.log
        log.info(
            "Retention removed %d segments of %s, all before offset %d (retention.ms %d, retention.bytes %d).",
            len(dropped),
            partition.id,
            partition.log.start_offset,
            config.retention_ms,
            config.retention_bytes,
        )
        await asyncio.to_thread(partition.log.delete_files, dropped, now_ms)

    async def _compact(self, partition: Partition) -> None:
        """One pass of compaction, if one is worth it: the long steps beside the loop, the switch on it."""
        compaction = plan_compaction(partition.log, self._clock.now_ms(), limit_offset=partition.last_stable_offset)
        if compaction is None:
            return
        try:
            await asyncio.to_thread(compaction.run)
        finally:
            compaction.apply()
        await asyncio.to_thread(compaction.finish)
