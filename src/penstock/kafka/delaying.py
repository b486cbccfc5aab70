"""Records that a Kafka producer wants delivered later, which it says in their headers.

Only topics that allow it (``delay.headers.enable``) are looked at, and of their batches only those that have the name
of such a header somewhere in their bytes are decoded. The records for later go into the schedule log; what is left of
their batch is appended with the offsets, the sequence numbers and the producer that it had, so that the offsets that
the client is told are true, and the partition goes on to recognise what is sent twice. A batch that is for later as a
whole leaves a gap (`penstock.records.gap`) behind if it is numbered, and nothing if not.

The batch is appended and committed before its records are scheduled, and they are scheduled before its producer is
answered. So a batch that was refused has scheduled nothing; and of one that is sent again the partition knows which
records it lacks, whatever the time is by then. Those are scheduled if they have not been before: a numbered record has
an id made of its number, which the schedule log knows until the record has come, and the partition from then on.
See docs/decisions/0027-append-before-scheduling.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.delays import due_of, later_message
from penstock.broker.partition import EXPANSION_MAX, Partition
from penstock.broker.publishing import Message
from penstock.broker.schedules.messages import New
from penstock.broker.schedules.records import Message as LaterMessage
from penstock.errors import (
    CorruptRecords,
    InvalidRecord,
    InvalidRequest,
    PenstockError,
    RequestTimedOut,
    ScheduleNotFound,
)
from penstock.kafka.delivered import ids_behind
from penstock.kafka.protocol.produce import Produce
from penstock.records import (
    BatchHeader,
    Record,
    accept_batch,
    decode_records,
    encode_gap,
    filter_batch,
    parse_header,
)
from penstock.records.batch import open_batch
from penstock.records.varint import INT32_MAX

DELAY_HEADER: Final = "penstock-delay-ms"
MOMENT_HEADER: Final = "penstock-deliver-at"

_NAMES: Final = frozenset({DELAY_HEADER, MOMENT_HEADER})
_SOUGHT: Final = (DELAY_HEADER.encode(), MOMENT_HEADER.encode())
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_ACKS_ALL: Final = -1
_DIGITS_MAX: Final = 18
_SHOWN_BYTES: Final = 60
_EVERY: Final = range(INT32_MAX + 1)  # places of records in any batch

Where = tuple[str, int]


class Delayed(NamedTuple):
    """A batch of which some records are for later, and what is left of it to be appended, if anything is."""

    partition: Partition
    schedules: Sequence[New]
    rest: bytearray | None
    stored_at: int | None = None  # where the batch is, if it was appended before

    @property
    def first_id(self) -> str:
        """Of the first record that is for later; empty if the batch is not numbered."""
        return self.schedules[0].id


def delayed_in(broker: Broker, request: Produce, now_ms: int) -> dict[Where, Delayed | PenstockError]:
    """The batches of a request that have records for later, and those whose headers make no sense."""
    found: dict[Where, Delayed | PenstockError] = {}
    for name, partitions in request.topics:
        for index, records in partitions:
            try:
                partition = broker.partition(name, index)
                if records is None or not partition.settings.has_delay_headers or partition.is_internal:
                    continue
                if request.acks == _ACKS_ALL:
                    partition.check_in_sync()
                delayed = delayed_of(partition, records, now_ms)
                if delayed is not None:
                    broker.schedules.check(delayed.schedules)
            except (InvalidRequest, RequestTimedOut) as error:
                found[name, index] = error
            except PenstockError:
                continue  # whoever appends will say so
            else:
                if delayed is not None:
                    found[name, index] = delayed
    return found


def delayed_of(partition: Partition, batch: memoryview, now_ms: int) -> Delayed | None:
    """What of a batch is for later; None if nothing is."""
    partition.check_leader()
    settings = partition.settings
    if len(batch) > settings.max_message_bytes:
        return None  # whoever appends will say so
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
    stored_at = partition.log.producers.check(header) if header.is_idempotent else None
    if stored_at is None:
        later = {at: due_ms for at, due_ms in dues.items() if due_ms is not None}
    else:  # what is for later was decided when it came first, and has come due since, perhaps
        stored = _stored_in(partition, stored_at)
        later = {at: due_ms or now_ms for at, due_ms in dues.items() if at not in stored}
    if not later:
        return None
    if header.is_transactional:
        raise InvalidRecord(
            f"Records of a transaction cannot be for later: leave out {DELAY_HEADER} and {MOMENT_HEADER}, or send such "
            "records with a producer that has no transactional id."
        )
    schedules = [
        New(message=_message(partition, records[at]), id=_id_of(partition, header, at), due_ms=due_ms)
        for at, due_ms in later.items()
    ]
    rest = None if stored_at is not None else _rest_of(batch, header, frozenset(later))
    return Delayed(partition, schedules, rest, stored_at)


def _rest_of(batch: memoryview, header: BatchHeader, later: frozenset[int]) -> bytearray | None:
    """What a batch leaves in the partition without its records for later, given by their places in it."""
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


def _message(partition: Partition, record: Record) -> LaterMessage:
    """The record as it is to be delivered: without what delays it, or whoever copies it would delay it again."""
    headers = tuple((name, value) for name, value in record.headers if name not in _NAMES)
    topic, index = partition.id
    return later_message(topic, Message(key=record.key, value=record.value, headers=headers, partition=index))


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


class Placing:
    """Puts the records for later of batches that are in their partition into the schedule log, each once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # Batches whose records are being scheduled, by the id of the first of these: one that is sent again waits too.
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def place(self, delayed: Delayed, end_offset: int, timeout_ms: int) -> PenstockError | None:
        """Schedule records of a batch once it is committed up to its end; what kept them out of the log, if anything.

        If the time is up before, this goes on, and the producer is told to try again.
        """
        task = self._under_way.get(delayed.first_id)
        if task is None:
            task = asyncio.ensure_future(self._place(delayed, end_offset))
            if delayed.first_id:
                self._under_way[delayed.first_id] = task
                task.add_done_callback(lambda _: self._under_way.pop(delayed.first_id, None))
        await asyncio.wait((task,), timeout=max(timeout_ms, 1) / 1000)
        if not task.done():
            return RequestTimedOut("The records for later were not written to the schedule log in time. Try again.")
        error = task.exception()
        if error is None:
            return None
        if not isinstance(error, PenstockError):
            raise error
        if error.retriable:  # not with a code that means that nothing was appended
            return RequestTimedOut(f"The schedule log cannot be written to now: {error.message}")
        return error

    async def _place(self, delayed: Delayed, end_offset: int) -> None:
        await _committed(delayed.partition, end_offset)
        schedules = delayed.schedules
        if delayed.stored_at is not None:
            schedules = await self._unscheduled(delayed, delayed.stored_at)
        if schedules:
            await self._broker.schedules.add(schedules)

    async def _unscheduled(self, delayed: Delayed, stored_at: int) -> Sequence[New]:
        """What of a batch that was appended before was not scheduled then.

        First what waits, then what has come: a record is in its partition before the schedule log forgets its id.
        """
        waiting = await asyncio.gather(*(self._is_waiting(new.id) for new in delayed.schedules))
        unknown = [new for new, is_waiting in zip(delayed.schedules, waiting, strict=True) if not is_waiting]
        if not unknown:
            return ()
        producer = delayed.first_id.rpartition(":")[0] + ":"
        delivered = await ids_behind(delayed.partition, stored_at, producer)
        return [new for new in unknown if new.id not in delivered]

    async def _is_waiting(self, schedule_id: str) -> bool:
        try:
            await self._broker.schedules.show(schedule_id)
        except ScheduleNotFound:
            return False
        return True


async def _committed(partition: Partition, offset: int) -> None:
    """Return once everything before an offset is committed."""
    future: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()

    def done(error: PenstockError | None) -> None:
        if not future.done():
            future.set_result(error)

    partition.when_committed(offset, done)
    error = await future
    if error is not None:
        raise error
