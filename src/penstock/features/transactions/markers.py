"""How partitions are told that a transaction has ended: a marker in the log of each.

A marker can be written again without harm, so whoever is not sure that it was writes it once more. Here one is written
to a partition that this node leads; `penstock.features.transactions.marking` brings it to all, wherever they are led.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from penstock.clock import Clock
from penstock.features.transactions.messages import Where
from penstock.machines.messages import ProducerIdentity
from penstock.model import OFFSETS_TOPIC, queue_parent
from penstock.partitions.partition import Partition


class Marker(NamedTuple):
    """The end of a transaction as partitions are told of it."""

    producer: ProducerIdentity
    is_commit: bool
    coordinator_epoch: int


class MarkerWriter(Protocol):
    """Whoever can tell partitions."""

    def write(
        self, marker: Marker, partitions: Collection[Where], is_wanted: Callable[[], bool], done: Callable[[], None]
    ) -> None:
        """Write a marker to each partition and call ``done`` once all are committed, or ``is_wanted`` no more."""


class OffsetsEnd(Protocol):
    """Whoever keeps groups' offsets, which take effect with a transaction."""

    def end_transaction(self, shard_index: int, producer_id: int, *, is_commit: bool) -> None: ...


class AcksEnd(Protocol):
    """Whoever keeps acks of queue groups, which take effect with a transaction."""

    def end_transaction(self, topic: str, partition: int, producer_id: int, *, is_commit: bool) -> None: ...


class LocalMarkers:
    """Markers for partitions that this node leads. ``on_written`` hears of each in the turn in which it is written."""

    def __init__(self, find: Callable[[str, int], Partition], groups: OffsetsEnd, clock: Clock, *, syncs: bool) -> None:
        self.find = find
        self._groups = groups
        self._clock = clock
        self._syncs = syncs
        self.on_written: Callable[[Where, int], None] = _ignore
        self.queues: AcksEnd | None = None  # whoever keeps acks in companions of topics

    def append(self, marker: Marker, where: Where, leader_epoch: int = -1) -> tuple[Partition, int]:
        """Write one marker; the partition, and the offset after it. Offsets and acks take effect in the same turn."""
        partition = self.find(*where)
        partition.check_leader(leader_epoch)
        producer_id, epoch = marker.producer
        appended = partition.end_transaction(
            producer_id,
            epoch,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
            now_ms=self._clock.now_ms(),
            is_durable=self._syncs,
        )
        self.on_written(where, producer_id)
        if where[0] == OFFSETS_TOPIC:
            self._groups.end_transaction(where[1], producer_id, is_commit=marker.is_commit)
        elif self.queues is not None and (parent := queue_parent(where[0])) is not None:
            self.queues.end_transaction(parent, where[1], producer_id, is_commit=marker.is_commit)
        return partition, appended.next_offset


def _ignore(where: Where, producer_id: int) -> None:
    """Nobody waits for it."""
