"""Messages as users hold them: slim, and decoded only when somebody looks inside.

A `Block` is the batches of one partition as a node sent them. Messages of it know their offset; the records of a batch
are taken apart when the first of its messages is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar, overload

import msgspec

from penstock.errors import CorruptRecords, PenstockError
from penstock.priorities import priority_of
from penstock.records import BatchHeader, Record, decode_records, decode_values, iter_batches
from penstock.records.batch import Headers
from penstock.records.varint import ReadableBuffer

_SHOWN_BYTES: Final = 60
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")


def instant(timestamp_ms: int) -> datetime | None:
    """The instant, or None where there is none or no calendar has it."""
    try:
        return _EPOCH + timedelta(milliseconds=timestamp_ms) if timestamp_ms >= 0 else None
    except OverflowError:
        return None


class Published(NamedTuple):
    """Where a message is, now that it is safe."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    @property
    def timestamp(self) -> datetime | None:
        return instant(self.timestamp_ms)

    @property
    def schedule_id(self) -> str:
        """What a message for later is called until it is due; empty for one that is in its topic."""
        return ""

    @property
    def due_ms(self) -> int:
        """When a message for later is in its topic, in milliseconds since 1970; -1 for one that is there."""
        return -1

    @property
    def due(self) -> datetime | None:
        return instant(self.due_ms)


class Scheduled(Published):
    """A message for later, now that it is safe. It gets partition and offset when it is due; until then they are -1."""

    _later: tuple[str, int]

    def __new__(cls, topic: str, schedule_id: str, due_ms: int) -> Scheduled:
        made = tuple.__new__(cls, (topic, -1, -1, -1))
        made._later = (schedule_id, due_ms)
        return made

    @property
    def schedule_id(self) -> str:
        return self._later[0]

    @property
    def due_ms(self) -> int:
        return self._later[1]

    def __getnewargs__(self) -> tuple[str, str, int]:
        return self.topic, *self._later

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scheduled) and (self.topic, self._later) == (other.topic, other._later)

    def __ne__(self, other: object) -> bool:
        return not self == other  # a tuple has its own idea

    def __hash__(self) -> int:
        return hash((self.topic, self._later))

    def __repr__(self) -> str:
        return f"Scheduled(topic={self.topic!r}, schedule_id={self.schedule_id!r}, due_ms={self.due_ms})"


class Batch:
    """One record batch, decoded when it is asked for a record; values alone come out quicker.

    ``first_offset`` is that of its first record, if there are no gaps.
    """

    __slots__ = ("_data", "_records", "_values", "first_offset")

    def __init__(self, first_offset: int, data: memoryview) -> None:
        self.first_offset = first_offset
        self._data: memoryview | None = data
        self._records: Sequence[Record] = ()
        self._values: Sequence[bytes] | None = None

    def problem(self) -> str | None:
        """Why nobody can unpack it, None if it can be; whatever is found is kept for those who ask for more."""
        try:
            if self._values is None and self._data is not None:
                # Where there is more to the messages than a value, they have to be taken apart after all.
                self._values = decode_values(self._data) or ()
            if not self._values:
                self.records()
        except PenstockError as error:
            return error.message
        return None

    def records(self) -> Sequence[Record]:
        if self._data is not None:
            self._records, self._data = decode_records(self._data), None
        return self._records

    def value(self, offset: int) -> bytes | None:
        values = self._values
        if values is None and self._data is not None:
            values = self._values = decode_values(self._data) or ()
        return values[offset - self.first_offset] if values else self.record(offset).value

    def record(self, offset: int) -> Record:
        records = self.records()
        at = offset - self.first_offset
        # Where nothing was compacted away, a record stands as far from the first as its offset says.
        if 0 <= at < len(records) and records[at].offset == offset:
            return records[at]
        for record in records:
            if record.offset == offset:
                return record
        raise CorruptRecords(f"The answer has no record of offset {offset}.")


def batches_of(data: ReadableBuffer) -> list[tuple[BatchHeader, Batch]]:
    """The batches of records in what a node sent, in order."""
    view = memoryview(data)
    return [
        (header, Batch(header.next_offset - header.count, view[position : position + header.size]))
        for position, header in iter_batches(view)
        if not header.is_control
    ]


class Decoded:
    """A record that came decoded, in the place of a batch."""

    __slots__ = ("_record",)

    def __init__(self, record: Record) -> None:
        self._record = record

    def record(self, offset: int) -> Record:  # noqa: ARG002
        return self._record

    def value(self, offset: int) -> bytes | None:  # noqa: ARG002
        return self._record.value


class Message(msgspec.Struct, eq=False, gc=False):  # a struct, because these are made by the hundred thousand a second
    """A message, where it lies and what it holds."""

    topic: str
    partition: int
    offset: int
    _source: Batch | Decoded

    @property
    def value(self) -> bytes | None:
        """The value as it was published; None is a tombstone where the topic is compacted."""
        return self._source.value(self.offset)

    @property
    def key(self) -> bytes | None:
        return self._source.record(self.offset).key

    @property
    def header_pairs(self) -> Headers:
        """All headers in their order; a name may come more than once."""
        return self._source.record(self.offset).headers

    @property
    def headers(self) -> Mapping[str, bytes | None]:
        """Headers by name; of a name that comes more than once, the last."""
        return dict(self.header_pairs)

    @property
    def priority(self) -> str:
        """critical, high, normal, low or background; normal where nothing says otherwise."""
        return priority_of(self.header_pairs)

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since the epoch, -1 if the producer gave no time."""
        return self._source.record(self.offset).timestamp

    @property
    def timestamp(self) -> datetime | None:
        return instant(self.timestamp_ms)

    @property
    def text(self) -> str:
        """The value as text; empty if there is none."""
        return (self.value or b"").decode()

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, kind: type[T]) -> T: ...
    def json(self, kind: Any = Any) -> Any:
        """The value read as JSON; with ``kind`` (a dataclass, a `msgspec.Struct`, ``dict[str, int]``, …) checked too.

        What is not JSON, or not of that kind, raises `ValueError`.
        """
        return msgspec.json.decode(self.value or b"", type=kind)

    def __repr__(self) -> str:
        where = f"{type(self).__name__} {self.topic}-{self.partition} at {self.offset}"
        try:
            return f"<{where}: key {_shown(self.key)}, value {_shown(self.value)}>"
        except PenstockError as error:
            return f"<{where}: {error.message}>"


def _shown(data: bytes | None) -> str:
    """Bytes for people: as text where they are text, cut where they are long."""
    if data is None:
        return "None"
    head = data[:_SHOWN_BYTES]
    rest = f"… ({len(data)} bytes)" if len(data) > _SHOWN_BYTES else ""
    try:
        return f"{head.decode()!r}{rest}"
    except UnicodeDecodeError as error:
        if rest and error.start >= len(head) - 3:  # a letter is cut in two
            return f"{head[: error.start].decode()!r}{rest}"
        return f"{head!r}{rest}"
