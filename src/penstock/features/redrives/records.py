"""What is written about redrives to ``__redrives``: jobs, and which dead letters are done with.

The topic is compacted, and every record is whole: a job as it is now, or all marks among some thousand neighbours. The
key is a MessagePack array that begins with the dead-letter topic. Format: docs/formats/redrives.md.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from penstock.machines.journal import KeyedFormat

Span = tuple[int, int]  # first and last offset

BUCKET_OFFSETS: Final = 16_384  # so many neighbours share a record of marks, which keeps it small


class JobState(Enum):
    """How it is with a redrive."""

    RUNNING = "running"
    CANCELLING = "cancelling"  # what was begun is brought to its end first
    DONE = "done"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        return self in (JobState.DONE, JobState.CANCELLED)


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which dead letters are meant: those that all of this is true of. Times are of when they died."""

    topic: str | None = None  # where they came from
    group: str | None = None
    reason: str | None = None
    reason_contains: str | None = None
    key: bytes | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    partition: int | None = None  # where they came from
    first_offset: int | None = None
    last_offset: int | None = None
    places: list[tuple[int, int]] | None = None  # partition and offset among the dead letters


class RedriveTarget(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one plan that go to one partition; ``topic_id`` tells it from a later topic of the same name."""

    topic: str
    topic_id: str
    partition: int
    offsets: list[int]  # among the dead letters


class MovePlan(msgspec.Struct, frozen=True, array_like=True):
    """What is being moved now. It is written before anything is published, as a producer that does nothing else: so
    a leader that repeats it after a crash publishes nothing twice.
    """

    partition: int
    producer_id: int
    next_offset: int  # where to look on afterwards
    targets: list[RedriveTarget]
    stranded: int = 0  # messages that have nowhere to go
    reason: str | None = None  # and why


class RedriveJob(msgspec.Struct, frozen=True, kw_only=True):
    """A redrive: who asked for what, how far it is, what came of it. Kept after its end, to be shown."""

    id: str
    topic: str  # whose dead letters
    dead_letters: str  # where they are
    topic_id: str
    by: str
    filter: DeadLetterFilter
    target: str | None
    rate: float | None  # messages a second
    limit: int | None
    ends: dict[int, int]  # by partition: nothing that died later
    opened_ms: int
    state: JobState = JobState.RUNNING
    ended_ms: int | None = None
    cursors: dict[int, int] = {}
    scanned: int = 0
    moved: int = 0
    failed: int = 0
    error: str | None = None  # the last one
    plan: MovePlan | None = None


class RedrivenMarks(msgspec.Struct, frozen=True, array_like=True):
    """Which of some neighbours are done with."""

    topic_id: str
    spans: list[Span]


class JobKey(msgspec.Struct, frozen=True, tag="j", array_like=True):
    dead_letters: str
    job: str


class MarksKey(msgspec.Struct, frozen=True, tag="m", array_like=True):
    dead_letters: str
    partition: int
    bucket: int


class RedriveChange(msgspec.Struct, frozen=True):
    """One record to persist and apply; without a value it takes back what was there."""

    key: JobKey | MarksKey
    value: RedriveJob | RedrivenMarks | None


_format = KeyedFormat(RedriveChange, {JobKey: RedriveJob, MarksKey: RedrivenMarks}, "a redrive", codec=msgspec.msgpack)
to_record, from_record = _format.to_record, _format.from_record
