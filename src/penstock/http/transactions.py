"""Transactions over REST: joint ones from the beginning to the end, and those of Kafka producers to look at and abort.

Both kinds are shown in one set of states. A transactional id may be any text; in a path it is percent-encoded.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from penstock.broker.transactions.joint.coordinator import Lease
from penstock.broker.transactions.joint.messages import Ended
from penstock.broker.transactions.joint.transaction import JointTransaction
from penstock.broker.transactions.joint.writers import DEFAULT_WRITER
from penstock.broker.transactions.messages import Terminate
from penstock.broker.transactions.states import State as KafkaState
from penstock.broker.transactions.transaction import Transaction
from penstock.errors import InvalidTxnState, TransactionNotFound
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, reply
from penstock.http.forwarding import gather
from penstock.http.groups import PlaceView
from penstock.http.homes import coordinators, is_forwarded
from penstock.http.joint import idempotency_key_of
from penstock.http.message_types import instant
from penstock.http.queue_types import AckRequest, ReceiptResults, is_done, results_of
from penstock.http.queues import raise_if_unanswered
from penstock.model import TRANSACTIONS_TOPIC

TIMEOUT_MS: Final = 60_000
_TIMEOUT_MS_LIMIT: Final = (1 << 31) - 1
_WRITERS_LIMIT: Final = 10_000
_PARTLY: Final = 207

Kind = Literal["joint", "kafka"]
StateName = Literal["empty", "open", "committing", "aborting", "committed", "aborted"]
TimeoutMs = Annotated[int, Meta(ge=1, le=_TIMEOUT_MS_LIMIT)]
WriterName = Annotated[str, Meta(min_length=1, max_length=200)]

_KAFKA_STATES: Final[dict[KafkaState, StateName]] = {
    KafkaState.EMPTY: "empty",
    KafkaState.ONGOING: "open",
    KafkaState.PREPARE_COMMIT: "committing",
    KafkaState.PREPARE_ABORT: "aborting",
    KafkaState.COMPLETE_COMMIT: "committed",
    KafkaState.COMPLETE_ABORT: "aborted",
}


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timeout_ms: Annotated[TimeoutMs, Meta(description="Open for longer than this, it is aborted.")] = TIMEOUT_MS


class ExtendRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timeout_ms: Annotated[TimeoutMs | None, Meta(description="Another timeout from now on; default: as it was.")] = None


class CommitTransactionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    writers: Annotated[
        Annotated[list[WriterName], Meta(max_length=_WRITERS_LIMIT)] | None,
        Meta(description="Commit what these wrote and abort all else; default: commit everything."),
    ] = None


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A joint transaction that is open, and until when at least."""

    transaction: str
    timeout_ms: int
    expires_at: datetime | None


class EndView(msgspec.Struct, frozen=True, kw_only=True):
    """How a transaction ended: whose messages are seen now, and whose never will be."""

    transaction: str
    state: StateName
    committed_writers: list[str]
    aborted_writers: list[str]
    reason: Annotated[str | None, Meta(description="Why it was aborted: client, timeout, fenced or admin.")]


