"""Schedules out of their log, by offset: those of the next minute from memory, others from disk.

What is due soon after it came is kept as it came, up to a bound, and needs no disk. All else is read in the order of
the log: neighbours share a read, and of a batch only the records are looked at that are asked for.

A partition of ``__schedules`` as a journal: it notes where each change is, and where the next leader begins to read.

Every record's key is the *anchor*, the offset of the first part of the last snapshot. A snapshot is written in many
batches with nothing in between, and becomes the anchor with its last one: if that is missing, nothing has happened.
Batches are not compressed, because single schedules are read out of them.

The schedules of one shard, at the leader of its partition: requests, time, snapshots.

The machine decides; this has it written and lets time pass. The alarm rings when something becomes due or a later
period comes near, and once a second at least: the clock may have been set meanwhile.

The log of a shard is kept short: what its beginning still has to tell is written anew at its end, then it is cut.

Only what is before the anchor can go. A schedule that waits for long is written again each time the log has grown to a
few times of what it needs to be, so that costs a fraction of what writing costs anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from math import inf
from typing import Any, Final, Protocol

from penstock.config.settings import ScheduleSettings
from penstock.errors import (
    CorruptRecords,
    DamagedRecords,
    NotCoordinator,
    OffsetOutOfRange,
    PenstockError,
    RequestTimedOut,
    StorageError,
)
from penstock.features.schedules.machine import ScheduleMachine
from penstock.features.schedules.messages import CarryForward
from penstock.features.schedules.records import (
    Fired,
    Put,
    ScheduleChange,
    ScheduleEvent,
    StoredSchedule,
    anchor_of,
    events_of,
    pick,
    to_record,
)
from penstock.machines.clocks import DayClock
from penstock.machines.journal import Decided, Written
from penstock.machines.messages import AnswerT, Outcome, ProducerIdentity, Rejected, Request
from penstock.machines.shard import Replies, Shard, resolve
from penstock.partitions.partition import Partition
from penstock.partitions.topics import Topics
from penstock.records import Record, decode_records, encode_batch, iter_batches
from penstock.storage.log import Log

_SOON_MS: Final = 60_000
_SWEEP_MS: Final = 30_000
_KEPT_BYTES: Final = 2 * 1024 * 1024
_ENTRY_BYTES: Final = 700  # what Python needs for a small schedule
_NEIGHBOURS: Final = 64  # offsets that are closer than this are read together
_READ_BYTES: Final = 64 * 1024


class ScheduleReader:
    """The schedules of one shard."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._kept: dict[int, StoredSchedule] = {}
        self._kept_bytes = 0
        self._sweep_from_ms = 0

    def note(self, change: ScheduleChange, now_ms: int) -> None:
        """A change was written just now: keep what will be asked for soon."""
        event = change.event
        if not isinstance(event, Put) or event.schedule.due_ms > now_ms + _SOON_MS:
            return
        if self._kept_bytes < _KEPT_BYTES:
            self._kept[change.offset] = event.schedule
            self._kept_bytes += _size(event.schedule)

    def forget(self, offsets: Iterable[int]) -> None:
        """These are not asked for again."""
        for offset in offsets:
            schedule = self._kept.pop(offset, None)
            if schedule is not None:
                self._kept_bytes -= _size(schedule)

    def sweep(self, now_ms: int) -> None:
        """Forget what was not asked for in time: it was cancelled, or put off. That is looked for now and then."""
        if now_ms < self._sweep_from_ms:
            return
        self._sweep_from_ms = now_ms + _SWEEP_MS
        self.forget([offset for offset, schedule in self._kept.items() if schedule.due_ms + _SOON_MS < now_ms])

    def read_one(self, offset: int) -> StoredSchedule | None:
        return self.read([offset]).get(offset)

    def read(self, offsets: Sequence[int], *, is_strict: bool = False) -> dict[int, StoredSchedule]:
        """Schedules by offset. What is not there, is no schedule or cannot be read is left out.

        ``is_strict`` raises `DamagedRecords` instead of leaving out what a sound replica may have.
        """
        kept = self._kept
        found = {offset: kept[offset] for offset in offsets if offset in kept}
        if len(found) < len(offsets):
            missing = sorted(offset for offset in offsets if offset not in found)
            for offset, event in self._events(missing, is_strict=is_strict):
                if isinstance(event, Put):
                    found[offset] = event.schedule
        return found

    def _events(self, offsets: list[int], *, is_strict: bool) -> Iterator[tuple[int, ScheduleEvent]]:
        at, log = 0, self._log
        while at < len(offsets):
            offset = offsets[at]
            has_neighbour = at + 1 < len(offsets) and offsets[at + 1] - offset < _NEIGHBOURS
            try:
                piece = log.read(offset, _READ_BYTES if has_neighbour else 1, log.end_offset)
            except OffsetOutOfRange:
                at += 1
                continue
            except DamagedRecords:
                if is_strict:
                    raise
                at += 1  # a sound replica takes over soon; until then it is as if it were not there
                continue
            if piece is None:
                return
            data = memoryview(piece.read())
            begin = at
            for position, header in iter_batches(data):
                wanted: list[int] = []
                while at < len(offsets) and offsets[at] < header.next_offset:
                    wanted.append(offsets[at])
                    at += 1
                if wanted:
                    yield from pick(data[position : position + header.size], wanted)
                if at == len(offsets):
                    return
            if at == begin:  # it is lost, and what was found lies behind
                at += 1


