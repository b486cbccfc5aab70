"""What a queue group is held to, and the names under which topics and groups may say otherwise.

A topic writes ``queue.max.retries``, a group that wants its own value ``max.retries``. One table has both: what a
setting means, what values it takes and which field it sets. Anything else is refused, with the nearest known name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from penstock.config.kinds import UNLIMITED
from penstock.consensus.setting import INT32_MAX, Setting, find_setting, integer, number, one_of
from penstock.errors import InvalidConfig
from penstock.priorities import PRIORITIES

_HOUR_MS: Final = 3_600_000
_LONGEST_MS: Final = 7 * 24 * _HOUR_MS
_RETRIES_MAX: Final = 1_000_000
_LIMITS: Final = ("max.retries", "tries")
_WEIGHT_MAX: Final = 10_000
_FAIR_BY_HEADER: Final = "header:"
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._{}-]{1,249}")


class Order(Enum):
    """What order messages keep when some of them fail."""

    NONE = "none"  # a message that failed comes again after others
    KEY = "key"  # a message comes only when everything before it with its key is done


class Retention(Enum):
    """When messages leave the log."""

    LOG = "log"  # as the topic's other settings want it
    ACKED = "acked"  # also as soon as every queue group has acked them


class Lanes(Enum):
    """Whether messages are handed out by priority."""

    OFF = "off"
    ON = "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Timeouts, retries and limits of a queue group."""

    order: Order = Order.NONE
    lanes: Lanes = Lanes.OFF
    # Of critical, high, normal, low and background; a lane gets that share of what is handed out, if it needs it.
    lane_weights: tuple[int, ...] = (50, 25, 15, 7, 3)
    # A lane or a tenant that has messages and was not served for so long comes first, once; 0 is never.
    lane_boost_ms: int = 30_000
    # Whose messages get equal shares: those of each key, of each value of a "header:NAME", or "" for no such shares.
    fair_by: str = ""
    visibility_timeout_ms: int = 30_000
    visibility_timeout_max_ms: int = 12 * _HOUR_MS
    # A message goes to the dead letters when this many deliveries failed; 0 is never. Users say it as the number of
    # retries, where 0 is none, or as `tries`, which was first and keeps its meaning for topics that have it.
    tries: int = 3
    retry_base_ms: int = 1_000
    retry_factor: float = 2.0
    retry_cap_ms: int = 60_000
    # The longest delay that a consumer may ask for with a nack.
    retry_delay_max_ms: int = _LONGEST_MS
    in_flight_consumer_max: int = 1_000
    in_flight_group_max: int = 1_000_000
    retention: Retention = Retention.LOG
    dead_letter_topic: str = "{topic}.dlq"
    # A group is paused when more than this share of what ended in a window failed; 0 is never.
    breaker_share: float = 0.0
    breaker_min: int = 100
    breaker_window_ms: int = 60_000
    # Messages that wait for an earlier one of their key are remembered, up to this many; then no more are looked at.
    held_max: int = 1_000_000
    reason_chars_max: int = 1_000

    def __post_init__(self) -> None:
        if not 1 <= self.visibility_timeout_ms <= self.visibility_timeout_max_ms:
            raise InvalidConfig(f"A visibility timeout is between 1 and {self.visibility_timeout_max_ms} ms.")
        if self.tries < 0 or self.retry_base_ms < 0 or self.retry_cap_ms < 0 or not 1 <= self.retry_factor < math.inf:
            raise InvalidConfig("Tries and retry delays are not negative, and a retry factor is 1 or more.")
        if self.in_flight_consumer_max < 1 or self.in_flight_group_max < 1 or self.held_max < 1:
            raise InvalidConfig("A limit of messages in flight or held is 1 or more.")
        if not 0 <= self.breaker_share <= 1 or self.breaker_min < 1 or self.breaker_window_ms < 1:
            raise InvalidConfig("A breaker has a share from 0 to 1, and a window and a least number of 1 or more.")

    @property
    def has_shares(self) -> bool:
        """Whether what is handed out next depends on more than offsets and keys."""
        return self.lanes is Lanes.ON or bool(self.fair_by)

    @property
    def supplied_by(self) -> tuple[object, ...]:
        """All that what is handed out next depends on."""
        return (self.order, self.held_max, self.lanes, self.lane_weights, self.lane_boost_ms, self.fair_by)

    @property
    def fair_header(self) -> str | None:
        """The header that tells tenants apart; None if keys do, or nothing does."""
        return self.fair_by.removeprefix(_FAIR_BY_HEADER) if self.fair_by.startswith(_FAIR_BY_HEADER) else None

    def backoff_ms(self, deliveries: int) -> int:
        """How long a message waits after it failed for the nth time."""
        if self.retry_base_ms >= self.retry_cap_ms:
            return self.retry_cap_ms
        delay_ms = float(self.retry_base_ms)
        for _ in range(deliveries - 1):
            delay_ms *= self.retry_factor
            if delay_ms >= self.retry_cap_ms or self.retry_factor == 1:
                break
        return min(int(delay_ms), self.retry_cap_ms)

    @property
    def max_retries(self) -> int:
        """How often a message that failed is delivered again; `UNLIMITED` is without end."""
        return self.tries - 1 if self.tries else UNLIMITED

    def is_last_try(self, deliveries: int) -> bool:
        return 0 < self.tries <= deliveries

    def dead_letters_of(self, topic: str) -> str:
        """The topic that takes what could not be processed of another one."""
        return self.dead_letter_topic.replace("{topic}", topic)

    def with_values(self, values: Mapping[str, str]) -> QueueSettings:
        """These settings with others over them, given as text; `InvalidConfig` if they make no sense."""
        if not values:
            return self
        fields = {setting.path: setting.read(text, "Queue") for setting, text in _found(values)}
        return replace(self, **fields)

    def shown(self) -> dict[str, str]:
        """Every setting by name, as text."""
        return {setting.name: setting.show(self) for setting in QUEUE_SETTINGS}


