"""Queues: messages received under a lease, then acked, nacked, rejected or extended; groups looked at and steered."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock import errors
from penstock.api import limits
from penstock.api.limits import DEFAULT_GROUP, GroupName, Instant, Receipts, TopicName
from penstock.api.messages import TICKET_HEADERS, MessageView, Transaction, Writer
from penstock.api.operation import Action, Header, Keeper, Packed, Repeat, Request, Resource, Route, Where, operation
from penstock.api.problems import Problem

DONE: Final = "done"
FAILED: Final = "failed"

_QUEUE_ERRORS: Final = (
    errors.PolicyViolation,
    errors.UnknownTopic,
    errors.NotLeader,
    errors.RequestTimedOut,
    errors.DiskFull,
)
_READ: Final = (Action.READ.of(Resource.TOPIC, "topic"), Action.READ.of(Resource.GROUP, "group"))
_RECEIVE: Final = (*_READ, Action.READ.of(Resource.TOPIC, "ack"))
_SETTLE: Final = (*_READ, Action.READ.of(Resource.TOPIC, "receipts"))
_DESCRIBE: Final = (Action.DESCRIBE.of(Resource.TOPIC, "topic"), Action.DESCRIBE.of(Resource.GROUP, "group"))
_ALTER: Final = (Action.READ.of(Resource.TOPIC, "topic"), Action.ALTER.of(Resource.GROUP, "group"))


# -- messages ----------------------------------------------------------------------------------------------------------


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


def _is_partly(results: list[ReceiptResult]) -> bool:
    return any(result.status != DONE for result in results)


def is_some_left(answer: ReceiptResults) -> bool:
    """Whether a receipt did not do what it was asked for."""
    return _is_partly(answer.results)


@operation(
    "POST /v1/queues/{topic}/receive",
    name="receive_messages",
    tag="queues",
    needs=_RECEIVE,
    repeat=Repeat.NAMED,
    errors=_QUEUE_ERRORS,
    also={207: lambda answer: answer.acked is not UNSET and _is_partly(answer.acked)},
    is_body_optional=True,
)
class Receive(Request[Received | Packed], frozen=True, kw_only=True):
    """Receive messages under a lease, waiting for the first up to `wait_ms`; what is not acked in time comes again.

    Receipts in `ack` are acked first; if one of them is not, nothing is received, and the answer tells why. Messages
    that cannot be unpacked go to the dead letters.
    """

    topic: TopicName
    group: GroupName = DEFAULT_GROUP
    max: Annotated[int, Meta(ge=1, le=limits.RECEIVE_MAX, description="How many messages at most.")] = (
        limits.RECEIVE_DEFAULT
    )
    max_bytes: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="About so many bytes at most; one message always fits.")
    ] = None
    wait_ms: limits.WaitMs = 0
    visibility_timeout_ms: limits.VisibilityMs = None
    consumer: Annotated[
        str,
        Meta(max_length=limits.NAME_CHARS_MAX, description="Who receives; limits of a consumer count for each name."),
    ] = ""
    ack: Annotated[list[limits.Receipt], Meta(max_length=limits.RECEIPTS_MAX)] = []
    attempt: Annotated[
        str,
        Meta(
            max_length=limits.ATTEMPT_CHARS_MAX,
            description="A name that no other call has. Made again under it within two minutes, a call whose answer "
            "was lost gives back what it got before, which does not count as a try.",
        ),
    ] = ""
    is_repeat: Annotated[
        bool, Meta(description="This attempt was made before, maybe at another node; needed only in a cluster.")
    ] = False


def _by_group(verb: str, summary: str) -> Route:
    """The same for receipts of any topics; the path names the group."""
    return Route("POST", f"/v1/groups/{{group}}/{verb}", f"{verb}_group", summary, frozenset({"topic"}))


@operation(
    "POST /v1/queues/{topic}/ack",
    name="ack_messages",
    tag="queues",
    needs=_SETTLE,
    repeat=Repeat.SAME,
    errors=(*_QUEUE_ERRORS, errors.GroupError),
    where=Where(Keeper.TRANSACTION, "transaction"),
    headers={
        "transaction": Header("Penstock-Transaction", "The joint transaction whose commit has the acks hold."),
        "writer": TICKET_HEADERS["writer"],
    },
    also={207: is_some_left},
    also_at=(_by_group("ack", "Be done with messages of a queue group, of any topics."),),
)
class Ack(Request[ReceiptResults], frozen=True, kw_only=True):
    """Be done with messages: they never come again. 200 if all are, 207 tells which are not."""

    topic: TopicName | None = None
    receipts: Receipts
    group: GroupName = DEFAULT_GROUP
    transaction: Transaction = None
    writer: Writer = None


@operation(
    "POST /v1/queues/{topic}/nack",
    name="nack_messages",
    tag="queues",
    needs=_SETTLE,
    repeat=Repeat.SAME,
    errors=(*_QUEUE_ERRORS, errors.GroupError),
    also={207: is_some_left},
    also_at=(_by_group("nack", "Give back messages of a queue group, of any topics."),),
)
class Nack(Request[ReceiptResults], frozen=True, kw_only=True):
    """Give messages back, to be delivered again after a delay; after the last try they go to the dead letters."""

    topic: TopicName | None = None
    receipts: Receipts
    group: GroupName = DEFAULT_GROUP
    delay_ms: limits.NackDelayMs = None
    reason: limits.Reason = ""


@operation(
    "POST /v1/queues/{topic}/reject",
    name="reject_messages",
    tag="queues",
    needs=_SETTLE,
    repeat=Repeat.SAME,
    errors=(*_QUEUE_ERRORS, errors.GroupError),
    also={207: is_some_left},
    also_at=(_by_group("reject", "Send messages of a queue group, of any topics, to the dead letters."),),
)
class Reject(Request[ReceiptResults], frozen=True, kw_only=True):
    """Send messages to the dead letters at once."""

    topic: TopicName | None = None
    receipts: Receipts
    group: GroupName = DEFAULT_GROUP
    reason: limits.Reason = ""


@operation(
    "POST /v1/queues/{topic}/extend",
    name="extend_messages",
    tag="queues",
    needs=_SETTLE,
    repeat=Repeat.SAME,
    errors=(*_QUEUE_ERRORS, errors.GroupError),
    also={207: is_some_left},
    also_at=(_by_group("extend", "Hold messages of a queue group, of any topics, for so long from now on."),),
)
class Extend(Request[ReceiptResults], frozen=True, kw_only=True):
    """Hold messages for so long from now on."""

    topic: TopicName | None = None
    receipts: Receipts
    group: GroupName = DEFAULT_GROUP
    visibility_timeout_ms: limits.VisibilityMs = None


@operation(
    "POST /v1/queues/{topic}/release",
    name="release_messages",
    tag="queues",
    needs=_SETTLE,
    repeat=Repeat.SAME,
    errors=(*_QUEUE_ERRORS, errors.GroupError),
    also={207: is_some_left},
    also_at=(
        _by_group(
            "release",
            "Give back messages of a queue group, of any topics, that no consumer worked on; the try does not count.",
        ),
    ),
)
class Release(Request[ReceiptResults], frozen=True, kw_only=True):
    """Give back messages that no consumer worked on: they are delivered at once, and the try does not count."""

    topic: TopicName | None = None
    receipts: Receipts
    group: GroupName = DEFAULT_GROUP


# -- groups ------------------------------------------------------------------------------------------------------------


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages are in which state; `oldest_age_ms` is of the oldest that is not done."""

    ready: int
    in_flight: int
    waiting: int
    dying: int
    acked_ahead: int
    oldest_age_ms: int | None


