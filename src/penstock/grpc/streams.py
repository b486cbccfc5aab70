"""What goes over the methods that are streams, declared as the operations of the table are.

Their messages are made and converted as those of the table, and hold the same types with the same limits. What they do
is written by hand, in `penstock.doors.grpc`, on top of operations of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.api import limits
from penstock.api.limits import DEFAULT_GROUP, GroupName, Instant, Offset, PartitionIndex, TopicName
from penstock.api.messages import BatchItem, DeliveredMessage, NewMessage, Partitioner, Sequence, Transaction, Writer
from penstock.api.problems import Problem
from penstock.api.queues import QueueMessage, ReceiptResult
from penstock.grpc.legacy import START, TICKET, Places

Credit = Annotated[int, Meta(ge=0, le=limits.INT32_MAX)]
PageBytes = Annotated[
    int, Meta(ge=1, le=64 * 1024 * 1024, description="Of one response, about; one message is sent however large it is.")
]
Id = Annotated[int, Meta(description="Chosen by the client and repeated in the answer; it need not be unique.")]


class _Frame(msgspec.Struct, frozen=True, kw_only=True):
    pass


# -- publishing --------------------------------------------------------------------------------------------------------


class PublishStreamRequest(_Frame, frozen=True, kw_only=True):
    """Messages to publish together."""

    id: Id = 0
    topic: Annotated[
        TopicName,
        Meta(
            description="Needed in the first request; left out later, it is as before. So are partitioner and ticket."
        ),
    ] = ""
    messages: list[NewMessage] = []
    partitioner: Partitioner = None
    transaction: Transaction = None
    writer: Writer = None
    sequence: Sequence = None


class PublishStreamResponse(_Frame, frozen=True, kw_only=True):
    """What became of a request: of each message in order, or why it failed as a whole."""

    id: int
    results: list[BatchItem] = []
    error: Annotated[
        Problem | UnsetType, Meta(description="Requests behind it may have been written all the same.")
    ] = UNSET


# -- reading -----------------------------------------------------------------------------------------------------------


class ReadRequest(_Frame, frozen=True, kw_only=True):
    """Where to read, how much, and whether to wait for more."""

    topic: TopicName
    partition: PartitionIndex = 0
    offset: Annotated[Offset | Literal["earliest", "latest"], Meta(description="Unset is the earliest message.")] = (
        "earliest"
    )
    since: Instant | None = None
    limit: Annotated[Offset, Meta(description="How many messages at most; 0 is without end.")] = 0
    follow: Annotated[bool, Meta(description="Wait at the end of the log for more; else the stream ends there.")] = (
        False
    )
    max_bytes: PageBytes = 1024 * 1024


class ReadResponse(_Frame, frozen=True, kw_only=True):
    """Messages in their order; read on from `next_offset`."""

    messages: list[DeliveredMessage]
    next_offset: int
    high_watermark: int
    log_start_offset: int


# -- subscriptions -----------------------------------------------------------------------------------------------------


class Subscription(_Frame, frozen=True, kw_only=True):
    """What a stream is for."""

    topic: TopicName
    group: GroupName = DEFAULT_GROUP
    consumer: Annotated[
        str,
        Meta(max_length=limits.NAME_CHARS_MAX, description="Empty lets the node choose; the first response tells it."),
    ] = ""
    credits: Annotated[Credit, Meta(description="How many messages may be sent before more credits come.")] = 0
    visibility_timeout_ms: limits.VisibilityMs = None
    max_bytes: PageBytes = 1024 * 1024


class Credits(_Frame, frozen=True, kw_only=True):
    """More messages may be sent: each uses up one credit."""

    count: Annotated[int, Meta(ge=1, le=limits.INT32_MAX)]


class SettleAck(_Frame, frozen=True, kw_only=True):
    """As Ack, for the topic and the group of the stream."""

    receipts: limits.Receipts
    transaction: Transaction = None
    writer: Writer = None


class SettleNack(_Frame, frozen=True, kw_only=True):
    """As Nack."""

    receipts: limits.Receipts
    delay_ms: limits.NackDelayMs = None
    reason: limits.Reason = ""


class SettleReject(_Frame, frozen=True, kw_only=True):
    """As Reject."""

    receipts: limits.Receipts
    reason: limits.Reason = ""


class SettleExtend(_Frame, frozen=True, kw_only=True):
    """As Extend."""

    receipts: limits.Receipts
    visibility_timeout_ms: limits.VisibilityMs = None


class SubscribeRequest(_Frame, frozen=True, kw_only=True):
    """The first one is a subscription, and only that; all others are one of the rest."""

    subscription: Subscription | None = None
    credits: Credits | None = None
    ack: SettleAck | None = None
    nack: SettleNack | None = None
    reject: SettleReject | None = None
    extend: SettleExtend | None = None
    id: Id = 0


class Subscribed(_Frame, frozen=True, kw_only=True):
    """The consumer's name, given or chosen."""

    consumer: str


class Delivery(_Frame, frozen=True, kw_only=True):
    messages: list[QueueMessage]


class Settled(_Frame, frozen=True, kw_only=True):
    """The answer to an ack, nack, reject or extend: one result for each receipt, or why it failed as a whole."""

    id: int
    results: list[ReceiptResult] = []
    error: Problem | UnsetType = UNSET


class SubscribeResponse(_Frame, frozen=True, kw_only=True):
    """The first one is `subscribed`."""

    subscribed: Subscribed | None = None
    delivery: Delivery | None = None
    settled: Settled | None = None


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """A method that is a stream."""

    service: str
    name: str
    request: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    has_many_requests: bool
    summary: str


STREAMS: Final = (
    Stream(
        service="messages",
        name="PublishStream",
        request=PublishStreamRequest,
        answer=PublishStreamResponse,
        has_many_requests=True,
        summary="Publish without waiting for each answer. Requests are written in the order in which they came, and "
        "each is answered, in that order, when its messages are safe.",
    ),
    Stream(
        service="messages",
        name="Read",
        request=ReadRequest,
        answer=ReadResponse,
        has_many_requests=False,
        summary="Read the committed messages of one partition; nothing is consumed by it.",
    ),
    Stream(
        service="queues",
        name="Subscribe",
        request=SubscribeRequest,
        answer=SubscribeResponse,
        has_many_requests=True,
        summary="Lease messages as they come, as many as there are credits for, and settle them on the same stream. "
        "When the client closes its side, what it has not settled is given back and does not count as a try; when the "
        "stream breaks, it is given back as well, but what was sent counts.",
    ),
)
STREAM_FIELDS: Final[Mapping[type[Any], Mapping[str, Places]]] = {
    PublishStreamRequest: TICKET,
    ReadRequest: {"offset": START, "since": "start.since"},
}
