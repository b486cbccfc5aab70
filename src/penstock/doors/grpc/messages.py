"""Messages as the definitions have them, and the way between those and the broker's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message as ProtocolBuffer

from penstock.doors.grpc.fields import INT32_MAX, duration_ms, instant, timestamp_ms, whole
from penstock.doors.grpc.statuses import InvalidArgument, error_of
from penstock.errors import InvalidRequest, PenstockError
from penstock.features.messages.delays import LaterOutcome, ScheduledAt, due_of
from penstock.features.messages.publishing import OutgoingMessage, PublishedAt
from penstock.features.queues.leases import LeasedRecord
from penstock.grpc.generated import message_pb2, messages_pb2, queues_pb2
from penstock.priorities import priority_of, with_priority
from penstock.records import Record
from penstock.records.batch import Headers

BATCH_MESSAGES_MAX: Final = 10_000
_QUICK_PARTS: Final = 2_000  # messages and headers, of which each takes a few microseconds

T = TypeVar("T", Record, LeasedRecord)
V = TypeVar("V", bound=ProtocolBuffer)


def messages_of(messages: Sequence[message_pb2.Message], now_ms: int, field: str = "messages") -> list[OutgoingMessage]:
    """The broker's messages."""
    if not 1 <= len(messages) <= BATCH_MESSAGES_MAX:
        raise InvalidArgument(f"{field} has {len(messages)} entries; it takes 1 to {BATCH_MESSAGES_MAX}.")
    return [message_of(message, f"{field}[{at}]", now_ms) for at, message in enumerate(messages)]


def message_of(message: message_pb2.Message, field: str, now_ms: int) -> OutgoingMessage:
    """The broker's message; ``field`` names its place in the request, for errors."""
    return OutgoingMessage(
        key=message.key if message.HasField("key") else None,
        value=message.value if message.HasField("value") else None,
        headers=_prioritized(message, field),
        partition=(
            whole(message.partition, f"{field}.partition", high=INT32_MAX) if message.HasField("partition") else None
        ),
        timestamp_ms=(timestamp_ms(message.timestamp, f"{field}.timestamp") if message.HasField("timestamp") else None),
        due_ms=_due_of(message, field, now_ms),
        schedule_id=message.schedule_id,
    )


def _due_of(message: message_pb2.Message, field: str, now_ms: int) -> int | None:
    delay_ms, deliver_at_ms = None, None
    if message.HasField("delay"):
        delay_ms = duration_ms(message.delay, f"{field}.delay")
    if message.HasField("deliver_at"):
        deliver_at_ms = timestamp_ms(message.deliver_at, f"{field}.deliver_at")
    if delay_ms is None and deliver_at_ms is None and message.schedule_id:
        raise InvalidArgument(f"{field}.schedule_id goes with delay or deliver_at.")
    return due_of(delay_ms, deliver_at_ms, now_ms, (f"{field}.delay", f"{field}.deliver_at"))


def _prioritized(message: message_pb2.Message, field: str) -> Headers:
    headers = _headers_of(message.headers) if message.headers else ()
    if not message.priority:
        return headers
    try:
        return with_priority(headers, message.priority)
    except InvalidRequest as error:
        raise InvalidArgument(f"{field}.priority: {error.message}") from None


def _headers_of(headers: Sequence[message_pb2.Header]) -> Headers:
    return tuple((header.name, header.value if header.HasField("value") else None) for header in headers)


def headers_view(headers: Headers) -> list[message_pb2.Header]:
    return [message_pb2.Header(name=name, value=value) for name, value in headers]


def receipt_view(published: PublishedAt) -> message_pb2.Receipt:
    topic, partition, offset, milliseconds = published
    return message_pb2.Receipt(topic=topic, partition=partition, offset=offset, timestamp=instant(milliseconds))


def scheduled_view(scheduled: ScheduledAt) -> message_pb2.ScheduledReceipt:
    topic, schedule_id, due_ms = scheduled
    return message_pb2.ScheduledReceipt(topic=topic, schedule_id=schedule_id, due=instant(due_ms))


def result_view(outcome: LaterOutcome) -> messages_pb2.PublishResult:
    if isinstance(outcome, PenstockError):
        return messages_pb2.PublishResult(error=error_of(outcome))
    if isinstance(outcome, ScheduledAt):
        return messages_pb2.PublishResult(scheduled=scheduled_view(outcome))
    return messages_pb2.PublishResult(receipt=receipt_view(outcome))


def stored_view(topic: str, partition: int, record: Record) -> message_pb2.StoredMessage:
    return message_pb2.StoredMessage(
        topic=topic,
        partition=partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=headers_view(record.headers) if record.headers else None,
        timestamp=instant(record.timestamp),
        priority=priority_of(record.headers),
    )


async def views_of(view: Callable[[T], V], messages: Sequence[T]) -> list[V]:
    """Messages as an answer has them, made in a thread if they are so many, or have so many headers, that it takes."""
    if sum(map(_parts_of, messages)) <= _QUICK_PARTS:
        return list(map(view, messages))
    return await asyncio.to_thread(lambda: list(map(view, messages)))


def _parts_of(message: Record | LeasedRecord) -> int:
    return 1 + len(message.headers)


def leased_view(message: LeasedRecord) -> queues_pb2.LeasedMessage:
    return queues_pb2.LeasedMessage(
        receipt=message.receipt,
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        key=message.key,
        value=message.value,
        headers=headers_view(message.headers) if message.headers else None,
        timestamp=instant(message.timestamp_ms),
        delivery_count=message.delivery_count,
        lease_expire_time=instant(message.lease_until_ms),
        priority=priority_of(message.headers),
    )
