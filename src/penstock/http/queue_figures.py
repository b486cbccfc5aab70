"""How queues stand: figures of partitions, added up for groups and topics, as JSON has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.broker.queues.reports import GroupStats


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages are in which state; `oldest_age_ms` is of the oldest that is not done."""

    ready: int
    in_flight: int
    waiting: int
    dying: int
    acked_ahead: int
    oldest_age_ms: int | None


class QueuePartitionView(QueueCounts, frozen=True, kw_only=True):
    """A group in one partition: everything before `committed` is done, `end` is where the partition ends."""

    partition: int
    committed: int
    end: int


class QueueGroupView(QueueCounts, frozen=True, kw_only=True):
    """A queue group: whether it hands out messages, its settings and which of them are its own, its partitions."""

    topic: str
    group: str
    paused: bool
    pause_reason: str
    settings: dict[str, str]
    own_settings: dict[str, str]
    partitions: list[QueuePartitionView]


class QueueView(QueueCounts, frozen=True, kw_only=True):
    """A topic as a queue: all its groups, and their figures added up."""

    topic: str
    groups: list[QueueGroupView]
    dead_letters: Annotated[int | None, Meta(description="About how many are still dead; null if nobody can tell now.")]


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    groups: list[str]


class QueueList(msgspec.Struct, frozen=True, kw_only=True):
    """Every topic that is read as a queue."""

    queues: list[QueueSummary]


def group_view(stats: GroupStats, now_ms: int) -> QueueGroupView:
    partitions = [
        QueuePartitionView(
            partition=at.partition,
            committed=at.committed,
            end=at.end,
            ready=at.ready,
            in_flight=at.in_flight,
            waiting=at.waiting,
            dying=at.dying,
            acked_ahead=at.acked_ahead,
            oldest_age_ms=None if at.oldest_ms is None else max(now_ms - at.oldest_ms, 0),
        )
        for at in stats.partitions
    ]
    return QueueGroupView(
        topic=stats.topic,
        group=stats.group,
        paused=stats.is_paused,
        pause_reason=stats.pause_reason,
        settings=stats.settings.shown(),
        own_settings=dict(stats.own_settings),
        partitions=partitions,
        **_sums(partitions),
    )


def queue_view(topic: str, groups: list[QueueGroupView], dead_letters: int | None) -> QueueView:
    return QueueView(topic=topic, groups=groups, dead_letters=dead_letters, **_sums(groups))


def _sums(rows: Sequence[QueueCounts]) -> dict[str, Any]:
    ages = [row.oldest_age_ms for row in rows if row.oldest_age_ms is not None]
    return {
        "ready": sum(row.ready for row in rows),
        "in_flight": sum(row.in_flight for row in rows),
        "waiting": sum(row.waiting for row in rows),
        "dying": sum(row.dying for row in rows),
        "acked_ahead": sum(row.acked_ahead for row in rows),
        "oldest_age_ms": max(ages, default=None),
    }
