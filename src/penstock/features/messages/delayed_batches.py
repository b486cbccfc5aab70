"""Delayed records in batches that are stored as they came: Kafka producers say in headers when to deliver a record.

Only topics that allow it (``delay.headers.enable``) are checked, and of their batches only those whose bytes contain
the name of such a header are decoded. Delayed records go into the schedule log. The rest of their batch is appended
with the offsets, the sequence numbers and the producer that it had, so that the offsets in the response are true and
the partition still recognises duplicates. A batch of delayed records only leaves a gap (`penstock.records.control`) if
it has sequence numbers, and nothing if not.

The batch is appended and committed before its records are scheduled, and they are scheduled before its producer is
answered. So a refused batch has scheduled nothing; and when a batch is sent again, the partition knows which records it
lacks, even if they have come due since. Those are scheduled unless they were before: a record with a sequence number
has an id made of it, which the schedule log keeps until delivery, and the partition from then on.
See docs/decisions/0027-append-before-scheduling.md.

Batches that are slow to append as they came, prepared in a thread first.

A topic may check the records of its batches, store them with another codec, or let producers delay them. Each takes
much longer than writing the batch: a megabyte may hold a million records. So a caller on the event loop has such
batches prepared here, and appends them afterwards; `Partition.append` still checks what comes out, but for its records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from penstock.errors import (
    CorruptRecords,
    InvalidRecord,
    InvalidRequest,
    PenstockError,
    RequestTimedOut,
    ScheduleNotFound,
)
from penstock.features.messages.delays import due_of, later_message
from penstock.features.messages.publishing import OutgoingMessage
from penstock.features.schedules.leading.firing import ID_HEADER
from penstock.features.schedules.messages import PlacedSchedule, ScheduleRequest
from penstock.features.schedules.records import ScheduledMessage, StoredSchedule
from penstock.features.transactions.messages import Where
from penstock.partitions.beside import beside
from penstock.partitions.partition import EXPANSION_MAX, Batches, Partition, check_records, looks_at_records
from penstock.records import (
    BatchHeader,
    Record,
    accept_batch,
    decode_records,
    encode_gap,
    filter_batch,
    is_quick_to_decode,
    iter_batches,
    parse_header,
    recompress_batch,
)
from penstock.records.batch import open_batch
from penstock.records.header import CODEC_MASK, HEADER_BYTES
from penstock.records.varint import INT32_MAX

DELAY_HEADER: Final = "penstock-delay-ms"
MOMENT_HEADER: Final = "penstock-deliver-at"

_NAMES: Final = frozenset({DELAY_HEADER, MOMENT_HEADER})
_SOUGHT: Final = (DELAY_HEADER.encode(), MOMENT_HEADER.encode())
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_DIGITS_MAX: Final = 18
_SHOWN_BYTES: Final = 60
_PIECE_BYTES: Final = 1024 * 1024
_EVERY: Final = range(INT32_MAX + 1)  # places of records in any batch


class ScheduleLog(Protocol):
    """What is needed of the schedule log."""

    def check(self, schedules: Sequence[ScheduleRequest]) -> None: ...
    async def add(self, schedules: Sequence[ScheduleRequest]) -> list[PlacedSchedule]: ...
    async def show(self, schedule_id: str) -> StoredSchedule: ...


class DelayedBatch(NamedTuple):
    """A batch with delayed records, and what is left of it to append, if anything."""

    partition: Partition
    schedules: Sequence[ScheduleRequest]
    rest: bytearray | None
    stored_at: int | None = None  # where the batch is, if it was appended before

    @property
    def first_id(self) -> str:
        """The id of the first delayed record; empty if the batch has no sequence numbers."""
        return self.schedules[0].id

    def is_current(self, batch: memoryview) -> bool:
        """Whether the batch is still stored where it was when this was found, or still is not."""
        with suppress(PenstockError):
            return _stored_at(self.partition, parse_header(batch)) == self.stored_at
        return False


Finding = DelayedBatch | PenstockError | None  # what is delayed of a batch, or why it is refused


def find_delayed(partition: Partition, batch: memoryview, now_ms: int) -> Finding:
    """The delayed records of a batch, or what is wrong with its delay headers; other errors are left to the append."""
    if not partition.settings.has_delay_headers or partition.is_internal:
        return None
    try:
        return delayed_of(partition, batch, now_ms)
    except (InvalidRequest, RequestTimedOut) as error:
        return error
    except PenstockError:
        return None


def delayed_of(partition: Partition, batch: memoryview, now_ms: int) -> DelayedBatch | None:
    """The delayed records of a batch; None if it has none."""
    partition.check_leader()
    settings = partition.settings
    if len(batch) > settings.max_message_bytes:
        return None  # the append will be refused
    header = accept_batch(batch)
    _, data = open_batch(batch, EXPANSION_MAX * settings.max_message_bytes)
    if not any(name in data for name in _SOUGHT):
        return None
    records = decode_records(batch)
    dues = {
        at: _due_of(record, at, now_ms)
        for at, record in enumerate(records)
        if any(name in _NAMES for name, _ in record.headers)
    }
    if not dues or (settings.log.is_compacting and any(record.key is None for record in records)):
        return None
    stored_at = _stored_at(partition, header)
    if stored_at is None:
        later = {at: due_ms for at, due_ms in dues.items() if due_ms is not None}
    else:  # decided when the batch first came; records may have come due since
        stored = _stored_in(partition, stored_at)
        later = {at: due_ms or now_ms for at, due_ms in dues.items() if at not in stored}
    if not later:
        return None
    if header.is_transactional:
        raise InvalidRecord(
            f"Records of a transaction cannot be delayed: leave out {DELAY_HEADER} and {MOMENT_HEADER}, or send such "
            "records with a producer that has no transactional id."
        )
    schedules = [
        ScheduleRequest(message=_message(partition, records[at]), id=_id_of(partition, header, at), due_ms=due_ms)
        for at, due_ms in later.items()
    ]
    rest = None if stored_at is not None else _rest_of(batch, header, frozenset(later))
    return DelayedBatch(partition, schedules, rest, stored_at)


def _stored_at(partition: Partition, header: BatchHeader) -> int | None:
    """Where a batch is, if it has sequence numbers and was appended before."""
    return partition.log.producers.check(header) if header.is_idempotent else None


def _rest_of(batch: memoryview, header: BatchHeader, later: frozenset[int]) -> bytearray | None:
    """What is left of a batch without its delayed records, given by their places in it."""
    if len(later) == header.count:
        return encode_gap(header) if header.is_idempotent else None
    return filter_batch(batch, lambda record: record.offset - header.base_offset not in later)


def _stored_in(partition: Partition, offset: int) -> Container[int]:
    """Which records of a batch, by their places in it, are in the partition: all of them if it has been deleted."""
    log = partition.log
    if offset < log.start_offset:
        return _EVERY
    try:
        found = log.read(offset, 1, log.end_offset)
        batch = b"" if found is None else bytes(found.read())
        header = parse_header(batch)
        if header.base_offset != offset:
            raise CorruptRecords(f"Offset {offset} of {partition.id} is damaged.")
        records = () if header.is_gap else decode_records(batch[: header.size])
    except PenstockError as error:
        raise RequestTimedOut(f"What is stored of this batch cannot be read now: {error.message}") from None
    return frozenset(record.offset - offset for record in records)


def _message(partition: Partition, record: Record) -> ScheduledMessage:
    """The record as it is to be delivered: without its delay headers, so that a copy is not delayed again."""
    headers = tuple((name, value) for name, value in record.headers if name not in _NAMES)
    topic, index = partition.id
    return later_message(topic, OutgoingMessage(key=record.key, value=record.value, headers=headers, partition=index))


def _id_of(partition: Partition, header: BatchHeader, at: int) -> str:
    if not header.is_idempotent:
        return ""
    sequence = (header.base_sequence + at) & INT32_MAX
    place = f"{partition.topic_id.hex}:{partition.id.partition}"
    return f"kafka:{place}:{header.producer_id}:{header.producer_epoch}:{sequence}"


def _due_of(record: Record, at: int, now_ms: int) -> int | None:
    """When a record is to be delivered, None if that is now."""
    given: dict[str, bytes | None] = {}
    for name, value in record.headers:
        if name in _NAMES:
            if name in given:
                raise InvalidRecord(f"Record {at} has header {name} more than once; give it once.")
            given[name] = value
    delay_ms = deliver_at_ms = None
    if DELAY_HEADER in given:
        delay_ms = _delay_ms(given[DELAY_HEADER], at)
    if MOMENT_HEADER in given:
        deliver_at_ms = _moment_ms(given[MOMENT_HEADER], at)
    try:
        return due_of(delay_ms, deliver_at_ms, now_ms, (DELAY_HEADER, MOMENT_HEADER))
    except InvalidRequest as error:
        raise InvalidRecord(f"Record {at}: {error.message}") from None


def _delay_ms(value: bytes | None, at: int) -> int:
    if value is None or not value.isdigit() or len(value) > _DIGITS_MAX:
        raise InvalidRecord(
            f"Header {DELAY_HEADER} of record {at} is {_shown(value)}; give milliseconds as text, such as 5000."
        )
    return int(value)


def _moment_ms(value: bytes | None, at: int) -> int:
    if value is not None and value.isdigit() and len(value) <= _DIGITS_MAX:
        return int(value)
    try:
        moment = datetime.fromisoformat((value or b"").decode("ascii"))
        if moment.tzinfo is None:
            raise ValueError("no time zone")
        return max((moment - _EPOCH) // _MILLISECOND, 0)
    except (ValueError, OverflowError):
        raise InvalidRecord(
            f"Header {MOMENT_HEADER} of record {at} is {_shown(value)}; give milliseconds since 1970 as text, or a "
            "time with its zone, such as 2026-01-31T12:00:00Z."
        ) from None


def _shown(value: bytes | None) -> str:
    return "empty" if not value else repr(value[:_SHOWN_BYTES].decode("utf-8", "replace"))


class DelayedBatches:
    """Finds the delayed records of batches, and schedules each once when its batch is in its partition."""

    def __init__(self, find: Callable[[str, int], Partition], schedules: ScheduleLog) -> None:
        self._find = find
        self._schedules = schedules
        # Batches whose records are being scheduled, by the id of the first of these: one that is sent again waits too.
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def find(
        self,
        batches: Batches,
        now_ms: int,
        *,
        is_acks_all: bool,
        findings: Mapping[Where, Finding] = MappingProxyType({}),
    ) -> tuple[dict[Where, DelayedBatch], dict[Where, PenstockError]]:
        """The batches of a request that have delayed records, and why others are refused.

        ``findings`` are those of batches that were prepared in a thread; they are not decoded again. What is found is
        kept by partition, so delayed records are refused where the request has two batches for their partition.
        """
        found: dict[Where, DelayedBatch] = {}
        refused: dict[Where, PenstockError] = {}
        named: set[Where] = set()
        for name, partitions in batches:
            for index, batch in partitions:
                where = name, index
                if batch is None:
                    continue
                is_named_again = where in named
                named.add(where)
                try:
                    partition = self._find(name, index)
                    finding = findings[where] if where in findings else find_delayed(partition, batch, now_ms)
                    if isinstance(finding, PenstockError):
                        refused[where] = finding
                    elif is_named_again and (finding is not None or where in found):
                        found.pop(where, None)
                        refused[where] = InvalidRequest(
                            f"The request has two batches for {name}-{index}, and delayed records in them. Send one "
                            "batch for each partition."
                        )
                    elif finding is not None and where not in refused:
                        self._check(finding, batch, is_acks_all=is_acks_all)
                        found[where] = finding
                except (InvalidRequest, RequestTimedOut) as error:
                    refused[where] = error
                except PenstockError:
                    continue  # the append will be refused
        return found, refused

    def _check(self, delayed: DelayedBatch, batch: memoryview, *, is_acks_all: bool) -> None:
        """Refuse a batch that cannot be appended or scheduled now."""
        if is_acks_all:
            delayed.partition.check_in_sync()
        if not delayed.is_current(batch):
            raise RequestTimedOut("This batch was sent over another connection at the same time. Try again.")
        self._schedules.check(delayed.schedules)

    async def schedule(self, delayed: DelayedBatch, end_offset: int, timeout_ms: int) -> PenstockError | None:
        """Schedule records of a batch once it is committed up to its end; what kept them out of the log, if anything.

        On a timeout this goes on in the background, and the producer is told to try again.
        """
        task = self._under_way.get(delayed.first_id)
        if task is None:
            task = asyncio.ensure_future(self._schedule(delayed, end_offset))
            if delayed.first_id:
                self._under_way[delayed.first_id] = task
                task.add_done_callback(lambda _: self._under_way.pop(delayed.first_id, None))
        await asyncio.wait((task,), timeout=max(timeout_ms, 1) / 1000)
        if not task.done():
            return RequestTimedOut("The delayed records were not written to the schedule log in time. Try again.")
        error = task.exception()
        if error is None:
            return None
        if not isinstance(error, PenstockError):
            raise error
        if error.retriable:  # not with a code that means that nothing was appended
            return RequestTimedOut(f"The schedule log cannot be written to now: {error.message}")
        return error

    async def _schedule(self, delayed: DelayedBatch, end_offset: int) -> None:
        await _committed(delayed.partition, end_offset)
        schedules = delayed.schedules
        if delayed.stored_at is not None:
            schedules = await self._unscheduled(delayed, delayed.stored_at)
        if schedules:
            await self._schedules.add(schedules)

    async def _unscheduled(self, delayed: DelayedBatch, stored_at: int) -> Sequence[ScheduleRequest]:
        """What of a batch that was appended before was not scheduled then.

        First what waits, then what has come: a record is in its partition before the schedule log forgets its id.
        """
        waiting = await asyncio.gather(*(self._is_waiting(new.id) for new in delayed.schedules))
        unknown = [new for new, is_waiting in zip(delayed.schedules, waiting, strict=True) if not is_waiting]
        if not unknown:
            return ()
        producer = delayed.first_id.rpartition(":")[0] + ":"
        delivered = await _delivered_ids(delayed.partition, stored_at, producer)
        return [new for new in unknown if new.id not in delivered]

    async def _is_waiting(self, schedule_id: str) -> bool:
        try:
            await self._schedules.show(schedule_id)
        except ScheduleNotFound:
            return False
        return True


async def _committed(partition: Partition, offset: int) -> None:
    """Return once everything before an offset is committed."""
    error = await partition.committed(offset)
    if error is not None:
        raise error


async def _delivered_ids(partition: Partition, offset: int, prefix: str) -> frozenset[str]:
    """The ids of delivered records from an offset on, of those that begin with ``prefix``.

    Reads to the end of the log, past the high watermark, which a new leader may not know yet.
    """
    sought, log = prefix.encode(), partition.log
    found: set[str] = set()
    offset = max(offset, log.start_offset)
    while (piece := log.read(offset, _PIECE_BYTES, log.end_offset)) is not None:
        data = bytes(piece.read())
        for position, header in iter_batches(data):
            offset = header.next_offset
            batch = data[position : position + header.size]
            if not header.is_control and (header.codec or sought in batch):
                found.update(await beside(batch, partial(_ids_of, batch, sought)))
        await asyncio.sleep(0)
    return frozenset(found)


def _ids_of(batch: bytes, sought: bytes) -> list[str]:
    return [
        value.decode()
        for record in decode_records(batch)
        for name, value in record.headers
        if name == ID_HEADER and value is not None and value.startswith(sought)
    ]


_INLINE_BYTES: Final = 4 * 1024
_ATTRIBUTES_AT: Final = 22  # the lower byte of a batch's attributes
_ATTEMPTS_MAX: Final = 5


def is_slow(partition: Partition, batch: memoryview, now_ms: int) -> bool:
    """Whether a batch has to be decoded or recompressed, and is too large for the event loop."""
    settings = partition.settings
    if not HEADER_BYTES <= len(batch) <= settings.max_message_bytes:
        return False  # the append will be refused
    codec, its_codec = settings.compression.codec, batch[_ATTRIBUTES_AT] & CODEC_MASK
    if codec is not None and its_codec != codec and len(batch) > _INLINE_BYTES:
        return True
    if not its_codec and len(batch) <= _INLINE_BYTES:
        return False
    try:
        if not settings.has_delay_headers and not looks_at_records(parse_header(batch), settings, now_ms):
            return False
        return not is_quick_to_decode(batch)
    except PenstockError:
        return False  # the append will be refused


def find_slow(find: Callable[[str, int], Partition], batches: Batches, now_ms: int) -> dict[Where, Partition]:
    """The partitions whose batches are to be prepared; those whose append will be refused anyway are left out."""
    found: dict[Where, Partition] = {}
    for name, partitions in batches:
        for index, batch in partitions:
            if batch is None:
                continue
            try:
                partition = find(name, index)
            except PenstockError:
                continue
            if partition.is_leader and not partition.is_internal and is_slow(partition, batch, now_ms):
                found[name, index] = partition
    return found


class Prepared(NamedTuple):
    """Batches of a request, the slow ones as their topics store them."""

    batches: Batches
    findings: Mapping[Where, Finding]  # for each partition whose batch was prepared


async def prepare(batches: Batches, slow: Mapping[Where, Partition], now_ms: int) -> Prepared:
    """Prepare the batches of these partitions, each in a thread."""
    findings: dict[Where, Finding] = {}
    prepared: list[tuple[str, list[tuple[int, memoryview | None]]]] = []
    for name, partitions in batches:
        of_topic: list[tuple[int, memoryview | None]] = []
        prepared.append((name, of_topic))
        for index, batch in partitions:
            partition = slow.get((name, index))
            if partition is not None and batch is not None:
                batch, finding = await _prepare(partition, batch, now_ms)
                known = findings.get((name, index))  # of a partition that is named twice
                if known is None or isinstance(finding, PenstockError):
                    findings[name, index] = finding
            of_topic.append((index, batch))
    return Prepared(prepared, findings)


async def _prepare(partition: Partition, batch: memoryview, now_ms: int) -> tuple[memoryview, Finding]:
    """The batch as it is to be appended, and the delayed records or the error that were found in it.

    The same batch may have been appended from another connection meanwhile, which decides which of its records are
    still to be scheduled; then this looks again.
    """
    for _ in range(_ATTEMPTS_MAX):
        try:
            prepared, finding = await asyncio.to_thread(_prepare_now, partition, batch, now_ms)
        except PenstockError as error:
            return batch, error
        if not isinstance(finding, DelayedBatch) or finding.is_current(batch):
            return prepared, finding
    return batch, RequestTimedOut("This batch is being sent over several connections at once. Try again.")


def _prepare_now(partition: Partition, batch: memoryview, now_ms: int) -> tuple[memoryview, Finding]:
    settings = partition.settings
    header = accept_batch(batch)
    check_records(batch, header, settings, now_ms)
    finding = find_delayed(partition, batch, now_ms)
    codec = settings.compression.codec
    if finding is None and codec is not None and header.codec is not codec:
        batch = memoryview(recompress_batch(batch, codec, settings.compression.level))
    return batch, finding
