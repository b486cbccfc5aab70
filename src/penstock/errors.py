"""The one tree of errors that Penstock raises on purpose.

Each class has a stable ``code`` (snake case, part of the public contract), says whether trying the same call again can
help, and carries a message that names what to do next. Doors hold one table each from these classes to their own
world's codes (Kafka error numbers, HTTP statuses); nothing below a door knows about those.
"""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """Anything that went wrong for a reason outside our own code."""

    code: ClassVar[str] = "internal_error"
    retriable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else (self.__doc__ or self.code).strip().splitlines()[0]


# -- what the caller got wrong -----------------------------------------------------------------------------------------


class InvalidRequest(PenstockError):
    """The request does not make sense as it stands."""

    code = "invalid_request"


class InvalidConfig(InvalidRequest):
    """A setting has an unknown name or a value out of range."""

    code = "invalid_config"


class InvalidTopicName(InvalidRequest):
    """The topic name breaks the naming rules."""

    code = "invalid_topic_name"


class InvalidPartitions(InvalidRequest):
    """The number of partitions is out of range or would shrink the topic."""

    code = "invalid_partitions"


class InvalidReplicationFactor(InvalidRequest):
    """There are not enough nodes for the replication factor asked for."""

    code = "invalid_replication_factor"


class InvalidReplicaAssignment(InvalidRequest):
    """The replica assignment names unknown nodes or leaves partitions out."""

    code = "invalid_replica_assignment"


class InvalidTimestamp(InvalidRequest):
    """A record's timestamp is outside what its topic accepts."""

    code = "invalid_timestamp"


class InvalidRecord(InvalidRequest):
    """A record breaks a rule of its topic, such as a missing key on a compacted one."""

    code = "invalid_record"


class MessageTooLarge(InvalidRequest):
    """A batch is larger than its topic takes."""

    code = "message_too_large"


class UnsupportedCompression(InvalidRequest):
    """The batch names a compression codec that is not known here."""

    code = "unsupported_compression"


class UnsupportedFormat(InvalidRequest):
    """The record format is older than batch version 2."""

    code = "unsupported_format"


class PolicyViolation(InvalidRequest):
    """The request is well formed but a policy of this cluster forbids it."""

    code = "policy_violation"


class TopicExists(PenstockError):
    """A topic of that name is already there."""

    code = "topic_exists"


class UnknownTopic(PenstockError):
    """There is no such topic."""

    code = "unknown_topic"
    # A topic created elsewhere a moment ago may not be known here yet.
    retriable = True


class UnknownPartition(PenstockError):
    """The topic has no such partition."""

    code = "unknown_partition"
    retriable = True


class OffsetOutOfRange(PenstockError):
    """The offset is before the log's start or past its end."""

    code = "offset_out_of_range"


# -- records that cannot be trusted ------------------------------------------------------------------------------------


class CorruptRecords(PenstockError):
    """Record bytes fail their checksum or contradict their own header."""

    code = "corrupt_records"


# -- producers ---------------------------------------------------------------------------------------------------------


class OutOfOrderSequence(PenstockError):
    """An idempotent producer left a gap in its sequence numbers."""

    code = "out_of_order_sequence"


class DuplicateSequence(PenstockError):
    """An idempotent producer repeated a batch older than the ones remembered."""

    code = "duplicate_sequence"


class ProducerFenced(PenstockError):
    """A newer instance of this producer has taken over."""

    code = "producer_fenced"


class CoordinatorFenced(PenstockError):
    """Another node coordinates this transaction by now."""

    code = "coordinator_fenced"


# -- leadership and the cluster ----------------------------------------------------------------------------------------


class NotLeader(PenstockError):
    """This node does not lead the partition; ask for metadata and try its leader."""

    code = "not_leader"
    retriable = True


class FencedLeaderEpoch(PenstockError):
    """The caller knows an older leader of this partition; ask for metadata again."""

    code = "fenced_leader_epoch"
    retriable = True


class UnknownLeaderEpoch(PenstockError):
    """The caller knows a newer leader of this partition than this node does."""

    code = "unknown_leader_epoch"
    retriable = True


class NotEnoughReplicas(PenstockError):
    """Fewer replicas are in sync than the topic's min.insync.replicas asks for."""

    code = "not_enough_replicas"
    retriable = True


class NotController(PenstockError):
    """This node is not the cluster's controller."""

    code = "not_controller"
    retriable = True


class RequestTimedOut(PenstockError):
    """The answer did not come in the time the caller gave."""

    code = "request_timed_out"
    retriable = True


# -- the disk ----------------------------------------------------------------------------------------------------------


class StorageError(PenstockError):
    """The disk refused a read or a write."""

    code = "storage_error"
    retriable = True


