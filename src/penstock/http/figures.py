"""What lies in each topic and what went through it, added up once for everyone who shows it."""

from __future__ import annotations

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.stats import TopicStats


class TopicFigures(msgspec.Struct, kw_only=True):
    """One topic on this node: counters since it started, and what its logs hold now."""

    topic: str
    partitions: int = 0
    messages: int = 0
    size_bytes: int = 0
    segments: int = 0
    corrupt_bytes: int = 0
    messages_produced: int = 0
    bytes_produced: int = 0
    messages_consumed: int = 0
    bytes_consumed: int = 0
    produce_errors: dict[str, int] = {}


def topic_figures(broker: Broker) -> list[TopicFigures]:
    """The figures of every topic on this node, by name."""
    topics: dict[str, TopicFigures] = {}
    for partition in broker.replicas:
        name, log = partition.id.topic, partition.log
        figures = topics.get(name)
        if figures is None:
            figures = topics[name] = _counters(name, partition.stats)
        figures.partitions += 1
        figures.messages += max(partition.high_watermark - log.start_offset, 0)
        figures.size_bytes += log.size_bytes
        figures.segments += len(log.segments)
        figures.corrupt_bytes += log.corrupt_bytes
    return [topics[name] for name in sorted(topics)]


def _counters(name: str, stats: TopicStats) -> TopicFigures:
    return TopicFigures(
        topic=name,
        messages_produced=stats.messages_produced,
        bytes_produced=stats.bytes_produced,
        messages_consumed=stats.messages_consumed,
        bytes_consumed=stats.bytes_consumed,
        produce_errors=dict(stats.produce_errors),
    )
