"""Schedules of a shard as a list, page by page: those that failed, those being fired, then what is to come, by time.

The near ones are sorted in memory. Of later periods only places are known, so a period is read when a page gets there.
A page has limits to what is looked at, not only to what is found: with a filter it may be short, or empty, and not be
the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from penstock.broker.schedules.leading.shard import ScheduleShard
from penstock.broker.schedules.records import Schedule, State
from penstock.errors import InvalidRequest

_LOOKED_AT_MAX: Final = 5_000
_READ_AT_ONCE: Final = 200

_FAILED: Final = 0
_FIRING: Final = 1
_NEAR: Final = 2
_FAR: Final = 3


class Place(NamedTuple):
    """How far a list has come: the kind, and the order within it."""

    kind: int
    first: int = -1
    second: int = -1
    third: int = -1

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Place:
        if not text:
            return cls(_FAILED)
        try:
            place = cls(*map(int, text.split(".")))
        except (ValueError, TypeError):
            raise InvalidRequest(
                "That is no place to go on with a list from; take `next` of the answer before."
            ) from None
        return place


Found = tuple[Place, Schedule]


async def list_some(
    shard: ScheduleShard, topic: str | None, state: State | None, limit: int, after: str
) -> tuple[list[Schedule], str]:
    """Some schedules from after a place on, and where to go on; an empty text at the end."""
    begin = Place.parse(after)
    found: list[Schedule] = []
    looked_at = 0
    async for place, schedule in _all(shard, state, begin):
        looked_at += 1
        if topic is None or schedule.message.topic == topic:
            found.append(schedule)
        if len(found) >= limit or looked_at >= _LOOKED_AT_MAX:
            return found, str(place)
    return found, ""


async def _all(shard: ScheduleShard, state: State | None, after: Place) -> AsyncIterator[Found]:
    machine = shard.machine
    if after.kind <= _FAILED and state is not State.PENDING:
        async for each in _by_offset(shard, _FAILED, machine.failed(), after):
            yield each
    if state is State.FAILED:
        return
    if after.kind <= _FIRING:
        firing = [offset for event in machine.unfinished() for _, offset, _ in event.entries]
        async for each in _by_offset(shard, _FIRING, firing, after):
            yield each
    if after.kind <= _NEAR:
        async for each in _near(shard, after):
            yield each
    async for each in _far(shard, after):
        yield each


async def _by_offset(shard: ScheduleShard, kind: int, offsets: list[int], after: Place) -> AsyncIterator[Found]:
    begin = after.first if after.kind == kind else -1
    left = sorted(offset for offset in offsets if offset > begin)
    for at in range(0, len(left), _READ_AT_ONCE):
        for offset, schedule in sorted(shard.library.read(left[at : at + _READ_AT_ONCE]).items()):
            yield Place(kind, offset), schedule
        await asyncio.sleep(0)


async def _near(shard: ScheduleShard, after: Place) -> AsyncIterator[Found]:
    begin: tuple[int, int] | None = (after.first, after.second) if after.kind == _NEAR else (-1, -1)
    while begin is not None:
        page = shard.machine.page(_READ_AT_ONCE, begin)
        found = shard.library.read([offset for _, offset in page.entries])
        for time_ms, offset in page.entries:
            if offset in found:
                yield Place(_NEAR, time_ms, offset), found[offset]
        begin = page.after
        await asyncio.sleep(0)


async def _far(shard: ScheduleShard, after: Place) -> AsyncIterator[Found]:
    machine = shard.machine
    begin = after if after.kind == _FAR else Place(_FAR)
    for period in machine.far_periods():
        if period < begin.first:
            continue
        rows: list[Found] = []
        offsets = sorted(set(machine.far_offsets(period)))
        for at in range(0, len(offsets), _READ_AT_ONCE):
            for offset, schedule in shard.library.read(offsets[at : at + _READ_AT_ONCE]).items():
                place = Place(_FAR, period, schedule.due_ms, offset)
                if place > begin and machine.is_far(schedule.id, offset):
                    rows.append((place, schedule))
            await asyncio.sleep(0)
        rows.sort(key=_place)
        for row in rows:
            yield row


_place: Callable[[Found], Place] = lambda found: found[0]  # noqa: E731 - a function of its own would say no more