class DiskFull(StorageError):
    """No space is left for new records; reads go on, and writes will as soon as there is space."""

    code = "disk_full"


class LogFailed(StorageError):
    """A sync of this log failed, so what it last wrote cannot be trusted until the node restarts and recovers it."""

    code = "log_failed"


# -- starting up -------------------------------------------------------------------------------------------------------


class StartupError(PenstockError):
    """The node cannot start as configured."""

    code = "startup_error"


class DataDirectoryError(StartupError):
    """The data directory is in use, belongs to another node, or was written by another version."""

    code = "data_directory_error"


# -- groups ------------------------------------------------------------------------------------------------------------


class CoordinationError(PenstockError):
    """A coordinator refuses the request."""

    code = "coordination_error"


class NotCoordinator(CoordinationError):
    """This node does not coordinate what the request is about; ask who does."""

    code = "not_coordinator"
    retriable = True


class CoordinatorLoading(CoordinationError):
    """The coordinator is still reading its log; try again in a moment."""

    code = "coordinator_loading"
    retriable = True


class GroupError(CoordinationError):
    """A group's coordinator refuses the request."""

    code = "group_error"


class InvalidGroupId(GroupError):
    """The group id is empty or too long."""

    code = "invalid_group_id"


class InvalidSessionTimeout(GroupError):
    """The session timeout is outside what this cluster allows."""

    code = "invalid_session_timeout"


class UnknownMember(GroupError):
    """The group does not know this member; it has to join again."""

    code = "unknown_member"


class MemberIdRequired(GroupError):
    """Join again with the member id that comes with this answer."""

    code = "member_id_required"


class IllegalGeneration(GroupError):
    """The member speaks for a generation of its group that is over; it has to join again."""

    code = "illegal_generation"


class RebalanceInProgress(GroupError):
    """The group is sharing out its partitions anew; the member has to join again."""

    code = "rebalance_in_progress"
    retriable = True


class FencedInstance(GroupError):
    """Another process has taken over this static member."""

    code = "fenced_instance"


class InconsistentProtocol(GroupError):
    """The member has no protocol in common with the rest of its group."""

    code = "inconsistent_protocol"


class GroupNotEmpty(GroupError):
    """The group still has members; stop them first."""

    code = "group_not_empty"


class GroupNotFound(GroupError):
    """There is no such group."""

    code = "group_not_found"


class GroupFull(GroupError):
    """The group has as many members as it may have."""

    code = "group_full"


class PartitionNotAssigned(GroupError):
    """The partition is not this member's in the group's present generation."""

    code = "partition_not_assigned"


class MemberBusy(GroupError):
    """Another call of this member is still being answered."""

    code = "member_busy"
    retriable = True


class FencedMemberEpoch(GroupError):
    """The member's epoch is not the group's idea of it; it has to give up its partitions and join again."""

    code = "fenced_member_epoch"


class StaleMemberEpoch(GroupError):
    """The member has moved on to another epoch; it has to send a heartbeat and try again with that one."""

    code = "stale_member_epoch"


class UnreleasedInstance(GroupError):
    """Another process still runs as this static member; stop it first."""

    code = "unreleased_instance"


class UnsupportedAssignor(GroupError):
    """There is no server-side assignor of that name."""

    code = "unsupported_assignor"


class InvalidRegularExpression(GroupError):
    """The pattern is not a regular expression in RE2's syntax."""

    code = "invalid_regular_expression"


class OffsetMetadataTooLarge(GroupError):
    """The text kept with a committed offset is too long."""

    code = "offset_metadata_too_large"


# -- transactions ------------------------------------------------------------------------------------------------------


class TransactionError(CoordinationError):
    """A transaction's coordinator refuses the request."""

    code = "transaction_error"


class InvalidTxnState(TransactionError):
    """The transaction is not in a state in which that can be done."""

    code = "invalid_transaction_state"


class InvalidTransactionTimeout(TransactionError):
    """The transaction timeout is outside what this cluster allows."""

    code = "invalid_transaction_timeout"


class InvalidProducerIdMapping(TransactionError):
    """The producer id is not the one that this transactional id has now; start the producer anew."""

    code = "invalid_producer_id_mapping"


class ConcurrentTransactions(TransactionError):
    """The last transaction of this transactional id is still being ended; try again in a moment."""

    code = "concurrent_transactions"
    retriable = True


class TransactionAbortable(TransactionError):
    """The transaction can only be aborted now; abort it and begin anew."""

    code = "transaction_abortable"


class TransactionalIdNotFound(TransactionError):
    """There is no such transactional id."""

    code = "transactional_id_not_found"


class TransactionalIdMissing(TransactionError):
    """Transactional records came in a request that names no transactional id."""

    code = "transactional_id_missing"
