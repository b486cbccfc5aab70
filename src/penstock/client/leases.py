"""Leases: messages that a queue has handed out, and the receipts that settle them.

A lease is about one partition and one moment. Its messages share a nonce, so neighbours with the same delivery count
are settled by one receipt with a range of offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.client.messages import Batch, Message, batches_of, instant
from penstock.client.transport import unpacked
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
    """A message that was not settled as asked, and what had become of it, such as ``lease_over``."""

    message: LeasedMessage
    fate: str


class Lease:
    """What the messages of one delivery have in common."""

    __slots__ = ("nonce", "partition", "queue", "topic", "until_ms")

    def __init__(self, topic: str, partition: int, nonce: str, until_ms: int, queue: Any) -> None:
        self.topic = topic
        self.partition = partition
        self.nonce = nonce
        self.until_ms = until_ms
        self.queue = queue


class LeasedMessage(Message, eq=False, gc=False):
    """A message that is this consumer's until its lease ends."""

    delivery_count: int
    _lease: Lease

    @property
    def receipt(self) -> str:
        """What names this delivery to any of the doors."""
        lease = self._lease
        return f"{lease.topic}:{lease.partition}:{self.offset}:{self.delivery_count}:{lease.nonce}"

    @property
    def lease_until(self) -> datetime | None:
        """When the lease ends by the node's clock, unless it was extended since."""
        return instant(self._lease.until_ms)


class AsyncQueueMessage(LeasedMessage, eq=False, gc=False):
    """A message of an `AsyncQueue`. Each verb raises `LeaseLost` if the message is no longer this consumer's."""

    async def ack(self) -> None:
        """It is done; it never comes back."""
        raise_refused(await self._lease.queue.ack((self,)))

    async def nack(self, *, delay: Duration | None = None, reason: str = "") -> None:
        """It failed: deliver it again after ``delay`` seconds, or after the group's backoff."""
        raise_refused(await self._lease.queue.nack((self,), delay=delay, reason=reason))

    async def reject(self, *, reason: str = "") -> None:
        """It cannot be done: to the dead letters at once."""
        raise_refused(await self._lease.queue.reject((self,), reason=reason))

    async def extend(self, visibility_timeout: Duration | None = None) -> None:
        """Hold it for so many seconds from now on; default: as long as the group's leases last."""
        raise_refused(await self._lease.queue.extend((self,), visibility_timeout))


class QueueMessage(LeasedMessage, eq=False, gc=False):
    """A message of a `Queue`. Each verb raises `LeaseLost` if the message is no longer this consumer's."""

    def ack(self) -> None:
        """It is done; it never comes back."""
        raise_refused(self._lease.queue.ack((self,)))

    def nack(self, *, delay: Duration | None = None, reason: str = "") -> None:
        """It failed: deliver it again after ``delay`` seconds, or after the group's backoff."""
        raise_refused(self._lease.queue.nack((self,), delay=delay, reason=reason))

    def reject(self, *, reason: str = "") -> None:
        """It cannot be done: to the dead letters at once."""
        raise_refused(self._lease.queue.reject((self,), reason=reason))

    def extend(self, visibility_timeout: Duration | None = None) -> None:
        """Hold it for so many seconds from now on; default: as long as the group's leases last."""
        raise_refused(self._lease.queue.extend((self,), visibility_timeout))


Leased = TypeVar("Leased", bound=LeasedMessage)
Leased_co = TypeVar("Leased_co", bound=LeasedMessage, covariant=True)


class MakesMessages(Protocol, Generic[Leased_co]):
    def __call__(
        self, topic: str, partition: int, offset: int, source: Batch, delivery_count: int, lease: Lease, /
    ) -> Leased_co: ...


class Received(NamedTuple, Generic[Leased]):
    """The messages in a node's answer, and those among them that cannot be unpacked, by the reason."""

    messages: list[Leased]
    unreadable: dict[str, list[Leased]]


def leased_messages(body: bytes | bytearray, make: MakesMessages[Leased], queue: object) -> Received[Leased]:
    """What is in a node's answer to receive; ``queue`` is where the verbs of messages go."""
    found: list[Leased] = []
    unreadable: dict[str, list[Leased]] = {}
    for topic, partition, nonce, until_ms, deliveries, data in unpacked(body, _LEASES):
        lease = Lease(topic, partition, nonce, until_ms, queue)
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
                into = found if problem is None else unreadable.setdefault(problem, [])
                into += [make(topic, partition, each, batch, count, lease) for each in range(offset, end)]
                offset = end
    return Received(found, unreadable)


def receipts_of(messages: Iterable[LeasedMessage]) -> list[tuple[str, Sequence[LeasedMessage]]]:
    """Receipts for all of these, neighbours of one delivery joined into one, and which messages each is for."""
    messages = list(messages)
    if not messages:
        return []
    offsets = list(map(_BY_OFFSET, messages))
    if offsets == list(range(offsets[0], offsets[0] + len(offsets))) and len(set(map(_BY_DELIVERY, messages))) == 1:
        return [_receipt(messages)]  # all of one lease, as they were received
    deliveries: dict[tuple[Lease, int], list[LeasedMessage]] = {}
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
    """The receipt of neighbours of one delivery, and who they are."""
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
