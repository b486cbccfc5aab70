"""Messages as JSON has them, and the way between those and the broker's.

Text is text where it is valid UTF-8, and has a ``*_base64`` twin where it is not. A JSON value that is not a string is
kept as its own compact text: numbers stay as they were written, members in their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.broker.delays import LaterOutcome, Scheduled, due_of
from penstock.broker.publishing import Message, Published
from penstock.broker.reading import ReadResult
from penstock.errors import InvalidRequest, PenstockError
from penstock.http.problems import InvalidBody, Problem, problem_of
from penstock.priorities import NORMAL, PRIORITIES, PRIORITY_HEADER, lane_of_headers, with_priority
from penstock.records import Record
from penstock.records.batch import Headers

BATCH_MESSAGES_MAX: Final = 10_000

HeaderText = dict[str, str | list[str | None] | None]
HeaderBytes = dict[str, bytes | list[bytes | None] | None]
Instant = Annotated[datetime, Meta(tz=True)]
PartitionIndex = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Priority = Annotated[
    str | None,
    Meta(
        description="critical, high, normal, low or background, where a queue group has lanes; kept as the header "
        f"{PRIORITY_HEADER}. Without it, normal.",
        extra_json_schema={"enum": [*PRIORITIES, None]},
    ),
]
DelayMs = Annotated[
    Annotated[int, Meta(ge=0)] | None, Meta(description="Have it in its topic so many milliseconds from now.")
]
DeliverAt = Annotated[
    Annotated[int, Meta(ge=0)] | Instant | None,
    Meta(description="Have it in its topic then: RFC 3339, or milliseconds since 1970. What is past is now."),
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_JSON_NULL: Final = b"null"
_QUOTE: Final = ord('"')


class PublishRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to publish. One of `value` and `value_base64` is needed."""

    key: Annotated[str | None, Meta(description="Messages of one key go to one partition and keep their order.")] = None
    key_base64: Annotated[bytes | None, Meta(description="A key that is not text.")] = None
    value: Annotated[
        msgspec.Raw,
        Meta(
            description="A string is stored as its UTF-8 text, null as no value (a tombstone where the topic is "
            "compacted), any other JSON value as its compact JSON text."
        ),
    ] = msgspec.field(default_factory=msgspec.Raw)
    value_base64: Annotated[bytes | None, Meta(description="A value that is not text.")] = None
    headers: Annotated[HeaderText, Meta(description="Name to text, or to a list of texts where a name repeats.")] = {}
    headers_base64: Annotated[HeaderBytes, Meta(description="Headers whose values are not text.")] = {}
    partition: Annotated[PartitionIndex | None, Meta(description="Without it the partitioner chooses.")] = None
    timestamp: Annotated[Instant | None, Meta(description="When it happened; without it, now.")] = None
    priority: Priority = None
    delay_ms: DelayMs = None
    deliver_at: DeliverAt = None
    schedule_id: Annotated[
        str, Meta(description="What a message for later is called until then; the same id is scheduled once only.")
    ] = ""


class PublishReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message is, now that it is safe. One for later has `schedule_id` and `due` instead of a place."""

    topic: str
    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    timestamp: Instant | UnsetType | None = UNSET
    schedule_id: str | UnsetType = UNSET
    due: Instant | UnsetType | None = UNSET


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages to publish together, in order."""

    messages: Annotated[list[PublishRequest], Meta(min_length=1, max_length=BATCH_MESSAGES_MAX)]