def check_own(values: Mapping[str, str]) -> None:
    """Refuse what a group cannot have as its own: unknown names, bad values, what is the topic's alone."""
    for setting, text in _found(values):
        if not setting.is_of_group:
            raise InvalidConfig(f"{setting.name!r} is a setting of the topic, queue.{setting.name}, not of a group.")
        setting.read(text, "Queue")


def _found(values: Mapping[str, str]) -> list[tuple[Setting, str]]:
    found = [(find_setting(_BY_NAME, name, "Queue"), text) for name, text in values.items()]
    check_one_limit(values)
    return found


def check_one_limit(values: Mapping[str, str], prefix: str = "") -> None:
    """Refuse ``max.retries`` and ``tries`` that differ: they set the same limit."""
    names = {f"{prefix}{name}": name for name in _LIMITS}
    if len({_BY_NAME[name].read(values[full], "Queue") for full, name in names.items() if full in values}) > 1:
        raise InvalidConfig(f"{' and '.join(names)} set the same limit. Give one, and remove the other.")


def _tries(text: str) -> int:
    """So many retries are one delivery more."""
    retries: int = integer(UNLIMITED, _RETRIES_MAX - 1)(text)
    return 0 if retries == UNLIMITED else retries + 1


def _topic(text: str) -> str:
    if not _TOPIC_NAME.fullmatch(text) or text.replace("{topic}", "").strip("{}") != text.replace("{topic}", ""):
        raise InvalidConfig(f"{text!r} is no name of a topic; {{topic}} in it stands for the topic that is read.")
    return text


def _weights(text: str) -> tuple[int, ...]:
    try:
        weights = tuple(int(part) for part in text.split(","))
    except ValueError:
        weights = ()
    if len(weights) != len(PRIORITIES) or not all(1 <= weight <= _WEIGHT_MAX for weight in weights):
        raise InvalidConfig(
            f"{text!r} is not {len(PRIORITIES)} weights from 1 to {_WEIGHT_MAX}, such as 50,25,15,7,3 "
            f"for {', '.join(PRIORITIES)}."
        )
    return weights


