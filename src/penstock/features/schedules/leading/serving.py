"""Schedules of a shard as a list, page by page: those that failed, those being fired, then what is to come, by time.

The near ones are sorted in memory. Of later periods only places are known, so a period is read when a page gets there.
A page has limits to what is looked at, not only to what is found: with a filter it may be short, or empty, and not be
the last one.

What is asked of the shards that this node leads, by its own doors or by other nodes.

The machine knows schedules by a hash of their ids and by their place in the log; here what is there is read, and
compared, and asked about again where that was not what was meant.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.errors import InvalidRequest, RequestTimedOut, ScheduleBeingFired, ScheduleNotFound
from penstock.features.schedules.leading.coordinator import ScheduleCoordinator
from penstock.features.schedules.leading.shard import ScheduleShard
from penstock.features.schedules.messages import (
    AddAll,
    CancelNamed,
    JudgedSchedule,
    MoveSchedule,
    NamedSchedule,
    PlacedSchedule,
    RunNow,
    ScheduleOutcome,
    ScheduleRequest,
    stands_for,
)
from penstock.features.schedules.records import ScheduleStatus, StoredSchedule
from penstock.features.schedules.wire import (
    ADD,
    CANCEL,
    CHANGE,
    FIGURES,
    LIST,
    SHOW,
    AddSchedules,
    CancelSchedules,
    ChangeSchedule,
    ListShard,
    OneSchedule,
    SchedulesAdded,
    SchedulesCancelled,
    SchedulesListed,
    ShardFigures,
    ShowSchedule,
)
from penstock.network.port import Peers

_LOOKED_AT_MAX: Final = 5_000
_READ_AT_ONCE: Final = 200

_FAILED: Final = 0
_FIRING: Final = 1
_NEAR: Final = 2
_FAR: Final = 3


class ListPosition(NamedTuple):
    """How far a list has come: the kind, and the order within it."""

    kind: int
    first: int = -1
    second: int = -1
    third: int = -1

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> ListPosition:
        if not text:
            return cls(_FAILED)
        try:
            place = cls(*map(int, text.split(".")))
        except (ValueError, TypeError):
            raise InvalidRequest(
                "That is no place to go on with a list from; take `next` of the answer before."
            ) from None
        return place


Found = tuple[ListPosition, StoredSchedule]


async def list_some(
    shard: ScheduleShard, topic: str | None, state: ScheduleStatus | None, limit: int, after: str
) -> tuple[list[StoredSchedule], str]:
    """Some schedules from after a place on, and where to go on; an empty text at the end."""
    begin = ListPosition.parse(after)
    found: list[StoredSchedule] = []
    looked_at = 0
    async for place, schedule in _all(shard, state, begin):
        looked_at += 1
        if topic is None or schedule.message.topic == topic:
            found.append(schedule)
        if len(found) >= limit or looked_at >= _LOOKED_AT_MAX:
            return found, str(place)
    return found, ""


async def _all(shard: ScheduleShard, state: ScheduleStatus | None, after: ListPosition) -> AsyncIterator[Found]:
    machine = shard.machine
    if after.kind <= _FAILED and state is not ScheduleStatus.PENDING:
        async for each in _by_offset(shard, _FAILED, machine.failed(), after):
            yield each
    if state is ScheduleStatus.FAILED:
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


async def _by_offset(shard: ScheduleShard, kind: int, offsets: list[int], after: ListPosition) -> AsyncIterator[Found]:
    begin = after.first if after.kind == kind else -1
    left = sorted(offset for offset in offsets if offset > begin)
    for at in range(0, len(left), _READ_AT_ONCE):
        for offset, schedule in sorted(shard.library.read(left[at : at + _READ_AT_ONCE]).items()):
            yield ListPosition(kind, offset), schedule
        await asyncio.sleep(0)


async def _near(shard: ScheduleShard, after: ListPosition) -> AsyncIterator[Found]:
    begin: tuple[int, int] | None = (after.first, after.second) if after.kind == _NEAR else (-1, -1)
    while begin is not None:
        page = shard.machine.page(_READ_AT_ONCE, begin)
        found = shard.library.read([offset for _, offset in page.entries])
        for time_ms, offset in page.entries:
            if offset in found:
                yield ListPosition(_NEAR, time_ms, offset), found[offset]
        begin = page.after
        await asyncio.sleep(0)


async def _far(shard: ScheduleShard, after: ListPosition) -> AsyncIterator[Found]:
    machine = shard.machine
    begin = after if after.kind == _FAR else ListPosition(_FAR)
    for period in machine.far_periods():
        if period < begin.first:
            continue
        rows: list[Found] = []
        offsets = sorted(set(machine.far_offsets(period)))
        for at in range(0, len(offsets), _READ_AT_ONCE):
            for offset, schedule in shard.library.read(offsets[at : at + _READ_AT_ONCE]).items():
                place = ListPosition(_FAR, period, schedule.due_ms, offset)
                if place > begin and machine.is_far(schedule.id, offset):
                    rows.append((place, schedule))
            await asyncio.sleep(0)
        rows.sort(key=_place)
        for row in rows:
            yield row


_place: Callable[[Found], ListPosition] = lambda found: found[0]  # noqa: E731 - a function of its own would say no more


# One batch each: single schedules are read out of it later, and small ones are quickly stepped through.
_ADDED_AT_ONCE: Final = 64
_LOOKS: Final = 10  # at a schedule that is another one each time


class ScheduleServing:
    """Every method takes what a node says to another one, and answers what it is answered."""

    def __init__(self, coordinator: ScheduleCoordinator) -> None:
        self._coordinator = coordinator

    def serve(self, peers: Peers) -> None:
        peers.serve(ADD, lambda _node, request, _body: self.add(request))
        peers.serve(CANCEL, lambda _node, request, _body: self.cancel(request))
        peers.serve(SHOW, lambda _node, request, _body: self.show(request))
        peers.serve(CHANGE, lambda _node, request, _body: self.change(request))
        peers.serve(LIST, lambda _node, request, _body: self.list(request))
        peers.serve(FIGURES, lambda _node, _request, _body: ShardFigures(self._coordinator.figures()))

    # -- adding -------------------------------------------------------------------------------------------------------

    async def add(self, request: AddSchedules) -> SchedulesAdded:
        shard = await self._coordinator.await_shard_at(request.shard)
        news = request.schedules
        pieces = [news[at : at + _ADDED_AT_ONCE] for at in range(0, len(news), _ADDED_AT_ONCE)]
        if len(pieces) == 1:
            return SchedulesAdded(await self._add(shard, news))
        answers = await asyncio.gather(*(self._add(shard, piece) for piece in pieces))
        return SchedulesAdded(tuple(placed for answer in answers for placed in answer))

    async def _add(self, shard: ScheduleShard, news: Sequence[ScheduleRequest]) -> tuple[PlacedSchedule, ...]:
        placed = await shard.ask_schedules(AddAll(news))
        if all(each.is_new for each in placed):
            return placed
        return tuple(
            [
                each if each.is_new or each.offset < 0 else await self._known(shard, new, each)
                for new, each in zip(news, placed, strict=True)
            ]
        )

    async def _known(self, shard: ScheduleShard, new: ScheduleRequest, placed: PlacedSchedule) -> PlacedSchedule:
        """What an id that is taken stands for; where it is not this one after all, the schedule is added."""
        others: tuple[int, ...] = ()
        for _ in range(_LOOKS):
            known = shard.library.read_one(placed.offset)
            if known is not None and known.id == new.id:
                return PlacedSchedule(new.id, known.due_ms, is_new=False, is_other=not stands_for(known, new))
            others = (*others, placed.offset) if known is not None else others
            (placed,) = await shard.ask_schedules(AddAll([_without(new, others)]))
            if placed.is_new or placed.offset < 0:
                return placed
        raise RequestTimedOut(f"Schedule {new.id!r} changes too fast. Try again.")

    # -- finding and changing -----------------------------------------------------------------------------------------

    async def show(self, request: ShowSchedule) -> OneSchedule:
        shard = await self._coordinator.await_shard_at(request.shard)
        _, schedule = _find(shard, request.id)
        await shard.settled()
        return OneSchedule(schedule)

    async def cancel(self, request: CancelSchedules) -> SchedulesCancelled:
        shard = await self._coordinator.await_shard_at(request.shard)
        fates = [ScheduleOutcome.NOT_FOUND] * len(request.ids)
        left = {at: NamedSchedule(schedule_id) for at, schedule_id in enumerate(request.ids)}
        for _ in range(_LOOKS):
            judged = await shard.ask_schedules(CancelNamed(list(left.values())))
            looks: dict[int, NamedSchedule] = {}
            for (at, name), each in zip(left.items(), judged, strict=True):
                fates[at] = each.fate
                if each.fate is ScheduleOutcome.LOOK:
                    fates[at] = ScheduleOutcome.NOT_FOUND
                    if (offset := _which(shard, name.id, each)) is not None:
                        looks[at] = NamedSchedule(name.id, offset)
            if not looks:
                return SchedulesCancelled(tuple(fates))
            left = looks
        raise RequestTimedOut("Some schedules change too fast to be cancelled. Try again.")

    async def change(self, request: ChangeSchedule) -> OneSchedule:
        shard = await self._coordinator.await_shard_at(request.shard)
        is_run = request.due_ms is None and request.rule is None
        for _ in range(_LOOKS):
            offset, schedule = _find(shard, request.id)
            asked = RunNow(schedule, offset) if is_run else MoveSchedule(schedule, offset, request.due_ms, request.rule)
            judged = await shard.ask_schedules(asked)
            if judged.fate is ScheduleOutcome.TOO_LATE:
                raise ScheduleBeingFired(f"The message of schedule {request.id!r} is on its way into its topic.")
            if judged.fate is ScheduleOutcome.DONE:
                return OneSchedule(_as_changed(shard, schedule, request))
        raise RequestTimedOut(f"Schedule {request.id!r} changes too fast. Try again.")

    async def list(self, request: ListShard) -> SchedulesListed:
        shard = await self._coordinator.await_shard_at(request.shard)
        found, place = await list_some(shard, request.topic, request.state, request.limit, request.after)
        await shard.settled()
        return SchedulesListed(tuple(found), place)


def _without(new: ScheduleRequest, others: tuple[int, ...]) -> ScheduleRequest:
    return msgspec.structs.replace(new, others=others)


def _find(shard: ScheduleShard, schedule_id: str) -> tuple[int, StoredSchedule]:
    """A schedule and where it is; `ScheduleNotFound` if there is none of that id."""
    offsets = shard.machine.where(schedule_id)
    for offset, schedule in shard.library.read(offsets).items():
        if schedule.id == schedule_id:
            return offset, schedule
    raise ScheduleNotFound(
        f"There is no schedule {schedule_id!r}: it never was, it was cancelled, or its message is in its topic already."
    )


def _which(shard: ScheduleShard, schedule_id: str, judged: JudgedSchedule) -> int | None:
    """Where the schedule of an id is among places that it may be at."""
    found = shard.library.read(judged.offsets)
    return next((offset for offset, schedule in found.items() if schedule.id == schedule_id), None)


def _as_changed(shard: ScheduleShard, before: StoredSchedule, request: ChangeSchedule) -> StoredSchedule:
    """A schedule as it is now; what was run may be gone already."""
    try:
        return _find(shard, before.id)[1]
    except ScheduleNotFound:
        due_ms = shard.now_ms() if request.due_ms is None else request.due_ms
        return msgspec.structs.replace(before, due_ms=due_ms)
