"""The settings a topic can have, under the names Kafka's tools know.

One table says what each setting means, what values it takes and where it ends up. Anything not in the table is refused
with the nearest known name, because a setting that is accepted and ignored is a promise broken.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.cluster.queue_config import QUEUE_SETTINGS, QueueSetting, QueueSettings
from penstock.errors import InvalidConfig
from penstock.records import Codec
from penstock.storage.config import UNBOUNDED, UNLIMITED, LogConfig

INT64_MAX: Final = UNBOUNDED
INT32_MAX: Final = (1 << 31) - 1
GZIP_DEFAULT_LEVEL: Final = -1
ALL_REPLICAS: Final = "*"
QUEUE_PREFIX: Final = "queue."  # of settings that queue groups have too, without it


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """How batches are stored: as they came (no codec), or all with one codec, at the level of that codec."""

    codec: Codec | None = None
    gzip_level: int = -1
    lz4_level: int = 9
    zstd_level: int = 3

    @property
    def level(self) -> int | None:
        """The level of the codec in force; None where it has none, or its own default is meant."""
        levels = {Codec.GZIP: self.gzip_level, Codec.LZ4: self.lz4_level, Codec.ZSTD: self.zstd_level}
        level = None if self.codec is None else levels.get(self.codec)
        return None if self.codec is Codec.GZIP and level == GZIP_DEFAULT_LEVEL else level


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What a topic's settings come to, defaults included."""

    log: LogConfig = field(default_factory=LogConfig)
    cleanup_order: tuple[str, ...] = ()  # as the policies were named
    compression: Compression = field(default_factory=Compression)
    timestamp_before_max_ms: int = UNBOUNDED
    timestamp_after_max_ms: int = UNBOUNDED
    leader_throttled: tuple[str, ...] = ()
    follower_throttled: tuple[str, ...] = ()
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
    policies = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not {*policies} <= {"delete", "compact"}:
        raise InvalidConfig(
            f"{text!r} is not a cleanup policy: give delete, compact, both with a comma, or nothing to keep everything."
        )
    return policies


def _one_of(*allowed: str) -> Callable[[str], object]:
    def parse(text: str) -> object:
        if text not in allowed:
            raise InvalidConfig(f"{text!r} is not one of {', '.join(allowed)}.")
        return text

    return parse


def _only(*allowed: str, because: str) -> Callable[[str], object]:
    """For what Kafka has and Penstock has not: only the values that mean to do without it."""

    def parse(text: str) -> object:
        if text not in allowed:
            raise InvalidConfig(f"{text!r} is not taken: {because} Leave it out, or give {' or '.join(allowed)}.")
        return text

    return parse


def _level(low: int, high: int, default: int | None = None) -> Callable[[str], object]:
    within = _integer(low, high)

    def parse(text: str) -> object:
        return default if default is not None and text.strip() == str(default) else within(text)

    return parse


_COMPRESSIONS: Final[Mapping[str, Codec | None]] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def _compression(text: str) -> object:
    if text not in _COMPRESSIONS:
        raise InvalidConfig(f"{text!r} is not one of {', '.join(_COMPRESSIONS)}.")
    return text


def _show_compression(settings: TopicSettings) -> str:
    return next(name for name, codec in _COMPRESSIONS.items() if codec is settings.compression.codec)


def _take_compression(settings: TopicSettings, value: object) -> TopicSettings:
    return replace(settings, compression=replace(settings.compression, codec=_COMPRESSIONS[str(value)]))


def _level_setting(codec: str, parse: Callable[[str], object], doc: str) -> Setting:
    field_name = f"{codec}_level"
    return Setting(
        name=f"compression.{codec}.level",
        kind="int",
        doc=doc,
        parse=parse,
        show=lambda settings: str(getattr(settings.compression, field_name)),
        take=lambda settings, value: replace(
            settings,
            compression=replace(settings.compression, **{field_name: value}),  # type: ignore[arg-type]
        ),
    )