def _fair_by(text: str) -> str:
    if text not in {"", "key"} and not (text.startswith(_FAIR_BY_HEADER) and text != _FAIR_BY_HEADER):
        raise InvalidConfig(f"{text!r} is not key, header:NAME, or empty for no shares.")
    return text


QUEUE_SETTINGS: Final = (
    Setting(
        "order",
        "order",
        "string",
        one_of(Order),
        "What order messages keep when some fail: none, or key, one message of a key at a time.",
    ),
    Setting(
        "lanes", "lanes", "string", one_of(Lanes), "Whether messages are handed out by their priority: off, or on."
    ),
    Setting(
        "lane.weights",
        "lane_weights",
        "string",
        _weights,
        "The shares of the lanes critical, high, normal, low and background.",
    ),
    Setting(
        "lane.boost.ms",
        "lane_boost_ms",
        "long",
        integer(0, _LONGEST_MS),
        "How long a lane or a tenant waits at most until it is served once before all others; 0 is without end.",
    ),
    Setting("fair.by", "fair_by", "string", _fair_by, "Whose messages get equal shares: key, header:NAME, or nothing."),
    Setting(
        "visibility.timeout.ms",
        "visibility_timeout_ms",
        "long",
        integer(1, 12 * _HOUR_MS),
        "How long a consumer has a message to itself where it does not ask for another time.",
    ),
    Setting(
        "max.retries",
        "tries",
        "int",
        _tries,
        "How often a message that failed is delivered again before it goes to the dead letters: 0 is never, "
        "-1 is without end.",
        to_text=lambda settings: str(settings.max_retries),
    ),
    Setting(
        "tries",
        "tries",
        "int",
        integer(0, _RETRIES_MAX),
        "The same limit, counted in deliveries: 1 is no retry. 0 is without end, and the same as max.retries -1.",
    ),
    Setting(
        "retry.base.ms",
        "retry_base_ms",
        "long",
        integer(0, _LONGEST_MS),
        "How long a message waits after it failed for the first time.",
    ),
    Setting(
        "retry.factor",
        "retry_factor",
        "double",
        number(1.0, 1_000.0),
        "By what each further wait is longer than the one before.",
    ),
    Setting("retry.cap.ms", "retry_cap_ms", "long", integer(0, _LONGEST_MS), "The longest wait after a failure."),
    Setting(
        "in.flight.consumer.max",
        "in_flight_consumer_max",
        "int",
        integer(1, INT32_MAX),
        "How many messages of a partition one consumer can hold.",
    ),
    Setting(
        "in.flight.group.max",
        "in_flight_group_max",
        "int",
        integer(1, INT32_MAX),
        "How many messages of a partition all consumers of a group together can hold.",
    ),
    Setting(
        "retention",
        "retention",
        "string",
        one_of(Retention),
        "When messages leave the log: log, as its retention says, or acked, also once every group acked them.",
        is_of_group=False,
    ),
    Setting(
        "dead.letter.topic",
        "dead_letter_topic",
        "string",
        _topic,
        "Where messages go that could not be processed; {topic} stands for the topic's own name.",
    ),
    Setting(
        "breaker.share",
        "breaker_share",
        "double",
        number(0.0, 1.0),
        "The share of failures from which on a group is paused; 0 is never.",
    ),
    Setting(
        "breaker.min",
        "breaker_min",
        "int",
        integer(1, INT32_MAX),
        "How many messages must have ended in a window before their failures count.",
    ),
    Setting(
        "breaker.window.ms",
        "breaker_window_ms",
        "long",
        integer(1, 24 * _HOUR_MS),
        "Over what time failures are counted.",
    ),
)

_BY_NAME: Final[Mapping[str, Setting]] = {setting.name: setting for setting in QUEUE_SETTINGS}
