"""Dead letters and redrives as JSON has them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.broker.queues.dead_letters import RATE_MAX, Page, Reasons, Rehearsal
from penstock.broker.queues.letters.letters import DeadMessage
from penstock.broker.queues.redrives.records import Filter, Job
from penstock.http.message_types import Instant, MessageView, PartitionIndex, instant, view_of
from penstock.http.problems import InvalidParameter

_OFFSET_MAX: Final = (1 << 63) - 1
_PLACES_MAX: Final = 10_000
_WAIT_MS_MAX: Final = 60_000

Offset = Annotated[int, Meta(ge=0, le=_OFFSET_MAX)]
Moment = Annotated[datetime, Meta(tz=True)]
_GROUP: Final = Meta(description="Only of this queue group.")
_REASON: Final = Meta(description="Only with exactly this reason.")
_CONTAINS: Final = Meta(description="Only with this in their reason, in upper or lower case.")
_KEY: Final = Meta(description="Only with this key.")
_SINCE: Final = Meta(description="Only those that died at or after this instant (RFC 3339).")
_UNTIL: Final = Meta(description="Only those that died before this instant (RFC 3339).")
_FROM_PARTITION: Final = Meta(description="Only those that came from this partition of the topic.")
_FIRST: Final = Meta(description="Only those that had this offset or a later one in the topic.")
_LAST: Final = Meta(description="Only those that had this offset or an earlier one in the topic.")


class FilterFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters are meant: those that all of this is true of."""

    group: Annotated[str | None, _GROUP] = None
    reason: Annotated[str | None, _REASON] = None
    reason_contains: Annotated[str | None, _CONTAINS] = None
    key: Annotated[str | None, _KEY] = None
    since: Annotated[Moment | None, _SINCE] = None
    until: Annotated[Moment | None, _UNTIL] = None
    origin_partition: Annotated[PartitionIndex | None, _FROM_PARTITION] = None
    first_offset: Annotated[Offset | None, _FIRST] = None
    last_offset: Annotated[Offset | None, _LAST] = None


class DeadLettersQuery(FilterFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1_000, description="How many at most.")] = 100
    cursor: Annotated[str | None, Meta(description="Where to go on: `cursor` of the page before.")] = None
    include_redriven: Annotated[bool, Meta(description="Whether to show those that were sent back since.")] = False


class ReasonsQuery(FilterFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class GroupQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    group: Annotated[
        Annotated[str, Meta(max_length=249)] | None,
        Meta(description="The queue group that they died in; needed where it has a dead-letter topic of its own."),
    ] = None


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a dead letter is among the dead letters."""

    partition: PartitionIndex
    offset: Offset


class RedriveFilter(FilterFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters to send back: those that all of this is true of."""

    key_base64: Annotated[bytes | None, Meta(description="A key that is not text.")] = None
    places: Annotated[
        Annotated[list[Place], Meta(min_length=1, max_length=_PLACES_MAX)] | None,
        Meta(description="Only these, by partition and offset among the dead letters."),
    ] = None


class RedriveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to send back, where to and how fast. Without a filter, all that are there now."""

    filter: RedriveFilter = RedriveFilter()
    dry_run: Annotated[bool, Meta(description="Only tell what would be sent.")] = False
    rate: Annotated[
        Annotated[float, Meta(gt=0, le=RATE_MAX)] | None,
        Meta(description="Messages a second; without it, all at once."),
    ] = None
    target: Annotated[str | None, Meta(description="Another topic; without it, where each came from.")] = None
    limit: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="So many messages at most.")] = None
    by: Annotated[str, Meta(max_length=200, description="Who asks for it, for the record.")] = ""
    wait_ms: Annotated[
        int, Meta(ge=0, le=_WAIT_MS_MAX, description="How long to wait for its end before answering with where it is.")
    ] = 0


class OriginView(msgspec.Struct, frozen=True, kw_only=True):
    """Where a dead letter came from; null where its headers do not tell."""

    topic: str | None
    partition: int | None
    offset: int | None
    timestamp: Instant | None


class DeadLetterView(MessageView, frozen=True, kw_only=True):
    """A dead letter: the message as it was, at its place among the dead letters, where it came from and why it died."""

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
    filter: RedriveFilter
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


class RehearsalView(msgspec.Struct, frozen=True, kw_only=True):
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
    dry_run: RehearsalView | UnsetType = UNSET


# -- in ----------------------------------------------------------------------------------------------------------------


def filter_of(fields: FilterFields) -> Filter:
    """The broker's filter."""
    key = None if fields.key is None else fields.key.encode()
    places: list[tuple[int, int]] | None = None
    if isinstance(fields, RedriveFilter):
        if fields.key_base64 is not None and key is not None:
            raise InvalidParameter("Give key or key_base64, not both.")
        key = fields.key_base64 if key is None else key
        places = None if fields.places is None else [(each.partition, each.offset) for each in fields.places]
    return Filter(
        group=fields.group,
        reason=fields.reason,
        reason_contains=fields.reason_contains,
        key=key,
        since_ms=_to_ms(fields.since),
        until_ms=_to_ms(fields.until),
        partition=fields.origin_partition,
        first_offset=fields.first_offset,
        last_offset=fields.last_offset,
        places=places,
    )


def _to_ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.astimezone(UTC).timestamp() * 1000)


