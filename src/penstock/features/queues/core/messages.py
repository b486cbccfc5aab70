"""What is asked of a queue and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock.features.queues.core.intervals import Interval
from penstock.features.queues.core.receipts import Receipt
from penstock.machines.messages import ProducerIdentity, Request

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
