"""Schedules as every door sees them, the same on every node, and what nodes ask each other about them.

Schedules are kept in shards, the partitions of ``__schedules``. An id tells its shard: the server's own have its
number in them, those of clients are hashed. What has no id yet goes to a shard of this node, if it leads one. Each
call goes to the leader of the shard it names.

The machine of a shard knows schedules by a hash of their ids and by their place in the log; here what is there is
read, and compared, and asked about again where that was not what was meant.

A list has those that failed, those being fired, then what is to come, by time. The near ones are sorted in memory. Of
later periods only places are known, so a period is read when a page gets there. A page has limits to what is looked
at, not only to what is found: with a filter it may be short, or empty, and not be the last one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from math import inf
from typing import Any, Final, NamedTuple

import msgspec

from penstock.config.settings import ScheduleSettings
from penstock.consensus.metadata import Topic
from penstock.consensus.records import NO_LEADER
from penstock.consensus.topic_config import TopicSettings
from penstock.errors import (
    InvalidRecord,
    InvalidRequest,
    MessageTooLarge,
    PenstockError,
    RequestTimedOut,
    ScheduleBeingFired,
    ScheduleNotFound,
)
from penstock.features.messages.publishing import check_writable
from penstock.features.schedules.far import shard_of_id
from penstock.features.schedules.figures import ScheduleFigures
from penstock.features.schedules.leading.firing import ScheduleAppender, ScheduleFirer, batch_size_of, to_records
from penstock.features.schedules.leading.shard import ScheduleJournal, ScheduleShard, keep_short
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
    checked,
    made,
    stands_for,
)
from penstock.features.schedules.records import ScheduledMessage, ScheduleStatus, StoredSchedule
from penstock.features.schedules.recurrence import Rule
from penstock.machines.clocks import DayClock
from penstock.machines.coordinator import Coordinator
from penstock.machines.ports import Ports
from penstock.model import SCHEDULES_TOPIC
from penstock.network.port import Method, Peers
from penstock.partitions.partition import Partition
from penstock.records import encode_batch


class AddSchedules(msgspec.Struct, frozen=True):
    shard: int
    schedules: tuple[ScheduleRequest, ...]


class SchedulesAdded(msgspec.Struct, frozen=True):
    placed: tuple[PlacedSchedule, ...]


class CancelSchedules(msgspec.Struct, frozen=True):
    shard: int
    ids: tuple[str, ...]


class SchedulesCancelled(msgspec.Struct, frozen=True):
    fates: tuple[ScheduleOutcome, ...]


class ShowSchedule(msgspec.Struct, frozen=True):
    shard: int
    id: str


class ChangeSchedule(msgspec.Struct, frozen=True):
    """Have a schedule happen at another time or by another rule, or, if neither is given, at once."""

    shard: int
    id: str
    due_ms: int | None = None
    rule: Rule | None = None


class OneSchedule(msgspec.Struct, frozen=True):
    schedule: StoredSchedule


class ListShard(msgspec.Struct, frozen=True):
    """Some schedules of a shard, from after a place on that an earlier answer named."""

    shard: int
    topic: str | None
    state: ScheduleStatus | None
    limit: int
    after: str = ""


class SchedulesListed(msgspec.Struct, frozen=True):
    """``next`` is where to go on, empty at the end."""

    schedules: tuple[StoredSchedule, ...]
    next: str


class AskScheduleFigures(msgspec.Struct, frozen=True):
    """Tell what there is in the shards that a node leads, and what it did."""


class ShardFigures(msgspec.Struct, frozen=True):
    figures: ScheduleFigures


ADD: Final = Method("schedule.add", AddSchedules, SchedulesAdded, is_bulk=True)
CANCEL: Final = Method("schedule.cancel", CancelSchedules, SchedulesCancelled)
SHOW: Final = Method("schedule.show", ShowSchedule, OneSchedule, is_bulk=True)
CHANGE: Final = Method("schedule.change", ChangeSchedule, OneSchedule)
LIST: Final = Method("schedule.list", ListShard, SchedulesListed, is_bulk=True)
FIGURES: Final = Method("schedule.figures", AskScheduleFigures, ShardFigures)


class ScheduleCoordinator(Coordinator[int, ScheduleShard]):
    """Shards by the number of their partition."""

    what = "schedules"
    alarm_far_ms = 1_000  # the wall clock may have been set meanwhile
    reads_at_once = 2  # reading is work for one processor: so the first are ready earlier, and less memory is needed

    def __init__(self, ports: Ports, settings: ScheduleSettings) -> None:
        super().__init__(ports.clock, ports.supervision)
        self._ports = ports
        self._settings = settings
        self.appender = ScheduleAppender(ports, self.background.spawn)
        self._figures = ScheduleFigures()  # of shards that were led here

    def __iter__(self) -> Iterator[ScheduleShard]:
        """Every shard that can be asked, by number."""
        return iter([shard for _, shard in sorted(self._shards.items()) if shard.is_ready])

    def key_of(self, partition: Partition) -> int | None:
        return partition.id.partition if partition.id.topic == SCHEDULES_TOPIC else None

    def make_shard(self, partition: Partition) -> ScheduleShard:
        journal = ScheduleJournal(partition, syncs=self._ports.syncs_before_ack)
        clock = DayClock(self._ports.clock)
        shard = ScheduleShard(journal, partition.id.partition, self._settings, clock, self.background.spawn)
        shard.firer = ScheduleFirer(self._ports, shard, self.appender)
        return shard

    def on_lost(self, key: int, shard: ScheduleShard | None) -> None:  # noqa: ARG002
        if shard is not None and shard.is_ready:
            self._figures.count(shard.machine.take_tally())

    async def upkeep(self, shard: ScheduleShard) -> None:
        """What need not be done at once: a snapshot, the log kept short, memory let go of."""
        if not shard.is_ready:
            return
        shard.library.sweep(shard.now_ms())
        shard.snapshot()
        await keep_short(shard, self._ports.topics)

    @property
    def wait_ms(self) -> float:
        """How long nothing is due here, for those who can let time pass."""
        return min((shard.wait_ms for shard in self._shards.values()), default=inf)

    def figures(self) -> ScheduleFigures:
        """What there is and what was done, in the shards that this node leads."""
        for shard in self:
            self._figures.count(shard.machine.take_tally())
        found = self._figures.copy()
        for shard in self:
            found.add_stats(shard.machine.stats)
        return found


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


# Nothing goes by age, size or key: the leader of a shard cuts off what is no longer needed. Segments are small, because
# that frees whole ones, and because the last one is read from end to end after a crash.
_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": str(8 * 1024 * 1024),
    "max.message.bytes": str(256 * 1024 * 1024),  # whatever any topic takes, and more
}


async def ensure_schedules_topic(ports: Ports) -> Topic:
    """The topic, made with the first schedule; its partitions on this node are open when this returns."""
    topic = ports.metadata.topics.get(SCHEDULES_TOPIC)
    if topic is None:
        topic = await ports.topics.ensure_internal(SCHEDULES_TOPIC, _CONFIGS)
    return topic


__all__ = ["ScheduleFigures", "ScheduleListing", "Schedules"]

_OF_SERVER: Final = re.compile(r"sched-([0-9]{1,9})-[0-9]+")
_TURN: Final = 500  # so many come to one shard before the next has its turn: what comes together is fired together
_PAGE_MAX: Final = 1_000
_PATIENCE_SECONDS: Final = 8.0
_CALL_SECONDS: Final = 30.0
_COMES_LATER_MS: Final = 60_000  # more than these two together
_FIGURES_SECONDS: Final = 2.0


class ScheduleListing(NamedTuple):
    """Some schedules. ``next`` is the ``after`` of the next page, empty at the end; a page may be short before that."""

    schedules: list[StoredSchedule]
    next: str


class Schedules:
    """All schedules of the cluster."""

    def __init__(self, ports: Ports, settings: ScheduleSettings) -> None:
        self._ports = ports
        self.coordinator = ScheduleCoordinator(ports, settings)
        self._serving = ScheduleServing(self.coordinator)
        self._turns = 0

    def start(self) -> None:
        self._ports.partitions.listen(self.coordinator)
        self._serving.serve(self._ports.peers)
        self.coordinator.start()

    async def stop(self) -> None:
        await self.coordinator.stop()

    # -- adding -------------------------------------------------------------------------------------------------------

    async def add(self, schedules: Sequence[ScheduleRequest]) -> list[PlacedSchedule]:
        """Add schedules, and return once they are as durable as messages with ``acks=all``.

        Nothing is added if any of them is wrong in itself. What is due already is fired at once. One whose id is known
        is not added again: it is answered with what that id stands for, and ``is_new`` false.
        """
        self.check(schedules)
        if not schedules:
            return []
        await ensure_schedules_topic(self._ports)
        found: dict[int, list[int]] = {}
        led = self._led_shards()
        for at, new in enumerate(schedules):
            number = shard_of_id(new.id, self._shards) if new.id else self._next_of(led)
            found.setdefault(number, []).append(at)
        calls = [
            self._add(AddSchedules(number, tuple([schedules[at] for at in places]))) for number, places in found.items()
        ]
        answers = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        placed: dict[int, PlacedSchedule] = {}
        for places, answer in zip(found.values(), answers, strict=True):
            placed.update(zip(places, answer.placed, strict=True))
        return [placed[at] for at in range(len(schedules))]

    async def _add(self, request: AddSchedules) -> SchedulesAdded:
        # An id is known until its message has come: what may come before the last attempt is not asked for again.
        safe_ms = self._ports.clock.now_ms() + _COMES_LATER_MS
        repeats = all(
            new.id and (new.rule is not None or (new.due_ms is not None and new.due_ms > safe_ms))
            for new in request.schedules
        )
        added: SchedulesAdded = await self._ask(ADD, request, repeats=repeats)
        return added

    def check(self, schedules: Sequence[ScheduleRequest]) -> None:
        """Refuse schedules that are wrong in themselves, as `add` does."""
        now_ms = self._ports.clock.now_ms()
        topics: dict[str, TopicSettings] = {}
        for new in schedules:
            self._check(new, topics, now_ms)

    def _next_of(self, shards: Sequence[int]) -> int:
        turn, self._turns = self._turns // _TURN, self._turns + 1
        return shards[turn % len(shards)]

    def _check(self, new: ScheduleRequest, topics: dict[str, TopicSettings], now_ms: int) -> None:
        """Refuse what its topic would. ``topics`` are the settings of those that were looked at before."""
        message = new.message
        settings = topics.get(message.topic)
        if settings is None:
            check_writable(message.topic)
            settings = topics[message.topic] = self._ports.topics.settings_of(message.topic)
        if message.partition is not None:
            self._ports.metadata.partition(message.topic, message.partition)
        if settings.log.is_compacting and message.key is None:
            raise InvalidRecord(f"{message.topic!r} is compacted, so every message needs a key.")
        checked(new, now_ms)
        if batch_size_of(message) > settings.max_message_bytes:
            size = len(encode_batch(to_records([made(new, now_ms)], now_ms)))
            if size > settings.max_message_bytes:
                raise _too_large(message, size, settings.max_message_bytes)

    # -- one by its id ------------------------------------------------------------------------------------------------

    async def show(self, schedule_id: str) -> StoredSchedule:
        """A schedule; `ScheduleNotFound` if there is none of that id."""
        found: OneSchedule = await self._ask(SHOW, ShowSchedule(self._shard(schedule_id), schedule_id))
        return self._told(found.schedule)

    def _told(self, schedule: StoredSchedule) -> StoredSchedule:
        """A schedule as it is shown: one that waits for a topic that has been deleted says so long before it fails."""
        message = schedule.message
        topic = self._ports.metadata.topics.get(message.topic)
        if schedule.state is not ScheduleStatus.PENDING or (topic and (message.partition or 0) < len(topic.partitions)):
            return schedule
        place = (
            f"no topic {message.topic!r}" if topic is None else f"no partition {message.partition} of {topic.name!r}"
        )
        reason = f"There is {place} now; unless there is when this is due, it fails. Cancel it, or create the topic."
        return msgspec.structs.replace(schedule, reason=reason)

    async def cancel(self, schedule_ids: Sequence[str]) -> list[ScheduleOutcome]:
        """Have schedules not happen; of each whether it will not (DONE), was not there, or it is too late."""
        fates = [ScheduleOutcome.NOT_FOUND] * len(schedule_ids)
        found: dict[int, list[int]] = {}
        for at, schedule_id in enumerate(schedule_ids):
            number = self._shard_or_none(schedule_id)
            if number is not None:
                found.setdefault(number, []).append(at)
        calls = [
            self._ask(CANCEL, CancelSchedules(number, tuple([schedule_ids[at] for at in places])))
            for number, places in found.items()
        ]
        answers: list[SchedulesCancelled] = await asyncio.gather(*calls)
        for places, answer in zip(found.values(), answers, strict=True):
            for at, fate in zip(places, answer.fates, strict=True):
                fates[at] = fate
        return fates

    async def reschedule(
        self, schedule_id: str, *, due_ms: int | None = None, rule: Rule | None = None
    ) -> StoredSchedule:
        """Have a schedule happen at another time or by another rule; one that failed waits again.

        `ScheduleNotFound` if there is none, `ScheduleBeingFired` while its message is on its way.
        """
        if due_ms is None and rule is None:
            raise InvalidRequest("Say when the schedule is to happen: at a time, or by a rule.")
        return await self._change(schedule_id, due_ms, rule)

    async def run_now(self, schedule_id: str) -> StoredSchedule:
        """Have a schedule happen at once. One that comes again goes on as planned."""
        return await self._change(schedule_id, None, None)

    async def _change(self, schedule_id: str, due_ms: int | None, rule: Rule | None) -> StoredSchedule:
        request = ChangeSchedule(self._shard(schedule_id), schedule_id, due_ms, rule)
        # Running a schedule twice is not what the caller asked for.
        changed: OneSchedule = await self._ask(CHANGE, request, repeats=due_ms is not None or rule is not None)
        return changed.schedule

    def _shard(self, schedule_id: str) -> int:
        number = self._shard_or_none(schedule_id)
        if number is None:
            raise ScheduleNotFound(f"There is no schedule {schedule_id!r}.")
        return number

    def _shard_or_none(self, schedule_id: str) -> int | None:
        """The shard that an id belongs to; None if nothing of that id can be there."""
        shards = self._shards
        if not shards:
            return None
        match = _OF_SERVER.fullmatch(schedule_id)
        if match is None:
            return shard_of_id(schedule_id, shards)
        number = int(match.group(1))
        return number if number < shards else None

    # -- all of them --------------------------------------------------------------------------------------------------

    async def page(
        self, *, topic: str | None = None, state: ScheduleStatus | None = None, limit: int = 100, after: str = ""
    ) -> ScheduleListing:
        """Some schedules, shard by shard, and by due time within a shard; those that failed come first."""
        if not 1 <= limit <= _PAGE_MAX:
            raise InvalidRequest(f"A page has 1 to {_PAGE_MAX} schedules, not {limit}.")
        number, place = _parse(after)
        found: list[StoredSchedule] = []
        while number < self._shards:
            request = ListShard(number, topic, state, limit - len(found), place)
            listed: SchedulesListed = await self._ask(LIST, request)
            found += map(self._told, listed.schedules)
            if listed.next:
                return ScheduleListing(found, f"{number}-{listed.next}")
            number, place = number + 1, ""
            if len(found) >= limit and number < self._shards:
                return ScheduleListing(found, f"{number}-")
        return ScheduleListing(found, "")

    async def stats(self, *, is_local: bool = False) -> ScheduleFigures:
        """What there is and what was done since nodes started, in the whole cluster or in the shards of this node."""
        found = self.stats_here()
        if is_local:
            return found
        leaders = self._ports.leaders.by_leader(SCHEDULES_TOPIC, range(self._shards))
        nodes = sorted(leaders.keys() - {NO_LEADER, self._ports.node_id})
        calls = [
            self._ports.peers.call(node, FIGURES, AskScheduleFigures(), timeout_s=_FIGURES_SECONDS) for node in nodes
        ]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, PenstockError):
                continue  # a node that does not answer soon is left out
            if isinstance(answer, BaseException):
                raise answer
            told: ShardFigures = answer.reply
            found.add(told.figures)
        return found

    def stats_here(self) -> ScheduleFigures:
        """The same of the shards that this node leads."""
        return self.coordinator.figures()

    # -- shards -------------------------------------------------------------------------------------------------------

    @property
    def _shards(self) -> int:
        """How many there are, 0 before the first schedule."""
        return self._ports.leaders.shards_of(SCHEDULES_TOPIC)

    def _led_shards(self) -> list[int]:
        """Shards for what may go anywhere: those of this node, or else all that have a leader, or else all."""
        shards = range(self._shards)
        leaders = self._ports.leaders.by_leader(SCHEDULES_TOPIC, shards)
        return (
            leaders.get(self._ports.node_id) or sorted(set(shards).difference(leaders.get(NO_LEADER, ()))) or [*shards]
        )

    async def _ask(self, method: Method[Any, Any], request: Any, *, repeats: bool = True) -> Any:
        """Ask the leader of the shard that a request names."""
        where = (SCHEDULES_TOPIC, request.shard)
        received = await self._ports.leaders.ask(
            where, method, request, repeats=repeats, timeout_s=_CALL_SECONDS, patience_s=_PATIENCE_SECONDS
        )
        return received.reply


def _parse(after: str) -> tuple[int, str]:
    if not after:
        return 0, ""
    number, _, place = after.partition("-")
    if not number.isdecimal():
        raise InvalidRequest("That is no place to go on with a list from; take `next` of the page before.")
    return int(number), place


def _too_large(message: ScheduledMessage, size: int, limit: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"The message takes {size} bytes when it is fired; {message.topic!r} takes up to {limit} (max.message.bytes)."
    )
