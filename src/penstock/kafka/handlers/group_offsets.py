"""OffsetCommit, OffsetFetch, OffsetDelete: how far groups got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.broker.groups.group import Group, State
from penstock.broker.groups.messages import Commit, MemberIdentity
from penstock.errors import PenstockError
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol import offset_messages as wire
from penstock.kafka.protocol.errors import ErrorCode

_FIRST_MANY_GROUPS_VERSION: Final = 8
_NO_OFFSET: Final = -1


async def offset_commit(exchange: Exchange, request: wire.OffsetCommitRequest) -> wire.OffsetCommitResponse:
    """Versions 2 to 9. Up to 4 with a retention time, which the cluster's setting replaces (KIP-211)."""
    identity = MemberIdentity(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
    )
    topics = exchange.broker.metadata.topics
    known: list[Commit] = []
    for topic in request.topics:
        count = len(topics[topic.name].partitions) if topic.name in topics else 0
        known += [
            Commit(
                topic.name,
                row.partition_index,
                row.committed_offset,
                row.committed_leader_epoch,
                row.committed_metadata or "",
            )
            for row in topic.partitions
            if 0 <= row.partition_index < count
        ]
    code = ErrorCode.NONE
    try:
        await exchange.broker.groups.commit(request.group_id, identity, known)
    except PenstockError as error:
        code = error_code(error)
    accepted = {(commit.topic, commit.partition) for commit in known}
    return wire.OffsetCommitResponse(
        topics=tuple(
            wire.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    wire.OffsetCommitResponsePartition(
                        partition_index=row.partition_index,
                        error_code=code
                        if (topic.name, row.partition_index) in accepted
                        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    )
                    for row in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def offset_fetch(exchange: Exchange, request: wire.OffsetFetchRequest) -> wire.OffsetFetchResponse:
    """Versions 1 to 9. From 8 on many groups at once. A group nobody knows has no offsets, which is no error."""
    if exchange.version >= _FIRST_MANY_GROUPS_VERSION:
        return wire.OffsetFetchResponse(groups=tuple(_fetch_group(exchange, group) for group in request.groups))
    wanted = None
    if request.topics is not None:
        wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
    code, rows = _fetch(exchange, request.group_id, wanted)
    if exchange.version < 2 and code:
        rows = [(name, [(index, _NO_OFFSET, -1, "", code) for index in indexes]) for name, indexes in wanted or ()]
    return wire.OffsetFetchResponse(
        error_code=code,
        topics=tuple(
            wire.OffsetFetchResponseTopic(
                name=name,
                partitions=tuple(
                    wire.OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=epoch,
                        metadata=metadata,
                        error_code=error,
                    )
                    for index, offset, epoch, metadata, error in partitions
                ),
            )
            for name, partitions in rows
        ),
    )


def _fetch_group(exchange: Exchange, group: wire.OffsetFetchRequestGroup) -> wire.OffsetFetchResponseGroup:
    wanted = None
    if group.topics is not None:
        wanted = [(topic.name, topic.partition_indexes) for topic in group.topics]
    code, rows = _fetch(exchange, group.group_id, wanted)
    return wire.OffsetFetchResponseGroup(
        group_id=group.group_id,
        error_code=code,
        topics=tuple(
            wire.OffsetFetchResponseTopics(
                name=name,
                partitions=tuple(
                    wire.OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=epoch,
                        metadata=metadata,
                        error_code=error,
                    )
                    for index, offset, epoch, metadata, error in partitions
                ),
            )
            for name, partitions in rows
        ),
    )


_Row = tuple[int, int, int, str, int]


def _fetch(
    exchange: Exchange, group_id: str, wanted: Sequence[tuple[str, Sequence[int]]] | None
) -> tuple[ErrorCode, list[tuple[str, list[_Row]]]]:
    """An error, or for each topic its rows of (partition, offset, leader epoch, metadata, error)."""
    try:
        group = exchange.broker.groups.find(group_id)
    except PenstockError as error:
        return error_code(error), []
    if wanted is None:
        by_topic: dict[str, list[int]] = {}
        for topic, index in sorted(group.offsets if group else ()):
            by_topic.setdefault(topic, []).append(index)
        wanted = list(by_topic.items())
    return ErrorCode.NONE, [(name, [_row(group, name, index) for index in indexes]) for name, indexes in wanted]


def _row(group: Group | None, topic: str, index: int) -> _Row:
    stored = group.offsets.get((topic, index)) if group else None
    if stored is None:
        return index, _NO_OFFSET, -1, "", ErrorCode.NONE
    return index, stored.offset, stored.leader_epoch, stored.metadata, ErrorCode.NONE


async def offset_delete(exchange: Exchange, request: wire.OffsetDeleteRequest) -> wire.OffsetDeleteResponse:
    """Version 0. Offsets of a topic that a member still reads cannot be deleted."""
    groups = exchange.broker.groups
    try:
        group = groups.shard(request.group_id).get(request.group_id)
        if group.state is not State.EMPTY:
            return wire.OffsetDeleteResponse(error_code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, topics=())
        partitions = [(topic.name, row.partition_index) for topic in request.topics for row in topic.partitions]
        await groups.delete_offsets(request.group_id, partitions)
    except PenstockError as error:
        return wire.OffsetDeleteResponse(error_code=error_code(error), topics=())
    return wire.OffsetDeleteResponse(
        error_code=ErrorCode.NONE,
        topics=tuple(
            wire.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    wire.OffsetDeleteResponsePartition(partition_index=row.partition_index, error_code=ErrorCode.NONE)
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
