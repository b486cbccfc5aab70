"""Messages as the definitions have them, and the way between those and the broker's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.broker.publishing import Message, Outcome, Published
from penstock.broker.queues.leases import LeasedMessage
from penstock.errors import PenstockError
from penstock.grpc.fields import INT32_MAX, instant, timestamp_ms, whole
from penstock.grpc.generated import message_pb2, messages_pb2, queues_pb2
from penstock.grpc.statuses import InvalidArgument, error_of
from penstock.records import Record
from penstock.records.batch import Headers

BATCH_MESSAGES_MAX: Final = 10_000


def messages_of(messages: Sequence[message_pb2.Message], field: str = "messages") -> list[Message]:
    """The broker's messages."""
    if not 1 <= len(messages) <= BATCH_MESSAGES_MAX:
        raise InvalidArgument(f"{field} has {len(messages)} entries; it takes 1 to {BATCH_MESSAGES_MAX}.")
    return [message_of(message, f"{field}[{at}]") for at, message in enumerate(messages)]


def message_of(message: message_pb2.Message, field: str) -> Message:
    """The broker's message; ``field`` names its place in the request, for errors."""
    return Message(
        key=message.key if message.HasField("key") else None,
        value=message.value if message.HasField("value") else None,
        headers=_headers_of(message.headers) if message.headers else (),
        partition=(
            whole(message.partition, f"{field}.partition", high=INT32_MAX) if message.HasField("partition") else None
        ),
        timestamp_ms=(timestamp_ms(message.timestamp, f"{field}.timestamp") if message.HasField("timestamp") else None),
    )


def _headers_of(headers: Sequence[message_pb2.Header]) -> Headers:
    return tuple((header.name, header.value if header.HasField("value") else None) for header in headers)


def headers_view(headers: Headers) -> list[message_pb2.Header]:
    return [message_pb2.Header(name=name, value=value) for name, value in headers]


def receipt_view(published: Published) -> message_pb2.Receipt:
    topic, partition, offset, milliseconds = published
    return message_pb2.Receipt(topic=topic, partition=partition, offset=offset, timestamp=instant(milliseconds))


def result_view(outcome: Outcome) -> messages_pb2.PublishResult:
    if isinstance(outcome, PenstockError):
        return messages_pb2.PublishResult(error=error_of(outcome))
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
    )


def leased_view(message: LeasedMessage) -> queues_pb2.LeasedMessage:
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
    )
