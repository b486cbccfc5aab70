"""Dead letters: listed, grouped by reason, looked at one by one, sent back, and what was sent back when."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock import errors
from penstock.api import limits
from penstock.api.limits import Instant, Offset, PartitionIndex, TopicName
from penstock.api.messages import MessageView
from penstock.api.operation import Action, Repeat, Request, Resource, operation

_GROUP: Final = Meta(description="Only of this queue group.")
_REASON: Final = Meta(description="Only with exactly this reason.")
_CONTAINS: Final = Meta(description="Only with this in their reason, in upper or lower case.")
_KEY: Final = Meta(description="Only with this key.")
_SINCE: Final = Meta(description="Only those that died at or after this instant (RFC 3339).")
_UNTIL: Final = Meta(description="Only those that died before this instant (RFC 3339).")
_FROM_PARTITION: Final = Meta(description="Only those that came from this partition of the topic.")
_FIRST: Final = Meta(description="Only those that had this offset or a later one in the topic.")
_LAST: Final = Meta(description="Only those that had this offset or an earlier one in the topic.")
_LOOK: Final = Action.READ.of(Resource.TOPIC, "topic")
_CHANGE: Final = (Action.READ.of(Resource.TOPIC, "topic"), Action.WRITE.of(Resource.TOPIC, "topic"))
_SEND: Final = (*_CHANGE, Action.WRITE.of(Resource.TOPIC, "target"))
_LOOK_ERRORS: Final = (errors.UnknownTopic, errors.InvalidRequest, errors.CorruptRecords, errors.NotLeader)
_JOB_ERRORS: Final = (errors.RedriveNotFound, errors.InvalidRequest, errors.NotCoordinator)
_NOT_IN_QUERY: Final = frozenset({"places"})  # a query has no lists
DeadGroup = Annotated[
    Annotated[str, Meta(max_length=limits.NAME_CHARS_MAX)] | None,
    Meta(description="The queue group that they died in; needed where it has a dead-letter topic of its own."),
]


class DeadLetterPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a dead letter is among the dead letters."""

    partition: PartitionIndex
    offset: Offset


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters are meant: those that all of this is true of."""

    group: Annotated[str | None, _GROUP] = None
    reason: Annotated[str | None, _REASON] = None
    reason_contains: Annotated[str | None, _CONTAINS] = None
    key: Annotated[str | None, _KEY] = None
    key_base64: Annotated[bytes | None, Meta(description="A key that is not text.")] = None
    since: Annotated[Instant | None, _SINCE] = None
    until: Annotated[Instant | None, _UNTIL] = None
    origin_partition: Annotated[PartitionIndex | None, _FROM_PARTITION] = None
    first_offset: Annotated[Offset | None, _FIRST] = None
    last_offset: Annotated[Offset | None, _LAST] = None
    places: Annotated[
        Annotated[list[DeadLetterPlace], Meta(min_length=1, max_length=limits.DEAD_LETTERS_NAMED_MAX)] | None,
        Meta(description="Only these, by partition and offset among the dead letters."),
    ] = None


class OriginView(msgspec.Struct, frozen=True, kw_only=True):
    """Where a dead letter came from; null where its headers do not tell."""

    topic: str | None
    partition: int | None
    offset: int | None
    timestamp: Instant | None


class DeadLetterView(MessageView, frozen=True, kw_only=True):
    """A dead letter: the message as it was, at its place among the dead letters, where it came from and why it died."""

    topic: Annotated[str, Meta(description="The dead-letter topic.")]
    partition: int
    group: str | None
    reason: str | None
    tries: int | None
    died: Instant | None
    origin: OriginView
    times_redriven: Annotated[int, Meta(description="How often it had been sent back before it died.")]
    is_redriven: Annotated[bool, Meta(description="Whether it was sent back since.")]


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some dead letters. `scanned` of `total` offsets were looked at; with a `cursor` there is more."""

    topic: Annotated[str, Meta(description="The dead-letter topic.")]
    dead_letters: list[DeadLetterView]
    cursor: str | None
    scanned: int
    total: int


