"""Serves dead letters: listed, grouped by reason, looked at one by one, sent back."""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from penstock.api.dead_letters import (
    CancelRedrive,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterPlace,
    DeadLetterView,
    GetDeadLetter,
    GetRedrive,
    ListDeadLetterReasons,
    ListDeadLetters,
    ListRedrives,
    OriginView,
    ReasonList,
    ReasonView,
    Redrive,
    RedriveList,
    RedrivePlan,
    RedriveReport,
    RedriveView,
)
from penstock.api.messages import instant, to_ms, view_of
from penstock.errors import InvalidField, RedriveNotFound
from penstock.features.dead_letters.dead_letters import DeadMessagePage, ReasonGroups, RedrivePreview
from penstock.features.dead_letters.letters import DeadMessage
from penstock.features.redrives.records import DeadLetterFilter as StoredFilter
from penstock.features.redrives.records import RedriveJob
from penstock.operations.caller import Caller
from penstock.operations.services import Services
from penstock.operations.serving import serves
from penstock.partitions.beside import show_beside

_LOOK_SECONDS: Final = 0.02


@serves(ListDeadLetters)
async def list_dead_letters(services: Services, request: ListDeadLetters, _caller: Caller) -> DeadLetterPage:
    page = await services.dead_letters.page(
        request.topic,
        filter_of(request),
        limit=request.limit,
        cursor=request.cursor,
        has_redriven=request.include_redriven,
    )
    return await show_beside((each.record for each in page.messages), partial(_page_view, page))


@serves(ListDeadLetterReasons)
async def list_dead_letter_reasons(services: Services, request: ListDeadLetterReasons, _caller: Caller) -> ReasonList:
    found = await services.dead_letters.reasons(request.topic, filter_of(request))
    return await show_beside((each.sample.record for each in found.reasons), partial(_reasons_view, found))


@serves(GetDeadLetter)
async def get_dead_letter(services: Services, request: GetDeadLetter, _caller: Caller) -> DeadLetterView:
    found = await services.dead_letters.get(request.topic, request.partition, request.offset, group=request.group)
    return await show_beside((found.record,), partial(_letter_view, found))


@serves(Redrive)
async def redrive(services: Services, request: Redrive, caller: Caller) -> RedriveReport:
    letters, clock = services.dead_letters, services.clock
    wanted = filter_of(request.filter)
    if request.dry_run:
        plan = await letters.rehearse(request.topic, wanted, target=request.target)
        samples = (each.record for each in plan.samples)
        return RedriveReport(dry_run=await show_beside(samples, partial(_plan_view, plan)))
    by = " ".join(word for word in (request.by, f"({caller.host})" if caller.host else "") if word)
    job = await letters.redrive(
        request.topic, wanted, by=by, target=request.target, rate=request.rate, limit=request.limit
    )
    deadline = clock.monotonic() + caller.milliseconds_left(request.wait_ms) / 1000
    while not job.state.is_over and clock.monotonic() < deadline and not caller.stopping.is_set():
        await asyncio.sleep(_LOOK_SECONDS)
        job = await _find(services, request.topic, job.id, wanted.group)
    return RedriveReport(redrive=_redrive_view(job))


@serves(ListRedrives)
async def list_redrives(services: Services, request: ListRedrives, _caller: Caller) -> RedriveList:
    jobs = await services.dead_letters.redrives(request.topic, group=request.group)
    return RedriveList(redrives=[_redrive_view(job) for job in jobs])


@serves(GetRedrive)
async def get_redrive(services: Services, request: GetRedrive, _caller: Caller) -> RedriveView:
    return _redrive_view(await _find(services, request.topic, request.redrive, request.group))


@serves(CancelRedrive)
async def cancel_redrive(services: Services, request: CancelRedrive, _caller: Caller) -> RedriveView:
    job = await _find(services, request.topic, request.redrive, request.group)
    return _redrive_view(await services.dead_letters.cancel(request.topic, job.id, group=request.group))


