"""OffsetCommit, OffsetFetch, OffsetDelete: how far groups got."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from penstock.broker.coordination.messages import Rejected
from penstock.broker.groups.consumer.group import ConsumerGroup
from penstock.broker.groups.either import AnyGroup
from penstock.broker.groups.messages import Commit, DeleteOffsets, MemberIdentity, OffsetCommit, Settled, Where
from penstock.cluster.metadata import Topic
from penstock.errors import MessageTooLarge, PenstockError
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.table import Handler, Question
from penstock.kafka.protocol import offset_messages as wire
from penstock.kafka.protocol.errors import ErrorCode

_FIRST_MANY_GROUPS_VERSION: Final = 8
_FIRST_GROUP_ERROR_VERSION: Final = 2
_NO_OFFSET: Final = -1
_NO_MEMBER: Final = (None, -1)  # who asks without being one, or in a version that does not say


def _has(topics: Mapping[str, Topic], name: str, index: int) -> bool:
    topic = topics.get(name)
    return topic is not None and 0 <= index < len(topic.partitions)


# -- OffsetCommit ------------------------------------------------------------------------------------------------------


def offset_commit(exchange: Exchange, request: wire.OffsetCommitRequest) -> Question:
    """Versions 2 to 9. Up to 4 with a retention time, which the cluster's setting replaces (KIP-211)."""
    identity = MemberIdentity(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
    )
    topics = exchange.broker.metadata.topics
    commits = tuple([commit for topic in request.topics for commit in _commits(topics.get(topic.name), topic)])
    respond = partial(_commit_response, request, commits)
    return Question(exchange.broker.groups, request.group_id, Commit(identity, commits), respond)


def _commits(topic: Topic | None, asked: wire.OffsetCommitRequestTopic) -> list[OffsetCommit]:
    """What is asked for partitions that there are."""
    if topic is None:
        return []
    topic_id, count = topic.topic_id.hex, len(topic.partitions)
    return [
        OffsetCommit(
            asked.name,
            row.partition_index,
            row.committed_offset,
            row.committed_leader_epoch,
            row.committed_metadata or "",
            topic_id,
        )
        for row in asked.partitions
        if 0 <= row.partition_index < count
    ]


def _commit_response(
    request: wire.OffsetCommitRequest, commits: Sequence[OffsetCommit], answer: Settled | Rejected
) -> wire.OffsetCommitResponse:
    """``commits`` are those that were asked for: what else the request names is of no known partition."""
    if isinstance(answer, Settled):
        codes = {(commit.topic, commit.partition): ErrorCode.NONE for commit in commits}
        codes |= {where: error_code(error) for where, error in answer.refused.items()}
    else:
        is_too_large = isinstance(answer.error, MessageTooLarge)
        code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if is_too_large else error_code(answer.error)
        codes = {(commit.topic, commit.partition): code for commit in commits}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topics = []
    for topic in request.topics:
        name = topic.name
        rows = [
            wire.OffsetCommitResponsePartition(
                partition_index=row.partition_index, error_code=codes.get((name, row.partition_index), unknown)
            )
            for row in topic.partitions
        ]
        topics.append(wire.OffsetCommitResponseTopic(name=name, partitions=tuple(rows)))
    return wire.OffsetCommitResponse(topics=tuple(topics))


# -- OffsetFetch -------------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """The answer for one partition."""

    partition: int
    offset: int = _NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE


class _Found(NamedTuple):
    """The answer for one group: an error, or the rows of each topic."""

    error: ErrorCode
    rows: list[tuple[str, list[_Row]]]


async def offset_fetch(exchange: Exchange, request: wire.OffsetFetchRequest) -> wire.OffsetFetchResponse:
    """Versions 1 to 9. From 8 on many groups at once. A group nobody knows has no offsets, which is no error."""
    if exchange.version >= _FIRST_MANY_GROUPS_VERSION:
        found_groups = [await _fetch_group(exchange, group, request.require_stable) for group in request.groups]
        return wire.OffsetFetchResponse(groups=tuple(found_groups))
    wanted = _wanted(request.topics)
    found = await _fetch(exchange, request.group_id, wanted, needs_stable=request.require_stable)
    rows = found.rows
    if found.error and exchange.version < _FIRST_GROUP_ERROR_VERSION:
        rows = [(name, [_Row(index, error=found.error) for index in indexes]) for name, indexes in wanted or ()]
    return wire.OffsetFetchResponse(
        error_code=found.error,
        topics=tuple(
            wire.OffsetFetchResponseTopic(
                name=name,
                partitions=tuple(
                    wire.OffsetFetchResponsePartition(
                        partition_index=row.partition,
                        committed_offset=row.offset,
                        committed_leader_epoch=row.leader_epoch,
                        metadata=row.metadata,
                        error_code=row.error,
                    )
                    for row in of_topic
                ),
            )
            for name, of_topic in rows
        ),
    )


