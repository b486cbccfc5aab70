"""Series of joint transactions: numbered ones, of which each number is committed once.

For jobs that work in batches and begin a batch again when they were killed, such as the sink of Spark: see
docs/explanation/joint-transactions.md.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock import errors
from penstock.api import limits
from penstock.api.limits import SeriesName, TimeoutMs, WriterName
from penstock.api.operation import Action, Keeper, Repeat, Request, Resource, Where, operation
from penstock.api.transactions import TransactionState

Number = Annotated[
    int, Meta(ge=0, le=limits.INT64_MAX, description="Which batch of the series, counted by the writer.")
]
Run = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.RUN_CHARS_MAX,
        description="Who writes: the same in all processes of one life of the job.",
    ),
]

_AT_COORDINATOR: Final = Where(Keeper.SERIES, "series")
_AT_NEW_COORDINATOR: Final = Where(Keeper.SERIES, "series", makes=True)
_WRITE: Final = Action.WRITE.of(Resource.TRANSACTION, "series")
_ERRORS: Final = (
    errors.TransactionNotFound,
    errors.TransactionError,
    errors.TransactionLimitReached,
    errors.NotCoordinator,
    errors.RequestTimedOut,
    errors.DiskFull,
)


class BegunView(msgspec.Struct, frozen=True, kw_only=True):
    """What to write into. `committed`: that number is done, there is nothing to write, and the rest is null."""

    series: str
    number: int
    state: Literal["open", "committed"]
    transaction: str | None = None
    expires_at: datetime | None = None
    producer_id: Annotated[int | None, Meta(description="Of the writer that was enrolled, for its batches.")] = None
    producer_epoch: int | None = None


class CommittedNumber(msgspec.Struct, frozen=True, kw_only=True):
    """A number of a series is committed. `repeated`: it was before, and this call has changed nothing."""

    series: str
    number: int
    repeated: bool


class SeriesView(msgspec.Struct, frozen=True, kw_only=True):
    """A series: the last number that is committed, and its last transaction."""

    series: str
    committed: Annotated[int | None, Meta(description="The last number that is committed; null if none is.")]
    number: Annotated[int, Meta(description="That of the last transaction.")]
    run: str
    transaction: str
    state: TransactionState


@operation(
    "GET /v1/series/{series}",
    tag="transactions",
    needs=Action.DESCRIBE.of(Resource.TRANSACTION, "series"),
    repeat=Repeat.SAFE,
    errors=(errors.TransactionNotFound, errors.InvalidRequest, errors.NotCoordinator),
    where=_AT_COORDINATOR,
)
class DescribeSeries(Request[SeriesView], frozen=True, kw_only=True):
    """What of a series is committed, and its last transaction."""

    series: SeriesName


@operation(
    "POST /v1/series/{series}/begin",
    tag="transactions",
    needs=_WRITE,
    repeat=Repeat.SAME,
    errors=_ERRORS,
    where=_AT_NEW_COORDINATOR,
)
class BeginNumber(Request[BegunView], frozen=True, kw_only=True):
    """Open the transaction of a number of a series, or join it; runs that wrote before are replaced."""

    series: SeriesName
    number: Number
    run: Run
    writer: Annotated[WriterName | None, Meta(description="Enrol this writer as well.")] = None
    timeout_ms: Annotated[TimeoutMs, Meta(description="Open for longer than this, it is aborted.")] = (
        limits.SERIES_TIMEOUT_MS
    )


@operation(
    "POST /v1/series/{series}/commit",
    tag="transactions",
    needs=_WRITE,
    repeat=Repeat.SAME,
    errors=_ERRORS,
    where=_AT_NEW_COORDINATOR,
)
class CommitNumber(Request[CommittedNumber], frozen=True, kw_only=True):
    """Commit a number of a series once: repeated in any way, this answers so and changes nothing."""

    series: SeriesName
    number: Number
    run: Run
    transaction: Annotated[str | None, Meta(description="What begin answered; null if nobody wrote anything.")] = None
    writers: Annotated[
        list[WriterName],
        Meta(max_length=limits.WRITERS_MAX, description="Commit what these wrote and abort all else."),
    ] = []


@operation(
    "POST /v1/series/{series}/abort",
    tag="transactions",
    needs=_WRITE,
    repeat=Repeat.SAME,
    errors=_ERRORS,
    where=_AT_COORDINATOR,
)
class AbortNumber(Request[None], frozen=True, kw_only=True):
    """Abort what was written for a number of a series, if that is still open; else nothing happens."""

    series: SeriesName
    number: Number
    run: Run
