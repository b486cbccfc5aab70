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

from penstock.broker.publishing import Message, Outcome, Published
from penstock.broker.reading import ReadResult
from penstock.errors import PenstockError
from penstock.http.problems import InvalidBody, Problem, problem_of
from penstock.records import Record
from penstock.records.batch import Headers

BATCH_MESSAGES_MAX: Final = 10_000

HeaderText = dict[str, str | list[str | None] | None]
HeaderBytes = dict[str, bytes | list[bytes | None] | None]
Instant = Annotated[datetime, Meta(tz=True)]
PartitionIndex = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]

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


class PublishReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message is, now that it is safe."""

    topic: str
    partition: int
    offset: int
    timestamp: Instant | None


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages to publish together, in order."""

    messages: Annotated[list[PublishRequest], Meta(min_length=1, max_length=BATCH_MESSAGES_MAX)]


class BatchItem(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one message of a batch: where it is, or the error that kept it out."""

    topic: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    timestamp: Instant | UnsetType | None = UNSET
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


def message_of(request: PublishRequest, where: str = "$") -> Message:
    """The broker's message; ``where`` names the request's place in the body, for errors."""
    return Message(
        key=_key_of(request, where),
        value=_value_of(request, where),
        headers=_headers_of(request) if request.headers or request.headers_base64 else (),
        partition=request.partition,
        timestamp_ms=None if request.timestamp is None else _to_ms(request.timestamp),
    )


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


def receipt_of(published: Published) -> PublishReceipt:
    topic, partition, offset, timestamp_ms = published
    return PublishReceipt(topic=topic, partition=partition, offset=offset, timestamp=instant(timestamp_ms))


def item_of(outcome: Outcome, path: str) -> BatchItem:
    if isinstance(outcome, PenstockError):
        return BatchItem(error=problem_of(outcome, path))
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
    )


def instant(timestamp_ms: int) -> datetime | None:
    """The instant, or None where the producer gave none or one that no calendar has."""
    if timestamp_ms < 0:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None


def _to_ms(moment: datetime) -> int:
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
