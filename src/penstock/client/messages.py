"""Messages as users hold them: read ones, decoded only when they are looked at, and where published ones are.

A message knows its offset and its batch. The records of a batch are decoded when the first of its messages is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar, overload

import msgspec
from msgspec import UNSET

from penstock.api.messages import BatchItem, BatchReceipt, MessageView, bytes_of, header_pairs_of, instant, to_ms
from penstock.client.calls import error_in
from penstock.errors import CorruptRecords, PenstockError, UnexpectedAnswer
from penstock.priorities import priority_of
from penstock.records import BatchHeader, Record, decode_records, decode_values, iter_batches
from penstock.records.batch import Headers
from penstock.records.varint import ReadableBuffer

_SHOWN_BYTES: Final = 60

T = TypeVar("T")


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
        """The id of a delayed message's schedule until it is due; empty for a message that is in its topic."""
        return ""

    @property
    def due_ms(self) -> int:
        """When a delayed message is due, in milliseconds since 1970; -1 for a message that is in its topic."""
        return -1

    @property
    def due(self) -> datetime | None:
        return instant(self.due_ms)


class Scheduled(Published):
    """A delayed message, now that it is safe. It has no partition and offset (-1) before it is due."""

    _schedule: tuple[str, int]

    def __new__(cls, topic: str, schedule_id: str, due_ms: int) -> Scheduled:
        made = tuple.__new__(cls, (topic, -1, -1, -1))
        made._schedule = (schedule_id, due_ms)
        return made

    @property
    def schedule_id(self) -> str:
        return self._schedule[0]

    @property
    def due_ms(self) -> int:
        return self._schedule[1]

    def __getnewargs__(self) -> tuple[str, str, int]:
        return self.topic, *self._schedule

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scheduled) and (self.topic, self._schedule) == (other.topic, other._schedule)

    def __ne__(self, other: object) -> bool:
        return not self == other  # a tuple's own compares the fields alone

    def __hash__(self) -> int:
        return hash((self.topic, self._schedule))

    def __repr__(self) -> str:
        return f"Scheduled(topic={self.topic!r}, schedule_id={self.schedule_id!r}, due_ms={self.due_ms})"


def outcomes_in(answer: BatchReceipt, count: int) -> list[Published | PenstockError]:
    """Where each of ``count`` messages of a call is, or why it was refused."""
    if len(answer.results) != count:
        raise UnexpectedAnswer(f"{count} messages were sent, but the answer has {len(answer.results)} results.")
    return [_outcome(each) for each in answer.results]


def _outcome(item: BatchItem) -> Published | PenstockError:
    if item.error:
        return error_in(item.error)
    topic = item.topic or ""
    if item.schedule_id:
        return Scheduled(topic, item.schedule_id, to_ms(item.due) if item.due else -1)
    if item.partition is UNSET or item.offset is UNSET:
        return UnexpectedAnswer("The answer does not say where a message is.")
    return Published(topic, item.partition, item.offset, to_ms(item.timestamp) if item.timestamp else -1)


class PublishedRange(Sequence[Published]):
    """Messages with consecutive offsets; each `Published` is made when it is asked for."""

    __slots__ = ("_offsets", "_partition", "_timestamp_ms", "_topic")

    def __init__(self, topic: str, partition: int, offsets: range, timestamp_ms: int) -> None:
        self._topic = topic
        self._partition = partition
        self._offsets = offsets
        self._timestamp_ms = timestamp_ms

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, at: int) -> Published: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Published]: ...
    def __getitem__(self, at: Any) -> Any:
        found = self._offsets[at]
        if isinstance(found, range):
            return PublishedRange(self._topic, self._partition, found, self._timestamp_ms)
        return Published(self._topic, self._partition, found, self._timestamp_ms)

    def __iter__(self) -> Iterator[Published]:
        for offset in self._offsets:
            yield Published(self._topic, self._partition, offset, self._timestamp_ms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return repr(list(self))


class LazyBatch:
    """One record batch, decoded when a record is asked for. Decoding values alone is faster.

    ``first_offset`` is the offset of its first record, if there are no gaps.
    """

    __slots__ = ("_data", "_records", "_values", "first_offset")

    def __init__(self, first_offset: int, data: memoryview) -> None:
        self.first_offset = first_offset
        self._data: memoryview | None = data
        self._records: Sequence[Record] = ()
        self._values: Sequence[bytes] | None = None

    def problem(self) -> str | None:
        """Why the batch cannot be decoded; None if it can. What this decodes is kept."""
        try:
            if self._values is None and self._data is not None:
                # Empty where messages have more than a value: then records have to be decoded.
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
        # Without gaps (compaction makes some), a record's index is its offset less the first.
        if 0 <= at < len(records) and records[at].offset == offset:
            return records[at]
        for record in records:
            if record.offset == offset:
                return record
        raise CorruptRecords(f"The answer has no record of offset {offset}.")


def batches_of(data: ReadableBuffer) -> list[tuple[BatchHeader, LazyBatch]]:
    """The batches of records in what a node sent, in order."""
    view = memoryview(data)
    return [
        (header, LazyBatch(header.next_offset - header.count, view[position : position + header.size]))
        for position, header in iter_batches(view)
        if not header.is_control
    ]


def record_of(view: MessageView) -> Record:
    """A message in JSON as a record. Once for each message that is read: calls are spared where they can be."""
    return Record(
        view.offset,
        -1 if view.timestamp is None else to_ms(view.timestamp),
        view.key.encode() if view.key else bytes_of(view, "key"),
        view.value.encode() if view.value else bytes_of(view, "value"),
        header_pairs_of(view) if view.headers or view.headers_base64 else (),
    )


class DecodedRecord:
    """A record that came decoded, in place of a batch."""

    __slots__ = ("_record",)

    def __init__(self, record: Record) -> None:
        self._record = record

    def record(self, offset: int) -> Record:  # noqa: ARG002
        return self._record

    def value(self, offset: int) -> bytes | None:  # noqa: ARG002
        return self._record.value


class Message(msgspec.Struct, eq=False, gc=False):  # a struct: hundreds of thousands are made a second
    """A message: its place and its content."""

    topic: str
    partition: int
    offset: int
    _source: LazyBatch | DecodedRecord

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
        """critical, high, normal, low or background; normal by default."""
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
    """Bytes to show: as text if they are UTF-8, and cut if they are long."""
    if data is None:
        return "None"
    head = data[:_SHOWN_BYTES]
    rest = f"… ({len(data)} bytes)" if len(data) > _SHOWN_BYTES else ""
    try:
        return f"{head.decode()!r}{rest}"
    except UnicodeDecodeError as error:
        if rest and error.start >= len(head) - 3:  # a character is cut in two
            return f"{head[: error.start].decode()!r}{rest}"
        return f"{head!r}{rest}"
