"""The work nobody waits for: background syncs, retention and compaction."""

from __future__ import annotations

import asyncio
import logging

from penstock.broker.config import BrokerConfig, Fsync
from penstock.broker.partition import Partition
from penstock.broker.replicas import Replicas
from penstock.clock import Clock
from penstock.errors import PenstockError

log = logging.getLogger(__name__)


class Housekeeping:
    """Two clocks: a quick one for syncs, a slow one for everything that removes or rewrites."""

    def __init__(self, replicas: Replicas, config: BrokerConfig, clock: Clock) -> None:
        self._replicas = replicas
        self._config = config
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._sync_forever()), asyncio.create_task(self._tidy_forever())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _sync_forever(self) -> None:
        while True:
            await asyncio.sleep(self._config.fsync_interval_ms / 1000)
            self.sync_round()

    def sync_round(self) -> None:
        """Ask for a sync wherever records have waited for one, or a segment waits to be sealed."""
        is_lazy = self._config.fsync is Fsync.NONE
        for partition in self._replicas:
            log = partition.log
            if log.failure is None and (log.is_sealing or (not is_lazy and log.durable_offset < log.end_offset)):
                self._replicas.request_sync(partition)

    async def _tidy_forever(self) -> None:
        while True:
            await asyncio.sleep(self._config.housekeeping_interval_ms / 1000)
            await self.tidy_round()

    async def tidy_round(self) -> None:
        """Let retention and compaction look at every partition once, and open what could not be opened before."""
        await self._replicas.open_missing()
        for partition in self._replicas:
            try:
                await self._tidy(partition)
            except PenstockError as error:
                log.error("Housekeeping of %s failed and is tried again later: %s", partition.id, error.message)

    async def _tidy(self, partition: Partition) -> None:
        dropped = partition.log.expire(self._clock.now_ms())
        if dropped:
            await asyncio.to_thread(partition.log.delete_files, dropped)
        await asyncio.sleep(0)
