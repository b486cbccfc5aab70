"""Groups as people look at them: how far each got, how far that is behind, and who reads what."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.groups.group import Group
from penstock.broker.groups.messages import Commit, MemberIdentity, OffsetCommit, Where
from penstock.broker.partition import Partition
from penstock.broker.reading import Start, resolve_start
from penstock.errors import GroupNotEmpty, OffsetOutOfRange, PenstockError

_PREFIX: Final = struct.Struct(">hi")  # version, topics
_LENGTH: Final = struct.Struct(">h")
_COUNT: Final = struct.Struct(">i")


class Progress(NamedTuple):
    """How far a group got in one partition. ``lag`` is None where the partition is not on this node."""

    topic: str
    partition: int
    committed_offset: int | None
    high_watermark: int | None
    lag: int | None
    metadata: str
    member_id: str | None


def progress_of(broker: Broker, group: Group) -> list[Progress]:
    """Every partition that the group has committed for or reads at the moment, in order."""
    owners = {where: member.id for member in group.members for where in assigned_to(member.facts.assignment)}
    places = sorted({*group.offsets, *owners})
    return [_progress(broker, group, where, owners.get(where)) for where in places]


def _progress(broker: Broker, group: Group, where: Where, owner: str | None) -> Progress:
    committed = group.offsets.get(where)
    partition = _find(broker, where)
    high_watermark = None if partition is None else partition.high_watermark
    lag = None
    if partition is not None and committed is not None:
        lag = max(partition.high_watermark - max(committed.offset, partition.log.start_offset), 0)
    return Progress(
        *where,
        committed_offset=None if committed is None else committed.offset,
        high_watermark=high_watermark,
        lag=lag,
        metadata="" if committed is None else committed.metadata,
        member_id=owner,
    )


def _find(broker: Broker, where: Where) -> Partition | None:
    try:
        return broker.partition(*where)
    except PenstockError:
        return None


def assigned_to(assignment: bytes) -> list[Where]:
    """The partitions in a consumer's assignment (Kafka's ConsumerProtocolAssignment); none where it cannot be read."""
    places: list[Where] = []
    try:
        _, topics = _PREFIX.unpack_from(assignment)
        position = _PREFIX.size
        for _ in range(min(topics, len(assignment))):
            (length,) = _LENGTH.unpack_from(assignment, position)
            position += _LENGTH.size
            name = assignment[position : position + length].decode()
            position += length
            (count,) = _COUNT.unpack_from(assignment, position)
            position += _COUNT.size
            indexes = struct.unpack_from(f">{count}i", assignment, position)
            position += count * _COUNT.size
            places += [(name, index) for index in indexes]
    except (struct.error, UnicodeDecodeError, MemoryError):
        return []
    return places


async def reset_offsets(broker: Broker, group_id: str, topic: str, indexes: Iterable[int] | None, to: Start) -> None:
    """Move an empty group's offsets in a topic, in all partitions or some, to an offset, an end or a point in time."""
    found = broker.metadata.topic(topic)
    group = broker.groups.find(group_id)
    if group is not None and group.members:
        raise GroupNotEmpty(f"Group {group_id!r} has {len(group.members)} members. Stop them first to reset offsets.")
    chosen = range(len(found.partitions)) if indexes is None else sorted(set(indexes))
    partitions = [broker.partition(topic, index) for index in chosen]
    commits = tuple(
        OffsetCommit(
            topic, partition.id.partition, _target(partition, to), partition.leader_epoch, "", found.topic_id.hex
        )
        for partition in partitions
    )
    settled = await broker.groups.ask(group_id, Commit(MemberIdentity(member_id=""), commits))
    for error in settled.refused.values():
        raise error


def _target(partition: Partition, to: Start) -> int:
    offset = resolve_start(partition, to)
    if not partition.log.start_offset <= offset <= partition.high_watermark:
        raise OffsetOutOfRange(
            f"{partition.id} holds offsets {partition.log.start_offset} to {partition.high_watermark}, not {offset}."
        )
    return offset