# -- out ---------------------------------------------------------------------------------------------------------------


def letter_view(message: DeadMessage) -> DeadLetterView:
    origin = message.origin
    return DeadLetterView(
        **msgspec.structs.asdict(view_of(message.message)),
        partition=message.partition,
        group=origin.group,
        reason=origin.reason,
        tries=origin.tries,
        died=instant(message.died_ms),
        origin=OriginView(
            topic=origin.topic,
            partition=origin.partition,
            offset=origin.offset,
            timestamp=None if origin.timestamp_ms is None else instant(origin.timestamp_ms),
        ),
        times_redriven=message.times_redriven,
        is_redriven=message.is_redriven,
    )


def page_view(page: Page) -> DeadLetterPage:
    return DeadLetterPage(
        topic=page.topic,
        dead_letters=[letter_view(each) for each in page.messages],
        cursor=page.cursor,
        scanned=page.scanned,
        total=page.total,
    )


def reasons_view(found: Reasons) -> ReasonList:
    reasons = [
        ReasonView(
            reason=each.reason,
            count=each.messages,
            first=instant(each.first_ms),
            last=instant(each.last_ms),
            sample=letter_view(each.sample),
        )
        for each in found.reasons
    ]
    return ReasonList(
        topic=found.topic,
        reasons=reasons,
        scanned=found.scanned,
        total=found.total,
        is_complete=found.is_complete,
    )


def rehearsal_view(found: Rehearsal) -> RehearsalView:
    return RehearsalView(
        topic=found.topic,
        matched=found.matched,
        scanned=found.scanned,
        targets=found.targets,
        stranded=found.stranded,
        samples=[letter_view(each) for each in found.samples],
        is_complete=found.is_complete,
    )


def redrive_view(job: Job) -> RedriveView:
    return RedriveView(
        id=job.id,
        topic=job.topic,
        dead_letters=job.dead_letters,
        state=job.state.value,
        by=job.by,
        filter=_filter_view(job.filter),
        target=job.target,
        rate=job.rate,
        limit=job.limit,
        opened=instant(job.opened_ms),
        ended=None if job.ended_ms is None else instant(job.ended_ms),
        scanned=job.scanned,
        total=sum(job.ends.values()),
        moved=job.moved,
        failed=job.failed,
        error=job.error,
    )


def _filter_view(asked: Filter) -> RedriveFilter:
    key, key_base64 = None, asked.key
    if asked.key is not None:
        try:
            key, key_base64 = asked.key.decode(), None
        except UnicodeDecodeError:
            pass
    places = asked.places
    return RedriveFilter(
        group=asked.group,
        reason=asked.reason,
        reason_contains=asked.reason_contains,
        key=key,
        key_base64=key_base64,
        since=None if asked.since_ms is None else instant(asked.since_ms),
        until=None if asked.until_ms is None else instant(asked.until_ms),
        origin_partition=asked.partition,
        first_offset=asked.first_offset,
        last_offset=asked.last_offset,
        places=None if places is None else [Place(partition=of, offset=at) for of, at in places],
    )
