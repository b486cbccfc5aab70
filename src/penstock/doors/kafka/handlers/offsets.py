"""ListOffsets, OffsetForLeaderEpoch: offsets of a log. OffsetCommit, OffsetFetch, OffsetDelete: offsets of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from penstock.access.acls import AclAction
from penstock.consensus.metadata import Topic
from penstock.doors.kafka.caller import Caller
from penstock.doors.kafka.errors import commit_error_code, error_code
from penstock.doors.kafka.fetch import READ_COMMITTED
from penstock.doors.kafka.handler import CoordinatorRequest, Handler, RequestContext, error_codes
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages import offsets as wire
from penstock.doors.kafka.protocol.messages.shared import TopicPartitionIndexes
from penstock.doors.kafka.protocol.messages.transactions import TxnOffsetCommitRequestTopic
from penstock.errors import InvalidRequest, OffsetNotAvailable, PenstockError
from penstock.features.groups.consumer.group import ConsumerGroup
from penstock.features.groups.messages import CommitOffsets, DeleteOffsets, MemberIdentity, OffsetCommit, Settled, Where
from penstock.features.groups.slot import AnyGroup
from penstock.machines.messages import Rejected
from penstock.partitions.access import find_time
from penstock.partitions.partition import Partition

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3  # from version 7 on (KIP-734)
_EARLIEST_LOCAL: Final = -4  # from version 8 on (KIP-405); everything is local here
_LATEST_TIERED: Final = -5  # from version 9 on (KIP-1005); nothing is tiered here

_FIRST_MANY_GROUPS_VERSION: Final = 8
_FIRST_GROUP_ERROR_VERSION: Final = 2
_NO_OFFSET: Final = -1
_NO_MEMBER: Final = (None, -1)  # a client that is no member, or whose version does not say


async def list_offsets(context: RequestContext, request: wire.ListOffsetsRequest) -> wire.ListOffsetsResponse:
    """Versions 1 to 9: the offset of a point in time, or of one of the special points above.

    A leader that is new may not know yet how far its log is committed (KIP-207); it says so, and clients try again.
    From 2 on a reader of committed transactions gets nothing at or after the last stable offset.
    """
    is_committed_only = request.isolation_level == READ_COMMITTED
    named = Counter((topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions)
    return wire.ListOffsetsResponse(
        topics=tuple(
            [
                wire.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        [
                            await _list(context, topic.name, wanted, is_committed_only=is_committed_only)
                            if named[topic.name, wanted.partition_index] == 1
                            else _named_twice(wanted)  # as in Kafka
                            for wanted in topic.partitions
                        ]
                    ),
                )
                for topic in request.topics
            ]
        )
    )


async def _list(
    context: RequestContext, topic: str, wanted: wire.ListOffsetsPartition, *, is_committed_only: bool
) -> wire.ListOffsetsPartitionResponse:
    try:
        partition = context.broker.partition(topic, wanted.partition_index)
        partition.check_leader(wanted.current_leader_epoch)
        if not partition.is_watermark_known and wanted.timestamp not in (_EARLIEST, _EARLIEST_LOCAL, _LATEST_TIERED):
            raise OffsetNotAvailable(f"It is not known yet up to where {partition.id} is committed. Try again.")
        limit = partition.last_stable_offset if is_committed_only else partition.high_watermark
        offset, timestamp, epoch = await _find(partition, wanted.timestamp, limit)
    except PenstockError as error:
        return wire.ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=error_code(error))
    return wire.ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        error_code=ErrorCode.NONE,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch,
    )


def _named_twice(wanted: wire.ListOffsetsPartition) -> wire.ListOffsetsPartitionResponse:
    return wire.ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index, error_code=ErrorCode.INVALID_REQUEST
    )


async def _find(partition: Partition, timestamp: int, limit: int) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch) of something below ``limit``; -1 where there is none."""
    log = partition.log
    if timestamp == _LATEST:
        return limit, -1, partition.leader_epoch
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        epochs = log.epochs.items()
        first = next((start.epoch for start in reversed(epochs) if start.start_offset <= log.start_offset), -1)
        return log.start_offset, -1, first
    if timestamp == _LATEST_TIERED:
        return -1, -1, -1
    if timestamp < _LATEST_TIERED:
        raise InvalidRequest(f"{timestamp} is no point in time.")
    if timestamp == _MAX_TIMESTAMP:
        found = await find_time(partition, log.largest_timestamp)
    else:
        found = await find_time(partition, timestamp)
        log.check_before(found)
    if found is None or found.offset >= limit:
        return -1, -1, -1
    return found.offset, found.timestamp, found.leader_epoch


