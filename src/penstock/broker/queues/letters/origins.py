"""Where a dead letter came from and why it died: text headers beside those of the message itself.

A dead letter has the key, value, timestamp and headers of its message, and behind them the headers made here. Dying
twice puts a second set behind the first, and going back takes the last set off again, so what was there stays there.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import Final, NamedTuple

from penstock.broker.queues.core.config import QueueSettings
from penstock.model import TOPIC_NAME_CHARS_MAX
from penstock.records import Record
from penstock.records.batch import Headers

PREFIX: Final = "penstock-dlq-"
REDRIVEN: Final = "penstock-redriven"  # how often a message was sent back
SUFFIX: Final = ".dlq"
# More than the headers made here can take: a reason of a thousand characters, two names, some numbers.
HEADERS_BYTES_MAX: Final = 64 * 1024

_NAMES: Final = ("topic", "partition", "offset", "timestamp", "group", "tries", "reason", "time")
_HEADERS: Final = frozenset(PREFIX + name for name in _NAMES)
_DIGEST_BYTES: Final = 6


class Origin(NamedTuple):
    """What the headers of a dead letter say. What is missing or makes no sense is None."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp_ms: int | None = None
    group: str | None = None
    tries: int | None = None
    reason: str | None = None
    time_ms: int | None = None  # when it was given up


def inscribe(record: Record, origin: Origin) -> Record:
    """The message as a dead letter."""
    told = tuple(
        (PREFIX + name, str(value).encode(errors="replace"))
        for name, value in zip(_NAMES, origin, strict=True)
        if value is not None
    )
    return record._replace(headers=record.headers + told)


def origin_of(headers: Headers) -> Origin:
    """Where a dead letter came from; whoever can write to the topic can write such headers, so nothing is trusted."""
    found: dict[str, str] = {}
    for name, value in headers:
        if name in _HEADERS and value is not None:
            found[name.removeprefix(PREFIX)] = value.decode(errors="replace")
    return Origin(
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


def revive(record: Record) -> Record:
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
