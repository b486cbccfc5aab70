"""Schedules as users hold them: messages for later, once or again and again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

import msgspec

from penstock.client.connections import Answer
from penstock.client.later import DeliverAt, delay_of, form_of, moment_of, new_id
from penstock.client.parcels import Outgoing
from penstock.client.portal import Portal
from penstock.client.transport import Transport
from penstock.client.values import Duration, GivenHeaders, Key, Value, header_pairs, key_bytes, value_bytes
from penstock.errors import InvalidRequest, UnexpectedAnswer
from penstock.records.batch import Headers

Missed = Literal["once", "all", "skip"]
State = Literal["pending", "failed"]

_PAGE: Final = 100
_HeaderText = dict[str, str | list[str | None] | None]
_HeaderBytes = dict[str, bytes | list[bytes | None] | None]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A message for later: when it comes, whether it comes again (``every_ms``, ``cron``), and how it stands."""

    id: str
    topic: str
    due: datetime | None
    value: bytes | None
    key: bytes | None = None
    header_pairs: Headers = ()
    partition: int | None = None
    priority: str = ""
    every_ms: int | None = None
    cron: str | None = None
    time_zone: str | None = None
    missed: Missed = "once"
    runs: int = 0
    created: datetime | None = None
    state: State = "pending"
    reason: str = ""

    @property
    def headers(self) -> Mapping[str, bytes | None]:
        """Headers by name; of a name that comes more than once, the last."""
        return dict(self.header_pairs)


class LatenessBucket(msgspec.Struct, frozen=True):
    """How many came late by ``le_ms`` or less; None counts all."""

    le_ms: int | None
    count: int


class ScheduleStats(msgspec.Struct, frozen=True):
    """Schedules in numbers, of the whole cluster."""

    pending: int
    near: int
    far: int
    due: int
    firing: int
    failed: int
    fired_total: int
    cancelled_total: int
    lateness: list[LatenessBucket]


class _View(msgspec.Struct, frozen=True):
    id: str
    topic: str
    due: datetime | None
    state: State
    runs: int
    created: datetime | None
    partition: int | None
    reason: str = ""
    every_ms: int | None = None
    cron: str | None = None
    time_zone: str | None = None
    missed: Missed = "once"
    priority: str = ""
    key: str | None = None
    key_base64: bytes | None = None
    value: str | None = None
    value_base64: bytes | None = None
    headers: _HeaderText = {}
    headers_base64: _HeaderBytes = {}

    def schedule(self) -> Schedule:
        return Schedule(
            id=self.id,
            topic=self.topic,
            due=self.due,
            value=self.value_base64 if self.value is None else self.value.encode(),
            key=self.key_base64 if self.key is None else self.key.encode(),
            header_pairs=self._headers(),
            partition=self.partition,
            priority=self.priority,
            every_ms=self.every_ms,
            cron=self.cron,
            time_zone=self.time_zone,
            missed=self.missed,
            runs=self.runs,
            created=self.created,
            state=self.state,
            reason=self.reason,
        )

    def _headers(self) -> Headers:
        pairs: list[tuple[str, bytes | None]] = []
        for name, text in self.headers.items():
            texts = text if isinstance(text, list) else [text]
            pairs += [(name, None if each is None else each.encode()) for each in texts]
        for name, data in self.headers_base64.items():
            pairs += [(name, each) for each in (data if isinstance(data, list) else [data])]
        return tuple(pairs)


class _Page(msgspec.Struct, frozen=True):
    schedules: list[_View]
    next: str


def _time_form(
    at: DeliverAt, delay: Duration | None, every: Duration | None, cron: str | None, time_zone: str | None
) -> dict[str, Any]:
    given = {
        "at": moment_of(at, "at"),
        "delay_ms": delay_of(delay, "delay"),
        "every_ms": delay_of(every, "every"),
        "cron": cron,
        "time_zone": time_zone,
    }
    form = {name: value for name, value in given.items() if value is not None}
    if not form.keys() - {"time_zone"}:
        raise InvalidRequest("Say when: give one of at, delay, every and cron.")
    return form


