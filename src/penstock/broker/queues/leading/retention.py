"""Retention ``acked``: what every queue group of a partition is done with leaves the log.

The leader of the companion knows how far the groups are, the leader of the partition moves the log's start, and the two
are the same node but for moments. Only queue groups count: Kafka groups, REST readers and whoever else reads the topic
find what is left, as they do with any other retention. Where there is no queue group, nothing goes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from uuid import UUID

import msgspec

from penstock.broker.coordination.neighbours import Neighbours
from penstock.clock import Clock
from penstock.cluster.queue_config import QueueSettings, Retention
from penstock.errors import PenstockError
from penstock.peers.port import Method, Nothing

log = logging.getLogger(__name__)

# Each time a file has to be synced, and an active segment that is done with is closed: not for every message.
_EVERY_MS: Final = 3_000
_PATIENCE_SECONDS: Final = 3.0  # with another node


class TrimAcked(msgspec.Struct, frozen=True):
    """Everything before an offset is acked by all who count."""

    topic: str
    topic_id: UUID
    partition: int
    offset: int


TRIM_ACKED: Final = Method("queues.trim", TrimAcked, Nothing)

_Place = tuple[str, int]


class AckedRetention:
    """Up to where the groups of each partition led here are done, and the trims that follow from it."""

    def __init__(
        self,
        neighbours: Neighbours,
        clock: Clock,
        settings_of: Callable[[str], QueueSettings],
        trim: Callable[[str, int, int], Awaitable[int]],
    ) -> None:
        self._neighbours = neighbours
        self._clock = clock
        self._settings_of = settings_of
        self._trim = trim
        self._done: dict[_Place, int] = {}  # up to where all groups are
        self._trimmed: dict[_Place, int] = {}
        self._not_before_ms: dict[_Place, int] = {}
        neighbours.peers.serve(TRIM_ACKED, self._on_trim)

    def follow(self, topic: str, partition: int, committed: Mapping[str, int]) -> None:
        """Up to where each group of a partition has done everything; it must be certain, not only written."""
        if committed:
            self._done[topic, partition] = min(committed.values())
        else:
            self._done.pop((topic, partition), None)

    def drop(self, topic: str, partition: int) -> None:
        """This node no longer leads the queues of a partition."""
        for places in (self._done, self._trimmed, self._not_before_ms):
            places.pop((topic, partition), None)

    async def trim_due(self) -> None:
        """Move the starts of the logs that have a reason to."""
        now_ms = self._clock.now_ms()
        for place, offset in tuple(self._done.items()):
            if offset <= self._trimmed.get(place, 0) or now_ms < self._not_before_ms.get(place, 0):
                continue
            self._not_before_ms[place] = now_ms + _EVERY_MS
            if await self._trim_one(*place, offset) and place in self._done:
                self._trimmed[place] = offset

    async def _trim_one(self, topic: str, partition: int, offset: int) -> bool:
        found = self._neighbours.metadata.topics.get(topic)
        if found is None or self._settings_of(topic).retention is not Retention.ACKED:
            return False
        request = TrimAcked(topic, found.topic_id, partition, offset)
        try:
            leader = self._neighbours.leader_of(topic, partition)
            await self._neighbours.peers.call(leader, TRIM_ACKED, request, timeout_s=_PATIENCE_SECONDS)
        except PenstockError as error:
            log.debug("%s-%d is not trimmed yet: %s", topic, partition, error.message)
            return False
        return True

    async def _on_trim(self, _node_id: int, request: TrimAcked, _body: memoryview) -> Nothing:
        """On the leader of the partition. A topic made again under the same name keeps what it has."""
        topic = self._neighbours.metadata.topics.get(request.topic)
        if topic is not None and topic.topic_id == request.topic_id:
            await self._trim(request.topic, request.partition, request.offset)
        return Nothing()