def _size(schedule: StoredSchedule) -> int:
    return _ENTRY_BYTES + len(schedule.message.value or b"") + len(schedule.message.key or b"")


log = logging.getLogger(__name__)


class ScheduleJournal:
    """One shard's log. ``on_noted`` hears of every change that is written, with its place."""

    def __init__(self, partition: Partition, *, syncs: bool) -> None:
        self.partition = partition
        self._syncs = syncs
        self.anchor = 0
        self.on_noted: Callable[[ScheduleChange], None] = lambda _: None

    @property
    def end_offset(self) -> int:
        return self.partition.log.end_offset

    def append(self, changes: Sequence[ScheduleChange], at_ms: int, producer: ProducerIdentity | None = None) -> int:
        """Write changes as one batch, all or none, and note in each where it is."""
        assert producer is None, "schedules are written in no transaction"
        is_durable = self._syncs and not all(isinstance(change.event, Fired) for change in changes)
        return self._append(changes, at_ms, self.anchor, is_durable=is_durable)

    def append_snapshot(self, changes: Sequence[ScheduleChange], at_ms: int) -> int:
        """Write a snapshot, a batch for each part. An error leaves everything as it was before."""
        first = self.end_offset
        for change in changes[:-1]:
            self._append([change], at_ms, self.anchor, is_durable=False)
        end = self._append(changes[-1:], at_ms, first, is_durable=self._syncs)
        self.anchor = first
        return end

    def _append(self, changes: Sequence[ScheduleChange], at_ms: int, anchor: int, *, is_durable: bool) -> int:
        records = [to_record(change, at, at_ms, anchor) for at, change in enumerate(changes)]
        batch = memoryview(encode_batch(records))
        written = self.partition.append(batch, at_ms, is_durable=is_durable, is_internal=True)
        for at, change in enumerate(changes, written.base_offset):
            change.offset = at
            self.on_noted(change)
        return written.next_offset

    def when_committed(self, offset: int, done: Callable[[PenstockError | None], None]) -> None:
        self.partition.when_committed(offset, done)

    # -- reading ------------------------------------------------------------------------------------------------------

    def replay(self) -> Iterator[Written[ScheduleChange] | Decided]:
        for offset, at_ms, event in self.read():
            yield Written(ScheduleChange(event, offset), at_ms)

    def read(self) -> Iterator[tuple[int, int, ScheduleEvent]]:
        """Everything from the anchor on: offset, time and event. Runs in any thread."""
        self.anchor = self._last_anchor()
        return self._read(max(self.anchor, self.partition.log.start_offset))

    def _last_anchor(self) -> int:
        """What the last record says; without one, the beginning of the log."""
        stored = self.partition.log
        last: Record | None = None
        if stored.end_offset > stored.start_offset:
            for batch in stored.batches(stored.end_offset - 1):
                last = decode_records(batch.read())[-1]
        if last is None:
            return stored.start_offset
        try:
            return anchor_of(last)
        except CorruptRecords as error:
            log.error("%s is read from its beginning: %s", self.partition.id, error.message)
            return stored.start_offset

    def _read(self, begin: int) -> Iterator[tuple[int, int, ScheduleEvent]]:
        for batch in self.partition.log.batches(begin):
            for found in events_of(memoryview(batch.read())):
                if found[0] >= begin:
                    yield found

    def events(self, begin: int, end: int) -> Iterator[tuple[int, ScheduleEvent]]:
        """What is written between two offsets, with its place."""
        for offset, _, event in self._read(begin):
            if offset >= end:
                return
            yield offset, event


