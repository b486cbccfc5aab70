"""The companion of a topic: the internal topic that holds what its queue groups remember (docs/decisions/0012).

The controller keeps a companion like its parent: as many partitions on the same replicas, led by the same nodes, and
deleted with it. All that is left to do here is to ask for it when a topic gets its first queue group.

The queues that this node leads: one shard for each partition of a companion topic.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.consensus.commands import CreateTopic
from penstock.consensus.metadata import Topic
from penstock.consensus.queue_config import QueueSettings
from penstock.errors import PolicyViolation, TopicExists
from penstock.features.dead_letters.letters import queue_settings_for
from penstock.features.queues.leading.figures import AllFigures
from penstock.features.queues.leading.shard import Aftermath, QueueJournal, QueueShard, follow_start, trim_companion
from penstock.features.queues.leading.sources import DecodedBatches, LedSource, MessageSource, RemoteSource
from penstock.machines.clocks import SteadyClock
from penstock.machines.coordinator import Coordinator
from penstock.machines.ports import Ports
from penstock.model import is_internal, queue_parent, queue_state_topic
from penstock.partitions.partition import Partition


async def ensure_companion(ports: Ports, topic: str) -> Topic:
    """The companion of a topic, made when it is first needed.

    When it returns, the partitions that this node has of it are open here. A second caller finds what the first
    one made; a topic that is deleted meanwhile is an `UnknownTopic`.
    """
    if is_internal(topic):
        raise PolicyViolation(f"{topic!r} holds the broker's own state; it cannot be read as a queue.")
    name = queue_state_topic(topic)
    ports.metadata.topic(topic)
    if name not in ports.metadata.topics:
        try:
            await ports.topics.command(CreateTopic(name=name, topic_id=ports.new_id()))
        except TopicExists:
            pass  # another caller was faster
    return await ports.topics.opened(ports.metadata.topic(name))


class QueueCoordinator(Coordinator[tuple[str, int], QueueShard]):
    """Shards by topic and partition."""

    what = "queues"

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports.clock, ports.supervision)
        self._ports = ports
        self._decoded = DecodedBatches()
        self.figures = AllFigures()
        self.aftermath: Aftermath | None = None
        self.on_ready: Callable[[str], None] = lambda _: None  # with the topic whose queues can be asked now

    def key_of(self, partition: Partition) -> tuple[str, int] | None:
        topic = queue_parent(partition.id.topic)
        return None if topic is None else (topic, partition.id.partition)

    def make_shard(self, partition: Partition) -> QueueShard:
        topic = queue_parent(partition.id.topic)
        assert topic is not None, "only companions keep queues"
        journal = QueueJournal(partition, syncs=self._ports.syncs_before_ack)
        return QueueShard(journal, topic, partition.id.partition, SteadyClock(self._ports.clock), self)

    def on_opened(self, shard: QueueShard) -> None:
        self.on_ready(shard.topic)

    def on_lost(self, key: tuple[str, int], shard: QueueShard | None) -> None:  # noqa: ARG002
        if key[0] not in self._ports.metadata.topics:
            self.figures.forget_topic(key[0])

    async def upkeep(self, shard: QueueShard) -> None:
        """What need not be done at once: settings taken over, the log's start followed, the companion trimmed."""
        if shard.topic in self._ports.metadata.topics:
            shard.follow_settings()
        await follow_start(shard)
        await trim_companion(shard, self._ports.topics)

    def end_transaction(self, topic: str, partition: int, producer_id: int, *, is_commit: bool) -> None:
        """The end of a transaction was written to a companion: its acks count now, or never will."""
        shard = self._shards.get((topic, partition))
        if shard is not None:
            shard.end_transaction(producer_id, is_commit=is_commit)

    def has_begun(self, topic: str, partition: int, group: str) -> bool:
        """Whether a group reads a partition whose queues are led here."""
        shard = self._shards.get((topic, partition))
        return shard is not None and shard.is_ready and group in shard.machines

    def settings_of(self, topic: str) -> QueueSettings:
        return queue_settings_for(topic, self._ports.topics.settings_of(topic).queue)

    def source_of(self, topic: str, partition: int, earlier: MessageSource | None) -> MessageSource:
        """Where the messages are now: here, as ever, or for a moment with another leader."""
        if isinstance(earlier, LedSource) and earlier.partition.is_leader:
            return earlier
        found = self._ports.partitions.local(topic, partition)
        if found is not None:
            return LedSource(found, self._decoded)
        if isinstance(earlier, RemoteSource):
            return earlier
        return RemoteSource(topic, partition, self._ports.partitions, self._decoded)
