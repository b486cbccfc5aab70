"""Leases: messages that a queue has handed out, and the receipts that settle them.

A lease covers messages of one partition that were delivered together. They share a nonce, so consecutive messages with
the same delivery count are settled by one receipt with a range of offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.api.messages import instant
from penstock.client.calls import unpacked
from penstock.client.messages import LazyBatch, Message, batches_of
from penstock.client.values import Duration
from penstock.errors import LeaseLost


class LeaseForm(NamedTuple):
    """A lease as a node sends it: docs/reference/rest.md."""

    topic: str
    partition: int
    nonce: str
    until_ms: int
    deliveries: list[tuple[int, int, int]]
    batches: memoryview


_LEASES: Final = list[LeaseForm]


class Refused(NamedTuple):
    """A message that was not settled as asked, and why: its fate, such as ``lease_over``."""

    message: LeasedMessage
    fate: str


class MessageLease:
    """What the messages of one delivery have in common."""

    __slots__ = ("nonce", "partition", "queue", "topic", "until_ms")

    def __init__(self, topic: str, partition: int, nonce: str, until_ms: int, queue: Any) -> None:
        self.topic = topic
        self.partition = partition
        self.nonce = nonce
        self.until_ms = until_ms
        self.queue = queue


class LeasedMessage(Message, eq=False, gc=False):
    """A message that belongs to this consumer until its lease ends."""

    delivery_count: int
    _lease: MessageLease

    @property
    def receipt(self) -> str:
        """The receipt of this delivery, for every API."""
        lease = self._lease
        return f"{lease.topic}:{lease.partition}:{self.offset}:{self.delivery_count}:{lease.nonce}"

    @property
    def lease_until(self) -> datetime | None:
        """When the lease ends by the node's clock, unless it has been extended since."""
        return instant(self._lease.until_ms)


class AsyncQueueMessage(LeasedMessage, eq=False, gc=False):
    """A message of an `AsyncQueue`. Each method raises `LeaseLost` if the lease is over."""

    async def ack(self) -> None:
        """Ack the message: it is done and is never delivered again."""
        raise_refused(await self._lease.queue.ack((self,)))

    async def nack(self, *, delay: Duration | None = None, reason: str = "") -> None:
        """Have the message, which failed, delivered again after ``delay`` seconds, or after the group's backoff."""
        raise_refused(await self._lease.queue.nack((self,), delay=delay, reason=reason))

    async def reject(self, *, reason: str = "") -> None:
        """Send the message, which can never be processed, to the dead letters at once."""
        raise_refused(await self._lease.queue.reject((self,), reason=reason))

    async def extend(self, visibility_timeout: Duration | None = None) -> None:
        """Extend the lease to this many seconds from now; default: the group's visibility timeout."""
        raise_refused(await self._lease.queue.extend((self,), visibility_timeout))


Leased = TypeVar("Leased", bound=LeasedMessage)
Leased_co = TypeVar("Leased_co", bound=LeasedMessage, covariant=True)


class MessageFactory(Protocol, Generic[Leased_co]):
    def __call__(
        self, topic: str, partition: int, offset: int, source: LazyBatch, delivery_count: int, lease: MessageLease, /
    ) -> Leased_co: ...


class ReceivedMessages(NamedTuple, Generic[Leased]):
    """The messages in a node's answer, and separately those that cannot be decoded, by reason."""

    messages: list[Leased]
    unreadable: dict[str, list[Leased]]


def leased_messages(body: bytes | bytearray, make: MessageFactory[Leased], queue: object) -> ReceivedMessages[Leased]:
    """The messages in a node's answer to a receive; ``queue`` settles them."""
    found: list[Leased] = []
    unreadable: dict[str, list[Leased]] = {}
    for topic, partition, nonce, until_ms, deliveries, data in unpacked(body, _LEASES):
        lease = MessageLease(topic, partition, nonce, until_ms, queue)
        batches = iter(batches_of(data))
        header, batch = next(batches, (None, None))
        for first, last, count in deliveries:
            offset = first
            while offset <= last:
                while header is not None and header.next_offset <= offset:
                    header, batch = next(batches, (None, None))
                if header is None or batch is None:
                    break
                end = min(last + 1, header.next_offset)
                problem = batch.problem()
                target = found if problem is None else unreadable.setdefault(problem, [])
                target += [make(topic, partition, each, batch, count, lease) for each in range(offset, end)]
                offset = end
    return ReceivedMessages(found, unreadable)


def receipts_of(messages: Iterable[LeasedMessage]) -> list[tuple[str, Sequence[LeasedMessage]]]:
    """Receipts and the messages of each; one receipt covers consecutive messages of one delivery."""
    messages = list(messages)
    if not messages:
        return []
    offsets = list(map(_BY_OFFSET, messages))
    if offsets == list(range(offsets[0], offsets[0] + len(offsets))) and len(set(map(_BY_DELIVERY, messages))) == 1:
        return [_receipt(messages)]  # as they were received: all of one delivery
    deliveries: dict[tuple[MessageLease, int], list[LeasedMessage]] = {}
    for message in messages:
        deliveries.setdefault((message._lease, message.delivery_count), []).append(message)
    receipts: list[tuple[str, Sequence[LeasedMessage]]] = []
    for members in deliveries.values():
        members.sort(key=_BY_OFFSET)
        begin = 0
        for at in range(1, len(members) + 1):
            if at < len(members) and members[at].offset <= members[at - 1].offset + 1:
                continue
            receipts.append(_receipt(members[begin:at]))
            begin = at
    return receipts


def _receipt(members: Sequence[LeasedMessage]) -> tuple[str, Sequence[LeasedMessage]]:
    """The receipt of consecutive messages of one delivery, and these messages."""
    lease, count = _BY_DELIVERY(members[0])
    first, last = members[0].offset, members[-1].offset
    where = f"{first}-{last}" if last > first else f"{first}"
    return f"{lease.topic}:{lease.partition}:{where}:{count}:{lease.nonce}", members


_BY_OFFSET = attrgetter("offset")
_BY_DELIVERY = attrgetter("_lease", "delivery_count")


def raise_refused(refused: Sequence[Refused]) -> None:
    """Raise `LeaseLost` if a message was not settled."""
    if refused:
        message, fate = refused[0]
        raise LeaseLost(f"The lease of {message.topic}-{message.partition} at {message.offset} is lost: {fate}.")
