"""Dead letters over gRPC: listed, grouped by reason, looked at, and sent back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.doors.grpc.call import Call
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.fields import instant, needed, timestamp_ms, whole
from penstock.doors.grpc.messages import stored_view
from penstock.doors.grpc.method import Method, Unary
from penstock.doors.grpc.statuses import InvalidArgument
from penstock.features.dead_letters.letters import DeadMessage
from penstock.features.redrives.records import DeadLetterFilter, JobState, RedriveJob
from penstock.grpc.generated import dead_letters_pb2
from penstock.grpc.generated.dead_letters_pb2 import RedriveState

_PAGE_SIZE: Final = 100
_PAGE_SIZE_MAX: Final = 1_000
_PLACES_MAX: Final = 10_000
_OFFSET_MAX: Final = (1 << 63) - 1
_STATES: Final[Mapping[JobState, RedriveState.ValueType]] = {
    JobState.RUNNING: RedriveState.REDRIVE_STATE_RUNNING,
    JobState.CANCELLING: RedriveState.REDRIVE_STATE_CANCELLING,
    JobState.DONE: RedriveState.REDRIVE_STATE_DONE,
    JobState.CANCELLED: RedriveState.REDRIVE_STATE_CANCELLED,
}


async def list_dead_letters(
    door: Door, _call: Call, request: dead_letters_pb2.ListDeadLettersRequest
) -> dead_letters_pb2.ListDeadLettersResponse:
    page = await door.broker.dead_letters.page(
        needed(request.topic, "topic"),
        _filter(request.filter),
        limit=whole(request.page_size, "page_size", low=1, high=_PAGE_SIZE_MAX, default=_PAGE_SIZE),
        cursor=request.page_token or None,
        has_redriven=request.include_redriven,
    )
    return dead_letters_pb2.ListDeadLettersResponse(
        dead_letter_topic=page.topic,
        dead_letters=[_view(message) for message in page.messages],
        next_page_token=page.cursor or "",
        scanned=page.scanned,
        total=page.total,
    )


async def get_dead_letter(
    door: Door, _call: Call, request: dead_letters_pb2.GetDeadLetterRequest
) -> dead_letters_pb2.DeadLetter:
    topic = needed(request.topic, "topic")
    partition = whole(request.partition, "partition")
    offset = whole(request.offset, "offset", high=_OFFSET_MAX)
    return _view(await door.broker.dead_letters.get(topic, partition, offset))


async def list_reasons(
    door: Door, _call: Call, request: dead_letters_pb2.ListReasonsRequest
) -> dead_letters_pb2.ListReasonsResponse:
    found = await door.broker.dead_letters.reasons(needed(request.topic, "topic"), _filter(request.filter))
    return dead_letters_pb2.ListReasonsResponse(
        dead_letter_topic=found.topic,
        reasons=[
            dead_letters_pb2.DeadLetterReason(
                reason=each.reason,
                message_count=each.messages,
                first_time=instant(each.first_ms),
                last_time=instant(each.last_ms),
                sample=_view(each.sample),
            )
            for each in found.reasons
        ],
        scanned=found.scanned,
        total=found.total,
        is_complete=found.is_complete,
    )


async def redrive(
    door: Door, _call: Call, request: dead_letters_pb2.RedriveRequest
) -> dead_letters_pb2.RedriveResponse:
    topic, wanted, target = needed(request.topic, "topic"), _filter(request.filter), request.target or None
    if request.dry_run:
        told = await door.broker.dead_letters.rehearse(topic, wanted, target=target)
        return dead_letters_pb2.RedriveResponse(
            rehearsal=dead_letters_pb2.Rehearsal(
                matched=told.matched,
                scanned=told.scanned,
                targets=told.targets,
                stranded=told.stranded,
                samples=[_view(message) for message in told.samples],
            )
        )
    job = await door.broker.dead_letters.redrive(
        topic,
        wanted,
        by=request.requested_by,
        target=target,
        rate=request.rate if request.HasField("rate") else None,
        limit=whole(request.limit, "limit", low=1, high=_OFFSET_MAX) if request.HasField("limit") else None,
    )
    return dead_letters_pb2.RedriveResponse(job=_job(job))


async def list_redrives(
    door: Door, _call: Call, request: dead_letters_pb2.ListRedrivesRequest
) -> dead_letters_pb2.ListRedrivesResponse:
    jobs = await door.broker.dead_letters.redrives(needed(request.topic, "topic"))
    return dead_letters_pb2.ListRedrivesResponse(redrives=[_job(job) for job in jobs])


async def cancel_redrive(
    door: Door, _call: Call, request: dead_letters_pb2.CancelRedriveRequest
) -> dead_letters_pb2.RedriveJob:
    return _job(await door.broker.dead_letters.cancel(needed(request.topic, "topic"), needed(request.id, "id")))


METHODS: Final[Mapping[str, Method]] = {
    "ListDeadLetters": Unary(list_dead_letters),
    "GetDeadLetter": Unary(get_dead_letter),
    "ListReasons": Unary(list_reasons),
    "Redrive": Unary(redrive),
    "ListRedrives": Unary(list_redrives),
    "CancelRedrive": Unary(cancel_redrive),
}


def _filter(wanted: dead_letters_pb2.DeadLetterFilter) -> DeadLetterFilter:
    if len(wanted.places) > _PLACES_MAX:
        raise InvalidArgument(f"filter.places has {len(wanted.places)} entries; it takes up to {_PLACES_MAX}.")
    places = [
        (whole(at.partition, "filter.places.partition"), whole(at.offset, "filter.places.offset", high=_OFFSET_MAX))
        for at in wanted.places
    ]
    return DeadLetterFilter(
        group=wanted.group if wanted.HasField("group") else None,
        reason=wanted.reason if wanted.HasField("reason") else None,
        reason_contains=wanted.reason_contains if wanted.HasField("reason_contains") else None,
        key=wanted.key if wanted.HasField("key") else None,
        since_ms=timestamp_ms(wanted.since, "filter.since") if wanted.HasField("since") else None,
        until_ms=timestamp_ms(wanted.until, "filter.until") if wanted.HasField("until") else None,
        partition=(
            whole(wanted.origin_partition, "filter.origin_partition") if wanted.HasField("origin_partition") else None
        ),
        first_offset=(
            whole(wanted.first_origin_offset, "filter.first_origin_offset", high=_OFFSET_MAX)
            if wanted.HasField("first_origin_offset")
            else None
        ),
        last_offset=(
            whole(wanted.last_origin_offset, "filter.last_origin_offset", high=_OFFSET_MAX)
            if wanted.HasField("last_origin_offset")
            else None
        ),
        places=places or None,
    )


def _view(message: DeadMessage) -> dead_letters_pb2.DeadLetter:
    origin = message.origin
    return dead_letters_pb2.DeadLetter(
        message=stored_view(message.topic, message.partition, message.message),
        origin_topic=origin.topic or "",
        origin_partition=origin.partition,
        origin_offset=origin.offset,
        origin_timestamp=None if origin.timestamp_ms is None else instant(origin.timestamp_ms),
        group=origin.group or "",
        tries=origin.tries,
        reason=origin.reason or "",
        dead_time=instant(message.died_ms),
        is_redriven=message.is_redriven,
    )


def _job(job: RedriveJob) -> dead_letters_pb2.RedriveJob:
    return dead_letters_pb2.RedriveJob(
        id=job.id,
        topic=job.topic,
        dead_letter_topic=job.dead_letters,
        requested_by=job.by,
        target=job.target or "",
        rate=job.rate,
        limit=job.limit,
        state=_STATES[job.state],
        begin_time=instant(job.opened_ms),
        end_time=None if job.ended_ms is None else instant(job.ended_ms),
        scanned=job.scanned,
        moved=job.moved,
        failed=job.failed,
        error=job.error or "",
    )
