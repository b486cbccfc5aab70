"""Everything that can be set, section by section, with its default and its kind; and the limits that go with it.

The sections are the table: `SETTINGS` is read off them, and so are the names in the file, the environment variables
(``broker.data_dir`` is ``PENSTOCK_BROKER__DATA_DIR``) and what ``penstock config show`` prints. A section is also the
frozen config of the layer it is named after, which takes it as it is: no field is declared or copied a second time. A
field with a kind can be set; one without is a limit of that layer, which only tests change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

from penstock.config.kinds import (
    INT32_MAX,
    UNLIMITED,
    Address,
    CertificateRule,
    CertificateRules,
    Choice,
    Choices,
    Count,
    Directory,
    Duration,
    FilePath,
    Flag,
    HostNames,
    HostPort,
    Maybe,
    Networks,
    Number,
    PeerAddress,
    PeerList,
    Principals,
    Secret,
    Size,
    ValueKind,
    Whole,
    Words,
)

KIB: Final = 1024
MIB: Final = 1024 * KIB
SECOND_MS: Final = 1_000
HOUR_MS: Final = 3_600 * SECOND_MS
DAY_MS: Final = 24 * HOUR_MS
# Loopback until there is access control: a forgotten setting must not open a broker to a network.
_KAFKA: Final = Address("127.0.0.1", 9092)
_HTTP: Final = Address("127.0.0.1", 8080)
_GRPC: Final = Address("127.0.0.1", 9000)
SASL_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
_COMMON_NAME: Final = (CertificateRule(re.compile(r"^CN=([^,+\\]+)(?:,.*)?$"), "$1", ""),)
_GRACE_SHARE: Final = 0.5  # of the time to stop; the rest is for the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """This node: its id, where its data is, where it listens, and what it takes from clients."""

    node_id: Annotated[int, Whole(0)] = 1
    data_dir: Annotated[Path, Directory()] = Path("data")
    rack: Annotated[str | None, Maybe(Words())] = None
    kafka: Annotated[Address, HostPort()] = _KAFKA
    http: Annotated[Address, HostPort()] = _HTTP
    grpc: Annotated[Address | None, Maybe(HostPort())] = _GRPC
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

    @property
    def grace_ms(self) -> int:
        """How long requests under way may take to finish once the node is told to stop."""
        return int(self.shutdown_timeout_ms * _GRACE_SHARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """How nodes become a cluster, and how long they wait for each other."""

    # The first nodes, this one included.
    peers: Annotated[tuple[PeerAddress, ...], PeerList()] = ()
    join: Annotated[Address | None, Maybe(HostPort(low=1))] = None
    token: Annotated[str | None, Maybe(Secret())] = field(default=None, repr=False)
    voters: Annotated[int, Whole(1, 9)] = 3
    election_timeout_ms: Annotated[int, Duration(50)] = 500
    heartbeat_interval_ms: Annotated[int, Duration(10)] = 500
    session_timeout_ms: Annotated[int, Duration(100)] = 2 * SECOND_MS
    replica_lag_ms: Annotated[int, Duration(100)] = 10 * SECOND_MS
    replication_throttle_bytes: Annotated[int, Size()] = 0
    internal_replication_factor: Annotated[int, Whole(1, 32_767)] = 3
    follower_reads: Annotated[bool, Flag()] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubSettings:
    """How often, and how fast, everything on the disk is read again, in search of damage."""

    interval_ms: Annotated[int, Duration(0)] = DAY_MS  # 0: only on request
    bytes_per_second: Annotated[int, Size(KIB)] = 16 * MIB  # more than a terabyte in a day


class Fsync(StrEnum):
    """When records are made durable."""

    EVERY = "every"  # before acks=all is answered, many producers sharing one sync
    INTERVAL = "interval"  # in the background, every so often
    NONE = "none"  # when the operating system likes, and when a segment is sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """How logs are kept on disk."""

    segment_bytes: Annotated[int, Size(KIB, INT32_MAX)] = 64 * MIB
    segment_ms: Annotated[int, Duration(1)] = 168 * HOUR_MS
    index_interval_bytes: Annotated[int, Size(0, INT32_MAX)] = 4 * KIB
    fsync: Annotated[Fsync, Choice(tuple(Fsync), of=Fsync)] = Fsync.EVERY
    # Records that no producer waits for are synced this often too, except with Fsync.NONE.
    fsync_interval_ms: Annotated[int, Duration(1)] = SECOND_MS
    sync_threads: Annotated[int, Whole(1, 64)] = 4
    housekeeping_interval_ms: Annotated[int, Duration(10)] = 10 * SECOND_MS
    # How often retention looks for what is too old or too much; Kafka's own pace.
    retention_check_interval_ms: Annotated[int, Duration(10)] = 300 * SECOND_MS
    producer_expiry_ms: Annotated[int, Duration(SECOND_MS)] = DAY_MS
    scrub: ScrubSettings = ScrubSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """What a topic gets where its creator does not say otherwise."""

    partitions: Annotated[int, Whole(1, 10_000)] = 3
    # None: three, or as many as there are nodes. Of the replicas more than half have to be in sync.
    replication_factor: Annotated[int | None, Maybe(Whole(1, 32_767))] = None
    retention_ms: Annotated[int, Duration(may_be_unlimited=True)] = 168 * HOUR_MS
    retention_bytes: Annotated[int, Size(may_be_unlimited=True)] = UNLIMITED
    cleanup_policy: Annotated[str, Choice(("delete", "compact", "compact,delete"))] = "delete"
    max_message_bytes: Annotated[int, Size(0, INT32_MAX)] = MIB + 12
    min_insync_replicas: Annotated[int | None, Maybe(Whole(1, 32_767))] = None
    timestamp_type: Annotated[str, Choice(("create", "append"))] = "create"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryDefaults:
    """How queue groups deliver, where neither the topic nor the group says otherwise."""

    visibility_timeout_ms: Annotated[int, Duration(1, 12 * HOUR_MS)] = 30 * SECOND_MS
    # Deliveries after the first one; UNLIMITED, or without dead letters, there is no last one.
    max_retries: Annotated[int, Count(1_000_000)] = 2
    dead_letters: Annotated[bool, Flag()] = True
    order: Annotated[str, Choice(("none", "key"))] = "none"
    retry_base_ms: Annotated[int, Duration(0, 168 * HOUR_MS)] = SECOND_MS
    retry_factor: Annotated[float, Number(1, 1_000)] = 2.0
    retry_cap_ms: Annotated[int, Duration(0, 168 * HOUR_MS)] = 60 * SECOND_MS
    in_flight_consumer_max: Annotated[int, Whole(1)] = 1_000
    in_flight_group_max: Annotated[int, Whole(1)] = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultSettings:
    """What topics and queue groups get where they do not say otherwise."""

    topic: TopicDefaults = TopicDefaults()
    delivery: DeliveryDefaults = DeliveryDefaults()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Consumer groups. Defaults are Kafka's, except that members of the new protocol send heartbeats more often.

    Members of the classic protocol bring their own session timeout, which is bounded here; members of the new protocol
    (KIP-848) are told theirs.
    """

    session_timeout_ms: Annotated[int, Duration(SECOND_MS)] = 45 * SECOND_MS
    heartbeat_interval_ms: Annotated[int, Duration(100)] = 3 * SECOND_MS
    session_timeout_min_ms: Annotated[int, Duration(1)] = 6 * SECOND_MS
    session_timeout_max_ms: Annotated[int, Duration(1)] = HOUR_MS // 2
    # A new group waits this long for more members before it shares out partitions, and again after each that comes.
    initial_delay_ms: Annotated[int, Duration(0)] = 3 * SECOND_MS
    members_max: Annotated[int, Whole(1)] = 10_000
    # Offsets are forgotten this long after their group lost its last member (KIP-211).
    offsets_retention_ms: Annotated[int, Duration(SECOND_MS)] = 7 * DAY_MS
    # Partitions of the offsets topic when it is first created: how many nodes can share the work of coordinating.
    offsets_partitions: Annotated[int, Whole(1, 1_000)] = 8
    # A consumer that joins for the first time has no member id to send heartbeats with yet, and may give up unseen.
    newcomer_timeout_ms: int = 300 * SECOND_MS
    offset_metadata_bytes_max: int = 4 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Transactions of Kafka producers, and joint ones of many writers. Defaults are Kafka's, where Kafka has them."""

    # The longest time that a producer may ask its transactions to be kept open for.
    timeout_max_ms: Annotated[int, Duration(1)] = HOUR_MS // 4
    # A transactional id that was not used for this long is forgotten.
    id_retention_ms: Annotated[int, Duration(SECOND_MS)] = 7 * DAY_MS
    # Each open joint transaction holds back readers of committed messages in every partition it wrote to.
    joint_open_max: Annotated[int, Whole(1)] = 1_000
    joint_writers_max: Annotated[int, Whole(1, 10_000)] = 1_000
    # How long an outcome is remembered, so that a client that commits again gets the same answer.
    joint_results_retention_ms: Annotated[int, Duration(SECOND_MS)] = DAY_MS
    # Partitions of the transactions topic when it is first created.
    state_partitions: Annotated[int, Whole(1, 1_000)] = 8
    # A request that comes while a transaction is being ended waits this long, then is told to try again.
    end_wait_ms: int = SECOND_MS
    # Outcomes of the last transaction of a series, which says how far the series is committed; and of a single one.
    series_retention_ms: int = 30 * DAY_MS
    single_retention_ms: int = 7 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """Messages for later."""

    # Partitions of the schedules topic when it is first created.
    partitions: Annotated[int, Whole(1, 1_000)] = 8
    # An occurrence that is later than this, because the partition had no leader, was missed.
    grace_ms: Annotated[int, Duration(SECOND_MS)] = 60 * SECOND_MS
    # A schedule fails after so many refusals by its topic.
    tries: Annotated[int, Whole(1, 1_000)] = 10
    retry_base_ms: int = 200
    retry_cap_ms: int = 30 * SECOND_MS
    periods_ahead: int = 16  # of 2.9 hours each are kept in memory: some two days
    reason_chars_max: int = 500

    def backoff_ms(self, tries: int) -> int:
        """How long to wait after so many refusals."""
        return min(self.retry_cap_ms, self.retry_base_ms << min(tries - 1, 20))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """The page at ``/metrics``."""

    # Past this many partitions the page has one row a topic, so that it stays small.
    partition_labels_max: Annotated[int, Whole(0)] = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """What is written to standard error."""

    level: Annotated[str, Choice(("debug", "info", "warning", "error"))] = "info"
    format: Annotated[str, Choice(("json", "text"))] = "json"


