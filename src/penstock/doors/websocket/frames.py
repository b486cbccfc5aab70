"""What is said over a WebSocket: JSON frames both ways. Meanings: docs/reference/websocket.md."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.api.limits import (
    BATCH_MESSAGES_MAX,
    NAME_CHARS_MAX,
    SCHEDULE_ID_CHARS_MAX,
    GroupName,
    Instant,
    NackDelayMs,
    Offset,
    PartitionIndex,
    Reason,
    Receipts,
    VisibilityMs,
)
from penstock.api.messages import BatchItem, DeliveredMessage, NewMessage
from penstock.api.problems import Problem
from penstock.api.queues import QueueMessage, ReceiptResult
from penstock.api.schedules import CancelResult, NewSchedule, ScheduleView

WEBSOCKET_PATH: Final = "/v1/ws"
CREDITS_MAX: Final = 100_000

FrameId = str | int | None
Credits = Annotated[int, Meta(ge=0, le=CREDITS_MAX)]
SubscriptionName = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class SocketQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a client that was cut off goes on."""

    resume: Annotated[
        Annotated[str, Meta(max_length=200)] | None, Meta(description="The token of a session that was cut off.")
    ] = None
    seen: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="The number of its last delivery that arrived.")
    ] = None


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    """A frame of the client; the answer repeats its ``id``."""

    id: FrameId = None


class Publish(_Request, frozen=True, kw_only=True, tag="publish"):
    topic: str
    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=BATCH_MESSAGES_MAX)]


class Subscribe(_Request, frozen=True, kw_only=True, tag="subscribe"):
    """As a queue, for a group; or as a stream, from an offset or a time on."""

    topic: str
    group: GroupName | None = None
    start: Offset | Literal["earliest", "latest"] | None = msgspec.field(default=None, name="from")
    since: Instant | None = None
    partition: PartitionIndex | None = None
    credits: Credits = 0
    visibility_timeout_ms: VisibilityMs = None
    subscription: SubscriptionName | None = None

    @property
    def is_stream(self) -> bool:
        return self.start is not None or self.since is not None


class Next(_Request, frozen=True, kw_only=True, tag="next"):
    """Take so many messages more; ``seen`` is the number of the last delivery that arrived."""

    subscription: SubscriptionName
    credits: Credits
    seen: Annotated[int, Meta(ge=0)] | None = None


class Unsubscribe(_Request, frozen=True, kw_only=True, tag="unsubscribe"):
    subscription: SubscriptionName


class _Receipts(_Request, frozen=True, kw_only=True):
    receipts: Receipts
    group: GroupName | None = None
    subscription: SubscriptionName | None = None


class Ack(_Receipts, frozen=True, kw_only=True, tag="ack"):
    pass


class Nack(_Receipts, frozen=True, kw_only=True, tag="nack"):
    delay_ms: NackDelayMs = None
    reason: Reason = ""


class Reject(_Receipts, frozen=True, kw_only=True, tag="reject"):
    reason: Reason = ""


class Extend(_Receipts, frozen=True, kw_only=True, tag="extend"):
    visibility_timeout_ms: VisibilityMs = None


class Release(_Receipts, frozen=True, kw_only=True, tag="release"):
    pass


class Schedule(_Request, frozen=True, kw_only=True, tag="schedule"):
    """Add a schedule, as `POST /v1/schedules` takes it."""

    schedule: NewSchedule


class Cancel(_Request, frozen=True, kw_only=True, tag="cancel"):
    """Cancel schedules by their ids."""

    schedules: Annotated[
        list[Annotated[str, Meta(max_length=SCHEDULE_ID_CHARS_MAX)]], Meta(min_length=1, max_length=BATCH_MESSAGES_MAX)
    ]


class Ping(_Request, frozen=True, kw_only=True, tag="ping"):
    pass


Settlement = Ack | Nack | Reject | Extend | Release
Request = Publish | Subscribe | Next | Unsubscribe | Ack | Nack | Reject | Extend | Release | Schedule | Cancel | Ping


# -- of the node -------------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """The first frame: who the client is from now on, and what it shows to be the same again after a cut."""

    consumer: str
    token: str
    resumed: bool
    resume_ms: int
    subscriptions: list[str]


class Result(msgspec.Struct, frozen=True, kw_only=True, tag="result"):
    """The answer to a frame; which members it has depends on the frame."""

    id: FrameId
    subscription: str | UnsetType = UNSET
    credits: int | UnsetType = UNSET
    results: list[BatchItem] | list[ReceiptResult] | list[CancelResult] | UnsetType = UNSET
    schedule: ScheduleView | UnsetType = UNSET
    time: datetime | UnsetType = UNSET


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """The frame of that id was refused, or could not be read."""

    id: FrameId
    error: Problem


class Delivery(msgspec.Struct, frozen=True, kw_only=True, tag="messages"):
    """Messages of a subscription, and how many more it may send. Deliveries of a session are numbered from 1."""

    subscription: str
    number: int
    credits: int
    messages: list[QueueMessage] | list[DeliveredMessage]


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """A subscription is over, and not because the client said so."""

    subscription: str
    error: Problem


Reply = Hello | Result | Failure | Delivery | Ended
