"""The composition root: settings become a running node.

Here, and nowhere else, settings are turned into each layer's own config and the layers are put together. A node starts
from the inside out (data, broker, doors) and stops from the outside in, so that a request taken is a request answered.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import logging
import os
import platform
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Union

from penstock import __version__
from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig, ClusterConfig, Fsync, ScrubConfig
from penstock.broker.groups.config import GroupConfig
from penstock.broker.in_step import INTERNAL_DOOR
from penstock.broker.reports import serve_report
from penstock.broker.schedules.config import ScheduleSettings
from penstock.broker.surroundings import Surroundings
from penstock.broker.transactions.config import TransactionConfig
from penstock.broker.transactions.joint.config import JointConfig
from penstock.clock import Clock, SystemClock
from penstock.cluster.queue_config import Order, QueueSettings
from penstock.cluster.records import Endpoint
from penstock.cluster.topic_config import TopicSettings
from penstock.config import Address, Settings
from penstock.errors import StartupError
from penstock.grpc.config import GrpcConfig
from penstock.http.server import HttpConfig, HttpServer
from penstock.kafka.server import KafkaConfig, KafkaServer
from penstock.peers.tcp import TcpPeers
from penstock.storage.config import LogConfig
from penstock.storage.files import DiskFiles, Files
from penstock.wrong_port import NO_PORTS, Ports

if TYPE_CHECKING:
    from penstock.grpc.server import GrpcServer

log = logging.getLogger(__name__)

_ANY_HOST: Final = {"0.0.0.0", "::", "*"}
# From malloc.h.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 16 * 1024 * 1024
_BODIES_AT_ONCE: Final = 16  # as large as they may be; of small ones more
_SPARE_DESCRIPTORS: Final = 32  # for the node's own files, when connections have taken all others
# How much of the limit on open files the connections of a door may take; the rest is for segments and other nodes.
_KAFKA_SHARE: Final = 0.4
_HTTP_SHARE: Final = 0.2
_CONNECTIONS_MIN: Final = 16
_DOOR_GRACE_SHARE: Final = 0.5  # of the time to stop; the rest is for the disk
# Batches and frames hold no cycles, so the collector finds next to nothing however often it runs.
_GC_THRESHOLDS: Final = (50_000, 20, 50)

OnReady = Callable[["Node"], Awaitable[None]]
Door = Union[KafkaServer, HttpServer, "GrpcServer"]


class Node:
    """One node: a broker and its doors. Constructing it opens the data directory."""

    def __init__(self, settings: Settings, files: Files | None = None, clock: Clock | None = None) -> None:
        self.settings = settings
        self.kafka_address = _with_port(settings.broker.kafka)
        self.http_address = _with_port(settings.broker.http)
        self.grpc_address = None if settings.broker.grpc is None else _with_port(settings.broker.grpc)
        self.internal_address = None if settings.broker.internal is None else _with_port(settings.broker.internal)
        clock = clock or SystemClock()
        ports = Ports(
            kafka=self.kafka_address.port,
            http=self.http_address.port,
            grpc=None if self.grpc_address is None else self.grpc_address.port,
        )
        self._peers = TcpPeers(
            settings.broker.node_id,
            host="" if self.internal_address is None else self.internal_address.host,
            port=None if self.internal_address is None else self.internal_address.port,
            token=settings.cluster.token,
            clock=clock,
            ports=ports,
        )
        endpoints = _endpoints(
            settings, self.kafka_address, self.http_address, self.grpc_address, self.internal_address
        )
        self._own_files: DiskFiles | None = None
        if files is None:
            files = self._own_files = DiskFiles(spares=_SPARE_DESCRIPTORS)
        surroundings = Surroundings(peers=self._peers, files=files, clock=clock)
        self.broker = Broker(broker_config(settings, endpoints), surroundings)
        serve_report(self.broker)
        self._kafka = KafkaServer(self.broker, kafka_config(settings, self.kafka_address, ports))
        self._http = HttpServer(self.broker, http_config(settings, self.http_address, ports))
        self._grpc = None if self.grpc_address is None else self._make_grpc(self.grpc_address)
        self._doors: list[Door] = []  # those that are open

    async def start(self) -> None:
        """Take part in the cluster and open the doors. If anything fails, all is closed again before the error is
        raised. The HTTP and gRPC doors open first: they can tell what the node is waiting for.
        """
        self._check_ports()
        try:
            if self._grpc is not None:
                await self._open(self._grpc)
            # As soon as other nodes can call, this one has to be about to answer.
            await self._peers.start()
            await self._open(self._http)
            await self.broker.start()
            await self._open(self._kafka)
            if self._grpc is not None:
                self._grpc.announce_start()
        except BaseException:
            await self.stop()
            raise

    def _check_ports(self) -> None:
        """Refuse a port that another process has before anything is opened, read or recovered."""
        doors = {
            "kafka": self.kafka_address,
            "http": self.http_address,
            "grpc": self.grpc_address,
            "internal": self.internal_address,
        }
        for name, address in doors.items():
            if address is not None:
                _check_port(name, address)

    def _make_grpc(self, address: Address) -> GrpcServer:
        # The library is large: who does not need it does not load it, and who does, before anything runs.
        from penstock.grpc.server import GrpcServer

        return GrpcServer(self.broker, grpc_config(self.settings, address))

    async def _open(self, door: Door) -> None:
        await door.start()
        self._doors.append(door)

    async def stop(self) -> None:
        """Hand over what is led, take nothing more, answer what was taken, and close everything in good order."""
        grace_seconds = self.settings.broker.shutdown_timeout_ms / 1000 * _DOOR_GRACE_SHARE
        if self._grpc is not None:
            await self._grpc.announce_stop()
        await self.broker.leave()
        doors, self._doors = self._doors, []
        await self.broker.groups.stop()  # members waiting for each other would hold their connections open
        try:
            async with asyncio.timeout(grace_seconds):
                await asyncio.gather(*(door.stop() for door in doors))
        except TimeoutError:
            log.warning("Some clients did not finish within %.0f s and are cut off.", grace_seconds)
        finally:
            await self.broker.close()
            await self._peers.stop()
            if self._own_files is not None:
                self._own_files.close()


def _check_port(name: str, address: Address) -> None:
    """Refuse a port that is in use. Whatever else is wrong with an address is told by the door that listens there."""
    try:
        found = socket.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return
    for family, kind, protocol, _, place in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind(place)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    continue
                raise StartupError(
                    f"Port {address.port} of broker.{name} ({address}) is in use. Stop the process that has it, or "
                    f"choose another with --{name} HOST:PORT."
                ) from None


def run(settings: Settings, on_ready: OnReady | None = None) -> int:
    """Run a node until SIGTERM or SIGINT, and return the exit code. A second signal ends it at once."""
    raise_file_limit()
    tell_of_limits(settings)
    keep_heap()
    node = Node(settings)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(node, on_ready))


async def _serve(node: Node, on_ready: OnReady | None) -> int:
    is_stopping = asyncio.Event()
    _listen_for_signals(is_stopping)
    if not await _start(node, is_stopping):
        return 0
    settle_memory()
    log.info(
        "Penstock is ready.",
        extra={
            "version": __version__,
            "node_id": node.settings.broker.node_id,
            "kafka": str(node.kafka_address),
            "http": str(node.http_address),
            "grpc": None if node.grpc_address is None else str(node.grpc_address),
            "data_dir": str(node.settings.broker.data_dir),
            "partitions": len(node.broker.replicas),
        },
    )
    try:
        if on_ready is not None:
            await on_ready(node)
        await is_stopping.wait()
    finally:
        log.info("Stopping.")
        exit_code = await _stop_in_time(node)
    return exit_code


async def _start(node: Node, is_stopping: asyncio.Event) -> bool:
    """Start the node; False if it was told to stop before it was ready, as while it waits for its cluster."""
    starting = asyncio.ensure_future(node.start())
    stopping = asyncio.ensure_future(is_stopping.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        starting.result()
        return True
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting
    log.info("Stopped before the node was ready.")
    return False


async def _stop_in_time(node: Node) -> int:
    seconds = node.settings.broker.shutdown_timeout_ms / 1000
    try:
        async with asyncio.timeout(seconds):
            await node.stop()
    except TimeoutError:
        # A thread may hang in a sync that never returns; nothing acknowledged is lost by leaving it.
        log.error("Could not stop in good order within %.0f s; the next start recovers the logs.", seconds)
        os._exit(1)
    log.info("Stopped.")
    return 0


def _listen_for_signals(is_stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if is_stopping.is_set():
            os._exit(128 + number)
        is_stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def raise_file_limit() -> None:
    """Allow as many open files as the system does: each segment and each connection takes one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fit_connections(configured: int, share: float) -> int:
    """As many connections as are configured, but no more than their share of the files that may be open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return configured
    return min(configured, max(int(soft * share), _CONNECTIONS_MIN))


def tell_of_limits(settings: Settings) -> None:
    """Say so where the limit on open files leaves fewer connections than are configured."""
    configured = settings.broker.max_connections
    kafka, http = fit_connections(configured, _KAFKA_SHARE), fit_connections(configured, _HTTP_SHARE)
    if min(kafka, http) < configured:
        log.warning(
            "At most %d files may be open (ulimit -n), so the Kafka door takes %d connections and the HTTP door %d, "
            "not %d each (broker.max_connections).",
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            kafka,
            http,
            configured,
        )


def keep_heap() -> None:
    """Have the C library hold on to a few free megabytes.

    It gives memory back as soon as a large request is done, and the next one of half a megabyte then waits for the
    kernel to clear its pages: a third of the processor time of publishing in bulk.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    library.mallopt(_MMAP_THRESHOLD, _KEPT_BYTES // 4)  # or the first setting would have all large ones mapped apart


def settle_memory() -> None:
    """Take what start-up made out of the garbage collector's sight, let it run less often, give back what is free.

    Start-up leaves holes all over the heap, most of all where modules had to be compiled: more than ten megabytes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


# -- from settings to each layer's config ------------------------------------------------------------------------------


def broker_config(settings: Settings, endpoints: tuple[Endpoint, ...]) -> BrokerConfig:
    broker, storage, topic = settings.broker, settings.storage, settings.defaults.topic
    return BrokerConfig(
        node_id=broker.node_id,
        data_dir=broker.data_dir.absolute(),
        endpoints=endpoints,
        rack=broker.rack,
        fsync=Fsync(storage.fsync),
        fsync_interval_ms=storage.fsync_interval_ms,
        sync_threads=storage.sync_threads,
        auto_create_topics=broker.auto_create_topics,
        default_partitions=topic.partitions,
        default_replication_factor=topic.replication_factor,
        topic_defaults=topic_settings(settings),
        groups=group_config(settings),
        offsets_partitions=settings.groups.offsets_partitions,
        transactions=transaction_config(settings),
        joint=joint_config(settings),
        transactions_partitions=settings.transactions.state_partitions,
        schedules=ScheduleSettings(grace_ms=settings.schedules.grace_ms, tries=settings.schedules.tries),
        schedules_partitions=settings.schedules.partitions,
        housekeeping_interval_ms=storage.housekeeping_interval_ms,
        retention_check_interval_ms=storage.retention_check_interval_ms,
        scrub=ScrubConfig(interval_ms=storage.scrub.interval_ms, bytes_per_second=storage.scrub.bytes_per_second),
        cluster=cluster_config(settings),
    )


def cluster_config(settings: Settings) -> ClusterConfig:
    cluster = settings.cluster
    return ClusterConfig(
        peers=tuple((peer.node_id, peer.address.host, peer.address.port) for peer in cluster.peers),
        join=None if cluster.join is None else (cluster.join.host, cluster.join.port),
        voters=cluster.voters,
        election_timeout_ms=cluster.election_timeout_ms,
        heartbeat_interval_ms=cluster.heartbeat_interval_ms,
        session_timeout_ms=cluster.session_timeout_ms,
        replica_lag_ms=cluster.replica_lag_ms,
        replication_throttle_bytes=cluster.replication_throttle_bytes,
        internal_replication_factor=cluster.internal_replication_factor,
        follower_reads=cluster.follower_reads,
    )


def group_config(settings: Settings) -> GroupConfig:
    groups = settings.groups
    return GroupConfig(
        session_timeout_min_ms=groups.session_timeout_min_ms,
        session_timeout_max_ms=groups.session_timeout_max_ms,
        initial_delay_ms=groups.initial_delay_ms,
        members_max=groups.members_max,
        session_timeout_ms=groups.session_timeout_ms,
        heartbeat_interval_ms=groups.heartbeat_interval_ms,
        offsets_retention_ms=groups.offsets_retention_ms,
    )


def transaction_config(settings: Settings) -> TransactionConfig:
    transactions = settings.transactions
    return TransactionConfig(
        timeout_max_ms=transactions.timeout_max_ms,
        retention_ms=transactions.id_retention_ms,
    )


def joint_config(settings: Settings) -> JointConfig:
    transactions = settings.transactions
    return JointConfig(
        timeout_max_ms=transactions.timeout_max_ms,
        writers_max=transactions.joint_writers_max,
        open_max=transactions.joint_open_max,
        results_retention_ms=transactions.joint_results_retention_ms,
    )


def topic_settings(settings: Settings) -> TopicSettings:
    storage, topic = settings.storage, settings.defaults.topic
    return TopicSettings(
        log=LogConfig(
            segment_bytes=storage.segment_bytes,
            segment_ms=storage.segment_ms,
            index_interval_bytes=storage.index_interval_bytes,
            retention_ms=topic.retention_ms,
            retention_bytes=topic.retention_bytes,
            is_deleting="delete" in topic.cleanup_policy,
            is_compacting="compact" in topic.cleanup_policy,
            producer_expiry_ms=storage.producer_expiry_ms,
        ),
        max_message_bytes=topic.max_message_bytes,
        min_insync_replicas=topic.min_insync_replicas or 0,
        has_append_time=topic.timestamp_type == "append",
        queue=queue_settings(settings),
    )


def queue_settings(settings: Settings) -> QueueSettings:
    delivery = settings.defaults.delivery
    return QueueSettings(
        order=Order(delivery.order),
        visibility_timeout_ms=delivery.visibility_timeout_ms,
        tries=delivery.max_retries if delivery.dead_letters else 0,
        retry_base_ms=delivery.retry_base_ms,
        retry_factor=delivery.retry_factor,
        retry_cap_ms=delivery.retry_cap_ms,
        in_flight_consumer_max=delivery.in_flight_consumer_max,
        in_flight_group_max=delivery.in_flight_group_max,
    )


def kafka_config(settings: Settings, address: Address, ports: Ports = NO_PORTS) -> KafkaConfig:
    broker = settings.broker
    return KafkaConfig(
        host=address.host,
        port=address.port,
        max_connections=fit_connections(broker.max_connections, _KAFKA_SHARE),
        max_request_bytes=broker.max_request_bytes,
        idle_timeout_ms=broker.idle_timeout_ms,
        ports=ports,
    )


def http_config(settings: Settings, address: Address, ports: Ports = NO_PORTS) -> HttpConfig:
    broker = settings.broker
    return HttpConfig(
        host=address.host,
        port=address.port,
        allowed_hosts=broker.http_allowed_hosts,
        trusted_proxies=broker.http_trusted_proxies,
        connections_max=fit_connections(broker.max_connections, _HTTP_SHARE),
        keep_alive_ms=broker.idle_timeout_ms,
        body_bytes_max=broker.max_body_bytes,
        bodies_bytes_max=_BODIES_AT_ONCE * broker.max_body_bytes,
        websocket_ping_ms=broker.websocket_ping_ms,
        websocket_resume_ms=broker.websocket_resume_ms,
        stop_timeout_ms=int(broker.shutdown_timeout_ms * _DOOR_GRACE_SHARE),
        metrics_partitions_max=settings.metrics.partition_labels_max,
        ports=ports,
    )


def grpc_config(settings: Settings, address: Address) -> GrpcConfig:
    broker = settings.broker
    return GrpcConfig(
        host=address.host,
        port=address.port,
        message_bytes_max=broker.max_body_bytes,
        idle_timeout_ms=broker.idle_timeout_ms,
        stop_timeout_ms=max(int(broker.shutdown_timeout_ms * _DOOR_GRACE_SHARE) - 1_000, 100),
    )


def _endpoints(
    settings: Settings, kafka: Address, http: Address, grpc: Address | None, internal: Address | None
) -> tuple[Endpoint, ...]:
    broker = settings.broker
    doors = [("kafka", kafka, broker.advertised_kafka), ("http", http, broker.advertised_http)]
    if grpc is not None:
        doors.append(("grpc", grpc, broker.advertised_grpc))
    if internal is not None:
        doors.append((INTERNAL_DOOR, internal, broker.advertised_internal))
    return tuple(_endpoint(door, listener, advertised) for door, listener, advertised in doors)


def _endpoint(door: str, listener: Address, advertised: Address | None) -> Endpoint:
    if advertised is None and listener.host in _ANY_HOST:
        advertised = Address(socket.gethostname(), listener.port)
        log.warning(
            "The %s door listens on every interface, and clients are told to use %s. If they cannot reach that, set "
            "broker.advertised_%s.",
            door,
            advertised,
            door,
        )
    reached_at = advertised or listener
    return Endpoint(door=door, host=reached_at.host, port=reached_at.port)


def _with_port(address: Address) -> Address:
    """Choose the port now where the system is to choose: it is announced before the door opens."""
    if address.port:
        return address
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.create_server((address.host, 0), family=family) as probe:
            return Address(address.host, probe.getsockname()[1])
    except OSError as error:
        raise StartupError(f"Cannot listen on {address.host}: {error.strerror or error}.") from error
