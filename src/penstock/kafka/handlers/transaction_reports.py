"""DescribeTransactions, ListTransactions, DescribeProducers: what tools show of transactions."""

from __future__ import annotations

import re
from typing import Final

from penstock.broker.partition import Partition
from penstock.broker.transactions.states import State
from penstock.broker.transactions.transaction import Transaction
from penstock.errors import InvalidRequest, PenstockError, TransactionalIdNotFound
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol import transaction_messages as wire
from penstock.kafka.protocol.errors import ErrorCode

_PATTERN_CHARS_MAX: Final = 256


async def describe_transactions(
    exchange: Exchange, request: wire.DescribeTransactionsRequest
) -> wire.DescribeTransactionsResponse:
    """Version 0."""
    return wire.DescribeTransactionsResponse(
        transaction_states=tuple([await _describe(exchange, name) for name in request.transactional_ids])
    )


async def _describe(exchange: Exchange, name: str) -> wire.DescribedTransaction:
    """Read first, then wait until what was read is committed."""
    transactions = exchange.broker.transactions
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
                wire.TopicData(topic=topic, partitions=indexes) for topic, indexes in stored.partitions.items()
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


def list_transactions(exchange: Exchange, request: wire.ListTransactionsRequest) -> wire.ListTransactionsResponse:
    """Versions 0 to 2. From 1 on by how long they have been open, from 2 on by a pattern of their ids."""
    known = {state.value for state in State}
    unknown = tuple(name for name in request.state_filters if name not in known)
    now_ms = exchange.broker.clock.now_ms()
    try:
        pattern = _compiled(request.transactional_id_pattern)
        found = exchange.broker.transactions.all_transactions()
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
            if each.stored is not None and _is_wanted(each, request, now_ms) and pattern.fullmatch(each.id)
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


def describe_producers(exchange: Exchange, request: wire.DescribeProducersRequest) -> wire.DescribeProducersResponse:
    """Version 0. Who has written to a partition, and what each has open there."""
    return wire.DescribeProducersResponse(
        topics=tuple(
            wire.TopicResponse(
                name=topic.name,
                partitions=tuple(_producers(exchange, topic.name, index) for index in topic.partition_indexes),
            )
            for topic in request.topics
        )
    )


def _producers(exchange: Exchange, name: str, index: int) -> wire.PartitionResponse:
    try:
        partition = exchange.broker.partition(name, index)
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
    Handler(wire.DescribeTransactionsRequest, describe_transactions),
    Handler(wire.ListTransactionsRequest, list_transactions),
    Handler(wire.DescribeProducersRequest, describe_producers),
)
