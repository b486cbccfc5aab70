"""Queues as JSON has them: what is asked of them, what they hand out, and what became of receipts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from penstock.broker.queues.attempts import ATTEMPT_CHARS_MAX
from penstock.broker.queues.core.messages import Fate
from penstock.broker.queues.leases import LeasedMessage, Verdict
from penstock.broker.queues.reports import Peeked
from penstock.broker.starts import Since, Start
from penstock.errors import InvalidRequest
from penstock.http.message_types import Instant, MessageView, instant, view_of
from penstock.http.problems import Problem, problem_of
from penstock.records import Record

DEFAULT_GROUP: Final = "default"
RECEIVE_MAX: Final = 10_000
_RECEIPTS_MAX: Final = 10_000
_WAIT_MS_MAX: Final = 60_000
_VISIBILITY_MS_MAX: Final = 12 * 3_600_000
_DELAY_MS_MAX: Final = 7 * 24 * 3_600_000

GroupName = Annotated[str, Meta(min_length=1, max_length=249)]
Receipts = Annotated[list[Annotated[str, Meta(max_length=1_000)]], Meta(min_length=1, max_length=_RECEIPTS_MAX)]
VisibilityMs = Annotated[
    Annotated[int, Meta(ge=1, le=_VISIBILITY_MS_MAX)] | None,
    Meta(description="How long the messages are yours; without it, what the group is set to."),
]
DelayMs = Annotated[
    Annotated[int, Meta(ge=0, le=_DELAY_MS_MAX)] | None,
    Meta(description="How long until it is delivered again; without it, the group's backoff."),
]
Reason = Annotated[str, Meta(max_length=1_000, description="Why; dead letters tell it.")]
StartText = Annotated[
    Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | Literal["earliest", "latest"] | None,
    Meta(description="An offset, earliest, or latest."),
]
Moment = Annotated[
    Annotated[datetime, Meta(tz=True)] | None,
    Meta(description="The first message at or after this instant (RFC 3339)."),
]


# -- requests ----------------------------------------------------------------------------------------------------------


class ReceiveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much to receive, and for how long. `ack` acks what was received before, in the same round trip."""

    group: GroupName = DEFAULT_GROUP
    max: Annotated[int, Meta(ge=1, le=RECEIVE_MAX, description="How many messages at most.")] = 10
    max_bytes: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="About so many bytes at most; one message always fits.")
    ] = None
    wait_ms: Annotated[
        int, Meta(ge=0, le=_WAIT_MS_MAX, description="How long to wait for a message if there is none yet.")
    ] = 0
    visibility_timeout_ms: VisibilityMs = None
    consumer: Annotated[
        str, Meta(max_length=249, description="Who receives; limits of a consumer count for each name.")
    ] = ""
    ack: Annotated[list[Annotated[str, Meta(max_length=1_000)]], Meta(max_length=_RECEIPTS_MAX)] = []
    attempt: Annotated[
        str,
        Meta(
            max_length=ATTEMPT_CHARS_MAX,
            description="A name that no other call has. Made again under it within two minutes, a call whose answer "
            "was lost gives back what it got before, which does not count as a try.",
        ),
    ] = ""
    is_repeat: Annotated[
        bool, Meta(description="This attempt was made before, maybe at another node; needed only in a cluster.")
    ] = False


class AckRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    receipts: Receipts
    group: GroupName = DEFAULT_GROUP


