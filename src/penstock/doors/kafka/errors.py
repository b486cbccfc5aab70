"""The one table from Penstock's errors to Kafka's error codes, and where an API or a version departs from it.

A client only knows the codes that its version of an API documents; older versions get one that makes the client react
in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock import errors
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.errors import PenstockError

_Codes = Mapping[type[PenstockError], ErrorCode]

_CODES: Final[_Codes] = {
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
    errors.AuthenticationFailed: ErrorCode.SASL_AUTHENTICATION_FAILED,
    errors.AuthorizationDenied: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    errors.InvalidCredential: ErrorCode.UNACCEPTABLE_CREDENTIAL,
    errors.UserNotFound: ErrorCode.RESOURCE_NOT_FOUND,
    errors.ApiKeyNotFound: ErrorCode.RESOURCE_NOT_FOUND,
    errors.LastAdmin: ErrorCode.POLICY_VIOLATION,
    errors.AccessLimitReached: ErrorCode.POLICY_VIOLATION,
}


FIRST_ADDING_PRODUCE_VERSION: Final = 12  # from here on a produce adds its partitions to the transaction (KIP-890)
FIRST_ADDING_COMMIT_VERSION: Final = 5  # from here on TxnOffsetCommit needs no AddOffsetsToTxn

# Produce: codes after which clients try again, and do not ask for metadata first.
_PRODUCE: Final[_Codes] = {
    errors.NotCoordinator: ErrorCode.NOT_ENOUGH_REPLICAS,
    errors.CoordinatorLoading: ErrorCode.NOT_ENOUGH_REPLICAS,
}
_PRODUCE_BEFORE_12: Final[_Codes] = {**_PRODUCE, errors.ConcurrentTransactions: ErrorCode.NOT_ENOUGH_REPLICAS}
_PRODUCE_BEFORE_11: Final[_Codes] = {**_PRODUCE_BEFORE_12, errors.TransactionAbortable: ErrorCode.INVALID_TXN_STATE}

_FENCED: Final[_Codes] = {errors.ProducerFenced: ErrorCode.PRODUCER_FENCED}

_COMMIT: Final[_Codes] = {errors.MessageTooLarge: ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
_TXN_COMMIT_BEFORE_5: Final[_Codes] = {
    **_COMMIT,
    errors.ConcurrentTransactions: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
_TXN_COMMIT_BEFORE_4: Final[_Codes] = {**_TXN_COMMIT_BEFORE_5, errors.TransactionAbortable: ErrorCode.INVALID_TXN_STATE}

_NO_EXCEPTIONS: Final[_Codes] = {}
_PREFERRED_ELECTION: Final[_Codes] = {errors.LeaderNotAvailable: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
_UNCLEAN_ELECTION: Final[_Codes] = {errors.LeaderNotAvailable: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


def error_code(error: PenstockError, exceptions: _Codes = _NO_EXCEPTIONS) -> ErrorCode:
    """The code for an error, or for the nearest of its ancestors that has one; ``exceptions`` go first."""
    for cls in type(error).__mro__:
        if cls in exceptions:
            return exceptions[cls]
        if cls in _CODES:
            return _CODES[cls]
    return ErrorCode.UNKNOWN_SERVER_ERROR


def produce_error_code(error: PenstockError, version: int) -> ErrorCode:
    """The code of a refused batch in a produce response."""
    if version >= FIRST_ADDING_PRODUCE_VERSION:
        return error_code(error, _PRODUCE)
    return error_code(error, _PRODUCE_BEFORE_12 if version >= 11 else _PRODUCE_BEFORE_11)


def coordinator_error_code(error: PenstockError, *, knows_fenced: bool) -> ErrorCode:
    """The code of a refusal by a transaction's coordinator."""
    return error_code(error, _FENCED if knows_fenced else _NO_EXCEPTIONS)


def commit_error_code(error: PenstockError) -> ErrorCode:
    """The code of a refused OffsetCommit."""
    return error_code(error, _COMMIT)


def transactional_commit_error_code(error: PenstockError, version: int) -> ErrorCode:
    """The code of a refused TxnOffsetCommit."""
    if version >= FIRST_ADDING_COMMIT_VERSION:
        return error_code(error, _COMMIT)
    return error_code(error, _TXN_COMMIT_BEFORE_5 if version >= 4 else _TXN_COMMIT_BEFORE_4)


def election_error_code(error: PenstockError, *, is_unclean: bool) -> ErrorCode:
    """The code of a failed leader election."""
    return error_code(error, _UNCLEAN_ELECTION if is_unclean else _PREFERRED_ELECTION)
