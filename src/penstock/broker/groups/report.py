"""Groups as people look at them: how far each got, how far that is behind, and who reads what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.groups.either import AnyGroup
from penstock.broker.groups.messages import Commit, DeleteOffsets, MemberIdentity, OffsetCommit, Where
from penstock.broker.membership.embedded import assigned_to
from penstock.broker.partition import Partition
from penstock.broker.reading import Start, resolve_start
from penstock.errors import GroupNotEmpty, InvalidRequest, OffsetOutOfRange, PenstockError


class Progress(NamedTuple):
    """How far a group got in one partition. ``lag`` is None where the partition is not on this node."""

    topic: str
    partition: int
    committed_offset: int | None
    high_watermark: int | None
    lag: int | None
    metadata: str
    member_id: str | None


def progress_of(broker: Broker, group: AnyGroup) -> list[Progress]:
    """Every partition that the group has committed for or reads at the moment, in order."""
    owners = {where: member.id for member in group.members for where in assigned_to(member.facts.assignment)}
    places = sorted({*group.offsets, *owners})
    return [_progress(broker, group, where, owners.get(where)) for where in places]


def _progress(broker: Broker, group: AnyGroup, where: Where, owner: str | None) -> Progress:
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


class Shift(NamedTuple):
    """So many messages on from the committed offset, or back, as far as the log reaches."""

    by: int


class Move(NamedTuple):
    """An offset that is moved, from where it was committed, if it was."""

    topic: str
    partition: int
    from_offset: int | None
    to_offset: int


async def reset_offsets(
    broker: Broker, group_id: str, topic: str, indexes: Iterable[int] | None, to: Start | Shift, *, is_dry: bool = False
) -> list[Move]:
    """Move an empty group's offsets in a topic, in all partitions or some; all of them or none.

    The target is an offset, an end, a point in time, or a shift; with a shift, "all" are those that have an offset. If
    it is a dry run, the moves are only told.
    """
    found = broker.metadata.topic(topic)
    group = broker.groups.find(group_id) if broker.has_groups else None
    if group is not None and group.members:
        raise GroupNotEmpty(f"Group {group_id!r} has {len(group.members)} members. Stop them first to reset offsets.")
    chosen = range(len(found.partitions)) if indexes is None else sorted(set(indexes))
    committed = {index: _committed(group, (topic, index), found.topic_id.hex) for index in chosen}
    if isinstance(to, Shift):
        if indexes is None:
            committed = {index: offset for index, offset in committed.items() if offset is not None}
        if not committed or None in committed.values():
            raise InvalidRequest(
                f"Group {group_id!r} has no offset to shift in {topic!r}; say where to move it instead."
            )
    partitions = [broker.partition(topic, index) for index in committed]
    moves = [
        Move(topic, at.id.partition, committed[at.id.partition], _target(at, to, committed[at.id.partition]))
        for at in partitions
    ]
    if not is_dry:
        epochs = {at.id.partition: at.leader_epoch for at in partitions}
        commits = tuple(
            OffsetCommit(topic, move.partition, move.to_offset, epochs[move.partition], "", found.topic_id.hex)
            for move in moves
        )
        settled = await broker.groups.ask(group_id, Commit(MemberIdentity(member_id=""), commits))
        for error in settled.refused.values():
            raise error
    return moves


def _committed(group: AnyGroup | None, where: Where, topic_id: str) -> int | None:
    kept = None if group is None else group.offsets.get(where)
    return kept.offset if kept is not None and kept.topic_id == topic_id else None


def _target(partition: Partition, to: Start | Shift, committed: int | None) -> int:
    start, end = partition.log.start_offset, partition.high_watermark
    if isinstance(to, Shift):
        assert committed is not None, "only what is there can be shifted"
        return min(max(committed + to.by, start), end)
    offset = resolve_start(partition, to)
    if not start <= offset <= end:
        raise OffsetOutOfRange(f"{partition.id} holds offsets {start} to {end}, not {offset}.")
    return offset


async def delete_offsets(broker: Broker, group: AnyGroup, topic: str, indexes: Iterable[int] | None) -> list[Where]:
    """Forget a group's offsets in a topic, in all partitions or some; which ones there were.

    The topic need not exist any more, but no member may read it.
    """
    chosen = None if indexes is None else set(indexes)
    places = tuple(sorted(at for at in group.offsets if at[0] == topic and (chosen is None or at[1] in chosen)))
    if places:
        settled = await broker.groups.ask(group.id, DeleteOffsets(places))
        for error in settled.refused.values():
            raise error
    return list(places)
