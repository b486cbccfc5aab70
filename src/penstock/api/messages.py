"""Messages: published one by one, together, or as record batches; read without being consumed.

In JSON, text is text where it is valid UTF-8, and has a ``*_base64`` twin where it is not. A JSON value that is not a
string is kept as its own compact text: numbers stay as they were written, members in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock import errors
from penstock.api import limits
from penstock.api.limits import DEFAULT_WRITER, Instant, Offset, PartitionIndex, TopicName
from penstock.api.operation import Action, Header, Keeper, Packed, Repeat, Request, Resource, Where, operation
from penstock.api.problems import Problem
from penstock.priorities import NORMAL, PRIORITIES, PRIORITY_HEADER, Headers, lane_of_headers

if TYPE_CHECKING:
    from penstock.records import Record  # imported for types alone: commands that show messages start without it

HeaderText = dict[str, str | list[str | None] | None]
HeaderBytes = dict[str, bytes | list[bytes | None] | None]
HeaderPairs = list[tuple[str, bytes | None]]
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

# -- what is published, and what became of it --------------------------------------------------------------------------


# Without cycles: thousands of them come in one call, and the garbage collector need not look at them.
class NewMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A message to publish. One of `value` and `value_base64` is needed."""

    key: Annotated[str | None, Meta(description="Messages of one key go to one partition and keep their order.")] = None
    key_base64: Annotated[bytes | None, Meta(description="A key that is not text.")] = None
    value: Annotated[
        msgspec.Raw | UnsetType,
        Meta(
            description="A string is stored as its UTF-8 text, null as no value (a tombstone where the topic is "
            "compacted), any other JSON value as its compact JSON text."
        ),
    ] = UNSET
    value_base64: Annotated[bytes | None, Meta(description="A value that is not text.")] = None
    headers: Annotated[HeaderText, Meta(description="Name to text, or to a list of texts where a name repeats.")] = {}
    headers_base64: Annotated[HeaderBytes, Meta(description="Headers whose values are not text.")] = {}
    headers_in_order: Annotated[
        HeaderPairs | None, Meta(description="Name and value (base64) of each; given, the other two do not count.")
    ] = None
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


class BatchItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    headers_in_order: Annotated[
        HeaderPairs | UnsetType, Meta(description="All headers, where the other two cannot tell their order.")
    ] = UNSET
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


# -- operations --------------------------------------------------------------------------------------------------------

TICKET_HEADERS: Final[Mapping[str, Header]] = {
    "transaction": Header(
        "Penstock-Transaction", "Publish into this joint transaction; nobody sees it before that is committed."
    ),
    "writer": Header("Penstock-Writer", f"As which of its writers; default: {DEFAULT_WRITER}."),
    "sequence": Header(
        "Penstock-Sequence",
        "How many messages this writer has published into it before this call; a repeated call is not written twice.",
    ),
}
_WRITE_ERRORS: Final = (
    errors.PolicyViolation,
    errors.UnknownTopic,
    errors.MessageTooLarge,
    errors.TransactionError,
    errors.NotLeader,
    errors.RequestTimedOut,
    errors.DiskFull,
)
_READ_ERRORS: Final = (errors.UnknownTopic, errors.OffsetOutOfRange, errors.CorruptRecords, errors.NotLeader)
_PUBLISH: Final = (Action.WRITE.of(Resource.TOPIC, "topic"), Action.WRITE.of(Resource.TRANSACTION, "transaction"))
_IN_TRANSACTION: Final = Where(Keeper.TRANSACTION, "transaction")
Partitioner = Annotated[
    str | None, Meta(description="key_hash, as Kafka's Java client does it, or round_robin; default: key_hash.")
]
Transaction = Annotated[str, Meta(min_length=1)] | None
Writer = Annotated[str, Meta(min_length=1)] | None
Sequence = Annotated[int, Meta(ge=0, le=limits.MESSAGE_COUNT_MAX)] | None


@operation(
    "POST /v1/topics/{topic}/publish",
    name="publish_message",
    tag="messages",
    needs=_PUBLISH,
    repeat=Repeat.AGAIN,
    key="sequence",
    errors=_WRITE_ERRORS,
    where=_IN_TRANSACTION,
    headers=TICKET_HEADERS,
    query=frozenset({"partitioner"}),
    body="message",
)
class Publish(Request[PublishReceipt], frozen=True, kw_only=True):
    """Publish one message and answer when it is safe."""

    topic: TopicName
    message: NewMessage
    partitioner: Partitioner = None
    transaction: Transaction = None
    writer: Writer = None
    sequence: Sequence = None


@operation(
    "POST /v1/topics/{topic}/batch",
    tag="messages",
    needs=_PUBLISH,
    repeat=Repeat.AGAIN,
    key="sequence",
    errors=_WRITE_ERRORS,
    where=_IN_TRANSACTION,
    also={207: lambda answer: answer.failed > 0},
    headers=TICKET_HEADERS,
    query=frozenset({"partitioner"}),
)
class PublishBatch(Request[BatchReceipt], frozen=True, kw_only=True):
    """Publish messages together: 200 when all are safe, 207 when some are, else the first one's problem."""

    topic: TopicName
    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=limits.BATCH_MESSAGES_MAX)]
    partitioner: Partitioner = None
    transaction: Transaction = None
    writer: Writer = None
    sequence: Sequence = None


