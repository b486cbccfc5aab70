"""Schedules as every door sees them, the same on every node: what belongs to another node is asked for there.

Schedules are kept in shards, the partitions of ``__schedules``. An id tells its shard: the server's own have its number
in them, those of clients are hashed. What has no id yet goes to a shard of this node, if it leads one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock.broker.publishing import check_writable
from penstock.broker.schedules.entering import checked, made
from penstock.broker.schedules.figures import CalendarStats
from penstock.broker.schedules.identities import shard_of_id
from penstock.broker.schedules.leading.coordinator import ScheduleCoordinator
from penstock.broker.schedules.leading.serving import ScheduleServing
from penstock.broker.schedules.leading.targets import batch_size_of, to_records
from penstock.broker.schedules.messages import Fate, New, Placed
from penstock.broker.schedules.records import Message, Schedule, State
from penstock.broker.schedules.recurrence import Rule
from penstock.broker.schedules.routing import ScheduleRoutes
from penstock.broker.schedules.topic import ensure_schedules_topic
from penstock.broker.schedules.wire import AddSchedules, CancelSchedules, ChangeSchedule, ListSchedules, ShowSchedule
from penstock.cluster.topic_config import TopicSettings
from penstock.errors import InvalidRecord, InvalidRequest, MessageTooLarge, ScheduleNotFound
from penstock.records import encode_batch

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

__all__ = ["Calendar", "CalendarStats", "Listing"]

_OF_SERVER: Final = re.compile(r"sched-([0-9]{1,9})-[0-9]+")
_TURN: Final = 500  # so many come to one shard before the next has its turn: what comes together is fired together
_PAGE_MAX: Final = 1_000


class Listing(NamedTuple):
    """Some schedules. ``next`` is the ``after`` of the next page, empty at the end; a page may be short before that."""

    schedules: list[Schedule]
    next: str


class Calendar:
    """All schedules of the cluster."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.coordinator = ScheduleCoordinator(broker)
        self._serving = ScheduleServing(self.coordinator)
        self._routes = ScheduleRoutes(broker, self._serving)
        self._turns = 0

    def start(self) -> None:
        self._broker.replicas.listen(self.coordinator)
        self._serving.serve(self._broker.peers)
        self.coordinator.start()

    async def stop(self) -> None:
        await self.coordinator.stop()

    # -- adding -------------------------------------------------------------------------------------------------------

    async def add(self, schedules: Sequence[New]) -> list[Placed]:
        """Add schedules, and return once they are as durable as messages with ``acks=all``.

        Nothing is added if any of them is wrong in itself. What is due already is fired at once. One whose id is known
        is not added again: it is answered with what that id stands for, and ``is_new`` false.
        """
        self.check(schedules)
        if not schedules:
            return []
        await ensure_schedules_topic(self._broker)
        found: dict[int, list[int]] = {}
        led = self._routes.led_shards()
        for at, new in enumerate(schedules):
            number = shard_of_id(new.id, self._routes.shards) if new.id else self._next_of(led)
            found.setdefault(number, []).append(at)
        calls = [
            self._routes.add(AddSchedules(number, tuple([schedules[at] for at in places])))
            for number, places in found.items()
        ]
        answers = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        placed: dict[int, Placed] = {}
        for places, answer in zip(found.values(), answers, strict=True):
            placed.update(zip(places, answer.placed, strict=True))
        return [placed[at] for at in range(len(schedules))]

    def check(self, schedules: Sequence[New]) -> None:
        """Refuse schedules that are wrong in themselves, as `add` does."""
        now_ms = self._broker.clock.now_ms()
        topics: dict[str, TopicSettings] = {}
        for new in schedules:
            self._check(new, topics, now_ms)

    def _next_of(self, shards: Sequence[int]) -> int:
        turn, self._turns = self._turns // _TURN, self._turns + 1
        return shards[turn % len(shards)]

    def _check(self, new: New, topics: dict[str, TopicSettings], now_ms: int) -> None:
        """Refuse what its topic would. ``topics`` are the settings of those that were looked at before."""
        message = new.message
        settings = topics.get(message.topic)
        if settings is None:
            check_writable(message.topic)
            settings = topics[message.topic] = self._broker.topic_settings(message.topic)
        if message.partition is not None:
            self._broker.metadata.partition(message.topic, message.partition)
        if settings.log.is_compacting and message.key is None:
            raise InvalidRecord(f"{message.topic!r} is compacted, so every message needs a key.")
        checked(new, now_ms)
        if batch_size_of(message) > settings.max_message_bytes:
            size = len(encode_batch(to_records([made(new, now_ms)], now_ms)))
            if size > settings.max_message_bytes:
                raise _too_large(message, size, settings.max_message_bytes)

    # -- one by its id ------------------------------------------------------------------------------------------------

    async def show(self, schedule_id: str) -> Schedule:
        """A schedule; `ScheduleNotFound` if there is none of that id."""
        return self._told((await self._routes.show(ShowSchedule(self._shard(schedule_id), schedule_id))).schedule)

    def _told(self, schedule: Schedule) -> Schedule:
        """A schedule as it is shown: one that waits for a topic that has been deleted says so long before it fails."""
        message = schedule.message
        topic = self._broker.metadata.topics.get(message.topic)
        if schedule.state is not State.PENDING or (topic and (message.partition or 0) < len(topic.partitions)):
            return schedule
        place = (
            f"no topic {message.topic!r}" if topic is None else f"no partition {message.partition} of {topic.name!r}"
        )
        reason = f"There is {place} now; unless there is when this is due, it fails. Cancel it, or create the topic."
        return msgspec.structs.replace(schedule, reason=reason)

    async def cancel(self, schedule_ids: Sequence[str]) -> list[Fate]:
        """Have schedules not happen; of each whether it will not (DONE), was not there, or it is too late."""
        fates = [Fate.NOT_FOUND] * len(schedule_ids)
        found: dict[int, list[int]] = {}
        for at, schedule_id in enumerate(schedule_ids):
            number = self._shard_or_none(schedule_id)
            if number is not None:
                found.setdefault(number, []).append(at)
        calls = [
            self._routes.cancel(CancelSchedules(number, tuple([schedule_ids[at] for at in places])))
            for number, places in found.items()
        ]
        for places, answer in zip(found.values(), await asyncio.gather(*calls), strict=True):
            for at, fate in zip(places, answer.fates, strict=True):
                fates[at] = fate
        return fates

    async def reschedule(self, schedule_id: str, *, due_ms: int | None = None, rule: Rule | None = None) -> Schedule:
        """Have a schedule happen at another time or by another rule; one that failed waits again.

        `ScheduleNotFound` if there is none, `ScheduleBeingFired` while its message is on its way.
        """
        if due_ms is None and rule is None:
            raise InvalidRequest("Say when the schedule is to happen: at a time, or by a rule.")
        return await self._change(schedule_id, due_ms, rule)

    async def run_now(self, schedule_id: str) -> Schedule:
        """Have a schedule happen at once. One that comes again goes on as planned."""
        return await self._change(schedule_id, None, None)

    async def _change(self, schedule_id: str, due_ms: int | None, rule: Rule | None) -> Schedule:
        request = ChangeSchedule(self._shard(schedule_id), schedule_id, due_ms, rule)
        return (await self._routes.change(request)).schedule

    def _shard(self, schedule_id: str) -> int:
        number = self._shard_or_none(schedule_id)
        if number is None:
            raise ScheduleNotFound(f"There is no schedule {schedule_id!r}.")
        return number

    def _shard_or_none(self, schedule_id: str) -> int | None:
        """The shard that an id belongs to; None if nothing of that id can be there."""
        shards = self._routes.shards
        if not shards:
            return None
        match = _OF_SERVER.fullmatch(schedule_id)
        if match is None:
            return shard_of_id(schedule_id, shards)
        number = int(match.group(1))
        return number if number < shards else None

    # -- all of them --------------------------------------------------------------------------------------------------

    async def page(
        self, *, topic: str | None = None, state: State | None = None, limit: int = 100, after: str = ""
    ) -> Listing:
        """Some schedules, shard by shard, and by due time within a shard; those that failed come first."""
        if not 1 <= limit <= _PAGE_MAX:
            raise InvalidRequest(f"A page has 1 to {_PAGE_MAX} schedules, not {limit}.")
        number, place = _parse(after)
        found: list[Schedule] = []
        while number < self._routes.shards:
            listed = await self._routes.list(ListSchedules(number, topic, state, limit - len(found), place))
            found += map(self._told, listed.schedules)
            if listed.next:
                return Listing(found, f"{number}-{listed.next}")
            number, place = number + 1, ""
            if len(found) >= limit and number < self._routes.shards:
                return Listing(found, f"{number}-")
        return Listing(found, "")

    async def stats(self, *, is_local: bool = False) -> CalendarStats:
        """What there is and what was done since nodes started, in the whole cluster or in the shards of this node."""
        return self.stats_here() if is_local else await self._routes.figures()

    def stats_here(self) -> CalendarStats:
        """The same of the shards that this node leads."""
        return self.coordinator.figures()


def _parse(after: str) -> tuple[int, str]:
    if not after:
        return 0, ""
    number, _, place = after.partition("-")
    if not number.isdecimal():
        raise InvalidRequest("That is no place to go on with a list from; take `next` of the page before.")
    return int(number), place


def _too_large(message: Message, size: int, limit: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"The message takes {size} bytes when it is fired; {message.topic!r} takes up to {limit} (max.message.bytes)."
    )
