"""Messages out of a partition, for the doors that speak of messages and not of batches.

Only what is committed is seen: nothing of an open transaction or behind its beginning, and nothing of an aborted one.
Looking never consumes: the caller says from which offset, and is told from which to go on. An answer is bounded in
messages and in bytes, and a reader at the end of the log can wait there for more. Where the partition is led by another
node, that node is asked.

Batches of a partition as they are stored, for readers that decode on their own side.

What no consumer may see is left out: batches of control records and of aborted transactions. Everything else is
committed, and not looked into.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from penstock.errors import CorruptRecords, DamagedRecords, PenstockError, UnknownTopic
from penstock.machines.ports import Ports
from penstock.model import TopicPartition
from penstock.partitions.access import Start
from penstock.partitions.beside import beside
from penstock.partitions.partition import Partition
from penstock.records import Record, decode_records, iter_batches, size_of_headers
from penstock.storage.aborted import AbortedRanges, AbortedTransaction

READ_BYTES_MAX: Final = 4 * 1024 * 1024
# Bytes taken off the log at a time: a caller who wants one message should not pay for megabytes.
_STEP_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """Messages in order, where to read on, and how far the partition reaches."""

    messages: list[Record]
    next_offset: int
    high_watermark: int
    log_start_offset: int


async def read_messages(
    ports: Ports,
    topic: str,
    index: int,
    start: Start,
    *,
    limit: int,
    wait_ms: int = 0,
    max_bytes: int = READ_BYTES_MAX,
) -> ReadResult:
    """Up to ``limit`` messages from ``start`` on; if there are none yet, whatever comes within ``wait_ms``.

    Cancelling it while it waits leaves nothing behind.
    """
    partition = ports.partitions.local(topic, index)
    if partition is None:
        return await _read_elsewhere(ports, topic, index, start, limit, wait_ms, max_bytes)
    offset = await ports.partitions.locate(topic, index, start)
    result = await _read(partition, offset, limit, max_bytes)
    if result.messages or wait_ms <= 0:
        return result
    moved = asyncio.Event()
    partition.watch(moved.set)
    try:
        async with asyncio.timeout(wait_ms / 1000):
            while not result.messages:
                await moved.wait()
                moved.clear()
                if ports.partitions.get(topic, index) is not partition:
                    raise UnknownTopic(f"Topic {topic!r} was deleted while you waited; there is another of that name.")
                partition.check_leader()
                result = await _read(partition, result.next_offset, limit, max_bytes)
    except TimeoutError:
        pass
    finally:
        partition.unwatch(moved.set)
    return result


async def _read(partition: Partition, offset: int, limit: int, max_bytes: int) -> ReadResult:
    page = _Page(offset, limit, max_bytes)
    while not page.is_full:
        try:
            found = partition.read(page.next_offset, min(_STEP_BYTES, max_bytes), is_committed_only=True)
        except DamagedRecords:
            if page.messages:
                break  # what is readable first; the next call meets the damage
            raise
        if found is None:
            break
        aborted = partition.aborted_in(page.next_offset, found.next_offset)
        data = memoryview(found.read())
        if not await beside(data, partial(page.fill, data, aborted, partition.id)):
            break
    partition.stats.messages_consumed += len(page.messages)
    partition.stats.bytes_consumed += page.size
    return ReadResult(
        messages=page.messages,
        next_offset=page.next_offset,
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log.start_offset,
    )


async def _read_elsewhere(
    ports: Ports, topic: str, index: int, start: Start, limit: int, wait_ms: int, max_bytes: int
) -> ReadResult:
    """The same from another node. It counts here, as no client reads it there."""
    remote = ports.partitions
    deadline = ports.clock.monotonic() + wait_ms / 1000
    page = _Page(await remote.locate(topic, index, start), limit, max_bytes)
    while True:
        left_ms = 0 if page.messages else max(int((deadline - ports.clock.monotonic()) * 1000), 0)
        try:
            found = await remote.read(topic, index, page.next_offset, min(_STEP_BYTES, max_bytes), wait_ms=left_ms)
        except DamagedRecords:
            if page.messages:
                break
            raise
        fill = partial(page.fill, found.data, found.aborted, TopicPartition(topic, index))
        is_more = await beside(found.data, fill) if found.data else False
        if page.is_full or not (is_more or (left_ms and not page.messages)):
            break
    stats = ports.stats.topic(topic)
    stats.messages_consumed += len(page.messages)
    stats.bytes_consumed += page.size
    return ReadResult(
        messages=page.messages,
        next_offset=page.next_offset,
        high_watermark=found.extent.high_watermark,
        log_start_offset=found.extent.log_start_offset,
    )


class _Page:
    """Messages being gathered until there are enough of them."""

    def __init__(self, offset: int, limit: int, max_bytes: int) -> None:
        self.messages: list[Record] = []
        self.next_offset = offset
        self.size = 0
        self._limit = limit
        self._max_bytes = max_bytes

    @property
    def is_full(self) -> bool:
        return len(self.messages) >= self._limit or self.size >= self._max_bytes

    def fill(self, data: memoryview, voided: list[AbortedTransaction], name: TopicPartition) -> bool:
        """Take what fits from the batches that were found; whether reading on makes sense."""
        before = self.next_offset
        aborted = AbortedRanges(voided)
        for position, header in iter_batches(data):
            if header.next_offset <= self.next_offset:
                continue
            if header.is_control or header in aborted:
                self.next_offset = header.next_offset
                continue
            try:
                records = decode_records(data[position : position + header.size])
            except PenstockError as error:
                if self.messages:
                    return False  # what is readable first; the next call meets this batch at its start
                raise CorruptRecords(
                    f"Offsets {header.base_offset} to {header.last_offset} of {name} cannot be decoded: "
                    f"{error.message} Read on from offset {header.next_offset}."
                ) from error
            self._take(records, header.next_offset)
            if self.is_full:
                return False
        return self.next_offset > before

    def _take(self, records: list[Record], batch_end: int) -> None:
        for record in records:
            if record.offset < self.next_offset:
                continue
            self.messages.append(record)
            self.size += len(record.key or b"") + len(record.value or b"") + size_of_headers(record.headers)
            if self.is_full:
                self.next_offset = record.offset + 1
                return
        self.next_offset = batch_end


class BatchRun(NamedTuple):
    """Whole batches. Messages with offsets from ``first`` up to ``end`` are meant, whatever else the batches hold."""

    first: int
    end: int
    messages: int
    data: bytes


async def read_run(ports: Ports, topic: str, index: int, offset: int, *, limit: int, max_bytes: int) -> BatchRun:
    """Batches from ``offset`` on, until there are about ``limit`` messages or ``max_bytes``; empty at the end."""
    partition = ports.partitions.local(topic, index)
    aborted: list[AbortedTransaction]
    if partition is None:
        read = await ports.partitions.read(topic, index, offset, max_bytes)
        data, aborted = memoryview(read.data), read.aborted
    else:
        found = partition.read(offset, max_bytes, is_committed_only=True)
        if found is None:
            return BatchRun(offset, offset, 0, b"")
        data, aborted = memoryview(found.read()), partition.aborted_in(offset, found.next_offset)
    run = select(data, offset, aborted, limit)
    stats = ports.stats.topic(topic)
    stats.messages_consumed += run.messages
    stats.bytes_consumed += len(run.data)
    return run


def select(data: memoryview, offset: int, aborted: list[AbortedTransaction], limit: int) -> BatchRun:
    """The batches that a reader of committed messages may have."""
    void = AbortedRanges(aborted)
    pieces: list[memoryview] = []
    end, messages = offset, 0
    for position, header in iter_batches(data):
        if header.next_offset <= offset:
            continue
        if messages >= limit:
            break
        end = header.next_offset
        if not header.is_control and header not in void:
            pieces.append(data[position : position + header.size])
            messages += min(header.count, end - offset)
    return BatchRun(offset, end, messages, b"".join(pieces))
