"""Fetch: whole batches leave as slices of the files they lie in.

Versions 4 to 12 name topics, from 13 on they are meant by id. Fetch sessions (from 7 on) are never granted: session id
0 tells the client to send full requests. A fetch that finds too little waits, up to its ``max_wait_ms``, for any of its
partitions to move.

With isolation level read_committed a fetch ends at the last stable offset, and says which of the transactions it may
meet were aborted: leaving those out is the client's part.

From version 11 on a consumer says in which rack it is, and may be sent to a replica there, which serves it although it
does not lead (KIP-392), where follower reads are switched on.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from penstock.access.acls import AclAction, AclResource
from penstock.broker.broker import Broker
from penstock.doors.kafka.connection import Answer, Connection
from penstock.doors.kafka.errors import error_code
from penstock.doors.kafka.leaders import addresses_of, leader_hint
from penstock.doors.kafka.limits import bounded_fetch
from penstock.doors.kafka.protocol.apis import FETCH
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.fetch import (
    FIRST_TOPIC_ID_VERSION,
    AbortedRange,
    Fetch,
    FetchedPartition,
    FetchedTopic,
    FetchFrame,
    PartitionFetch,
    TopicFetch,
    decode_fetch_request,
    encode_fetch_response,
)
from penstock.doors.kafka.protocol.headers import RequestHeader
from penstock.errors import PenstockError
from penstock.partitions.partition import Partition
from penstock.storage.files import FileSlice

_NO_REPLICA: Final = -1
_NEW_SESSION_EPOCHS: Final = (0, -1)
READ_COMMITTED: Final = 1
_FIRST_RACK_VERSION: Final = 11
_FIRST_HINT_VERSION: Final = 16


# No response is larger, however much a client asks for; it is Kafka's own limit (docs/decisions/0006).
_RESPONSE_BYTES_MAX: Final = 55 * 1024 * 1024
# A partition gets nothing where less than this is left of the response: its next fetch has more.
_WORTH_READING_BYTES: Final = 16 * 1024


class _FetchResult(NamedTuple):
    """What a fetch finds at one moment.

    ``is_final``: waiting would not add to it, because there is more to read already than it may hold, or there is
    something in it that the client should get without delay.
    """

    topics: list[FetchedTopic[FileSlice]]
    size: int
    is_final: bool


class FetchHandler:
    """Answers fetch requests, at once or when there is enough."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, connection: Connection, header: RequestHeader, frame: memoryview) -> None:
        request = bounded_fetch(decode_fetch_request(header.api_version, frame, header.body_position))
        answer = connection.expect_answer(is_barrier=True)
        if request.session_epoch not in _NEW_SESSION_EPOCHS:
            refusal: FetchFrame[FileSlice] = encode_fetch_response(
                header.api_version, header.correlation_id, [], error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            )
            answer.complete(refusal.pieces)
            return
        job = _FetchJob(self._broker, connection, header, request, answer)
        job.run()


