"""Where a shard keeps its changes: a port, and the partition that stands behind it by default."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, Union

import msgspec

from penstock.errors import CorruptRecords, PenstockError
from penstock.machines.messages import ChangeT, ProducerIdentity
from penstock.partitions.partition import Partition
from penstock.records import Codec, Record, decode_records, encode_batch, parse_header, read_marker

log = logging.getLogger(__name__)

# Members of a large group say much the same, so a generation of it compresses to a fraction.
_COMPRESS_FROM_BYTES: Final = 16 * 1024


class Written(NamedTuple, Generic[ChangeT]):
    """A change in the log, when it was written, and the producer in whose transaction (-1: in none)."""

    change: ChangeT
    at_ms: int
    producer_id: int = -1


class Decided(NamedTuple):
    """The end of a producer's transaction in the log."""

    producer_id: int
    is_commit: bool


class Journal(Protocol[ChangeT]):
    """An ordered, durable list of changes."""

    @property
    def end_offset(self) -> int:
        """Where the next change goes."""

    def append(self, changes: Sequence[ChangeT], at_ms: int, producer: ProducerIdentity | None = None) -> int:
        """Write changes, all or none; the offset after the last one. An error means that none was written."""

    def when_committed(self, offset: int, done: Callable[[PenstockError | None], None]) -> None:
        """Call ``done`` once everything before ``offset`` is safe, at once if it is, or with what went wrong."""

    def replay(self) -> Iterator[Written[ChangeT] | Decided]:
        """All that is not superseded, in order. Runs in any thread."""


class Format(Protocol[ChangeT]):
    """How changes are written as records."""

    def to_record(self, change: ChangeT, offset: int, at_ms: int) -> Record: ...

    def from_record(self, record: Record) -> ChangeT | None:
        """Read a record back, None if it is for another coordinator; `CorruptRecords` if none wrote it."""


class KeyedChange(Protocol):
    """A key, and its new value or None where it is gone: of each key the last change counts."""

    @property
    def key(self) -> Any: ...
    @property
    def value(self) -> Any: ...


KeyedT = TypeVar("KeyedT", bound=KeyedChange)


class KeyedFormat(Generic[KeyedT]):
    """Changes as records of a compacted topic. ``values`` tells by the type of a key which type its value has.

    Keys are tagged with what they are about. ``is_other`` recognises keys of another feature that shares the topic.
    """

    def __init__(
        self,
        make: Callable[[Any, Any], KeyedT],
        values: Mapping[type[msgspec.Struct], type[msgspec.Struct]],
        what: str,
        *,
        codec: Any = msgspec.json,
        is_other: Callable[[bytes | None], bool] | None = None,
    ) -> None:
        self._make = make
        self._what = what
        self._is_other = is_other
        self._encode = codec.Encoder().encode
        self._keys = codec.Decoder(Union[tuple(values)])  # noqa: UP007 - as many as there are
        self._values = {key: codec.Decoder(value) for key, value in values.items()}

    def to_record(self, change: KeyedT, offset: int, at_ms: int) -> Record:
        value = None if change.value is None else self._encode(change.value)
        return Record(offset, at_ms, self._encode(change.key), value, ())

    def from_record(self, record: Record) -> KeyedT | None:
        if self._is_other is not None and self._is_other(record.key):
            return None
        try:
            key = self._keys.decode(record.key or b"")
            return self._make(key, None if record.value is None else self._values[type(key)].decode(record.value))
        except msgspec.MsgspecError as error:
            raise CorruptRecords(f"Record {record.offset} is not about {self._what}: {error}") from error


class PartitionJournal(Generic[ChangeT]):
    """A partition of an internal topic as a journal."""

    def __init__(self, partition: Partition, form: Format[ChangeT], *, syncs: bool) -> None:
        self.partition = partition
        self._form = form
        self._syncs = syncs

    @property
    def end_offset(self) -> int:
        return self.partition.log.end_offset

    def append(self, changes: Sequence[ChangeT], at_ms: int, producer: ProducerIdentity | None = None) -> int:
        batch = memoryview(self.encode(changes, at_ms, producer))
        return self.partition.append(batch, at_ms, is_durable=self._syncs, is_internal=True).next_offset

    def encode(self, changes: Sequence[ChangeT], at_ms: int, producer: ProducerIdentity | None = None) -> bytearray:
        """Changes as a batch."""
        records = [self._form.to_record(change, at, at_ms) for at, change in enumerate(changes)]
        size = sum(len(record.value or b"") for record in records)
        codec = Codec.ZSTD if size >= _COMPRESS_FROM_BYTES else Codec.NONE
        if producer is None:
            return encode_batch(records, codec=codec)
        return encode_batch(
            records, codec=codec, producer_id=producer.producer_id, producer_epoch=producer.epoch, is_transactional=True
        )

    def when_committed(self, offset: int, done: Callable[[PenstockError | None], None]) -> None:
        self.partition.when_committed(offset, done)

    def replay(self) -> Iterator[Written[ChangeT] | Decided]:
        for _, entry in self.read():
            yield entry

    def read(self) -> Iterator[tuple[int, Written[ChangeT] | Decided]]:
        """All that is there, with its offset."""
        stored = self.partition.log
        for batch in stored.batches(stored.start_offset):
            data = memoryview(batch.read())
            header = parse_header(data)
            if header.is_control:
                yield header.base_offset, Decided(header.producer_id, read_marker(data).is_commit)
                continue
            producer_id = header.producer_id if header.is_transactional else -1
            for record in decode_records(data):
                if record.offset < stored.start_offset:
                    continue
                try:
                    change = self._form.from_record(record)
                except CorruptRecords as error:  # one record of another writer must not hold up the rest
                    log.error("%s is left out: %s", self.partition.id, error.message)
                    continue
                if change is not None:
                    self.note(change, record.offset)
                    yield record.offset, Written(change, record.timestamp, producer_id)

    def note(self, change: ChangeT, offset: int) -> None:
        """A change was found in the log, for journals that remember where changes are."""
