"""The topic ``__schedules``, whose partitions are the shards that schedules are kept in.

Schedules as every door sees them, the same on every node: what belongs to another node is asked for there.

Schedules are kept in shards, the partitions of ``__schedules``. An id tells its shard: the server's own have its number
in them, those of clients are hashed. What has no id yet goes to a shard of this node, if it leads one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock.config.settings import ScheduleSettings
from penstock.consensus.metadata import Topic
from penstock.consensus.records import NO_LEADER
from penstock.consensus.topic_config import TopicSettings
from penstock.errors import InvalidRecord, InvalidRequest, MessageTooLarge, PenstockError, ScheduleNotFound
from penstock.features.messages.publishing import check_writable
from penstock.features.schedules.far import shard_of_id
from penstock.features.schedules.figures import ScheduleFigures
from penstock.features.schedules.leading.coordinator import ScheduleCoordinator
from penstock.features.schedules.leading.firing import batch_size_of, to_records
from penstock.features.schedules.leading.serving import ScheduleServing
from penstock.features.schedules.messages import PlacedSchedule, ScheduleOutcome, ScheduleRequest, checked, made
from penstock.features.schedules.records import ScheduledMessage, ScheduleStatus, StoredSchedule
from penstock.features.schedules.recurrence import Rule
from penstock.features.schedules.wire import (
    ADD,
    CANCEL,
    CHANGE,
    FIGURES,
    LIST,
    SHOW,
    AddSchedules,
    AskScheduleFigures,
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
from penstock.machines.ports import Ports
from penstock.model import SCHEDULES_TOPIC
from penstock.network.port import Method
from penstock.records import encode_batch

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
