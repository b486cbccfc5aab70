"""What is decided about firing: which schedules go to a partition with which numbers, and what comes of it.

A part of the state machine of schedules, which says how the three steps of a firing belong together.
"""

from __future__ import annotations

import msgspec

from penstock.broker.schedules.config import ScheduleSettings
from penstock.broker.schedules.entering import DUE_MS_MAX
from penstock.broker.schedules.identities import digest_of
from penstock.broker.schedules.messages import AssignProducer, Confirm, Fail, Fire, FireAll, Granted, Refuse
from penstock.broker.schedules.near import FIRING_AGAIN, FIRING_LAST
from penstock.broker.schedules.records import Assigned, Event, Fired, Firing, Put, Removed, Schedule, State
from penstock.broker.schedules.recurrence import is_skipped, next_due
from penstock.broker.schedules.state import ScheduleState

Decision = tuple[list[Event], object]


class FiringRules:
    """Decisions about firings. None of them changes anything: `ScheduleState.apply` does."""

    _state: ScheduleState
    settings: ScheduleSettings

    def unfinished(self) -> list[Firing]:
        """Firings that may or may not be written, the oldest first: to be repeated as they are."""
        return [each.event for each in self._state.firings.values()]

    def is_busy(self, topic_id: bytes, partition: int) -> bool:
        """Whether a firing to a partition is under way."""
        return any((event.topic_id, event.partition) == (topic_id, partition) for event in self.unfinished())

    def _assign(self, request: AssignProducer, _now_ms: int) -> Decision:
        return ([] if request.producer_id == self._state.producer_id else [Assigned(request.producer_id)]), None

    def _fire_all(self, request: FireAll, now_ms: int) -> Decision:
        events: list[Event] = []
        answers: list[object] = []
        targets = [(fire.topic_id, fire.partition) for fire in request.fires]
        assert len(set(targets)) == len(targets), "there is one firing at a time for each partition"
        number = self._state.last_firing + 1
        for fire in request.fires:
            found, answer = self._fire(fire, now_ms, number)
            events += found
            answers.append(answer)
            number += answer is not None
        return events, tuple(answers)

    def _fire(self, request: Fire, now_ms: int, number: int | None = None) -> Decision:
        state, grace_ms = self._state, self.settings.grace_ms
        assert state.producer_id >= 0, "a producer is assigned before anything is fired"
        if self.is_busy(request.topic_id, request.partition):
            return [], None
        events: list[Event] = []
        entries: dict[int, tuple[int, int, bool]] = {}
        for candidate, schedule in request.candidates:
            slot, offset = candidate
            if not state.near.is_waiting_at(slot, offset) or state.near.wheel.time_of(slot) > now_ms:
                continue
            if schedule.rule is not None and is_skipped(schedule.missed, schedule.due_ms, now_ms, grace_ms):
                events += self._after(schedule, now_ms, offset)
                continue
            entries[slot] = (state.near.digests[slot], offset, schedule.rule is not None)
        if not entries:
            return events, None
        epoch, sequence = state.targets.get((request.topic_id, request.partition), (0, 0))
        firing = Firing(
            number=state.last_firing + 1 if number is None else number,
            topic=request.topic,
            topic_id=request.topic_id,
            partition=request.partition,
            producer_id=state.producer_id,
            epoch=epoch,
            sequence=sequence,
            entries=list(entries.values()),
        )
        offsets = tuple(offset for _, offset, _ in firing.entries)
        answer = Granted(firing.number, firing.producer_id, epoch, sequence, offsets)
        return [*events, firing], answer

    def _after(self, schedule: Schedule, now_ms: int, replaces: int, runs: int = 0) -> list[Event]:
        """What becomes of a schedule that comes again, one occurrence of which is dealt with."""
        assert schedule.rule is not None
        due_ms = next_due(schedule.rule, schedule.missed, schedule.due_ms, now_ms, self.settings.grace_ms)
        if due_ms is None or due_ms > DUE_MS_MAX:
            return [] if replaces < 0 else [Removed([(digest_of(schedule.id), replaces)])]
        return [Put(msgspec.structs.replace(schedule, due_ms=due_ms, runs=schedule.runs + runs), replaces)]

    def _confirm(self, request: Confirm, now_ms: int) -> Decision:
        known = self._state.firings.get(request.number)
        if known is None:
            return [], None  # confirmed before
        count = len(known.slots)
        return [Fired(request.number, count), *self._followers(request.number, count, request.schedules, now_ms)], None

    def _followers(self, number: int, written: int, schedules: dict[int, Schedule], now_ms: int) -> list[Event]:
        """What comes after schedules of a firing that were written: those that come again do."""
        event, slots = self._state.firings[number]
        events: list[Event] = []
        for slot, (_, offset, _) in zip(slots[:written], event.entries, strict=False):
            if self._state.near.kinds[slot] == FIRING_AGAIN:
                events += self._after(schedules[offset], now_ms, -1, runs=1)
        return events

    def _refuse(self, request: Refuse, now_ms: int) -> Decision:
        known = self._state.firings.get(request.number)
        if known is None:
            return [], None
        left = [
            offset
            for slot, (_, offset, _) in list(zip(known.slots, known.event.entries, strict=True))[request.written :]
            if self._state.near.kinds[slot] != FIRING_LAST
        ]
        tries = {offset: self._state.tries.get(offset, 0) + 1 for offset in left}
        retry_ms = now_ms + self.settings.backoff_ms(max(tries.values(), default=1))
        events: list[Event] = [Fired(request.number, request.written, retry_ms)]
        events += self._followers(request.number, request.written, request.schedules, now_ms)
        exhausted = [offset for offset in left if tries[offset] >= self.settings.tries]
        events += [self._given_up(request.schedules[offset], offset, request.reason) for offset in exhausted]
        return events, None

    def _given_up(self, schedule: Schedule, offset: int, reason: str) -> Put:
        reason = reason[: self.settings.reason_chars_max]
        return Put(msgspec.structs.replace(schedule, state=State.FAILED, reason=reason), offset)

    def _fail(self, request: Fail, _now_ms: int) -> Decision:
        waiting = {
            candidate.offset: schedule
            for candidate, schedule in request.candidates
            if self._state.near.is_waiting_at(*candidate)
        }
        return [self._given_up(schedule, offset, request.reason) for offset, schedule in waiting.items()], None