class ClientAuth(StrEnum):
    """Whether clients show a certificate."""

    NONE = "none"  # they are not asked
    WANT = "want"  # one that is shown has to be good
    NEED = "need"  # without one there is no connection


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS at every door, and between nodes. Without a certificate it is off."""

    certificate: Annotated[Path | None, Maybe(FilePath())] = None
    key: Annotated[Path | None, Maybe(FilePath())] = None  # by default in the file of the certificate
    # Whose signature is trusted: of clients' certificates, and of other nodes'.
    ca: Annotated[Path | None, Maybe(FilePath())] = None
    client_auth: Annotated[ClientAuth, Choice(tuple(ClientAuth), of=ClientAuth)] = ClientAuth.NONE
    internal: Annotated[bool, Flag()] = False
    # Which user a client certificate is of: the common name of its subject.
    principal_rules: Annotated[tuple[CertificateRule, ...], CertificateRules()] = _COMMON_NAME
    # A client that takes longer is cut off; so many may be at it at once at one door.
    handshake_timeout_ms: int = 10 * SECOND_MS
    handshakes_max: int = 256

    @property
    def is_on(self) -> bool:
        return self.certificate is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """Tokens (JWT) of an identity provider; off without an issuer."""

    issuer: Annotated[str | None, Maybe(Words())] = None
    audience: Annotated[str | None, Maybe(Words())] = None
    # The provider's public keys: a file, or an address that is asked again when they rotate.
    jwks_file: Annotated[Path | None, Maybe(FilePath())] = None
    jwks_url: Annotated[str | None, Maybe(Words())] = None
    principal_claim: Annotated[str, Words()] = "sub"
    clock_skew_ms: Annotated[int, Duration(0)] = 30 * SECOND_MS
    jwks_refresh_ms: int = 300 * SECOND_MS  # an unknown key id asks earlier, but not more often than the pause
    jwks_pause_ms: int = 10 * SECOND_MS
    jwks_bytes_max: int = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSettings:
    """Encryption at rest: on where a master key is given. Without ``enabled`` the key only reads what is encrypted."""

    enabled: Annotated[bool, Flag()] = True
    master_key_file: Annotated[Path | None, Maybe(FilePath())] = None
    master_key_env: Annotated[str | None, Maybe(Words())] = None
    master_key_command: Annotated[str | None, Maybe(Words())] = None

    @property
    def sources(self) -> int:
        """How many of the three ways to a master key are set: none, or one."""
        return sum(way is not None for way in (self.master_key_file, self.master_key_env, self.master_key_command))


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """Who may use this cluster. Every node has to have the same."""

    enabled: Annotated[bool, Flag()] = False  # every call has to say who makes it, and needs a rule that allows it
    super_users: Annotated[tuple[str, ...], Principals()] = ()
    sasl_mechanisms: Annotated[tuple[str, ...], Choices(SASL_MECHANISMS)] = ("SCRAM-SHA-256", "SCRAM-SHA-512")
    insecure: Annotated[bool, Flag()] = False  # listen on a network without security all the same
    # The first user and API key, taken by a cluster that has none; `penstock secure init` writes it.
    bootstrap_file: Annotated[Path | None, Maybe(FilePath())] = None
    audit_retention_ms: Annotated[int, Duration(HOUR_MS)] = 90 * DAY_MS  # how long the audit log is kept
    oidc: OidcSettings = OidcSettings()
    tls: TlsSettings = TlsSettings()
    encryption: EncryptionSettings = EncryptionSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set."""

    broker: BrokerSettings = BrokerSettings()
    cluster: ClusterSettings = ClusterSettings()
    storage: StorageSettings = StorageSettings()
    defaults: DefaultSettings = DefaultSettings()
    groups: GroupSettings = GroupSettings()
    transactions: TransactionSettings = TransactionSettings()
    schedules: ScheduleSettings = ScheduleSettings()
    metrics: MetricsSettings = MetricsSettings()
    logging: LoggingSettings = LoggingSettings()
    security: SecuritySettings = SecuritySettings()


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its dotted path, its kind and its default."""

    path: str
    kind: ValueKind
    default: object

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "PENSTOCK_" + self.path.upper().replace(".", "__")


def _settings_of(section: object, prefix: str) -> Iterator[Setting]:
    for name, hint in get_type_hints(type(section), include_extras=True).items():
        default = getattr(section, name)
        if is_dataclass(default):
            yield from _settings_of(default, f"{prefix}{name}.")
        elif hasattr(hint, "__metadata__"):
            yield Setting(f"{prefix}{name}", hint.__metadata__[0], default)


SETTINGS: Final[Mapping[str, Setting]] = {setting.path: setting for setting in _settings_of(Settings(), "")}


def build(values: Mapping[str, object]) -> Settings:
    """Settings with ``values``, by path, in place of the defaults."""
    settings: Settings = _build(Settings(), "", values)
    return settings


def _build(section: Any, prefix: str, values: Mapping[str, object]) -> Any:
    found: dict[str, object] = {}
    for name in (each.name for each in fields(section)):
        default = getattr(section, name)
        if is_dataclass(default):
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
    if settings.security.encryption.sources > 1:
        reason = "the master key comes from one place: a file, an environment variable or a command"
        yield "security.encryption.master_key_file", reason
    yield from _cluster_contradictions(settings)
    yield from _security_contradictions(settings.security)
    yield from _tls_contradictions(settings.security.tls)
    exposed = exposed_doors(settings.broker)
    security = settings.security
    if exposed and not (security.enabled and security.tls.is_on) and not security.insecure:
        path = "security.tls.certificate" if security.enabled else "security.enabled"
        reason = f"is needed where other machines reach the node ({', '.join(exposed)}): without it "
        reason += (
            "passwords and messages can be read on the way. " if security.enabled else "any client may do anything. "
        )
        reason += (
            "Turn it on (`penstock secure init` does), listen on 127.0.0.1, or accept it with security.insecure: true"
        )
        yield path, reason


def _cluster_contradictions(settings: Settings) -> Iterator[tuple[str, str]]:
    broker, cluster = settings.broker, settings.cluster
    if (cluster.peers or cluster.join) and broker.internal is None:
        yield "broker.internal", "a node of a cluster needs an address for the other nodes (--internal HOST:PORT)"
    doors = (broker.kafka, broker.http, broker.grpc)
    if broker.internal is not None and broker.internal.port and broker.internal in doors:
        yield "broker.internal", f"{broker.internal} is another listener's address too; give it another port"
    is_open = cluster.token is None and not settings.security.tls.internal
    if broker.internal is not None and not is_loopback(broker.internal.host) and is_open:
        reason = (
            f"is needed where other machines reach the internal address ({broker.internal}): what connects there is "
        )
        reason += "taken for a node. Give all nodes one secret, or certificates (security.tls.internal), or listen on "
        reason += "127.0.0.1 (broker.internal)"
        yield "cluster.token", reason
    if cluster.peers and cluster.join:
        yield "cluster.join", "give cluster.peers to form a cluster, or cluster.join to enter one, not both"
    if cluster.peers and broker.node_id not in {peer.node_id for peer in cluster.peers}:
        yield "cluster.peers", f"must name this node too (broker.node_id is {broker.node_id})"
    if cluster.heartbeat_interval_ms * 2 > cluster.session_timeout_ms:
        yield "cluster.heartbeat_interval_ms", "must be at most half of cluster.session_timeout_ms"


def _security_contradictions(security: SecuritySettings) -> Iterator[tuple[str, str]]:
    oidc = security.oidc
    if oidc.issuer is None:
        return
    if oidc.audience is None:
        yield "security.oidc.audience", "is needed with an issuer: a token for another service must not open this one"
    if (oidc.jwks_file is None) == (oidc.jwks_url is None):
        yield "security.oidc.jwks_file", "give either this or security.oidc.jwks_url: where the issuer's keys are"
    elif oidc.jwks_url is not None and not oidc.jwks_url.startswith(("https://", "http://127.0.0.1", "http://[::1]")):
        yield "security.oidc.jwks_url", "must begin with https://: keys that come in the clear can be anyone's"


def _tls_contradictions(tls: TlsSettings) -> Iterator[tuple[str, str]]:
    if tls.certificate is None:
        for name, is_given in (("key", tls.key), ("ca", tls.ca), ("internal", tls.internal)):
            if is_given:
                yield f"security.tls.{name}", "has no effect without security.tls.certificate; give that as well"
        if tls.client_auth is not ClientAuth.NONE:
            yield "security.tls.client_auth", "has no effect without security.tls.certificate; give that as well"
    elif tls.ca is None:
        reason = "needs security.tls.ca: the authorities that sign "
        if tls.client_auth is not ClientAuth.NONE:
            yield "security.tls.client_auth", reason + "the certificates of clients"
        if tls.internal:
            yield "security.tls.internal", reason + "the certificates of nodes"


def exposed_doors(broker: BrokerSettings) -> list[str]:
    """The doors for clients that listen where other machines may reach them. Nodes need the token among themselves."""
    doors = {"broker.kafka": broker.kafka, "broker.http": broker.http, "broker.grpc": broker.grpc}
    return [
        f"{name}: {address}" for name, address in doors.items() if address is not None and not is_loopback(address.host)
    ]


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
