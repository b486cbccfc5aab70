"""InitProducerId and transactions step by step; WriteTxnMarkers, and what tools list and describe of transactions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from typing import Final

from penstock.access.acls import AclAction, AclResource
from penstock.doors.kafka.errors import (
    FIRST_ADDING_COMMIT_VERSION,
    coordinator_error_code,
    error_code,
    transactional_commit_error_code,
)
from penstock.doors.kafka.handler import Handler, RequestContext, error_codes
from penstock.doors.kafka.handlers.offsets import commit_codes, commits_of
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages import transactions as wire
from penstock.doors.kafka.protocol.messages.shared import TopicAndPartitions
from penstock.errors import (
    CoordinatorLoading,
    InvalidRequest,
    NotCoordinator,
    PenstockError,
    TransactionalIdNotFound,
)
from penstock.features.groups.messages import CommitInTransaction, MemberIdentity, OffsetCommit, Settled
from penstock.features.transactions.claims import unconfirmed_error
from penstock.features.transactions.markers import EndMarker
from penstock.features.transactions.messages import Where
from penstock.features.transactions.states import TransactionState
from penstock.features.transactions.transaction import Transaction
from penstock.machines.leaders import shard_of
from penstock.machines.messages import ProducerIdentity, Rejected
from penstock.machines.shard import resolve
from penstock.model import OFFSETS_TOPIC, is_internal
from penstock.partitions.partition import Partition

_NO_PRODUCER_ID: Final = -1
_FIRST_INIT_FENCED_VERSION: Final = 4  # from here on of InitProducerId clients know PRODUCER_FENCED
_FIRST_FENCED_VERSION: Final = 2  # and from here on of the others
_FIRST_BUMPING_VERSION: Final = 5  # of EndTxn, whose answer is a new epoch from here on (KIP-890)
_PATTERN_CHARS_MAX: Final = 256

# -- InitProducerId ----------------------------------------------------------------------------------------------------


async def init_producer_id(context: RequestContext, request: wire.InitProducerIdRequest) -> wire.InitProducerIdResponse:
    """Versions 0 to 5. From 3 on a producer may say who it was and ask for a new epoch (KIP-360).

    A producer that is only idempotent gets a new id instead.
    """
    broker = context.broker
    expected = None
    if request.producer_id != _NO_PRODUCER_ID:
        expected = ProducerIdentity(request.producer_id, request.producer_epoch)
    try:
        if request.transactional_id is None:
            producer = ProducerIdentity(await broker.allocate_producer_id(), 0)
        else:
            timeout_ms = request.transaction_timeout_ms
            producer = await broker.transactions.init(request.transactional_id, timeout_ms, expected)
    except PenstockError as error:
        code = coordinator_error_code(error, knows_fenced=context.version >= _FIRST_INIT_FENCED_VERSION)
        return wire.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    return wire.InitProducerIdResponse(
        error_code=ErrorCode.NONE, producer_id=producer.producer_id, producer_epoch=producer.epoch
    )


# -- AddPartitionsToTxn, AddOffsetsToTxn -------------------------------------------------------------------------------


async def add_partitions(
    context: RequestContext, request: wire.AddPartitionsToTxnRequest
) -> wire.AddPartitionsToTxnResponse:
    """Versions 0 to 3; from 4 on brokers speak to each other. All partitions are added, or none."""
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    places = [(topic.name, index) for topic in request.topics for index in topic.partitions]
    refused = {where: code for where in places if (code := _refusal(context, where))}
    code = ErrorCode.OPERATION_NOT_ATTEMPTED
    if not refused:
        code = await _add(context, request.transactional_id, producer, frozenset(places))
    return wire.AddPartitionsToTxnResponse(
        results=tuple(
            wire.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    wire.AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=refused.get((topic.name, index), code)
                    )
                    for index in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _refusal(context: RequestContext, where: Where) -> ErrorCode:
    if not context.has_partition(*where):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.INVALID_TOPIC_EXCEPTION if is_internal(where[0]) else ErrorCode.NONE


async def _add(
    context: RequestContext, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[Where]
) -> ErrorCode:
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    try:
        await context.broker.transactions.add(transactional_id, producer, partitions)
    except PenstockError as error:
        return coordinator_error_code(error, knows_fenced=context.version >= _FIRST_FENCED_VERSION)
    return ErrorCode.NONE


async def add_offsets(context: RequestContext, request: wire.AddOffsetsToTxnRequest) -> wire.AddOffsetsToTxnResponse:
    """Versions 0 to 4. The partition that keeps the group's offsets becomes part of the transaction."""
    try:
        where = await _offsets_partition(context, request.group_id)
    except PenstockError as error:
        return wire.AddOffsetsToTxnResponse(error_code=error_code(error))
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    code = await _add(context, request.transactional_id, producer, frozenset({where}))
    return wire.AddOffsetsToTxnResponse(error_code=code)


async def _offsets_partition(context: RequestContext, group_id: str) -> Where:
    topic = await context.broker.ensure_offsets_topic()
    return OFFSETS_TOPIC, shard_of(group_id, len(topic.partitions))


