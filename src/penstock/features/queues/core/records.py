"""What a queue writes to its partition's companion log.

One call is one record, whatever number of messages it is about: intervals, not messages. The key is the group, the
value a MessagePack array. Times are absolute, so that a lease or a delay goes on counting while no node leads.
Records build upon each other until a `QueueSnapshot` stands for all before it. Format: docs/formats/queues.md.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.errors import CorruptRecords
from penstock.records import Record


class EndCause(Enum):
    """Why deliveries ended."""

    ACK = "a"
    NACK = "n"
    REJECT = "r"
    EXPIRY = "x"
    RELEASE = "u"  # given back unseen
    BURIAL = "d"  # written to the dead letters
    GAP = "g"  # there was no message


class QueueBegun(msgspec.Struct, frozen=True, tag="b", array_like=True):
    """The group reads the partition, from ``start`` on."""

    start: int
    secret: bytes


class LeaseGranted(msgspec.Struct, frozen=True, tag="l", array_like=True):
    """Messages went to a consumer."""

    lease: int
    consumer: str
    until_ms: int
    spans: list[tuple[int, int, int]]  # first, last, delivery count
    gaps: list[tuple[int, int]] = []


class LeasesSettled(msgspec.Struct, frozen=True, tag="s", array_like=True):
    """Leases ended, for better or worse, or dead letters were written."""

    acked: list[tuple[int, int]] = []
    waiting: list[tuple[int, int, int, int]] = []  # first, last, delivery count, due
    dying: list[tuple[int, int, int, int, str]] = []  # id, first, last, delivery count, reason
    cause: EndCause = EndCause.ACK


class LeasesExtended(msgspec.Struct, frozen=True, tag="e", array_like=True):
    """Leases last longer, or shorter."""

    until_ms: int
    spans: list[tuple[int, int]]


class QueueMoved(msgspec.Struct, frozen=True, tag="m", array_like=True):
    """The group goes on from another offset, and nothing was delivered there."""

    offset: int


class QueueTrimmed(msgspec.Struct, frozen=True, tag="t", array_like=True):
    """There is nothing before this offset any more."""

    start: int


class QueuePaused(msgspec.Struct, frozen=True, tag="p", array_like=True):
    is_paused: bool
    reason: str = ""


class QueueConfigured(msgspec.Struct, frozen=True, tag="c", array_like=True):
    """The group has these settings of its own, and no others."""

    values: dict[str, str]


class ProducerAssigned(msgspec.Struct, frozen=True, tag="i", array_like=True):
    """Dead letters are written as this producer, numbered from 0 on: those that wait first, by number."""

    producer_id: int
    epoch: int


class QueueForgotten(msgspec.Struct, frozen=True, tag="f", array_like=True):
    """The group does not read the partition any more."""


class QueueSnapshot(msgspec.Struct, frozen=True, tag="n", array_like=True):
    """All of a queue's state. Rows are differences from the row before, which makes most of them single bytes."""

    secret: bytes
    committed: int
    last_lease: int
    last_dead_letter: int
    is_paused: bool
    at_ms: int
    consumers: list[str]
    rows: list[int]  # six each: offset, length - 1, state, number, time, consumer
    dead_letters: dict[int, tuple[int, int, str]]  # by number: first offset, its sequence, reason
    pause_reason: str
    values: dict[str, str]  # the group's own settings
    producer: tuple[int, int] | None  # of dead letters: id and epoch
    buried: int  # how many messages got a sequence under it
    holds: list[tuple[int, int, int]]  # acked in open transactions: first, last, producer id
    upto: int = -1  # it stands for everything before this offset of the log; -1: for all before itself


QueueEvent = (
    QueueBegun
    | LeaseGranted
    | LeasesSettled
    | LeasesExtended
    | QueueMoved
    | QueueTrimmed
    | QueuePaused
    | QueueConfigured
    | ProducerAssigned
    | QueueForgotten
    | QueueSnapshot
)


class QueueChange(msgspec.Struct, frozen=True):
    """One record to persist and apply."""

    group: str
    event: QueueEvent


_encode = msgspec.msgpack.Encoder().encode
_events: msgspec.msgpack.Decoder[QueueEvent] = msgspec.msgpack.Decoder(QueueEvent)


def to_record(change: QueueChange, offset: int, at_ms: int) -> Record:
    return Record(offset, at_ms, change.group.encode(), _encode(change.event), ())


def from_record(record: Record) -> QueueChange:
    """Read a record back; `CorruptRecords` if no queue wrote it."""
    try:
        return QueueChange((record.key or b"").decode(), _events.decode(record.value or b""))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptRecords(f"Record {record.offset} is not about a queue: {error}") from error