class TransactionView(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction; `partitions` counts those it wrote to. Of one that has ended these are no longer known."""

    transaction: str
    kind: Kind
    state: StateName
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


class ListQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[StateName | None, Meta(description="Only those in this state.")] = None
    kind: Annotated[Kind | None, Meta(description="Only joint ones, or only those of Kafka producers.")] = None
    limit: Annotated[int, Meta(ge=1, le=10_000, description="How many at most.")] = 1_000


class KindQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Annotated[Kind | None, Meta(description="Which one, should a transaction of each kind have this id.")] = None


# -- from the beginning to the end -------------------------------------------------------------------------------------


async def open_transaction(door: Door, call: Call[OpenRequest, None]) -> Reply:
    """Open a joint transaction, into which any number of writers can publish."""
    lease = await door.broker.joint.open(call.body.timeout_ms)
    return reply(_lease(lease), 201, [(b"location", f"/v1/transactions/{lease.id}".encode())])


async def extend_transaction(door: Door, call: Call[ExtendRequest, None]) -> LeaseView:
    """Let the time of a joint transaction start anew."""
    return _lease(await door.broker.joint.extend(_id_of(call), call.body.timeout_ms))


async def commit_transaction(door: Door, call: Call[CommitTransactionRequest, None]) -> EndView:
    """Commit a joint transaction and answer when readers see all of it."""
    name, writers = _id_of(call), call.body.writers
    chosen = None if writers is None else tuple(writers)
    return _end(name, await door.broker.joint.commit(name, key=idempotency_key_of(call), writers=chosen))


async def abort_transaction(door: Door, call: Call[None, KindQuery]) -> EndView:
    """Abort a transaction of either kind; the producer of a Kafka transaction is fenced by it."""
    name = _id_of(call)
    found = await _find(door, name, call.query.kind)
    if isinstance(found, JointTransaction):
        return _end(name, await door.broker.joint.abort(name))
    if found.state is KafkaState.PREPARE_COMMIT:
        raise InvalidTxnState(f"{name!r} is being committed; there is nothing to abort.")
    await door.broker.transactions.ask(name, Terminate())
    return EndView(transaction=name, state="aborted", committed_writers=[], aborted_writers=[], reason="admin")


async def ack_in_transaction(door: Door, call: Call[AckRequest, None]) -> ReceiptResults | Reply:
    """Ack messages of a queue group with the commit of a joint transaction: until then they are nobody else's.

    200 if all will be, 207 tells which will not: then abort it. An abort gives them back. Repeating the call is safe.
    """
    body, writer = call.body, call.header(b"penstock-writer") or DEFAULT_WRITER
    verdicts = await door.broker.queues.ack(body.group, body.receipts, transaction=_id_of(call), writer=writer)
    raise_if_unanswered(verdicts)
    results = ReceiptResults(results=results_of(verdicts, call.path))
    return results if all(map(is_done, verdicts)) else reply(results, _PARTLY)


# -- looking -----------------------------------------------------------------------------------------------------------


async def list_transactions(door: Door, call: Call[None, ListQuery]) -> TransactionList:
    """Transactions of both kinds, the last one begun first."""
    query, broker = call.query, door.broker
    await broker.joint.loaded()
    views: list[TransactionView] = []
    if query.kind != "kafka":
        views += [_joint_view(door, each) for each in broker.joint.all_transactions()]
    if query.kind != "joint":
        views += [_kafka_view(door, each) for each in broker.transactions.all_transactions()]
    if query.state is not None:
        views = [view for view in views if view.state == query.state]
    if not is_forwarded(call.scope):
        for other in await gather(door, call, coordinators(door, TRANSACTIONS_TOPIC), TransactionList):
            views += other.transactions
    views.sort(key=lambda view: (0 if view.age_ms is None else -view.age_ms, view.transaction), reverse=True)
    return TransactionList(transactions=views[: query.limit])


async def describe_transaction(door: Door, call: Call[None, KindQuery]) -> TransactionDetail:
    """One transaction with its writers and partitions."""
    found = await _find(door, _id_of(call), call.query.kind)
    return _joint_detail(door, found) if isinstance(found, JointTransaction) else _kafka_detail(door, found)


def _id_of(call: Call[Any, Any]) -> str:
    transaction_id: str = call.scope["path_params"]["transaction"]
    return transaction_id


async def _find(door: Door, name: str, kind: Kind | None) -> JointTransaction | Transaction:
    broker = door.broker
    await broker.joint.loaded()
    if kind != "kafka":
        try:
            return broker.joint.find(name)
        except TransactionNotFound:
            if kind == "joint":
                raise
    found = broker.transactions.find(name) if TRANSACTIONS_TOPIC in broker.metadata.topics else None
    if found is None:
        raise TransactionNotFound(f"There is no transaction {name!r}, or it ended too long ago.")
    return found


# -- views -------------------------------------------------------------------------------------------------------------


def _lease(lease: Lease) -> LeaseView:
    return LeaseView(transaction=lease.id, timeout_ms=lease.timeout_ms, expires_at=instant(lease.expires_ms))


def _end(name: str, ended: Ended) -> EndView:
    return EndView(
        transaction=name,
        state=_state(ended.state.value),
        committed_writers=list(ended.committed),
        aborted_writers=list(ended.aborted),
        reason=None if ended.reason is None else ended.reason.value,
    )


def _state(name: str) -> StateName:
    state: StateName = msgspec.convert(name, StateName)
    return state


def _joint_view(door: Door, found: JointTransaction) -> TransactionView:
    stored = found.stored
    assert stored is not None, "what is listed is stored"
    places = {(place.topic, place.partition) for writer in found.writers.values() for place in writer.places}
    return TransactionView(
        transaction=found.id,
        kind="joint",
        state=_state(stored.state.value),
        timeout_ms=stored.timeout_ms,
        started_at=instant(stored.opened_ms),
        age_ms=door.broker.clock.now_ms() - stored.opened_ms,
        producer_ids=[writer.producer_id for writer in found.writers.values()],
        partitions=len(places),
        reason=None if stored.reason is None else stored.reason.value,
    )


def _joint_detail(door: Door, found: JointTransaction) -> TransactionDetail:
    stored = found.stored
    assert stored is not None, "what is described is stored"
    expires_ms = door.broker.joint.expires_ms(found)
    places = {(place.topic, place.partition) for writer in found.writers.values() for place in writer.places}
    return TransactionDetail(
        **asdict(_joint_view(door, found)),
        producer_epoch=None,
        expires_at=None if expires_ms is None else instant(expires_ms),
        ended_at=instant(found.ended_ms),
        places=_places(places),
        writers=[
            WriterView(
                writer=name,
                producer_id=writer.producer_id,
                next_sequence=None if writer.call is None else writer.call.next_sequence,
                partitions=_places({(place.topic, place.partition) for place in writer.places}),
            )
            for name, writer in found.writers.items()
        ],
        committed_writers=list(stored.committed),
        aborted_writers=list(stored.aborted),
    )


def _kafka_view(door: Door, found: Transaction) -> TransactionView:
    stored = found.stored
    assert stored is not None, "what is listed is stored"
    return TransactionView(
        transaction=found.id,
        kind="kafka",
        state=_KAFKA_STATES[stored.state],
        timeout_ms=stored.timeout_ms,
        started_at=instant(found.started_ms),
        age_ms=None if found.started_ms < 0 else door.broker.clock.now_ms() - found.started_ms,
        producer_ids=[stored.producer_id],
        partitions=sum(map(len, stored.partitions.values())),
        reason=None if stored.reason is None else stored.reason.value,
    )


def _kafka_detail(door: Door, found: Transaction) -> TransactionDetail:
    stored = found.stored
    assert stored is not None, "what is described is stored"
    view = _kafka_view(door, found)
    is_open = stored.state is KafkaState.ONGOING and found.started_ms >= 0
    return TransactionDetail(
        **asdict(view),
        producer_epoch=stored.producer_epoch,
        expires_at=instant(found.started_ms + stored.timeout_ms) if is_open else None,
        ended_at=instant(found.updated_ms) if view.state in {"committed", "aborted"} else None,
        places=_places({(topic, index) for topic, indexes in stored.partitions.items() for index in indexes}),
        writers=[],
        committed_writers=[],
        aborted_writers=[],
    )


def _places(places: set[tuple[str, int]]) -> list[PlaceView]:
    return [PlaceView(topic=topic, partition=index) for topic, index in sorted(places)]