class NackRequest(AckRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    delay_ms: DelayMs = None
    reason: Reason = ""


class RejectRequest(AckRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Reason = ""


class ExtendLeaseRequest(AckRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    visibility_timeout_ms: VisibilityMs = None


class GroupAckRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Receipts of any topics; the path names the group."""

    receipts: Receipts


class GroupNackRequest(GroupAckRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    delay_ms: DelayMs = None
    reason: Reason = ""


class GroupRejectRequest(GroupAckRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Reason = ""


class GroupExtendRequest(GroupAckRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    visibility_timeout_ms: VisibilityMs = None


class PurgeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    group: GroupName = DEFAULT_GROUP


class DeclareRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a new group begins, at the log's start unless one of `start` and `since` says otherwise; its settings."""

    start: StartText = None
    since: Moment = None
    settings: Annotated[
        dict[str, str | int | float],
        Meta(description="The group's own settings, by the names of the topic's without `queue.`."),
    ] = {}


class PauseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=1_000)] = ""


class SeekRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to read on: exactly one of `to` and `since`."""

    to: StartText = None
    since: Moment = None


class PeekQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max: Annotated[int, Meta(ge=1, le=1_000, description="How many messages at most.")] = 10


def start_of(offset: int | Literal["earliest", "latest"] | None, since: datetime | None) -> Start | None:
    """Where to begin, None if nothing says so."""
    if offset is not None and since is not None:
        raise InvalidRequest("Give an offset (or earliest, latest) or an instant, not both.")
    return offset if since is None else Since(int(since.timestamp() * 1000))


# -- answers -----------------------------------------------------------------------------------------------------------


class QueueMessage(MessageView, frozen=True, kw_only=True):
    """A message under a lease. Show its receipt to ack it, before `lease_until`."""

    receipt: str
    topic: str
    partition: int
    delivery_count: int
    lease_until: Instant | None


class PartView(msgspec.Struct, frozen=True, kw_only=True):
    """What became of some of the messages of a receipt that is for several."""

    first: int
    last: int
    status: str


class ReceiptResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a receipt: `done`, or why not. `failed` may be tried again; `error` says why."""

    receipt: str
    status: str
    detail: str | UnsetType = UNSET
    parts: list[PartView] | UnsetType = UNSET
    error: Problem | UnsetType = UNSET


class ReceiptResults(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each receipt, in the order they were sent."""

    results: list[ReceiptResult]


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """Messages, each under a lease of its own; and what became of the receipts to be acked, if there were any."""

    messages: list[QueueMessage]
    acked: list[ReceiptResult] | UnsetType = UNSET


class PeekedMessage(MessageView, frozen=True, kw_only=True):
    """A message that is not done, as it stands in the queue."""

    topic: str
    partition: int
    state: Annotated[str, Meta(description="ready, in_flight, waiting or dying.")]
    delivery_count: int


class PeekedMessages(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[PeekedMessage]


# What a caller should make of a receipt that did not do what it was asked for.
_DETAILS: Final = {
    Fate.ALREADY_ACKED: "The message is acked already; there is nothing left to do.",
    Fate.LEASE_OVER: "The lease ended before; the message will be delivered again.",
    Fate.REDELIVERED: "The lease ended before, and the message was delivered to somebody else.",
    Fate.DEAD_LETTERED: "The message went to the dead letters.",
    Fate.REPEATED: "The receipt was named more than once in this call, and counted once.",
    Fate.IN_TRANSACTION: "The message is acked in a transaction that is still open; its end decides.",
    Fate.UNKNOWN: "This group never gave out such a receipt, or was moved to another offset since.",
    Fate.FOREIGN: "The receipt is of another topic or partition.",
    Fate.MALFORMED: "This is no receipt; show it exactly as it was received.",
}
FAILED: Final = "failed"


def message_view(message: LeasedMessage) -> QueueMessage:
    """A leased message as JSON has it."""
    record = Record(message.offset, message.timestamp_ms, message.key, message.value, message.headers)
    return QueueMessage(
        **asdict(view_of(record)),
        receipt=message.receipt,
        topic=message.topic,
        partition=message.partition,
        delivery_count=message.delivery_count,
        lease_until=instant(message.lease_until_ms),
    )


def peeked_view(topic: str, peeked: Peeked) -> PeekedMessage:
    """A message that somebody only looked at."""
    return PeekedMessage(
        **asdict(view_of(peeked.record)),
        topic=topic,
        partition=peeked.partition,
        state=peeked.state,
        delivery_count=peeked.delivery_count,
    )


def is_done(verdict: Verdict) -> bool:
    return verdict.error is None and verdict.fate is Fate.DONE


def results_of(verdicts: Sequence[Verdict], path: str) -> list[ReceiptResult]:
    """What became of each receipt, told to its caller; ``path`` is where it was asked for."""
    return [_result(verdict, path) for verdict in verdicts]


def _result(verdict: Verdict, path: str) -> ReceiptResult:
    if verdict.error is not None:
        return ReceiptResult(receipt=verdict.receipt, status=FAILED, error=problem_of(verdict.error, path))
    fate = verdict.fate
    parts: list[PartView] | UnsetType = UNSET
    if fate is not Fate.DONE and len(verdict.parts) > 1:
        parts = [PartView(first=part.first, last=part.last, status=part.fate.value) for part in verdict.parts]
    return ReceiptResult(receipt=verdict.receipt, status=fate.value, detail=_DETAILS.get(fate, UNSET), parts=parts)
