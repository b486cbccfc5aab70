"""What nodes say to each other about queues. Each call goes to the leader of the companion's partitions.

Nothing that waits takes a message: a node is told that there may be something, and asks for it in a short call of its
own. So a call that nobody waits for any more leaves no message with nobody.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.broker.coordination.messages import ProducerIdentity
from penstock.broker.queues.core.messages import Offered, Part
from penstock.broker.queues.core.receipts import Receipt
from penstock.broker.queues.reports import GroupReport
from penstock.peers.frames import Failure
from penstock.peers.port import Method, Nothing


class Problem(msgspec.Struct, frozen=True, array_like=True):
    """Why a partition could not serve."""

    partition: int
    failure: Failure


class Take(msgspec.Struct, frozen=True):
    """Lease messages from these partitions, the first ones first."""

    topic: str
    group: str
    consumer: str
    partitions: tuple[int, ...]
    max_messages: int
    max_bytes: int
    visibility_timeout_ms: int | None
    attempt: str = ""  # which the consumer may make again


class Abandon(msgspec.Struct, frozen=True):
    """An attempt is made again: give back what it got here before, if that was not settled."""

    topic: str
    group: str
    attempt: str


class TakenLease(msgspec.Struct, frozen=True, array_like=True):
    """A lease; its batches are the next ``size`` bytes of the body."""

    partition: int
    nonce: str
    until_ms: int
    deliveries: tuple[Offered, ...]
    size: int


class Taken(msgspec.Struct, frozen=True):
    """What was leased, where the group has yet to begin, and what could not be asked."""

    leases: tuple[TakenLease, ...]
    missing: tuple[int, ...]
    problems: tuple[Problem, ...]


class AwaitReady(msgspec.Struct, frozen=True):
    """Answer once there may be something to take, or when the time is over."""

    topic: str
    group: str
    consumer: str
    partitions: tuple[int, ...]
    wait_ms: int


class Settle(msgspec.Struct, frozen=True):
    """Say what became of deliveries of one partition: ack, nack, reject, extend or release them."""

    topic: str
    partition: int
    group: str
    verb: str
    receipts: tuple[Receipt, ...]
    delay_ms: int | None = None
    reason: str = ""
    visibility_timeout_ms: int | None = None
    producer: ProducerIdentity | None = None  # in whose transaction


class SettledParts(msgspec.Struct, frozen=True):
    """For each receipt, in order, what became of it."""

    receipts: tuple[tuple[Part, ...], ...]


class BeginGroup(msgspec.Struct, frozen=True, tag="begin"):
    """Read from a start on; ``at`` is an offset, ``since_ms`` a time. Settings are those of the group alone."""

    at: int | None = None
    is_latest: bool = False
    since_ms: int | None = None
    settings: dict[str, str] = {}


class PauseGroup(msgspec.Struct, frozen=True, tag="pause"):
    is_paused: bool
    reason: str = ""


class SeekGroup(msgspec.Struct, frozen=True, tag="seek"):
    at: int | None = None
    is_latest: bool = False
    since_ms: int | None = None


class PurgeGroup(msgspec.Struct, frozen=True, tag="purge"):
    """Be done with everything that is there now."""


class ForgetGroup(msgspec.Struct, frozen=True, tag="forget"):
    """Read no more."""


Action = BeginGroup | PauseGroup | SeekGroup | PurgeGroup | ForgetGroup


class Order(msgspec.Struct, frozen=True):
    """Have one partition's part of a group do something."""

    topic: str
    partition: int
    group: str
    action: Action


class Look(msgspec.Struct, frozen=True):
    """Tell of a group, or of all, in these partitions."""

    topic: str
    group: str | None
    partitions: tuple[int, ...]


class Looked(msgspec.Struct, frozen=True):
    reports: tuple[GroupReport, ...]
    problems: tuple[Problem, ...]


class Peek(msgspec.Struct, frozen=True):
    """Tell of the first messages that a group is not done with."""

    topic: str
    partition: int
    group: str
    max_messages: int
    max_bytes: int


class PeekedSpan(msgspec.Struct, frozen=True, array_like=True):
    """Messages that are there, in one state; they are among the batches in the body."""

    first: int
    last: int
    state: str
    delivery_count: int


class PeekedSpans(msgspec.Struct, frozen=True):
    spans: tuple[PeekedSpan, ...]


TAKE: Final = Method("queue.receive", Take, Taken, is_bulk=True)
ABANDON: Final = Method("queue.abandon", Abandon, Nothing)
AWAIT_READY: Final = Method("queue.ready", AwaitReady, Nothing)
SETTLE: Final = Method("queue.settle", Settle, SettledParts)
ORDER: Final = Method("queue.order", Order, Nothing)
LOOK: Final = Method("queue.look", Look, Looked)
PEEK: Final = Method("queue.peek", Peek, PeekedSpans, is_bulk=True)
