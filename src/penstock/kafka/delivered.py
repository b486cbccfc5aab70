"""Which records for later were delivered already, though what is left of their batch was never appended.

A node may die after it scheduled the records of a batch and before it appended the rest. The producer then sends the
batch again, to whoever leads by then; and where a schedule has come meanwhile, its id is forgotten and would be
scheduled a second time. But what has come lies in the partition, behind the producer's last batch, and bears that id.
So for some time after a change of leadership the first batch of each producer is held against it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final
from uuid import UUID

from penstock.broker.broker import Broker
from penstock.broker.partition import Partition
from penstock.broker.schedules.leading.targets import ID_HEADER
from penstock.errors import PenstockError
from penstock.records import decode_records, iter_batches

logger = logging.getLogger(__name__)

_WATCHFUL_SECONDS: Final = 600.0  # clients give up before
_WATCHFUL_MS: Final = int(_WATCHFUL_SECONDS * 1000)
_PIECE_BYTES: Final = 1024 * 1024
_MET_MAX: Final = 100_000


class Deliveries:
    """What came of schedules in the partitions that this node began to lead not long ago."""

    def __init__(self, broker: Broker) -> None:
        self._clock = broker.clock
        self._led_since: dict[tuple[UUID, int], float] = {}
        self._met: OrderedDict[tuple[int, str], None] = OrderedDict()  # leader epochs and producers
        broker.replicas.listen(self)

    def on_leadership_gained(self, partition: Partition) -> None:
        self._led_since[partition.topic_id, partition.id.partition] = self._clock.monotonic()

    def on_leadership_lost(self, partition: Partition) -> None:
        self._led_since.pop((partition.topic_id, partition.id.partition), None)

    async def of(self, partition: Partition, producer: str) -> frozenset[str]:
        """The ids, all of which begin with ``producer``, of what has come since its last batch was appended.

        Looks once for each producer: what comes behind its first batch was scheduled by nobody before.
        """
        since = self._led_since.get((partition.topic_id, partition.id.partition))
        if since is None or self._clock.monotonic() - since > _WATCHFUL_SECONDS:
            return frozenset()
        key = (partition.leader_epoch, producer)
        if key in self._met:
            return frozenset()
        found = await _ids_in(partition, producer, self._start(partition, producer))
        self._met[key] = None
        while len(self._met) > _MET_MAX:
            self._met.popitem(last=False)
        return found

    def _start(self, partition: Partition, producer: str) -> int:
        """From where on there may be what has come; of a producer that is not known here, by the time."""
        log = partition.log
        *_, producer_id, epoch, _ = producer.split(":")
        last = log.producers.last_offset_of(int(producer_id), int(epoch))
        if last < 0:
            recent = log.find_time(self._clock.now_ms() - _WATCHFUL_MS)
            last = log.end_offset if recent is None else recent.offset
        return max(last, log.start_offset)


async def _ids_in(partition: Partition, producer: str, offset: int) -> frozenset[str]:
    # Up to the end of the log, not only what is committed: a new leader may not know that yet of what was told to be.
    sought, log = producer.encode(), partition.log
    found: set[str] = set()
    try:
        while (piece := log.read(offset, _PIECE_BYTES, log.end_offset)) is not None:
            data = bytes(piece.read())
            is_there = sought in data
            for position, header in iter_batches(data):
                offset = header.next_offset
                if is_there:
                    found.update(_ids_of(data[position : position + header.size], sought))
            await asyncio.sleep(0)
    except PenstockError as error:
        logger.warning("%s cannot be searched for what has come of schedules: %s", partition.id, error.message)
    return frozenset(found)


def _ids_of(batch: bytes, sought: bytes) -> list[str]:
    if sought not in batch:
        return []
    return [
        value.decode()
        for record in decode_records(batch)
        for name, value in record.headers
        if name == ID_HEADER and value is not None and value.startswith(sought)
    ]
