"""Records that a Kafka producer wants delivered later, which it says in their headers.

Only topics that allow it (``delay.headers.enable``) are looked at, and of their batches only those that have the name
of such a header somewhere in their bytes are decoded. The records for later go into the schedule log; what is left of
their batch is appended with the offsets, the sequence numbers and the producer that it had, so that the gaps are like
those that compaction leaves, the offsets that the client is told are true, and the partition goes on to recognise what
is sent twice. A batch that is for later as a whole leaves a bare header behind if it is numbered, and nothing if not.

Schedules are durable before their batch is appended, and the batch is appended before its producer is answered. A
numbered record has an id made of its number, so that a batch sent again is not scheduled again; `Deliveries` knows of
ids that have come.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.delays import due_of, later_message
from penstock.broker.partition import Partition
from penstock.broker.publishing import Message
from penstock.broker.schedules.messages import New
from penstock.broker.schedules.records import Message as LaterMessage
from penstock.errors import InvalidRecord, InvalidRequest, NotEnoughReplicas, PenstockError, RequestTimedOut
from penstock.kafka.delivered import Deliveries
from penstock.kafka.protocol.produce import Produce
from penstock.records import BatchHeader, Record, accept_batch, decode_records, filter_batch
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
_PLACED_MAX: Final = 10_000

Where = tuple[str, int]


class Delayed(NamedTuple):
    """A batch of which some records are for later, and what is left of it to be appended, if anything is."""

    partition: Partition
    first_id: str  # of the first record that is for later; empty if the batch is not numbered
    schedules: Sequence[New]
    rest: bytearray | None


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
            except InvalidRequest as error:
                found[name, index] = error
            except PenstockError:
                continue  # whoever appends will say so
            else:
                if delayed is not None:
                    found[name, index] = delayed
    return found


def delayed_of(partition: Partition, batch: memoryview, now_ms: int) -> Delayed | None:
    """What of a batch is for later; None if nothing is, or if it was sent before."""
    partition.check_leader()
    settings = partition.settings
    if len(batch) > settings.max_message_bytes:
        return None  # whoever appends will say so
    header = accept_batch(batch)
    _, data = open_batch(batch)
    if not any(name in data for name in _SOUGHT):
        return None
    dues: dict[int, int] = {}
    records = decode_records(batch)
    for at, record in enumerate(records):
        if any(name in _NAMES for name, _ in record.headers):
            due_ms = _due_of(record, at, now_ms)
            if due_ms is not None:
                dues[at] = due_ms
    if not dues or (settings.log.is_compacting and any(record.key is None for record in records)):
        return None
    if header.is_transactional:
        raise InvalidRecord(
            f"Records of a transaction cannot be for later: leave out {DELAY_HEADER} and {MOMENT_HEADER}, or send such "
            "records with a producer that has no transactional id."
        )
    if header.is_idempotent and partition.log.producers.check(header) is not None:
        return None  # it was sent before, and only has to be answered
    schedules = [
        New(message=_message(partition, records[at]), id=_id_of(partition, header, at), due_ms=due_ms)
        for at, due_ms in dues.items()
    ]
    later = {records[at].offset for at in dues}
    rest = filter_batch(batch, lambda record: record.offset not in later)
    assert rest is not None, "some records are left out"
    if len(dues) == len(records) and not header.is_idempotent:
        rest = None
    return Delayed(partition, schedules[0].id, schedules, rest)


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
    """Puts delayed records into the schedule log, those of one batch once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._deliveries = Deliveries(broker)
        # Batches by the id of their first record for later. What was placed is remembered for a while, because its
        # batch may still fail to be appended and be sent again when the schedule has come already.
        self._placed: OrderedDict[str, asyncio.Future[None]] = OrderedDict()

    async def place(self, delayed: Delayed, timeout_ms: int) -> PenstockError | None:
        """What kept records out of the schedule log, None if nothing did."""
        task = self._placed.get(delayed.first_id)
        if task is None:
            task = asyncio.ensure_future(self._add(delayed))
            if delayed.first_id:
                self._placed[delayed.first_id] = task
                while len(self._placed) > _PLACED_MAX:
                    self._placed.popitem(last=False)
        await asyncio.wait((task,), timeout=max(timeout_ms, 1) / 1000)
        if not task.done():
            return RequestTimedOut("The records for later were not written to the schedule log in time. Try again.")
        error = task.exception()
        if error is None:
            return None
        self._placed.pop(delayed.first_id, None)
        if not isinstance(error, PenstockError):
            raise error
        if error.retriable:
            return NotEnoughReplicas(f"The schedule log cannot be written to now: {error.message}")
        return error

    async def _add(self, delayed: Delayed) -> None:
        schedules = delayed.schedules
        if delayed.first_id:
            producer = delayed.first_id.rpartition(":")[0] + ":"
            delivered = await self._deliveries.of(delayed.partition, producer)
            schedules = [new for new in schedules if new.id not in delivered]
        if schedules:
            await self._broker.schedules.add(schedules)
