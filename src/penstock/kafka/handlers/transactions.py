"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit, WriteTxnMarkers: transactions step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from penstock.broker.coordination.coordinator import resolve, shard_of
from penstock.broker.coordination.messages import ProducerIdentity, Rejected
from penstock.broker.groups.messages import CommitInTransaction, MemberIdentity, OffsetCommit, Settled
from penstock.broker.transactions.markers import Marker
from penstock.broker.transactions.messages import Where
from penstock.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    MessageTooLarge,
    NotCoordinator,
    PenstockError,
    TransactionAbortable,
    UnknownPartition,
)
from penstock.kafka.admission import coordinator_code, unconfirmed_error
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol import transaction_messages as wire
from penstock.kafka.protocol.errors import ErrorCode
from penstock.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, is_internal

_FIRST_FENCED_VERSION: Final = 2  # from here on of each of them clients know PRODUCER_FENCED
_FIRST_BUMPING_VERSION: Final = 5  # of EndTxn, whose answer is a new epoch from here on (KIP-890)
_FIRST_ADDING_VERSION: Final = 5  # of TxnOffsetCommit, which needs no AddOffsetsToTxn from here on
_FIRST_ABORTABLE_VERSION: Final = 4  # of TxnOffsetCommit


# -- AddPartitionsToTxn, AddOffsetsToTxn -------------------------------------------------------------------------------


async def add_partitions(
    exchange: Exchange, request: wire.AddPartitionsToTxnRequest
) -> wire.AddPartitionsToTxnResponse:
    """Versions 0 to 3; from 4 on brokers speak to each other. All partitions are taken in, or none."""
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    places = [(topic.name, index) for topic in request.topics for index in topic.partitions]
    refused = {where: code for where in places if (code := _refusal(exchange, where))}
    code = ErrorCode.OPERATION_NOT_ATTEMPTED
    if not refused:
        code = await _add(exchange, request.transactional_id, producer, frozenset(places))
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


def _refusal(exchange: Exchange, where: Where) -> ErrorCode:
    topic = exchange.broker.metadata.topics.get(where[0])
    if topic is None or not 0 <= where[1] < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.INVALID_TOPIC_EXCEPTION if is_internal(where[0]) else ErrorCode.NONE


async def _add(
    exchange: Exchange, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[Where]
) -> ErrorCode:
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    try:
        await exchange.broker.transactions.add(transactional_id, producer, partitions)
    except PenstockError as error:
        return coordinator_code(error, knows_fenced=exchange.version >= _FIRST_FENCED_VERSION)
    return ErrorCode.NONE


async def add_offsets(exchange: Exchange, request: wire.AddOffsetsToTxnRequest) -> wire.AddOffsetsToTxnResponse:
    """Versions 0 to 4. The partition that keeps the group's offsets becomes part of the transaction."""
    try:
        where = await _offsets_partition(exchange, request.group_id)
    except PenstockError as error:
        return wire.AddOffsetsToTxnResponse(error_code=error_code(error))
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    code = await _add(exchange, request.transactional_id, producer, frozenset({where}))
    return wire.AddOffsetsToTxnResponse(error_code=code)


async def _offsets_partition(exchange: Exchange, group_id: str) -> Where:
    topic = await exchange.broker.ensure_offsets_topic()
    return OFFSETS_TOPIC, shard_of(group_id, len(topic.partitions))


# -- EndTxn ------------------------------------------------------------------------------------------------------------


async def end_transaction(exchange: Exchange, request: wire.EndTxnRequest) -> wire.EndTxnResponse:
    """Versions 0 to 5. From 5 on the answer is who the producer is in its next transaction."""
    if not request.transactional_id:
        return wire.EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    try:
        producer = await exchange.broker.transactions.end(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            is_commit=request.committed,
            bumps=exchange.version >= _FIRST_BUMPING_VERSION,
        )
    except PenstockError as error:
        code = coordinator_code(error, knows_fenced=exchange.version >= _FIRST_FENCED_VERSION)
        return wire.EndTxnResponse(error_code=code)
    return wire.EndTxnResponse(
        error_code=ErrorCode.NONE, producer_id=producer.producer_id, producer_epoch=producer.epoch
    )


# -- TxnOffsetCommit ---------------------------------------------------------------------------------------------------


