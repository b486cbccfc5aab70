"""Partitions as a door reaches them: the one that is led here directly, any other through its leader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.broker.partition import Partition
from penstock.broker.remote import Extent, Where, extent_of
from penstock.broker.starts import Start, resolve_start

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def led_here(broker: Broker, topic: str, index: int) -> Partition | None:
    """The partition, if this node leads it at this moment."""
    if not broker.replicas.has(topic, index):
        return None
    partition = broker.partition(topic, index)
    return partition if partition.is_leader else None


async def extents_of(broker: Broker, places: Iterable[Where]) -> dict[Where, Extent]:
    """How far partitions reach. One that is not there, or whose leader does not answer soon, is left out."""
    found: dict[Where, Extent] = {}
    elsewhere: list[Where] = []
    for where in dict.fromkeys(places):
        partition = led_here(broker, *where)
        if partition is not None:
            found[where] = extent_of(partition)
        elif _is_known(broker, where):
            elsewhere.append(where)
    if elsewhere:
        found |= await broker.remote.extents(elsewhere)
    return found


def _is_known(broker: Broker, where: Where) -> bool:
    topic = broker.metadata.topics.get(where[0])
    return topic is not None and 0 <= where[1] < len(topic.partitions)


async def locate(broker: Broker, topic: str, index: int, start: Start) -> int:
    """The offset that a start stands for; a number is taken as it is.

    A leader that is new may not know the end yet, and is asked again until it does.
    """
    partition = led_here(broker, topic, index)
    if partition is not None and (partition.is_watermark_known or start == "earliest" or isinstance(start, int)):
        return resolve_start(partition, start)
    return await broker.remote.locate(topic, index, start)
