"""What is asked of a queue and what it answers.

Receipts: what a consumer shows to say that a delivery was its own.

``topic:partition:offset:delivery-count:nonce``, or ``first-last`` in the place of the offset for neighbours that were
delivered together. The nonce is the number of the lease and a keyed hash of it under a secret of the group, so that
one hash serves a lease of any size, no client can make one up, and an old one is told from a forged one without keeping
any list of old ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from hmac import compare_digest
from typing import Final, NamedTuple

from penstock.features.queues.core.intervals import Interval
from penstock.machines.messages import ProducerIdentity, Request

SECRET_BYTES: Final = 16
_HASH_DIGITS: Final = 16
_OFFSET_MAX: Final = 2**63 - 1
_FORM: Final = re.compile(
    r"([a-zA-Z0-9._-]{1,249}):(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,18})(?:-([1-9][0-9]{0,18}))?:([1-9][0-9]{0,8})"
    r":((?:[1-9a-f][0-9a-f]{0,15})[0-9a-f]{16})"
)


class Receipt(NamedTuple):
    """A delivery of one message, or of leaders."""

    topic: str
    partition: int
    first: int
    last: int
    delivery_count: int
    nonce: str

    def __str__(self) -> str:
        where = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.topic}:{self.partition}:{where}:{self.delivery_count}:{self.nonce}"


def parse_receipt(text: str) -> Receipt | None:
    """A receipt as its consumer brings it back, or None if none of ours looks like that."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    topic, partition, first, last, delivery_count, nonce = found.groups()
    begin = int(first)
    end = begin if last is None else int(last)
    if (last is not None and end <= begin) or end > _OFFSET_MAX:
        return None
    return Receipt(topic, int(partition), begin, end, int(delivery_count), nonce)


class Seal:
    """Makes the nonces of a group's leases, and knows its own."""

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == SECRET_BYTES
        self.secret = secret

    def nonce(self, lease: int) -> str:
        digest = blake2b(lease.to_bytes(8, "big"), key=self.secret, digest_size=_HASH_DIGITS // 2)
        return f"{lease:x}{digest.hexdigest()}"

    def lease_of(self, nonce: str) -> int | None:
        """The lease that a nonce was made for, or None if it was not made here."""
        lease = int(nonce[:-_HASH_DIGITS], 16)
        return lease if compare_digest(self.nonce(lease), nonce) else None


# -- answers -----------------------------------------------------------------------------------------------------------


class ReceiptOutcome(Enum):
    """What became of a receipt."""

    DONE = "done"
    ALREADY_ACKED = "already_acked"
    LEASE_OVER = "lease_over"  # it ended, and the message waits to be delivered again
    REDELIVERED = "redelivered"  # it ended, and another lease holds the message
    DEAD_LETTERED = "dead_lettered"
    IN_TRANSACTION = "in_transaction"  # acked in one that has not ended
    REPEATED = "repeated"  # named more than once in the same call, and done once
    UNKNOWN = "unknown"  # forged, of another group, or of before the group was moved to another offset
    FOREIGN = "foreign"  # of another topic or partition
    MALFORMED = "malformed"


class ReceiptPart(NamedTuple):
    """What became of some of the messages that a receipt is for; of a single message there is one part."""

    first: int
    last: int
    fate: ReceiptOutcome


class JudgedReceipts(NamedTuple):
    """For each receipt, in order, what became of it."""

    receipts: tuple[tuple[ReceiptPart, ...], ...]


class OfferedSpan(NamedTuple):
    """Messages that could be delivered now, and for which time that would be."""

    first: int
    last: int
    delivery_count: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class GrantedLease(NamedTuple):
    """A lease: what is delivered to whom until when. What was offered but is taken by now is left out."""

    deliveries: tuple[OfferedSpan, ...]
    nonce: str
    until_ms: int


class PendingDeadLetter(NamedTuple):
    """Work for the shell: append these to the dead letters, then confirm the id.

    The same id names the same messages until it is confirmed, so that what was done before a crash can be recognised:
    as `Queue.producer`, with the sequence of the first message, they are the same idempotent batch each time.
    """

    id: int
    first: int
    last: int
    tries: int
    reason: str
    sequence: int  # how many messages were buried before these, as this producer


class DeliveryCounts(NamedTuple):
    """How many messages are in which state."""

    committed: int  # everything before is acked
    ready: int  # never delivered
    in_flight: int
    waiting: int  # to be delivered again, now or later
    dying: int  # on their way to the dead letters
    acked_ahead: int  # acked after something that is not
    is_paused: bool
    pause_reason: str
    oldest: int | None  # the first offset that is not done; at it or soon after is the oldest unfinished message


# -- requests ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeginQueue(Request[None]):
    """The group reads from ``start`` on. Nothing happens if it has begun. The secret is 16 random bytes."""

    start: int
    secret: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantLease(Request[GrantedLease]):
    """Lease what `Queue.offer` offered, or the parts of it that fit; ``gaps`` are offsets that hold no message."""

    consumer: str
    offered: Sequence[OfferedSpan]
    visibility_timeout_ms: int | None = None
    gaps: Sequence[Interval] = ()


@dataclass(frozen=True, slots=True)
class AckDeliveries(Request[JudgedReceipts]):
    """Be done with messages: at once, or with the end of the transaction that this producer has open."""

    receipts: Sequence[Receipt]
    producer: ProducerIdentity | None = None


@dataclass(frozen=True, slots=True)
class NackDeliveries(Request[JudgedReceipts]):
    """Deliver again, after a delay of one's own or the group's backoff, or give up after the last try."""

    receipts: Sequence[Receipt]
    delay_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseDeliveries(Request[JudgedReceipts]):
    """Take back what no consumer looked at: it can be delivered again at once, and this delivery did not count."""

    receipts: Sequence[Receipt]


@dataclass(frozen=True, slots=True)
class RejectDeliveries(Request[JudgedReceipts]):
    """Send to the dead letters at once."""

    receipts: Sequence[Receipt]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ExtendLeases(Request[JudgedReceipts]):
    """Hold for so long from now on."""

    receipts: Sequence[Receipt]
    visibility_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ConfirmDeadLetters(Request[None]):
    """Dead letters were written; ids that are not known any more are fine."""

    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class SkipGaps(Request[None]):
    """Offsets that hold no message: compacted away, or control records."""

    gaps: Sequence[Interval]


@dataclass(frozen=True, slots=True)
class TrimBefore(Request[None]):
    """The log begins here now."""

    start: int


@dataclass(frozen=True, slots=True)
class PauseQueue(Request[None]):
    """Hand out nothing, or go on; what is in flight can be acked all the same. The last reason given counts."""

    is_paused: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ConfigureQueue(Request[None]):
    """Have these settings, as text by name, over the topic's; they are all that the group has of its own."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AssignDeadLetterProducer(Request[None]):
    """Write dead letters as this producer from now on. What waits to be written is numbered anew, from 0."""

    producer: ProducerIdentity


@dataclass(frozen=True, slots=True)
class SeekQueue(Request[None]):
    """Read from here on, as if nothing had been delivered before; every lease ends."""

    offset: int


@dataclass(frozen=True, slots=True)
class PurgeBefore(Request[None]):
    """Be done with everything before ``end``."""

    end: int


@dataclass(frozen=True, slots=True)
class ForgetQueue(Request[None]):
    """The group reads this partition no more."""
