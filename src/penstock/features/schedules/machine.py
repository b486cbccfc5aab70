"""What is decided about firing: which schedules go to a partition with which numbers, and what comes of it.

A part of the state machine of schedules, which says how the three steps of a firing belong together.

Schedules as a state machine: those of one shard, at its leader.

Requests and the time come in; an `Outcome` goes out with the changes to persist and the replies to send. Only `apply`
changes what must survive. All times are of one clock, which runs as a wall clock does but never jumps while a node
leads.

A schedule is fired in three steps, so that it comes once whatever breaks: a `Firing` is written, which gives its
message a producer, an epoch and a sequence number in one partition; then the message is appended with them; then
`Fired` is written. A leader that finds the first without the last appends once more, and the partition drops what it
has. There is one firing at a time for each partition, so numbers have no holes.

What the shell performs: it ticks at ``wake_ms``, reads what `due` names and fires it, repeats `unfinished` firings,
loads a period when `period_to_load` names one, and writes `snapshot` when one is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Any, Final

import msgspec

from penstock.config.settings import ScheduleSettings
from penstock.errors import PenstockError
from penstock.features.schedules.far import digest_of
from penstock.features.schedules.figures import ScheduleTally
from penstock.features.schedules.messages import (
    DUE_MS_MAX,
    AddAll,
    AssignScheduleProducer,
    CancelNamed,
    CarryForward,
    ConfirmFiring,
    DueSchedule,
    FailSchedules,
    Fire,
    FireAll,
    GrantedFiring,
    JudgedSchedule,
    MoveSchedule,
    NamedSchedule,
    NearPage,
    PlacedSchedule,
    RefuseFiring,
    RunNow,
    ScheduleOutcome,
    ShardCounts,
    first_due,
    id_of,
    made,
    stands_for,
)
from penstock.features.schedules.near import FIRING, FIRING_AGAIN, FIRING_LAST
from penstock.features.schedules.records import (
    Fired,
    Firing,
    Put,
    Removed,
    ScheduleChange,
    ScheduleEvent,
    ScheduleProducerAssigned,
    ScheduleStatus,
    StoredSchedule,
)
from penstock.features.schedules.recurrence import is_skipped, next_due
from penstock.features.schedules.state import ScheduleState
from penstock.machines.messages import Outcome, Reply, Request

Decision = tuple[list[ScheduleEvent], object]


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

    def _assign(self, request: AssignScheduleProducer, _now_ms: int) -> Decision:
        return (
            [] if request.producer_id == self._state.producer_id else [ScheduleProducerAssigned(request.producer_id)]
        ), None

    def _fire_all(self, request: FireAll, now_ms: int) -> Decision:
        events: list[ScheduleEvent] = []
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
        events: list[ScheduleEvent] = []
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
        answer = GrantedFiring(firing.number, firing.producer_id, epoch, sequence, offsets)
        return [*events, firing], answer

    def _after(self, schedule: StoredSchedule, now_ms: int, replaces: int, runs: int = 0) -> list[ScheduleEvent]:
        """What becomes of a schedule that comes again, one occurrence of which is dealt with."""
        assert schedule.rule is not None
        due_ms = next_due(schedule.rule, schedule.missed, schedule.due_ms, now_ms, self.settings.grace_ms)
        if due_ms is None or due_ms > DUE_MS_MAX:
            return [] if replaces < 0 else [Removed([(digest_of(schedule.id), replaces)])]
        return [Put(msgspec.structs.replace(schedule, due_ms=due_ms, runs=schedule.runs + runs), replaces)]

    def _confirm(self, request: ConfirmFiring, now_ms: int) -> Decision:
        known = self._state.firings.get(request.number)
        if known is None:
            return [], None  # confirmed before
        count = len(known.slots)
        return [Fired(request.number, count), *self._followers(request.number, count, request.schedules, now_ms)], None

    def _followers(
        self, number: int, written: int, schedules: dict[int, StoredSchedule], now_ms: int
    ) -> list[ScheduleEvent]:
        """What comes after schedules of a firing that were written: those that come again do."""
        event, slots = self._state.firings[number]
        events: list[ScheduleEvent] = []
        for slot, (_, offset, _) in zip(slots[:written], event.entries, strict=False):
            if self._state.near.kinds[slot] == FIRING_AGAIN:
                events += self._after(schedules[offset], now_ms, -1, runs=1)
        return events

    def _refuse(self, request: RefuseFiring, now_ms: int) -> Decision:
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
        events: list[ScheduleEvent] = [Fired(request.number, request.written, retry_ms)]
        events += self._followers(request.number, request.written, request.schedules, now_ms)
        exhausted = [offset for offset in left if tries[offset] >= self.settings.tries]
        events += [self._given_up(request.schedules[offset], offset, request.reason) for offset in exhausted]
        return events, None

    def _given_up(self, schedule: StoredSchedule, offset: int, reason: str) -> Put:
        reason = reason[: self.settings.reason_chars_max]
        return Put(msgspec.structs.replace(schedule, state=ScheduleStatus.FAILED, reason=reason), offset)

    def _fail(self, request: FailSchedules, _now_ms: int) -> Decision:
        waiting = {
            candidate.offset: schedule
            for candidate, schedule in request.candidates
            if self._state.near.is_waiting_at(*candidate)
        }
        return [self._given_up(schedule, offset, request.reason) for offset, schedule in waiting.items()], None


_LEAD_TICKS: Final = 2_080  # of one shard's wheel before that of the next: 20 s and a fraction of every width
BUSY_MS: Final = 50  # until a schedule is looked at again whose partition is busy


class ScheduleMachine(FiringRules):
    """The schedules of shard ``shard``."""

    def __init__(self, shard: int, settings: ScheduleSettings) -> None:
        self.id = "schedules"
        self.shard = shard
        self.settings = settings
        self._state = ScheduleState(settings.periods_ahead, shard * _LEAD_TICKS)

    def __repr__(self) -> str:
        return f"<Schedules of shard {self.shard}, {self._state.live} of them>"

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def is_forgettable(self) -> bool:
        return False  # numbers that were given out must not be given out again

    @property
    def producer_id(self) -> int | None:
        """Who writes what is fired; None if `AssignScheduleProducer` is to be asked first."""
        return None if self._state.producer_id < 0 else self._state.producer_id

    @property
    def stats(self) -> ShardCounts:
        near = self._state.near
        return ShardCounts(near.waiting, len(self._state.far), near.wheel.due_count, near.firing, len(near.failed))

    @property
    def live(self) -> int:
        """How many schedules there are: so many records of the log are needed at least."""
        return self._state.live

    def note_late(self, by_ms: int) -> None:
        """A message of a schedule came that late."""
        self._state.tally.note_late(by_ms)

    def take_tally(self) -> ScheduleTally:
        """What was done since the last time somebody asked, or since this node leads."""
        tally, self._state.tally = self._state.tally, ScheduleTally()
        return tally

    def where(self, schedule_id: str) -> list[int]:
        """Where in the log the schedule of an id may be: read what is there, and see whether the id is the same."""
        digest = digest_of(schedule_id)
        slot = self._state.near.find(digest)
        return [self._state.near.offsets[slot]] if slot is not None else self._state.far.find(digest)

    def is_live(self, schedule_id: str, offset: int) -> bool:
        """Whether what the log says of a schedule at an offset is needed."""
        return self._state.has(digest_of(schedule_id), offset)

    def is_far(self, schedule_id: str, offset: int) -> bool:
        """Whether a schedule is only in the log, and this is what the log says of it."""
        return self._state.far.has(digest_of(schedule_id), offset)

    def page(self, limit: int, after: tuple[int, int] = (-1, -1)) -> NearPage:
        """What waits in memory, by time. What comes later is to be read from `far_periods`."""
        entries = self._state.near.page(limit, after)
        return NearPage(tuple(entries), entries[-1] if len(entries) == limit else None)

    def failed(self) -> list[int]:
        """The offsets of schedules that failed, the oldest first."""
        return [self._state.near.offsets[slot] for slot in self._state.near.failed]

    def far_periods(self) -> list[int]:
        return self._state.far.places.periods()

    def far_offsets(self, period: int) -> Iterator[int]:
        """Where the schedules of a period are; what `is_live` denies is to be left out."""
        return self._state.far.offsets(period)

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def wake_ms(self) -> float:
        """Nothing more becomes due before this, and no period comes near."""
        load_ms = self._state.load_ms
        waits_ms = inf if load_ms is None or self._state.period_to_load is not None else load_ms
        return min(self._state.near.wheel.next_ms, waits_ms)

    def tick(self, now_ms: int) -> Outcome[ScheduleChange]:
        """Let time pass: schedules become due. If the clock was set back, they are sorted anew by it."""
        self._state.set_clock(now_ms)
        return Outcome()

    @property
    def is_due(self) -> bool:
        """Whether there is something whose time has come and which no caller has in hand."""
        return self._state.near.wheel.is_due

    def due(self, limit: int) -> list[DueSchedule]:
        """Schedules whose time has come: read them, and `Fire` those of each partition."""
        near = self._state.near
        return [DueSchedule(slot, near.offsets[slot]) for slot in near.wheel.due(limit)]

    def take(self, limit: int) -> list[DueSchedule]:
        """As `due`, but the caller has them in hand then: they are not told again until they are `let_go`."""
        near = self._state.near
        return [DueSchedule(slot, near.offsets[slot]) for slot in near.wheel.take(limit)]

    def let_go(self, candidates: Sequence[DueSchedule]) -> None:
        """Have schedules that were taken wait for their time again, which has come already for most."""
        near = self._state.near
        for slot, offset in candidates:
            if near.is_waiting_at(slot, offset):
                near.wheel.move(slot, near.wheel.time_of(slot))

    def put_off(
        self, candidates: Sequence[DueSchedule], now_ms: int, *, is_refusal: bool, busy_ms: int = BUSY_MS
    ) -> list[DueSchedule]:
        """Look at schedules again in a while, since they cannot be fired now; those that were refused too often.

        Nothing of this is written. If their partition is busy, that is no refusal.
        """
        state, exhausted = self._state, []
        for candidate in candidates:
            if not state.near.is_waiting_at(*candidate):
                continue
            tries = state.tries.get(candidate.offset, 0) + is_refusal
            if is_refusal:
                state.tries[candidate.offset] = tries
            if tries >= self.settings.tries:
                exhausted.append(candidate)
            delay_ms = self.settings.backoff_ms(tries) if is_refusal else busy_ms
            state.near.wheel.move(candidate.slot, now_ms + delay_ms)
        return exhausted

    def tries_of(self, candidate: DueSchedule) -> int:
        """How often a schedule was refused. One that was is best fired alone: it may be what others fail with."""
        return self._state.tries.get(candidate.offset, 0)

    @property
    def period_to_load(self) -> int | None:
        """A later period that has come near: read what `far_offsets` names, `load` it, and say when that is all."""
        return self._state.period_to_load

    def load(self, found: Sequence[tuple[int, StoredSchedule]]) -> None:
        """Have schedules of a period that has come near in memory, as they were read from their offsets."""
        state = self._state
        for offset, schedule in found:
            digest = digest_of(schedule.id)
            if state.far.has(digest, offset):
                state.far.remove(digest, offset)
                state.place(digest, offset, schedule.due_ms)

    def loaded(self, period: int) -> None:
        """All of a period was loaded."""
        self._state.far.places.drop(period)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def handle(self, request: Request[Any], now_ms: int, reply: Reply) -> Outcome[ScheduleChange]:
        """Decide on a request. The reply is in the outcome; an error instead changes nothing."""
        events, answer = _RULES[type(request)](self, request, now_ms)
        outcome: Outcome[ScheduleChange] = Outcome(changes=[ScheduleChange(event) for event in events])
        outcome.reply(reply, answer)
        return outcome

    def _add(self, request: AddAll, now_ms: int) -> Decision:
        events: list[ScheduleEvent] = []
        placed: list[PlacedSchedule] = []
        fresh: dict[str, StoredSchedule] = {}
        number = self._state.last_id
        for new in request.schedules:
            schedule = made(new, now_ms)
            if not new.id:
                number += 1
                schedule = msgspec.structs.replace(schedule, id=id_of(self.shard, number), number=number)
            elif new.id in fresh:
                first = fresh[new.id]
                placed.append(PlacedSchedule(new.id, first.due_ms, is_new=False, is_other=not stands_for(first, new)))
                continue
            elif known := [offset for offset in self.where(new.id) if offset not in new.others]:
                placed.append(PlacedSchedule(new.id, -1, is_new=False, offset=known[0]))
                continue
            events.append(Put(schedule))
            placed.append(PlacedSchedule(schedule.id, schedule.due_ms, is_new=True))
            fresh[schedule.id] = schedule
        return events, tuple(placed)

    def _locate(self, name: NamedSchedule) -> tuple[JudgedSchedule, int | None]:
        """What can be said of a name, and the row if it is near. DONE means that it is clear what is meant."""
        digest, state = digest_of(name.id), self._state
        slot = state.near.find(digest)
        if slot is not None:
            offset = state.near.offsets[slot]
            is_elsewhere = name.offset is not None and name.offset != offset
            return JudgedSchedule(ScheduleOutcome.LOOK if is_elsewhere else ScheduleOutcome.DONE, (offset,)), slot
        found = state.far.find(digest)
        if name.offset is not None and name.offset in found:
            return JudgedSchedule(ScheduleOutcome.DONE, (name.offset,)), None
        return JudgedSchedule(ScheduleOutcome.LOOK if found else ScheduleOutcome.NOT_FOUND, tuple(found)), None

    def _cancel(self, request: CancelNamed, _now_ms: int) -> Decision:
        judged: list[JudgedSchedule] = []
        entries: dict[tuple[int, int], None] = {}
        for name in request.names:
            found, slot = self._locate(name)
            if found.fate is ScheduleOutcome.DONE:
                if slot is not None and self._state.near.kinds[slot] == FIRING:
                    found = JudgedSchedule(ScheduleOutcome.TOO_LATE)
                else:
                    entry = (digest_of(name.id), found.offsets[0])
                    found = JudgedSchedule(ScheduleOutcome.NOT_FOUND if entry in entries else ScheduleOutcome.DONE)
                    entries[entry] = None
            judged.append(found)
        return ([Removed(list(entries))] if entries else []), tuple(judged)

    def _changed(self, name: NamedSchedule) -> JudgedSchedule:
        """Whether a schedule can be written anew now."""
        found, slot = self._locate(name)
        if (
            found.fate is ScheduleOutcome.DONE
            and slot is not None
            and self._state.near.kinds[slot] in (FIRING, FIRING_AGAIN)
        ):
            return JudgedSchedule(ScheduleOutcome.TOO_LATE)
        return found

    def _reschedule(self, request: MoveSchedule, now_ms: int) -> Decision:
        due_ms, rule = first_due(request.due_ms, request.rule, now_ms)
        judged = self._changed(NamedSchedule(request.schedule.id, request.offset))
        if judged.fate is not ScheduleOutcome.DONE:
            return [], judged
        changed = msgspec.structs.replace(
            request.schedule, due_ms=due_ms, rule=rule or request.schedule.rule, state=ScheduleStatus.PENDING, reason=""
        )
        return [Put(changed, request.offset)], judged

    def _run_now(self, request: RunNow, now_ms: int) -> Decision:
        judged = self._changed(NamedSchedule(request.schedule.id, request.offset))
        if judged.fate is not ScheduleOutcome.DONE:
            return [], judged
        changed = msgspec.structs.replace(request.schedule, due_ms=now_ms, state=ScheduleStatus.PENDING, reason="")
        return [Put(changed, request.offset)], judged

    def _carry(self, request: CarryForward, _now_ms: int) -> Decision:
        events: list[ScheduleEvent] = []
        kept = 0
        for offset, schedule in request.schedules:
            if not self.is_live(schedule.id, offset):
                continue
            if self._changed(NamedSchedule(schedule.id, offset)).fate is ScheduleOutcome.DONE:
                events.append(Put(schedule, offset))
            else:
                kept += 1
        return events, kept

    def dismiss_all(self, error: PenstockError) -> Outcome[ScheduleChange]:  # noqa: ARG002
        """No caller waits in here."""
        return Outcome()

    # -- what survives ------------------------------------------------------------------------------------------------

    def apply(self, change: ScheduleChange, at_ms: int, now_ms: int = 0) -> None:  # noqa: ARG002
        """Take over what was written to the log at ``at_ms``."""
        self._state.apply(change.event, change.offset, at_ms)

    def read(self, entries: Iterable[tuple[int, int, ScheduleEvent]]) -> None:
        """Take over what a log says: offset, time and event of each of its records."""
        self._state.read(entries)

    def resume(self, now_ms: int) -> None:
        """Begin to lead with what was read from the log."""
        self._state.set_clock(now_ms)
        self._state.tally = ScheduleTally()
        self._state.tries.clear()

    @property
    def is_snapshot_due(self) -> bool:
        return self._state.is_snapshot_due

    def snapshot(self) -> list[ScheduleChange]:
        """Changes that stand for all before them; to be written and applied right away, with nothing in between."""
        return [ScheduleChange(event) for event in self._state.snapshot()]


_RULES: Final[dict[type[Request[Any]], Callable[[ScheduleMachine, Any, int], Decision]]] = {
    AddAll: ScheduleMachine._add,
    CancelNamed: ScheduleMachine._cancel,
    MoveSchedule: ScheduleMachine._reschedule,
    RunNow: ScheduleMachine._run_now,
    AssignScheduleProducer: ScheduleMachine._assign,
    Fire: ScheduleMachine._fire,
    FireAll: ScheduleMachine._fire_all,
    ConfirmFiring: ScheduleMachine._confirm,
    RefuseFiring: ScheduleMachine._refuse,
    FailSchedules: ScheduleMachine._fail,
    CarryForward: ScheduleMachine._carry,
}
