"""Where a dead letter came from and why it died: text headers beside those of the message itself.

A dead letter has the key, value, timestamp and headers of its message, and behind them the headers made here. Dying
twice puts a second set behind the first, and going back takes the last set off again, so what was there stays there.

Messages out of a log by their offsets: each of them, or the certainty that it is gone.

A new leader may not know yet how far its log is committed. Then nothing is said of what cannot be read: it is tried
again, because the caller would take silence for a message that retention removed.

A batch that cannot be unpacked holds messages all the same. They are returned without key and value.

Dead letters as they are read: decoded, with where they came from, and held against a filter.

Looking never consumes. A look is bounded: it says how far it came, and a caller that wants more looks on from there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

from penstock.consensus.queue_config import QueueSettings
from penstock.errors import OffsetNotAvailable, OffsetOutOfRange, PenstockError
from penstock.features.redrives.records import DeadLetterFilter
from penstock.machines.ports import Ports
from penstock.model import TOPIC_NAME_CHARS_MAX
from penstock.partitions.beside import beside
from penstock.records import BatchHeader, Record, decode_records, iter_batches
from penstock.records.batch import Headers
from penstock.storage.aborted import AbortedRanges

PREFIX: Final = "penstock-dlq-"
REDRIVEN: Final = "penstock-redriven"  # how often a message was sent back
SUFFIX: Final = ".dlq"
# More than the headers made here can take: a reason of a thousand characters, two names, some numbers.
HEADERS_BYTES_MAX: Final = 64 * 1024

_NAMES: Final = ("topic", "partition", "offset", "timestamp", "group", "tries", "reason", "time")
_HEADERS: Final = frozenset(PREFIX + name for name in _NAMES)
_DIGEST_BYTES: Final = 6


class DeadLetterOrigin(NamedTuple):
    """What the headers of a dead letter say. What is missing or makes no sense is None."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp_ms: int | None = None
    group: str | None = None
    tries: int | None = None
    reason: str | None = None
    time_ms: int | None = None  # when it was given up


def with_origin(record: Record, origin: DeadLetterOrigin) -> Record:
    """The message as a dead letter."""
    told = tuple(
        (PREFIX + name, str(value).encode(errors="replace"))
        for name, value in zip(_NAMES, origin, strict=True)
        if value is not None
    )
    return record._replace(headers=record.headers + told)


def origin_of(headers: Headers) -> DeadLetterOrigin:
    """Where a dead letter came from; any producer of the topic can write such headers, so nothing is trusted."""
    found: dict[str, str] = {}
    for name, value in headers:
        if name in _HEADERS and value is not None:
            found[name.removeprefix(PREFIX)] = value.decode(errors="replace")
    return DeadLetterOrigin(
        topic=found.get("topic"),
        partition=_number(found.get("partition")),
        offset=_number(found.get("offset")),
        timestamp_ms=_number(found.get("timestamp")),
        group=found.get("group"),
        tries=_number(found.get("tries")),
        reason=found.get("reason"),
        time_ms=_number(found.get("time")),
    )


def _number(text: str | None) -> int | None:
    is_number = text is not None and text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= 19
    return int(text) if text is not None and is_number else None


def without_origin(headers: Headers) -> Headers:
    """The headers as they were before the message died (the last time)."""
    kept: list[tuple[str, bytes | None]] = []
    taken: set[str] = set()
    for name, value in reversed(headers):
        if name in _HEADERS and name not in taken:
            taken.add(name)
        else:
            kept.append((name, value))
    return tuple(reversed(kept))


def times_redriven(headers: Headers) -> int:
    """How often a message was sent back from the dead letters."""
    texts = [value.decode(errors="replace") for name, value in headers if name == REDRIVEN and value is not None]
    return max(_number(texts[-1]) or 0, 0) if texts else 0


def revived(record: Record) -> Record:
    """The dead letter as a message again, which tells how often that happened to it."""
    times = times_redriven(record.headers) + 1
    kept = tuple(header for header in without_origin(record.headers) if header[0] != REDRIVEN)
    return record._replace(headers=(*kept, (REDRIVEN, str(times).encode())))


# -- which topic -------------------------------------------------------------------------------------------------------


