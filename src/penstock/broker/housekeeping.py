"""The work nobody waits for: background syncs, retention, compaction and the scrub."""

from __future__ import annotations

import asyncio
import logging

from penstock.broker.config import BrokerConfig, Fsync
from penstock.broker.partition import Partition
from penstock.broker.replicas import Replicas
from penstock.broker.scrub import Scrub
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.storage.compaction import plan_compaction

log = logging.getLogger(__name__)


class Housekeeping:
    """A quick clock for syncs, a slow one for everything that removes or rewrites, and the scrub with its own."""

    def __init__(self, replicas: Replicas, config: BrokerConfig, clock: Clock, scrub: Scrub) -> None:
        self._replicas = replicas
        self._config = config
        self._clock = clock
        self._scrub = scrub
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = asyncio.Event()

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(each) for each in (self._sync_forever(), self._tidy_forever(), self._scrub.run())
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
        while not self._is_stopping.is_set():
            await self._pause(self._config.fsync_interval_ms)
            self.sync_round()
            if self._replicas.has_unopened:
                await self._replicas.open_missing()

    def sync_round(self) -> None:
        """Ask for a sync wherever records have waited for one, or a segment waits to be sealed."""
        is_lazy = self._config.fsync is Fsync.NONE
        for partition in self._replicas:
            log = partition.log
            if log.failure is None and (log.is_sealing or (not is_lazy and log.durable_offset < log.end_offset)):
                self._replicas.request_sync(partition)

    async def _tidy_forever(self) -> None:
        while not self._is_stopping.is_set():
            await self._pause(self._config.housekeeping_interval_ms)
            await self.tidy_round()

    async def tidy_round(self) -> None:
        """Let retention and compaction look at every partition once."""
        for partition in self._replicas:
            if self._is_stopping.is_set():
                return
            try:
                await self._tidy(partition)
            except PenstockError as error:
                log.error("Housekeeping of %s failed and is tried again later: %s", partition.id, error.message)

    async def _tidy(self, partition: Partition) -> None:
        async with self._replicas.upkeep(partition):
            if partition.log.has_unsettled_swaps:
                await asyncio.to_thread(partition.log.settle_swaps)
            dropped = partition.log.expire(self._clock.now_ms(), partition.high_watermark)
            if dropped or partition.log.has_undeleted_files:
                await asyncio.to_thread(partition.log.delete_files, dropped)
            if partition.settings.log.is_compacting:
                await self._compact(partition)
        await asyncio.sleep(0)

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
