"""OffsetCommit, OffsetFetch, OffsetDelete: how far groups got."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.broker.groups.group import Group
from penstock.broker.groups.messages import Commit, DeleteOffsets, MemberIdentity, OffsetCommit, Where
from penstock.cluster.metadata import Topic
from penstock.errors import MessageTooLarge, PenstockError
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol import offset_messages as wire
from penstock.kafka.protocol.errors import ErrorCode

_FIRST_MANY_GROUPS_VERSION: Final = 8
_FIRST_GROUP_ERROR_VERSION: Final = 2
_NO_OFFSET: Final = -1


def _has(topics: Mapping[str, Topic], name: str, index: int) -> bool:
    topic = topics.get(name)
    return topic is not None and 0 <= index < len(topic.partitions)


# -- OffsetCommit ------------------------------------------------------------------------------------------------------


async def offset_commit(exchange: Exchange, request: wire.OffsetCommitRequest) -> wire.OffsetCommitResponse:
    """Versions 2 to 9. Up to 4 with a retention time, which the cluster's setting replaces (KIP-211)."""
    identity = MemberIdentity(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
    )
    topics = exchange.broker.metadata.topics
    commits = tuple(
        OffsetCommit(
            topic.name,
            row.partition_index,
            row.committed_offset,
            row.committed_leader_epoch,
            row.committed_metadata or "",
            topics[topic.name].topic_id.hex,
        )
        for topic in request.topics
        for row in topic.partitions
        if _has(topics, topic.name, row.partition_index)
    )
    known = {(commit.topic, commit.partition) for commit in commits}
    refused: Mapping[Where, PenstockError] = {}
    code = ErrorCode.NONE
    try:
        refused = (await exchange.broker.groups.ask(request.group_id, Commit(identity, commits))).refused
    except MessageTooLarge:
        code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    except PenstockError as error:
        code = error_code(error)

    def outcome(where: Where) -> ErrorCode:
        if where not in known:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return error_code(refused[where]) if where in refused else code

    return wire.OffsetCommitResponse(
        topics=tuple(
            wire.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    wire.OffsetCommitResponsePartition(
                        partition_index=row.partition_index, error_code=outcome((topic.name, row.partition_index))
                    )
                    for row in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


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
        return wire.OffsetFetchResponse(groups=tuple([await _fetch_group(exchange, group) for group in request.groups]))
    wanted = _wanted(request.topics)
    found = await _fetch(exchange, request.group_id, wanted)
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


async def _fetch_group(exchange: Exchange, group: wire.OffsetFetchRequestGroup) -> wire.OffsetFetchResponseGroup:
    found = await _fetch(exchange, group.group_id, _wanted(group.topics))
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


async def _fetch(exchange: Exchange, group_id: str, wanted: _Wanted | None) -> _Found:
    """Read first, then wait until what was read is committed: nobody starts from an offset that can still be lost."""
    groups = exchange.broker.groups
    try:
        rows = _rows(groups.find(group_id), exchange.broker.metadata.topics, wanted)
        await groups.settled(group_id)
    except PenstockError as error:
        return _Found(error_code(error), [])
    return _Found(ErrorCode.NONE, rows)


def _rows(group: Group | None, topics: Mapping[str, Topic], wanted: _Wanted | None) -> list[tuple[str, list[_Row]]]:
    if wanted is not None:
        return [(name, [_row(group, topics, name, index) for index in indexes]) for name, indexes in wanted]
    by_topic: dict[str, list[_Row]] = {}
    for name, index in sorted(group.offsets if group else ()):
        row = _row(group, topics, name, index)
        if row.offset != _NO_OFFSET:
            by_topic.setdefault(name, []).append(row)
    return list(by_topic.items())


def _row(group: Group | None, topics: Mapping[str, Topic], name: str, index: int) -> _Row:
    """An offset committed for a topic that is gone says nothing about its namesake."""
    kept = group.offsets.get((name, index)) if group else None
    topic = topics.get(name)
    if kept is None or topic is None or topic.topic_id.hex != kept.topic_id:
        return _Row(index)
    return _Row(index, kept.offset, kept.leader_epoch, kept.metadata)


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
