"""The queues that this node leads: shards follow the leadership of companion partitions, requests find their shard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from penstock.broker.coordination.errands import Errands
from penstock.broker.coordination.loading import read_when_sound
from penstock.broker.partition import Partition
from penstock.broker.queues.core.config import QueueSettings
from penstock.broker.queues.leading.cutting import DecodedBatches
from penstock.broker.queues.leading.figures import AllFigures
from penstock.broker.queues.leading.journal import QueueJournal
from penstock.broker.queues.leading.shard import Aftermath, QueueShard
from penstock.broker.queues.leading.sources import LedSource, RemoteSource, Source
from penstock.broker.queues.leading.steady import SteadyClock
from penstock.broker.queues.leading.upkeep import follow_start, trim_companion
from penstock.broker.queues.letters.origins import queue_settings_for
from penstock.errors import CoordinatorLoading, NotCoordinator, PenstockError
from penstock.model import queue_parent

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger(__name__)

# Most logs are read in a few milliseconds, and a client that is sent away stays away for a tenth of a second or more.
_LOADING_LOOKS: Final = 200
_LOADING_PAUSE_SECONDS: Final = 0.01


class QueueCoordinator:
    """Shards by topic and partition."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._shards: dict[tuple[str, int], QueueShard] = {}
        self.errands = Errands()
        self._decoded = DecodedBatches()
        self.figures = AllFigures()
        self.aftermath: Aftermath | None = None
        self.on_opened: Callable[[str], None] = lambda _: None  # with the topic whose queues can be asked now

    def __iter__(self) -> Iterator[QueueShard]:
        """Every shard that can be asked."""
        return iter([shard for shard in self._shards.values() if shard.is_ready])

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.errands.keep_up(self, self._upkeep_of)

    async def stop(self) -> None:
        """Lead nothing any more; whoever waits is told so."""
        for key in tuple(self._shards):
            self._shards.pop(key).close(NotCoordinator("This node is stopping."))
        await self.errands.stop()

    async def _upkeep_of(self, shard: QueueShard) -> None:
        """What need not be done at once: settings taken over, the log's start followed, the companion trimmed."""
        if shard.topic in self._broker.metadata.topics:
            shard.follow_settings()
        await follow_start(shard)
        await trim_companion(shard, self._broker.replicas)

    # -- leadership ---------------------------------------------------------------------------------------------------

    def on_leadership_gained(self, partition: Partition) -> None:
        topic = queue_parent(partition.id.topic)
        if topic is None:
            return
        self.on_leadership_lost(partition)  # of an earlier epoch: its memory is not this one's
        journal = QueueJournal(partition, syncs=self._broker.syncs_before_ack)
        shard = QueueShard(journal, topic, partition.id.partition, SteadyClock(self._broker.clock), self)
        self._shards[topic, partition.id.partition] = shard
        self.errands.spawn(self._load(shard))

    def on_leadership_lost(self, partition: Partition) -> None:
        topic = queue_parent(partition.id.topic)
        if topic is None:
            return
        shard = self._shards.pop((topic, partition.id.partition), None)
        if shard is not None:
            shard.close(NotCoordinator(f"This node no longer leads {partition.id}."))
        if topic not in self._broker.metadata.topics:
            self.figures.forget_topic(topic)

    async def _load(self, shard: QueueShard) -> None:
        name = f"{shard.topic}-{shard.partition}"

        def is_wanted() -> bool:
            return self._shards.get((shard.topic, shard.partition)) is shard

        try:
            machines = await read_when_sound(shard.read_log, is_wanted, f"queues of {name}")
            if machines is not None:
                shard.open(machines)
                self.on_opened(shard.topic)
        except PenstockError as error:
            log.error("The queues of %s cannot be read: %s", name, error.message)
            shard.close(error)
        except Exception:
            log.exception("The queues of %s cannot be read.", name)
            shard.close(NotCoordinator(f"The queues of {name} cannot be read."))

    def end_transaction(self, topic: str, partition: int, producer_id: int, *, is_commit: bool) -> None:
        """The end of a transaction was written to a companion: its acks count now, or never will."""
        shard = self._shards.get((topic, partition))
        if shard is not None:
            shard.end_transaction(producer_id, is_commit=is_commit)

    # -- finding ------------------------------------------------------------------------------------------------------

    def find(self, topic: str, partition: int) -> QueueShard:
        """The shard of a partition, ready to be asked; `NotCoordinator` or `CoordinatorLoading` otherwise."""
        shard = self._shards.get((topic, partition))
        if shard is None:
            raise NotCoordinator(f"This node does not lead the queues of {topic}-{partition}.")
        shard.check()
        return shard

    def is_loading(self, topic: str, partition: int) -> bool:
        """Whether the log of a partition's queues is being read here just now."""
        shard = self._shards.get((topic, partition))
        return shard is not None and shard.is_loading

    async def await_shard(self, topic: str, partition: int) -> QueueShard:
        """The same, giving it a moment to read its log if it is at it."""
        for _ in range(_LOADING_LOOKS):
            try:
                return self.find(topic, partition)
            except CoordinatorLoading:
                await asyncio.sleep(_LOADING_PAUSE_SECONDS)
        return self.find(topic, partition)

    def settings_of(self, topic: str) -> QueueSettings:
        return queue_settings_for(topic, self._broker.topic_settings(topic).queue)

    def source_of(self, topic: str, partition: int, earlier: Source | None) -> Source:
        """Where the messages are now: here, as ever, or for a moment with another leader."""
        if isinstance(earlier, LedSource) and earlier.partition.is_leader:
            return earlier
        replicas = self._broker.replicas
        if replicas.has(topic, partition):
            found = replicas.get(topic, partition)
            if found.is_leader:
                return LedSource(found, self._decoded)
        if isinstance(earlier, RemoteSource):
            return earlier
        return RemoteSource(topic, partition, self._broker.remote, self._decoded)
