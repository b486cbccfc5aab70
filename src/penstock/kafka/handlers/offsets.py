"""ListOffsets and OffsetForLeaderEpoch: where in a log something is."""

from __future__ import annotations

from collections import Counter
from typing import Final

from penstock.broker.partition import Partition
from penstock.errors import InvalidRequest, OffsetNotAvailable, PenstockError
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.fetching import READ_COMMITTED
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol.errors import ErrorCode
from penstock.kafka.protocol.offset_messages import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3  # from version 7 on (KIP-734)
_EARLIEST_LOCAL: Final = -4  # from version 8 on (KIP-405); everything is local here
_LATEST_TIERED: Final = -5  # from version 9 on (KIP-1005); nothing is tiered here


def list_offsets(exchange: Exchange, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Versions 1 to 9: the offset of a point in time, or of one of the special points above.

    A leader that is new may not know yet how far its log is committed (KIP-207); it says so, and clients ask again.
    From 2 on a reader of committed transactions is told of nothing at or behind the last stable offset.
    """
    is_committed_only = request.isolation_level == READ_COMMITTED
    named = Counter((topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions)
    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _list(exchange, topic.name, wanted, is_committed_only=is_committed_only)
                    if named[topic.name, wanted.partition_index] == 1
                    else _named_twice(wanted)  # as in Kafka
                    for wanted in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _list(
    exchange: Exchange, topic: str, wanted: ListOffsetsPartition, *, is_committed_only: bool
) -> ListOffsetsPartitionResponse:
    try:
        partition = exchange.broker.partition(topic, wanted.partition_index)
        partition.check_leader(wanted.current_leader_epoch)
        if not partition.is_watermark_known and wanted.timestamp not in (_EARLIEST, _EARLIEST_LOCAL, _LATEST_TIERED):
            raise OffsetNotAvailable(f"It is not known yet up to where {partition.id} is committed. Try again.")
        limit = partition.last_stable_offset if is_committed_only else partition.high_watermark
        offset, timestamp, epoch = _find(partition, wanted.timestamp, limit)
    except PenstockError as error:
        return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=error_code(error))
    return ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        error_code=ErrorCode.NONE,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch,
    )


def _named_twice(wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=ErrorCode.INVALID_REQUEST)


def _find(partition: Partition, timestamp: int, limit: int) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch) of something below ``limit``; -1 where there is none."""
    log = partition.log
    if timestamp == _LATEST:
        return limit, -1, partition.leader_epoch
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        epochs = log.epochs.items()
        first = next((start.epoch for start in reversed(epochs) if start.start_offset <= log.start_offset), -1)
        return log.start_offset, -1, first
    if timestamp == _LATEST_TIERED:
        return -1, -1, -1
    if timestamp < _LATEST_TIERED:
        raise InvalidRequest(f"{timestamp} is no point in time.")
    found = log.max_timestamp() if timestamp == _MAX_TIMESTAMP else log.find_time(timestamp)
    if found is None or found.offset >= limit:
        return -1, -1, -1
    return found.offset, found.timestamp, found.leader_epoch


def offset_for_leader_epoch(exchange: Exchange, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """Versions 2 to 4: where an epoch ended, so that a client can tell whether its position was cut away (KIP-320)."""
    return OffsetForLeaderEpochResponse(
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(_epoch_end(exchange, topic.topic, wanted) for wanted in topic.partitions),
            )
            for topic in request.topics
        )
    )


def _epoch_end(exchange: Exchange, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = exchange.broker.partition(topic, wanted.partition)
        partition.check_leader(wanted.current_leader_epoch)
    except PenstockError as error:
        return EpochEndOffset(error_code=error_code(error), partition=wanted.partition)
    if wanted.leader_epoch == partition.leader_epoch:
        epoch, end = wanted.leader_epoch, partition.log.end_offset
    else:
        epoch, end = partition.log.epochs.end_offset(wanted.leader_epoch, partition.log.end_offset)
    return EpochEndOffset(error_code=ErrorCode.NONE, partition=wanted.partition, leader_epoch=epoch, end_offset=end)


HANDLERS = (
    Handler(ListOffsetsRequest, list_offsets),
    Handler(OffsetForLeaderEpochRequest, offset_for_leader_epoch),
)
