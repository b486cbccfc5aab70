"""Series of joint transactions over REST: numbered ones, of which each number is committed once.

For jobs that work in batches and begin a batch again when they were killed, such as the sink of Spark: see
docs/explanation/joint-transactions.md.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from penstock.broker.transactions.joint.series import NOTHING, last_committed
from penstock.errors import InvalidRequest, TransactionNotFound
from penstock.http import homes
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, no_content
from penstock.http.message_types import instant
from penstock.http.operation import Operation
from penstock.http.transactions import StateName, TimeoutMs, WriterName

_TIMEOUT_MS: Final = 300_000
_WRITERS_LIMIT: Final = 10_000
_NAME: Final = re.compile(r"[A-Za-z0-9._:@/+=-]{1,200}")

Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1, description="Which batch of the series, counted by the writer.")]
Run = Annotated[
    str, Meta(min_length=1, max_length=64, description="Who writes: the same in all processes of one life of the job.")
]


class BeginRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    number: Number
    run: Run
    writer: Annotated[WriterName | None, Meta(description="Enrol this writer as well.")] = None
    timeout_ms: Annotated[TimeoutMs, Meta(description="Open for longer than this, it is aborted.")] = _TIMEOUT_MS


class CommitNumberRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    number: Number
    run: Run
    transaction: Annotated[str | None, Meta(description="What begin answered; null if nobody wrote anything.")] = None
    writers: Annotated[
        list[WriterName], Meta(max_length=_WRITERS_LIMIT, description="Commit what these wrote and abort all else.")
    ] = []


class AbortNumberRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    number: Number
    run: Run


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
    state: StateName


async def begin_number(door: Door, call: Call[BeginRequest, None]) -> BegunView:
    """Open the transaction of a number of a series, or join it; runs that wrote before are replaced."""
    series, body, joint = _series_of(call), call.body, door.broker.joint
    lease = await joint.begin(series, body.number, body.run, body.timeout_ms)
    if lease is None:
        return BegunView(series=series, number=body.number, state="committed")
    producer_id, epoch = (None, None) if body.writer is None else await joint.enroll(lease.id, body.writer)
    return BegunView(
        series=series,
        number=body.number,
        state="open",
        transaction=lease.id,
        expires_at=instant(lease.expires_ms),
        producer_id=producer_id,
        producer_epoch=epoch,
    )


async def commit_number(door: Door, call: Call[CommitNumberRequest, None]) -> CommittedNumber:
    """Commit a number of a series once: repeated in any way, this answers so and changes nothing."""
    series, body = _series_of(call), call.body
    is_new = await door.broker.joint.commit_number(
        series, body.number, body.run, transaction=body.transaction, writers=tuple(body.writers)
    )
    return CommittedNumber(series=series, number=body.number, repeated=not is_new)


async def abort_number(door: Door, call: Call[AbortNumberRequest, None]) -> Reply:
    """Abort what was written for a number of a series, if that is still open; else nothing happens."""
    await door.broker.joint.abort_number(_series_of(call), call.body.number, call.body.run)
    return no_content()


async def describe_series(door: Door, call: Call[None, None]) -> SeriesView:
    """What of a series is committed, and its last transaction."""
    series = _series_of(call)
    head = await door.broker.joint.head_of(series)
    stored = None if head is None else head.stored
    if head is None or stored is None or stored.part is None:
        raise TransactionNotFound(f"There is no series {series!r}, or it ended too long ago.")
    committed = last_committed(stored)
    return SeriesView(
        series=series,
        committed=None if committed == NOTHING else committed,
        number=stored.part.number,
        run=stored.part.run,
        transaction=head.id,
        state=msgspec.convert(stored.state.value, StateName),
    )


def _series_of(call: Call[Any, Any]) -> str:
    series: str = call.scope["path_params"]["series"]
    if not _NAME.fullmatch(series):
        raise InvalidRequest(
            f"{series!r} is no name for a series. Use 1 to 200 letters, digits and any of . _ : @ / + = -"
        )
    return series


_ERRORS: Final = (400, 404, 408, 409, 413, 422, 429, 503, 504, 507)

SERIES_OPERATIONS: Final = (
    Operation(
        "GET", "/v1/series/{series}", describe_series, "transactions", SeriesView, errors=(404, 503), home=homes.SERIES
    ),
    Operation(
        "POST",
        "/v1/series/{series}/begin",
        begin_number,
        "transactions",
        BegunView,
        errors=_ERRORS,
        home=homes.NEW_SERIES,
    ),
    Operation(
        "POST",
        "/v1/series/{series}/commit",
        commit_number,
        "transactions",
        CommittedNumber,
        errors=_ERRORS,
        home=homes.NEW_SERIES,
    ),
    Operation(
        "POST", "/v1/series/{series}/abort", abort_number, "transactions", None, 204, errors=_ERRORS, home=homes.SERIES
    ),
)
