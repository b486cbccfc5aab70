"""The schedules that this node leads: one shard for each partition of ``__schedules``."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from penstock.config.settings import ScheduleSettings
from penstock.features.schedules.figures import ScheduleFigures
from penstock.features.schedules.leading.firing import ScheduleAppender, ScheduleFirer
from penstock.features.schedules.leading.shard import ScheduleJournal, ScheduleShard, keep_short
from penstock.machines.clocks import DayClock
from penstock.machines.coordinator import Coordinator
from penstock.machines.ports import Ports
from penstock.model import SCHEDULES_TOPIC
from penstock.partitions.partition import Partition


class ScheduleCoordinator(Coordinator[int, ScheduleShard]):
    """Shards by the number of their partition."""

    what = "schedules"
    alarm_far_ms = 1_000  # the wall clock may have been set meanwhile
    reads_at_once = 2  # reading is work for one processor: so the first are ready earlier, and less memory is needed

    def __init__(self, ports: Ports, settings: ScheduleSettings) -> None:
        super().__init__(ports.clock, ports.supervision)
        self._ports = ports
        self._settings = settings
        self.appender = ScheduleAppender(ports, self.background.spawn)
        self._figures = ScheduleFigures()  # of shards that were led here

    def __iter__(self) -> Iterator[ScheduleShard]:
        """Every shard that can be asked, by number."""
        return iter([shard for _, shard in sorted(self._shards.items()) if shard.is_ready])

    def key_of(self, partition: Partition) -> int | None:
        return partition.id.partition if partition.id.topic == SCHEDULES_TOPIC else None

    def make_shard(self, partition: Partition) -> ScheduleShard:
        journal = ScheduleJournal(partition, syncs=self._ports.syncs_before_ack)
        clock = DayClock(self._ports.clock)
        shard = ScheduleShard(journal, partition.id.partition, self._settings, clock, self.background.spawn)
        shard.firer = ScheduleFirer(self._ports, shard, self.appender)
        return shard

    def on_lost(self, key: int, shard: ScheduleShard | None) -> None:  # noqa: ARG002
        if shard is not None and shard.is_ready:
            self._figures.count(shard.machine.take_tally())

    async def upkeep(self, shard: ScheduleShard) -> None:
        """What need not be done at once: a snapshot, the log kept short, memory let go of."""
        if not shard.is_ready:
            return
        shard.library.sweep(shard.now_ms())
        shard.snapshot()
        await keep_short(shard, self._ports.topics)

    @property
    def wait_ms(self) -> float:
        """How long nothing is due here, for those who can let time pass."""
        return min((shard.wait_ms for shard in self._shards.values()), default=inf)

    def figures(self) -> ScheduleFigures:
        """What there is and what was done, in the shards that this node leads."""
        for shard in self:
            self._figures.count(shard.machine.take_tally())
        found = self._figures.copy()
        for shard in self:
            found.add_stats(shard.machine.stats)
        return found