class AsyncSchedules:
    """The schedules of a cluster; `AsyncClient.schedules`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def add(
        self,
        topic: str,
        value: Value,
        *,
        at: DeliverAt = None,
        delay: Duration | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        missed: Missed = "once",
        key: Key = None,
        headers: GivenHeaders = None,
        partition: int | None = None,
        priority: str | None = None,
        id: str = "",  # noqa: A002
    ) -> Schedule:
        """Schedule a message and return when it is safe.

        It comes once, ``at`` a time (a datetime with a time zone, or milliseconds since 1970) or after ``delay``; or
        again and again, ``every`` so often or by ``cron`` in a ``time_zone``. ``missed`` says what becomes of times
        that passed while no node led. With an ``id`` of your own it is added once, however often you ask, until it has
        come; `ScheduleExists` if the id stands for something else.
        """
        message = Outgoing(key_bytes(key), value_bytes(value), header_pairs(headers))
        form = {**form_of(message), **_time_form(at, delay, every, cron, time_zone)}
        form |= {"topic": topic, "id": id or new_id(), "missed": missed}
        if partition is not None:
            form["partition"] = partition
        if priority is not None:
            form["priority"] = priority
        return (await self._transport.post(_View, "v1", "schedules", body=form)).schedule()

    async def list(
        self, *, topic: str | None = None, state: State | None = None, page_size: int = _PAGE
    ) -> AsyncIterator[Schedule]:
        """All schedules, or those of a topic or a state; asked for page by page."""
        after = ""
        while True:
            page = await self._page(topic, state, page_size, after)
            for each in page.schedules:
                yield each.schedule()
            after = page.next
            if not after:
                return

    async def _page(self, topic: str | None, state: State | None, page_size: int, after: str) -> _Page:
        return await self._transport.get(
            _Page, "v1", "schedules", topic=topic, state=state, limit=page_size, after=after or None
        )

    async def show(self, schedule_id: str) -> Schedule:
        """One schedule; `ScheduleNotFound` if there is none, because it has come already or never was."""
        return (await self._transport.get(_View, "v1", "schedules", schedule_id)).schedule()

    async def cancel(self, schedule_id: str) -> None:
        """Cancel a schedule; `ScheduleNotFound`, or `ScheduleBeingFired` if it is too late."""
        await self._transport.call("DELETE", ("v1", "schedules", schedule_id))

    async def reschedule(
        self,
        schedule_id: str,
        *,
        at: DeliverAt = None,
        delay: Duration | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
    ) -> Schedule:
        """Have a schedule come at another time, or by another rule."""
        body = msgspec.json.encode(_time_form(at, delay, every, cron, time_zone))
        return _schedule_in(await self._transport.call("PATCH", ("v1", "schedules", schedule_id), body=body))

    async def run(self, schedule_id: str) -> Schedule:
        """Have a schedule come at once; one that comes again goes on as planned."""
        return _schedule_in(await self._transport.call("POST", ("v1", "schedules", schedule_id, "run")))

    async def stats(self) -> ScheduleStats:
        """How many are to come, came, failed and were cancelled, and how late they came."""
        return await self._transport.get(ScheduleStats, "v1", "schedules", "stats")


def _schedule_in(answer: Answer) -> Schedule:
    try:
        return msgspec.json.decode(answer.body, type=_View).schedule()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnexpectedAnswer(f"The answer is not what a Penstock node says: {error}") from None


class Schedules:
    """The schedules of a cluster, for programs without an event loop; `Client.schedules`. See `AsyncSchedules`."""

    def __init__(self, portal: Portal, schedules: AsyncSchedules) -> None:
        self._portal = portal
        self._schedules = schedules

    def add(
        self,
        topic: str,
        value: Value,
        *,
        at: DeliverAt = None,
        delay: Duration | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        missed: Missed = "once",
        key: Key = None,
        headers: GivenHeaders = None,
        partition: int | None = None,
        priority: str | None = None,
        id: str = "",  # noqa: A002
    ) -> Schedule:
        """Schedule a message and return when it is safe; see `AsyncSchedules.add`."""
        return self._portal.call(
            self._schedules.add(
                topic,
                value,
                at=at,
                delay=delay,
                every=every,
                cron=cron,
                time_zone=time_zone,
                missed=missed,
                key=key,
                headers=headers,
                partition=partition,
                priority=priority,
                id=id,
            )
        )

    def list(
        self, *, topic: str | None = None, state: State | None = None, page_size: int = _PAGE
    ) -> Iterator[Schedule]:
        """All schedules, or those of a topic or a state; asked for page by page."""
        after = ""
        while True:
            page = self._portal.call(self._schedules._page(topic, state, page_size, after))
            yield from (each.schedule() for each in page.schedules)
            after = page.next
            if not after:
                return

    def show(self, schedule_id: str) -> Schedule:
        """One schedule; `ScheduleNotFound` if there is none, because it has come already or never was."""
        return self._portal.call(self._schedules.show(schedule_id))

    def cancel(self, schedule_id: str) -> None:
        """Cancel a schedule; `ScheduleNotFound`, or `ScheduleBeingFired` if it is too late."""
        self._portal.call(self._schedules.cancel(schedule_id))

    def reschedule(
        self,
        schedule_id: str,
        *,
        at: DeliverAt = None,
        delay: Duration | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
    ) -> Schedule:
        """Have a schedule come at another time, or by another rule."""
        return self._portal.call(
            self._schedules.reschedule(schedule_id, at=at, delay=delay, every=every, cron=cron, time_zone=time_zone)
        )

    def run(self, schedule_id: str) -> Schedule:
        """Have a schedule come at once; one that comes again goes on as planned."""
        return self._portal.call(self._schedules.run(schedule_id))

    def stats(self) -> ScheduleStats:
        """How many are to come, came, failed and were cancelled, and how late they came."""
        return self._portal.call(self._schedules.stats())