class QueuePartitionView(QueueCounts, frozen=True, kw_only=True):
    """A group in one partition: everything before `committed` is done, `end` is where the partition ends."""

    partition: int
    committed: int
    end: int


class QueueGroupView(QueueCounts, frozen=True, kw_only=True):
    """A queue group: whether it hands out messages, its settings and which of them are its own, its partitions."""

    topic: str
    group: str
    paused: bool
    pause_reason: str
    settings: dict[str, str]
    own_settings: dict[str, str]
    partitions: list[QueuePartitionView]


class QueueView(QueueCounts, frozen=True, kw_only=True):
    """A topic as a queue: all its groups, and their figures added up."""

    topic: str
    groups: list[QueueGroupView]
    dead_letters: Annotated[int | None, Meta(description="About how many are still dead; null if nobody can tell now.")]


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    groups: list[str]


class QueueList(msgspec.Struct, frozen=True, kw_only=True):
    """Every topic that is read as a queue."""

    queues: list[QueueSummary]


@operation(
    "GET /v1/queues",
    tag="queues",
    needs=Action.DESCRIBE.of(Resource.TOPIC),
    repeat=Repeat.SAFE,
    errors=(errors.NotLeader,),
)
class ListQueues(Request[QueueList], frozen=True, kw_only=True):
    """Every topic that is read as a queue, and its queue groups."""


