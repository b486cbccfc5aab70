"""All that survives of schedules, and the one place where it changes: by applying what was written.

Which schedules are in memory and which are only in the log is not part of that: it follows from the time, and two
nodes may differ in it.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.features.schedules.far import Far, digest_of, from_bytes, to_bytes
from penstock.features.schedules.figures import ScheduleTally
from penstock.features.schedules.near import FAILED, FIRING, FIRING_AGAIN, FIRING_LAST, WAITING, Near, WaitingRow
from penstock.features.schedules.records import (
    Fired,
    Firing,
    Put,
    Removed,
    ScheduleEvent,
    ScheduleProducerAssigned,
    ScheduleSnapshot,
    ScheduleStatus,
    SnapshotPart,
)
from penstock.features.schedules.wheel import TICK_MS
from penstock.storage.producers import SEQUENCE_WRAP

log = logging.getLogger(__name__)

_ROWS_OF_PART: Final = 16_384
_PLACES_OF_PART: Final = 100_000
_EPOCH_MAX: Final = 30_000
_NO_PRODUCER: Final = -1
_ADDED_AT_ONCE: Final = 1_000
_CATCH_UP_MS: Final = 1_000  # while the log is read time goes in steps of this
_SNAPSHOT_CHANGES_MIN: Final = 10_000
_SNAPSHOT_SHARE: Final = 8  # one is due after as many changes as an eighth of the rows that it takes
_FAR_PER_ROW: Final = 3  # schedules that are only in the log take as much as one row


class Outstanding(NamedTuple):
    """A firing that is not known to be written, and the rows of its schedules."""

    event: Firing
    slots: tuple[int, ...]


class ScheduleState:
    """Schedules near and far, firings under way, and what numbers were given out."""

    def __init__(self, periods_ahead: int, lead: int = 0) -> None:
        self._periods_ahead = periods_ahead
        self._lead = lead
        self.tally = ScheduleTally()
        self._own: list[ScheduleEvent] = []  # a snapshot of this very state, so applying it changes nothing
        self._parts: list[SnapshotPart] = []  # of a snapshot that is being read
        self._latest_ms = 0
        self._changes = 0  # since the last snapshot
        self._reset()

    def _reset(self) -> None:
        self.near = Near(self._periods_ahead, self._lead)
        self.far = Far()
        self.firings: dict[int, Outstanding] = {}
        self.tries: dict[int, int] = {}  # refusals of schedules, by offset
        self.last_id = 0
        self.last_firing = 0
        self.producer_id = _NO_PRODUCER
        self.targets: dict[tuple[bytes, int], tuple[int, int]] = {}  # epoch and next sequence

    @property
    def live(self) -> int:
        """How many schedules there are, failed ones too."""
        return self.near.waiting + len(self.far) + self.near.firing + len(self.near.failed)

    def has(self, digest: int, offset: int) -> bool:
        """Whether what a log says of a schedule at some place still counts."""
        if self.near.find_at(digest, offset) is not None or self.far.has(digest, offset):
            return True
        return any(offset == entry[1] for each in self.firings.values() for entry in each.event.entries)

    # -- what happens -------------------------------------------------------------------------------------------------

    def apply(self, event: ScheduleEvent, offset: int, at_ms: int) -> None:
        """Take over what was written at ``at_ms``, to ``offset``."""
        self._latest_ms = max(self._latest_ms, at_ms)
        self._let_pass(at_ms)
        self._changes += 1
        match event:
            case Put():
                self._put(event, offset)
            case Removed():
                for digest, place in event.entries:
                    self._remove(digest, place)
            case Firing():
                self._fire(event)
            case Fired():
                self._end_firing(event)
            case ScheduleProducerAssigned():
                self.producer_id = event.producer_id
                self.targets.clear()
            case SnapshotPart():
                self._collect(event)
            case ScheduleSnapshot():
                self._take_over(event)

    def read(self, entries: Iterable[tuple[int, int, ScheduleEvent]]) -> None:
        """Take over what a log says: offset, time and event of each record.

        It is the same as to `apply` each. But most of a log are schedules that were added one after the other, and
        those come in many at once.
        """
        added: list[WaitingRow] = []
        for offset, at_ms, event in entries:
            if isinstance(event, Put) and event.is_addition:
                schedule = event.schedule
                added.append(WaitingRow(schedule.due_ms, offset, digest_of(schedule.id)))
                if schedule.number > self.last_id:
                    self.last_id = schedule.number
                if at_ms > self._latest_ms:
                    self._latest_ms = at_ms
                if len(added) == _ADDED_AT_ONCE:
                    self._add_all(added)
                continue
            self._add_all(added)
            self.apply(event, offset, at_ms)
        self._add_all(added)

    def _add_all(self, added: list[WaitingRow]) -> None:
        """Have all of a list wait, and empty it."""
        if not added:
            return
        self._let_pass(self._latest_ms)
        self._changes += len(added)
        self.tally.added += len(added)
        near_ms = self.near.wheel.horizon_ms - TICK_MS
        self.near.wait_all(sorted(row for row in added if row.at_ms <= near_ms))
        for due_ms, offset, digest in added:  # in the order of the log, as places are kept
            if due_ms > near_ms:
                self.far.add(digest, offset, self.near.wheel.period_of(due_ms))
        added.clear()

    def _put(self, event: Put, offset: int) -> None:
        schedule = event.schedule
        digest = digest_of(schedule.id)
        if event.replaces >= 0:
            self._drop(digest, event.replaces)
        elif not schedule.runs:
            self.tally.added += 1
        self.last_id = max(self.last_id, schedule.number)
        if schedule.state is ScheduleStatus.FAILED:
            self.near.put(digest, offset, FAILED)
            self.tally.failed += 1
        else:
            self.place(digest, offset, schedule.due_ms)

    def place(self, digest: int, offset: int, due_ms: int) -> None:
        """Have a schedule wait, in memory or in the log."""
        if self.near.wheel.holds(due_ms):
            self.near.wait(digest, offset, due_ms)
        else:
            self.far.add(digest, offset, self.near.wheel.period_of(due_ms))

    def _drop(self, digest: int, offset: int) -> None:
        slot = self.near.find_at(digest, offset)
        if slot is not None:
            self.near.free(slot)
        else:
            self.far.remove(digest, offset)
        self.tries.pop(offset, None)

    def _remove(self, digest: int, offset: int) -> None:
        self.tally.cancelled += 1
        slot = self.near.find_at(digest, offset)
        if slot is not None and self.near.kinds[slot] == FIRING_AGAIN:
            self.near.turn(slot, FIRING_LAST)
        else:
            self._drop(digest, offset)

    def _fire(self, event: Firing) -> None:
        slots: list[int] = []
        for digest, offset, comes_again in event.entries:
            slot = self.near.find_at(digest, offset)
            if slot is None:  # the leader that fired it had loaded its period
                self.far.remove(digest, offset)
                slot = self.near.put(digest, offset, FIRING)
            self.near.turn(slot, FIRING_AGAIN if comes_again else FIRING)
            slots.append(slot)
        self.last_firing = event.number
        self.firings[event.number] = Outstanding(event, tuple(slots))
        following = (event.sequence + len(slots)) % SEQUENCE_WRAP
        self.targets[event.topic_id, event.partition] = (event.epoch, following)

    def _end_firing(self, event: Fired) -> None:
        known = self.firings.pop(event.number, None)
        if known is None:
            return  # it was said before
        firing, slots = known
        for at, (slot, (_, offset, _)) in enumerate(zip(slots, firing.entries, strict=True)):
            if at < event.written or self.near.kinds[slot] == FIRING_LAST:
                self.near.free(slot)
                self.tries.pop(offset, None)
            else:
                self.near.await_again(slot, event.retry_ms)
                self.tries[offset] = self.tries.get(offset, 0) + 1
        self.tally.fired += event.written
        if event.written < len(slots) and firing.producer_id == self.producer_id:
            # Numbers were given to what is not written. A new epoch begins at 0, and shuts out what is on its way.
            self.targets[firing.topic_id, firing.partition] = (firing.epoch + 1, 0)
            if firing.epoch + 1 >= _EPOCH_MAX:
                self.producer_id = _NO_PRODUCER

    # -- time ---------------------------------------------------------------------------------------------------------

    def _let_pass(self, at_ms: int) -> None:
        if at_ms >= self.near.wheel.now_ms + _CATCH_UP_MS:
            self.near.wheel.advance(at_ms)

    def set_clock(self, now_ms: int) -> None:
        """Count by another clock than who wrote the log. Nothing is due early by it."""
        near = self.near
        if near.wheel.now_ms - TICK_MS <= now_ms:
            near.wheel.advance(now_ms)
            return
        self._sort_anew(now_ms)

    def _sort_anew(self, now_ms: int) -> None:
        near = self.near
        for slot in near.wheel.restart(now_ms):
            digest, offset, at_ms = near.digests[slot], near.offsets[slot], near.wheel.time_of(slot)
            near.wheel.link(slot, now_ms)  # a row that waits can be let go of
            near.free(slot)
            self.far.add(digest, offset, near.wheel.period_of(at_ms))

    @property
    def period_to_load(self) -> int | None:
        """A later period that has come near."""
        first = self.far.places.first
        return first if first is not None and first < self.near.wheel.horizon else None

    @property
    def load_ms(self) -> int | None:
        """When the next period comes near."""
        first = self.far.places.first
        return None if first is None else self.near.wheel.near_from_ms(first)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    @property
    def is_snapshot_due(self) -> bool:
        size = self.near.rows + len(self.far) // _FAR_PER_ROW
        return self._changes > max(_SNAPSHOT_CHANGES_MIN, size // _SNAPSHOT_SHARE)

    def snapshot(self) -> Sequence[ScheduleEvent]:
        """Parts and what closes them."""
        marks = array("q", (self._periods_ahead, *self.near.wheel.marks))
        pieces = [("w", 0, [to_bytes(marks)])]
        pieces += [("n", 0, columns) for columns in self.near.pack(_ROWS_OF_PART)]
        pieces += [("m", place, columns) for place, columns in self.near.identities.pack()]
        pieces += [("i", place, columns) for place, columns in self.far.identities.pack()]
        pieces += [("o", 0, columns) for columns in self.far.places.pack(_PLACES_OF_PART)]
        self._own = [SnapshotPart(number, *piece) for number, piece in enumerate(pieces)]
        self._own.append(
            ScheduleSnapshot(
                parts=len(pieces),
                at_ms=max(self._latest_ms, self.near.wheel.now_ms),
                last_id=self.last_id,
                last_firing=self.last_firing,
                producer_id=self.producer_id,
                targets=[(*target, *numbers) for target, numbers in self.targets.items()],
                firings=[each.event for each in self.firings.values()],
            )
        )
        return self._own

    def _collect(self, part: SnapshotPart) -> None:
        if part.number < len(self._own) and self._own[part.number] is part:
            return
        if part.number == 0:
            self._parts.clear()
        self._parts.append(part)

    def _take_over(self, snapshot: ScheduleSnapshot) -> None:
        parts, self._parts = self._parts, []
        self._changes = 0
        if self._own and self._own[-1] is snapshot:
            self._own = []
            return
        if [part.number for part in parts] != list(range(snapshot.parts)):
            # The log was cut within it; what it stands for was read from before, or from a later one.
            log.error("A snapshot of schedules is left out: %d of its %d parts are there.", len(parts), snapshot.parts)
            return
        self._reset()
        for part in parts:
            if part.kind == "m":
                self.near.identities.unpack(part.key, part.columns)
            elif part.kind == "i":
                self.far.identities.unpack(part.key, part.columns)
            elif part.kind == "o":
                self.far.places.unpack(part.columns)
        ((marks,),) = (part.columns for part in parts if part.kind == "w")
        self._take_near(from_bytes("q", marks), [part.columns for part in parts if part.kind == "n"], snapshot.at_ms)
        self.last_id, self.last_firing = snapshot.last_id, snapshot.last_firing
        self.producer_id = snapshot.producer_id
        self.targets = {(topic_id, index): (epoch, at) for topic_id, index, epoch, at in snapshot.targets}
        firing = self.near.being_fired()
        for event in snapshot.firings:
            slots = tuple(firing[offset] for _, offset, _ in event.entries)
            self.firings[event.number] = Outstanding(event, slots)

    def _take_near(self, marks: array[int], pieces: Sequence[Sequence[bytes]], at_ms: int) -> None:
        periods_ahead, now_ms, size, free = marks
        near = self.near
        near.unpack((now_ms, size, free), pieces)
        near.wheel.advance(at_ms)
        if periods_ahead > self._periods_ahead:  # the leader that wrote it looked further ahead
            self._sort_anew(at_ms)
        if near.is_sparse:
            self.near = Near(self._periods_ahead, self._lead)
            near.copy_to(self.near)

    def dump(self) -> object:
        """All that has to survive, as something to compare. What is in memory only because it is near is left out."""
        near = self.near
        waiting = [near.offsets[slot] for slot, kind in enumerate(near.kinds) if kind == WAITING]
        others = [(near.offsets[slot], kind) for slot, kind in enumerate(near.kinds) if kind > WAITING]
        return (
            sorted([*waiting, *self.far.identities.numbers()]),
            sorted(others),
            [each.event for each in self.firings.values()],
            (self.last_id, self.last_firing, self.producer_id),
            sorted(self.targets.items()),
        )
