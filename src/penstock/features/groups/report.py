"""Groups as people look at them: how far each got, how far that is behind, and who reads what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.errors import GroupNotEmpty, InvalidRequest, LeaderNotAvailable, OffsetOutOfRange
from penstock.features.groups.client_metadata import read_assignment
from penstock.features.groups.coordinator import GroupCoordinator
from penstock.features.groups.messages import CommitOffsets, DeleteOffsets, MemberIdentity, OffsetCommit, Where
from penstock.features.groups.slot import AnyGroup
from penstock.machines.ports import Ports
from penstock.model import OFFSETS_TOPIC
from penstock.partitions.access import Extent, Start


class Progress(NamedTuple):
    """How far a group got in one partition. ``lag`` is None where the partition cannot be reached."""

    topic: str
    partition: int
    committed_offset: int | None
    high_watermark: int | None
    lag: int | None
    metadata: str
    member_id: str | None


async def progress_of(ports: Ports, groups: Sequence[AnyGroup]) -> list[list[Progress]]:
    """For each group every partition that it has committed for or reads at the moment, in order."""
    owners = [
        {where: member.id for member in group.members for where in read_assignment(member.facts.assignment)}
        for group in groups
    ]
    places = [sorted({*group.offsets, *owned}) for group, owned in zip(groups, owners, strict=True)]
    extents = await ports.partitions.extents([where for wheres in places for where in wheres])
    return [
        [_progress(group, where, extents.get(where), owned.get(where)) for where in wheres]
        for group, owned, wheres in zip(groups, owners, places, strict=True)
    ]


def _progress(group: AnyGroup, where: Where, extent: Extent | None, owner: str | None) -> Progress:
    committed = group.offsets.get(where)
    if committed is not None and committed.offset < 0:
        committed = None
    lag = None
    if extent is not None and committed is not None:
        lag = max(extent.high_watermark - max(committed.offset, extent.log_start_offset), 0)
    return Progress(
        *where,
        committed_offset=None if committed is None else committed.offset,
        high_watermark=None if extent is None else extent.high_watermark,
        lag=lag,
        metadata="" if committed is None else committed.metadata,
        member_id=owner,
    )


class Shift(NamedTuple):
    """So many messages on from the committed offset, or back, as far as the log reaches."""

    by: int


class OffsetMove(NamedTuple):
    """An offset that is moved, from where it was committed, if it was."""

    topic: str
    partition: int
    from_offset: int | None
    to_offset: int


async def reset_offsets(
    ports: Ports,
    groups: GroupCoordinator,
    group_id: str,
    topic: str,
    indexes: Iterable[int] | None,
    to: Start | Shift,
    *,
    is_dry: bool = False,
) -> list[OffsetMove]:
    """Move an empty group's offsets in a topic, in all partitions or some; all of them or none.

    The target is an offset, an end, a point in time, or a shift; with a shift, "all" are those that have an offset. If
    it is a dry run, the moves are only told.
    """
    found = ports.metadata.topic(topic)
    group = groups.find(group_id) if OFFSETS_TOPIC in ports.metadata.topics else None
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
    moves = [
        OffsetMove(topic, index, offset, await _target(ports, (topic, index), to, offset))
        for index, offset in committed.items()
    ]
    if not is_dry:
        epochs = {at.partition: at.leader_epoch for at in found.partitions}
        commits = tuple(
            OffsetCommit(topic, move.partition, move.to_offset, epochs[move.partition], "", found.topic_id.hex)
            for move in moves
        )
        settled = await groups.ask(group_id, CommitOffsets(MemberIdentity(member_id=""), commits))
        for error in settled.refused.values():
            raise error
    return moves


def _committed(group: AnyGroup | None, where: Where, topic_id: str) -> int | None:
    kept = None if group is None else group.offsets.get(where)
    return kept.offset if kept is not None and kept.topic_id == topic_id and kept.offset >= 0 else None


async def _target(ports: Ports, where: Where, to: Start | Shift, committed: int | None) -> int:
    ports.metadata.partition(*where)  # or it is refused
    extent = (await ports.partitions.extents([where])).get(where)
    if extent is None:
        raise LeaderNotAvailable(f"{where[0]}-{where[1]} cannot be reached now. Try again in a moment.")
    start, end = extent.log_start_offset, extent.high_watermark
    if isinstance(to, Shift):
        assert committed is not None, "only what is there can be shifted"
        return min(max(committed + to.by, start), end)
    offset = await ports.partitions.locate(*where, to)
    if not start <= offset <= end:
        raise OffsetOutOfRange(f"{where[0]}-{where[1]} holds offsets {start} to {end}, not {offset}.")
    return offset


async def delete_offsets(
    groups: GroupCoordinator, group: AnyGroup, topic: str, indexes: Iterable[int] | None
) -> list[Where]:
    """Forget a group's offsets in a topic, in all partitions or some; which ones there were.

    The topic need not exist any more, but no member may read it.
    """
    chosen = None if indexes is None else set(indexes)
    places = tuple(sorted(at for at in group.offsets if at[0] == topic and (chosen is None or at[1] in chosen)))
    if places:
        settled = await groups.ask(group.id, DeleteOffsets(places))
        for error in settled.refused.values():
            raise error
    return list(places)
