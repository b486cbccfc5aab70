"""The settings a topic can have, under the names Kafka's tools know.

One table says what each setting means, what values it takes and where it ends up (`penstock.consensus.setting`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.consensus.queue_config import QUEUE_SETTINGS, QueueSettings, check_one_limit
from penstock.consensus.setting import INT32_MAX, Parse, Setting, boolean, choice, find_setting, integer, number
from penstock.errors import InvalidConfig
from penstock.records import Codec
from penstock.storage.config import UNBOUNDED, LogConfig

INT64_MAX: Final = UNBOUNDED
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


def _cleanup_policy(text: str) -> tuple[str, ...]:
    policies = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not {*policies} <= {"delete", "compact"}:
        raise InvalidConfig(
            f"{text!r} is not a cleanup policy: give delete, compact, both with a comma, or nothing to keep everything."
        )
    return policies


def _only(allowed: str, because: str) -> Parse:
    """For what Kafka has and Penstock has not: only the value that means to do without it."""

    def parse(text: str) -> str:
        if text != allowed:
            raise InvalidConfig(f"{text!r} is not taken: {because} Leave it out, or give {allowed}.")
        return text

    return parse


_COMPRESSIONS: Final[Mapping[str, Codec | None]] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def _show_compression(settings: TopicSettings) -> str:
    return next(name for name, codec in _COMPRESSIONS.items() if codec is settings.compression.codec)


def _throttled(text: str) -> tuple[str, ...]:
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


def _fixed(name: str, kind: str, value: str, doc: str, because: str) -> Setting:
    """A setting without a meaning here, taken at the one value that changes nothing."""
    parse = _only(value, because)
    return Setting(name, "", kind, parse, doc, to_text=lambda _: value, to_fields=lambda settings, _: settings)


def _show_cleanup(settings: TopicSettings) -> str:
    log = settings.log
    policies = [name for name, is_on in (("compact", log.is_compacting), ("delete", log.is_deleting)) if is_on]
    order = settings.cleanup_order
    return ",".join(sorted(policies, key=lambda name: order.index(name) if name in order else -1))


def _take_cleanup(settings: TopicSettings, value: tuple[str, ...]) -> TopicSettings:
    log = replace(settings.log, is_compacting="compact" in value, is_deleting="delete" in value)
    return replace(settings, log=log, cleanup_order=value)


def _of_topic(setting: Setting) -> Setting:
    """A queue setting as one of the topic."""
    show = setting.to_text
    to_text = None if show is None else lambda settings: show(settings.queue)
    return replace(setting, name=f"{QUEUE_PREFIX}{setting.name}", path=f"queue.{setting.path}", to_text=to_text)


_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "cleanup.policy",
        "cleanup_order",
        "list",
        _cleanup_policy,
        "What happens to old records: delete removes whole segments, compact keeps the last value of each key, "
        "nothing keeps everything.",
        to_text=_show_cleanup,
        to_fields=_take_cleanup,
    ),
    Setting(
        "compression.type",
        "compression.codec",
        "string",
        choice(_COMPRESSIONS),
        "How batches are stored: producer, as they came; or uncompressed, gzip, snappy, lz4, zstd.",
        to_text=_show_compression,
    ),
    Setting(
        "compression.gzip.level",
        "compression.gzip_level",
        "int",
        integer(1, 9, "its own default"),
        "How hard gzip works, 1 to 9; -1 is its own default.",
    ),
    Setting("compression.lz4.level", "compression.lz4_level", "int", integer(1, 17), "How hard lz4 works, 1 to 17."),
    Setting(
        "compression.zstd.level",
        "compression.zstd_level",
        "int",
        integer(-131_072, 22),
        "How hard zstd works, -131072 to 22.",
    ),
    Setting(
        "delay.headers.enable",
        "has_delay_headers",
        "boolean",
        boolean,
        "Whether Kafka producers may delay records by the headers penstock-delay-ms and penstock-deliver-at.",
    ),
    Setting(
        "delete.retention.ms",
        "log.delete_retention_ms",
        "long",
        integer(0, INT64_MAX),
        "How long a tombstone stays in a compacted topic.",
    ),
    Setting(
        "file.delete.delay.ms",
        "log.file_delete_delay_ms",
        "long",
        integer(0, INT64_MAX),
        "How long a file stays on the disk after its records left the log.",
    ),
    Setting(
        "flush.messages",
        "log.flush_messages",
        "long",
        integer(1, INT64_MAX),
        "After how many records the log is synced although no producer waits for it.",
    ),
    Setting(
        "flush.ms",
        "log.flush_ms",
        "long",
        integer(0, INT64_MAX),
        "After how long the log is synced although no producer waits for it.",
    ),
    Setting(
        "follower.replication.throttled.replicas",
        "follower_throttled",
        "list",
        _throttled,
        "The replicas (partition:node, or *) that their node fetches no faster than its rate while they catch up; "
        "empty for all.",
    ),
    Setting(
        "index.interval.bytes",
        "log.index_interval_bytes",
        "int",
        integer(0, INT32_MAX),
        "How many bytes of log share one index entry; 0 gives every batch one.",
    ),
    Setting(
        "leader.replication.throttled.replicas",
        "leader_throttled",
        "list",
        _throttled,
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
    Setting(
        "max.compaction.lag.ms",
        "log.max_compaction_lag_ms",
        "long",
        integer(1, INT64_MAX),
        "How long a superseded record stays in a compacted topic at most.",
    ),
    Setting(
        "max.message.bytes", "max_message_bytes", "int", integer(0, INT32_MAX), "The largest batch taken, in bytes."
    ),
    Setting(
        "message.timestamp.after.max.ms",
        "timestamp_after_max_ms",
        "long",
        integer(0, INT64_MAX),
        "How far a record's time may be ahead of the node's clock; it is refused otherwise.",
    ),
    Setting(
        "message.timestamp.before.max.ms",
        "timestamp_before_max_ms",
        "long",
        integer(0, INT64_MAX),
        "How far a record's time may be behind the node's clock; it is refused otherwise.",
    ),
    Setting(
        "message.timestamp.type",
        "has_append_time",
        "string",
        choice({"CreateTime": False, "LogAppendTime": True}),
        "Whether records keep their producer's time or get the time they were appended.",
        to_text=lambda settings: "LogAppendTime" if settings.has_append_time else "CreateTime",
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        "log.min_dirty_ratio",
        "double",
        number(0.0, 1.0),
        "The share of uncompacted bytes from which compaction is worth its work.",
    ),
    Setting(
        "min.compaction.lag.ms",
        "log.min_compaction_lag_ms",
        "long",
        integer(0, INT64_MAX),
        "How long every record stays readable before compaction may remove it.",
    ),
    Setting(
        "min.insync.replicas",
        "min_insync_replicas",
        "int",
        integer(1, INT32_MAX),
        "How many replicas must have a record before acks=all is answered.",
    ),
    Setting(
        "preallocate",
        "log.preallocate",
        "boolean",
        boolean,
        "Whether a new segment file gets the disk space of a full one at once, where the file system can.",
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
    Setting(
        "retention.bytes",
        "log.retention_bytes",
        "long",
        integer(0, INT64_MAX, "no limit"),
        "How large a partition may grow before its oldest segments go; -1 for no limit.",
    ),
    Setting(
        "retention.ms",
        "log.retention_ms",
        "long",
        integer(0, INT64_MAX, "no limit"),
        "How long records are kept; -1 for ever.",
    ),
    Setting(
        "segment.bytes",
        "log.segment_bytes",
        "int",
        integer(1024, INT32_MAX),
        "The size at which a new segment file is begun.",
    ),
    Setting(
        "segment.index.bytes",
        "log.segment_index_bytes",
        "int",
        integer(4, INT32_MAX),
        "The size of a segment's index at which a new segment file is begun.",
    ),
    Setting(
        "segment.jitter.ms",
        "log.segment_jitter_ms",
        "long",
        integer(0, INT64_MAX),
        "How much earlier than segment.ms, at most, a segment file is closed, so that many are not at once.",
    ),
    Setting(
        "segment.ms",
        "log.segment_ms",
        "long",
        integer(1, INT64_MAX),
        "The age at which a new segment file is begun even if the last one is not full.",
    ),
    Setting(
        "unclean.leader.election.enable",
        "has_unclean_elections",
        "boolean",
        boolean,
        "Whether a replica that may lack committed records leads when no other can: available, at that price.",
    ),
    *(_of_topic(setting) for setting in QUEUE_SETTINGS),
)

SETTINGS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in _SETTINGS}


def check_setting(name: str, value: str | None) -> None:
    """Refuse unknown names and bad values; None stands for no value, which is always good."""
    setting = find_setting(SETTINGS, name, "Topic")
    if value is not None:
        setting.read(value, "Topic")


def check_topic_settings(changes: Mapping[str, str | None], configs: Mapping[str, str]) -> None:
    """Refuse changes with unknown names or bad values, or that lead to ``configs`` which do not go together."""
    for name, value in changes.items():
        check_setting(name, value)
    check_one_limit(configs, QUEUE_PREFIX)


def resolve(defaults: TopicSettings, configs: Mapping[str, str], replication_factor: int = 1) -> TopicSettings:
    """The settings of a topic that overrides the defaults with ``configs``.

    Where nothing says how many replicas have to be in sync, more than half of them have to.
    """
    settings = defaults
    for name, value in configs.items():
        setting = find_setting(SETTINGS, name, "Topic")
        settings = setting.take(settings, setting.read(value, "Topic"))
    if not settings.min_insync_replicas:
        settings = replace(settings, min_insync_replicas=replication_factor // 2 + 1)
    return settings