class ReasonView(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    count: int
    first: Instant | None
    last: Instant | None
    sample: DeadLetterView


class ReasonList(msgspec.Struct, frozen=True, kw_only=True):
    """What dead letters died of, the most frequent first; without those that were sent back."""

    topic: str
    reasons: list[ReasonView]
    scanned: int
    total: int
    is_complete: bool


class RedriveView(msgspec.Struct, frozen=True, kw_only=True):
    """A redrive: who asked for what, how far it is, what came of it.

    `scanned` of `total` offsets were looked at. `failed` messages could not be sent and are still dead; `error` is why
    the last of them could not, or what it waits for.
    """

    id: str
    topic: str
    dead_letters: str
    state: str
    by: str
    filter: DeadLetterFilter
    target: str | None
    rate: float | None
    limit: int | None
    opened: Instant | None
    ended: Instant | None
    scanned: int
    total: int
    moved: int
    failed: int
    error: str | None


class RedriveList(msgspec.Struct, frozen=True, kw_only=True):
    """Every redrive that is remembered, the oldest first."""

    redrives: list[RedriveView]


class RedrivePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a redrive would do: messages by the topic they would go to, and those that have nowhere to go.

    Where it is not complete, only the first `scanned` were looked at, and a redrive would do more.
    """

    topic: str
    matched: int
    scanned: int
    targets: dict[str, int]
    stranded: int
    samples: list[DeadLetterView]
    is_complete: bool


class RedriveReport(msgspec.Struct, frozen=True, kw_only=True):
    """A redrive that was begun, or what a dry run found."""

    redrive: RedriveView | UnsetType = UNSET
    dry_run: RedrivePlan | UnsetType = UNSET


@operation(
    "GET /v1/queues/{topic}/dead-letters",
    tag="queues",
    needs=_LOOK,
    repeat=Repeat.SAFE,
    errors=_LOOK_ERRORS,
    omits=_NOT_IN_QUERY,
)
class ListDeadLetters(DeadLetterFilter, Request[DeadLetterPage], frozen=True, kw_only=True):
    """List dead letters of a topic by partition and offset, page by page."""

    topic: TopicName
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_MAX, description="How many at most.")] = 100
    cursor: Annotated[str | None, Meta(description="Where to go on: `cursor` of the page before.")] = None
    include_redriven: Annotated[bool, Meta(description="Whether to show those that were sent back since.")] = False


@operation(
    "GET /v1/queues/{topic}/dead-letters/reasons",
    tag="queues",
    needs=_LOOK,
    repeat=Repeat.SAFE,
    errors=_LOOK_ERRORS,
    omits=_NOT_IN_QUERY,
)
class ListDeadLetterReasons(DeadLetterFilter, Request[ReasonList], frozen=True, kw_only=True):
    """Tell what dead letters of a topic died of: how many, when the first and the last, and one of them."""

    topic: TopicName


@operation(
    "GET /v1/queues/{topic}/dead-letters/{partition}/{offset}",
    tag="queues",
    needs=_LOOK,
    repeat=Repeat.SAFE,
    errors=(*_LOOK_ERRORS, errors.DeadLetterNotFound),
    misnamed=errors.DeadLetterNotFound,
)
class GetDeadLetter(Request[DeadLetterView], frozen=True, kw_only=True):
    """Show one dead letter, by its partition and offset among the dead letters."""

    topic: TopicName
    partition: PartitionIndex
    offset: Offset
    group: DeadGroup = None


def _is_under_way(report: RedriveReport) -> bool:
    return report.redrive is not UNSET and report.redrive.ended is None


@operation(
    "POST /v1/queues/{topic}/redrive",
    name="redrive_dead_letters",
    tag="queues",
    needs=_SEND,
    repeat=Repeat.AGAIN,
    errors=(
        errors.PolicyViolation,
        errors.UnknownTopic,
        errors.RedriveRunning,
        errors.NotCoordinator,
        errors.DiskFull,
    ),
    also={202: _is_under_way},
    is_body_optional=True,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class Redrive(Request[RedriveReport], frozen=True, kw_only=True):
    """Send dead letters back to where they came from, or tell what that would do.

    Without a filter, all that are there now. It goes on by itself: 202 is answered with where it is, 200 if it is over.
    """

    topic: TopicName
    filter: DeadLetterFilter = DeadLetterFilter()
    dry_run: Annotated[bool, Meta(description="Only tell what would be sent.")] = False
    rate: Annotated[
        Annotated[float, Meta(gt=0, le=limits.REDRIVE_RATE_MAX)] | None,
        Meta(description="Messages a second; without it, all at once."),
    ] = None
    target: Annotated[str | None, Meta(description="Another topic; without it, where each came from.")] = None
    limit: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="So many messages at most.")] = None
    by: Annotated[str, Meta(max_length=limits.REDRIVE_BY_CHARS_MAX, description="Who asks for it, for the record.")] = (
        ""
    )
    wait_ms: Annotated[
        int,
        Meta(
            ge=0, le=limits.WAIT_MS_MAX, description="How long to wait for its end before answering with where it is."
        ),
    ] = 0


@operation("GET /v1/queues/{topic}/redrives", tag="queues", needs=_LOOK, repeat=Repeat.SAFE, errors=_JOB_ERRORS)
class ListRedrives(Request[RedriveList], frozen=True, kw_only=True):
    """List what was sent back: who asked for it, when, which, how many, and what came of it."""

    topic: TopicName
    group: DeadGroup = None


@operation(
    "GET /v1/queues/{topic}/redrives/{redrive}", tag="queues", needs=_LOOK, repeat=Repeat.SAFE, errors=_JOB_ERRORS
)
class GetRedrive(Request[RedriveView], frozen=True, kw_only=True):
    """Show one redrive, and how far it is."""

    topic: TopicName
    redrive: str
    group: DeadGroup = None


@operation(
    "POST /v1/queues/{topic}/redrives/{redrive}/cancel",
    tag="queues",
    needs=_CHANGE,
    repeat=Repeat.SAME,
    errors=(*_JOB_ERRORS, errors.PolicyViolation),
    query=frozenset({"group"}),
)
class CancelRedrive(Request[RedriveView], frozen=True, kw_only=True):
    """Stop a redrive. What it has begun is brought to its end first; what was sent stays sent."""

    topic: TopicName
    redrive: str
    group: DeadGroup = None
