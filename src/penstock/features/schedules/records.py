"""What is written to the log of schedules, and what a schedule is.

A `Put` tells all of a schedule, and the last one of an id is what counts: so memory needs to know only where it is.
All other records name schedules by the digest of their id and by the offset of that `Put`. Records build upon each
other until a `ScheduleSnapshot`, after its parts, stands for all before it; the puts it points to are needed still.
Format: docs/formats/schedules.md.

Batches of the schedule log, looked into for their events alone: whole ones when the log is read, parts when due.

What a record holds beside its value is passed over, which is most of what reading costs. In our log every batch has all
its records, one offset after the other. Format: docs/formats/schedules.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

import msgspec

from penstock.errors import CorruptRecords
from penstock.features.schedules.recurrence import Missed, Rule
from penstock.records import Record
from penstock.records.batch import open_batch
from penstock.records.varint import read_varint, read_varlong


class ScheduledMessage(msgspec.Struct, frozen=True, array_like=True):
    """What is appended to a topic when the time has come. Without a partition, it is chosen then."""

    topic: str
    partition: int | None = None
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    priority: str = ""


class ScheduleStatus(Enum):
    PENDING = "p"
    FAILED = "f"


class StoredSchedule(msgspec.Struct, frozen=True, array_like=True):
    """A message for later, once or again and again."""

    id: str
    due_ms: int
    message: ScheduledMessage
    rule: Rule | None = None
    missed: Missed = Missed.ONCE
    created_ms: int = 0
    number: int = 0  # by which the server made the id, 0 if the client gave it
    runs: int = 0  # how often it was fired
    state: ScheduleStatus = ScheduleStatus.PENDING
    reason: str = ""  # why it failed


class Put(msgspec.Struct, frozen=True, tag="p", array_like=True):
    """A schedule, new or changed. ``replaces`` is the offset of what was said of it before, -1 if nothing was."""

    schedule: StoredSchedule
    replaces: int = -1

    @property
    def is_addition(self) -> bool:
        """Whether nothing was known of it before, and it waits."""
        return self.replaces < 0 and not self.schedule.runs and self.schedule.state is ScheduleStatus.PENDING


class Removed(msgspec.Struct, frozen=True, tag="r", array_like=True):
    """Schedules are no more, without having been fired: digests and offsets."""

    entries: list[tuple[int, int]]


class Firing(msgspec.Struct, frozen=True, tag="f", array_like=True):
    """Schedules are about to be appended to a partition, in this order, with consecutive sequence numbers."""

    number: int
    topic: str
    topic_id: bytes
    partition: int
    producer_id: int
    epoch: int
    sequence: int
    entries: list[tuple[int, int, bool]]  # digest, offset, and whether it comes again


class Fired(msgspec.Struct, frozen=True, tag="d", array_like=True):
    """The first ``written`` of a firing are in their topic; what is left of it is due again at ``retry_ms``."""

    number: int
    written: int
    retry_ms: int = 0


class ScheduleProducerAssigned(msgspec.Struct, frozen=True, tag="i", array_like=True):
    """What is fired from now on is written as this producer, in epoch 0 and from sequence 0 on in each partition."""

    producer_id: int


class SnapshotPart(msgspec.Struct, frozen=True, tag="s", array_like=True):
    """A piece of a snapshot: ``kind`` is n (near rows), i (places by digest) or o (places by period)."""

    number: int
    kind: str
    key: int
    columns: list[bytes]


class ScheduleSnapshot(msgspec.Struct, frozen=True, tag="n", array_like=True):
    """All of the state, together with the parts right before it."""

    parts: int
    at_ms: int
    last_id: int
    last_firing: int
    producer_id: int  # -1 if there is none
    targets: list[tuple[bytes, int, int, int]]  # topic id, partition, epoch, next sequence
    firings: list[Firing]


ScheduleEvent = Put | Removed | Firing | Fired | ScheduleProducerAssigned | SnapshotPart | ScheduleSnapshot


class ScheduleChange(msgspec.Struct):
    """One record to persist and apply. The journal notes ``offset`` when it writes or reads it."""

    event: ScheduleEvent
    offset: int = -1


_encode = msgspec.msgpack.Encoder().encode
_events: msgspec.msgpack.Decoder[ScheduleEvent] = msgspec.msgpack.Decoder(ScheduleEvent)
_ANCHOR_BYTES = 8


def to_record(change: ScheduleChange, offset: int, at_ms: int, anchor: int = 0) -> Record:
    """A change as a record. ``anchor`` is from where on the log has to be read to know everything."""
    return Record(offset, at_ms, anchor.to_bytes(_ANCHOR_BYTES, "big"), _encode(change.event), ())


def from_record(record: Record) -> ScheduleChange:
    """Read a record back; `CorruptRecords` if it is not about schedules."""
    try:
        return ScheduleChange(_events.decode(record.value or b""), record.offset)
    except msgspec.MsgspecError as error:
        raise CorruptRecords(f"Record {record.offset} is not about schedules: {error}") from error


def anchor_of(record: Record) -> int:
    """From where on the log has to be read, as of a record."""
    if record.key is None or len(record.key) != _ANCHOR_BYTES:
        raise CorruptRecords(f"Record {record.offset} is not about schedules: it does not say where to begin.")
    return int.from_bytes(record.key, "big")


log = logging.getLogger(__name__)

_CONTINUES: Final = 0x80  # a byte of a number with this bit is not its last
_KEY_BYTE: Final = 16  # the length of our keys, 8
_HEAD_BYTES: Final = 4 + 8  # attributes, time, delta, and a key with its length

_decode = msgspec.msgpack.Decoder(ScheduleEvent).decode


def events_of(batch: memoryview) -> Iterator[tuple[int, int, ScheduleEvent]]:
    """Offset, time and event of every record; one that no leader wrote is left out."""
    header, data = open_batch(batch)
    at_ms, position = header.base_timestamp, 0
    for offset in range(header.base_offset, header.base_offset + header.count):
        if (low := data[position]) >= _CONTINUES and (high := data[position + 1]) < _CONTINUES:
            length, at = (low & 0x7F) >> 1 | high << 6, position + 2
        else:
            length, at = read_varint(data, position)
        position = at + length
        later = 0
        if data[at + 1] == 0 and data[at + 2] < _CONTINUES and data[at + 3] == _KEY_BYTE:
            at += _HEAD_BYTES  # as nearly all are: written at once, and few enough for deltas of one byte
        else:
            later, at = read_varlong(data, at + 1)
            at = _value_at(data, at)
        if (low := data[at]) >= _CONTINUES and (high := data[at + 1]) < _CONTINUES:
            size, at = (low & 0x7F) >> 1 | high << 6, at + 2
        else:
            size, at = read_varint(data, at)
        try:
            yield offset, at_ms + later, _decode(data[at : at + size])
        except msgspec.MsgspecError as error:  # one record of another writer must not hold up the rest
            log.error("Record %d is not about schedules, and left out: %s", offset, error)


def pick(batch: memoryview, offsets: Sequence[int]) -> Iterator[tuple[int, ScheduleEvent]]:
    """The events at some offsets, in order; other records are stepped over. What cannot be read ends it."""
    try:
        header, data = open_batch(batch)
        position = passed = 0
        for offset in offsets:
            while passed < offset - header.base_offset:
                if (low := data[position]) >= _CONTINUES and (high := data[position + 1]) < _CONTINUES:
                    position += 2 + ((low & 0x7F) >> 1 | high << 6)
                else:
                    length, position = read_varint(data, position)
                    position += length
                passed += 1
            _, at = read_varint(data, position)
            _, at = read_varlong(data, at + 1)
            size, at = read_varint(data, _value_at(data, at))
            yield offset, _decode(data[at : at + size])
    except (CorruptRecords, IndexError, msgspec.MsgspecError):
        return


def _value_at(data: bytes, at: int) -> int:
    """Where the value's length is, of a record whose delta is at ``at``."""
    _, at = read_varint(data, at)
    size, at = read_varint(data, at)  # of the key
    return at + max(size, 0)
