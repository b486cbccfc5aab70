"""How partitions are told that a transaction has ended: a marker in the log of each, wherever it is led.

A marker can be written again without harm. Partitions that this node leads get theirs at once; the leaders of the
others are asked, one call a node. A partition that cannot be written to now is tried again for as long as it takes, at
the node that leads it by then, and keeps no other waiting. Only what the metadata no longer has is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

import msgspec

from penstock.clock import Clock
from penstock.consensus.records import NO_LEADER
from penstock.errors import LeaderNotAvailable, PenstockError, ProducerFenced, UnknownPartition, UnknownTopic
from penstock.features.transactions.messages import Where
from penstock.machines.leaders import Leaders
from penstock.machines.messages import ProducerIdentity
from penstock.model import OFFSETS_TOPIC, queue_parent
from penstock.network.frames import Failure
from penstock.network.port import Method
from penstock.partitions.partition import Partition

log = logging.getLogger(__name__)


class EndMarker(NamedTuple):
    """The end of a transaction as partitions are told of it."""

    producer: ProducerIdentity
    is_commit: bool
    coordinator_epoch: int


class MarkerWriter(Protocol):
    """Tells partitions."""

    def write(
        self, marker: EndMarker, partitions: Collection[Where], is_wanted: Callable[[], bool], done: Callable[[], None]
    ) -> None:
        """Write a marker to each partition and call ``done`` once all are committed, or ``is_wanted`` no more."""


class OffsetsEnd(Protocol):
    """Keeps groups' offsets, which take effect with a transaction."""

    def end_transaction(self, shard_index: int, producer_id: int, *, is_commit: bool) -> None: ...


class AcksEnd(Protocol):
    """Keeps acks of queue groups, which take effect with a transaction."""

    def end_transaction(self, topic: str, partition: int, producer_id: int, *, is_commit: bool) -> None: ...


class LocalMarkers:
    """Markers for partitions that this node leads. ``on_written`` hears of each in the turn in which it is written."""

    def __init__(self, find: Callable[[str, int], Partition], groups: OffsetsEnd, clock: Clock, *, syncs: bool) -> None:
        self.find = find
        self._groups = groups
        self._clock = clock
        self._syncs = syncs
        self.on_written: Callable[[Where, int], None] = _ignore
        self.queues: AcksEnd | None = None  # keeps acks in companions of topics

    def append(self, marker: EndMarker, where: Where, leader_epoch: int = -1) -> tuple[Partition, int]:
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
    """Nothing waits for it."""


_BACKOFF_SECONDS: Final = (0.02, 0.05, 0.1, 0.25)
# A node that fell silent is given up after a session of two seconds; the next leader is asked soon after.
_TIMEOUT_SECONDS: Final = 3.0


class MarkedPlace(msgspec.Struct, frozen=True, array_like=True):
    """A partition that is to be told, as the coordinator knows its leadership."""

    topic_id: UUID
    partition: int
    leader_epoch: int


