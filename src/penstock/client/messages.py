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
from penstock.records import BatchHeader, Record, decode_records, decode_values, iter_batches
from penstock.records.batch import Headers
from penstock.records.varint import ReadableBuffer

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


class Batch:
    """One record batch, decoded when it is asked for a record; values alone come out quicker."""

    __slots__ = ("_data", "_records", "_values", "base_offset")

    def __init__(self, base_offset: int, data: memoryview) -> None:
        self.base_offset = base_offset
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
        return values[offset - self.base_offset] if values else self.record(offset).value

    def record(self, offset: int) -> Record:
        records = self.records()
        at = offset - self.base_offset
        # Where nothing was compacted away, a record stands as far from the first as its offset says.
        if at < len(records) and records[at].offset == offset:
            return records[at]
        for record in records:
            if record.offset == offset:
                return record
        raise CorruptRecords(f"The answer has no record of offset {offset}.")


def batches_of(data: ReadableBuffer) -> list[tuple[BatchHeader, Batch]]:
    """The batches of records in what a node sent, in order."""
    view = memoryview(data)
    return [
        (header, Batch(header.base_offset, view[position : position + header.size]))
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
        return f"<{type(self).__name__} {self.topic}-{self.partition} at {self.offset}>"
