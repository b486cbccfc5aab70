"""Where a query stands in every partition, with the identity of the topics: what Spark keeps in its checkpoint.

A topic's id tells it from a later one of the same name. The name of the query's group travels along, so that a query
that begins again at its checkpoint is the same group as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from penstock.errors import InvalidConfig

_VERSION: Final = 1

Where = tuple[str, int]


class Reach(NamedTuple):
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
    partitions: Mapping[int, Reach]


@dataclass(frozen=True)
class TopicPosition:
    """How far a query got in one topic: the next offset to be read in each partition."""

    topic_id: str
    offsets: Mapping[int, int]


@dataclass(frozen=True)
class Position:
    """How far a query got."""

    group: str
    topics: Mapping[str, TopicPosition] = field(default_factory=dict)

    def items(self) -> Iterator[tuple[Where, int]]:
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


def position_of(form: Any) -> Position:
    """What a checkpoint holds; `InvalidConfig` if somebody else wrote it."""
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
    return Position(found.group, topics)