NAME: Final = "schedules"  # of the one machine in each shard

_CHECK_MS: Final = 1_000
_LOADED_AT_ONCE: Final = 500
_SNAPSHOT_AGAIN_MS: Final = 10_000  # after one that could not be written

Spawn = Callable[[Coroutine[Any, Any, None]], None]


class Firer(Protocol):
    """Who brings what is due into its topics."""

    def begin(self) -> None:
        """The shard is led here, and everything is known of it."""

    def wake(self) -> None:
        """Something is due. Called often; has to be quick."""


class ScheduleShard(Shard[ScheduleMachine, ScheduleChange]):
    """One machine, with what it needs of the world."""

    def __init__(
        self, journal: ScheduleJournal, number: int, settings: ScheduleSettings, clock: DayClock, spawn: Spawn
    ) -> None:
        super().__init__(journal, clock.now_ms, clock.now_ms, asyncio.get_running_loop().call_soon)
        self.journal = journal
        self.number = number
        self.library = ScheduleReader(journal.partition.log)
        self.firer: Firer | None = None
        self._settings = settings
        self._clock = clock
        self._spawn = spawn
        self._is_loading_period = False
        self._snapshot_from_ms = 0
        journal.on_noted = self._note

    def __repr__(self) -> str:
        return f"<ScheduleShard {self.number}, {'ready' if self.is_ready else 'not ready'}>"

    # -- what it is ---------------------------------------------------------------------------------------------------

    def make(self, name: str) -> ScheduleMachine:  # noqa: ARG002
        return ScheduleMachine(self.number, self._settings)

    def name_of(self, change: ScheduleChange) -> str:  # noqa: ARG002
        return NAME

    @property
    def machine(self) -> ScheduleMachine:
        self.check()
        return self.machines[NAME]

    @property
    def wait_ms(self) -> float:
        """How long nothing happens here by itself, 0 while something is being read."""
        if self.is_loading or self._is_loading_period:
            return 0
        return self.machines[NAME].wake_ms - self.now_ms() if self.is_ready else inf

    def _note(self, change: ScheduleChange) -> None:
        self.library.note(change, self._clock.now_ms())

    # -- life ---------------------------------------------------------------------------------------------------------

    def read_log(self) -> dict[str, ScheduleMachine]:
        machine = self.make(NAME)
        machine.read(self.journal.read())
        return {NAME: machine}

    def open(self, machines: dict[str, ScheduleMachine]) -> None:
        super().open(machines)
        if self.is_ready:
            if self.firer is not None:
                self.firer.begin()
            self.tick()

    # -- requests -----------------------------------------------------------------------------------------------------

    async def ask_schedules(self, request: Request[AnswerT]) -> AnswerT:
        """The answer to a request, once it is committed; an error if it is refused.

        `RequestTimedOut` if the shard got another leader before that: what was asked may have been done.
        """
        future: asyncio.Future[AnswerT | Rejected] = asyncio.get_running_loop().create_future()
        self.ask(NAME, request, partial(resolve, future))
        is_refused = future.done()  # at once, so nothing was written
        answer = await future
        if not isinstance(answer, Rejected):
            return answer
        if is_refused or not isinstance(answer.error, NotCoordinator):
            raise answer.error
        raise RequestTimedOut(f"Shard {self.number} of schedules got another leader; this may have been done or not.")

    def perform(self, decisions: Sequence[tuple[ScheduleMachine, Outcome[ScheduleChange]]]) -> None:
        super().perform(decisions)
        if self.is_ready and any(outcome.changes for _, outcome in decisions):
            self._follow_up()

    def _on_refused(
        self,
        decisions: Sequence[tuple[ScheduleMachine, Outcome[ScheduleChange]]],
        replies: Replies,
        error: PenstockError,
    ) -> None:
        if isinstance(error, StorageError):  # as it is: the client may do something about a full disk
            for reply, _ in replies:
                reply(Rejected(error))
            replies = []
        super()._on_refused(decisions, replies, error)

    def snapshot(self) -> None:
        """Write all that is known, if that is due, so that the next leader reads little."""
        machine = self.machine
        if not machine.is_snapshot_due or self.now_ms() < self._snapshot_from_ms:
            return
        changes, at_ms = machine.snapshot(), self.now_ms()
        try:
            self._end = self.journal.append_snapshot(changes, at_ms)
        except PenstockError as error:
            log.warning("No snapshot of %r now: %s", machine, error.message)
            self._snapshot_from_ms = self.now_ms() + _SNAPSHOT_AGAIN_MS
            return
        self._written[NAME] = self._end
        for change in changes:
            machine.apply(change, at_ms, at_ms)
        self.when_committed(
            self._end, lambda error: self._on_committed([], [(machine, Outcome(changes=changes))], self._end, error)
        )

    # -- time ---------------------------------------------------------------------------------------------------------

    def _follow_up(self) -> None:
        machine = self.machines[NAME]
        if machine.is_due and self.firer is not None:
            self.firer.wake()
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self.alarm is not None and self.is_ready:
            now_ms = self.now_ms()
            self.alarm.set(min(max(self.machines[NAME].wake_ms, now_ms + 1), now_ms + _CHECK_MS))

    def tick(self) -> None:
        """Let it be now, whatever the clock showed before: schedules become due, periods come near."""
        if not self.is_ready:
            return
        machine = self.machine
        try:
            machine.tick(self.now_ms())
            if machine.period_to_load is not None and not self._is_loading_period:
                self._is_loading_period = True
                self._spawn(self._load_periods(machine))
            if machine.is_due and self.firer is not None:
                self.firer.wake()
        finally:
            self._set_alarm()

    async def _load_periods(self, machine: ScheduleMachine) -> None:
        """Have schedules of later periods that have come near in memory, some at once."""
        try:
            while self.machines.get(NAME) is machine and (period := machine.period_to_load) is not None:
                offsets = list(machine.far_offsets(period))
                for at in range(0, len(offsets), _LOADED_AT_ONCE):
                    found = self.library.read(offsets[at : at + _LOADED_AT_ONCE], is_strict=True)
                    machine.load(list(found.items()))
                    await asyncio.sleep(0)
                    if self.machines.get(NAME) is not machine:
                        return
                if len(list(machine.far_offsets(period))) == len(offsets):  # or the clock was set back meanwhile
                    machine.loaded(period)
                self._follow_up()
        except PenstockError as error:
            log.error("A period of %r cannot be loaded, which is tried again: %s", machine, error.message)
        finally:
            self._is_loading_period = False


