"""The one table from Penstock's errors to Kafka's error codes."""

from __future__ import annotations

from typing import Final

from penstock import errors
from penstock.errors import PenstockError
from penstock.kafka.protocol.errors import ErrorCode

_CODES: Final[dict[type[PenstockError], ErrorCode]] = {
    errors.InvalidRequest: ErrorCode.INVALID_REQUEST,
    errors.InvalidConfig: ErrorCode.INVALID_CONFIG,
    errors.InvalidTopicName: ErrorCode.INVALID_TOPIC_EXCEPTION,
    errors.InvalidPartitions: ErrorCode.INVALID_PARTITIONS,
    errors.InvalidReplicationFactor: ErrorCode.INVALID_REPLICATION_FACTOR,
    errors.InvalidReplicaAssignment: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    errors.InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    errors.InvalidRecord: ErrorCode.INVALID_RECORD,
    errors.MessageTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    errors.UnsupportedCompression: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    errors.UnsupportedFormat: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    errors.PolicyViolation: ErrorCode.POLICY_VIOLATION,
    errors.TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
    errors.UnknownTopic: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.UnknownPartition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    errors.CorruptRecords: ErrorCode.CORRUPT_MESSAGE,
    errors.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.DuplicateSequence: ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    errors.ProducerFenced: ErrorCode.INVALID_PRODUCER_EPOCH,
    errors.CoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    errors.NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    errors.FencedLeaderEpoch: ErrorCode.FENCED_LEADER_EPOCH,
    errors.UnknownLeaderEpoch: ErrorCode.UNKNOWN_LEADER_EPOCH,
    errors.NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
    errors.NotController: ErrorCode.NOT_CONTROLLER,
    errors.RequestTimedOut: ErrorCode.REQUEST_TIMED_OUT,
    errors.PeerUnavailable: ErrorCode.REQUEST_TIMED_OUT,
    errors.ControllerUnavailable: ErrorCode.REQUEST_TIMED_OUT,
    errors.StaleNodeEpoch: ErrorCode.STALE_BROKER_EPOCH,
    errors.NodeNotFound: ErrorCode.BROKER_ID_NOT_REGISTERED,
    errors.DuplicateNode: ErrorCode.DUPLICATE_BROKER_REGISTRATION,
    errors.NodeStarting: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    errors.NodeInUse: ErrorCode.INVALID_REQUEST,
    errors.StalePartitionEpoch: ErrorCode.INVALID_UPDATE_VERSION,
    errors.IneligibleReplica: ErrorCode.INELIGIBLE_REPLICA,
    errors.LeaderNotAvailable: ErrorCode.LEADER_NOT_AVAILABLE,
    errors.ElectionNotNeeded: ErrorCode.ELECTION_NOT_NEEDED,
    errors.NoReassignment: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    errors.OffsetNotAvailable: ErrorCode.OFFSET_NOT_AVAILABLE,
    errors.StorageError: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.InvalidGroupId: ErrorCode.INVALID_GROUP_ID,
    errors.InvalidSessionTimeout: ErrorCode.INVALID_SESSION_TIMEOUT,
    errors.UnknownMember: ErrorCode.UNKNOWN_MEMBER_ID,
    errors.MemberIdRequired: ErrorCode.MEMBER_ID_REQUIRED,
    errors.IllegalGeneration: ErrorCode.ILLEGAL_GENERATION,
    errors.RebalanceInProgress: ErrorCode.REBALANCE_IN_PROGRESS,
    errors.FencedInstance: ErrorCode.FENCED_INSTANCE_ID,
    errors.InconsistentProtocol: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    errors.GroupNotEmpty: ErrorCode.NON_EMPTY_GROUP,
    errors.GroupNotFound: ErrorCode.GROUP_ID_NOT_FOUND,
    errors.GroupFull: ErrorCode.GROUP_MAX_SIZE_REACHED,
    errors.FencedMemberEpoch: ErrorCode.FENCED_MEMBER_EPOCH,
    errors.StaleMemberEpoch: ErrorCode.STALE_MEMBER_EPOCH,
    errors.UnreleasedInstance: ErrorCode.UNRELEASED_INSTANCE_ID,
    errors.UnsupportedAssignor: ErrorCode.UNSUPPORTED_ASSIGNOR,
    errors.InvalidRegularExpression: ErrorCode.INVALID_REGULAR_EXPRESSION,
    errors.OffsetMetadataTooLarge: ErrorCode.OFFSET_METADATA_TOO_LARGE,
    errors.InvalidTxnState: ErrorCode.INVALID_TXN_STATE,
    errors.InvalidTransactionTimeout: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    errors.InvalidProducerIdMapping: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    errors.ConcurrentTransactions: ErrorCode.CONCURRENT_TRANSACTIONS,
    errors.TransactionAbortable: ErrorCode.TRANSACTION_ABORTABLE,
    errors.TransactionalIdNotFound: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    errors.TransactionalIdMissing: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    errors.NotCoordinator: ErrorCode.NOT_COORDINATOR,
    errors.CoordinatorLoading: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


def error_code(error: PenstockError) -> ErrorCode:
    """The code for an error, or for the nearest of its ancestors that has one."""
    for cls in type(error).__mro__:
        if cls in _CODES:
            return _CODES[cls]
    return ErrorCode.UNKNOWN_SERVER_ERROR
