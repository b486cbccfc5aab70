"""Dead letters as they are read: decoded, with where they came from, and held against a filter.

Looking never consumes. A look is bounded: it says how far it came, and whoever wants more looks on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.queues.letters.origins import Origin, origin_of, times_redriven, without_origin
from penstock.broker.queues.letters.retrieval import UNREADABLE, retrieve
from penstock.broker.queues.redrives.records import Filter
from penstock.records import Record

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

LOOK_MESSAGES: Final = 1_000
_LOOK_BYTES: Final = 4 * 1024 * 1024


class DeadMessage(NamedTuple):
    """A dead letter, at its place in the dead-letter topic."""

    topic: str  # the dead-letter topic
    partition: int
    record: Record  # as it is stored, with all of its headers
    origin: Origin
    is_redriven: bool = False  # whether it was sent back since

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def message(self) -> Record:
        """The message as it was before it died."""
        return self.record._replace(headers=without_origin(self.record.headers))

    @property
    def died_ms(self) -> int:
        return self.record.timestamp if self.origin.time_ms is None else self.origin.time_ms

    @property
    def is_readable(self) -> bool:
        """Whether there is a message to send back."""
        return all(name != UNREADABLE for name, _ in self.record.headers)

    @property
    def times_redriven(self) -> int:
        """How often it had been sent back before it died."""
        return times_redriven(self.record.headers)


class Looked(NamedTuple):
    """What a look found, and where to look on."""

    messages: list[DeadMessage]
    next_offset: int


def is_meant(message: DeadMessage, wanted: Filter) -> bool:
    """Whether a filter is about a dead letter."""
    origin = message.origin
    return (
        (wanted.topic is None or origin.topic in (None, wanted.topic))
        and (wanted.group is None or origin.group == wanted.group)
        and (wanted.reason is None or (origin.reason or "") == wanted.reason)
        and (wanted.reason_contains is None or wanted.reason_contains.lower() in (origin.reason or "").lower())
        and (wanted.key is None or message.record.key == wanted.key)
        and (wanted.since_ms is None or message.died_ms >= wanted.since_ms)
        and (wanted.until_ms is None or message.died_ms < wanted.until_ms)
        and (wanted.partition is None or origin.partition == wanted.partition)
        and (wanted.first_offset is None or (origin.offset is not None and origin.offset >= wanted.first_offset))
        and (wanted.last_offset is None or (origin.offset is not None and origin.offset <= wanted.last_offset))
        and (wanted.places is None or (message.partition, message.offset) in wanted.places)
    )


async def look(broker: Broker, topic: str, partition: int, offset: int, end: int, wanted: Filter) -> Looked:
    """The dead letters that are meant among the next ones of a partition, before ``end``."""
    offset = _first_place(wanted, partition, offset, end)
    if offset >= end:
        return Looked([], end)
    last = min(offset + _look_size(wanted), end) - 1
    found = await retrieve(broker, topic, partition, offset, last, _LOOK_BYTES)
    messages = [DeadMessage(topic, partition, record, origin_of(record.headers)) for record in found.records]
    return Looked([message for message in messages if is_meant(message, wanted)], found.next_offset)


def _first_place(wanted: Filter, partition: int, offset: int, end: int) -> int:
    """Where to begin: what is before cannot be meant."""
    if wanted.places is None:
        return offset
    return min((at for of, at in wanted.places if of == partition and at >= offset), default=end)


def _look_size(wanted: Filter) -> int:
    return LOOK_MESSAGES if wanted.places is None or len(wanted.places) > 1 else 1
