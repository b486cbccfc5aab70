"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: groups of the new protocol (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID, uuid4

import msgspec

from penstock.broker.groups.consumer.assignors import Place
from penstock.broker.groups.consumer.group import ConsumerGroup
from penstock.broker.groups.consumer.ledger import to_partitions
from penstock.broker.groups.consumer.messages import ConsumerHeartbeat
from penstock.broker.groups.consumer.records import StoredConsumer
from penstock.errors import GroupNotFound, PenstockError
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.access import GROUP_OPERATIONS
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol import consumer_group_messages as wire
from penstock.kafka.protocol.errors import ErrorCode

_FIRST_OWN_ID_VERSION: Final = 1  # from here on members make their own ids
_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


async def consumer_group_heartbeat(
    exchange: Exchange, request: wire.ConsumerGroupHeartbeatRequest
) -> wire.ConsumerGroupHeartbeatResponse:
    """Versions 0 to 1. From 1 on with a pattern, and with an id from the first heartbeat on."""
    owned = request.topic_partitions
    heartbeat = ConsumerHeartbeat(
        member_id=request.member_id,
        epoch=request.member_epoch,
        client_id=exchange.client_id or "",
        client_host=f"/{exchange.peer_host}",
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=request.subscribed_topic_names,
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if owned is None else frozenset((row.topic_id.hex, at) for row in owned for at in row.partitions),
        fresh_id=None if exchange.version >= _FIRST_OWN_ID_VERSION else str(uuid4()),
    )
    try:
        beat = await exchange.broker.groups.ask(request.group_id, heartbeat)
    except PenstockError as error:
        return wire.ConsumerGroupHeartbeatResponse(error_code=error_code(error), error_message=error.message)
    return wire.ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.NONE,
        member_id=beat.member_id,
        member_epoch=beat.epoch,
        heartbeat_interval_ms=beat.heartbeat_interval_ms,
        assignment=None if beat.assignment is None else wire.Assignment(topic_partitions=_rows(beat.assignment)),
    )


def _rows(places: Iterable[Place]) -> tuple[wire.TopicPartitions, ...]:
    return tuple(
        wire.TopicPartitions(topic_id=UUID(hex=topic_id), partitions=indexes)
        for topic_id, indexes in to_partitions(places).items()
    )


def consumer_group_describe(
    exchange: Exchange, request: wire.ConsumerGroupDescribeRequest
) -> wire.ConsumerGroupDescribeResponse:
    """Versions 0 to 1. From 1 on with the protocol that each member speaks."""
    described = [_describe(exchange, each) for each in request.group_ids]
    if request.include_authorized_operations:
        described = [
            group if group.error_code else msgspec.structs.replace(group, authorized_operations=GROUP_OPERATIONS)
            for group in described
        ]
    return wire.ConsumerGroupDescribeResponse(groups=tuple(described))


def _describe(exchange: Exchange, group_id: str) -> wire.DescribedConsumerGroup:
    try:
        group = exchange.broker.groups.find(group_id)
        if group is None:
            raise GroupNotFound(f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise GroupNotFound(f"Group {group_id} is not a consumer group.")
    except PenstockError as error:
        return wire.DescribedConsumerGroup(error_code=error_code(error), error_message=error.message, group_id=group_id)
    stored = group.ledger.group
    return wire.DescribedConsumerGroup(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=stored.epoch,
        assignment_epoch=stored.assignment_epoch,
        assignor_name=stored.assignor,
        members=tuple(
            _describe_member(exchange, group, member_id, facts) for member_id, facts in group.ledger.members.items()
        ),
    )


def _describe_member(
    exchange: Exchange, group: ConsumerGroup, member_id: str, facts: StoredConsumer
) -> wire.DescribedMember:
    current = group.ledger.current_of(member_id)
    return wire.DescribedMember(
        member_id=member_id,
        instance_id=facts.instance_id,
        rack_id=facts.rack_id,
        member_epoch=current.epoch,
        client_id=facts.client_id,
        client_host=facts.client_host,
        subscribed_topic_names=facts.topics,
        subscribed_topic_regex=facts.regex or None,
        assignment=_named(exchange, current.assigned),
        target_assignment=_named(exchange, group.ledger.target_of(member_id)),
        member_type=_CONSUMER_MEMBER if facts.classic is None else _CLASSIC_MEMBER,
    )


def _named(exchange: Exchange, places: Iterable[Place]) -> wire.DescribedAssignment:
    """Partitions with their topics' names; those of topics that are gone are left out."""
    rows = []
    for topic_id, indexes in to_partitions(places).items():
        topic = exchange.broker.metadata.topic_by_id(UUID(hex=topic_id))
        if topic is not None:
            rows.append(wire.NamedTopicPartitions(topic_id=topic.topic_id, topic_name=topic.name, partitions=indexes))
    return wire.DescribedAssignment(topic_partitions=tuple(rows))


HANDLERS = (
    Handler(wire.ConsumerGroupHeartbeatRequest, consumer_group_heartbeat),
    Handler(wire.ConsumerGroupDescribeRequest, consumer_group_describe),
)