def offset_for_leader_epoch(
    context: RequestContext, request: wire.OffsetForLeaderEpochRequest
) -> wire.OffsetForLeaderEpochResponse:
    """Versions 2 to 4: where an epoch ended, so that a client can tell whether its position was cut away (KIP-320)."""
    return wire.OffsetForLeaderEpochResponse(
        topics=tuple(
            wire.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(_epoch_end(context, topic.topic, wanted) for wanted in topic.partitions),
            )
            for topic in request.topics
        )
    )


def _epoch_end(context: RequestContext, topic: str, wanted: wire.OffsetForLeaderPartition) -> wire.EpochEndOffset:
    try:
        partition = context.broker.partition(topic, wanted.partition)
        partition.check_leader(wanted.current_leader_epoch)
    except PenstockError as error:
        return wire.EpochEndOffset(error_code=error_code(error), partition=wanted.partition)
    if wanted.leader_epoch == partition.leader_epoch:
        epoch, end = wanted.leader_epoch, partition.log.end_offset
    else:
        epoch, end = partition.log.epochs.end_offset(wanted.leader_epoch, partition.log.end_offset)
    return wire.EpochEndOffset(
        error_code=ErrorCode.NONE, partition=wanted.partition, leader_epoch=epoch, end_offset=end
    )


# -- OffsetCommit ------------------------------------------------------------------------------------------------------


def offset_commit(context: RequestContext, request: wire.OffsetCommitRequest) -> CoordinatorRequest:
    """Versions 2 to 9. Up to 4 with a retention time, which the cluster's setting replaces (KIP-211)."""
    identity = MemberIdentity(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
    )
    commits = commits_of(context, request.topics)
    respond = partial(_commit_response, request, commits)
    return CoordinatorRequest(context.broker.groups, request.group_id, CommitOffsets(identity, commits), respond)


def _commit_response(
    request: wire.OffsetCommitRequest, commits: Sequence[OffsetCommit], answer: Settled | Rejected
) -> wire.OffsetCommitResponse:
    if isinstance(answer, Settled):
        codes = commit_codes(commits, answer.refused)
    else:
        codes = commit_codes(commits, {}, commit_error_code(answer.error))
    topics = [(topic.name, [row.partition_index for row in topic.partitions]) for topic in request.topics]
    return wire.OffsetCommitResponse(topics=error_codes(topics, codes))


def commits_of(
    context: RequestContext, topics: Iterable[wire.OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic]
) -> tuple[OffsetCommit, ...]:
    """The offsets that a request commits to partitions that exist."""
    commits: list[OffsetCommit] = []
    known = context.broker.metadata.topics
    for asked in topics:
        topic = known.get(asked.name)
        if topic is None:
            continue
        name, topic_id, count = asked.name, topic.topic_id.hex, len(topic.partitions)
        commits += [
            OffsetCommit(
                name,
                row.partition_index,
                row.committed_offset,
                row.committed_leader_epoch,
                row.committed_metadata or "",
                topic_id,
            )
            for row in asked.partitions
            if 0 <= row.partition_index < count
        ]
    return tuple(commits)


def commit_codes(
    commits: Iterable[OffsetCommit], refused: Mapping[Where, PenstockError], code: ErrorCode = ErrorCode.NONE
) -> dict[Where, ErrorCode]:
    """The code of each commit: that of its refusal, else ``code``."""
    codes = {(commit.topic, commit.partition): code for commit in commits}
    for where, error in refused.items():
        codes[where] = error_code(error)
    return codes


# -- OffsetFetch -------------------------------------------------------------------------------------------------------


async def offset_fetch(context: RequestContext, request: wire.OffsetFetchRequest) -> wire.OffsetFetchResponse:
    """Versions 1 to 9. From 8 on many groups at once. An unknown group has no offsets, which is no error."""
    if context.version >= _FIRST_MANY_GROUPS_VERSION:
        groups = [
            wire.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error, topics=topics)
            for group in request.groups
            for error, topics in [
                await _fetch(
                    context,
                    group.group_id,
                    group.topics,
                    (group.member_id, group.member_epoch),
                    needs_stable=request.require_stable,
                )
            ]
        ]
        return wire.OffsetFetchResponse(groups=tuple(groups))
    error, topics = await _fetch(context, request.group_id, request.topics, needs_stable=request.require_stable)
    if error and context.version < _FIRST_GROUP_ERROR_VERSION:
        topics = tuple(
            wire.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=tuple(_no_offset(index, error) for index in topic.partition_indexes),
            )
            for topic in request.topics or ()
        )
    return wire.OffsetFetchResponse(error_code=error, topics=topics)