async def _fetch_group(
    exchange: Exchange, group: wire.OffsetFetchRequestGroup, needs_stable: bool
) -> wire.OffsetFetchResponseGroup:
    reader = (group.member_id, group.member_epoch)
    found = await _fetch(exchange, group.group_id, _wanted(group.topics), reader, needs_stable=needs_stable)
    return wire.OffsetFetchResponseGroup(
        group_id=group.group_id,
        error_code=found.error,
        topics=tuple(
            wire.OffsetFetchResponseTopics(
                name=name,
                partitions=tuple(
                    wire.OffsetFetchResponsePartitions(
                        partition_index=row.partition,
                        committed_offset=row.offset,
                        committed_leader_epoch=row.leader_epoch,
                        metadata=row.metadata,
                        error_code=row.error,
                    )
                    for row in of_topic
                ),
            )
            for name, of_topic in found.rows
        ),
    )


_Wanted = Sequence[tuple[str, Iterable[int]]]


def _wanted(
    topics: Sequence[wire.OffsetFetchRequestTopic] | Sequence[wire.OffsetFetchRequestTopics] | None,
) -> _Wanted | None:
    return None if topics is None else [(topic.name, topic.partition_indexes) for topic in topics]


async def _fetch(
    exchange: Exchange,
    group_id: str,
    wanted: _Wanted | None,
    reader: tuple[str | None, int] = _NO_MEMBER,
    *,
    needs_stable: bool,
) -> _Found:
    """Read first, then wait until what was read is committed: nobody starts from an offset that can still be lost.

    Who ``needs_stable`` offsets has to wait where a transaction that is still open has committed others (KIP-447).
    """
    groups = exchange.broker.groups
    try:
        group = groups.find(group_id)
        if isinstance(group, ConsumerGroup):
            group.check_reader(*reader)
        rows = _rows(group, exchange.broker.metadata.topics, wanted)
        if needs_stable and group is not None and group.offsets.has_undecided:
            rows = [(name, [_stable(group, name, row) for row in of_topic]) for name, of_topic in rows]
        await groups.settled(group_id)
    except PenstockError as error:
        return _Found(error_code(error), [])
    return _Found(ErrorCode.NONE, rows)


def _rows(group: AnyGroup | None, topics: Mapping[str, Topic], wanted: _Wanted | None) -> list[tuple[str, list[_Row]]]:
    if wanted is not None:
        return [(name, [_row(group, topics, name, index) for index in indexes]) for name, indexes in wanted]
    by_topic: dict[str, list[_Row]] = {}
    for name, index in sorted(group.offsets if group else ()):
        row = _row(group, topics, name, index)
        if row.offset != _NO_OFFSET:
            by_topic.setdefault(name, []).append(row)
    return list(by_topic.items())


def _row(group: AnyGroup | None, topics: Mapping[str, Topic], name: str, index: int) -> _Row:
    """An offset committed for a topic that is gone says nothing about its namesake."""
    kept = group.offsets.get((name, index)) if group else None
    topic = topics.get(name)
    if kept is None or topic is None or topic.topic_id.hex != kept.topic_id:
        return _Row(index)
    return _Row(index, kept.offset, kept.leader_epoch, kept.metadata)


def _stable(group: AnyGroup, name: str, row: _Row) -> _Row:
    if group.offsets.is_undecided((name, row.partition)):
        return _Row(row.partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    return row


# -- OffsetDelete ------------------------------------------------------------------------------------------------------


async def offset_delete(exchange: Exchange, request: wire.OffsetDeleteRequest) -> wire.OffsetDeleteResponse:
    """Version 0. Offsets of a topic that a member still reads cannot be deleted."""
    places = tuple((topic.name, row.partition_index) for topic in request.topics for row in topic.partitions)
    try:
        refused = (await exchange.broker.groups.ask(request.group_id, DeleteOffsets(places))).refused
    except PenstockError as error:
        return wire.OffsetDeleteResponse(error_code=error_code(error), topics=())
    topics = exchange.broker.metadata.topics

    def outcome(where: Where) -> ErrorCode:
        if where in refused:
            return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        return ErrorCode.NONE if _has(topics, *where) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    return wire.OffsetDeleteResponse(
        error_code=ErrorCode.NONE,
        topics=tuple(
            wire.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    wire.OffsetDeleteResponsePartition(
                        partition_index=row.partition_index, error_code=outcome((topic.name, row.partition_index))
                    )
                    for row in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


HANDLERS = (
    Handler(wire.OffsetCommitRequest, offset_commit),
    Handler(wire.OffsetFetchRequest, offset_fetch),
    Handler(wire.OffsetDeleteRequest, offset_delete),
)
