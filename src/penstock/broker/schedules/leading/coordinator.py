"""The schedules that this node leads: shards follow the leadership of their partitions, requests find their shard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Final

from penstock.broker.coordination.errands import Errands
from penstock.broker.coordination.loading import read_when_sound
from penstock.broker.partition import Partition
from penstock.broker.schedules.figures import CalendarStats
from penstock.broker.schedules.leading.day_clock import DayClock
from penstock.broker.schedules.leading.delivery import Postman
from penstock.broker.schedules.leading.firing import Firing
from penstock.broker.schedules.leading.journal import ScheduleJournal
from penstock.broker.schedules.leading.shard import ScheduleShard
from penstock.broker.schedules.leading.upkeep import keep_short
from penstock.errors import CoordinatorLoading, NotCoordinator, PenstockError
from penstock.model import SCHEDULES_TOPIC

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger(__name__)

_READ_AT_ONCE: Final = 2
_LOADING_LOOKS: Final = 200
_LOADING_PAUSE_SECONDS: Final = 0.01


class ScheduleCoordinator:
    """Shards by the number of their partition."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._shards: dict[int, ScheduleShard] = {}
        self._errands = Errands()
        self.postman = Postman(broker, self._errands.spawn)
        self._figures = CalendarStats()  # of shards that were led here
        # Reading is work for one processor: one after the other they are ready earlier, and need less memory meanwhile.
        self._reading = asyncio.Semaphore(_READ_AT_ONCE)

    def __iter__(self) -> Iterator[ScheduleShard]:
        """Every shard that can be asked, by number."""
        return iter([shard for _, shard in sorted(self._shards.items()) if shard.is_ready])

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._errands.keep_up(self, self._upkeep_of)

    async def stop(self) -> None:
        """Lead nothing any more: nothing else is fired, and what is on its way is repeated by whoever leads next."""
        for number in tuple(self._shards):
            self._shards.pop(number).close(NotCoordinator("This node is stopping."))
        await self._errands.stop()

    async def _upkeep_of(self, shard: ScheduleShard) -> None:
        """What need not be done at once: a snapshot, the log kept short, memory let go of."""
        if not shard.is_ready:
            return
        shard.library.sweep(shard.now_ms())
        shard.snapshot()
        await keep_short(shard, self._broker.replicas)

    # -- leadership ---------------------------------------------------------------------------------------------------

    def on_leadership_gained(self, partition: Partition) -> None:
        if partition.id.topic != SCHEDULES_TOPIC or self._errands.has_stopped:
            return
        self.on_leadership_lost(partition)  # of an earlier epoch: its memory is not this one's
        journal = ScheduleJournal(partition, syncs=self._broker.syncs_before_ack)
        settings, clock = self._broker.config.schedules, DayClock(self._broker.clock)
        shard = ScheduleShard(journal, partition.id.partition, settings, clock, self._errands.spawn)
        shard.firer = Firing(self._broker, shard, self.postman)
        self._shards[partition.id.partition] = shard
        self._errands.spawn(self._load(shard))

    def on_leadership_lost(self, partition: Partition) -> None:
        if partition.id.topic != SCHEDULES_TOPIC:
            return
        shard = self._shards.pop(partition.id.partition, None)
        if shard is not None:
            if shard.is_ready:
                self._figures.count(shard.machine.take_tally())
            shard.close(NotCoordinator(f"This node no longer leads {partition.id}."))

    async def _load(self, shard: ScheduleShard) -> None:
        def is_wanted() -> bool:
            return self._shards.get(shard.number) is shard

        try:
            async with self._reading:
                machines = await read_when_sound(shard.read_log, is_wanted, f"schedules of shard {shard.number}")
            if machines is not None:
                shard.open(machines)
        except PenstockError as error:
            log.error("The schedules of shard %d cannot be read: %s", shard.number, error.message)
            shard.close(error)
        except Exception:
            log.exception("The schedules of shard %d cannot be read.", shard.number)
            shard.close(NotCoordinator(f"The schedules of shard {shard.number} cannot be read."))

    # -- finding ------------------------------------------------------------------------------------------------------

    def find(self, number: int) -> ScheduleShard:
        """A shard, ready to be asked; `NotCoordinator` or `CoordinatorLoading` otherwise."""
        shard = self._shards.get(number)
        if shard is None:
            raise NotCoordinator(f"This node does not lead shard {number} of schedules.")
        shard.check()
        return shard

    async def await_shard(self, number: int) -> ScheduleShard:
        """The same, giving it a moment to read its log if it is at it."""
        for _ in range(_LOADING_LOOKS):
            try:
                return self.find(number)
            except CoordinatorLoading:
                await asyncio.sleep(_LOADING_PAUSE_SECONDS)
        return self.find(number)

    @property
    def wait_ms(self) -> float:
        """How long nothing is due here, for those who can let time pass."""
        return min((shard.wait_ms for shard in self._shards.values()), default=inf)

    def figures(self) -> CalendarStats:
        """What there is and what was done, in the shards that this node leads."""
        for shard in self:
            self._figures.count(shard.machine.take_tally())
        found = self._figures.copy()
        for shard in self:
            found.add_stats(shard.machine.stats)
        return found