@operation(
    "GET /v1/queues/{topic}",
    tag="queues",
    needs=Action.DESCRIBE.of(Resource.TOPIC, "topic"),
    repeat=Repeat.SAFE,
    errors=(errors.UnknownTopic, errors.GroupNotFound, errors.NotLeader),
)
class DescribeQueue(Request[QueueView], frozen=True, kw_only=True):
    """A topic's queue groups: what is ready, in flight and waiting, by group and partition and in all."""

    topic: TopicName
    group: Annotated[str | None, Meta(description="Only this group; without it, all of the topic.")] = None


@operation(
    "POST /v1/queues/{topic}/purge",
    tag="queues",
    needs=_ALTER,
    repeat=Repeat.SAME,
    errors=_QUEUE_ERRORS,
    is_body_optional=True,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class PurgeQueue(Request[QueueGroupView], frozen=True, kw_only=True):
    """Be done with everything that is in the topic now, for one group."""

    topic: TopicName
    group: GroupName = DEFAULT_GROUP


@operation(
    "GET /v1/queues/{topic}/groups/{group}",
    tag="queues",
    needs=_DESCRIBE,
    repeat=Repeat.SAFE,
    errors=(errors.UnknownTopic, errors.GroupNotFound, errors.NotLeader),
)
class DescribeQueueGroup(Request[QueueGroupView], frozen=True, kw_only=True):
    """One queue group of a topic."""

    topic: TopicName
    group: GroupName = DEFAULT_GROUP


@operation(
    "PUT /v1/queues/{topic}/groups/{group}",
    tag="queues",
    needs=_ALTER,
    repeat=Repeat.SAME,
    errors=_QUEUE_ERRORS,
    is_body_optional=True,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class DeclareQueueGroup(Request[QueueGroupView], frozen=True, kw_only=True):
    """Begin a queue group, if it is not there, and give it settings of its own.

    It begins at the log's start unless one of `start` and `since` says otherwise.
    """

    topic: TopicName
    group: GroupName = DEFAULT_GROUP
    start: limits.StartPoint = None
    since: limits.Since = None
    settings: Annotated[
        dict[str, str | int | float],
        Meta(description="The group's own settings, by the names of the topic's without `queue.`."),
    ] = {}


@operation(
    "DELETE /v1/queues/{topic}/groups/{group}",
    tag="queues",
    needs=(Action.READ.of(Resource.TOPIC, "topic"), Action.DELETE.of(Resource.GROUP, "group")),
    repeat=Repeat.SAME,
    errors=(errors.PolicyViolation, errors.UnknownTopic, errors.NotLeader, errors.DiskFull),
)
class ForgetQueueGroup(Request[None], frozen=True, kw_only=True):
    """Forget a queue group and where it was."""

    topic: TopicName
    group: GroupName = DEFAULT_GROUP


@operation(
    "POST /v1/queues/{topic}/groups/{group}/pause",
    tag="queues",
    needs=_ALTER,
    repeat=Repeat.SAME,
    errors=_QUEUE_ERRORS,
    is_body_optional=True,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class PauseQueueGroup(Request[QueueGroupView], frozen=True, kw_only=True):
    """Hand out nothing more; what is in flight can be acked all the same."""

    topic: TopicName
    group: GroupName = DEFAULT_GROUP
    reason: Annotated[str, Meta(max_length=limits.REASON_CHARS_MAX)] = ""


@operation(
    "POST /v1/queues/{topic}/groups/{group}/resume",
    tag="queues",
    needs=_ALTER,
    repeat=Repeat.SAME,
    errors=_QUEUE_ERRORS,
)
class ResumeQueueGroup(Request[QueueGroupView], frozen=True, kw_only=True):
    """Hand out messages again."""

    topic: TopicName
    group: GroupName = DEFAULT_GROUP


@operation(
    "POST /v1/queues/{topic}/groups/{group}/seek",
    tag="queues",
    needs=_ALTER,
    repeat=Repeat.SAME,
    errors=_QUEUE_ERRORS,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class SeekQueueGroup(Request[QueueGroupView], frozen=True, kw_only=True):
    """Read on from somewhere else, as if nothing had been delivered; every lease ends.

    Exactly one of `to` and `since` says where.
    """

    topic: TopicName
    group: GroupName = DEFAULT_GROUP
    to: limits.StartPoint = None
    since: limits.Since = None


@operation(
    "GET /v1/queues/{topic}/groups/{group}/peek",
    tag="queues",
    needs=_READ,
    repeat=Repeat.SAFE,
    errors=(errors.UnknownTopic, errors.NotLeader),
)
class PeekQueueGroup(Request[PeekedMessages], frozen=True, kw_only=True):
    """Look at the first messages that are not done; none is received by that."""

    topic: TopicName
    group: GroupName = DEFAULT_GROUP
    max: Annotated[int, Meta(ge=1, le=limits.PEEK_MAX, description="How many messages at most.")] = 10


# -- lanes -------------------------------------------------------------------------------------------------------------


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """One lane. `ready` can be handed out now, as far as messages were looked at."""

    lane: str
    weight: Annotated[int, Meta(description="Its share of what is handed out, next to those of the others.")]
    ready: int
    in_flight: int
    served: Annotated[int, Meta(description="Deliveries since the partition's leader leads it.")]
    served_per_second: Annotated[float, Meta(description="Over about the last ten seconds.")]
    last_served: Instant | None
    oldest_age_ms: Annotated[int | None, Meta(description="Of the oldest that is ready.")]


class LanePartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes of one partition; `unseen` messages were not looked at yet, so nobody knows their lane."""

    partition: int
    unseen: int
    lanes: list[LaneView]


class LaneGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group's lanes in all partitions together, and in each. Both are empty where it has none."""

    group: str
    is_on: bool
    weights: dict[str, int]
    boost_ms: int
    fair_by: str
    unseen: int
    lanes: list[LaneView]
    partitions: list[LanePartitionView]


class LanesView(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    groups: list[LaneGroupView]


@operation(
    "GET /v1/queues/{topic}/lanes",
    tag="queues",
    needs=Action.DESCRIBE.of(Resource.TOPIC, "topic"),
    repeat=Repeat.SAFE,
    errors=(errors.UnknownTopic, errors.NotLeader),
)
class DescribeLanes(Request[LanesView], frozen=True, kw_only=True):
    """The lanes of a topic's queue groups: ready, in flight, served and oldest, by lane and partition."""

    topic: TopicName
    group: Annotated[str | None, Meta(description="Only this group; without it, all of the topic.")] = None
