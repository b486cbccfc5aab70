"""Schedules as a state machine: those of one shard, at its leader.

Requests and the time come in; an `Outcome` goes out with the changes to persist and the replies to send. Only `apply`
changes what must survive. All times are of one clock, which runs as a wall clock does but never jumps while a node
leads.

A schedule is fired in three steps, so that it comes once whatever breaks: a `Firing` is written, which gives its
message a producer, an epoch and a sequence number in one partition; then the message is appended with them; then
`Fired` is written. Whoever finds the first without the last appends once more, and the partition drops what it has.
There is one firing at a time for each partition, so numbers have no holes.

What the shell performs: it ticks at ``wake_ms``, reads what `due` names and fires it, repeats `unfinished` firings,
loads a period when `period_to_load` names one, and writes `snapshot` when one is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Any, Final

import msgspec

from penstock.broker.coordination.messages import Outcome, Reply, Request
from penstock.broker.schedules.config import ScheduleSettings
from penstock.broker.schedules.entering import first_due, id_of, made, stands_for
from penstock.broker.schedules.firing_rules import Decision, FiringRules
from penstock.broker.schedules.identities import digest_of
from penstock.broker.schedules.messages import (
    Add,
    AssignProducer,
    Cancel,
    Candidate,
    Carry,
    Confirm,
    Fail,
    Fate,
    Fire,
    FireAll,
    Judged,
    Named,
    Page,
    Placed,
    Refuse,
    Reschedule,
    RunNow,
    Stats,
)
from penstock.broker.schedules.near import FIRING, FIRING_AGAIN
from penstock.broker.schedules.records import (
    Change,
    Event,
    Put,
    Removed,
    Schedule,
    State,
)
from penstock.broker.schedules.state import ScheduleState
from penstock.broker.schedules.tally import Tally
from penstock.errors import PenstockError

_LEAD_TICKS: Final = 2_080  # of one shard's wheel before that of the next: 20 s and a fraction of every width
BUSY_MS: Final = 50  # until a schedule is looked at again whose partition is busy


class Schedules(FiringRules):
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
        """Who writes what is fired; None if `AssignProducer` is to be asked first."""
        return None if self._state.producer_id < 0 else self._state.producer_id

    @property
    def stats(self) -> Stats:
        near = self._state.near
        return Stats(near.waiting, len(self._state.far), near.wheel.due_count, near.firing, len(near.failed))

    @property
    def live(self) -> int:
        """How many schedules there are: so many records of the log are needed at least."""
        return self._state.live

    def note_late(self, by_ms: int) -> None:
        """A message of a schedule came that late."""
        self._state.tally.note_late(by_ms)

    def take_tally(self) -> Tally:
        """What was done since the last time somebody asked, or since this node leads."""
        tally, self._state.tally = self._state.tally, Tally()
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

    def page(self, limit: int, after: tuple[int, int] = (-1, -1)) -> Page:
        """What waits in memory, by time. What comes later is to be read from `far_periods`."""
        entries = self._state.near.page(limit, after)
        return Page(tuple(entries), entries[-1] if len(entries) == limit else None)

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

    def tick(self, now_ms: int) -> Outcome[Change]:
        """Let time pass: schedules become due. If the clock was set back, they are sorted anew by it."""
        self._state.set_clock(now_ms)
        return Outcome()

    @property
    def is_due(self) -> bool:
        """Whether there is something whose time has come and which nobody has in hand."""
        return self._state.near.wheel.is_due

    def due(self, limit: int) -> list[Candidate]:
        """Schedules whose time has come: read them, and `Fire` those of each partition."""
        near = self._state.near
        return [Candidate(slot, near.offsets[slot]) for slot in near.wheel.due(limit)]

    def take(self, limit: int) -> list[Candidate]:
        """As `due`, but whoever asks has them in hand then: they are not told again until they are `let_go`."""
        near = self._state.near
        return [Candidate(slot, near.offsets[slot]) for slot in near.wheel.take(limit)]

    def let_go(self, candidates: Sequence[Candidate]) -> None:
        """Have schedules that were taken wait for their time again, which has come already for most."""
        near = self._state.near
        for slot, offset in candidates:
            if near.is_waiting_at(slot, offset):
                near.wheel.move(slot, near.wheel.time_of(slot))

    def put_off(
        self, candidates: Sequence[Candidate], now_ms: int, *, is_refusal: bool, busy_ms: int = BUSY_MS
    ) -> list[Candidate]:
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

    def tries_of(self, candidate: Candidate) -> int:
        """How often a schedule was refused. One that was is best fired alone: it may be what others fail with."""
        return self._state.tries.get(candidate.offset, 0)

    @property
    def period_to_load(self) -> int | None:
        """A later period that has come near: read what `far_offsets` names, `load` it, and say when that is all."""
        return self._state.period_to_load

    def load(self, found: Sequence[tuple[int, Schedule]]) -> None:
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

    def handle(self, request: Request[Any], now_ms: int, reply: Reply) -> Outcome[Change]:
        """Decide on a request. The reply is in the outcome; an error instead changes nothing."""
        events, answer = _RULES[type(request)](self, request, now_ms)
        outcome: Outcome[Change] = Outcome(changes=[Change(event) for event in events])
        outcome.reply(reply, answer)
        return outcome

    def _add(self, request: Add, now_ms: int) -> Decision:
        events: list[Event] = []
        placed: list[Placed] = []
        fresh: dict[str, Schedule] = {}
        number = self._state.last_id
        for new in request.schedules:
            schedule = made(new, now_ms)
            if not new.id:
                number += 1
                schedule = msgspec.structs.replace(schedule, id=id_of(self.shard, number), number=number)
            elif new.id in fresh:
                first = fresh[new.id]
                placed.append(Placed(new.id, first.due_ms, is_new=False, is_other=not stands_for(first, new)))
                continue
            elif known := [offset for offset in self.where(new.id) if offset not in new.others]:
                placed.append(Placed(new.id, -1, is_new=False, offset=known[0]))
                continue
            events.append(Put(schedule))
            placed.append(Placed(schedule.id, schedule.due_ms, is_new=True))
            fresh[schedule.id] = schedule
        return events, tuple(placed)

    def _locate(self, name: Named) -> tuple[Judged, int | None]:
        """What can be said of a name, and the row if it is near. DONE means that it is clear what is meant."""
        digest, state = digest_of(name.id), self._state
        slot = state.near.find(digest)
        if slot is not None:
            offset = state.near.offsets[slot]
            is_elsewhere = name.offset is not None and name.offset != offset
            return Judged(Fate.LOOK if is_elsewhere else Fate.DONE, (offset,)), slot
        found = state.far.find(digest)
        if name.offset is not None and name.offset in found:
            return Judged(Fate.DONE, (name.offset,)), None
        return Judged(Fate.LOOK if found else Fate.NOT_FOUND, tuple(found)), None

    def _cancel(self, request: Cancel, _now_ms: int) -> Decision:
        judged: list[Judged] = []
        entries: dict[tuple[int, int], None] = {}
        for name in request.names:
            found, slot = self._locate(name)
            if found.fate is Fate.DONE:
                if slot is not None and self._state.near.kinds[slot] == FIRING:
                    found = Judged(Fate.TOO_LATE)
                else:
                    entry = (digest_of(name.id), found.offsets[0])
                    found = Judged(Fate.NOT_FOUND if entry in entries else Fate.DONE)
                    entries[entry] = None
            judged.append(found)
        return ([Removed(list(entries))] if entries else []), tuple(judged)

    def _changed(self, name: Named) -> Judged:
        """Whether a schedule can be written anew now."""
        found, slot = self._locate(name)
        if found.fate is Fate.DONE and slot is not None and self._state.near.kinds[slot] in (FIRING, FIRING_AGAIN):
            return Judged(Fate.TOO_LATE)
        return found

    def _reschedule(self, request: Reschedule, now_ms: int) -> Decision:
        due_ms, rule = first_due(request.due_ms, request.rule, now_ms)
        judged = self._changed(Named(request.schedule.id, request.offset))
        if judged.fate is not Fate.DONE:
            return [], judged
        changed = msgspec.structs.replace(
            request.schedule, due_ms=due_ms, rule=rule or request.schedule.rule, state=State.PENDING, reason=""
        )
        return [Put(changed, request.offset)], judged

    def _run_now(self, request: RunNow, now_ms: int) -> Decision:
        judged = self._changed(Named(request.schedule.id, request.offset))
        if judged.fate is not Fate.DONE:
            return [], judged
        changed = msgspec.structs.replace(request.schedule, due_ms=now_ms, state=State.PENDING, reason="")
        return [Put(changed, request.offset)], judged

    def _carry(self, request: Carry, _now_ms: int) -> Decision:
        events: list[Event] = []
        kept = 0
        for offset, schedule in request.schedules:
            if not self.is_live(schedule.id, offset):
                continue
            if self._changed(Named(schedule.id, offset)).fate is Fate.DONE:
                events.append(Put(schedule, offset))
            else:
                kept += 1
        return events, kept

    def dismiss_all(self, error: PenstockError) -> Outcome[Change]:  # noqa: ARG002
        """Nobody waits in here."""
        return Outcome()

    # -- what survives ------------------------------------------------------------------------------------------------

    def apply(self, change: Change, at_ms: int, now_ms: int = 0) -> None:  # noqa: ARG002
        """Take over what was written to the log at ``at_ms``."""
        self._state.apply(change.event, change.offset, at_ms)

    def read(self, entries: Iterable[tuple[int, int, Event]]) -> None:
        """Take over what a log says: offset, time and event of each of its records."""
        self._state.read(entries)

    def resume(self, now_ms: int) -> None:
        """Begin to lead with what was read from the log."""
        self._state.set_clock(now_ms)
        self._state.tally = Tally()
        self._state.tries.clear()

    @property
    def is_snapshot_due(self) -> bool:
        return self._state.is_snapshot_due

    def snapshot(self) -> list[Change]:
        """Changes that stand for all before them; to be written and applied right away, with nothing in between."""
        return [Change(event) for event in self._state.snapshot()]


_RULES: Final[dict[type[Request[Any]], Callable[[Schedules, Any, int], Decision]]] = {
    Add: Schedules._add,
    Cancel: Schedules._cancel,
    Reschedule: Schedules._reschedule,
    RunNow: Schedules._run_now,
    AssignProducer: Schedules._assign,
    Fire: Schedules._fire,
    FireAll: Schedules._fire_all,
    Confirm: Schedules._confirm,
    Refuse: Schedules._refuse,
    Fail: Schedules._fail,
    Carry: Schedules._carry,
}
