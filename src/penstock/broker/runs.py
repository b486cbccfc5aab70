"""Batches of a partition as they are stored, for readers that decode on their own side.

What nobody is to see is left out: batches of control records and of aborted transactions. Everything else is committed,
and not looked into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.reach import led_here
from penstock.records import iter_batches
from penstock.storage.aborted import AbortedRanges, AbortedTransaction

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class Run(NamedTuple):
    """Whole batches. Messages with offsets from ``first`` up to ``end`` are meant, whatever else the batches hold."""

    first: int
    end: int
    messages: int
    data: bytes


async def read_run(broker: Broker, topic: str, index: int, offset: int, *, limit: int, max_bytes: int) -> Run:
    """Batches from ``offset`` on, until there are about ``limit`` messages or ``max_bytes``; empty at the end."""
    partition = led_here(broker, topic, index)
    aborted: list[AbortedTransaction]
    if partition is None:
        read = await broker.remote.read(topic, index, offset, max_bytes)
        data, aborted = memoryview(read.data), read.aborted
    else:
        found = partition.read(offset, max_bytes, is_committed_only=True)
        if found is None:
            return Run(offset, offset, 0, b"")
        data, aborted = memoryview(found.read()), partition.aborted_in(offset, found.next_offset)
    run = select(data, offset, aborted, limit)
    stats = broker.stats.topic(topic)
    stats.messages_consumed += run.messages
    stats.bytes_consumed += len(run.data)
    return run


def select(data: memoryview, offset: int, aborted: list[AbortedTransaction], limit: int) -> Run:
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
    return Run(offset, end, messages, b"".join(pieces))
