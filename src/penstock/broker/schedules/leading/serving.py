"""What is asked of the shards that this node leads, by its own doors or by other nodes.

The machine knows schedules by a hash of their ids and by their place in the log; here what is there is read, and
compared, and asked about again where that was not what was meant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.broker.schedules.entering import stands_for
from penstock.broker.schedules.leading.coordinator import ScheduleCoordinator
from penstock.broker.schedules.leading.listing import list_some
from penstock.broker.schedules.leading.shard import ScheduleShard
from penstock.broker.schedules.messages import Add, Cancel, Fate, Judged, Named, New, Placed, Reschedule, RunNow
from penstock.broker.schedules.records import Schedule
from penstock.broker.schedules.wire import (
    ADD,
    CANCEL,
    CHANGE,
    FIGURES,
    LIST,
    SHOW,
    AddSchedules,
    AskFigures,
    CancelSchedules,
    ChangeSchedule,
    FiguresTold,
    ListSchedules,
    OneSchedule,
    SchedulesAdded,
    SchedulesCancelled,
    SchedulesListed,
    ShowSchedule,
)
from penstock.errors import RequestTimedOut, ScheduleBeingFired, ScheduleNotFound
from penstock.peers.port import Peers

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
        peers.serve(FIGURES, lambda _node, request, _body: self.figures(request))

    def figures(self, _request: AskFigures) -> FiguresTold:
        return FiguresTold(self._coordinator.figures())

    # -- adding -------------------------------------------------------------------------------------------------------

    async def add(self, request: AddSchedules) -> SchedulesAdded:
        shard = await self._coordinator.await_shard(request.shard)
        news = request.schedules
        pieces = [news[at : at + _ADDED_AT_ONCE] for at in range(0, len(news), _ADDED_AT_ONCE)]
        if len(pieces) == 1:
            return SchedulesAdded(await self._add(shard, news))
        answers = await asyncio.gather(*(self._add(shard, piece) for piece in pieces))
        return SchedulesAdded(tuple(placed for answer in answers for placed in answer))

    async def _add(self, shard: ScheduleShard, news: Sequence[New]) -> tuple[Placed, ...]:
        placed = await shard.request(Add(news))
        if all(each.is_new for each in placed):
            return placed
        return tuple(
            [
                each if each.is_new or each.offset < 0 else await self._known(shard, new, each)
                for new, each in zip(news, placed, strict=True)
            ]
        )

    async def _known(self, shard: ScheduleShard, new: New, placed: Placed) -> Placed:
        """What an id that is taken stands for; where it is not this one after all, the schedule is added."""
        others: tuple[int, ...] = ()
        for _ in range(_LOOKS):
            known = shard.library.read_one(placed.offset)
            if known is not None and known.id == new.id:
                return Placed(new.id, known.due_ms, is_new=False, is_other=not stands_for(known, new))
            others = (*others, placed.offset) if known is not None else others
            (placed,) = await shard.request(Add([_without(new, others)]))
            if placed.is_new or placed.offset < 0:
                return placed
        raise RequestTimedOut(f"Schedule {new.id!r} changes too fast. Try again.")

    # -- finding and changing -----------------------------------------------------------------------------------------

    async def show(self, request: ShowSchedule) -> OneSchedule:
        shard = await self._coordinator.await_shard(request.shard)
        _, schedule = _find(shard, request.id)
        await shard.settled()
        return OneSchedule(schedule)

    async def cancel(self, request: CancelSchedules) -> SchedulesCancelled:
        shard = await self._coordinator.await_shard(request.shard)
        fates = [Fate.NOT_FOUND] * len(request.ids)
        left = {at: Named(schedule_id) for at, schedule_id in enumerate(request.ids)}
        for _ in range(_LOOKS):
            judged = await shard.request(Cancel(list(left.values())))
            looks: dict[int, Named] = {}
            for (at, name), each in zip(left.items(), judged, strict=True):
                fates[at] = each.fate
                if each.fate is Fate.LOOK:
                    fates[at] = Fate.NOT_FOUND
                    if (offset := _which(shard, name.id, each)) is not None:
                        looks[at] = Named(name.id, offset)
            if not looks:
                return SchedulesCancelled(tuple(fates))
            left = looks
        raise RequestTimedOut("Some schedules change too fast to be cancelled. Try again.")

    async def change(self, request: ChangeSchedule) -> OneSchedule:
        shard = await self._coordinator.await_shard(request.shard)
        is_run = request.due_ms is None and request.rule is None
        for _ in range(_LOOKS):
            offset, schedule = _find(shard, request.id)
            asked = RunNow(schedule, offset) if is_run else Reschedule(schedule, offset, request.due_ms, request.rule)
            judged = await shard.request(asked)
            if judged.fate is Fate.TOO_LATE:
                raise ScheduleBeingFired(f"The message of schedule {request.id!r} is on its way into its topic.")
            if judged.fate is Fate.DONE:
                return OneSchedule(_as_changed(shard, schedule, request))
        raise RequestTimedOut(f"Schedule {request.id!r} changes too fast. Try again.")

    async def list(self, request: ListSchedules) -> SchedulesListed:
        shard = await self._coordinator.await_shard(request.shard)
        found, place = await list_some(shard, request.topic, request.state, request.limit, request.after)
        await shard.settled()
        return SchedulesListed(tuple(found), place)


def _without(new: New, others: tuple[int, ...]) -> New:
    return msgspec.structs.replace(new, others=others)


def _find(shard: ScheduleShard, schedule_id: str) -> tuple[int, Schedule]:
    """A schedule and where it is; `ScheduleNotFound` if there is none of that id."""
    offsets = shard.machine.where(schedule_id)
    for offset, schedule in shard.library.read(offsets).items():
        if schedule.id == schedule_id:
            return offset, schedule
    raise ScheduleNotFound(
        f"There is no schedule {schedule_id!r}: it never was, it was cancelled, or its message is in its topic already."
    )


def _which(shard: ScheduleShard, schedule_id: str, judged: Judged) -> int | None:
    """Where the schedule of an id is among places that it may be at."""
    found = shard.library.read(judged.offsets)
    return next((offset for offset, schedule in found.items() if schedule.id == schedule_id), None)


def _as_changed(shard: ScheduleShard, before: Schedule, request: ChangeSchedule) -> Schedule:
    """A schedule as it is now; what was run may be gone already."""
    try:
        return _find(shard, before.id)[1]
    except ScheduleNotFound:
        due_ms = shard.now_ms() if request.due_ms is None else request.due_ms
        return msgspec.structs.replace(before, due_ms=due_ms)
