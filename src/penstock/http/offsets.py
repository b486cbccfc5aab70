"""How far many topics reach, in one call, and how far a reader that is no member says it got.

For readers that plan their own work, such as Spark: they ask for all ends at once, wait for more in the same call, and
report progress so that they are seen as a group with a lag.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.broker.ends import await_any
from penstock.broker.groups.consumer.topics import match_names
from penstock.broker.groups.messages import Commit, MemberIdentity, OffsetCommit, check_committable
from penstock.broker.reach import extents_of, locate
from penstock.broker.remote import Extent, Where
from penstock.broker.starts import Since
from penstock.cluster.metadata import Topic
from penstock.errors import InvalidRegularExpression, InvalidRequest, UnknownTopic
from penstock.http.door import Door
from penstock.http.exchange import Call
from penstock.http.groups import group_of
from penstock.http.message_types import PartitionIndex
from penstock.http.waiting import Waiting

Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Instant = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Position(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the caller knows a partition."""

    topic: str
    partition: PartitionIndex
    offset: Offset


class OffsetsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Topics by name or by pattern. With `wait_ms`, the answer comes once there is more than `known`, or in the end."""

    topics: Annotated[list[str], Meta(max_length=10_000)] = []
    pattern: Annotated[
        str | None, Meta(description="An RE2 expression that matches whole names; internal topics are never meant.")
    ] = None
    wait_ms: Annotated[int, Meta(ge=0, le=60_000, description="How long to wait for more than is known.")] = 0
    known: Annotated[list[Position], Meta(max_length=100_000)] = []
    timestamps_ms: Annotated[
        list[Instant],
        Meta(max_length=8, description="Find the first message at or after each of these instants as well."),
    ] = []


class PartitionEnds(msgspec.Struct, frozen=True, kw_only=True):
    """How far a partition reaches; null where its leader does not answer.

    `located` are the offsets of the instants asked for; where nothing is as late as that, the end.
    """

    partition: int
    log_start_offset: int | None
    log_end_offset: int | None
    high_watermark: int | None
    last_stable_offset: int | None
    size_bytes: int | None
    located: list[int]


class TopicEnds(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    topic_id: str
    partitions: list[PartitionEnds]


class OffsetsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, by name. `missing` are topics that were named and are not there."""

    topics: list[TopicEnds]
    missing: list[str]


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The next offset to be read in a partition. With `topic_id`, of that topic and no later one of its name."""

    topic: str
    partition: PartitionIndex
    offset: Offset
    topic_id: str | None = None
    metadata: Annotated[str, Meta(max_length=4096)] = ""


class ReportRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    offsets: Annotated[list[Report], Meta(min_length=1, max_length=100_000)]


class ReportedView(msgspec.Struct, frozen=True, kw_only=True):
    """How many offsets the group has taken over."""

    committed: int


async def find_offsets(door: Door, call: Call[OffsetsRequest, None]) -> OffsetsAnswer:
    """Where topics begin and end, all of them in one call; waits for more if it is asked to."""
    body = call.body
    if not body.topics and body.pattern is None:
        raise InvalidRequest("Name `topics`, or give a `pattern`.")
    if body.wait_ms and body.known:
        known = {(position.topic, position.partition): position.offset for position in body.known}
        if not await _is_behind(door, body, known):
            async with Waiting(door, call, await_any(door.broker, known, body.wait_ms)) as waiting:
                await waiting.result()
    return await _answer(door, body)


async def _is_behind(door: Door, body: OffsetsRequest, known: dict[Where, int]) -> bool:
    """Whether there is something to tell already: more messages, or partitions that the caller does not know."""
    found, missing = _find(door, body)
    places = [(topic.name, at.partition) for topic in found for at in topic.partitions]
    if missing or any(at not in known for at in places) or len(places) != len(known):
        return True
    extents = await extents_of(door.broker, places)
    return any(extents[at].last_stable_offset > offset for at, offset in known.items() if at in extents)


def _find(door: Door, body: OffsetsRequest) -> tuple[list[Topic], list[str]]:
    metadata = door.broker.metadata
    names = set(body.topics)
    if body.pattern is not None:
        try:
            names |= match_names(body.pattern, metadata.topics)
        except InvalidRegularExpression as error:
            raise InvalidRequest(error.message) from None
    found = [metadata.topics[name] for name in sorted(names) if name in metadata.topics]
    return found, sorted(names - metadata.topics.keys())


async def _answer(door: Door, body: OffsetsRequest) -> OffsetsAnswer:
    found, missing = _find(door, body)
    places = [(topic.name, at.partition) for topic in found for at in topic.partitions]
    extents = await extents_of(door.broker, places)
    located: dict[Where, list[int]] = {}
    if body.timestamps_ms:
        reached = [at for at in places if at in extents]
        offsets = await asyncio.gather(*(_locate(door, at, body.timestamps_ms) for at in reached))
        located = dict(zip(reached, offsets, strict=True))
    return OffsetsAnswer(
        topics=[
            TopicEnds(
                topic=topic.name,
                topic_id=str(topic.topic_id),
                partitions=[
                    _ends(
                        at.partition, extents.get((topic.name, at.partition)), located.get((topic.name, at.partition))
                    )
                    for at in topic.partitions
                ],
            )
            for topic in found
        ],
        missing=missing,
    )


async def _locate(door: Door, where: Where, timestamps_ms: list[int]) -> list[int]:
    return [await locate(door.broker, *where, Since(timestamp_ms)) for timestamp_ms in timestamps_ms]


def _ends(index: int, extent: Extent | None, located: list[int] | None) -> PartitionEnds:
    return PartitionEnds(
        partition=index,
        log_start_offset=None if extent is None else extent.log_start_offset,
        log_end_offset=None if extent is None else extent.log_end_offset,
        high_watermark=None if extent is None else extent.high_watermark,
        last_stable_offset=None if extent is None else extent.last_stable_offset,
        size_bytes=None if extent is None else extent.size_bytes,
        located=located or [],
    )


async def report_offsets(door: Door, call: Call[ReportRequest, None]) -> ReportedView:
    """Say how far a reader that plans its own work got: a group without members, with a lag."""
    metadata = door.broker.metadata
    commits: list[OffsetCommit] = []
    for report in call.body.offsets:
        topic = metadata.topic(report.topic)
        assigned = metadata.partition(report.topic, report.partition)
        if report.topic_id is not None and report.topic_id != str(topic.topic_id):
            raise UnknownTopic(f"Topic {report.topic!r} is another one than {report.topic_id}, which is gone.")
        check_committable(report.offset)
        commits.append(
            OffsetCommit(
                report.topic,
                report.partition,
                report.offset,
                assigned.leader_epoch,
                report.metadata,
                topic.topic_id.hex,
            )
        )
    settled = await door.broker.groups.ask(group_of(call), Commit(MemberIdentity(member_id=""), tuple(commits)))
    for error in settled.refused.values():
        raise error
    return ReportedView(committed=len(commits))
