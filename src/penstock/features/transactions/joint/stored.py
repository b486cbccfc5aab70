"""What a partition holds of a writer's numbered messages, asked of its leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

import msgspec

from penstock.consensus.records import NO_LEADER
from penstock.errors import LeaderNotAvailable, RequestTimedOut, UnknownTopic
from penstock.machines.leaders import Leaders
from penstock.network.port import Method
from penstock.partitions.partition import Partition
from penstock.records import decode_records, parse_header

_TIMEOUT_SECONDS: Final = 10.0


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """Look for records of a producer with the ``count`` sequence numbers from ``base`` on, from an offset on."""

    producer_id: int
    epoch: int
    base: int = 0
    count: int = 0
    start: int = 0


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What is there. Of each record that was found its offset and timestamp, in order; all of these are committed."""

    end_offset: int
    last_sequence: int
    found: tuple[tuple[int, int], ...] = ()


class Inquiry(msgspec.Struct, frozen=True):
    """A search in a partition of another node."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    search: Search


INQUIRE: Final = Method("joint.stored", Inquiry, Holding)


class NumberedSearch:
    """Searches in partitions wherever they are led."""

    def __init__(self, find: Callable[[str, int], Partition], leaders: Leaders) -> None:
        self._find = find
        self._leaders = leaders

    def serve(self) -> None:
        self._leaders.peers.serve(INQUIRE, self._on_inquiry)

    def glance(self, topic: str, index: int, search: Search) -> Holding | None:
        """What can be told at once: where the partition is led here, and no record has to be looked for."""
        assert search.count == 0, "records are not found at a glance"
        if self._leaders.leader_of(topic, index) != self._leaders.node_id:
            return None
        partition = self._find(topic, index)
        partition.check_leader()
        return _glance(partition, search)

    async def search(self, topic: str, index: int, search: Search) -> Holding:
        """Ask the partition's leader, once: the caller can ask again."""
        leaders = self._leaders
        assigned = leaders.metadata.partition(topic, index)
        if assigned.leader == leaders.node_id:
            return await _search(self._find(topic, index), search)
        if assigned.leader == NO_LEADER:
            raise LeaderNotAvailable(f"{topic}-{index} has no leader now. Try again in a moment.")
        topic_id = leaders.metadata.topic(topic).topic_id
        inquiry = Inquiry(topic_id, index, assigned.leader_epoch, search)
        received = await leaders.peers.call(assigned.leader, INQUIRE, inquiry, timeout_s=_TIMEOUT_SECONDS)
        holding: Holding = received.reply
        return holding

    async def _on_inquiry(self, _node_id: int, inquiry: Inquiry, _body: memoryview) -> Holding:
        topic = self._leaders.metadata.topic_by_id(inquiry.topic_id)
        if topic is None:
            raise UnknownTopic("This node does not know the topic, or not yet.")
        partition = self._find(topic.name, inquiry.partition)
        partition.check_leader(inquiry.leader_epoch)
        return await _search(partition, inquiry.search)


async def _search(partition: Partition, search: Search) -> Holding:
    partition.check_leader()
    holding = _glance(partition, search)
    count = min(max(holding.last_sequence + 1 - search.base, 0), search.count)
    if count == 0:
        return holding
    start = max(search.start, partition.log.start_offset)
    found = await asyncio.to_thread(_read, partition, search.producer_id, search.base, count, start)
    if found:
        await _committed(partition, found[-1][0] + 1)
    return msgspec.structs.replace(holding, found=tuple(found))


def _glance(partition: Partition, search: Search) -> Holding:
    last = partition.log.producers.last_sequence_of(search.producer_id, search.epoch)
    return Holding(end_offset=partition.log.end_offset, last_sequence=last)


async def _committed(partition: Partition, offset: int) -> None:
    try:
        error = await asyncio.wait_for(partition.committed(offset), _TIMEOUT_SECONDS / 2)
    except TimeoutError:
        raise RequestTimedOut(
            f"Messages in {partition.id} are written but not committed yet. Repeat the call to hear when they are."
        ) from None
    if error is not None:
        raise error


def _read(partition: Partition, producer_id: int, base: int, count: int, start: int) -> list[tuple[int, int]]:
    """Offset and timestamp of the producer's records with these sequence numbers. Runs in any thread."""
    found: list[tuple[int, int]] = []
    for batch in partition.log.batches(start):
        data = memoryview(batch.read())
        header = parse_header(data)
        if header.producer_id != producer_id or header.is_control:
            continue
        shift = header.base_sequence - header.base_offset
        found += [
            (record.offset, record.timestamp)
            for record in decode_records(data)
            if base <= record.offset + shift < base + count
        ]
        if len(found) >= count:
            break
    return found