# -- EndTxn ------------------------------------------------------------------------------------------------------------


async def end_transaction(context: RequestContext, request: wire.EndTxnRequest) -> wire.EndTxnResponse:
    """Versions 0 to 5. From 5 on the answer is the producer's identity in its next transaction."""
    if not request.transactional_id:
        return wire.EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    try:
        producer = await context.broker.transactions.end(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            is_commit=request.committed,
            bumps=context.version >= _FIRST_BUMPING_VERSION,
        )
    except PenstockError as error:
        code = coordinator_error_code(error, knows_fenced=context.version >= _FIRST_FENCED_VERSION)
        return wire.EndTxnResponse(error_code=code)
    return wire.EndTxnResponse(
        error_code=ErrorCode.NONE, producer_id=producer.producer_id, producer_epoch=producer.epoch
    )


# -- TxnOffsetCommit ---------------------------------------------------------------------------------------------------


async def commit_offsets(context: RequestContext, request: wire.TxnOffsetCommitRequest) -> wire.TxnOffsetCommitResponse:
    """Versions 0 to 5. From 3 on with the member that has read (KIP-447); from 5 on it may begin the transaction."""
    commits = commits_of(context, request.topics)
    refused: Mapping[Where, PenstockError] = {}
    code = ErrorCode.NONE
    try:
        refused = (await _commit(context, request, commits)).refused
    except PenstockError as error:
        code = transactional_commit_error_code(error, context.version)
    topics = [(topic.name, [row.partition_index for row in topic.partitions]) for topic in request.topics]
    return wire.TxnOffsetCommitResponse(topics=error_codes(topics, commit_codes(commits, refused, code)))


async def _commit(
    context: RequestContext, request: wire.TxnOffsetCommitRequest, offsets: tuple[OffsetCommit, ...]
) -> Settled:
    """Ask the transaction's coordinator first, on any node, and in the turn of its answer the group's."""
    broker = context.broker
    where = await _offsets_partition(context, request.group_id)
    broker.groups.shard(request.group_id)  # refuse here, before the transaction gains a partition
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    identity = MemberIdentity(
        member_id=request.member_id, instance_id=request.group_instance_id, generation=request.generation_id
    )
    commit = CommitInTransaction(identity, producer, offsets)
    future: asyncio.Future[Settled | Rejected] = asyncio.get_running_loop().create_future()

    def on_admitted(missing: frozenset[Where] | Rejected) -> None:
        if isinstance(missing, Rejected):
            # It was the other coordinator that refused: the client must try again here, not look for another one.
            later = isinstance(missing.error, NotCoordinator)
            resolve(future, Rejected(CoordinatorLoading(missing.error.message)) if later else missing)
        elif missing:
            resolve(future, Rejected(unconfirmed_error(where)))
        else:
            try:
                broker.groups.shard(request.group_id).ask(request.group_id, commit, partial(resolve, future))
            except PenstockError as error:
                resolve(future, Rejected(error))

    is_adding = context.version >= FIRST_ADDING_COMMIT_VERSION
    broker.transactions.admit(request.transactional_id, producer, frozenset({where}), on_admitted, adds=is_adding)
    answer = await future
    if isinstance(answer, Rejected):
        raise answer.error
    return answer


# -- WriteTxnMarkers ---------------------------------------------------------------------------------------------------


async def write_markers(context: RequestContext, request: wire.WriteTxnMarkersRequest) -> wire.WriteTxnMarkersResponse:
    """Versions 1 and 2. For operators who end what is open in a partition and unknown to every coordinator."""
    results = []
    for written in request.markers:
        producer = ProducerIdentity(written.producer_id, written.producer_epoch)
        marker = EndMarker(producer, written.transaction_result, written.coordinator_epoch)
        topics = [(topic.name, topic.partition_indexes) for topic in written.topics]
        codes = {
            (name, index): await _write_marker(context, marker, (name, index))
            for name, indexes in topics
            for index in indexes
        }
        result = wire.WritableTxnMarkerResult(producer_id=written.producer_id, topics=error_codes(topics, codes))
        results.append(result)
    return wire.WriteTxnMarkersResponse(markers=tuple(results))


async def _write_marker(context: RequestContext, marker: EndMarker, where: Where) -> ErrorCode:
    try:
        await context.broker.transactions.write_marker(marker, where)
    except PenstockError as error:
        return error_code(error)
    return ErrorCode.NONE


# -- DescribeTransactions, ListTransactions, DescribeProducers ---------------------------------------------------------


async def describe_transactions(
    context: RequestContext, request: wire.DescribeTransactionsRequest
) -> wire.DescribeTransactionsResponse:
    """Version 0."""
    return wire.DescribeTransactionsResponse(
        transaction_states=tuple([await _describe(context, name) for name in request.transactional_ids])
    )


