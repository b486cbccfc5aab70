"""How partitions are told that a transaction has ended: a marker in the log of each.

A marker can be written again without harm, so whoever is not sure that it was writes it once more. A partition that
cannot be written to now is tried again for as long as it takes, and keeps nobody else waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NamedTuple, Protocol

from penstock.broker.coordination.messages import ProducerIdentity
from penstock.broker.partition import Partition
from penstock.broker.transactions.messages import Where
from penstock.clock import Clock
from penstock.errors import PenstockError, ProducerFenced, UnknownPartition, UnknownTopic
from penstock.model import OFFSETS_TOPIC

log = logging.getLogger(__name__)

_BACKOFF_SECONDS: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


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


class LocalMarkers:
    """Markers for partitions of this node. ``later`` runs work after so many seconds."""

    def __init__(
        self,
        find: Callable[[str, int], Partition],
        groups: OffsetsEnd,
        clock: Clock,
        later: Callable[[float, Callable[[], None]], object],
        *,
        syncs: bool,
    ) -> None:
        self._find = find
        self._groups = groups
        self._clock = clock
        self._later = later
        self._syncs = syncs

    def write(
        self, marker: Marker, partitions: Collection[Where], is_wanted: Callable[[], bool], done: Callable[[], None]
    ) -> None:
        if partitions:
            _Round(self, marker, partitions, is_wanted, done).start()
        else:
            done()

    def append(self, marker: Marker, where: Where) -> tuple[Partition, int]:
        """Write one marker; the partition, and the offset after it. Offsets in a group take effect in the same turn."""
        partition = self._find(*where)
        producer_id, epoch = marker.producer
        appended = partition.end_transaction(
            producer_id,
            epoch,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
            now_ms=self._clock.now_ms(),
            is_durable=self._syncs,
        )
        if where[0] == OFFSETS_TOPIC:
            self._groups.end_transaction(where[1], producer_id, is_commit=marker.is_commit)
        return partition, appended.next_offset

    def retry(self, attempt: int, work: Callable[[], None]) -> None:
        self._later(_BACKOFF_SECONDS[min(attempt, len(_BACKOFF_SECONDS) - 1)], work)


class _Round:
    """One marker on its way to all its partitions."""

    def __init__(
        self,
        markers: LocalMarkers,
        marker: Marker,
        partitions: Collection[Where],
        is_wanted: Callable[[], bool],
        done: Callable[[], None],
    ) -> None:
        self._markers = markers
        self._marker = marker
        self._open = set(partitions)
        self._is_wanted = is_wanted
        self._done = done

    def start(self) -> None:
        for where in tuple(self._open):
            self._tell(where, 0)

    def _tell(self, where: Where, attempt: int) -> None:
        if not self._is_wanted():
            return
        try:
            partition, offset = self._markers.append(self._marker, where)
        except (UnknownTopic, UnknownPartition):  # deleted, and with it whatever it had of the transaction
            self._finish(where)
        except ProducerFenced as error:  # a newer epoch has written there, which it could only after this end
            log.warning("The end of a transaction is known in %s-%d already: %s", *where, error.message)
            self._finish(where)
        except PenstockError as error:
            self._fail(where, attempt, error)
        else:
            partition.when_committed(offset, partial(self._on_committed, where, attempt))

    def _on_committed(self, where: Where, attempt: int, error: PenstockError | None) -> None:
        if error is None:
            self._finish(where)
        else:
            self._fail(where, attempt, error)

    def _fail(self, where: Where, attempt: int, error: PenstockError) -> None:
        if attempt == 0:
            log.warning("%s-%d cannot be told of the end of a transaction now: %s", *where, error.message)
        self._markers.retry(attempt, partial(self._tell, where, attempt + 1))

    def _finish(self, where: Where) -> None:
        self._open.discard(where)
        if not self._open and self._is_wanted():
            self._done()
