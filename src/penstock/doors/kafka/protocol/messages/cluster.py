"""API versions, nodes and features; where replicas are, and who leads."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.doors.kafka.protocol.messages.shared import (
    NOT_REQUESTED,
    TopicAndPartitions,
    TopicPartitionIndexes,
    WireMessage,
)
from penstock.doors.kafka.protocol.schema import (
    NO_UUID,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Nullable,
    Since,
    String,
    Tag,
    UInt16,
    Until,
    Uuid,
)


class ApiVersionsRequest(WireMessage, frozen=True, kw_only=True):
    client_software_name: Annotated[String, Since(3)] = ""
    client_software_version: Annotated[String, Since(3)] = ""


class ApiVersion(msgspec.Struct, frozen=True, kw_only=True):
    api_key: Int16
    min_version: Int16
    max_version: Int16


class SupportedFeatureKey(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    min_version: Int16
    max_version: Int16


class FinalizedFeatureKey(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    max_version_level: Int16
    min_version_level: Int16


class ApiVersionsResponse(WireMessage, frozen=True, kw_only=True):
    error_code: Int16
    api_keys: tuple[ApiVersion, ...]
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    supported_features: Annotated[tuple[SupportedFeatureKey, ...], Since(3), Tag(0)] = ()
    finalized_features_epoch: Annotated[Int64, Since(3), Tag(1)] = -1
    finalized_features: Annotated[tuple[FinalizedFeatureKey, ...], Since(3), Tag(2)] = ()
    zk_migration_ready: Annotated[Bool, Since(3), Tag(3)] = False


class MetadataRequestTopic(msgspec.Struct, frozen=True, kw_only=True):
    topic_id: Annotated[Uuid, Since(10)] = NO_UUID
    name: Annotated[String | None, Nullable(10)]


class MetadataRequest(WireMessage, frozen=True, kw_only=True):
    """All topics are asked for by null, and in version 0 by an empty array, which later means none."""

    topics: Annotated[tuple[MetadataRequestTopic, ...] | None, Nullable(1)]
    allow_auto_topic_creation: Annotated[Bool, Since(4)] = True
    include_cluster_authorized_operations: Annotated[Bool, Since(8), Until(10)] = False
    include_topic_authorized_operations: Annotated[Bool, Since(8)] = False


class MetadataResponseBroker(msgspec.Struct, frozen=True, kw_only=True):
    node_id: Int32
    host: String
    port: Int32
    rack: Annotated[String | None, Since(1)] = None


class MetadataResponsePartition(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Annotated[Int32, Since(7)] = -1
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]
    offline_replicas: Annotated[tuple[Int32, ...], Since(5)] = ()


class MetadataResponseTopic(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    name: Annotated[String | None, Nullable(12)]
    topic_id: Annotated[Uuid, Since(10)] = NO_UUID
    is_internal: Annotated[Bool, Since(1)] = False
    partitions: tuple[MetadataResponsePartition, ...]
    topic_authorized_operations: Annotated[Int32, Since(8)] = NOT_REQUESTED


class MetadataResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: Annotated[String | None, Since(2)] = None
    controller_id: Annotated[Int32, Since(1)] = -1
    topics: tuple[MetadataResponseTopic, ...]
    cluster_authorized_operations: Annotated[Int32, Since(8), Until(10)] = NOT_REQUESTED


class DescribeClusterRequest(WireMessage, frozen=True, kw_only=True):
    include_cluster_authorized_operations: Bool
    endpoint_type: Annotated[Int8, Since(1)] = 1


class DescribeClusterBroker(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: Int32
    host: String
    port: Int32
    rack: String | None = None


class DescribeClusterResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    endpoint_type: Annotated[Int8, Since(1)] = 1
    cluster_id: String
    controller_id: Int32 = -1
    brokers: tuple[DescribeClusterBroker, ...]
    cluster_authorized_operations: Int32 = NOT_REQUESTED


class TopicRequest(msgspec.Struct, frozen=True, kw_only=True):
    name: String


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    topic_name: String
    partition_index: Int32


class DescribeTopicPartitionsRequest(WireMessage, frozen=True, kw_only=True):
    topics: tuple[TopicRequest, ...]
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = -1
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]
    eligible_leader_replicas: tuple[Int32, ...] | None = None
    last_known_elr: tuple[Int32, ...] | None = None
    offline_replicas: tuple[Int32, ...]


class DescribeTopicPartitionsResponseTopic(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    name: String | None
    topic_id: Uuid = NO_UUID
    is_internal: Bool = False
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...]
    topic_authorized_operations: Int32 = NOT_REQUESTED


class DescribeTopicPartitionsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...]
    next_cursor: Cursor | None = None


class FeatureUpdateKey(msgspec.Struct, frozen=True, kw_only=True):
    feature: String
    max_version_level: Int16
    allow_downgrade: Annotated[Bool, Until(0)] = False
    upgrade_type: Annotated[Int8, Since(1)] = 1


class UpdateFeaturesRequest(WireMessage, frozen=True, kw_only=True):
    timeout_ms: Int32 = 60000
    feature_updates: tuple[FeatureUpdateKey, ...]
    validate_only: Annotated[Bool, Since(1)] = False


class UpdatableFeatureResult(msgspec.Struct, frozen=True, kw_only=True):
    feature: String
    error_code: Int16
    error_message: String | None = None


class UpdateFeaturesResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    results: Annotated[tuple[UpdatableFeatureResult, ...], Until(1)] = ()


# -- ElectLeaders ------------------------------------------------------------------------------------------------------


class ElectLeadersRequest(WireMessage, frozen=True, kw_only=True):
    """Null means all partitions. Version 0 has only one kind of election: for preferred leaders."""

    election_type: Annotated[Int8, Since(1)] = 0
    topic_partitions: tuple[TopicAndPartitions, ...] | None
    timeout_ms: Int32 = 60_000


class PartitionResult(msgspec.Struct, frozen=True, kw_only=True):
    partition_id: Int32
    error_code: Int16
    error_message: String | None = None


class ReplicaElectionResult(msgspec.Struct, frozen=True, kw_only=True):
    topic: String
    partition_result: tuple[PartitionResult, ...]


class ElectLeadersResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(1)] = 0
    replica_election_results: tuple[ReplicaElectionResult, ...]


# -- AlterPartitionReassignments ---------------------------------------------------------------------------------------


class ReassignablePartition(msgspec.Struct, frozen=True, kw_only=True):
    """No replicas call a move off."""

    partition_index: Int32
    replicas: tuple[Int32, ...] | None = None


class ReassignableTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[ReassignablePartition, ...]


class AlterPartitionReassignmentsRequest(WireMessage, frozen=True, kw_only=True):
    timeout_ms: Int32 = 60_000
    allow_replication_factor_change: Annotated[Bool, Since(1)] = True
    topics: tuple[ReassignableTopic, ...]


class ReassignablePartitionResponse(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    error_code: Int16
    error_message: String | None = None


class ReassignableTopicResponse(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[ReassignablePartitionResponse, ...]


class AlterPartitionReassignmentsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, Since(1)] = True
    error_code: Int16
    error_message: String | None = None
    responses: tuple[ReassignableTopicResponse, ...]


# -- ListPartitionReassignments ----------------------------------------------------------------------------------------


class ListPartitionReassignmentsRequest(WireMessage, frozen=True, kw_only=True):
    """Null means all that are under way."""

    timeout_ms: Int32 = 60_000
    topics: tuple[TopicPartitionIndexes, ...] | None = None


class OngoingPartitionReassignment(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...]


class OngoingTopicReassignment(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[OngoingPartitionReassignment, ...]


class ListPartitionReassignmentsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    topics: tuple[OngoingTopicReassignment, ...]


# -- DescribeQuorum ----------------------------------------------------------------------------------------------------


class QuorumPartition(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32


class QuorumTopic(msgspec.Struct, frozen=True, kw_only=True):
    topic_name: String
    partitions: tuple[QuorumPartition, ...]


class DescribeQuorumRequest(WireMessage, frozen=True, kw_only=True):
    topics: tuple[QuorumTopic, ...]


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    replica_id: Int32
    replica_directory_id: Annotated[Uuid, Since(2)] = NO_UUID
    log_end_offset: Int64
    last_fetch_timestamp: Annotated[Int64, Since(1)] = -1
    last_caught_up_timestamp: Annotated[Int64, Since(1)] = -1


class DescribedQuorumPartition(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    error_code: Int16
    error_message: Annotated[String | None, Since(2)] = None
    leader_id: Int32
    leader_epoch: Int32
    high_watermark: Int64
    current_voters: tuple[ReplicaState, ...]
    observers: tuple[ReplicaState, ...]


class DescribedQuorumTopic(msgspec.Struct, frozen=True, kw_only=True):
    topic_name: String
    partitions: tuple[DescribedQuorumPartition, ...]


class QuorumListener(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    host: String
    port: UInt16


class QuorumNode(msgspec.Struct, frozen=True, kw_only=True):
    node_id: Int32
    listeners: tuple[QuorumListener, ...]


class DescribeQuorumResponse(WireMessage, frozen=True, kw_only=True):
    error_code: Int16
    error_message: Annotated[String | None, Since(2)] = None
    topics: tuple[DescribedQuorumTopic, ...]
    nodes: Annotated[tuple[QuorumNode, ...], Since(2)] = ()