class Mark(msgspec.Struct, frozen=True):
    """Tell partitions that a transaction has ended."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    places: tuple[MarkedPlace, ...]


class Marked(msgspec.Struct, frozen=True):
    """For each place what went wrong, or None where the marker is committed."""

    failures: tuple[Failure | None, ...]


MARK: Final = Method("transactions.mark", Mark, Marked)


class ClusterMarkers:
    """Writes markers, here and by other nodes, and for them.

    ``later`` runs work after so many seconds, ``spawn`` runs a coroutine.
    """

    def __init__(
        self,
        local: LocalMarkers,
        leaders: Leaders,
        later: Callable[[float, Callable[[], None]], object],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.local = local
        self._later = later
        self._spawn = spawn
        self.leaders = leaders

    def serve(self) -> None:
        """Write markers for other nodes from now on."""
        self.leaders.peers.serve(MARK, self._on_mark)

    def write(
        self, marker: EndMarker, partitions: Collection[Where], is_wanted: Callable[[], bool], done: Callable[[], None]
    ) -> None:
        """Write a marker to each partition and call ``done`` once all are committed, or ``is_wanted`` no more."""
        if partitions:
            _MarkerRound(self, marker, partitions, is_wanted, done).go_on()
        else:
            done()

    def retry(self, attempt: int, work: Callable[[], None]) -> None:
        self._later(_BACKOFF_SECONDS[min(attempt, len(_BACKOFF_SECONDS) - 1)], work)

    def home_of(self, where: Where) -> int | None:
        """The node to ask, None if it is this one; an error if there is none, or nothing to tell any more."""
        leader = self.leaders.leader_of(*where)
        if leader == NO_LEADER:
            raise LeaderNotAvailable(f"{where[0]}-{where[1]} has no leader now.")
        return None if leader == self.leaders.node_id else leader

    def ask(
        self, node_id: int, marker: EndMarker, places: list[Where], told: Callable[[Where, PenstockError | None], None]
    ) -> None:
        """Have another node write markers, and hear of each place what became of it."""
        self._spawn(self._ask(node_id, marker, places, told))

    async def _ask(
        self, node_id: int, marker: EndMarker, places: list[Where], told: Callable[[Where, PenstockError | None], None]
    ) -> None:
        failures: Iterable[PenstockError | None]
        try:
            request = self._request(marker, places)
            received = await self.leaders.peers.call(node_id, MARK, request, timeout_s=_TIMEOUT_SECONDS)
            reply: Marked = received.reply
            failures = [None if failure is None else failure.revived() for failure in reply.failures]
        except PenstockError as error:
            failures = [error] * len(places)
        for where, failure in zip(places, failures, strict=True):
            told(where, failure)

    def _request(self, marker: EndMarker, places: list[Where]) -> Mark:
        metadata = self.leaders.metadata
        return Mark(
            *marker.producer,
            marker.is_commit,
            marker.coordinator_epoch,
            tuple(
                MarkedPlace(
                    metadata.topic(topic).topic_id, partition, metadata.partition(topic, partition).leader_epoch
                )
                for topic, partition in places
            ),
        )

    # -- for other nodes ----------------------------------------------------------------------------------------------

    def _on_mark(self, _node_id: int, request: Mark, _body: memoryview) -> asyncio.Future[Marked]:
        """Everything is written in this very turn, so in the order in which it was asked; the answer comes later."""
        marker = EndMarker(
            ProducerIdentity(request.producer_id, request.producer_epoch), request.is_commit, request.coordinator_epoch
        )
        answer: asyncio.Future[Marked] = asyncio.get_running_loop().create_future()
        failures: list[Failure | None] = [None] * len(request.places)
        left = dict.fromkeys(range(len(request.places)))

        def on_committed(at: int, error: PenstockError | None) -> None:
            failures[at] = None if error is None else Failure.of(error)
            left.pop(at, None)
            if not left and not answer.done():
                answer.set_result(Marked(tuple(failures)))

        for at, place in enumerate(request.places):
            try:
                partition, offset = self.local.append(marker, self._where(place), place.leader_epoch)
            except PenstockError as error:
                on_committed(at, error)
            else:
                partition.when_committed(offset, partial(on_committed, at))
        return answer

    def _where(self, place: MarkedPlace) -> Where:
        topic = self.leaders.metadata.topic_by_id(place.topic_id)
        if topic is None:
            raise UnknownTopic("This node does not know the topic, or not yet.")
        return topic.name, place.partition


class _MarkerRound:
    """One marker on its way to all its partitions."""

    def __init__(
        self,
        markers: ClusterMarkers,
        marker: EndMarker,
        partitions: Collection[Where],
        is_wanted: Callable[[], bool],
        done: Callable[[], None],
    ) -> None:
        self._markers = markers
        self._marker = marker
        self._open = dict.fromkeys(partitions)
        self._again = dict.fromkeys(partitions)  # those that have to be told, for the first time or once more
        self._attempt = 0
        self._is_retrying = False
        self._is_finished = False
        self._is_wanted = is_wanted
        self._done = done

    def go_on(self) -> None:
        """Tell everybody who has not been told for certain."""
        self._is_retrying = False
        if not self._is_wanted():
            return
        places, self._again = self._again, {}
        elsewhere: dict[int, list[Where]] = {}
        for where in places:
            try:
                node_id = self._markers.home_of(where)
            except (UnknownTopic, UnknownPartition):
                self._finish(where)
            except PenstockError as error:
                self._fail(where, error)
            else:
                if node_id is None:
                    self._tell(where)
                else:
                    elsewhere.setdefault(node_id, []).append(where)
        for node_id, there in elsewhere.items():
            self._markers.ask(node_id, self._marker, there, self._on_told)

    def _tell(self, where: Where) -> None:
        try:
            partition, offset = self._markers.local.append(self._marker, where)
        except PenstockError as error:
            self._on_told(where, error)
        else:
            partition.when_committed(offset, partial(self._on_told, where))

    def _on_told(self, where: Where, error: PenstockError | None) -> None:
        if error is None:
            self._finish(where)
        elif isinstance(error, ProducerFenced):  # a newer epoch has written there, which it could only after this end
            log.warning("The end of a transaction is known in %s-%d already: %s", *where, error.message)
            self._finish(where)
        else:
            self._fail(where, error)

    def _fail(self, where: Where, error: PenstockError) -> None:
        if not self._attempt:
            log.warning("%s-%d cannot be told of the end of a transaction now: %s", *where, error.message)
        self._again[where] = None
        if not self._is_retrying:
            self._is_retrying = True
            self._markers.retry(self._attempt, self.go_on)
            self._attempt += 1

    def _finish(self, where: Where) -> None:
        self._open.pop(where, None)
        if not self._open and not self._is_finished and self._is_wanted():
            self._is_finished = True
            self._done()
