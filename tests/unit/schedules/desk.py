"""Schedules with the least around them: a log, topics that drop what they have already, and a shell that may die."""

from __future__ import annotations

from typing import Any

from penstock.config.settings import ScheduleSettings
from penstock.features.schedules.machine import ScheduleMachine
from penstock.features.schedules.messages import (
    AddAll,
    AssignScheduleProducer,
    CancelNamed,
    CarryForward,
    ConfirmFiring,
    DueSchedule,
    FailSchedules,
    Fire,
    JudgedSchedule,
    MoveSchedule,
    NamedSchedule,
    PlacedSchedule,
    RefuseFiring,
    RunNow,
    ScheduleOutcome,
    ScheduleRequest,
)
from penstock.features.schedules.records import (
    Firing,
    Put,
    ScheduleChange,
    ScheduledMessage,
    StoredSchedule,
    anchor_of,
    from_record,
    to_record,
)
from penstock.machines.messages import Request
from penstock.records import Record

START_MS = 1_790_000_000_000


class Died(Exception):
    """The node is no more."""


class Topic:
    """One partition that knows its producers, as a log does: epochs, sequences, duplicates."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, int]] = []  # the value, and when it came
        self._producers: dict[int, tuple[int, int]] = {}  # epoch and last sequence
        self.refuses: set[bytes] = set()
        self.is_gone = False

    def append(self, producer: int, epoch: int, sequence: int, values: list[bytes], now_ms: int) -> int:
        """How many of the messages are in here now; the first that is refused ends it."""
        known, last = self._producers.get(producer, (-1, -1))
        assert epoch >= known, "a producer that was shut out came back"
        if epoch > known:
            assert sequence == 0, "an epoch begins at 0"
            last = -1
        for at, value in enumerate(values):
            if sequence + at <= last:
                continue
            assert sequence + at == last + 1, "a hole in what a producer wrote"
            if value in self.refuses or self.is_gone:
                return at
            self.messages.append((value, now_ms))
            last = sequence + at
            self._producers[producer] = (epoch, last)
        return len(values)


class Desk:
    """A shell around schedules. ``dies_in`` counts down at every write and append; at 0 the node dies."""

    def __init__(self, **settings: Any) -> None:
        self.settings = ScheduleSettings(**settings)
        self.now_ms = START_MS
        self.log: list[Record] = []
        self.anchor = 0
        self.start = 0  # of the log: what is before is gone
        self.topics: dict[tuple[str, int], Topic] = {}
        self.producers = 100
        self.dies_in = -1
        self.machine = ScheduleMachine(3, self.settings)

    def step(self) -> None:
        self.dies_in -= 1
        if self.dies_in == 0:
            raise Died

    # -- the log ------------------------------------------------------------------------------------------------------

    def ask(self, request: Request[Any]) -> Any:
        answers: list[Any] = []
        before = self.machine._state.dump()
        outcome = self.machine.handle(request, self.now_ms, answers.append)
        assert self.machine._state.dump() == before, "deciding changed something"
        self.write(outcome.changes)
        for reply, what in outcome.replies:
            reply(what)
        return answers[0]

    def write(self, changes: list[ScheduleChange]) -> None:
        if changes:
            self.step()
        for change in changes:
            change.offset = len(self.log)
            self.log.append(to_record(change, change.offset, self.now_ms, self.anchor))
            self.machine.apply(change, self.now_ms, self.now_ms)

    def read(self, offset: int) -> StoredSchedule:
        assert offset >= self.start, "something that is needed was cut off the log"
        event = from_record(self.log[offset]).event
        assert isinstance(event, Put)
        return event.schedule

    def replayed(self, begin: int | None = None) -> ScheduleMachine:
        """Somebody who knows nothing but the log: from its anchor on, or one record at a time from somewhere else."""
        machine = ScheduleMachine(3, self.settings)
        if begin is None:
            records = self.log[anchor_of(self.log[-1]) :] if self.log else []
            machine.read((record.offset, record.timestamp, from_record(record).event) for record in records)
            return machine
        for record in self.log[begin:]:
            machine.apply(from_record(record), record.timestamp)
        return machine

    def fail_over(self, clock_ms: int | None = None) -> None:
        self.now_ms = self.now_ms if clock_ms is None else clock_ms
        self.machine = self.replayed()
        self.anchor = anchor_of(self.log[-1]) if self.log else 0
        self.machine.resume(self.now_ms)
        self.dies_in = -1

    def snapshot(self) -> None:
        begin = len(self.log)
        changes = self.machine.snapshot()
        for change in changes[:-1]:
            self.write([change])
        self.anchor = begin  # what comes from here on, the end of the snapshot too, points to its first part
        self.write(changes[-1:])

    def carry(self, limit: int) -> None:
        """Cut the log, and write anew what is still needed of that."""
        end = min(self.start + limit, self.anchor)
        found = [
            (record.offset, event.schedule)
            for record in self.log[self.start : end]
            if isinstance(event := from_record(record).event, Put)
            if self.machine.is_live(event.schedule.id, record.offset)
        ]
        if self.ask(CarryForward(found)) == 0:
            self.start = end

    # -- requests -----------------------------------------------------------------------------------------------------

    def add(self, value: str, topic: str = "orders", **facts: Any) -> PlacedSchedule:
        message = ScheduledMessage(topic, facts.pop("partition", 0), b"key", value.encode())
        (placed,) = self.ask(AddAll([ScheduleRequest(message=message, **facts)]))
        assert isinstance(placed, PlacedSchedule)
        return placed

    def find(self, schedule_id: str) -> tuple[int, StoredSchedule] | None:
        for offset in self.machine.where(schedule_id):
            schedule = self.read(offset)
            if schedule.id == schedule_id:
                return offset, schedule
        return None

    def cancel(self, schedule_id: str) -> ScheduleOutcome:
        (judged,) = self.ask(CancelNamed([NamedSchedule(schedule_id)]))
        if judged.fate is ScheduleOutcome.LOOK:
            found = self.find(schedule_id)
            if found is None:
                return ScheduleOutcome.NOT_FOUND
            (judged,) = self.ask(CancelNamed([NamedSchedule(schedule_id, found[0])]))
        assert isinstance(judged, JudgedSchedule)
        return judged.fate

    def reschedule(self, schedule_id: str, **facts: Any) -> ScheduleOutcome:
        found = self.find(schedule_id)
        if found is None:
            return ScheduleOutcome.NOT_FOUND
        fate: ScheduleOutcome = self.ask(MoveSchedule(found[1], found[0], **facts)).fate
        return fate

    def run_now(self, schedule_id: str) -> ScheduleOutcome:
        found = self.find(schedule_id)
        if found is None:
            return ScheduleOutcome.NOT_FOUND
        fate: ScheduleOutcome = self.ask(RunNow(found[1], found[0])).fate
        return fate

    # -- time ---------------------------------------------------------------------------------------------------------

    def wait(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.look()

    def look(self) -> None:
        """All that a shell does when it is woken."""
        self.machine.tick(self.now_ms)
        while (period := self.machine.period_to_load) is not None:
            found = [(offset, self.read(offset)) for offset in self.machine.far_offsets(period) if offset >= self.start]
            self.machine.load(found)
            self.machine.loaded(period)
        if self.machine.producer_id is None:
            self.producers += 1
            self.ask(AssignScheduleProducer(self.producers))
        for firing in self.machine.unfinished():
            self.finish(firing)
        while candidates := self.machine.due(100):
            self.fire([(candidate, self.read(candidate.offset)) for candidate in candidates])

    def fire(self, found: list[tuple[DueSchedule, StoredSchedule]]) -> None:
        """Fire by partition; who was refused before goes alone."""
        groups: dict[tuple[str, int, int], list[tuple[DueSchedule, StoredSchedule]]] = {}
        for candidate, schedule in found:
            alone = candidate.offset if self.machine.tries_of(candidate) else -1
            index = schedule.message.partition or 0
            groups.setdefault((schedule.message.topic, index, alone), []).append((candidate, schedule))
        for (name, index, _), group in groups.items():
            if self.topic(name, index).is_gone:  # known before it is tried
                candidates = [candidate for candidate, _ in group]
                exhausted = self.machine.put_off(candidates, self.now_ms, is_refusal=True)
                lost = [each for each in group if each[0] in exhausted]
                if lost:
                    self.ask(FailSchedules(lost, "There is no such topic."))
                continue
            if self.machine.producer_id is None:
                return
            if self.ask(Fire(name, name.encode(), index, group)) is not None:
                self.finish(self.machine.unfinished()[-1])

    def topic(self, name: str, index: int = 0) -> Topic:
        return self.topics.setdefault((name, index), Topic())

    def finish(self, firing: Firing) -> None:
        schedules = {offset: self.read(offset) for _, offset, _ in firing.entries}
        values = [schedules[offset].message.value or b"" for _, offset, _ in firing.entries]
        self.step()
        topic = self.topic(firing.topic, firing.partition)
        written = topic.append(firing.producer_id, firing.epoch, firing.sequence, values, self.now_ms)
        self.step()
        if written == len(values):
            self.ask(ConfirmFiring(firing.number, schedules))
        else:
            self.ask(RefuseFiring(firing.number, written, "It is too large.", schedules))

    def values(self, topic: str = "orders", index: int = 0) -> list[str]:
        return [value.decode() for value, _ in self.topic(topic, index).messages]