async def commit_offsets(exchange: Exchange, request: wire.TxnOffsetCommitRequest) -> wire.TxnOffsetCommitResponse:
    """Versions 0 to 5. From 3 on the member is named that has read (KIP-447), from 5 on the transaction is begun."""
    topics = exchange.broker.metadata.topics
    offsets = tuple(
        OffsetCommit(
            topic.name,
            row.partition_index,
            row.committed_offset,
            row.committed_leader_epoch,
            row.committed_metadata or "",
            topics[topic.name].topic_id.hex,
        )
        for topic in request.topics
        for row in topic.partitions
        if topic.name in topics and 0 <= row.partition_index < len(topics[topic.name].partitions)
    )
    known = {(commit.topic, commit.partition) for commit in offsets}
    refused: Mapping[Where, PenstockError] = {}
    code = ErrorCode.NONE
    try:
        refused = (await _commit(exchange, request, offsets)).refused
    except PenstockError as error:
        code = _commit_code(error, exchange.version)

    def outcome(where: Where) -> ErrorCode:
        if where not in known:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return error_code(refused[where]) if where in refused else code

    return wire.TxnOffsetCommitResponse(
        topics=tuple(
            wire.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    wire.TxnOffsetCommitResponsePartition(
                        partition_index=row.partition_index, error_code=outcome((topic.name, row.partition_index))
                    )
                    for row in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


async def _commit(
    exchange: Exchange, request: wire.TxnOffsetCommitRequest, offsets: tuple[OffsetCommit, ...]
) -> Settled:
    """Ask the transaction's coordinator first, wherever it is, and then in the turn of its answer the group's."""
    broker = exchange.broker
    where = await _offsets_partition(exchange, request.group_id)
    broker.groups.shard(request.group_id)  # whoever asks the wrong node adds nothing to a transaction
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    identity = MemberIdentity(
        member_id=request.member_id, instance_id=request.group_instance_id, generation=request.generation_id
    )
    commit = CommitInTransaction(identity, producer, offsets)
    future: asyncio.Future[Settled | Rejected] = asyncio.get_running_loop().create_future()

    def on_admitted(missing: frozenset[Where] | Rejected) -> None:
        if isinstance(missing, Rejected):
            # Of the other coordinator: whoever asks has to hear that it is this one's turn to try again.
            later = isinstance(missing.error, NotCoordinator)
            resolve(future, Rejected(CoordinatorLoading(missing.error.message)) if later else missing)
        elif missing:
            resolve(future, Rejected(unconfirmed_error(where)))
        else:
            try:
                broker.groups.shard(request.group_id).ask(request.group_id, commit, partial(resolve, future))
            except PenstockError as error:
                resolve(future, Rejected(error))

    is_adding = exchange.version >= _FIRST_ADDING_VERSION
    broker.transactions.admit(request.transactional_id, producer, frozenset({where}), on_admitted, adds=is_adding)
    answer = await future
    if isinstance(answer, Rejected):
        raise answer.error
    return answer


def _commit_code(error: PenstockError, version: int) -> ErrorCode:
    match error:
        case MessageTooLarge():
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        case TransactionAbortable() if version < _FIRST_ABORTABLE_VERSION:
            return ErrorCode.INVALID_TXN_STATE
        case ConcurrentTransactions() if version < _FIRST_ADDING_VERSION:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return error_code(error)


# -- WriteTxnMarkers ---------------------------------------------------------------------------------------------------


async def write_markers(exchange: Exchange, request: wire.WriteTxnMarkersRequest) -> wire.WriteTxnMarkersResponse:
    """Versions 1 and 2. For operators who end what is open in a partition and known to no coordinator."""
    return wire.WriteTxnMarkersResponse(
        markers=tuple(
            [
                wire.WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=tuple(
                        [
                            wire.WritableTxnMarkerTopicResult(
                                name=topic.name,
                                partitions=tuple(
                                    [
                                        wire.WritableTxnMarkerPartitionResult(
                                            partition_index=index,
                                            error_code=await _write_marker(exchange, marker, (topic.name, index)),
                                        )
                                        for index in topic.partition_indexes
                                    ]
                                ),
                            )
                            for topic in marker.topics
                        ]
                    ),
                )
                for marker in request.markers
            ]
        )
    )


async def _write_marker(exchange: Exchange, written: wire.WritableTxnMarker, where: Where) -> ErrorCode:
    producer = ProducerIdentity(written.producer_id, written.producer_epoch)
    marker = Marker(producer, written.transaction_result, written.coordinator_epoch)
    try:
        if where[0] == TRANSACTIONS_TOPIC:
            raise UnknownPartition(f"Nothing in {TRANSACTIONS_TOPIC} is part of a transaction.")
        partition, offset = exchange.broker.transactions.markers.local.append(marker, where)
        committed: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
        partition.when_committed(offset, partial(resolve, committed))
        error = await committed
    except PenstockError as refused:
        error = refused
    return ErrorCode.NONE if error is None else error_code(error)


HANDLERS = (
    Handler(wire.AddPartitionsToTxnRequest, add_partitions),
    Handler(wire.AddOffsetsToTxnRequest, add_offsets),
    Handler(wire.EndTxnRequest, end_transaction),
    Handler(wire.TxnOffsetCommitRequest, commit_offsets),
    Handler(wire.WriteTxnMarkersRequest, write_markers),
)
