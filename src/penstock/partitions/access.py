"""Partitions wherever they are led: `Partitions` appends to and reads any partition of the cluster, from any node.

A partition led here is taken with `Partitions.local` and used directly; that is the hot path. Every other call goes to
the partition's leader, with the leader epoch that this node knows; a node that does not lead in that epoch refuses.
What was refused for certain is tried again for a short while, because leaders change and metadata reaches nodes one
after the other. What may have happened is tried again only where doing it twice does no harm: reads, and batches that
have a producer's sequence numbers.

An append is answered once it is committed, with the errors of the leader as they are; except that a leader which is
replaced while its batch waits cannot say what becomes of it, which is `RequestTimedOut`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple, Protocol, TypeVar
from uuid import UUID

import msgspec

from penstock.clock import Clock
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import NO_LEADER, PartitionAssigned
from penstock.errors import (
    FencedLeaderEpoch,
    LeaderNotAvailable,
    NotLeader,
    OffsetNotAvailable,
    PeerNotReached,
    PeerUnavailable,
    PenstockError,
    RequestTimedOut,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnknownTopic,
)
from penstock.network.port import Method, Nothing, Peers, Reply
from penstock.partitions.beside import beside
from penstock.partitions.partition import Appended, LeadershipListener, Partition
from penstock.records import parse_header
from penstock.records.varint import ReadableBuffer
from penstock.storage.aborted import AbortedTransaction
from penstock.storage.segments import TimestampOffset

T = TypeVar("T")
Where = tuple[str, int]

_RETRY_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.05
_EXTENTS_TIMEOUT_SECONDS: Final = 2.0
_READ_TIMEOUT_SECONDS: Final = 10.0
# What the network may take, beyond the time that the leader may take.
_NETWORK_SECONDS: Final = 2.0
# Refused before anything was done.
_REFUSED: Final = (
    NotLeader,
    FencedLeaderEpoch,
    UnknownLeaderEpoch,
    LeaderNotAvailable,
    UnknownTopic,
    UnknownPartition,
    PeerNotReached,
)
_REPEATABLE: Final = (*_REFUSED, OffsetNotAvailable, PeerUnavailable)


# -- where reading begins ----------------------------------------------------------------------------------------------


class SinceTime(NamedTuple):
    """From the first message at or after a point in time on."""

    timestamp_ms: int


Start = int | Literal["earliest", "latest"] | SinceTime


async def resolve_start(partition: Partition, start: Start) -> int:
    """The offset that a start stands for; a number is taken as it is."""
    if start == "earliest":
        return partition.log.start_offset
    end = partition.last_stable_offset
    if start == "latest":
        return end
    if isinstance(start, SinceTime):
        found = await find_time(partition, start.timestamp_ms)
        partition.log.check_before(found)
        return end if found is None else min(found.offset, end)
    return start


async def find_time(partition: Partition, timestamp: int) -> TimestampOffset | None:
    """The first record at or after a point in time. Damage that may hide it is for the caller to look for."""
    log = partition.log
    dated = log.find_dated(log.start_offset, timestamp)
    while dated is not None:
        found = await beside(dated.batch, partial(dated.find, timestamp))
        if found is not None:
            return found
        dated = log.find_dated(dated.header.next_offset, timestamp)  # anew: segments may have gone meanwhile
    return None


# -- what nodes say to each other --------------------------------------------------------------------------------------


class PartitionRef(msgspec.Struct, frozen=True, array_like=True):
    """A partition of a topic that may meanwhile be another one of the same name."""

    topic_id: UUID
    partition: int


class AppendBatch(msgspec.Struct, frozen=True):
    """One batch, in the body. ``is_internal``: made by the broker, and not numbered. ``is_thinned``: it has gaps."""

    place: PartitionRef
    leader_epoch: int
    timeout_ms: int
    is_internal: bool = False
    is_thinned: bool = False


class BatchAppended(msgspec.Struct, frozen=True):
    """The batch is committed."""

    base_offset: int
    next_offset: int
    append_time_ms: int


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """What a node holds of a partition."""

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    size_bytes: int
    segments: int
    is_leader: bool


class ReadRemote(msgspec.Struct, frozen=True):
    """Committed batches from an offset on; where there are none yet, those that come within ``wait_ms``."""

    place: PartitionRef
    leader_epoch: int
    offset: int
    max_bytes: int
    wait_ms: int = 0


class BatchesRead(msgspec.Struct, frozen=True):
    """What comes before the batches in the body. ``next_offset`` is -1 where there are none, or it is not known."""

    extent: Extent
    next_offset: int
    aborted: tuple[AbortedTransaction, ...]


class LocateOffset(msgspec.Struct, frozen=True):
    """Find the offset that a start stands for; with a time, by that."""

    place: PartitionRef
    leader_epoch: int
    is_latest: bool
    timestamp_ms: int | None = None


class OffsetLocated(msgspec.Struct, frozen=True):
    offset: int


class GetExtents(msgspec.Struct, frozen=True):
    places: tuple[PartitionRef, ...]


class Extents(msgspec.Struct, frozen=True):
    """The extent of each place asked for; None where the node has no replica of it."""

    extents: tuple[Extent | None, ...]


class AwaitMore(msgspec.Struct, frozen=True):
    """Answer once there is more to read somewhere than up to these offsets, or when the time is over."""

    positions: tuple[tuple[PartitionRef, int], ...]
    wait_ms: int


APPEND: Final = Method("partition.append", AppendBatch, BatchAppended, is_bulk=True)
READ: Final = Method("partition.read", ReadRemote, BatchesRead, is_bulk=True)
LOCATE: Final = Method("partition.locate", LocateOffset, OffsetLocated)
GET_EXTENTS: Final = Method("partition.look", GetExtents, Extents)
AWAIT_MORE: Final = Method("partition.await", AwaitMore, Nothing)


class Batches(NamedTuple):
    """Batches as stored, the aborted transactions among them, and how far the partition reaches."""

    data: memoryview
    aborted: list[AbortedTransaction]
    extent: Extent


def extent_of(partition: Partition) -> Extent:
    """What this node holds of a partition."""
    log = partition.log
    return Extent(
        log_start_offset=log.start_offset,
        log_end_offset=log.end_offset,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        leader_epoch=partition.leader_epoch,
        size_bytes=log.size_bytes,
        segments=len(log.segments),
        is_leader=partition.is_leader,
    )


# -- asking ------------------------------------------------------------------------------------------------------------


class LocalReplicas(Protocol):
    """The partitions of which this node holds a replica."""

    def get(self, topic: str, index: int) -> Partition:
        """The replica; `UnknownTopic`, `UnknownPartition` or `NotLeader` if there is none here."""

    def led(self, topic: str, index: int) -> Partition | None:
        """The partition, if this node leads it now."""

    def find(self, topic_id: UUID, index: int) -> Partition | None:
        """The replica of a topic that may meanwhile be another one of the same name."""

    def has(self, topic: str, index: int) -> bool:
        """Whether there is a replica here."""

    def listen(self, listener: LeadershipListener) -> None:
        """Tell ``listener`` of each partition that is led here from now on, or no longer."""


class Partitions:
    """Every partition of the cluster, as this node reaches it.

    ``local`` is the partition led here or None, ``get`` the replica here or an error; these, ``find``, ``has`` and
    ``listen`` are the replicas' own.
    """

    def __init__(self, replicas: LocalReplicas, metadata: ClusterMetadata, peers: Peers, clock: Clock) -> None:
        self._metadata = metadata
        self._peers = peers
        self._clock = clock
        self.get = replicas.get
        self.local = replicas.led
        self.find = replicas.find
        self.has = replicas.has
        self.listen = replicas.listen

    async def append(
        self,
        topic: str,
        index: int,
        batch: ReadableBuffer,
        *,
        timeout_ms: int,
        is_internal: bool = False,
        is_thinned: bool = False,
    ) -> Appended:
        """Append a batch and return once it is committed, at most ``timeout_ms`` after it was written."""
        data = bytes(batch)  # the leader stamps a batch in place, and it may have to be sent again
        has_sequence = parse_header(memoryview(data)).base_sequence >= 0

        async def attempt(place: PartitionRef, assigned: PartitionAssigned) -> Appended:
            request = AppendBatch(place, assigned.leader_epoch, timeout_ms, is_internal, is_thinned)
            timeout_s = timeout_ms / 1000 + _NETWORK_SECONDS
            received = await self._peers.call(assigned.leader, APPEND, request, (data,), timeout_s=timeout_s)
            reply: BatchAppended = received.reply
            return Appended(reply.base_offset, reply.next_offset, reply.append_time_ms)

        again = _REPEATABLE if has_sequence else _REFUSED
        return await self._at_leader(topic, index, attempt, again)

    async def read(self, topic: str, index: int, offset: int, max_bytes: int, *, wait_ms: int = 0) -> Batches:
        """Committed batches from ``offset`` on, no data if none come within ``wait_ms``."""

        async def attempt(place: PartitionRef, assigned: PartitionAssigned) -> Batches:
            request = ReadRemote(place, assigned.leader_epoch, offset, max_bytes, wait_ms)
            timeout_s = _READ_TIMEOUT_SECONDS + wait_ms / 1000
            received = await self._peers.call(assigned.leader, READ, request, timeout_s=timeout_s)
            reply: BatchesRead = received.reply
            return Batches(received.body, list(reply.aborted), reply.extent)

        return await self._at_leader(topic, index, attempt, _REPEATABLE)

    async def locate(self, topic: str, index: int, start: Start) -> int:
        """The offset that a start stands for; a number is taken as it is.

        A new leader may not know the end yet, and is asked again until it does.
        """
        if isinstance(start, int):
            return start
        partition = self.local(topic, index)
        if partition is not None and (partition.is_watermark_known or start == "earliest"):
            return await resolve_start(partition, start)
        timestamp_ms = start.timestamp_ms if isinstance(start, SinceTime) else None

        async def attempt(place: PartitionRef, assigned: PartitionAssigned) -> int:
            request = LocateOffset(place, assigned.leader_epoch, start == "latest", timestamp_ms)
            reply: OffsetLocated = (await self._peers.call(assigned.leader, LOCATE, request)).reply
            return reply.offset

        return await self._at_leader(topic, index, attempt, _REPEATABLE)

    async def _at_leader(
        self,
        topic: str,
        index: int,
        attempt: Callable[[PartitionRef, PartitionAssigned], Awaitable[T]],
        again: tuple[type[PenstockError], ...],
    ) -> T:
        """Have the leader do something; ``again`` are the errors after which it is tried once more."""
        topic_id = self._metadata.topic(topic).topic_id
        deadline = self._clock.monotonic() + _RETRY_SECONDS
        while True:
            found = self._metadata.topic_by_id(topic_id)
            if found is None:
                raise UnknownTopic(f"Topic {topic!r} was deleted in the meantime.")
            assigned = self._metadata.partition(found.name, index)
            try:
                if assigned.leader == NO_LEADER:
                    raise LeaderNotAvailable(f"{topic}-{index} has no leader now. Try again in a moment.")
                return await attempt(PartitionRef(topic_id, index), assigned)
            except again:
                if self._clock.monotonic() + _PAUSE_SECONDS > deadline:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)

    # -- many at once -------------------------------------------------------------------------------------------------

    async def extents(self, places: Iterable[Where]) -> dict[Where, Extent]:
        """How far partitions reach. One that does not exist, or whose leader does not answer soon, is left out."""
        found: dict[Where, Extent] = {}
        elsewhere: dict[Where, tuple[int]] = {}
        for where in dict.fromkeys(places):
            partition = self.local(*where)
            if partition is not None:
                found[where] = extent_of(partition)
            elif (leader := self._leader_of(where)) != NO_LEADER:
                elsewhere[where] = (leader,)
        if elsewhere:
            answered = await self.extents_at(elsewhere)
            found |= {where: extent for (where, _), extent in answered.items() if extent.is_leader}
        return found

    async def extents_at(self, nodes: Mapping[Where, Sequence[int]]) -> dict[tuple[Where, int], Extent]:
        """What each of the named nodes holds of each partition, as far as they answer soon."""
        asked: dict[int, list[Where]] = {}
        for where, node_ids in nodes.items():
            for node_id in node_ids:
                asked.setdefault(node_id, []).append(where)
        answers = await asyncio.gather(*(self._get_extents(node_id, wheres) for node_id, wheres in asked.items()))
        return {
            (where, node_id): extent
            for (node_id, wheres), extents in zip(asked.items(), answers, strict=True)
            for where, extent in zip(wheres, extents, strict=False)
            if extent is not None
        }

    async def _get_extents(self, node_id: int, wheres: Sequence[Where]) -> tuple[Extent | None, ...]:
        request = GetExtents(tuple(self._place(where) for where in wheres))
        try:
            found: Extents = (
                await self._peers.call(node_id, GET_EXTENTS, request, timeout_s=_EXTENTS_TIMEOUT_SECONDS)
            ).reply
        except PenstockError:
            return ()
        return found.extents

    async def await_more(self, positions: Mapping[Where, int], wait_ms: int) -> None:
        """Return once some partition can be read beyond its offset, or after ``wait_ms``.

        Cancelling it leaves nothing behind.
        """
        here: dict[Partition, int] = {}
        asked: dict[int, list[tuple[PartitionRef, int]]] = {}
        for where, offset in positions.items():
            partition = self.local(*where)
            if partition is not None:
                here[partition] = offset
            elif (leader := self._leader_of(where)) != NO_LEADER:
                asked.setdefault(leader, []).append((self._place(where), offset))
        if not asked:
            await _await_beyond(here, wait_ms)
            return
        waits = [asyncio.ensure_future(self._await_at(node, rows, wait_ms)) for node, rows in asked.items()]
        if here:
            waits.append(asyncio.ensure_future(_await_beyond(here, wait_ms)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _await_at(self, node_id: int, positions: list[tuple[PartitionRef, int]], wait_ms: int) -> None:
        request = AwaitMore(tuple(positions), wait_ms)
        try:
            await self._peers.call(node_id, AWAIT_MORE, request, timeout_s=wait_ms / 1000 + _NETWORK_SECONDS)
        except PenstockError:
            await asyncio.sleep(wait_ms / 1000)  # it is looked for again after that

    def _leader_of(self, where: Where) -> int:
        topic = self._metadata.topics.get(where[0])
        if topic is None or not 0 <= where[1] < len(topic.partitions):
            return NO_LEADER
        return topic.partitions[where[1]].leader

    def _place(self, where: Where) -> PartitionRef:
        return PartitionRef(self._metadata.topic(where[0]).topic_id, where[1])


async def _await_beyond(positions: Mapping[Partition, int], wait_ms: int) -> None:
    """Return once a partition can be read beyond its offset, or is no longer led here, or after ``wait_ms``."""
    moved = asyncio.Event()
    for partition in positions:
        partition.watch(moved.set)
    try:
        async with asyncio.timeout(wait_ms / 1000):
            while all(at.is_leader and at.last_stable_offset <= offset for at, offset in positions.items()):
                await moved.wait()
                moved.clear()
    except TimeoutError:
        return
    finally:
        for partition in positions:
            partition.unwatch(moved.set)


# -- answering ---------------------------------------------------------------------------------------------------------


class PartitionService:
    """Does what other nodes ask of the partitions on this one."""

    def __init__(self, replicas: LocalReplicas, clock: Clock, *, syncs: bool) -> None:
        self._replicas = replicas
        self._clock = clock
        self._syncs = syncs

    def serve(self, peers: Peers) -> None:
        peers.serve(APPEND, self._append)
        peers.serve(READ, self._read)
        peers.serve(LOCATE, self._locate)
        peers.serve(GET_EXTENTS, self._get_extents)
        peers.serve(AWAIT_MORE, self._await_more)

    def _partition(self, place: PartitionRef) -> Partition:
        partition = self._replicas.find(place.topic_id, place.partition)
        if partition is None:
            raise NotLeader("This node does not have the partition, or not yet.")
        return partition

    async def _append(self, _node_id: int, request: AppendBatch, body: memoryview) -> BatchAppended:
        partition = self._partition(request.place)
        partition.check_leader(request.leader_epoch)
        partition.check_in_sync()
        batch = memoryview(bytearray(body))  # it is stamped in place
        now_ms, kind = self._clock.now_ms(), {"is_internal": request.is_internal, "is_thinned": request.is_thinned}
        appended = partition.append(batch, now_ms, is_durable=self._syncs, **kind)
        try:
            async with asyncio.timeout(request.timeout_ms / 1000):
                error = await partition.committed(appended.next_offset)
        except TimeoutError:
            raise RequestTimedOut(
                f"The batch was written to {partition.id} but not committed within {request.timeout_ms} ms. It may "
                "still be; publishing it again may make it appear twice."
            ) from None
        if isinstance(error, NotLeader):
            raise RequestTimedOut(
                f"{partition.id} got another leader before the batch was committed. It may still be; publishing it "
                "again may make it appear twice."
            )
        if error is not None:
            raise error
        return BatchAppended(*appended)

    async def _read(self, _node_id: int, request: ReadRemote, _body: memoryview) -> Reply:
        partition = self._partition(request.place)
        partition.check_leader(request.leader_epoch)
        found = partition.read(request.offset, request.max_bytes, is_committed_only=True)
        if found is None and request.wait_ms > 0:
            await _await_beyond({partition: request.offset}, request.wait_ms)
            partition.check_leader(request.leader_epoch)
            found = partition.read(request.offset, request.max_bytes, is_committed_only=True)
        if found is None:
            return Reply(BatchesRead(extent_of(partition), -1, ()))
        aborted = tuple(partition.aborted_in(request.offset, found.next_offset))
        return Reply(BatchesRead(extent_of(partition), found.next_offset, aborted), (found,))

    async def _locate(self, _node_id: int, request: LocateOffset, _body: memoryview) -> OffsetLocated:
        partition = self._partition(request.place)
        partition.check_leader(request.leader_epoch)
        start: Start = "latest" if request.is_latest else "earliest"
        if request.timestamp_ms is not None:
            start = SinceTime(request.timestamp_ms)
        if not partition.is_watermark_known and start != "earliest":
            raise OffsetNotAvailable(f"It is not known yet up to where {partition.id} is committed. Try again.")
        return OffsetLocated(await resolve_start(partition, start))

    def _get_extents(self, _node_id: int, request: GetExtents, _body: memoryview) -> Extents:
        extents: list[Extent | None] = []
        for place in request.places:
            try:
                extents.append(extent_of(self._partition(place)))
            except PenstockError:
                extents.append(None)
        return Extents(tuple(extents))

    async def _await_more(self, _node_id: int, request: AwaitMore, _body: memoryview) -> Nothing:
        positions = {self._partition(place): offset for place, offset in request.positions}
        for partition in positions:
            partition.check_leader()
        await _await_beyond(positions, request.wait_ms)
        return Nothing()
