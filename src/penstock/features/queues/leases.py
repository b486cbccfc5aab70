"""What a queue hands out: batches as they are stored, and which of their messages are leased.

A lease is about one partition. Its batches may hold more than what is leased, so that nothing is decoded or copied on
the way; the reader of single messages takes them out at the end, here or on the client's side.

Attempts to receive: what each got, so that one whose answer was lost can be made again without costing a try.

The leader of a partition remembers for a short while what it leased to which attempt. If the consumer makes the attempt
again, what the first one got is given back unseen, and then it receives as anybody does. Nothing of this is written
down: across a change of leaders, a repeated attempt is a new one.

Leased messages, unpacked for those who want them one by one; what cannot be unpacked is rejected.

A producer may send a batch whose checksum is right and whose inside is broken. It would fail at every consumer in the
same way, so it goes to the dead letters at once, with the reason, and whatever came with it is delivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.errors import PenstockError
from penstock.features.queues.core.messages import OfferedSpan, Receipt, ReceiptOutcome, ReceiptPart
from penstock.records import decode_records, is_quick_to_decode, iter_batches, size_of_headers
from penstock.records.batch import Headers


class LeasedRecord(NamedTuple):
    """One message as its consumer gets it."""

    receipt: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    delivery_count: int
    lease_until_ms: int


class PartitionLease(NamedTuple):
    """Messages of one partition that were handed out together; offsets ascend, and each of them holds a message."""

    topic: str
    partition: int
    nonce: str
    until_ms: int
    deliveries: tuple[OfferedSpan, ...]
    batches: bytes

    def messages(self) -> list[LeasedRecord]:
        """Each leased message, decoded, with a receipt of its own."""
        found: list[LeasedRecord] = []
        wanted = iter(self.deliveries)
        span = next(wanted, None)
        data = memoryview(self.batches)
        for position, header in iter_batches(data):
            if span is None:
                break
            if header.is_control or header.next_offset <= span.first:
                continue
            for record in decode_records(data[position : position + header.size]):
                while span is not None and span.last < record.offset:
                    span = next(wanted, None)
                if span is None:
                    break
                if record.offset >= span.first:
                    receipt = Receipt(
                        self.topic, self.partition, record.offset, record.offset, span.delivery_count, self.nonce
                    )
                    found.append(
                        LeasedRecord(
                            str(receipt),
                            self.topic,
                            self.partition,
                            record.offset,
                            record.key,
                            record.value,
                            record.headers,
                            record.timestamp,
                            span.delivery_count,
                            self.until_ms,
                        )
                    )
        return found

    def pieces(self) -> Iterator[PartitionLease]:
        """The same, a lease for each batch."""
        data = memoryview(self.batches)
        deliveries, at = self.deliveries, 0
        for position, header in iter_batches(data):
            wanted: list[OfferedSpan] = []
            while at < len(deliveries) and deliveries[at].first <= header.last_offset:
                first, last, count = deliveries[at]
                if last >= header.base_offset:
                    wanted.append(OfferedSpan(max(first, header.base_offset), min(last, header.last_offset), count))
                if last > header.last_offset:
                    break  # it goes on in the next batch
                at += 1
            if wanted and not header.is_control:
                batch = self.batches if header.size == len(data) else bytes(data[position : position + header.size])
                yield self._replace(deliveries=tuple(wanted), batches=batch)

    def receipts(self) -> list[str]:
        """A receipt for each run of neighbours."""
        return [
            str(Receipt(self.topic, self.partition, first, last, count, self.nonce))
            for first, last, count in self.deliveries
        ]


class SettledReceipt(NamedTuple):
    """What became of a receipt. With an error nothing is known of it: it may be tried again."""

    receipt: str
    parts: tuple[ReceiptPart, ...] = ()
    error: PenstockError | None = None

    @property
    def fate(self) -> ReceiptOutcome:
        """Of a single message, what became of it; of several, the first thing that was not as asked."""
        fates = [part.fate for part in self.parts] or [ReceiptOutcome.MALFORMED]
        return next((fate for fate in fates if fate is not ReceiptOutcome.DONE), ReceiptOutcome.DONE)


_REMEMBERED_SECONDS: Final = 120.0
_REMEMBERED_MAX: Final = 10_000
_SPANS_MAX: Final = 100_000

AttemptName = tuple[str, str, str]  # of the topic, of the group, and of the attempt


class _Attempt(NamedTuple):
    at: float
    leases: list[PartitionLease]  # without their batches


class Attempts:
    """The latest attempts, up to a number and an age. ``now`` is in seconds, by a clock that only goes forward."""

    def __init__(self, attempts_max: int = _REMEMBERED_MAX, spans_max: int = _SPANS_MAX) -> None:
        self._attempts: OrderedDict[AttemptName, _Attempt] = OrderedDict()
        self._attempts_max = attempts_max
        self._spans_max = spans_max
        self._spans = 0

    def __len__(self) -> int:
        return len(self._attempts)

    def note(self, name: AttemptName, leases: list[PartitionLease], now: float) -> bool:
        """An attempt was made and got this; whether it was known before."""
        self._expire(now)
        known = self._attempts.get(name)
        bare = [lease._replace(batches=b"") for lease in leases]
        if known is None:
            self._attempts[name] = _Attempt(now, bare)
        else:
            known.leases.extend(bare)
        self._spans += sum(len(lease.deliveries) for lease in bare)
        while len(self._attempts) > self._attempts_max or (self._spans > self._spans_max and len(self._attempts) > 1):
            self._drop(next(iter(self._attempts)))
        return known is not None

    def take(self, name: AttemptName, now: float) -> list[PartitionLease]:
        """What an attempt got, which is forgotten by that."""
        self._expire(now)
        return self._drop(name) if name in self._attempts else []

    def _expire(self, now: float) -> None:
        while self._attempts:
            name, oldest = next(iter(self._attempts.items()))
            if oldest.at + _REMEMBERED_SECONDS > now:
                return
            self._drop(name)

    def _drop(self, name: AttemptName) -> list[PartitionLease]:
        leases = self._attempts.pop(name).leases
        self._spans -= sum(len(lease.deliveries) for lease in leases)
        return leases


log = logging.getLogger(__name__)


class UnreadableMessages(NamedTuple):
    """Messages of one delivery that cannot be unpacked."""

    receipt: str
    size: int
    reason: str


class RejectsReceipts(Protocol):
    """Who sends messages to the dead letters."""

    async def reject(
        self, group: str, receipts: Sequence[str], *, topic: str | None = None, reason: str = ""
    ) -> list[SettledReceipt]: ...


class UnpackedLeases(NamedTuple):
    """What is in leases."""

    messages: list[LeasedRecord]
    unreadable: list[UnreadableMessages]
    left: list[str]  # receipts of what did not fit into an answer, to be given back


def unpack(leases: Sequence[PartitionLease], max_bytes: int) -> UnpackedLeases:
    """The messages of leases, as many as fit into an answer: compressed batches can hold much more than they weigh.

    The first one is among them however large it is, and nothing is unpacked behind the one that does not fit.
    """
    unpacked = UnpackedLeases([], [], [])
    size = 0
    for lease in leases:
        for piece in lease.pieces():
            if size > max_bytes:
                unpacked.left.extend(piece.receipts())
                continue
            try:
                messages = piece.messages()
            except PenstockError as error:
                unpacked.unreadable.extend(_unreadable(piece, f"It cannot be unpacked: {error.message}"))
                continue
            fitting = 0
            for message in messages:
                size += size_of(message)
                if size > max_bytes and (fitting or unpacked.messages):
                    break
                fitting += 1
            unpacked.messages.extend(messages[:fitting])
            unpacked.left.extend(message.receipt for message in messages[fitting:])
    return unpacked


def size_of(message: LeasedRecord) -> int:
    """What a message weighs in an answer, about."""
    size = len(message.key or b"") + len(message.value or b"") + len(message.receipt) + len(message.topic)
    return size + size_of_headers(message.headers)


async def unpack_beside(leases: Sequence[PartitionLease], max_bytes: int) -> UnpackedLeases:
    """The same, in a thread where it may take long."""
    if all(is_quick_to_decode(memoryview(lease.batches)) for lease in leases):
        return unpack(leases, max_bytes)
    return await asyncio.to_thread(unpack, leases, max_bytes)


def _unreadable(lease: PartitionLease, reason: str) -> Iterator[UnreadableMessages]:
    for first, last, count in lease.deliveries:
        receipt = Receipt(lease.topic, lease.partition, first, last, count, lease.nonce)
        yield UnreadableMessages(str(receipt), last - first + 1, reason)


async def reject_unreadable(queues: RejectsReceipts, group: str, unreadable: Sequence[UnreadableMessages]) -> None:
    """Send what cannot be unpacked to the dead letters. Where that fails now, it comes again after its lease."""
    by_reason: dict[str, list[str]] = {}
    for each in unreadable:
        by_reason.setdefault(each.reason, []).append(each.receipt)
    for reason, receipts in by_reason.items():
        log.warning("Group %s cannot get %s: %s", group, ", ".join(receipts[:3]), reason)
        try:
            await queues.reject(group, receipts, reason=reason)
        except PenstockError as error:
            log.warning("Nor can it go to the dead letters now: %s", error.message)