async def _fetch(
    context: RequestContext,
    group_id: str,
    wanted: Sequence[TopicPartitionIndexes] | None,
    reader: tuple[str | None, int] = _NO_MEMBER,
    *,
    needs_stable: bool,
) -> tuple[ErrorCode, tuple[wire.OffsetFetchResponseTopic, ...]]:
    """A group's offsets, or why there are none to tell.

    Read first, then wait until what was read is committed: no consumer starts from an offset that can still be lost.
    With ``needs_stable``, offsets that an open transaction is to replace are refused for now (KIP-447).
    """
    groups, caller = context.broker.groups, context.caller
    if not caller.may_group(AclAction.DESCRIBE, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED, ()
    try:
        group = groups.find(group_id)
        if isinstance(group, ConsumerGroup):
            group.check_reader(*reader)
        topics = _offsets(group, context.broker.metadata.topics, wanted, needs_stable=needs_stable)
        await groups.settled(group_id)
    except PenstockError as error:
        return error_code(error), ()
    if caller.is_limited:
        topics = _visible(caller, topics, has_named=wanted is not None)
    return ErrorCode.NONE, topics


def _visible(
    caller: Caller, topics: tuple[wire.OffsetFetchResponseTopic, ...], *, has_named: bool
) -> tuple[wire.OffsetFetchResponseTopic, ...]:
    """Topics that the client may not describe are refused where it named them, and else left out."""
    rows = []
    for topic in topics:
        if caller.may_topic(AclAction.DESCRIBE, topic.name):
            rows.append(topic)
        elif has_named:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            partitions = tuple(_no_offset(row.partition_index, code) for row in topic.partitions)
            rows.append(wire.OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
    return tuple(rows)


def _offsets(
    group: AnyGroup | None,
    topics: Mapping[str, Topic],
    wanted: Sequence[TopicPartitionIndexes] | None,
    *,
    needs_stable: bool,
) -> tuple[wire.OffsetFetchResponseTopic, ...]:
    """The offsets of the partitions wanted; of all that have one if None."""
    rows: list[tuple[str, list[wire.OffsetFetchResponsePartition]]]
    if wanted is None:
        by_topic: dict[str, list[wire.OffsetFetchResponsePartition]] = {}
        for name, index in sorted(group.offsets if group else ()):
            row = _offset(group, topics, name, index)
            if row.committed_offset != _NO_OFFSET:
                by_topic.setdefault(name, []).append(row)
        rows = list(by_topic.items())
    else:
        rows = [
            (topic.name, [_offset(group, topics, topic.name, index) for index in topic.partition_indexes])
            for topic in wanted
        ]
    if needs_stable and group is not None and group.offsets.has_undecided:
        rows = [(name, [_stable(group, name, row) for row in of_topic]) for name, of_topic in rows]
    return tuple(wire.OffsetFetchResponseTopic(name=name, partitions=tuple(of_topic)) for name, of_topic in rows)


def _offset(
    group: AnyGroup | None, topics: Mapping[str, Topic], name: str, index: int
) -> wire.OffsetFetchResponsePartition:
    """An offset committed for a deleted topic says nothing about a new one of the same name."""
    kept = group.offsets.get((name, index)) if group else None
    topic = topics.get(name)
    if kept is None or topic is None or topic.topic_id.hex != kept.topic_id:
        return _no_offset(index, ErrorCode.NONE)
    return wire.OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=kept.offset,
        committed_leader_epoch=kept.leader_epoch,
        metadata=kept.metadata,
        error_code=ErrorCode.NONE,
    )


def _no_offset(index: int, code: ErrorCode) -> wire.OffsetFetchResponsePartition:
    return wire.OffsetFetchResponsePartition(
        partition_index=index, committed_offset=_NO_OFFSET, metadata="", error_code=code
    )


def _stable(group: AnyGroup, name: str, row: wire.OffsetFetchResponsePartition) -> wire.OffsetFetchResponsePartition:
    if group.offsets.is_undecided((name, row.partition_index)):
        return _no_offset(row.partition_index, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    return row


# -- OffsetDelete ------------------------------------------------------------------------------------------------------


async def offset_delete(context: RequestContext, request: wire.OffsetDeleteRequest) -> wire.OffsetDeleteResponse:
    """Version 0. Offsets of a topic that a member still reads cannot be deleted."""
    topics = [(topic.name, [row.partition_index for row in topic.partitions]) for topic in request.topics]
    places = tuple((name, index) for name, indexes in topics for index in indexes)
    try:
        refused = (await context.broker.groups.ask(request.group_id, DeleteOffsets(places))).refused
    except PenstockError as error:
        return wire.OffsetDeleteResponse(error_code=error_code(error), topics=())

    codes = {where: ErrorCode.NONE for where in places if context.has_partition(*where)}
    codes |= dict.fromkeys(refused, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    return wire.OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=error_codes(topics, codes))


HANDLERS = (
    Handler(wire.ListOffsetsRequest, list_offsets),
    Handler(wire.OffsetForLeaderEpochRequest, offset_for_leader_epoch),
    Handler(wire.OffsetCommitRequest, offset_commit),
    Handler(wire.OffsetFetchRequest, offset_fetch),
    Handler(wire.OffsetDeleteRequest, offset_delete),
)