_RECORDS_MIN: Final = 50_000  # a log that is shorter is left alone
_TIMES_LIVE: Final = 4
_CARRIED_AT_ONCE: Final = 200
_PIECE: Final = 5_000
_PIECES_AT_ONCE: Final = 10


async def keep_short(shard: ScheduleShard, topics: Topics) -> None:
    """Cut the beginning off a log that is several times as long as it need be, a piece at a time."""
    for _ in range(_PIECES_AT_ONCE):
        if not shard.is_ready or not _is_long(shard):
            return
        start = shard.journal.partition.log.start_offset
        end = min(start + _PIECE, shard.journal.anchor)
        if end <= start or not await carry(shard, start, end):
            return
        await cut(shard, end, topics)


def _is_long(shard: ScheduleShard) -> bool:
    log = shard.journal.partition.log
    return log.end_offset - log.start_offset > max(_RECORDS_MIN, _TIMES_LIVE * shard.machine.live)


async def carry(shard: ScheduleShard, begin: int, end: int) -> bool:
    """Write anew what is needed of a part of the log; False if not all of it can be now."""
    machine = shard.machine
    events = shard.journal.events(begin, end)
    while piece := list(islice(events, _CARRIED_AT_ONCE)):
        needed = [
            (offset, event.schedule)
            for offset, event in piece
            if isinstance(event, Put) and machine.is_live(event.schedule.id, offset)
        ]
        left: int = await shard.ask_schedules(CarryForward(needed)) if needed else 0
        if left:
            return False
        await asyncio.sleep(0)
        if not shard.is_ready or shard.machine is not machine:
            return False
    return True


async def cut(shard: ScheduleShard, end: int, topics: Topics) -> None:
    """Cut the log, once all that makes its beginning needless is committed."""
    await shard.settled()
    journal = shard.journal
    await topics.trim(journal.partition, end, lambda: shard.is_ready and end <= journal.anchor)
