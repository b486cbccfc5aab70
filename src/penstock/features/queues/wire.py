"""What can be told of queue groups: how many messages are in which state, and what the next ones are.

What nodes say to each other about queues. Each call goes to the leader of the companion's partitions.

Nothing that waits takes a message: a node is told that there may be something, and asks for it in a short call of its
own. So a call whose caller is gone leaves no message leased.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from penstock.consensus.queue_config import QueueSettings
from penstock.features.queues.core.messages import OfferedSpan, Receipt, ReceiptPart
from penstock.machines.messages import ProducerIdentity
from penstock.network.frames import Failure
from penstock.network.port import Method, Nothing
from penstock.records import Record


class LaneStats(msgspec.Struct, frozen=True):
    """One lane of a group in one partition, as far as it was looked at."""

    lane: str
    ready: int  # can be handed out now: never delivered, or due again
    in_flight: int
    served: int  # deliveries since this node leads and the group has these settings
    served_per_second: float  # lately
    last_served_ms: int | None
    oldest_ms: int | None  # when the oldest that is ready was written


class PartitionStats(msgspec.Struct, frozen=True):
    """One group's messages of one partition. ``oldest_ms`` is when the first that is not done was written."""

    partition: int
    committed: int  # everything before is acked
    end: int
    ready: int  # never delivered
    in_flight: int
    waiting: int  # to be delivered again, now or later
    dying: int  # on their way to the dead letters
    acked_ahead: int  # acked after something that is not
    oldest_ms: int | None
    lanes: tuple[LaneStats, ...] = ()  # where the group has lanes
    unseen: int = 0  # messages whose lane is not known yet


class GroupReport(msgspec.Struct, frozen=True):
    """A group as one partition knows it."""

    group: str
    own_settings: dict[str, str]
    is_paused: bool
    pause_reason: str
    stats: PartitionStats


class GroupStats(NamedTuple):
    """A group of a topic, with each of its partitions that could be asked."""

    topic: str
    group: str
    settings: QueueSettings
    own_settings: dict[str, str]
    is_paused: bool
    pause_reason: str
    partitions: list[PartitionStats]


class PeekedRecord(NamedTuple):
    """A message that a group is not done with; looking changes nothing."""

    partition: int
    offset: int
    state: str  # ready, in_flight, waiting or dying
    delivery_count: int
    record: Record


class PartitionProblem(msgspec.Struct, frozen=True, array_like=True):
    """Why a partition could not serve."""

    partition: int
    failure: Failure


class TakeMessages(msgspec.Struct, frozen=True):
    """Lease messages from these partitions, the first ones first."""

    topic: str
    group: str
    consumer: str
    partitions: tuple[int, ...]
    max_messages: int
    max_bytes: int
    visibility_timeout_ms: int | None
    attempt: str = ""  # which the consumer may make again


class AbandonAttempt(msgspec.Struct, frozen=True):
    """An attempt is made again: give back what it got here before, if that was not settled."""

    topic: str
    group: str
    attempt: str


class TakenLease(msgspec.Struct, frozen=True, array_like=True):
    """A lease; its batches are the next ``size`` bytes of the body."""

    partition: int
    nonce: str
    until_ms: int
    deliveries: tuple[OfferedSpan, ...]
    size: int


class TakenLeases(msgspec.Struct, frozen=True):
    """What was leased, where the group has yet to begin, and what could not be asked."""

    leases: tuple[TakenLease, ...]
    missing: tuple[int, ...]
    problems: tuple[PartitionProblem, ...]


class AwaitReady(msgspec.Struct, frozen=True):
    """Answer once there may be something to take, or when the time is over."""

    topic: str
    group: str
    consumer: str
    partitions: tuple[int, ...]
    wait_ms: int


class SettleReceipts(msgspec.Struct, frozen=True):
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

    receipts: tuple[tuple[ReceiptPart, ...], ...]


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


class OrderGroup(msgspec.Struct, frozen=True):
    """Have one partition's part of a group do something."""

    topic: str
    partition: int
    group: str
    action: Action


class DescribeGroups(msgspec.Struct, frozen=True):
    """Tell of a group, or of all, in these partitions."""

    topic: str
    group: str | None
    partitions: tuple[int, ...]


class GroupReports(msgspec.Struct, frozen=True):
    reports: tuple[GroupReport, ...]
    problems: tuple[PartitionProblem, ...]


class PeekGroup(msgspec.Struct, frozen=True):
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


TAKE: Final = Method("queue.receive", TakeMessages, TakenLeases, is_bulk=True)
ABANDON: Final = Method("queue.abandon", AbandonAttempt, Nothing)
AWAIT_READY: Final = Method("queue.ready", AwaitReady, Nothing)
SETTLE: Final = Method("queue.settle", SettleReceipts, SettledParts)
ORDER: Final = Method("queue.order", OrderGroup, Nothing)
DESCRIBE: Final = Method("queue.look", DescribeGroups, GroupReports)
PEEK: Final = Method("queue.peek", PeekGroup, PeekedSpans, is_bulk=True)