class _FetchJob:
    """One fetch request from its first read to its answer."""

    __slots__ = (
        "_answer",
        "_broker",
        "_connection",
        "_header",
        "_is_scheduled",
        "_reads_followers",
        "_request",
        "_timer",
        "_watched",
    )

    def __init__(
        self, broker: Broker, connection: Connection, header: RequestHeader, request: Fetch, answer: Answer
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._header = header
        self._request = request
        self._reads_followers = broker.config.cluster.follower_reads and header.api_version >= _FIRST_RACK_VERSION
        self._answer = answer
        self._timer: asyncio.TimerHandle | None = None
        self._watched: list[Partition] = []
        self._is_scheduled = False

    def run(self) -> None:
        found = self._read_all()
        if self._is_enough(found) or self._request.max_wait_ms <= 0:
            self._finish(found)
        else:
            self._wait()

    def _is_enough(self, found: _FetchResult) -> bool:
        return found.is_final or found.size >= self._request.min_bytes or not found.topics

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._request.max_wait_ms / 1000, self._on_time)
        self._answer.on_dropped = self._unwatch
        for topic in self._request.topics:
            name = self._name_of(topic)
            for wanted in topic.partitions:
                partition = self._broker.partition(name, wanted.partition)
                partition.watch(self._on_advanced)
                self._watched.append(partition)

    def _on_advanced(self) -> None:
        """Read again soon, once for everything that is appended in this turn of the loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._read_again)

    def _read_again(self) -> None:
        self._is_scheduled = False
        if self._answer.is_done:
            return
        if self._connection.is_closed:
            self._unwatch()
            return
        found = self._read_all()
        if self._is_enough(found):
            self._finish(found)

    def _on_time(self) -> None:
        if self._connection.is_closed:
            self._unwatch()
        elif not self._answer.is_done:
            self._finish(self._read_all())

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._answer.on_dropped = None
        for partition in self._watched:
            partition.unwatch(self._on_advanced)
        self._watched.clear()

    def _finish(self, found: _FetchResult) -> None:
        self._unwatch()
        self._count(found)
        if self._connection.throttle is not None:
            self._connection.throttle.on_fetched(found.size)
        hints = [at.current_leader for topic in found.topics for at in topic.partitions if at.current_leader]
        frame = encode_fetch_response(
            self._header.api_version,
            self._header.correlation_id,
            found.topics,
            throttle_time_ms=self._connection.throttle_ms,
            node_endpoints=addresses_of(self._broker, hints, self._connection.local_host) if hints else (),
        )
        self._answer.complete(frame.pieces)

    def _count(self, found: _FetchResult) -> None:
        for topic, asked in zip(found.topics, self._request.topics, strict=True):
            for result, wanted in zip(topic.partitions, asked.partitions, strict=True):
                if result.records is not None:
                    stats = self._broker.stats.topic(self._name_of(asked))
                    stats.bytes_consumed += result.records.size
                    stats.messages_consumed += max(0, result.records.next_offset - wanted.offset)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read_all(self) -> _FetchResult:
        request = self._request
        is_limited = self._connection.caller.is_limited
        left = min(request.max_bytes, _RESPONSE_BYTES_MAX)
        size = 0
        is_final = False
        topics: list[FetchedTopic[FileSlice]] = []
        for topic in request.topics:
            results: list[FetchedPartition[FileSlice]] = []
            name = self._name_of(topic)
            if is_limited and name and not self._may_read(name):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                refused = [FetchedPartition[FileSlice](wanted.partition, code) for wanted in topic.partitions]
                topics.append(FetchedTopic(topic.name, refused, topic.topic_id))
                is_final = True
                continue
            for wanted in topic.partitions:
                result = self._read(name, wanted, left, is_first=size == 0)
                results.append(result)
                if result.records is not None:
                    size += result.records.size
                    left -= result.records.size
                is_final = is_final or self._is_urgent(result)
            topics.append(FetchedTopic(topic.name, results, topic.topic_id))
        return _FetchResult(topics, size, is_final)

    def _may_read(self, name: str) -> bool:
        """Whether the caller may read a topic now: it may have lost the right while the fetch waited."""
        caller = self._connection.caller
        is_follower = self._request.replica_id >= 0  # as it says; nodes do not come through this door
        if caller.may_read(name) and (not is_follower or caller.may_cluster(AclAction.CLUSTER_ACTION)):
            return True
        caller.refuse(FETCH, AclResource.TOPIC, name)
        return False

    def _is_urgent(self, result: FetchedPartition[FileSlice]) -> bool:
        """Whether a partition has more to read than what was found, or a result that should not wait."""
        if result.error_code != 0 or result.preferred_read_replica != _NO_REPLICA:
            return True
        is_committed_only = self._request.isolation_level == READ_COMMITTED
        limit = result.last_stable_offset if is_committed_only else result.high_watermark
        return result.records is not None and result.records.next_offset < limit

    def _read(self, name: str, wanted: PartitionFetch, left: int, *, is_first: bool) -> FetchedPartition[FileSlice]:
        if not name:
            return FetchedPartition(wanted.partition, ErrorCode.UNKNOWN_TOPIC_ID)
        is_committed_only = self._request.isolation_level == READ_COMMITTED
        preferred = _NO_REPLICA
        try:
            partition = self._broker.partition(name, wanted.partition)
            if self._reads_followers:
                preferred = self._choose(partition, wanted)
            else:
                partition.check_leader(wanted.current_leader_epoch)
            found = None
            is_worth_it = left >= _WORTH_READING_BYTES or is_first  # at least one batch, however large (KIP-74)
            if is_worth_it and preferred == _NO_REPLICA:
                max_bytes = min(wanted.max_bytes, max(left, 1))
                found = partition.read(wanted.offset, max_bytes, is_committed_only=is_committed_only)
        except PenstockError as error:
            return self._refused(name, wanted.partition, error)
        if found is not None and found.size > left and not is_first:
            found = None
        return FetchedPartition(
            wanted.partition,
            0,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log.start_offset,
            _aborted_in(partition, wanted.offset, found) if is_committed_only else None,
            preferred,
            found,
        )

    def _choose(self, partition: Partition, wanted: PartitionFetch) -> int:
        """The replica that the consumer should read from instead of this one, if there is a nearer one."""
        if partition.is_leader:
            partition.check_leader(wanted.current_leader_epoch)
            nearer = self._broker.metadata.replica_in_rack(*partition.id, self._request.rack_id)
            return _NO_REPLICA if nearer is None else nearer
        partition.check_follower(wanted.current_leader_epoch, wanted.offset)
        return _NO_REPLICA

    def _refused(self, name: str, index: int, error: PenstockError) -> FetchedPartition[FileSlice]:
        code = error_code(error)
        hint = leader_hint(self._broker, name, index, code) if self._header.api_version >= _FIRST_HINT_VERSION else None
        return FetchedPartition(index, code, current_leader=hint)

    def _name_of(self, topic: TopicFetch) -> str:
        """The topic's name; empty if the request means it by an id that is unknown here."""
        if self._header.api_version < FIRST_TOPIC_ID_VERSION:
            return topic.name
        known = self._broker.metadata.topic_by_id(topic.topic_id)
        return "" if known is None else known.name


def _aborted_in(partition: Partition, offset: int, found: FileSlice | None) -> list[AbortedRange]:
    """The aborted transactions that the client meets in the batches it is about to get."""
    if found is None:
        return []
    entries = partition.aborted_in(offset, found.next_offset)
    return [AbortedRange(entry.producer_id, entry.first_offset) for entry in entries]
