"""What can be told of queue groups: how many messages are in which state, and what the next ones are."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from penstock.broker.queues.core.config import QueueSettings
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


class Peeked(NamedTuple):
    """A message that a group is not done with; looking changes nothing."""

    partition: int
    offset: int
    state: str  # ready, in_flight, waiting or dying
    delivery_count: int
    record: Record
