"""Who reads what: the two ways of sharing out partitions that every Kafka client knows, as pure functions.

Whichever member leads a group does the sharing, be it a hosted one or a client's, and for the same members both must
come to the same result. So members and partitions stand in the order that Kafka's Java client puts them in: static
members first, by instance, then the others by id; topics by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Final, NamedTuple

from penstock.features.groups.messages import Where


class Subscriber(NamedTuple):
    """A member and the topics that it wants."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str]


Shares = dict[str, list[Where]]  # by member id
Assignor = Callable[[Sequence[Subscriber], Mapping[str, int]], Shares]


def assign_ranges(subscribers: Sequence[Subscriber], partitions: Mapping[str, int]) -> Shares:
    """Topic by topic, everybody who wants it gets neighbouring partitions; the first ones get one more if need be.

    ``partitions`` is how many each topic has; topics that are not in it are shared out to nobody.
    """
    shares: Shares = {subscriber.member_id: [] for subscriber in subscribers}
    ordered = _in_order(subscribers)
    for topic, count in sorted(partitions.items()):
        takers = [subscriber for subscriber in ordered if topic in subscriber.topics]
        if not takers:
            continue
        each, left_over = divmod(count, len(takers))
        start = 0
        for at, taker in enumerate(takers):
            end = start + each + (at < left_over)
            shares[taker.member_id] += [(topic, index) for index in range(start, end)]
            start = end
    return shares


def assign_in_turn(subscribers: Sequence[Subscriber], partitions: Mapping[str, int]) -> Shares:
    """All partitions are dealt like cards; who does not want a topic is passed over."""
    shares: Shares = {subscriber.member_id: [] for subscriber in subscribers}
    wanted = frozenset[str]().union(*(subscriber.topics for subscriber in subscribers))
    dealing = cycle(_in_order(subscribers))
    for topic in sorted(wanted & partitions.keys()):
        for index in range(partitions[topic]):
            taker = next(subscriber for subscriber in dealing if topic in subscriber.topics)
            shares[taker.member_id].append((topic, index))
    return shares


# By the names that members call them, in a hosted member's order of preference.
ASSIGNORS: Final[Mapping[str, Assignor]] = {"range": assign_ranges, "roundrobin": assign_in_turn}


def _in_order(subscribers: Sequence[Subscriber]) -> list[Subscriber]:
    return sorted(subscribers, key=lambda one: (one.instance_id is None, one.instance_id or "", one.member_id))
