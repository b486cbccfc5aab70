"""What is written to the log of schedules, and what a schedule is.

A `Put` tells all of a schedule, and the last one of an id is what counts: so memory needs to know only where it is.
All other records name schedules by the digest of their id and by the offset of that `Put`. Records build upon each
other until a `Snapshot`, after its parts, stands for all before it; but the puts that it points to are needed still.
Format: docs/formats/schedules.md.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.broker.schedules.recurrence import Missed, Rule
from penstock.errors import CorruptRecords
from penstock.records import Record


class Message(msgspec.Struct, frozen=True, array_like=True):
    """What is appended to a topic when the time has come. Without a partition, it is chosen then."""

    topic: str
    partition: int | None = None
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    priority: str = ""


class State(Enum):
    PENDING = "p"
    FAILED = "f"


class Schedule(msgspec.Struct, frozen=True, array_like=True):
    """A message for later, once or again and again."""

    id: str
    due_ms: int
    message: Message
    rule: Rule | None = None
    missed: Missed = Missed.ONCE
    created_ms: int = 0
    number: int = 0  # by which the server made the id, 0 if the client gave it
    runs: int = 0  # how often it was fired
    state: State = State.PENDING
    reason: str = ""  # why it failed


class Put(msgspec.Struct, frozen=True, tag="p", array_like=True):
    """A schedule, new or changed. ``replaces`` is the offset of what was said of it before, -1 if nothing was."""

    schedule: Schedule
    replaces: int = -1

    @property
    def is_addition(self) -> bool:
        """Whether nothing was known of it before, and it waits."""
        return self.replaces < 0 and not self.schedule.runs and self.schedule.state is State.PENDING


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


class Assigned(msgspec.Struct, frozen=True, tag="i", array_like=True):
    """What is fired from now on is written as this producer, in epoch 0 and from sequence 0 on in each partition."""

    producer_id: int


class Part(msgspec.Struct, frozen=True, tag="s", array_like=True):
    """A piece of a snapshot: ``kind`` is n (near rows), i (places by digest) or o (places by period)."""

    number: int
    kind: str
    key: int
    columns: list[bytes]


class Snapshot(msgspec.Struct, frozen=True, tag="n", array_like=True):
    """All of the state, together with the parts right before it."""

    parts: int
    at_ms: int
    last_id: int
    last_firing: int
    producer_id: int  # -1 if there is none
    targets: list[tuple[bytes, int, int, int]]  # topic id, partition, epoch, next sequence
    firings: list[Firing]


Event = Put | Removed | Firing | Fired | Assigned | Part | Snapshot


class Change(msgspec.Struct):
    """One record to persist and apply. The journal notes ``offset`` when it writes or reads it."""

    event: Event
    offset: int = -1


_encode = msgspec.msgpack.Encoder().encode
_events: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
_ANCHOR_BYTES = 8


def to_record(change: Change, offset: int, at_ms: int, anchor: int = 0) -> Record:
    """A change as a record. ``anchor`` is from where on the log has to be read to know everything."""
    return Record(offset, at_ms, anchor.to_bytes(_ANCHOR_BYTES, "big"), _encode(change.event), ())


def from_record(record: Record) -> Change:
    """Read a record back; `CorruptRecords` if it is not about schedules."""
    try:
        return Change(_events.decode(record.value or b""), record.offset)
    except msgspec.MsgspecError as error:
        raise CorruptRecords(f"Record {record.offset} is not about schedules: {error}") from error


def anchor_of(record: Record) -> int:
    """From where on the log has to be read, as of a record."""
    if record.key is None or len(record.key) != _ANCHOR_BYTES:
        raise CorruptRecords(f"Record {record.offset} is not about schedules: it does not say where to begin.")
    return int.from_bytes(record.key, "big")
