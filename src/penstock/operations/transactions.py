"""Serves transactions: joint ones from beginning to end, those of Kafka producers to look at and abort, and series."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec.structs import asdict

from penstock.api import limits
from penstock.api.cluster import PlaceView
from penstock.api.limits import DEFAULT_WRITER
from penstock.api.messages import instant
from penstock.api.queues import ReceiptResults
from penstock.api.series import (
    AbortNumber,
    BeginNumber,
    BegunView,
    CommitNumber,
    CommittedNumber,
    DescribeSeries,
    SeriesView,
)
from penstock.api.transactions import (
    AbortTransaction,
    AckInTransaction,
    CommitTransaction,
    DescribeTransaction,
    EndView,
    ExtendTransaction,
    LeaseView,
    ListTransactions,
    OpenTransaction,
    TransactionDetail,
    TransactionKind,
    TransactionList,
    TransactionState,
    TransactionView,
    WriterView,
)
from penstock.errors import InvalidRequest, InvalidTxnState, TransactionNotFound
from penstock.features.transactions.joint.coordinator import Lease
from penstock.features.transactions.joint.messages import JointEnd
from penstock.features.transactions.joint.shard import NOTHING, last_committed
from penstock.features.transactions.joint.transaction import JointTransaction
from penstock.features.transactions.messages import Terminate
from penstock.features.transactions.states import TransactionState as KafkaState
from penstock.features.transactions.transaction import Transaction
from penstock.model import TRANSACTIONS_TOPIC
from penstock.operations.asking import ask_each, coordinators
from penstock.operations.caller import Caller
from penstock.operations.queues import results_or_raise
from penstock.operations.services import Services
from penstock.operations.serving import serves

_SERIES_NAME: Final = re.compile(limits.SERIES_PATTERN)
_KAFKA_STATES: Final[dict[KafkaState, TransactionState]] = {
    KafkaState.EMPTY: "empty",
    KafkaState.ONGOING: "open",
    KafkaState.PREPARE_COMMIT: "committing",
    KafkaState.PREPARE_ABORT: "aborting",
    KafkaState.COMPLETE_COMMIT: "committed",
    KafkaState.COMPLETE_ABORT: "aborted",
}


# -- from the beginning to the end -------------------------------------------------------------------------------------


@serves(OpenTransaction)
async def open_transaction(services: Services, request: OpenTransaction, _caller: Caller) -> LeaseView:
    return _lease(await services.joint.open(request.timeout_ms))


@serves(ExtendTransaction)
async def extend_transaction(services: Services, request: ExtendTransaction, _caller: Caller) -> LeaseView:
    return _lease(await services.joint.extend(request.transaction, request.timeout_ms))


@serves(CommitTransaction)
async def commit_transaction(services: Services, request: CommitTransaction, _caller: Caller) -> EndView:
    name, writers = request.transaction, request.writers
    chosen = None if writers is None else tuple(writers)
    return _end(name, await services.joint.commit(name, key=request.key, writers=chosen))


@serves(AbortTransaction)
async def abort_transaction(services: Services, request: AbortTransaction, _caller: Caller) -> EndView:
    name = request.transaction
    found = await _find(services, name, request.kind)
    if isinstance(found, JointTransaction):
        return _end(name, await services.joint.abort(name))
    if found.state is KafkaState.PREPARE_COMMIT:
        raise InvalidTxnState(f"{name!r} is being committed; there is nothing to abort.")
    await services.transactions.ask(name, Terminate())
    return EndView(transaction=name, state="aborted", committed_writers=[], aborted_writers=[], reason="admin")


@serves(AckInTransaction)
async def ack_in_transaction(services: Services, request: AckInTransaction, caller: Caller) -> ReceiptResults:
    writer = request.writer or DEFAULT_WRITER
    verdicts = await services.queues.ack(
        request.group, request.receipts, transaction=request.transaction, writer=writer
    )
    return results_or_raise(verdicts, caller)


# -- looking -----------------------------------------------------------------------------------------------------------


@serves(ListTransactions)
async def list_transactions(services: Services, request: ListTransactions, caller: Caller) -> TransactionList:
    await services.joint.loaded()
    views: list[TransactionView] = []
    if request.kind != "kafka":
        views += [_joint_view(services, each) for each in services.joint.all_transactions()]
    if request.kind != "joint":
        views += [_kafka_view(services, each) for each in services.transactions.all_transactions()]
    if request.state is not None:
        views = [view for view in views if view.state == request.state]
    if not caller.is_forwarded:
        for other in await ask_each(services, coordinators(services, TRANSACTIONS_TOPIC), request, caller):
            views += other.transactions
    views.sort(key=lambda view: (0 if view.age_ms is None else -view.age_ms, view.transaction), reverse=True)
    return TransactionList(transactions=views[: request.limit])


@serves(DescribeTransaction)
async def describe_transaction(services: Services, request: DescribeTransaction, _caller: Caller) -> TransactionDetail:
    found = await _find(services, request.transaction, request.kind)
    if isinstance(found, JointTransaction):
        return _joint_detail(services, found)
    return _kafka_detail(services, found)


# -- series ------------------------------------------------------------------------------------------------------------


@serves(BeginNumber)
async def begin_number(services: Services, request: BeginNumber, _caller: Caller) -> BegunView:
    series, joint = _checked(request.series), services.joint
    lease = await joint.begin(series, request.number, request.run, request.timeout_ms)
    if lease is None:
        return BegunView(series=series, number=request.number, state="committed")
    producer_id, epoch = (None, None) if request.writer is None else await joint.enroll(lease.id, request.writer)
    return BegunView(
        series=series,
        number=request.number,
        state="open",
        transaction=lease.id,
        expires_at=instant(lease.expires_ms),
        producer_id=producer_id,
        producer_epoch=epoch,
    )


@serves(CommitNumber)
async def commit_number(services: Services, request: CommitNumber, _caller: Caller) -> CommittedNumber:
    series = _checked(request.series)
    is_new = await services.joint.commit_number(
        series, request.number, request.run, transaction=request.transaction, writers=tuple(request.writers)
    )
    return CommittedNumber(series=series, number=request.number, repeated=not is_new)


@serves(AbortNumber)
async def abort_number(services: Services, request: AbortNumber, _caller: Caller) -> None:
    await services.joint.abort_number(_checked(request.series), request.number, request.run)


@serves(DescribeSeries)
async def describe_series(services: Services, request: DescribeSeries, _caller: Caller) -> SeriesView:
    series = _checked(request.series)
    head = await services.joint.head_of(series)
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
        state=_state(stored.state.value),
    )


def _checked(series: str) -> str:
    if not _SERIES_NAME.fullmatch(series):
        raise InvalidRequest(
            f"{series!r} is no name for a series. Use 1 to 200 letters, digits and any of . _ : @ / + = -"
        )
    return series


async def _find(services: Services, name: str, kind: TransactionKind | None) -> JointTransaction | Transaction:
    await services.joint.loaded()
    if kind != "kafka":
        try:
            return services.joint.find(name)
        except TransactionNotFound:
            if kind == "joint":
                raise
    found = services.transactions.find(name) if TRANSACTIONS_TOPIC in services.metadata.topics else None
    if found is None:
        raise TransactionNotFound(f"There is no transaction {name!r}, or it ended too long ago.")
    return found


# -- views -------------------------------------------------------------------------------------------------------------


def _lease(lease: Lease) -> LeaseView:
    return LeaseView(transaction=lease.id, timeout_ms=lease.timeout_ms, expires_at=instant(lease.expires_ms))


def _end(name: str, ended: JointEnd) -> EndView:
    return EndView(
        transaction=name,
        state=_state(ended.state.value),
        committed_writers=list(ended.committed),
        aborted_writers=list(ended.aborted),
        reason=None if ended.reason is None else ended.reason.value,
    )


def _state(name: str) -> TransactionState:
    state: TransactionState = msgspec.convert(name, TransactionState)
    return state


def _joint_view(services: Services, found: JointTransaction) -> TransactionView:
    stored = found.stored
    assert stored is not None, "what is listed is stored"
    places = {(place.topic, place.partition) for writer in found.writers.values() for place in writer.places}
    return TransactionView(
        transaction=found.id,
        kind="joint",
        state=_state(stored.state.value),
        timeout_ms=stored.timeout_ms,
        started_at=instant(stored.opened_ms),
        age_ms=services.clock.now_ms() - stored.opened_ms,
        producer_ids=[writer.producer_id for writer in found.writers.values()],
        partitions=len(places),
        reason=None if stored.reason is None else stored.reason.value,
    )


def _joint_detail(services: Services, found: JointTransaction) -> TransactionDetail:
    stored = found.stored
    assert stored is not None, "what is described is stored"
    expires_ms = services.joint.expires_ms(found)
    places = {(place.topic, place.partition) for writer in found.writers.values() for place in writer.places}
    return TransactionDetail(
        **asdict(_joint_view(services, found)),
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


def _kafka_view(services: Services, found: Transaction) -> TransactionView:
    stored = found.stored
    assert stored is not None, "what is listed is stored"
    return TransactionView(
        transaction=found.id,
        kind="kafka",
        state=_KAFKA_STATES[stored.state],
        timeout_ms=stored.timeout_ms,
        started_at=instant(found.started_ms),
        age_ms=None if found.started_ms < 0 else services.clock.now_ms() - found.started_ms,
        producer_ids=[stored.producer_id],
        partitions=sum(map(len, stored.partitions.values())),
        reason=None if stored.reason is None else stored.reason.value,
    )


def _kafka_detail(services: Services, found: Transaction) -> TransactionDetail:
    stored = found.stored
    assert stored is not None, "what is described is stored"
    view = _kafka_view(services, found)
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
