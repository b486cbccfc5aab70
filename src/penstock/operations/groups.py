"""Serves consumer groups: membership; groups looked at, moved and deleted; offsets of readers without membership."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from penstock.access.acls import AclAction
from penstock.api.cluster import PlaceView
from penstock.api.groups import (
    CommitGroup,
    CommitItem,
    CommittedView,
    DeletedOffsets,
    DeleteGroup,
    DeleteGroupOffsets,
    DescribeGroup,
    FindOffsets,
    GroupDetail,
    GroupList,
    GroupView,
    HeartbeatGroup,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    MembershipView,
    MemberView,
    MoveView,
    OffsetsAnswer,
    OffsetView,
    PartitionEnds,
    PolledView,
    PollGroup,
    ReportedOffset,
    ReportedView,
    ReportOffsets,
    ResetGroup,
    ResetResult,
    TopicEnds,
)
from penstock.api.messages import DeliveredMessage, to_ms, view_of
from penstock.api.operation import Packed
from penstock.consensus.metadata import Topic
from penstock.errors import (
    GroupNotFound,
    InvalidRegularExpression,
    InvalidRequest,
    OffsetOutOfRange,
    UnknownTopic,
)
from penstock.features.groups.client_metadata import read_assignment
from penstock.features.groups.consumer.topics import match_names
from penstock.features.groups.group import Group
from penstock.features.groups.hosted.member import MemberStanding, OffsetToCommit, Polled
from penstock.features.groups.hosted.seat import Wish
from penstock.features.groups.messages import CommitOffsets, Delete, MemberIdentity, OffsetCommit, check_committable
from penstock.features.groups.report import Progress, Shift, delete_offsets, progress_of, reset_offsets
from penstock.features.groups.slot import AnyGroup
from penstock.features.queues.leading.progress import QUEUE_MARK
from penstock.model import OFFSETS_TOPIC
from penstock.operations.asking import ask_each, coordinators
from penstock.operations.caller import Caller, Waiting
from penstock.operations.guard import require_topics
from penstock.operations.services import Services
from penstock.operations.serving import serves
from penstock.partitions.access import Extent, SinceTime, Start, Where
from penstock.partitions.beside import show_beside

_MARKS: Final = frozenset({QUEUE_MARK, "spark"})  # metadata of offsets that queue groups and Spark queries commit

_encoder: Final = msgspec.msgpack.Encoder()

# -- members -----------------------------------------------------------------------------------------------------------


@serves(JoinGroup)
async def join_group(services: Services, request: JoinGroup, caller: Caller) -> MembershipView:
    wish = Wish(
        topics=frozenset(request.topics),
        session_timeout_ms=request.session_timeout_ms,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=f"/{caller.host}" if caller.host else "",
        reset=request.auto_offset_reset,
        commits_itself=request.auto_commit,
    )
    wait_seconds = caller.milliseconds_left(request.wait_ms) / 1000
    joining = services.hosted.join(request.group, wish, request.member_id or "", wait_seconds)
    async with Waiting(caller, joining) as waiting:
        return MembershipView(**_standing(request.group, await waiting.result()))


@serves(PollGroup)
async def poll_group(services: Services, request: PollGroup, caller: Caller) -> PolledView | Packed:
    max_bytes = min(request.max_bytes or caller.answer_bytes_max, caller.answer_bytes_max)
    with services.hosted.using(request.group, request.member_id) as member:
        # A member's id is no secret, and its topics are named only where it joined.
        require_topics(services, caller, AclAction.READ, member.seat.wish.topics, "poll_group")
        wait_seconds, is_raw = caller.milliseconds_left(request.wait_ms) / 1000, caller.wants_packed
        polling = member.poll(request.max_messages, max_bytes, wait_seconds, request.last_poll, is_raw=is_raw)
        async with Waiting(caller, polling) as waiting:
            polled = await waiting.result()
            if waiting.is_client_gone or caller.is_gone:
                member.take_back(polled)
    if is_raw:
        return _packed(request.group, polled)
    records = chain.from_iterable(found for _, found in polled.messages)
    return await show_beside(records, partial(_polled, request.group, polled))


@serves(CommitGroup)
async def commit_group(services: Services, request: CommitGroup, caller: Caller) -> CommittedView:
    offsets = None
    if request.offsets is not None:
        if request.last_poll is not None:
            raise InvalidRequest("Give either `offsets` or `last_poll`.")
        if len({(item.topic, item.partition) for item in request.offsets}) < len(request.offsets):
            raise InvalidRequest("Each partition can be committed once in a call.")
        offsets = [OffsetToCommit(item.topic, item.partition, item.offset, item.metadata) for item in request.offsets]
    if request.member_id is None:
        if request.offsets is None:
            raise InvalidRequest("Without a `member_id` nothing is known to have been polled: name `offsets`.")
        if request.generation is not None:
            raise InvalidRequest("A `generation` goes with a `member_id`.")
        reports = [ReportedOffset(**asdict(item)) for item in request.offsets]
        await report_offsets(services, ReportOffsets(group=request.group, offsets=reports), caller)
        return CommittedView(offsets=request.offsets)
    with services.hosted.using(request.group, request.member_id) as member:
        committed = await member.commit(offsets, request.generation, request.last_poll)
    return CommittedView(offsets=[CommitItem(**offset._asdict()) for offset in committed])


@serves(HeartbeatGroup)
async def heartbeat_group(services: Services, request: HeartbeatGroup, _caller: Caller) -> MembershipView:
    with services.hosted.using(request.group, request.member_id) as member:
        return MembershipView(**_standing(request.group, member.heartbeat(request.generation)))


@serves(LeaveGroup)
async def leave_group(services: Services, request: LeaveGroup, _caller: Caller) -> None:
    await services.hosted.leave(request.group, request.member_id)


def _standing(group_id: str, standing: MemberStanding) -> dict[str, Any]:
    return {
        "group": group_id,
        "member_id": standing.member_id,
        "generation": standing.generation,
        "state": "stable" if standing.is_settled else "rebalancing",
        "partitions": [PlaceView(topic=topic, partition=index) for topic, index in standing.places],
    }


def _polled(group_id: str, polled: Polled) -> PolledView:
    return PolledView(
        **_standing(group_id, polled.standing),
        poll=polled.number,
        rebalanced=polled.is_rebalanced,
        messages=[
            DeliveredMessage(topic=topic, partition=index, **asdict(view_of(record)))
            for (topic, index), records in polled.messages
            for record in records
        ],
    )


def _packed(group_id: str, polled: Polled) -> Packed:
    """What a member polled, as whole batches. Form: docs/reference/rest-binary.md."""
    answer = {
        **_standing(group_id, polled.standing),
        "partitions": polled.standing.places,
        "poll": polled.number,
        "rebalanced": polled.is_rebalanced,
        "batches": [(topic, index, run.first, run.end, run.data) for (topic, index), run in polled.runs],
    }
    return Packed((_encoder.encode(answer),))


# -- groups ------------------------------------------------------------------------------------------------------------


@serves(ListGroups)
async def list_groups(services: Services, request: ListGroups, caller: Caller) -> GroupList:
    groups = services.groups.all_groups()
    progress = await progress_of(services.ports, groups)
    views = [_view(services, group, rows) for group, rows in zip(groups, progress, strict=True)]
    if not caller.is_forwarded:
        for other in await ask_each(services, coordinators(services, OFFSETS_TOPIC), request, caller):
            views += other.groups
    return GroupList(groups=sorted(views, key=lambda view: view.group))


@serves(DescribeGroup)
async def describe_group(services: Services, request: DescribeGroup, _caller: Caller) -> GroupDetail:
    return await _detail(services, _find(services, request.group))


@serves(DeleteGroup)
async def delete_group(services: Services, request: DeleteGroup, _caller: Caller) -> None:
    await services.groups.ask(_find(services, request.group).id, Delete())


@serves(ResetGroup)
async def reset_group(services: Services, request: ResetGroup, _caller: Caller) -> ResetResult:
    broker, group_id = services.broker, request.group
    target = _target(request)
    if not request.create:
        _find(services, group_id)
    if not request.dry_run:
        await broker.ensure_offsets_topic()
    moves = await reset_offsets(
        services.ports, services.groups, group_id, request.topic, request.partitions, target, is_dry=request.dry_run
    )
    group = services.groups.find(group_id) if broker.has_groups else None
    detail = await _detail(services, group or Group(group_id, broker.config.groups))
    return ResetResult(
        **{name: getattr(detail, name) for name in detail.__struct_fields__},
        dry_run=request.dry_run,
        moves=[MoveView(**move._asdict()) for move in moves],
    )


def _target(request: ResetGroup) -> Start | Shift:
    given = [value for value in (request.to, request.since, request.shift) if value is not None]
    if len(given) != 1:
        raise InvalidRequest("Give one of `to` (an offset, earliest or latest), `since` (an instant) and `shift`.")
    if request.since is not None:
        return SinceTime(to_ms(request.since))
    if request.shift is not None:
        return Shift(request.shift)
    assert request.to is not None
    return request.to


@serves(DeleteGroupOffsets)
async def delete_group_offsets(services: Services, request: DeleteGroupOffsets, _caller: Caller) -> DeletedOffsets:
    listed = request.partitions
    indexes = None if listed is None else [int(text) for text in listed.split(",")]
    places = await delete_offsets(services.groups, _find(services, request.group), request.topic, indexes)
    return DeletedOffsets(deleted=[PlaceView(topic=topic, partition=index) for topic, index in places])


def _find(services: Services, group_id: str) -> AnyGroup:
    group = services.groups.find(group_id) if services.broker.has_groups else None
    if group is None:
        raise GroupNotFound(f"There is no group {group_id!r}.")
    return group


async def _detail(services: Services, group: AnyGroup) -> GroupDetail:
    (progress,) = await progress_of(services.ports, [group])
    return GroupDetail(
        **msgspec.structs.asdict(_view(services, group, progress)),
        member_details=[
            MemberView(
                member_id=member.id,
                instance_id=member.instance_id,
                client_id=member.facts.client_id,
                client_host=member.facts.client_host,
                partitions=[
                    PlaceView(topic=topic, partition=index) for topic, index in read_assignment(member.facts.assignment)
                ],
            )
            for member in group.members
        ],
        offsets=[OffsetView(**row._asdict()) for row in progress],
    )


def _kind_of(services: Services, group: AnyGroup, progress: list[Progress]) -> str:
    if group.members:
        hosted = services.broker.hosted_members
        return "rest" if any((group.id, member.id) in hosted for member in group.members) else group.kind
    marks = {row.metadata for row in progress if row.committed_offset is not None}
    (mark,) = marks if len(marks) == 1 else ("",)
    return mark if mark in _MARKS else group.kind


def _view(services: Services, group: AnyGroup, progress: list[Progress]) -> GroupView:
    return GroupView(
        group=group.id,
        type=group.kind,
        kind=_kind_of(services, group, progress),
        state=group.state.value,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        generation=group.generation,
        members=len(group.members),
        lag=sum(row.lag or 0 for row in progress),
    )


# -- readers that plan their own work, such as Spark -------------------------------------------------------------------


@serves(FindOffsets)
async def find_offsets(services: Services, request: FindOffsets, caller: Caller) -> OffsetsAnswer:
    if not request.topics and request.pattern is None:
        raise InvalidRequest("Name `topics`, or give a `pattern`.")
    wait_ms = caller.milliseconds_left(request.wait_ms)
    if wait_ms and request.known:
        known = {(position.topic, position.partition): position.offset for position in request.known}
        if not await _is_behind(services, request, known):
            async with Waiting(caller, services.partitions.await_more(known, wait_ms)) as waiting:
                await waiting.result()
    return await _offsets(services, request)


async def _is_behind(services: Services, request: FindOffsets, known: dict[Where, int]) -> bool:
    """Whether there is something to tell already: more messages, or partitions that the caller does not know."""
    found, missing = _find_topics(services, request)
    places = [(topic.name, at.partition) for topic in found for at in topic.partitions]
    if missing or any(at not in known for at in places) or len(places) != len(known):
        return True
    extents = await services.partitions.extents(places)
    return any(extents[at].last_stable_offset > offset for at, offset in known.items() if at in extents)


def _find_topics(services: Services, request: FindOffsets) -> tuple[list[Topic], list[str]]:
    metadata = services.metadata
    names = set(request.topics)
    if request.pattern is not None:
        try:
            names |= match_names(request.pattern, metadata.topics)
        except InvalidRegularExpression as error:
            raise InvalidRequest(error.message) from None
    found = [metadata.topics[name] for name in sorted(names) if name in metadata.topics]
    return found, sorted(names - metadata.topics.keys())


async def _offsets(services: Services, request: FindOffsets) -> OffsetsAnswer:
    found, missing = _find_topics(services, request)
    places = [(topic.name, at.partition) for topic in found for at in topic.partitions]
    extents = await services.partitions.extents(places)
    located: dict[Where, list[int]] = {}
    if request.timestamps_ms:
        reached = [at for at in places if at in extents]
        offsets = await asyncio.gather(*(_locate(services, at, request.timestamps_ms) for at in reached))
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


async def _locate(services: Services, where: Where, timestamps_ms: list[int]) -> list[int]:
    return [await services.partitions.locate(*where, SinceTime(timestamp_ms)) for timestamp_ms in timestamps_ms]


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


@serves(ReportOffsets)
async def report_offsets(services: Services, request: ReportOffsets, _caller: Caller) -> ReportedView:
    metadata = services.metadata
    extents = await services.partitions.extents([(report.topic, report.partition) for report in request.offsets])
    commits: list[OffsetCommit] = []
    for report in request.offsets:
        topic = metadata.topic(report.topic)
        assigned = metadata.partition(report.topic, report.partition)
        if report.topic_id is not None and report.topic_id != str(topic.topic_id):
            raise UnknownTopic(f"Topic {report.topic!r} is another one than {report.topic_id}, which is gone.")
        extent = extents.get((report.topic, report.partition))
        if extent is not None and report.offset > extent.log_end_offset:
            name = f"{report.topic}-{report.partition}"
            raise OffsetOutOfRange(f"{name} ends at {extent.log_end_offset}, before {report.offset}.")
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
    identity = MemberIdentity(member_id="")
    settled = await services.groups.ask(request.group, CommitOffsets(identity, tuple(commits)))
    for error in settled.refused.values():
        raise error
    return ReportedView(committed=len(commits))