class BatchItem(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one message of a batch: where it is, what it is called until it is due, or its error."""

    topic: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    timestamp: Instant | UnsetType | None = UNSET
    schedule_id: str | UnsetType = UNSET
    due: Instant | UnsetType | None = UNSET
    error: Problem | UnsetType = UNSET


class BatchReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each message, in the order they were sent."""

    results: list[BatchItem]
    published: int
    failed: int


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it lies in its partition. Of each pair of twins one is there."""

    offset: int
    timestamp: Instant | None
    key: str | UnsetType | None = UNSET
    key_base64: bytes | UnsetType = UNSET
    value: str | UnsetType | None = UNSET
    value_base64: bytes | UnsetType = UNSET
    headers: HeaderText = {}
    headers_base64: HeaderBytes | UnsetType = UNSET
    priority: Annotated[str | UnsetType, Meta(description="Where it is not normal.")] = UNSET


class DeliveredMessage(MessageView, frozen=True, kw_only=True):
    """A message and where it lies."""

    topic: str
    partition: int


class MessagesPage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one partition; read on from `next_offset`."""

    topic: str
    partition: int
    messages: list[MessageView]
    next_offset: int
    high_watermark: int
    log_start_offset: int


# -- in ----------------------------------------------------------------------------------------------------------------


def message_of(request: PublishRequest, now_ms: int, where: str = "$") -> Message:
    """The broker's message; ``where`` names the request's place in the body, for errors."""
    headers = _headers_of(request) if request.headers or request.headers_base64 else ()
    if request.priority is not None:
        headers = prioritized(headers, request.priority, where)
    due_ms = None
    if request.delay_ms is not None or request.deliver_at is not None or request.schedule_id:
        due_ms = _due_of(request, now_ms, where)
    return Message(
        key=_key_of(request, where),
        value=_value_of(request, where),
        headers=headers,
        partition=request.partition,
        timestamp_ms=None if request.timestamp is None else to_ms(request.timestamp),
        due_ms=due_ms,
        schedule_id=request.schedule_id,
    )


def prioritized(headers: Headers, priority: str, where: str) -> Headers:
    """Headers with a priority among them."""
    try:
        return with_priority(headers, priority)
    except InvalidRequest as error:
        raise InvalidBody(f"{error.message.rstrip('.')} - at `{where}.priority`.") from None


def _due_of(request: PublishRequest, now_ms: int, where: str) -> int | None:
    if request.delay_ms is None and request.deliver_at is None:
        raise InvalidBody(f"schedule_id goes with delay_ms or deliver_at - at `{where}`.")
    try:
        return due_of(request.delay_ms, moment_ms(request.deliver_at), now_ms)
    except InvalidRequest as error:
        raise InvalidBody(f"{error.message.rstrip('.')} - at `{where}`.") from None


def moment_ms(moment: int | datetime | None) -> int | None:
    """A moment as JSON tells it, in milliseconds since 1970."""
    return to_ms(moment) if isinstance(moment, datetime) else moment


def _key_of(request: PublishRequest, where: str) -> bytes | None:
    if request.key is None:
        return request.key_base64
    if request.key_base64 is not None:
        raise InvalidBody(f"Give key or key_base64, not both - at `{where}`.")
    return request.key.encode()


def _value_of(request: PublishRequest, where: str) -> bytes | None:
    raw = bytes(request.value)
    if request.value_base64 is not None:
        if raw:
            raise InvalidBody(f"Give value or value_base64, not both - at `{where}`.")
        return request.value_base64
    if not raw:
        raise InvalidBody(
            f'A message needs value or value_base64; to publish a message without a value, say "value": null - at '
            f"`{where}`."
        )
    if raw == _JSON_NULL:
        return None
    try:
        if raw[0] == _QUOTE:
            return msgspec.json.decode(raw, type=str).encode()
        raw.decode()
        return msgspec.json.format(raw, indent=-1)
    except (ValueError, RecursionError):
        raise InvalidBody(f"The value is not valid JSON in UTF-8 - at `{where}.value`.") from None


def _headers_of(request: PublishRequest) -> Headers:
    headers: list[tuple[str, bytes | None]] = []
    for name, text in request.headers.items():
        texts = text if isinstance(text, list) else [text]
        headers += [(name, None if item is None else item.encode()) for item in texts]
    for name, data in request.headers_base64.items():
        binaries = data if isinstance(data, list) else [data]
        headers += [(name, item) for item in binaries]
    return tuple(headers)


# -- out ---------------------------------------------------------------------------------------------------------------


def receipt_of(outcome: Published | Scheduled) -> PublishReceipt:
    if isinstance(outcome, Scheduled):
        return PublishReceipt(topic=outcome.topic, schedule_id=outcome.schedule_id, due=instant(outcome.due_ms))
    topic, partition, offset, timestamp_ms = outcome
    return PublishReceipt(topic=topic, partition=partition, offset=offset, timestamp=instant(timestamp_ms))


def item_of(outcome: LaterOutcome, path: str) -> BatchItem:
    if isinstance(outcome, PenstockError):
        return BatchItem(error=problem_of(outcome, path))
    if isinstance(outcome, Scheduled):
        return BatchItem(topic=outcome.topic, schedule_id=outcome.schedule_id, due=instant(outcome.due_ms))
    topic, partition, offset, timestamp_ms = outcome
    return BatchItem(topic=topic, partition=partition, offset=offset, timestamp=instant(timestamp_ms))


def page_of(topic: str, partition: int, result: ReadResult) -> MessagesPage:
    return MessagesPage(
        topic=topic,
        partition=partition,
        messages=[view_of(record) for record in result.messages],
        next_offset=result.next_offset,
        high_watermark=result.high_watermark,
        log_start_offset=result.log_start_offset,
    )


def view_of(record: Record) -> MessageView:
    key, key_base64 = _twins(record.key)
    value, value_base64 = _twins(record.value)
    texts: HeaderText = {}
    binaries: HeaderBytes = {}
    for name, values in _grouped(record.headers):
        decoded = [_text(item) for item in values]
        if UNSET in decoded:
            binaries[name] = values[0] if len(values) == 1 else values
        else:
            texts[name] = decoded[0] if len(decoded) == 1 else decoded  # type: ignore[assignment]
    return MessageView(
        offset=record.offset,
        timestamp=instant(record.timestamp),
        key=key,
        key_base64=key_base64,
        value=value,
        value_base64=value_base64,
        headers=texts,
        headers_base64=binaries or UNSET,
        priority=_priority_of(record.headers) if record.headers else UNSET,
    )


def _priority_of(headers: Headers) -> str | UnsetType:
    lane = lane_of_headers(headers)
    return UNSET if lane == NORMAL else PRIORITIES[lane]


def instant(timestamp_ms: int) -> datetime | None:
    """The instant, or None where the producer gave none or one that no calendar has."""
    if timestamp_ms < 0:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None


def to_ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _twins(data: bytes | None) -> tuple[str | UnsetType | None, bytes | UnsetType]:
    text = _text(data)
    if text is UNSET:
        assert data is not None
        return UNSET, data
    return text, UNSET


def _text(data: bytes | None) -> str | UnsetType | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return UNSET


def _grouped(headers: Headers) -> Iterable[tuple[str, list[bytes | None]]]:
    groups: dict[str, list[bytes | None]] = {}
    for name, value in headers:
        groups.setdefault(name, []).append(value)
    return groups.items()