@operation(
    "POST /v1/topics/{topic}/batches",
    tag="messages",
    needs=_PUBLISH,
    repeat=Repeat.NAMED,
    errors=_WRITE_ERRORS,
    where=_IN_TRANSACTION,
    headers=TICKET_HEADERS,
    body="batches",
    is_body_packed=True,
)
class PublishBatches(Request[Packed], frozen=True, kw_only=True):
    """Publish record batches, each into its partition: MessagePack `[[partition, batch], ...]`."""

    topic: TopicName
    batches: list[tuple[int, bytearray]]
    transaction: Transaction = None
    writer: Writer = None
    sequence: Annotated[Sequence, Meta(description="Refused: batches have sequence numbers of their own.")] = None


@operation(
    "GET /v1/topics/{topic}/messages",
    name="read",
    tag="messages",
    needs=Action.READ.of(Resource.TOPIC, "topic"),
    repeat=Repeat.SAFE,
    errors=_READ_ERRORS,
)
class Read(Request[MessagesPage], frozen=True, kw_only=True):
    """Read committed messages of one partition; nothing is consumed by it."""

    topic: TopicName
    partition: Annotated[PartitionIndex, Meta(description="Which partition to read.")] = 0
    offset: Annotated[
        Offset | Literal["earliest", "latest"],
        Meta(description="Where to begin: an offset, earliest, or latest, which is after the last message."),
    ] = "earliest"
    since: Annotated[
        Instant | None,
        Meta(description="Begin at the first message at or after this instant instead of at an offset (RFC 3339)."),
    ] = None
    limit: Annotated[int, Meta(ge=1, le=limits.READ_MAX, description="How many messages at most.")] = 100
    timeout_ms: limits.WaitMs = 0


@operation(
    "GET /v1/topics/{topic}/partitions/{partition}/batches",
    tag="messages",
    needs=Action.READ.of(Resource.TOPIC, "topic"),
    repeat=Repeat.SAFE,
    errors=_READ_ERRORS,
    where=Where(Keeper.LEADER, "partition"),
)
class ReadBatches(Request[Packed], frozen=True, kw_only=True):
    """Read record batches as they are stored, from an offset on; nothing is consumed by it."""

    topic: TopicName
    partition: PartitionIndex
    offset: Annotated[Offset, Meta(description="Where to begin.")] = 0
    max_bytes: Annotated[
        int,
        Meta(
            ge=1,
            le=limits.READ_BATCHES_BYTES_MAX,
            description="How much at most, except that one batch always comes whole.",
        ),
    ] = limits.READ_BATCHES_BYTES
    isolation: Annotated[
        Literal["read_committed", "read_uncommitted"],
        Meta(description="Whether to stop before open transactions and leave out aborted ones, or to see all."),
    ] = "read_committed"
    topic_id: Annotated[str | None, Meta(description="Refuse if the topic of that name has another id by now.")] = None
    skip_damage: Annotated[bool, Meta(description="Read on behind what is damaged instead of refusing.")] = False


class ProducerView(msgspec.Struct, frozen=True, kw_only=True):
    """An identity for idempotent batches."""

    producer_id: int
    producer_epoch: int


@operation(
    "POST /v1/producers",
    tag="messages",
    needs=Action.WRITE.of(Resource.TOPIC),
    repeat=Repeat.SAME,
    errors=(errors.NotController,),
)
class CreateProducer(Request[ProducerView], frozen=True, kw_only=True):
    """Get an identity for idempotent batches: a producer id that no other producer has."""


# -- messages as JSON shows them ---------------------------------------------------------------------------------------


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
        headers_in_order=list(record.headers) if (binaries and texts) or _is_mixed(record.headers) else UNSET,
        priority=_priority_of(record.headers) if record.headers else UNSET,
    )


def bytes_of(view: Any, name: str) -> bytes | None:
    """The key or the value of a message as JSON shows it, of whichever twin is there."""
    data: bytes | UnsetType | None = getattr(view, f"{name}_base64")
    if data is not UNSET and data is not None:
        return data
    text: str | UnsetType | None = getattr(view, name)
    return None if text is None or text is UNSET else text.encode()


def header_pairs_of(view: Any) -> Headers:
    """The headers of a message as JSON shows it, in their order."""
    if view.headers_in_order:
        return tuple(view.headers_in_order)
    pairs: list[tuple[str, bytes | None]] = []
    for name, text in view.headers.items():
        texts = text if isinstance(text, list) else [text]
        pairs += [(name, None if item is None else item.encode()) for item in texts]
    for name, data in (view.headers_base64 or {}).items():
        pairs += [(name, item) for item in (data if isinstance(data, list) else [data])]
    return tuple(pairs)


def _is_mixed(headers: Headers) -> bool:
    """Whether a name comes again after another one, so that a list for each name does not tell their order."""
    names = [name for name, _ in headers]
    return len(set(names)) < len(names) and len(set(names)) < 1 + sum(a != b for a, b in pairwise(names))


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
    """An instant in milliseconds since 1970."""
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