def _throttled(text: str) -> object:
    """Replicas as Kafka names them: partition:node pairs with commas, or a star for all of them."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if parts == (ALL_REPLICAS,):
        return parts
    for part in parts:
        if not re.fullmatch(r"\d+:\d+", part):
            raise InvalidConfig(f"{part!r} is not a replica: give partition:node pairs with commas, or *.")
    return parts


def is_listed(throttled: tuple[str, ...], partition: int, node_id: int) -> bool:
    """Whether a list of throttled replicas names one, or, being empty, means all."""
    return not throttled or throttled == (ALL_REPLICAS,) or f"{partition}:{node_id}" in throttled


def _throttled_setting(side: str, doc: str) -> Setting:
    field_name = f"{side}_throttled"
    return Setting(
        name=f"{side}.replication.throttled.replicas",
        kind="list",
        doc=doc,
        parse=_throttled,
        show=lambda settings: ",".join(getattr(settings, field_name)),
        take=lambda settings, value: replace(settings, **{field_name: value}),  # type: ignore[arg-type]
    )


def _fixed(name: str, kind: str, value: str, doc: str, because: str) -> Setting:
    """A setting without a meaning here, taken at the one value that changes nothing."""
    return Setting(
        name=name,
        kind=kind,
        doc=doc,
        parse=_only(value, because=because),
        show=lambda _: value,
        take=lambda settings, _: settings,
    )


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
    policies = [name for name, is_on in (("compact", log.is_compacting), ("delete", log.is_deleting)) if is_on]
    order = settings.cleanup_order
    return ",".join(sorted(policies, key=lambda name: order.index(name) if name in order else -1))


def _take_cleanup(settings: TopicSettings, value: object) -> TopicSettings:
    assert isinstance(value, tuple)
    log = replace(settings.log, is_compacting="compact" in value, is_deleting="delete" in value)
    return replace(settings, log=log, cleanup_order=value)


_SETTINGS: Final = (
    Setting(
        name="cleanup.policy",
        kind="list",
        doc="What happens to old records: delete removes whole segments, compact keeps the last value of each key, "
        "nothing keeps everything.",
        parse=_cleanup_policy,
        show=_show_cleanup,
        take=_take_cleanup,
    ),
    Setting(
        name="compression.type",
        kind="string",
        doc="How batches are stored: producer, as they came; or uncompressed, gzip, snappy, lz4, zstd.",
        parse=_compression,
        show=_show_compression,
        take=_take_compression,
    ),
    _level_setting(
        "gzip", _level(1, 9, default=GZIP_DEFAULT_LEVEL), "How hard gzip works, 1 to 9; -1 is its own default."
    ),
    _level_setting("lz4", _level(1, 17), "How hard lz4 works, 1 to 17."),
    _level_setting("zstd", _level(-131_072, 22), "How hard zstd works, -131072 to 22."),
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
        "file.delete.delay.ms",
        "file_delete_delay_ms",
        "long",
        _integer(0, INT64_MAX),
        "How long a file stays on the disk after its records left the log.",
    ),
    _log_setting(
        "flush.messages",
        "flush_messages",
        "long",
        _integer(1, INT64_MAX),
        "After how many records the log is synced although no producer waits for it.",
    ),
    _log_setting(
        "flush.ms",
        "flush_ms",
        "long",
        _integer(0, INT64_MAX),
        "After how long the log is synced although no producer waits for it.",
    ),
    _throttled_setting(
        "follower",
        "The replicas (partition:node, or *) that their node fetches no faster than its rate while they catch up; "
        "empty for all.",
    ),
    _log_setting(
        "index.interval.bytes",
        "index_interval_bytes",
        "int",
        _integer(0, INT32_MAX),
        "How many bytes of log share one index entry; 0 gives every batch one.",
    ),
    _throttled_setting(
        "leader",
        "The replicas (partition:node, or *) that their leader sends no faster than its rate while they catch up; "
        "empty for all.",
    ),
    _fixed(
        "local.retention.bytes",
        "long",
        "-2",
        "Without tiered storage every record is local: -2, as retention.bytes says, is the only value.",
        "records are kept on this cluster's disks alone, for as long as retention.bytes says.",
    ),
    _fixed(
        "local.retention.ms",
        "long",
        "-2",
        "Without tiered storage every record is local: -2, as retention.ms says, is the only value.",
        "records are kept on this cluster's disks alone, for as long as retention.ms says.",
    ),
    _log_setting(
        "max.compaction.lag.ms",
        "max_compaction_lag_ms",
        "long",
        _integer(1, INT64_MAX),
        "How long a superseded record stays in a compacted topic at most.",
    ),
    _topic_setting(
        "max.message.bytes", "max_message_bytes", "int", _integer(0, INT32_MAX), "The largest batch taken, in bytes."
    ),
    _topic_setting(
        "message.timestamp.after.max.ms",
        "timestamp_after_max_ms",
        "long",
        _integer(0, INT64_MAX),
        "How far a record's time may be ahead of the node's clock; it is refused otherwise.",
    ),
    _topic_setting(
        "message.timestamp.before.max.ms",
        "timestamp_before_max_ms",
        "long",
        _integer(0, INT64_MAX),
        "How far a record's time may be behind the node's clock; it is refused otherwise.",
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
    Setting(
        name="preallocate",
        kind="boolean",
        doc="Whether a new segment file gets the disk space of a full one at once, where the file system can.",
        parse=_one_of("true", "false"),
        show=lambda settings: str(settings.log.preallocate).lower(),
        take=lambda settings, value: replace(settings, log=replace(settings.log, preallocate=value == "true")),
    ),
    _fixed(
        "remote.log.copy.disable",
        "boolean",
        "false",
        "There is no tiered storage, so nothing is copied there: false is the only value.",
        "there is no tiered storage whose copying could be disabled.",
    ),
    _fixed(
        "remote.log.delete.on.disable",
        "boolean",
        "false",
        "There is no tiered storage to delete from: false is the only value.",
        "there is no tiered storage to delete from.",
    ),
    _fixed(
        "remote.storage.enable",
        "boolean",
        "false",
        "There is no tiered storage: false is the only value.",
        "there is no tiered storage.",
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
        "segment.index.bytes",
        "segment_index_bytes",
        "int",
        _integer(4, INT32_MAX),
        "The size of a segment's index at which a new segment file is begun.",
    ),
    _log_setting(
        "segment.jitter.ms",
        "segment_jitter_ms",
        "long",
        _integer(0, INT64_MAX),
        "How much earlier than segment.ms, at most, a segment file is closed, so that many are not at once.",
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
