"""The topics that groups can read, as a port: what there is, under which id, what a pattern matches, what members
want.

Groups do not wait to be told: ``version`` grows with every change of metadata, and a group that sees a new one looks
whether its own topics are concerned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from penstock.consensus.metadata import ClusterMetadata
from penstock.errors import InvalidRegularExpression
from penstock.features.groups.consumer.assignors import GroupSubscriber
from penstock.features.groups.consumer.records import StoredConsumer
from penstock.model import is_internal

_PATTERN_CHARS_MAX: Final = 10_000
_MATCHED_PATTERNS_MAX: Final = 1_000


class TopicShape(NamedTuple):
    """A topic as an assignor sees it."""

    topic_id: str
    partitions: int


class ReadableTopics(Protocol):
    """What groups know of topics."""

    @property
    def version(self) -> int:
        """Grows whenever anything below may have changed."""

    def find(self, name: str, /) -> TopicShape | None: ...

    def name_of(self, topic_id: str, /) -> str | None: ...

    def matching(self, pattern: str) -> frozenset[str]:
        """The names that a pattern matches as a whole."""


@lru_cache(maxsize=_MATCHED_PATTERNS_MAX)
def compile_pattern(pattern: str) -> Any:
    """A pattern in RE2's syntax, which takes time linear in what it is matched with (docs/decisions/0008)."""
    if len(pattern) > _PATTERN_CHARS_MAX:
        raise InvalidRegularExpression(f"A pattern may have {_PATTERN_CHARS_MAX} characters, not {len(pattern)}.")
    import re2  # two megabytes that a node without such groups does not need

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "it cannot be read"
        raise InvalidRegularExpression(f"Pattern {pattern!r} is not a regular expression of RE2: {reason}") from error


def match_names(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Internal topics are not meant by any pattern: a member that wants one has to name it."""
    compiled = compile_pattern(pattern)
    return frozenset(name for name in names if not is_internal(name) and compiled.fullmatch(name))


class MetadataTopics:
    """The topics of the cluster's metadata."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._matched: dict[str, frozenset[str]] = {}
        self._matched_version = -1

    @property
    def version(self) -> int:
        return self._metadata.version

    def find(self, name: str) -> TopicShape | None:
        topic = self._metadata.topics.get(name)
        return None if topic is None else TopicShape(topic.topic_id.hex, len(topic.partitions))

    def name_of(self, topic_id: str) -> str | None:
        topic = self._metadata.topic_by_id(UUID(hex=topic_id))
        return None if topic is None else topic.name

    def matching(self, pattern: str) -> frozenset[str]:
        if self._matched_version != self.version or len(self._matched) >= _MATCHED_PATTERNS_MAX:
            self._matched.clear()
            self._matched_version = self.version
        if pattern not in self._matched:
            self._matched[pattern] = match_names(pattern, self._metadata.topics)
        return self._matched[pattern]


class NoTopics:
    """A cluster without topics."""

    version = 0

    def find(self, _name: str) -> TopicShape | None:
        return None

    def name_of(self, _topic_id: str) -> str | None:
        return None

    def matching(self, pattern: str) -> frozenset[str]:
        compile_pattern(pattern)
        return frozenset()


def to_names(places: Iterable[tuple[str, int]], topics: ReadableTopics) -> list[tuple[str, int]]:
    """Partitions by topic name; those of topics that are gone are left out."""
    return [(name, index) for topic_id, index in places if (name := topics.name_of(topic_id)) is not None]


def to_ids(wheres: Iterable[tuple[str, int]], topics: ReadableTopics) -> list[tuple[str, int]]:
    """Partitions by topic id; those of topics that are gone are left out."""
    return [(shape.topic_id, index) for name, index in wheres if (shape := topics.find(name)) is not None]


def wanted_names(facts: StoredConsumer, topics: ReadableTopics) -> frozenset[str]:
    """The names of the topics that a member wants, whether they exist or not."""
    named = frozenset(facts.topics)
    return named | topics.matching(facts.regex) if facts.regex else named


class Subscriptions(NamedTuple):
    """Who wants what of the topics there are, and how many partitions each of these has."""

    members: dict[str, GroupSubscriber]
    partitions: dict[str, int]

    @property
    def fingerprint(self) -> str:
        """Differs whenever the topics that somebody wants do."""
        text = ",".join(f"{topic_id}:{count}" for topic_id, count in sorted(self.partitions.items()))
        return blake2b(text.encode(), digest_size=8).hexdigest()


def look_up(members: Mapping[str, StoredConsumer], topics: ReadableTopics) -> Subscriptions:
    """Members that want the same share the answer: a large group is mostly alike."""
    by_wish: dict[tuple[tuple[str, ...], str], frozenset[str]] = {}
    subscribers: dict[str, GroupSubscriber] = {}
    partitions: dict[str, int] = {}
    for member_id, facts in members.items():
        wish = (facts.topics, facts.regex)
        if wish not in by_wish:
            shapes = [shape for name in sorted(wanted_names(facts, topics)) if (shape := topics.find(name)) is not None]
            partitions.update(shapes)
            by_wish[wish] = frozenset(shape.topic_id for shape in shapes)
        subscribers[member_id] = GroupSubscriber(by_wish[wish], facts.instance_id)
    return Subscriptions(subscribers, partitions)
