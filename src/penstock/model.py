"""Names and small facts that every layer shares."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.errors import InvalidTopicName

TOPIC_NAME_CHARS_MAX: Final = 249
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
REDRIVES_TOPIC: Final = "__redrives"
PIPELINES_TOPIC: Final = "__pipelines"
SCHEDULES_TOPIC: Final = "__schedules"
AUDIT_TOPIC: Final = "__audit"
INTERNAL_TOPICS: Final = frozenset(
    {OFFSETS_TOPIC, TRANSACTIONS_TOPIC, REDRIVES_TOPIC, PIPELINES_TOPIC, SCHEDULES_TOPIC, AUDIT_TOPIC}
)
# Each topic that is read as a queue has a companion of this name, partition by partition (docs/decisions/0012).
QUEUE_STATE_PREFIX: Final = "__queue."
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")


class TopicPartition(NamedTuple):
    """One partition of one topic, as people write it: ``orders-3``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def check_topic_name(name: str) -> str:
    """Return the name if it may name a topic, else say which rule it breaks."""
    if not name:
        raise InvalidTopicName("A topic name must not be empty.")
    if name in {".", ".."}:
        raise InvalidTopicName(f"A topic cannot be named {name!r}: it would name a directory.")
    if len(name) > TOPIC_NAME_CHARS_MAX:
        raise InvalidTopicName(
            f"The topic name is {len(name)} characters long; at most {TOPIC_NAME_CHARS_MAX} are allowed."
        )
    if not _TOPIC_NAME.fullmatch(name):
        bad = sorted({char for char in name if not _TOPIC_NAME.fullmatch(char)})
        raise InvalidTopicName(
            f"Topic name {name!r} has characters that are not allowed: {' '.join(map(repr, bad))}. "
            "Use letters, digits, '.', '_' and '-'."
        )
    return name


def is_internal(topic: str) -> bool:
    """Internal topics hold the broker's own state: clients may read them, and only the broker writes to them."""
    return topic in INTERNAL_TOPICS or topic.startswith(QUEUE_STATE_PREFIX)


def queue_state_topic(topic: str) -> str:
    """The companion of a topic: it holds what the queue groups that read the topic remember."""
    if len(QUEUE_STATE_PREFIX) + len(topic) > TOPIC_NAME_CHARS_MAX:
        longest = TOPIC_NAME_CHARS_MAX - len(QUEUE_STATE_PREFIX)
        raise InvalidTopicName(
            f"The topic name is {len(topic)} characters long; a topic that is read as a queue has at most {longest}, "
            f"because its state is kept in a topic named {QUEUE_STATE_PREFIX}{{topic}}."
        )
    return f"{QUEUE_STATE_PREFIX}{topic}"


def queue_parent(topic: str) -> str | None:
    """The topic whose companion this one is; None if it is not a companion."""
    return topic.removeprefix(QUEUE_STATE_PREFIX) if topic.startswith(QUEUE_STATE_PREFIX) else None