async def _find(services: Services, topic: str, job_id: str, group: str | None) -> RedriveJob:
    for job in await services.dead_letters.redrives(topic, group=group):
        if job.id == job_id:
            return job
    raise RedriveNotFound(f"There is no redrive {job_id!r} of {topic!r}, or it ended too long ago.")


def filter_of(fields: DeadLetterFilter) -> StoredFilter:
    """The broker's filter."""
    if fields.key_base64 is not None and fields.key is not None:
        raise InvalidField("Give key or key_base64, not both.", is_parameter=True)
    return StoredFilter(
        group=fields.group,
        reason=fields.reason,
        reason_contains=fields.reason_contains,
        key=fields.key_base64 if fields.key is None else fields.key.encode(),
        since_ms=_ms(fields.since),
        until_ms=_ms(fields.until),
        partition=fields.origin_partition,
        first_offset=fields.first_offset,
        last_offset=fields.last_offset,
        places=None if fields.places is None else [(each.partition, each.offset) for each in fields.places],
    )


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else to_ms(moment)


# -- out ---------------------------------------------------------------------------------------------------------------


def _letter_view(message: DeadMessage) -> DeadLetterView:
    origin = message.origin
    return DeadLetterView(
        **msgspec.structs.asdict(view_of(message.message)),
        topic=message.topic,
        partition=message.partition,
        group=origin.group,
        reason=origin.reason,
        tries=origin.tries,
        died=instant(message.died_ms),
        origin=OriginView(
            topic=origin.topic,
            partition=origin.partition,
            offset=origin.offset,
            timestamp=None if origin.timestamp_ms is None else instant(origin.timestamp_ms),
        ),
        times_redriven=message.times_redriven,
        is_redriven=message.is_redriven,
    )


def _page_view(page: DeadMessagePage) -> DeadLetterPage:
    return DeadLetterPage(
        topic=page.topic,
        dead_letters=[_letter_view(each) for each in page.messages],
        cursor=page.cursor,
        scanned=page.scanned,
        total=page.total,
    )


def _reasons_view(found: ReasonGroups) -> ReasonList:
    reasons = [
        ReasonView(
            reason=each.reason,
            count=each.messages,
            first=instant(each.first_ms),
            last=instant(each.last_ms),
            sample=_letter_view(each.sample),
        )
        for each in found.reasons
    ]
    return ReasonList(
        topic=found.topic,
        reasons=reasons,
        scanned=found.scanned,
        total=found.total,
        is_complete=found.is_complete,
    )


def _plan_view(found: RedrivePreview) -> RedrivePlan:
    return RedrivePlan(
        topic=found.topic,
        matched=found.matched,
        scanned=found.scanned,
        targets=found.targets,
        stranded=found.stranded,
        samples=[_letter_view(each) for each in found.samples],
        is_complete=found.is_complete,
    )


def _redrive_view(job: RedriveJob) -> RedriveView:
    return RedriveView(
        id=job.id,
        topic=job.topic,
        dead_letters=job.dead_letters,
        state=job.state.value,
        by=job.by,
        filter=_filter_view(job.filter),
        target=job.target,
        rate=job.rate,
        limit=job.limit,
        opened=instant(job.opened_ms),
        ended=None if job.ended_ms is None else instant(job.ended_ms),
        scanned=job.scanned,
        total=sum(job.ends.values()),
        moved=job.moved,
        failed=job.failed,
        error=job.error,
    )


def _filter_view(asked: StoredFilter) -> DeadLetterFilter:
    key, key_base64 = None, asked.key
    if asked.key is not None:
        try:
            key, key_base64 = asked.key.decode(), None
        except UnicodeDecodeError:
            pass
    places = asked.places
    return DeadLetterFilter(
        group=asked.group,
        reason=asked.reason,
        reason_contains=asked.reason_contains,
        key=key,
        key_base64=key_base64,
        since=None if asked.since_ms is None else instant(asked.since_ms),
        until=None if asked.until_ms is None else instant(asked.until_ms),
        origin_partition=asked.partition,
        first_offset=asked.first_offset,
        last_offset=asked.last_offset,
        places=None if places is None else [DeadLetterPlace(partition=of, offset=at) for of, at in places],
    )
