"""What members want, as topic ids: names and patterns looked up in what topics there are now."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

from penstock.features.groups.consumer.assignors import Subscriber
from penstock.features.groups.consumer.records import StoredConsumer
from penstock.features.groups.consumer.topics import Topics


def wanted_names(facts: StoredConsumer, topics: Topics) -> frozenset[str]:
    """The names of the topics that a member wants, whether they exist or not."""
    named = frozenset(facts.topics)
    return named | topics.matching(facts.regex) if facts.regex else named


class Subscriptions(NamedTuple):
    """Who wants what of the topics there are, and how many partitions each of these has."""

    members: dict[str, Subscriber]
    partitions: dict[str, int]

    @property
    def fingerprint(self) -> str:
        """Differs whenever the topics that somebody wants do."""
        text = ",".join(f"{topic_id}:{count}" for topic_id, count in sorted(self.partitions.items()))
        return blake2b(text.encode(), digest_size=8).hexdigest()


def look_up(members: Mapping[str, StoredConsumer], topics: Topics) -> Subscriptions:
    """Members that want the same share the answer: a large group is mostly alike."""
    by_wish: dict[tuple[tuple[str, ...], str], frozenset[str]] = {}
    subscribers: dict[str, Subscriber] = {}
    partitions: dict[str, int] = {}
    for member_id, facts in members.items():
        wish = (facts.topics, facts.regex)
        if wish not in by_wish:
            shapes = [shape for name in sorted(wanted_names(facts, topics)) if (shape := topics.find(name)) is not None]
            partitions.update(shapes)
            by_wish[wish] = frozenset(shape.topic_id for shape in shapes)
        subscribers[member_id] = Subscriber(by_wish[wish], facts.instance_id)
    return Subscriptions(subscribers, partitions)
