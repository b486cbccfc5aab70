"""Batches that their topic stores with another codec, compressed anew beside the event loop.

`Partition.append` compresses what came otherwise, whichever door it came through. That takes much longer than
writing the batch, so a produce request whose batches are not small has them done in a thread first; what came behind it
on its connection waits, as no later batch may overtake an earlier one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from penstock.broker.broker import Broker
from penstock.broker.partition import Partition
from penstock.broker.transactions.messages import Where
from penstock.cluster.topic_config import TopicSettings
from penstock.errors import PenstockError
from penstock.kafka.protocol.produce import PartitionRecords, Produce, TopicRecords
from penstock.records import accept_batch, recompress_batch
from penstock.records.header import CODEC_MASK

_INLINE_BYTES: Final = 4 * 1024
_ATTRIBUTES_AT: Final = 22  # the lower byte of a batch's attributes


def needs_thread(partition: Partition, records: memoryview) -> bool:
    """Whether a batch has to be compressed anew and is too large for the event loop."""
    codec = partition.settings.compression.codec
    if codec is None or len(records) <= _INLINE_BYTES:
        return False
    return records[_ATTRIBUTES_AT] & CODEC_MASK != codec


def large_in(broker: Broker, request: Produce) -> dict[Where, Partition]:
    """The batches of a request that are to be compressed anew before they are appended, by where they go."""
    found: dict[Where, Partition] = {}
    for name, partitions in request.topics:
        for index, records in partitions:
            if records is None or not broker.replicas.has(name, index):
                continue
            partition = broker.partition(name, index)
            if partition.is_leader and not partition.is_internal and needs_thread(partition, records):
                found[name, index] = partition
    return found


async def recompress(request: Produce, large: Mapping[Where, Partition]) -> tuple[Produce, dict[Where, PenstockError]]:
    """The request with these batches as their topics store them, and what is wrong with those that cannot be."""
    errors: dict[Where, PenstockError] = {}
    topics = []
    for name, partitions in request.topics:
        stored = []
        for index, records in partitions:
            partition = large.get((name, index))
            if partition is not None and records is not None:
                try:
                    records = await asyncio.to_thread(_recompress, partition.settings, records)
                except PenstockError as error:
                    errors[name, index] = error
            stored.append(PartitionRecords(index, records))
        topics.append(TopicRecords(name, tuple(stored)))
    return request._replace(topics=tuple(topics)), errors


def _recompress(settings: TopicSettings, records: memoryview) -> memoryview:
    codec = settings.compression.codec
    if codec is None or len(records) > settings.max_message_bytes:
        return records  # as it came, for `Partition.append` to judge
    accept_batch(records)
    return memoryview(recompress_batch(records, codec, settings.compression.level))