async def _describe(context: RequestContext, name: str) -> wire.DescribedTransaction:
    """Read first, then wait until what was read is committed."""
    transactions = context.broker.transactions
    try:
        if not name:
            raise InvalidRequest("A transactional id must not be empty.")
        found = transactions.find(name)
        stored = None if found is None else found.stored
        if found is None or stored is None:
            raise TransactionalIdNotFound(f"There is no transactional id {name!r}.")
        described = wire.DescribedTransaction(
            error_code=ErrorCode.NONE,
            transactional_id=name,
            transaction_state=stored.state.value,
            transaction_timeout_ms=stored.timeout_ms,
            transaction_start_time_ms=found.started_ms if found.is_open else -1,
            producer_id=stored.producer_id,
            producer_epoch=stored.producer_epoch,
            topics=tuple(
                TopicAndPartitions(topic=topic, partitions=indexes)
                for topic, indexes in stored.partitions.items()
                if context.caller.may_topic(AclAction.DESCRIBE, topic)
            ),
        )
        await transactions.settled(name)
    except PenstockError as error:
        return wire.DescribedTransaction(
            error_code=error_code(error),
            transactional_id=name,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=-1,
            producer_id=-1,
            producer_epoch=-1,
            topics=(),
        )
    return described


def list_transactions(context: RequestContext, request: wire.ListTransactionsRequest) -> wire.ListTransactionsResponse:
    """Versions 0 to 2. From 1 on by how long they have been open, from 2 on by a pattern of their ids."""
    known = {state.value for state in TransactionState}
    unknown = tuple(name for name in request.state_filters if name not in known)
    now_ms = context.broker.clock.now_ms()
    try:
        pattern = _compiled(request.transactional_id_pattern)
        found = context.broker.transactions.all_transactions()
    except PenstockError as error:
        return wire.ListTransactionsResponse(
            error_code=error_code(error), unknown_state_filters=(), transaction_states=()
        )
    if request.state_filters and len(unknown) == len(request.state_filters):
        found = []
    return wire.ListTransactionsResponse(
        error_code=ErrorCode.NONE,
        unknown_state_filters=unknown,
        transaction_states=tuple(
            wire.ListedTransaction(
                transactional_id=each.id,
                producer_id=each.stored.producer_id,
                transaction_state=each.stored.state.value,
            )
            for each in found
            if each.stored is not None
            and _is_wanted(each, request, now_ms)
            and pattern.fullmatch(each.id)
            and context.caller.may(AclAction.DESCRIBE, AclResource.TRANSACTIONAL_ID, each.id)
        ),
    )


def _compiled(pattern: str | None) -> re.Pattern[str]:
    if not pattern:
        return re.compile(r".*", re.DOTALL)
    try:
        if len(pattern) > _PATTERN_CHARS_MAX:
            raise InvalidRequest(f"A pattern may have {_PATTERN_CHARS_MAX} characters.")
        return re.compile(pattern)
    except re.error as error:
        raise InvalidRequest(f"{pattern!r} is not a regular expression: {error}.") from error


def _is_wanted(transaction: Transaction, request: wire.ListTransactionsRequest, now_ms: int) -> bool:
    stored = transaction.stored
    assert stored is not None
    if request.state_filters and stored.state.value not in request.state_filters:
        return False
    if request.producer_id_filters and stored.producer_id not in request.producer_id_filters:
        return False
    if request.duration_filter < 0:
        return True
    return transaction.is_open and now_ms - transaction.started_ms > request.duration_filter


def describe_producers(
    context: RequestContext, request: wire.DescribeProducersRequest
) -> wire.DescribeProducersResponse:
    """Version 0. The producers that have written to a partition, and what each has open there."""
    return wire.DescribeProducersResponse(
        topics=tuple(
            wire.TopicResponse(
                name=topic.name,
                partitions=tuple(_producers(context, topic.name, index) for index in topic.partition_indexes),
            )
            for topic in request.topics
        )
    )


def _producers(context: RequestContext, name: str, index: int) -> wire.PartitionResponse:
    try:
        partition = context.broker.partition(name, index)
        partition.check_leader()
    except PenstockError as error:
        return wire.PartitionResponse(
            partition_index=index, error_code=error_code(error), error_message=error.message, active_producers=()
        )
    return wire.PartitionResponse(
        partition_index=index, error_code=ErrorCode.NONE, active_producers=tuple(_active(partition))
    )


def _active(partition: Partition) -> list[wire.ProducerState]:
    return [
        wire.ProducerState(
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.batches[-1].last_sequence if producer.batches else -1,
            last_timestamp=producer.last_timestamp,
            coordinator_epoch=producer.coordinator_epoch,
            current_txn_start_offset=producer.first_offset,
        )
        for producer_id, producer in partition.log.producers.items()
    ]


HANDLERS = (
    Handler(wire.InitProducerIdRequest, init_producer_id),
    Handler(wire.AddPartitionsToTxnRequest, add_partitions),
    Handler(wire.AddOffsetsToTxnRequest, add_offsets),
    Handler(wire.EndTxnRequest, end_transaction),
    Handler(wire.TxnOffsetCommitRequest, commit_offsets),
    Handler(wire.WriteTxnMarkersRequest, write_markers),
    Handler(wire.DescribeTransactionsRequest, describe_transactions),
    Handler(wire.ListTransactionsRequest, list_transactions),
    Handler(wire.DescribeProducersRequest, describe_producers),
)