def dead_letter_topic(topic: str, settings: QueueSettings) -> str | None:
    """The topic for the dead letters of another one; None where there is none.

    Dead letters of dead letters are not taken for granted: what fails there stays, unless a setting says where to.
    """
    if topic.endswith(SUFFIX) and settings.dead_letter_topic == QueueSettings().dead_letter_topic:
        return None
    name = settings.dead_letters_of(topic)
    if name == topic:
        return None
    if len(name) > TOPIC_NAME_CHARS_MAX:
        digest = blake2b(topic.encode(), digest_size=_DIGEST_BYTES).hexdigest()
        name = f"{topic[: TOPIC_NAME_CHARS_MAX - len(digest) - len(SUFFIX) - 1]}-{digest}{SUFFIX}"
    return name


def queue_settings_for(topic: str, settings: QueueSettings) -> QueueSettings:
    """The settings of a topic's queues: where there are no dead letters, a message is tried without end."""
    return settings if dead_letter_topic(topic, settings) is not None else replace(settings, tries=0)


UNREADABLE: Final = "penstock-dlq-error"  # a header that tells why there is no key and no value


class Retrieved(NamedTuple):
    """The messages that there are before ``next_offset``; what is not among them is gone."""

    records: list[Record]
    next_offset: int


async def retrieve(ports: Ports, topic: str, index: int, first: int, last: int, max_bytes: int) -> Retrieved:
    """Messages between two offsets, both included, about as many as fit into ``max_bytes``.

    `OffsetNotAvailable` if they cannot be read at the moment. All that is asked for must have been readable once.
    """
    try:
        found = await ports.partitions.read(topic, index, first, max_bytes)
    except OffsetOutOfRange:
        start = await ports.partitions.locate(topic, index, "earliest")
        if start <= first:
            raise OffsetNotAvailable(f"{topic}-{index} cannot be read at offset {first} now. Try again.") from None
        return Retrieved([], min(start, last + 1))
    if not found.data:
        raise OffsetNotAvailable(f"It is not known yet up to where {topic}-{index} is committed. Try again.")
    return await beside(found.data, partial(_between, found.data, AbortedRanges(found.aborted), first, last))


def _between(data: memoryview, aborted: AbortedRanges, first: int, last: int) -> Retrieved:
    records: list[Record] = []
    next_offset = first
    for position, header in iter_batches(data):
        if header.next_offset <= first:
            continue
        if header.base_offset > last:
            next_offset = last + 1
            break
        next_offset = header.next_offset
        if not header.is_control and header not in aborted:
            batch = data[position : position + header.size]
            records += [record for record in unpacked(batch, header, first, last) if first <= record.offset <= last]
    return Retrieved(records, min(next_offset, last + 1))


def unpacked(batch: memoryview, header: BatchHeader, first: int, last: int) -> list[Record]:
    """The records of a batch; if it cannot be unpacked, one for each offset in it between two, saying why."""
    try:
        return decode_records(batch)
    except PenstockError as error:
        why = (UNREADABLE, f"It cannot be unpacked: {error.message}".encode())
        offsets = range(max(first, header.base_offset), min(last, header.last_offset) + 1)
        return [Record(offset, header.base_timestamp, None, None, (why,)) for offset in offsets]


LOOK_MESSAGES: Final = 1_000
_LOOK_BYTES: Final = 4 * 1024 * 1024


class DeadMessage(NamedTuple):
    """A dead letter, at its place in the dead-letter topic."""

    topic: str  # the dead-letter topic
    partition: int
    record: Record  # as it is stored, with all of its headers
    origin: DeadLetterOrigin
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


class ScannedMessages(NamedTuple):
    """What a look found, and where to look on."""

    messages: list[DeadMessage]
    next_offset: int


def matches(message: DeadMessage, wanted: DeadLetterFilter) -> bool:
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


async def scan(
    ports: Ports, topic: str, partition: int, offset: int, end: int, wanted: DeadLetterFilter
) -> ScannedMessages:
    """The dead letters that are meant among the next ones of a partition, before ``end``."""
    offset = _first_place(wanted, partition, offset, end)
    if offset >= end:
        return ScannedMessages([], end)
    last = min(offset + _look_size(wanted), end) - 1
    found = await retrieve(ports, topic, partition, offset, last, _LOOK_BYTES)
    messages = [DeadMessage(topic, partition, record, origin_of(record.headers)) for record in found.records]
    return ScannedMessages([message for message in messages if matches(message, wanted)], found.next_offset)


def _first_place(wanted: DeadLetterFilter, partition: int, offset: int, end: int) -> int:
    """Where to begin: what is before cannot be meant."""
    if wanted.places is None:
        return offset
    return min((at for of, at in wanted.places if of == partition and at >= offset), default=end)


def _look_size(wanted: DeadLetterFilter) -> int:
    return LOOK_MESSAGES if wanted.places is None or len(wanted.places) > 1 else 1
