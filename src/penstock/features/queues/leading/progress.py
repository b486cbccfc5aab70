"""Where queue groups are, told to the group coordinator, so that tools that know Kafka groups show them and their lag.

Every message of a queue is acked for itself; what can be told as one number is the offset before which all is done.
The leader of a queue hands it on when it has changed, at most once a second, and it is committed as by a group without
members, wherever the group's coordinator is. A Kafka group of the same name that has members refuses that, and rightly:
the two are independent. Nor is an offset touched that somebody else has committed, which would make a consumer that
comes back skip messages. Nothing depends on these commits: the queue itself is in its companion log.

Retention ``acked``: what every queue group of a partition is done with leaves the log.

The leader of the companion knows how far the groups are, the leader of the partition moves the log's start, and the two
are the same node but for moments. Only queue groups count: Kafka groups, REST readers and all others that read the
topic find what is left, as they do with any other retention. Where there is no queue group, nothing goes.

How far the queue groups led here are, told once a second to consumer groups and retention.

Only what is committed is told: the groups' offsets are looked at, and handed on once all that was written until then
is on enough replicas. What could still be lost must neither be shown as done nor be removed from the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import msgspec

from penstock.clock import Clock
from penstock.consensus.metadata import Topic
from penstock.consensus.queue_config import QueueSettings, Retention
from penstock.errors import CoordinatorLoading, GroupNotFound, NotCoordinator, PenstockError
from penstock.features.groups.coordinator import GroupCoordinator
from penstock.features.groups.messages import CommitOffsets, DeleteOffsets, MemberIdentity, OffsetCommit
from penstock.features.queues.core.queue import Queue
from penstock.machines.leaders import Leaders, shard_of
from penstock.machines.ports import Ports
from penstock.model import OFFSETS_TOPIC
from penstock.network.port import Method, Nothing
from penstock.supervision import Supervision

log = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 3.0  # with another node
_OFFSETS_AT_ONCE: Final = 500
_FORGOTTEN: Final = -1
_NO_MEMBER: Final = MemberIdentity(member_id="")
QUEUE_MARK: Final = "queue"  # the metadata of offsets that are ours


class QueueOffset(msgspec.Struct, frozen=True, array_like=True):
    """Where a group is in a partition; -1 where it is to be forgotten."""

    topic: str
    topic_id: str
    partition: int
    offset: int


class GroupOffsets(msgspec.Struct, frozen=True, array_like=True):
    group: str
    offsets: tuple[QueueOffset, ...]


class CommitQueues(msgspec.Struct, frozen=True):
    """From the leader of queues to the coordinator of groups of their names."""

    groups: tuple[GroupOffsets, ...]


class QueuesCommitted(msgspec.Struct, frozen=True):
    """The groups that are to be tried again, because they are not coordinated there, or not yet."""

    unsettled: tuple[str, ...]


COMMIT_QUEUES: Final = Method("queues.commit", CommitQueues, QueuesCommitted)


class _Queue(NamedTuple):
    """One group in one partition of one topic; a topic made again under the same name is another one."""

    topic: str
    topic_id: str
    partition: int
    group: str


class QueueCommits:
    """The committed offsets of the queues that this node leads, on their way to the coordinators of their groups."""

    def __init__(
        self,
        leaders: Leaders,
        groups: GroupCoordinator,
        clock: Clock,
        ensure_offsets_topic: Callable[[], Awaitable[Topic]],
        *,
        offsets_retention_ms: int,
    ) -> None:
        self._leaders = leaders
        self._groups = groups
        self._clock = clock
        self._ensure_offsets_topic = ensure_offsets_topic
        # Coordinators forget what is not committed again for long; a queue that stands still is still there.
        self._renew_ms = offsets_retention_ms // 2
        self._known: dict[tuple[str, int], dict[_Queue, int]] = {}  # by topic and partition
        self._due: dict[_Queue, int] = {}
        self._renewed_ms = clock.now_ms()
        leaders.peers.serve(COMMIT_QUEUES, self._on_commit)

    # -- what the leader of a queue says ------------------------------------------------------------------------------

    def follow(self, topic: str, partition: int, committed: Mapping[str, int]) -> None:
        """Up to where each group of a partition has done everything; known ones that are not named are gone."""
        for group, offset in committed.items():
            self.note(topic, partition, group, offset)
        for queue in [queue for queue in self._known.get((topic, partition), ()) if queue.group not in committed]:
            self.forget(topic, partition, queue.group)

    def note(self, topic: str, partition: int, group: str, committed: int) -> None:
        """A group has done everything before an offset."""
        queue = self._queue(topic, partition, group)
        known = self._known.setdefault((topic, partition), {})
        if queue is not None and known.get(queue) != committed:
            known[queue] = self._due[queue] = committed

    def forget(self, topic: str, partition: int, group: str) -> None:
        """A group reads a partition no longer: its offset goes."""
        queue = self._queue(topic, partition, group)
        if queue is not None:
            self._known.get((topic, partition), {}).pop(queue, None)
            self._due[queue] = _FORGOTTEN

    def drop(self, topic: str, partition: int) -> None:
        """This node no longer leads the queues of a partition: its new leader has more to say."""
        for queue in self._known.pop((topic, partition), ()):
            self._due.pop(queue, None)

    def _queue(self, topic: str, partition: int, group: str) -> _Queue | None:
        found = self._leaders.metadata.topics.get(topic)
        return None if found is None else _Queue(topic, found.topic_id.hex, partition, group)

    async def commit_due(self) -> None:
        """Commit what has changed since the last time. What could not be is due again, unless it changed since."""
        self._renew()
        metadata = self._leaders.metadata
        if not self._due:
            return
        due, self._due = self._due, {}
        try:
            await self._ensure_offsets_topic()
            shards = len(metadata.topic(OFFSETS_TOPIC).partitions)
            by_node: dict[int, dict[_Queue, int]] = {}
            for queue, offset in due.items():
                if self._is_there(queue):
                    leader = self._leaders.leader_of(OFFSETS_TOPIC, shard_of(queue.group, shards))
                    by_node.setdefault(leader, {})[queue] = offset
        except PenstockError:
            self._put_back(due.items())
            raise
        for node_id, queues in by_node.items():
            rows = iter(queues.items())
            while chunk := list(islice(rows, _OFFSETS_AT_ONCE)):
                await self._send(node_id, chunk)

    def _renew(self) -> None:
        if self._clock.now_ms() - self._renewed_ms >= self._renew_ms:
            self._renewed_ms = self._clock.now_ms()
            known = {queue: offset for place in self._known.values() for queue, offset in place.items()}
            self._due = {**known, **self._due}

    def _is_there(self, queue: _Queue) -> bool:
        topic = self._leaders.metadata.topics.get(queue.topic)
        return topic is not None and topic.topic_id.hex == queue.topic_id

    async def _send(self, node_id: int, rows: list[tuple[_Queue, int]]) -> None:
        request = CommitQueues(groups=tuple(_by_group(rows)))
        try:
            if node_id < 0:
                raise NotCoordinator("No node coordinates these groups at the moment.")
            reply = (await self._leaders.peers.call(node_id, COMMIT_QUEUES, request, timeout_s=_PATIENCE_SECONDS)).reply
        except PenstockError as error:
            log.debug("Offsets of queues wait to be committed: %s", error.message)
            self._put_back(rows)
            return
        except BaseException:
            self._put_back(rows)
            raise
        assert isinstance(reply, QueuesCommitted)
        self._put_back((queue, offset) for queue, offset in rows if queue.group in reply.unsettled)

    def _put_back(self, rows: Iterable[tuple[_Queue, int]]) -> None:
        for queue, offset in rows:
            known = self._known.get((queue.topic, queue.partition), {})
            if offset == _FORGOTTEN or known.get(queue) == offset:
                self._due.setdefault(queue, offset)

    # -- on the node that coordinates groups --------------------------------------------------------------------------

    async def _on_commit(self, _node_id: int, request: CommitQueues, _body: memoryview) -> QueuesCommitted:
        settled = await asyncio.gather(*(self._commit_group(each) for each in request.groups))
        groups = zip(request.groups, settled, strict=True)
        return QueuesCommitted(unsettled=tuple(each.group for each, is_settled in groups if not is_settled))

    async def _commit_group(self, wanted: GroupOffsets) -> bool:
        try:
            await self._groups.await_shard(wanted.group)
            rows = [row for row in wanted.offsets if self._is_ours(wanted.group, row)]
            kept = tuple(
                OffsetCommit(row.topic, row.partition, row.offset, -1, QUEUE_MARK, row.topic_id)
                for row in rows
                if row.offset != _FORGOTTEN
            )
            gone = tuple((row.topic, row.partition) for row in rows if row.offset == _FORGOTTEN)
            if kept:
                await self._groups.ask(wanted.group, CommitOffsets(_NO_MEMBER, kept))
            if gone:
                await self._groups.ask(wanted.group, DeleteOffsets(gone))
        except (NotCoordinator, CoordinatorLoading):
            return False
        except GroupNotFound:
            return True  # nothing to forget
        except PenstockError as error:
            log.debug("Group %s does not take the offsets of its queue: %s", wanted.group, error.message)
        return True

    def _is_ours(self, group: str, row: QueueOffset) -> bool:
        """Whether only queues have committed there; what was committed for an earlier topic does not count."""
        found = self._groups.find(group)
        known = None if found is None else found.offsets.get((row.topic, row.partition))
        return known is None or known.metadata == QUEUE_MARK or known.topic_id != row.topic_id


def _by_group(rows: Iterable[tuple[_Queue, int]]) -> Iterator[GroupOffsets]:
    groups: dict[str, list[QueueOffset]] = {}
    for queue, offset in rows:
        row = QueueOffset(queue.topic, queue.topic_id, queue.partition, offset)
        groups.setdefault(queue.group, []).append(row)
    for group, offsets in groups.items():
        yield GroupOffsets(group, tuple(offsets))


# Each time a file has to be synced, and an active segment that is done with is closed: not for every message.
_EVERY_MS: Final = 3_000


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
        leaders: Leaders,
        clock: Clock,
        settings_of: Callable[[str], QueueSettings],
        trim: Callable[[str, int, int], Awaitable[int]],
    ) -> None:
        self._leaders = leaders
        self._clock = clock
        self._settings_of = settings_of
        self._trim = trim
        self._done: dict[_Place, int] = {}  # up to where all groups are
        self._trimmed: dict[_Place, int] = {}
        self._not_before_ms: dict[_Place, int] = {}
        leaders.peers.serve(TRIM_ACKED, self._on_trim)

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
        found = self._leaders.metadata.topics.get(topic)
        if found is None or self._settings_of(topic).retention is not Retention.ACKED:
            return False
        request = TrimAcked(topic, found.topic_id, partition, offset)
        try:
            leader = self._leaders.leader_of(topic, partition)
            await self._leaders.peers.call(leader, TRIM_ACKED, request, timeout_s=_PATIENCE_SECONDS)
        except PenstockError as error:
            log.debug("%s-%d is not trimmed yet: %s", topic, partition, error.message)
            return False
        return True

    async def _on_trim(self, _node_id: int, request: TrimAcked, _body: memoryview) -> Nothing:
        """On the leader of the partition. A topic made again under the same name keeps what it has."""
        topic = self._leaders.metadata.topics.get(request.topic)
        if topic is not None and topic.topic_id == request.topic_id:
            await self._trim(request.topic, request.partition, request.offset)
        return Nothing()


_EVERY_SECONDS: Final = 1.0
_TASK: Final = "progress of queues"


class LedQueues(Protocol):
    """The queues of one partition that this node leads."""

    topic: str
    partition: int
    machines: dict[str, Queue]

    def when_settled(self, done: Callable[[PenstockError | None], None]) -> None:
        """Call ``done`` once all that can be seen now is committed."""


class QueueProgress:
    """Looks at the queues that are led here. Iterating over ``led`` gives those that can be asked."""

    def __init__(
        self, led: Iterable[LedQueues], commits: QueueCommits, retention: AckedRetention, supervision: Supervision
    ) -> None:
        self._supervision = supervision
        self._led = led
        self._commits = commits
        self._retention = retention
        self._seen: dict[_Place, tuple[LedQueues, Mapping[str, int]]] = {}  # or about to be
        self._task: asyncio.Task[None] | None = None

    @staticmethod
    def of(
        ports: Ports, groups: GroupCoordinator, led: Iterable[LedQueues], *, offsets_retention_ms: int
    ) -> QueueProgress:
        """The progress of a node's queues, as its groups and logs are told of it. Made once for a node."""
        leaders = ports.leaders
        commits = QueueCommits(
            leaders,
            groups,
            ports.clock,
            partial(ports.topics.ensure_internal, OFFSETS_TOPIC),
            offsets_retention_ms=offsets_retention_ms,
        )
        retention = AckedRetention(
            leaders, ports.clock, lambda topic: ports.topics.settings_of(topic).queue, ports.topics.delete_records
        )
        return QueueProgress(led, commits, retention, ports.supervision)

    def start(self) -> None:
        self._task = self._supervision.start(_TASK, self._go_on)

    async def stop(self) -> None:
        """What was not told is told by the next leader."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            await self.step()

    async def step(self) -> None:
        """Look once, and have done what follows."""
        self._look()
        for outcome in await asyncio.gather(
            self._commits.commit_due(), self._retention.trim_due(), return_exceptions=True
        ):
            if isinstance(outcome, PenstockError):
                log.debug("The progress of queues is told again: %s", outcome.message)
            elif isinstance(outcome, Exception):
                self._supervision.note(_TASK, outcome)

    def _look(self) -> None:
        led = {(each.topic, each.partition): each for each in self._led}
        for place in [place for place in self._seen if place not in led]:
            self._drop(place)
        for place, each in led.items():
            if place in self._seen and self._seen[place][0] is not each:
                self._drop(place)  # leadership was lost and came back, perhaps of another topic of this name
            offsets = {name: queue.committed for name, queue in each.machines.items()}
            if place not in self._seen or self._seen[place][1] != offsets:
                self._seen[place] = (each, offsets)
                each.when_settled(partial(self._tell, each, offsets))

    def _tell(self, each: LedQueues, offsets: Mapping[str, int], error: PenstockError | None) -> None:
        place = (each.topic, each.partition)
        if error is None and place in self._seen and self._seen[place][0] is each:
            self._commits.follow(*place, offsets)
            self._retention.follow(*place, offsets)

    def _drop(self, place: _Place) -> None:
        del self._seen[place]
        self._commits.drop(*place)
        self._retention.drop(*place)
