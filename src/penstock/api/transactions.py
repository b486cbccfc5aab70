"""Transactions: joint ones from the beginning to the end, and those of Kafka producers to look at and abort.

Both kinds are shown in one set of states. A transactional id may be any text; in a path it is percent-encoded.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock import errors
from penstock.api import limits
from penstock.api.cluster import PlaceView
from penstock.api.limits import DEFAULT_GROUP, GroupName, Receipts, TimeoutMs, WriterName
from penstock.api.messages import TICKET_HEADERS, Writer
from penstock.api.operation import Action, Header, Keeper, Repeat, Request, Resource, Where, operation
from penstock.api.queues import ReceiptResults, is_some_left

TransactionKind = Literal["joint", "kafka"]
TransactionState = Literal["empty", "open", "committing", "aborting", "committed", "aborted"]

_AT_COORDINATOR: Final = Where(Keeper.TRANSACTION, "transaction")
_WRITE: Final = Action.WRITE.of(Resource.TRANSACTION, "transaction")
_END_ERRORS: Final = (
    errors.TransactionNotFound,
    errors.TransactionError,
    errors.NotCoordinator,
    errors.RequestTimedOut,
    errors.DiskFull,
)
OfKind = Annotated[
    TransactionKind | None, Meta(description="Which one, should a transaction of each kind have this id.")
]


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A joint transaction that is open, and until when at least."""

    transaction: str
    timeout_ms: int
    expires_at: datetime | None


class EndView(msgspec.Struct, frozen=True, kw_only=True):
    """How a transaction ended: whose messages are seen now, and whose never will be."""

    transaction: str
    state: TransactionState
    committed_writers: list[str]
    aborted_writers: list[str]
    reason: Annotated[str | None, Meta(description="Why it was aborted: client, timeout, fenced or admin.")]


class TransactionView(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction; `partitions` counts those it wrote to. Of one that has ended these are no longer known."""

    transaction: str
    kind: TransactionKind
    state: TransactionState
    timeout_ms: int
    started_at: datetime | None
    age_ms: int | None
    producer_ids: list[int]
    partitions: int
    reason: str | None


class WriterView(msgspec.Struct, frozen=True, kw_only=True):
    """A writer of a joint transaction. `next_sequence` is null if it does not number its calls."""

    writer: str
    producer_id: int
    next_sequence: int | None
    partitions: list[PlaceView]


class TransactionDetail(TransactionView, frozen=True, kw_only=True):
    """A transaction with all that is known of it."""

    producer_epoch: int | None
    expires_at: datetime | None
    ended_at: datetime | None
    places: list[PlaceView]
    writers: list[WriterView]
    committed_writers: list[str]
    aborted_writers: list[str]


class TransactionList(msgspec.Struct, frozen=True, kw_only=True):
    transactions: list[TransactionView]


# -- from the beginning to the end -------------------------------------------------------------------------------------


@operation(
    "POST /v1/transactions",
    tag="transactions",
    needs=Action.CREATE.of(Resource.TRANSACTION),
    repeat=Repeat.AGAIN,
    errors=(errors.TransactionLimitReached, errors.NotCoordinator, errors.DiskFull),
    where=Where(Keeper.NEW_TRANSACTION, makes=True),
    status=201,
    location="/v1/transactions/{answer.transaction}",
    is_body_optional=True,
)
class OpenTransaction(Request[LeaseView], frozen=True, kw_only=True):
    """Open a joint transaction, into which any number of writers can publish."""

    timeout_ms: Annotated[TimeoutMs, Meta(description="Open for longer than this, it is aborted.")] = (
        limits.TRANSACTION_TIMEOUT_MS
    )


@operation(
    "POST /v1/transactions/{transaction}/extend",
    tag="transactions",
    needs=_WRITE,
    repeat=Repeat.SAME,
    errors=_END_ERRORS,
    where=_AT_COORDINATOR,
    is_body_optional=True,
)
class ExtendTransaction(Request[LeaseView], frozen=True, kw_only=True):
    """Let the time of a joint transaction start anew."""

    transaction: str
    timeout_ms: Annotated[TimeoutMs | None, Meta(description="Another timeout from now on; default: as it was.")] = None


@operation(
    "POST /v1/transactions/{transaction}/ack",
    tag="transactions",
    needs=(_WRITE, Action.READ.of(Resource.GROUP, "group"), Action.READ.of(Resource.TOPIC, "receipts")),
    repeat=Repeat.SAME,
    errors=_END_ERRORS,
    where=_AT_COORDINATOR,
    also={207: is_some_left},
    headers={"writer": TICKET_HEADERS["writer"]},
)
class AckInTransaction(Request[ReceiptResults], frozen=True, kw_only=True):
    """Ack messages of a queue group with the commit of a joint transaction: until then no other consumer gets them.

    200 if all will be, 207 tells which will not: then abort it. An abort gives them back. Repeating the call is safe.
    """

    transaction: str
    receipts: Receipts
    group: GroupName = DEFAULT_GROUP
    writer: Writer = None


@operation(
    "POST /v1/transactions/{transaction}/commit",
    tag="transactions",
    needs=_WRITE,
    repeat=Repeat.NAMED,
    key="key",
    errors=_END_ERRORS,
    where=_AT_COORDINATOR,
    headers={
        "key": Header(
            "Idempotency-Key", "Names this commit: repeated with the same key it is answered as the first time."
        )
    },
    is_body_optional=True,
)
class CommitTransaction(Request[EndView], frozen=True, kw_only=True):
    """Commit a joint transaction and answer when readers see all of it."""

    transaction: str
    writers: Annotated[
        Annotated[list[WriterName], Meta(max_length=limits.WRITERS_MAX)] | None,
        Meta(description="Commit what these wrote and abort all else; default: commit everything."),
    ] = None
    key: Annotated[str, Meta(pattern=limits.IDEMPOTENCY_KEY_PATTERN)] | None = None


@operation(
    "POST /v1/transactions/{transaction}/abort",
    tag="transactions",
    needs=_WRITE,
    repeat=Repeat.SAME,
    errors=_END_ERRORS,
    where=_AT_COORDINATOR,
    query=frozenset({"kind"}),
)
class AbortTransaction(Request[EndView], frozen=True, kw_only=True):
    """Abort a transaction of either kind; the producer of a Kafka transaction is fenced by it."""

    transaction: str
    kind: OfKind = None


# -- looking -----------------------------------------------------------------------------------------------------------


@operation(
    "GET /v1/transactions",
    tag="transactions",
    needs=Action.DESCRIBE.of(Resource.TRANSACTION),
    repeat=Repeat.SAFE,
    errors=(errors.NotCoordinator,),
)
class ListTransactions(Request[TransactionList], frozen=True, kw_only=True):
    """Transactions of both kinds, the last one begun first."""

    state: Annotated[TransactionState | None, Meta(description="Only those in this state.")] = None
    kind: Annotated[TransactionKind | None, Meta(description="Only joint ones, or only those of Kafka producers.")] = (
        None
    )
    limit: Annotated[int, Meta(ge=1, le=limits.TRANSACTIONS_LISTED_MAX, description="How many at most.")] = 1_000


@operation(
    "GET /v1/transactions/{transaction}",
    tag="transactions",
    needs=Action.DESCRIBE.of(Resource.TRANSACTION, "transaction"),
    repeat=Repeat.SAFE,
    errors=(errors.TransactionNotFound, errors.NotCoordinator),
    where=_AT_COORDINATOR,
)
class DescribeTransaction(Request[TransactionDetail], frozen=True, kw_only=True):
    """One transaction with its writers and partitions."""

    transaction: str
    kind: OfKind = None
