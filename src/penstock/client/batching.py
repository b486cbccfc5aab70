"""Messages that wait to be published, and the batches made of them. No IO: `publishing` sends the batches.

A `Pending` is what one call hands over for one partition. Batches are cut from pendings by size; each slice of a
pending is settled by itself, so a batch may hold several pendings and a pending may fill several batches.

Publishing many values at once is the fastest way by far, so nothing is made for each of them: not on the way out, and
on the way back only the results that the caller looks at.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future as ThreadFuture
from typing import NamedTuple, Protocol

from penstock.client.messages import Published, PublishedRange
from penstock.client.values import Outgoing
from penstock.errors import PenstockError
from penstock.records import Codec, Record, encode_batch, encode_values
from penstock.records.batch import Headers

# -- what callers wait for ---------------------------------------------------------------------------------------------


class Pending(Protocol):
    """Messages that a caller waits for."""

    @property
    def messages(self) -> Sequence[Outgoing]: ...

    def succeed(self, begin: int, published: Sequence[Published]) -> None:
        """The messages from ``begin`` on are safe."""

    def fail(self, error: PenstockError) -> None:
        """Some were refused, or their fate is unknown."""


class PendingMessage:
    """One message, and the future of its place."""

    __slots__ = ("future", "messages")

    def __init__(self, message: Outgoing, future: asyncio.Future[Published] | ThreadFuture[Published]) -> None:
        self.messages = (message,)
        self.future = future

    def succeed(self, begin: int, published: Sequence[Published]) -> None:  # noqa: ARG002
        if not self.future.done():
            self.future.set_result(published[0])

    def fail(self, error: PenstockError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class PendingCall:
    """All messages of one ``publish_many``: its future holds their places, in order."""

    __slots__ = ("count", "future", "left", "published")

    def __init__(self, count: int) -> None:
        self.count = self.left = count
        self.published: list[Published | None] = []  # of full length once there is more than one batch
        self.future: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()

    def settle(self, indexes: Sequence[int], published: Sequence[Published]) -> None:
        """The messages with these indexes are safe."""
        self.left -= len(published)
        if len(published) == self.count:
            if not self.future.done():
                self.future.set_result(published)  # all of them in one batch, as is usual
            return
        if not self.published:
            self.published = [None] * self.count
        for index, each in zip(indexes, published, strict=True):
            self.published[index] = each
        if not self.left and not self.future.done():
            self.future.set_result([each for each in self.published if each is not None])

    def fail(self, error: PenstockError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class PendingShare:
    """The messages of a call that go to one partition; ``indexes`` are theirs in the call."""

    __slots__ = ("_call", "_indexes", "messages")

    def __init__(self, call: PendingCall, messages: Sequence[Outgoing], indexes: Sequence[int]) -> None:
        self._call = call
        self._indexes = indexes
        self.messages = messages

    def succeed(self, begin: int, published: Sequence[Published]) -> None:
        self._call.settle(self._indexes[begin : begin + len(published)], published)

    def fail(self, error: PenstockError) -> None:
        self._call.fail(error)


class PendingValues:
    """All messages of a call, if they are values with the same headers that go to one partition."""

    __slots__ = ("_call", "headers", "values")

    def __init__(self, call: PendingCall, values: Sequence[bytes], headers: Headers = ()) -> None:
        self._call = call
        self.values = values
        self.headers = headers

    @property
    def messages(self) -> Sequence[Outgoing]:
        """The same, one by one."""
        return [Outgoing(None, value, self.headers) for value in self.values]

    def succeed(self, begin: int, published: Sequence[Published]) -> None:
        self._call.settle(range(begin, begin + len(published)), published)

    def fail(self, error: PenstockError) -> None:
        self._call.fail(error)


# -- what waits for a partition ----------------------------------------------------------------------------------------


class PendingSlice(NamedTuple):
    """Consecutive messages of a pending: what a batch is made from."""

    pending: Pending
    begin: int
    end: int
    size: int

    def halves(self) -> list[PendingSlice]:
        """The same messages in two slices, if there is more than one."""
        if self.end - self.begin < 2:
            return [self]
        middle = (self.begin + self.end) // 2
        return [
            PendingSlice(self.pending, begin, end, sum(each.size for each in self.pending.messages[begin:end]))
            for begin, end in ((self.begin, middle), (middle, self.end))
        ]


def slices_of(pending: Pending, size_max: int) -> list[PendingSlice]:
    """A pending in slices that each fit a batch; a message larger than a batch is alone in its slice."""
    if isinstance(pending, PendingValues):
        overhead = Outgoing(None, None, pending.headers).size
        whole = sum(map(len, pending.values)) + overhead * len(pending.values)
        if whole <= size_max:
            return [PendingSlice(pending, 0, len(pending.values), whole)]
    slices: list[PendingSlice] = []
    begin = size = 0
    for at, message in enumerate(pending.messages):
        message_size = message.size
        if size and size + message_size > size_max:
            slices.append(PendingSlice(pending, begin, at, size))
            begin, size = at, 0
        size += message_size
    slices.append(PendingSlice(pending, begin, at + 1, size))
    return slices


class PartitionQueue:
    """What waits for one partition. One batch of it is in flight at a time, so that order holds over retries."""

    __slots__ = ("accepted", "bytes_max", "bytes_waiting", "is_busy", "partition", "settled", "suspects", "waiting")

    def __init__(self, partition: int, bytes_max: int) -> None:
        self.partition = partition
        self.bytes_max = bytes_max  # of a batch
        self.accepted = 0  # messages handed over
        self.settled = 0  # messages of these that are safe or refused; always the first ones
        self.suspects = 0  # the first slices that wait: one of them made a batch be refused
        self.waiting: deque[PendingSlice] = deque()
        self.bytes_waiting = 0
        self.is_busy = False

    def add(self, piece: PendingSlice) -> None:
        self.waiting.append(piece)
        self.bytes_waiting += piece.size
        self.accepted += piece.end - piece.begin

    def put_back_smaller(self, slices: Sequence[PendingSlice]) -> None:
        """Put these, which were too large for the topic, before all that waits, to go in smaller batches."""
        self.bytes_max = sum(piece.size for piece in slices) // 2
        self._put_back(slices[0].halves() if len(slices) == 1 else slices)

    def put_back_apart(self, slices: Sequence[PendingSlice]) -> None:
        """Put these before all that waits, each as a batch of its own, so that only the one at fault is refused."""
        self.suspects += len(slices)
        self._put_back(slices)

    def _put_back(self, slices: Sequence[PendingSlice]) -> None:
        self.waiting.extendleft(reversed(slices))
        self.bytes_waiting += sum(piece.size for piece in slices)

    def take(self) -> list[PendingSlice]:
        """As many slices as fit a batch; at least one if any waits."""
        taken: list[PendingSlice] = []
        size = 0
        size_max = self.bytes_max
        if self.suspects:
            self.suspects -= 1
            size_max = 0
        while self.waiting and (not taken or size + self.waiting[0].size <= size_max):
            piece = self.waiting.popleft()
            taken.append(piece)
            size += piece.size
        self.bytes_waiting -= size
        return taken


# -- batches -----------------------------------------------------------------------------------------------------------


class BatchContents(Protocol):
    """The messages of one batch."""

    def __len__(self) -> int: ...

    def encode(self, codec: Codec, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray: ...

    def published(self, topic: str, partition: int, base_offset: int, append_time_ms: int) -> Sequence[Published]:
        """Their places, now that they are safe; ``append_time_ms`` is below 0 where they keep their own time."""


class _MixedContents:
    """Any messages."""

    def __init__(self, slices: Sequence[PendingSlice], now_ms: int) -> None:
        self._records = _records_of(slices, now_ms)

    def __len__(self) -> int:
        return len(self._records)

    def encode(self, codec: Codec, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray:
        return encode_batch(
            self._records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )

    def published(self, topic: str, partition: int, base_offset: int, append_time_ms: int) -> Sequence[Published]:
        if append_time_ms < 0:
            return [Published(topic, partition, base_offset + each.offset, each.timestamp) for each in self._records]
        return [Published(topic, partition, base_offset + each.offset, append_time_ms) for each in self._records]


class _ValueContents:
    """Values of one call, with the same headers."""

    def __init__(self, values: Sequence[bytes], headers: Headers, now_ms: int) -> None:
        self._values = values
        self._headers = headers
        self._now_ms = now_ms

    def __len__(self) -> int:
        return len(self._values)

    def encode(self, codec: Codec, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray:
        return encode_values(
            self._values,
            self._now_ms,
            headers=self._headers,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )

    def published(self, topic: str, partition: int, base_offset: int, append_time_ms: int) -> Sequence[Published]:
        timestamp_ms = self._now_ms if append_time_ms < 0 else append_time_ms
        offsets = range(base_offset, base_offset + len(self._values))
        return PublishedRange(topic, partition, offsets, timestamp_ms)


def contents_of(slices: Sequence[PendingSlice], now_ms: int) -> BatchContents:
    if len(slices) == 1:
        pending, begin, end, _ = slices[0]
        if isinstance(pending, PendingValues):
            values = pending.values
            return _ValueContents(values if end - begin == len(values) else values[begin:end], pending.headers, now_ms)
        if isinstance(pending, PendingMessage):
            key, value, headers, timestamp_ms = pending.messages[0]
            if key is None and value is not None and timestamp_ms is None:
                return _ValueContents((value,), headers, now_ms)
    return _MixedContents(slices, now_ms)


def _records_of(slices: Sequence[PendingSlice], now_ms: int) -> list[Record]:
    """The records of a batch, numbered from 0."""
    records: list[Record] = []
    append = records.append
    number = 0
    for pending, begin, end, _ in slices:
        for key, value, headers, timestamp_ms in pending.messages[begin:end]:
            append(Record(number, now_ms if timestamp_ms is None else timestamp_ms, key, value, headers))
            number += 1
    return records
