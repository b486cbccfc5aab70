"""Everything that can be set, section by section, with its default and its kind.

The structs are the table: `SETTINGS` is read off them, and so are the names in the file, the environment variables
(``broker.data_dir`` is ``PENSTOCK_BROKER__DATA_DIR``) and what ``penstock config show`` prints. A setting stands here
only if it has an effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import msgspec

from penstock.config.kinds import (
    INT32_MAX,
    UNLIMITED,
    Address,
    Choice,
    Directory,
    Duration,
    Flag,
    HostNames,
    HostPort,
    Kind,
    Maybe,
    Networks,
    Number,
    PeerAddress,
    PeerList,
    Secret,
    Size,
    Whole,
    Words,
)

KIB: Final = 1024
MIB: Final = 1024 * KIB
SECOND_MS: Final = 1_000
HOUR_MS: Final = 3_600 * SECOND_MS


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """This node: who it is, where its data is, where it listens."""

    node_id: Annotated[int, Whole(0)] = 1
    data_dir: Annotated[Path, Directory()] = Path("data")
    rack: Annotated[str | None, Maybe(Words())] = None
    # Loopback until there is access control: nobody opens a broker to a network by forgetting a setting.
    kafka: Annotated[Address, HostPort()] = Address("127.0.0.1", 9092)
    http: Annotated[Address, HostPort()] = Address("127.0.0.1", 8080)
    grpc: Annotated[Address | None, Maybe(HostPort())] = Address("127.0.0.1", 9000)
    advertised_kafka: Annotated[Address | None, Maybe(HostPort(low=1))] = None
    advertised_http: Annotated[Address | None, Maybe(HostPort(low=1))] = None
    advertised_grpc: Annotated[Address | None, Maybe(HostPort(low=1))] = None
    # Where other nodes reach this one; a node without it is alone.
    internal: Annotated[Address | None, Maybe(HostPort())] = None
    advertised_internal: Annotated[Address | None, Maybe(HostPort(low=1))] = None
    auto_create_topics: Annotated[bool, Flag()] = True
    max_connections: Annotated[int, Whole(1)] = 10_000
    idle_timeout_ms: Annotated[int, Duration(SECOND_MS)] = 600 * SECOND_MS
    max_request_bytes: Annotated[int, Size(KIB, INT32_MAX)] = 100 * MIB
    http_allowed_hosts: Annotated[tuple[str, ...], HostNames()] = ()
    http_trusted_proxies: Annotated[tuple[str, ...], Networks()] = ()
    max_body_bytes: Annotated[int, Size(KIB, INT32_MAX)] = 16 * MIB
    websocket_ping_ms: Annotated[int, Duration(SECOND_MS)] = 20 * SECOND_MS
    websocket_resume_ms: Annotated[int, Duration(SECOND_MS)] = 60 * SECOND_MS
    shutdown_timeout_ms: Annotated[int, Duration(SECOND_MS)] = 30 * SECOND_MS


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How nodes become a cluster, and how patient they are with each other."""

    peers: Annotated[tuple[PeerAddress, ...], PeerList()] = ()
    join: Annotated[Address | None, Maybe(HostPort(low=1))] = None
    token: Annotated[str | None, Maybe(Secret())] = None
    voters: Annotated[int, Whole(1, 9)] = 3
    election_timeout_ms: Annotated[int, Duration(50)] = 500
    heartbeat_interval_ms: Annotated[int, Duration(10)] = 500
    session_timeout_ms: Annotated[int, Duration(100)] = 2 * SECOND_MS
    replica_lag_ms: Annotated[int, Duration(100)] = 10 * SECOND_MS
    replication_throttle_bytes: Annotated[int, Size()] = 0
    internal_replication_factor: Annotated[int, Whole(1, 32_767)] = 3
    follower_reads: Annotated[bool, Flag()] = False


class ScrubSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and how fast, everything on the disk is read again, in search of damage."""

    interval_ms: Annotated[int, Duration(0)] = 24 * HOUR_MS
    bytes_per_second: Annotated[int, Size(KIB)] = 16 * MIB


class StorageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How logs are kept on disk."""

    segment_bytes: Annotated[int, Size(KIB, INT32_MAX)] = 64 * MIB
    segment_ms: Annotated[int, Duration(1)] = 168 * HOUR_MS
    index_interval_bytes: Annotated[int, Size(0, INT32_MAX)] = 4 * KIB
    fsync: Annotated[str, Choice(("every", "interval", "none"))] = "every"
    fsync_interval_ms: Annotated[int, Duration(1)] = SECOND_MS
    sync_threads: Annotated[int, Whole(1, 64)] = 4
    housekeeping_interval_ms: Annotated[int, Duration(10)] = 10 * SECOND_MS
    retention_check_interval_ms: Annotated[int, Duration(10)] = 300 * SECOND_MS
    producer_expiry_ms: Annotated[int, Duration(SECOND_MS)] = 24 * HOUR_MS
    scrub: ScrubSettings = ScrubSettings()


class TopicDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic gets that does not ask for anything else."""

    partitions: Annotated[int, Whole(1, 10_000)] = 3
    # Three, or as many as there are nodes, where nothing is given; of those more than half have to be in sync.
    replication_factor: Annotated[int | None, Maybe(Whole(1, 32_767))] = None
    retention_ms: Annotated[int, Duration(may_be_unlimited=True)] = 168 * HOUR_MS
    retention_bytes: Annotated[int, Size(may_be_unlimited=True)] = UNLIMITED
    cleanup_policy: Annotated[str, Choice(("delete", "compact", "compact,delete"))] = "delete"
    max_message_bytes: Annotated[int, Size(0, INT32_MAX)] = MIB + 12
    min_insync_replicas: Annotated[int | None, Maybe(Whole(1, 32_767))] = None
    timestamp_type: Annotated[str, Choice(("create", "append"))] = "create"


class DeliveryDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """How queue groups deliver, where neither the topic nor the group says otherwise."""

    visibility_timeout_ms: Annotated[int, Duration(1, 12 * HOUR_MS)] = 30 * SECOND_MS
    max_retries: Annotated[int, Whole(0, 1_000_000)] = 3
    dead_letters: Annotated[bool, Flag()] = True
    order: Annotated[str, Choice(("none", "key"))] = "none"
    retry_base_ms: Annotated[int, Duration(0, 168 * HOUR_MS)] = SECOND_MS
    retry_factor: Annotated[float, Number(1, 1_000)] = 2.0
    retry_cap_ms: Annotated[int, Duration(0, 168 * HOUR_MS)] = 60 * SECOND_MS
    in_flight_consumer_max: Annotated[int, Whole(1)] = 1_000
    in_flight_group_max: Annotated[int, Whole(1)] = 1_000_000


class DefaultSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What things get that do not ask for anything else."""

    topic: TopicDefaults = TopicDefaults()
    delivery: DeliveryDefaults = DeliveryDefaults()


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Consumer groups. Kafka clients bring their own timeouts; these bound them, or serve who brings none."""

    session_timeout_ms: Annotated[int, Duration(SECOND_MS)] = 45 * SECOND_MS
    heartbeat_interval_ms: Annotated[int, Duration(100)] = 3 * SECOND_MS
    session_timeout_min_ms: Annotated[int, Duration(1)] = 6 * SECOND_MS
    session_timeout_max_ms: Annotated[int, Duration(1)] = HOUR_MS // 2
    initial_delay_ms: Annotated[int, Duration(0)] = 3 * SECOND_MS
    members_max: Annotated[int, Whole(1)] = 10_000
    offsets_retention_ms: Annotated[int, Duration(SECOND_MS)] = 168 * HOUR_MS
    offsets_partitions: Annotated[int, Whole(1, 1_000)] = 8


class TransactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Transactions. Kafka producers bring their own timeout; this bounds it."""

    timeout_max_ms: Annotated[int, Duration(1)] = HOUR_MS // 4
    id_retention_ms: Annotated[int, Duration(SECOND_MS)] = 168 * HOUR_MS
    joint_open_max: Annotated[int, Whole(1)] = 1_000
    joint_writers_max: Annotated[int, Whole(1, 10_000)] = 1_000
    joint_results_retention_ms: Annotated[int, Duration(SECOND_MS)] = 24 * HOUR_MS
    state_partitions: Annotated[int, Whole(1, 1_000)] = 8


class ScheduleDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Messages for later."""

    partitions: Annotated[int, Whole(1, 1_000)] = 8
    # An occurrence that comes later than this, because nobody led, was missed.
    grace_ms: Annotated[int, Duration(SECOND_MS)] = 60 * SECOND_MS
    # Refusals by its topic until a schedule has failed.
    tries: Annotated[int, Whole(1, 1_000)] = 10


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The page at ``/metrics``."""

    # Past this many partitions the page has one row a topic, so that it stays small.
    partition_labels_max: Annotated[int, Whole(0)] = 1_000


class LoggingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is written to standard error."""

    level: Annotated[str, Choice(("debug", "info", "warning", "error"))] = "info"
    format: Annotated[str, Choice(("json", "text"))] = "json"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set."""

    broker: BrokerSettings = BrokerSettings()
    cluster: ClusterSettings = ClusterSettings()
    storage: StorageSettings = StorageSettings()
    defaults: DefaultSettings = DefaultSettings()
    groups: GroupSettings = GroupSettings()
    transactions: TransactionSettings = TransactionSettings()
    schedules: ScheduleDefaults = ScheduleDefaults()
    metrics: MetricsSettings = MetricsSettings()
    logging: LoggingSettings = LoggingSettings()


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its dotted path, its kind and its default."""

    path: str
    kind: Kind
    default: object

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "PENSTOCK_" + self.path.upper().replace(".", "__")


def _settings_of(section: msgspec.Struct, prefix: str) -> Iterator[Setting]:
    for name, hint in get_type_hints(type(section), include_extras=True).items():
        default = getattr(section, name)
        if isinstance(default, msgspec.Struct):
            yield from _settings_of(default, f"{prefix}{name}.")
        else:
            yield Setting(f"{prefix}{name}", hint.__metadata__[0], default)


SETTINGS: Final[Mapping[str, Setting]] = {setting.path: setting for setting in _settings_of(Settings(), "")}


def build(values: Mapping[str, object]) -> Settings:
    """Settings with ``values``, by path, in place of the defaults."""
    settings: Settings = _build(Settings(), "", values)
    return settings


def _build(section: msgspec.Struct, prefix: str, values: Mapping[str, object]) -> Any:
    found: dict[str, object] = {}
    for name in section.__struct_fields__:
        default = getattr(section, name)
        if isinstance(default, msgspec.Struct):
            found[name] = _build(default, f"{prefix}{name}.", values)
        else:
            found[name] = values.get(prefix + name, default)
    return type(section)(**found)


def value_at(settings: Settings, path: str) -> object:
    """The value of a setting by its dotted path."""
    value: object = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def contradictions(settings: Settings) -> Iterator[tuple[str, str]]:
    """Values that are fine one by one and wrong together, as (path, what is wrong)."""
    broker, topic, groups = settings.broker, settings.defaults.topic, settings.groups
    if broker.kafka.port and broker.kafka == broker.http:
        yield "broker.http", f"{broker.http} is the Kafka listener's address too (broker.kafka); give it another port"
    if broker.grpc is not None and broker.grpc.port and broker.grpc in (broker.kafka, broker.http):
        yield "broker.grpc", f"{broker.grpc} is another listener's address too; give it another port"
    if topic.replication_factor and (topic.min_insync_replicas or 0) > topic.replication_factor:
        reason = f"{topic.min_insync_replicas} replicas can never be in sync where topics have "
        reason += f"{topic.replication_factor} (defaults.topic.replication_factor)"
        yield "defaults.topic.min_insync_replicas", reason
    if groups.heartbeat_interval_ms >= groups.session_timeout_ms:
        yield "groups.heartbeat_interval_ms", "must be shorter than groups.session_timeout_ms, best a third of it"
    if not groups.session_timeout_min_ms <= groups.session_timeout_ms <= groups.session_timeout_max_ms:
        yield "groups.session_timeout_ms", "must be between groups.session_timeout_min_ms and _max_ms"
    yield from _cluster_contradictions(settings)


def _cluster_contradictions(settings: Settings) -> Iterator[tuple[str, str]]:
    broker, cluster = settings.broker, settings.cluster
    if (cluster.peers or cluster.join) and broker.internal is None:
        yield "broker.internal", "a node of a cluster needs an address for the other nodes (--internal HOST:PORT)"
    doors = (broker.kafka, broker.http, broker.grpc)
    if broker.internal is not None and broker.internal.port and broker.internal in doors:
        yield "broker.internal", f"{broker.internal} is another listener's address too; give it another port"
    if broker.internal is not None and not _is_loopback(broker.internal.host) and cluster.token is None:
        reason = (
            f"is needed where other machines reach the internal address ({broker.internal}): what connects there is "
        )
        reason += "taken for a node. Give all nodes one secret, or listen on 127.0.0.1 (broker.internal)"
        yield "cluster.token", reason
    if cluster.peers and cluster.join:
        yield "cluster.join", "give cluster.peers to form a cluster, or cluster.join to enter one, not both"
    if cluster.peers and broker.node_id not in {peer.node_id for peer in cluster.peers}:
        yield "cluster.peers", f"must name this node too (broker.node_id is {broker.node_id})"
    if cluster.heartbeat_interval_ms * 2 > cluster.session_timeout_ms:
        yield "cluster.heartbeat_interval_ms", "must be at most half of cluster.session_timeout_ms"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
