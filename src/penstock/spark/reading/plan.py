"""Where a query stands, how far the log reaches, and so what is read next. Nothing here asks the cluster.

A `StreamPosition` is what Spark keeps in its checkpoint. A topic's id tells it from a later one of the same name. The
name of the query's group travels along, so that a query that starts again at its checkpoint is the same group as
before. What a query knows and the log no longer has is reported as a loss; nothing is skipped without one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from penstock.errors import InvalidConfig
from penstock.spark.reading.options import Bound

_VERSION: Final = 1

TopicAndPartition = tuple[str, int]


class PartitionReach(NamedTuple):
    """How far a partition can be read at the moment."""

    start: int
    end: int
    log_end: int
    size_bytes: int
    located: Mapping[int, int] = MappingProxyType({})  # the first offset at or after each instant asked for

    @property
    def message_bytes(self) -> float:
        """What a message takes on the average, at least one byte."""
        return max(self.size_bytes / max(self.log_end - self.start, 1), 1.0)


@dataclass(frozen=True)
class TopicReach:
    """A topic and its partitions as the cluster has them now. One that cannot be reached is not among them."""

    topic_id: str
    partitions: Mapping[int, PartitionReach]


@dataclass(frozen=True)
class TopicPosition:
    """How far a query got in one topic: the next offset to be read in each partition."""

    topic_id: str
    offsets: Mapping[int, int]


@dataclass(frozen=True)
class StreamPosition:
    """How far a query got."""

    group: str
    topics: Mapping[str, TopicPosition] = field(default_factory=dict)

    def items(self) -> Iterator[tuple[TopicAndPartition, int]]:
        """Every partition and the next offset to be read there, in order."""
        for name, topic in sorted(self.topics.items()):
            for index, offset in sorted(topic.offsets.items()):
                yield (name, index), offset

    def offset(self, topic: str, topic_id: str, partition: int) -> int | None:
        """The next offset to be read, if the query knows this partition of this very topic."""
        known = self.topics.get(topic)
        return None if known is None or known.topic_id != topic_id else known.offsets.get(partition)

    def form(self) -> dict[str, Any]:
        """As Spark keeps it. Spark compares texts: the same position is always the same text."""
        return {
            "version": _VERSION,
            "group": self.group,
            "topics": {
                name: {"id": topic.topic_id, "offsets": {str(at): topic.offsets[at] for at in sorted(topic.offsets)}}
                for name, topic in sorted(self.topics.items())
            },
        }


class _TopicForm(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    offsets: dict[str, int]


class _Form(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    group: str
    topics: dict[str, _TopicForm]


def position_of(form: Any) -> StreamPosition:
    """What a checkpoint holds; `InvalidConfig` if another source wrote it."""
    try:
        found = msgspec.convert(form, _Form)
        if found.version != _VERSION:
            raise InvalidConfig(
                f"The checkpoint is of version {found.version}, and this Penstock reads version {_VERSION}. "
                f"Use the Penstock that wrote it, or a new checkpointLocation."
            )
        topics = {
            name: TopicPosition(topic.id, {int(index): offset for index, offset in topic.offsets.items()})
            for name, topic in found.topics.items()
        }
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidConfig(
            f"The checkpoint was not written by a query over Penstock ({error}). Use another checkpointLocation."
        ) from None
    return StreamPosition(found.group, topics)


Reaches = Mapping[str, TopicReach]

_TASK_BYTES: Final = 2 * 1024 * 1024  # to read so much takes as long as to begin a task
_TASK_SPANS: Final = 32  # each of them is a call to a node


class ReadSpan(NamedTuple):
    """Messages of one partition to be read by one task: from ``begin`` up to ``end``."""

    topic: str
    topic_id: str
    partition: int
    begin: int
    end: int
    message_bytes: float = 0.0  # on the average; 0 if that is not known

    @property
    def size_bytes(self) -> float:
        """What there is to read, about; without end if that is not known."""
        return (self.end - self.begin) * self.message_bytes if self.message_bytes else math.inf

    def __str__(self) -> str:
        return f"offsets {self.begin} to {self.end} of {self.topic}-{self.partition}"


def bound_offsets(bound: Bound, reaches: Reaches) -> dict[str, TopicPosition]:
    """The offsets that a bound stands for, where its instants were looked up."""
    for topic, index in bound.partitions:
        if topic not in reaches:
            raise InvalidConfig(f"Offsets are given for {topic!r}, which is not among the topics to be read.")
        if index not in reaches[topic].partitions:
            count = len(reaches[topic].partitions)
            raise InvalidConfig(f"Offsets are given for {topic}-{index}; {topic!r} has {count} partitions to be read.")
    return {
        name: TopicPosition(
            topic.topic_id,
            {at: _bound_offset(bound, name, at, reach) for at, reach in topic.partitions.items()},
        )
        for name, topic in reaches.items()
    }


def _bound_offset(bound: Bound, topic: str, index: int, reach: PartitionReach) -> int:
    instant = bound.instant_of(topic, index)
    if instant is not None:
        return min(reach.located[instant], reach.end)
    place = bound.of(topic, index)
    if place == "earliest":
        return reach.start
    if place == "latest":
        return reach.end
    assert isinstance(place, int), "a number where it is not an end"
    return place


def losses(start: StreamPosition, reaches: Reaches) -> Iterator[str]:
    """What a query that stands at ``start`` can no longer read, each in a sentence."""
    for name, known in start.topics.items():
        now = reaches.get(name)
        if now is None:
            yield f"Topic {name!r} is gone or no longer meant by the query."
            continue
        if now.topic_id != known.topic_id:
            yield f"Topic {name!r} was deleted and made anew (it was {known.topic_id}, now it is {now.topic_id})."
            continue
        for index, offset in known.offsets.items():
            reach = now.partitions.get(index)
            if reach is None:
                yield f"Partition {name}-{index} is gone or no longer assigned."
            elif offset < reach.start:
                yield f"Offsets {offset} to {reach.start - 1} of {name}-{index} were deleted before they were read."
            elif offset > reach.log_end:
                yield f"{name}-{index} ends at offset {reach.log_end}, before {offset}, where the query stands."
        for index, reach in now.partitions.items():
            if index not in known.offsets and reach.start > 0:
                yield f"Offsets 0 to {reach.start - 1} of the new partition {name}-{index} were deleted unread."


def follow(start: StreamPosition, reaches: Reaches) -> StreamPosition:
    """The same place in the log as it is now: new partitions and topics from their beginning, lost messages skipped."""
    topics: dict[str, TopicPosition] = {}
    for name, now in reaches.items():
        offsets: dict[int, int] = {}
        for index, reach in now.partitions.items():
            known = start.offset(name, now.topic_id, index)
            begin = reach.start if known is None or known > reach.log_end else max(known, reach.start)
            offsets[index] = begin
        topics[name] = TopicPosition(now.topic_id, offsets)
    return StreamPosition(start.group, topics)


def advance(
    start: StreamPosition, reaches: Reaches, *, max_records: int | None = None, max_bytes: int | None = None
) -> StreamPosition:
    """How far a query goes next. Limits are shared out by what waits.

    A topic that is new to the query is only entered, at its beginning: that is in the checkpoint before anything of it
    is read, so that reading it again after a crash begins at the same place.
    """
    followed = follow(start, reaches)
    begins = dict(followed.items())
    waiting = {
        (name, index): max(reach.end - begins[name, index], 0) if _knows(start, name, topic) else 0
        for name, topic in reaches.items()
        for index, reach in topic.partitions.items()
    }
    if max_records is not None:
        waiting = share(waiting, max_records)
    if max_bytes is not None:
        waiting = _share_bytes(waiting, reaches, max_bytes)
    topics = {
        name: TopicPosition(
            topic.topic_id, {index: begins[name, index] + waiting[name, index] for index in topic.partitions}
        )
        for name, topic in reaches.items()
    }
    return StreamPosition(start.group, topics)


def _knows(start: StreamPosition, name: str, topic: TopicReach) -> bool:
    known = start.topics.get(name)
    return known is not None and known.topic_id == topic.topic_id


def share(waiting: Mapping[tuple[str, int], int], limit: int) -> dict[tuple[str, int], int]:
    """At most ``limit`` in all, to each by what waits there; at least one in all, so that each gets its turn."""
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    shares = {at: count * limit // total for at, count in waiting.items()}
    left = limit - sum(shares.values())
    # What rounding left over goes to those that lost most by it.
    for at in sorted(waiting, key=lambda at: (-(waiting[at] * limit % total), at)):
        if left == 0:
            break
        if shares[at] < waiting[at]:
            shares[at] += 1
            left -= 1
    return shares


def _share_bytes(waiting: dict[tuple[str, int], int], reaches: Reaches, max_bytes: int) -> dict[tuple[str, int], int]:
    sizes = {at: reaches[at[0]].partitions[at[1]].message_bytes for at in waiting}
    total = sum(count * sizes[at] for at, count in waiting.items())
    if total <= max_bytes:
        return waiting
    return share(waiting, max(int(sum(waiting.values()) * max_bytes / total), 1))


def spans(start: StreamPosition, end: StreamPosition, reaches: Reaches) -> list[ReadSpan]:
    """What lies between two positions, a span for each partition.

    Partitions that came meanwhile are read from 0 on. ``reaches`` tells how large messages are, where it is known.
    """
    found: list[ReadSpan] = []
    for (topic, index), last in end.items():
        topic_id = end.topics[topic].topic_id
        known = start.topics.get(topic)
        if known is None or known.topic_id != topic_id:
            continue  # it was entered just now
        begin = known.offsets.get(index, 0)
        reach = reaches[topic].partitions.get(index) if topic in reaches else None
        if last > begin:
            found.append(ReadSpan(topic, topic_id, index, begin, last, reach.message_bytes if reach else 0.0))
    return found


def split(whole: list[ReadSpan], min_partitions: int | None) -> list[ReadSpan]:
    """The same in at least so many parts, if there are that many messages."""
    if min_partitions is None or len(whole) >= min_partitions:
        return whole
    total = sum(span.end - span.begin for span in whole)
    parts: list[ReadSpan] = []
    for span in whole:
        size = span.end - span.begin
        count = max(1, min(size, -(-size * min_partitions // total)))
        bounds = [span.begin + size * at // count for at in range(count + 1)]
        parts += [span._replace(begin=begin, end=end) for begin, end in pairwise(bounds)]
    return parts


def tasks(parts: Sequence[ReadSpan], min_partitions: int | None = None) -> list[tuple[ReadSpan, ...]]:
    """Spans shared out among tasks: small neighbours go together, for a task costs more than they do.

    There are at least ``min_partitions`` tasks, if there are as many spans.
    """
    spare = len(parts) - max(min_partitions or 0, 1)  # how many spans may join another's task
    found: list[list[ReadSpan]] = []
    size = 0.0
    for span in parts:
        if found and spare > 0 and size + span.size_bytes <= _TASK_BYTES and len(found[-1]) < _TASK_SPANS:
            found[-1].append(span)
            size += span.size_bytes
            spare -= 1
        else:
            found.append([span])
            size = span.size_bytes
    return [tuple(some) for some in found]
