"""The settings a topic can have, under the names Kafka's tools know.

One table says what each setting means, what values it takes and where it ends up. Anything not in the table is refused
with the nearest known name, because a setting that is accepted and ignored is a promise broken.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.cluster.queue_config import QUEUE_SETTINGS, QueueSetting, QueueSettings
from penstock.errors import InvalidConfig
from penstock.storage.config import UNLIMITED, LogConfig

INT64_MAX: Final = (1 << 63) - 1
INT32_MAX: Final = (1 << 31) - 1
QUEUE_PREFIX: Final = "queue."  # of settings that queue groups have too, without it


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What a topic's settings come to, defaults included."""

    log: LogConfig = field(default_factory=LogConfig)
    max_message_bytes: int = 1024 * 1024 + 12
    min_insync_replicas: int = 1
    has_append_time: bool = False
    has_unclean_elections: bool = False
    has_delay_headers: bool = False
    queue: QueueSettings = field(default_factory=QueueSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table: how a value is read, shown and taken up."""

    name: str
    kind: str
    doc: str
    parse: Callable[[str], object]
    show: Callable[[TopicSettings], str]
    take: Callable[[TopicSettings, object], TopicSettings]


def _integer(low: int, high: int, unlimited: bool = False) -> Callable[[str], object]:
    def parse(text: str) -> object:
        try:
            value = int(text)
        except ValueError:
            raise InvalidConfig(f"{text!r} is not a whole number.") from None
        if not low <= value <= high and not (unlimited and value == UNLIMITED):
            extra = " or -1 for no limit" if unlimited else ""
            raise InvalidConfig(f"{value} is out of range: give {low} to {high}{extra}.")
        return value

    return parse


def _ratio(text: str) -> object:
    try:
        value = float(text)
    except ValueError:
        raise InvalidConfig(f"{text!r} is not a number.") from None
    if not 0.0 <= value <= 1.0:
        raise InvalidConfig(f"{value} is out of range: give 0 to 1.")
    return value


def _cleanup_policy(text: str) -> object:
    policies = {part.strip() for part in text.split(",") if part.strip()}
    if not policies or not policies <= {"delete", "compact"}:
        raise InvalidConfig(f"{text!r} is not a cleanup policy: give delete, compact, or both with a comma.")
    return policies


def _one_of(*allowed: str) -> Callable[[str], object]:
    def parse(text: str) -> object:
        if text not in allowed:
            raise InvalidConfig(f"{text!r} is not one of {', '.join(allowed)}.")
        return text

    return parse


def _log_setting(name: str, field_name: str, kind: str, parse: Callable[[str], object], doc: str) -> Setting:
    return Setting(
        name=name,
        kind=kind,
        doc=doc,
        parse=parse,
        show=lambda settings: str(getattr(settings.log, field_name)),
        take=lambda settings, value: replace(
            settings,
            log=replace(settings.log, **{field_name: value}),  # type: ignore[arg-type]
        ),
    )


def _topic_setting(name: str, field_name: str, kind: str, parse: Callable[[str], object], doc: str) -> Setting:
    return Setting(
        name=name,
        kind=kind,
        doc=doc,
        parse=parse,
        show=lambda settings: str(getattr(settings, field_name)),
        take=lambda settings, value: replace(settings, **{field_name: value}),  # type: ignore[arg-type]
    )


def _queue_setting(setting: QueueSetting) -> Setting:
    return Setting(
        name=f"{QUEUE_PREFIX}{setting.name}",
        kind=setting.kind,
        doc=setting.doc,
        parse=setting.parse,
        show=lambda settings: setting.show(settings.queue),
        take=lambda settings, value: replace(
            settings,
            queue=replace(settings.queue, **{setting.field: value}),  # type: ignore[arg-type]
        ),
    )


def _show_cleanup(settings: TopicSettings) -> str:
    log = settings.log
    return ",".join(name for name, is_on in (("compact", log.is_compacting), ("delete", log.is_deleting)) if is_on)


def _take_cleanup(settings: TopicSettings, value: object) -> TopicSettings:
    assert isinstance(value, set)
    return replace(settings, log=replace(settings.log, is_compacting="compact" in value, is_deleting="delete" in value))


_SETTINGS: Final = (
    Setting(
        name="cleanup.policy",
        kind="list",
        doc="What happens to old records: delete removes whole segments, compact keeps the last value of each key.",
        parse=_cleanup_policy,
        show=_show_cleanup,
        take=_take_cleanup,
    ),
    Setting(
        name="compression.type",
        kind="string",
        doc="Batches are stored as their producer compressed them; 'producer' is the only value.",
        parse=_one_of("producer"),
        show=lambda _: "producer",
        take=lambda settings, _: settings,
    ),
    Setting(
        name="delay.headers.enable",
        kind="boolean",
        doc="Whether Kafka producers may delay records by the headers penstock-delay-ms and penstock-deliver-at.",
        parse=_one_of("true", "false"),
        show=lambda settings: str(settings.has_delay_headers).lower(),
        take=lambda settings, value: replace(settings, has_delay_headers=value == "true"),
    ),
    _log_setting(
        "delete.retention.ms",
        "delete_retention_ms",
        "long",
        _integer(0, INT64_MAX),
        "How long a tombstone stays in a compacted topic.",
    ),
    _log_setting(
        "index.interval.bytes",
        "index_interval_bytes",
        "int",
        _integer(64, INT32_MAX),
        "How many bytes of log share one index entry.",
    ),
    _topic_setting(
        "max.message.bytes", "max_message_bytes", "int", _integer(0, INT32_MAX), "The largest batch taken, in bytes."
    ),
    Setting(
        name="message.timestamp.type",
        kind="string",
        doc="Whether records keep their producer's time or get the time they were appended.",
        parse=_one_of("CreateTime", "LogAppendTime"),
        show=lambda settings: "LogAppendTime" if settings.has_append_time else "CreateTime",
        take=lambda settings, value: replace(settings, has_append_time=value == "LogAppendTime"),
    ),
    _log_setting(
        "min.cleanable.dirty.ratio",
        "min_dirty_ratio",
        "double",
        _ratio,
        "The share of uncompacted bytes from which compaction is worth its work.",
    ),
    _log_setting(
        "min.compaction.lag.ms",
        "min_compaction_lag_ms",
        "long",
        _integer(0, INT64_MAX),
        "How long every record stays readable before compaction may remove it.",
    ),
    _topic_setting(
        "min.insync.replicas",
        "min_insync_replicas",
        "int",
        _integer(1, INT32_MAX),
        "How many replicas must have a record before acks=all is answered.",
    ),
    _log_setting(
        "retention.bytes",
        "retention_bytes",
        "long",
        _integer(0, INT64_MAX, unlimited=True),
        "How large a partition may grow before its oldest segments go; -1 for no limit.",
    ),
    _log_setting(
        "retention.ms",
        "retention_ms",
        "long",
        _integer(0, INT64_MAX, unlimited=True),
        "How long records are kept; -1 for ever.",
    ),
    _log_setting(
        "segment.bytes",
        "segment_bytes",
        "int",
        _integer(1024, INT32_MAX),
        "The size at which a new segment file is begun.",
    ),
    _log_setting(
        "segment.ms",
        "segment_ms",
        "long",
        _integer(1, INT64_MAX),
        "The age at which a new segment file is begun even if the last one is not full.",
    ),
    Setting(
        name="unclean.leader.election.enable",
        kind="boolean",
        doc="Whether a replica that may lack committed records leads when no other can: available, at that price.",
        parse=_one_of("true", "false"),
        show=lambda settings: str(settings.has_unclean_elections).lower(),
        take=lambda settings, value: replace(settings, has_unclean_elections=value == "true"),
    ),
    *(_queue_setting(setting) for setting in QUEUE_SETTINGS),
)

SETTINGS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in _SETTINGS}


def check_setting(name: str, value: str | None) -> None:
    """Refuse unknown names and bad values; None stands for no value, which is always good."""
    setting = _find(name)
    if value is not None:
        _parse(setting, value)


def resolve(defaults: TopicSettings, configs: Mapping[str, str], replication_factor: int = 1) -> TopicSettings:
    """The settings of a topic that overrides the defaults with ``configs``.

    Where nobody says how many replicas have to be in sync, more than half of them have to.
    """
    settings = defaults
    for name, value in configs.items():
        setting = _find(name)
        settings = setting.take(settings, _parse(setting, value))
    if not settings.min_insync_replicas:
        settings = replace(settings, min_insync_replicas=replication_factor // 2 + 1)
    return settings


def _find(name: str) -> Setting:
    setting = SETTINGS.get(name)
    if setting is None:
        near = difflib.get_close_matches(name, SETTINGS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else f" Known are: {', '.join(SETTINGS)}."
        raise InvalidConfig(f"There is no topic setting {name!r}.{hint}")
    return setting


def _parse(setting: Setting, value: str) -> object:
    try:
        return setting.parse(value)
    except InvalidConfig as error:
        raise InvalidConfig(f"Topic setting {setting.name}: {error.message}") from None
