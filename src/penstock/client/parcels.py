"""What waits to be published: parcels of messages, and the batches that they are packed into.

A parcel is what one call of the user hands over for one partition. Batches are cut from parcels by size; each part of a
parcel is settled by itself, so that a batch may hold several parcels and a parcel may fill several batches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future as ThreadFuture
from typing import Final, NamedTuple, Protocol

from penstock.client.messages import Published
from penstock.errors import PenstockError
from penstock.records import Record
from penstock.records.batch import Headers

MESSAGE_OVERHEAD_BYTES: Final = 24  # lengths and deltas of a record, about


class Outgoing(NamedTuple):
    """A message to be published, as bytes. Without a timestamp it gets the time it is packed at."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None

    @property
    def size(self) -> int:
        size = MESSAGE_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers:
            size += len(name) + len(value or b"") + 4
        return size


class Parcel(Protocol):
    """Messages that somebody waits for."""

    @property
    def messages(self) -> Sequence[Outgoing]: ...

    def succeed(self, begin: int, published: Sequence[Published]) -> None:
        """The messages from ``begin`` on are safe."""

    def fail(self, error: PenstockError) -> None:
        """Some were refused, or nothing is known of them."""


class SingleParcel:
    """One message, and the future that tells its place."""

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


class Order:
    """Many messages that one call hands over: what became of them all, in their order."""

    __slots__ = ("count", "future", "left", "published")

    def __init__(self, count: int) -> None:
        self.count = self.left = count
        self.published: list[Published | None] = []  # as long as all of them, once there is more than one batch
        self.future: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()

    def settle(self, places: Sequence[int], published: Sequence[Published]) -> None:
        """Some of the messages are safe, and these are their places in the order."""
        self.left -= len(published)
        if len(published) == self.count:
            if not self.future.done():
                self.future.set_result(published)  # all of them in one batch, as is usual
            return
        if not self.published:
            self.published = [None] * self.count
        for place, each in zip(places, published, strict=True):
            self.published[place] = each
        if not self.left and not self.future.done():
            self.future.set_result([each for each in self.published if each is not None])

    def fail(self, error: PenstockError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class OrderParcel:
    """The messages of an order that go to one partition; ``places`` are theirs in the order."""

    __slots__ = ("_order", "_places", "messages")

    def __init__(self, order: Order, messages: Sequence[Outgoing], places: Sequence[int]) -> None:
        self._order = order
        self._places = places
        self.messages = messages

    def succeed(self, begin: int, published: Sequence[Published]) -> None:
        self._order.settle(self._places[begin : begin + len(published)], published)

    def fail(self, error: PenstockError) -> None:
        self._order.fail(error)


class ValuesParcel:
    """All messages of an order, where they are values with the same headers and go to one partition."""

    __slots__ = ("_order", "headers", "values")

    def __init__(self, order: Order, values: Sequence[bytes], headers: Headers = ()) -> None:
        self._order = order
        self.values = values
        self.headers = headers

    @property
    def messages(self) -> Sequence[Outgoing]:
        """The same one by one, for where they have to be looked at that way."""
        return [Outgoing(None, value, self.headers) for value in self.values]

    def succeed(self, begin: int, published: Sequence[Published]) -> None:
        self._order.settle(range(begin, begin + len(published)), published)

    def fail(self, error: PenstockError) -> None:
        self._order.fail(error)


class Span(NamedTuple):
    """Some neighbours of a parcel: what a batch is packed from."""

    parcel: Parcel
    begin: int
    end: int
    size: int

    def halves(self) -> list[Span]:
        """The same messages in two spans, if there is more than one."""
        if self.end - self.begin < 2:
            return [self]
        middle = (self.begin + self.end) // 2
        return [
            Span(self.parcel, begin, end, sum(each.size for each in self.parcel.messages[begin:end]))
            for begin, end in ((self.begin, middle), (middle, self.end))
        ]


def spans_of(parcel: Parcel, size_max: int) -> list[Span]:
    """A parcel in spans that fit a batch each; a message that is larger than that is alone."""
    if isinstance(parcel, ValuesParcel):
        overhead = Outgoing(None, None, parcel.headers).size
        whole = sum(map(len, parcel.values)) + overhead * len(parcel.values)
        if whole <= size_max:
            return [Span(parcel, 0, len(parcel.values), whole)]
    spans: list[Span] = []
    begin = size = 0
    for at, message in enumerate(parcel.messages):
        message_size = message.size
        if size and size + message_size > size_max:
            spans.append(Span(parcel, begin, at, size))
            begin, size = at, 0
        size += message_size
    spans.append(Span(parcel, begin, at + 1, size))
    return spans


class Lane:
    """What waits for one partition. One batch of it is under way at a time, so that order holds over retries."""

    __slots__ = ("accepted", "bytes_max", "bytes_waiting", "is_busy", "partition", "settled", "suspects", "waiting")

    def __init__(self, partition: int, bytes_max: int) -> None:
        self.partition = partition
        self.bytes_max = bytes_max  # of a batch
        self.accepted = 0  # messages handed over
        self.settled = 0  # messages of these that are safe or refused; always the first ones
        self.suspects = 0  # the first spans that wait: one of them made a batch be refused
        self.waiting: deque[Span] = deque()
        self.bytes_waiting = 0
        self.is_busy = False

    def add(self, span: Span) -> None:
        self.waiting.append(span)
        self.bytes_waiting += span.size
        self.accepted += span.end - span.begin

    def put_back_smaller(self, spans: Sequence[Span]) -> None:
        """Before all that waits, to be packed into smaller batches: these were too large for the topic."""
        self.bytes_max = sum(span.size for span in spans) // 2
        self._put_back(spans[0].halves() if len(spans) == 1 else spans)

    def put_back_apart(self, spans: Sequence[Span]) -> None:
        """Before all that waits, each to be a batch of its own, so that only the one at fault is refused."""
        self.suspects += len(spans)
        self._put_back(spans)

    def _put_back(self, spans: Sequence[Span]) -> None:
        self.waiting.extendleft(reversed(spans))
        self.bytes_waiting += sum(span.size for span in spans)

    def take(self) -> list[Span]:
        """As many spans as fit a batch, at least one if there is any."""
        taken: list[Span] = []
        size = 0
        room = self.bytes_max
        if self.suspects:
            self.suspects -= 1
            room = 0
        while self.waiting and (not taken or size + self.waiting[0].size <= room):
            span = self.waiting.popleft()
            taken.append(span)
            size += span.size
        self.bytes_waiting -= size
        return taken


def records_of(spans: Sequence[Span], now_ms: int) -> list[Record]:
    """The records of a batch, numbered from 0."""
    records: list[Record] = []
    append = records.append
    number = 0
    for parcel, begin, end, _ in spans:
        for key, value, headers, timestamp_ms in parcel.messages[begin:end]:
            append(Record(number, now_ms if timestamp_ms is None else timestamp_ms, key, value, headers))
            number += 1
    return records
