"""From settings to what each layer takes: its section of them, and the few values that are worked out at start."""

from __future__ import annotations

from typing import Final

from penstock.broker.config import BrokerConfig
from penstock.config.kinds import UNLIMITED, Address
from penstock.config.settings import ClientAuth, DeliveryDefaults, Settings
from penstock.consensus.queue_config import Order, QueueSettings
from penstock.consensus.records import Endpoint
from penstock.consensus.topic_config import TopicSettings
from penstock.doors.grpc.config import GrpcConfig
from penstock.doors.kafka.server import KafkaConfig
from penstock.doors.rest.config import HttpConfig
from penstock.node.limits import grpc_connections, http_connections, kafka_connections
from penstock.partitions.config import PartitionsConfig
from penstock.storage.config import LogConfig
from penstock.wrong_port import NO_PORTS, Ports

_GRPC_STOP_LEAD_MS: Final = 1_000  # gRPC cuts calls off itself before the node's own grace ends
_GRPC_STOP_MIN_MS: Final = 100


def broker_config(settings: Settings, endpoints: tuple[Endpoint, ...]) -> BrokerConfig:
    return BrokerConfig(
        node_id=settings.broker.node_id,
        data_dir=settings.broker.data_dir.absolute(),
        endpoints=endpoints,
        rack=settings.broker.rack,
        auto_create_topics=settings.broker.auto_create_topics,
        topics=settings.defaults.topic,
        partitions=PartitionsConfig(
            topic_defaults=topic_settings(settings), storage=settings.storage, cluster=settings.cluster
        ),
        groups=settings.groups,
        transactions=settings.transactions,
        schedules=settings.schedules,
        cluster=settings.cluster,
        security=settings.security,
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
        queue=queue_settings(settings.defaults.delivery),
    )


def queue_settings(delivery: DeliveryDefaults) -> QueueSettings:
    is_unlimited = delivery.max_retries == UNLIMITED or not delivery.dead_letters
    return QueueSettings(
        order=Order(delivery.order),
        visibility_timeout_ms=delivery.visibility_timeout_ms,
        tries=0 if is_unlimited else delivery.max_retries + 1,
        retry_base_ms=delivery.retry_base_ms,
        retry_factor=delivery.retry_factor,
        retry_cap_ms=delivery.retry_cap_ms,
        in_flight_consumer_max=delivery.in_flight_consumer_max,
        in_flight_group_max=delivery.in_flight_group_max,
    )


def kafka_config(settings: Settings, address: Address, ports: Ports = NO_PORTS) -> KafkaConfig:
    return KafkaConfig(
        host=address.host,
        port=address.port,
        connections_max=kafka_connections(settings.broker.max_connections),
        node=settings.broker,
        ports=ports,
        tls=settings.security.tls,
    )


def http_config(settings: Settings, address: Address, ports: Ports = NO_PORTS) -> HttpConfig:
    return HttpConfig(
        host=address.host,
        port=address.port,
        connections_max=http_connections(settings.broker.max_connections),
        node=settings.broker,
        metrics=settings.metrics,
        ports=ports,
        tls=settings.security.tls,
    )


def grpc_config(settings: Settings, address: Address) -> GrpcConfig:
    return GrpcConfig(
        host=address.host,
        port=address.port,
        node=settings.broker,
        needs_client_certificate=settings.security.tls.client_auth is ClientAuth.NEED,
        connections_max=grpc_connections(settings.broker.max_connections),
        stop_timeout_ms=max(settings.broker.grace_ms - _GRPC_STOP_LEAD_MS, _GRPC_STOP_MIN_MS),
    )
