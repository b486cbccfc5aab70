"""Where the messages of schedules go: the partition of each, and the records that they become.

A message with a key goes where every producer would send it. Those without one that are due together go to one
partition, and the next ones to the next, as far as these have leaders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.schedules.records import Message, Schedule
from penstock.cluster.metadata import Topic
from penstock.cluster.records import NO_LEADER
from penstock.priorities import PRIORITY_HEADER
from penstock.records import HEADER_BYTES, Record, key_hash

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

ID_HEADER: Final = "penstock-schedule-id"
DUE_HEADER: Final = "penstock-due"

BATCH_BYTES_MAX: Final = 1024 * 1024
# The most that a record's lengths and deltas take, the headers that we add, and each header beside its name and value.
_RECORD_OVERHEAD_BYTES: Final = 36
_OWN_HEADERS_BYTES: Final = 320
_HEADER_OVERHEAD_BYTES: Final = 10
_UTF8_BYTES_MAX: Final = 4


class Target(NamedTuple):
    """A partition of a topic that may meanwhile be another one of the same name."""

    topic: str
    topic_id: bytes
    partition: int


class Targets:
    """Chooses partitions, by what this node knows of topics."""

    def __init__(self, broker: Broker, turn: int) -> None:
        self._broker = broker
        self._turn = turn
        self._chosen: dict[str, Target] = {}  # for messages without a key, until the next turn

    def next_turn(self) -> None:
        """What comes now is not due together with what came before."""
        if self._chosen:
            self._turn += 1
            self._chosen.clear()

    def of(self, message: Message) -> Target | None:
        """Where a message goes; None if there is no such topic or partition."""
        is_free = message.key is None and message.partition is None
        if is_free and (chosen := self._chosen.get(message.topic)) is not None:
            return chosen
        topic = self._broker.metadata.topics.get(message.topic)
        if topic is None:
            return None
        partition = message.partition
        if partition is None:
            partition = self._choose(topic) if message.key is None else key_hash(message.key) % len(topic.partitions)
        if not 0 <= partition < len(topic.partitions):
            return None
        target = Target(message.topic, topic.topic_id.bytes, partition)
        if is_free:
            self._chosen[message.topic] = target
        return target

    def _choose(self, topic: Topic) -> int:
        led = [each.partition for each in topic.partitions if each.leader != NO_LEADER]
        usable = led or range(len(topic.partitions))
        return usable[self._turn % len(usable)]

    def why_not(self, message: Message) -> str:
        """Why there is nowhere to go."""
        if message.topic not in self._broker.metadata.topics:
            return f"There is no topic {message.topic!r} any more."
        return f"Topic {message.topic!r} has no partition {message.partition}."

    def batch_bytes(self, target: Target) -> int:
        """How large a batch may be there."""
        topic = self._broker.metadata.topics.get(target.topic)
        if topic is None:
            return BATCH_BYTES_MAX
        return min(self._broker.topic_settings(target.topic).max_message_bytes, BATCH_BYTES_MAX)


def size_of(message: Message) -> int:
    """How many bytes a message takes in a batch, at most."""
    size = _RECORD_OVERHEAD_BYTES + _OWN_HEADERS_BYTES + len(message.key or b"") + len(message.value or b"")
    for name, value in message.headers:
        size += _HEADER_OVERHEAD_BYTES + _UTF8_BYTES_MAX * len(name) + len(value or b"")
    return size


def batch_size_of(message: Message) -> int:
    """How many bytes a batch with this message alone takes, at most."""
    return HEADER_BYTES + size_of(message)


def to_records(schedules: Sequence[Schedule], now_ms: int) -> list[Record]:
    """Messages as they come into their topic: stamped with the time at which they do, and with when they were due."""
    return [
        Record(delta, now_ms, schedule.message.key, schedule.message.value, _headers(schedule))
        for delta, schedule in enumerate(schedules)
    ]


def _headers(schedule: Schedule) -> tuple[tuple[str, bytes | None], ...]:
    message = schedule.message
    headers = message.headers
    if headers and any(
        name in (ID_HEADER, DUE_HEADER) for name, _ in headers
    ):  # what was fired before is scheduled again
        headers = tuple(header for header in headers if header[0] not in (ID_HEADER, DUE_HEADER))
    if message.priority and all(name != PRIORITY_HEADER for name, _ in headers):
        headers = (*headers, (PRIORITY_HEADER, message.priority.encode()))
    # Ours come first: what is alike in all messages of a batch, such as their priority, is best last.
    return ((ID_HEADER, schedule.id.encode()), (DUE_HEADER, b"%d" % schedule.due_ms), *headers)
