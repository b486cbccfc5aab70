"""What a queue hands out: batches as they are stored, and which of their messages are leased.

A lease is about one partition. Its batches may hold more than what is leased, so that nothing is decoded or copied on
the way; whoever needs single messages takes them out at the end, here or on the client's side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.broker.queues.core.messages import Fate, Offered, Part
from penstock.broker.queues.core.receipts import Receipt
from penstock.errors import PenstockError
from penstock.records import decode_records, iter_batches
from penstock.records.batch import Headers


class LeasedMessage(NamedTuple):
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


class Lease(NamedTuple):
    """Messages of one partition that were handed out together; offsets ascend, and each of them holds a message."""

    topic: str
    partition: int
    nonce: str
    until_ms: int
    deliveries: tuple[Offered, ...]
    batches: bytes

    def messages(self) -> list[LeasedMessage]:
        """Each leased message, decoded, with a receipt of its own."""
        found: list[LeasedMessage] = []
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
                        LeasedMessage(
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

    def pieces(self) -> Iterator[Lease]:
        """The same, a lease for each batch."""
        data = memoryview(self.batches)
        for position, header in iter_batches(data):
            wanted = tuple(
                Offered(max(first, header.base_offset), min(last, header.last_offset), count)
                for first, last, count in self.deliveries
                if first <= header.last_offset and last >= header.base_offset
            )
            if wanted and not header.is_control:
                yield self._replace(deliveries=wanted, batches=bytes(data[position : position + header.size]))


class Verdict(NamedTuple):
    """What became of a receipt. With an error nothing is known of it: it may be tried again."""

    receipt: str
    parts: tuple[Part, ...] = ()
    error: PenstockError | None = None

    @property
    def fate(self) -> Fate:
        """Of a single message, what became of it; of several, the first thing that was not as asked."""
        fates = [part.fate for part in self.parts] or [Fate.MALFORMED]
        return next((fate for fate in fates if fate is not Fate.DONE), Fate.DONE)
