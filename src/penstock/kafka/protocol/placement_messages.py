"""Where replicas are to be, who is to lead, and who decides that.

One description for all versions of each message; see ``schema`` for how to read them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from penstock.kafka.protocol import apis
from penstock.kafka.protocol.schema import (
    NO_UUID,
    Api,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Since,
    String,
    UInt16,
    Uuid,
)

# -- ElectLeaders ------------------------------------------------------------------------------------------------------


class TopicPartitions(msgspec.Struct, frozen=True, kw_only=True):
    topic: String
    partitions: tuple[Int32, ...]


class ElectLeadersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Null means all partitions. Version 0 has only one kind of election: for preferred leaders."""

    api: ClassVar[Api] = apis.ELECT_LEADERS

    election_type: Annotated[Int8, Since(1)] = 0
    topic_partitions: tuple[TopicPartitions, ...] | None
    timeout_ms: Int32 = 60_000


class PartitionResult(msgspec.Struct, frozen=True, kw_only=True):
    partition_id: Int32
    error_code: Int16
    error_message: String | None = None


class ReplicaElectionResult(msgspec.Struct, frozen=True, kw_only=True):
    topic: String
    partition_result: tuple[PartitionResult, ...]


class ElectLeadersResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.ELECT_LEADERS

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


class AlterPartitionReassignmentsRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.ALTER_PARTITION_REASSIGNMENTS

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


class AlterPartitionReassignmentsResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.ALTER_PARTITION_REASSIGNMENTS

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, Since(1)] = True
    error_code: Int16
    error_message: String | None = None
    responses: tuple[ReassignableTopicResponse, ...]


# -- ListPartitionReassignments ----------------------------------------------------------------------------------------


class ListPartitionReassignmentsTopics(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partition_indexes: tuple[Int32, ...]


class ListPartitionReassignmentsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Null means all that are under way."""

    api: ClassVar[Api] = apis.LIST_PARTITION_REASSIGNMENTS

    timeout_ms: Int32 = 60_000
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None = None


class OngoingPartitionReassignment(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...]


class OngoingTopicReassignment(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[OngoingPartitionReassignment, ...]


class ListPartitionReassignmentsResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.LIST_PARTITION_REASSIGNMENTS

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


class DescribeQuorumRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.DESCRIBE_QUORUM

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


class DescribeQuorumResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.DESCRIBE_QUORUM

    error_code: Int16
    error_message: Annotated[String | None, Since(2)] = None
    topics: tuple[DescribedQuorumTopic, ...]
    nodes: Annotated[tuple[QuorumNode, ...], Since(2)] = ()
