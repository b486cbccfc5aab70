"""Schedules out of their log, by offset: those of the next minute from memory, others from disk.

What is due soon after it came is kept as it came, up to a bound, and needs no disk. All else is read in the order of
the log: neighbours share a read, and of a batch only the records are looked at that are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from penstock.broker.schedules.batches import pick
from penstock.broker.schedules.records import Change, Event, Put, Schedule
from penstock.errors import DamagedRecords, OffsetOutOfRange
from penstock.records import iter_batches
from penstock.storage.log import Log

_SOON_MS: Final = 60_000
_SWEEP_MS: Final = 30_000
_KEPT_BYTES: Final = 2 * 1024 * 1024
_ENTRY_BYTES: Final = 700  # what Python needs for a small schedule
_NEIGHBOURS: Final = 64  # offsets that are closer than this are read together
_READ_BYTES: Final = 64 * 1024


class Library:
    """The schedules of one shard."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._kept: dict[int, Schedule] = {}
        self._kept_bytes = 0
        self._sweep_from_ms = 0

    def note(self, change: Change, now_ms: int) -> None:
        """A change was written just now: keep what will be asked for soon."""
        event = change.event
        if not isinstance(event, Put) or event.schedule.due_ms > now_ms + _SOON_MS:
            return
        if self._kept_bytes < _KEPT_BYTES:
            self._kept[change.offset] = event.schedule
            self._kept_bytes += _size(event.schedule)

    def forget(self, offsets: Iterable[int]) -> None:
        """Nobody will ask for these again."""
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

    def read_one(self, offset: int) -> Schedule | None:
        return self.read([offset]).get(offset)

    def read(self, offsets: Sequence[int], *, is_strict: bool = False) -> dict[int, Schedule]:
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

    def _events(self, offsets: list[int], *, is_strict: bool) -> Iterator[tuple[int, Event]]:
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


def _size(schedule: Schedule) -> int:
    return _ENTRY_BYTES + len(schedule.message.value or b"") + len(schedule.message.key or b"")
