"""The one tree of errors that Penstock raises on purpose.

Each class has a stable ``code`` (snake case, part of the public contract), says whether trying the same call again can
help, and carries a message that names what to do next: its docstring's first line, unless it is raised with another.
Doors hold one table each from these classes to their own world's codes (Kafka error numbers, HTTP statuses); nothing
below a door knows about those.

Errors travel between nodes by the name of their class, with their message and their fields. So an error that has fields
takes each of them as an argument of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final


class PenstockError(Exception):
    """Anything that went wrong for a reason outside our own code."""

    code: ClassVar[str] = "internal_error"
    retriable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else (self.__doc__ or self.code).strip().splitlines()[0]


# -- what the caller got wrong, and records that cannot be trusted -----------------------------------------------------


class InvalidRequest(PenstockError):
    """The request is not valid."""

    code = "invalid_request"


class InvalidField(InvalidRequest):
    """A field of the request has a value that makes no sense; the message names it.

    ``is_parameter``: it goes with the call rather than with what it carries, for doors that tell these apart.
    """

    code = "invalid_argument"

    def __init__(self, message: str = "", *, is_parameter: bool = False) -> None:
        super().__init__(*([message] if message else ()))
        self.is_parameter = is_parameter


class InvalidConfig(InvalidRequest):
    """A setting has an unknown name or a value out of range."""

    code = "invalid_config"


class InvalidPipeline(InvalidRequest):
    """The pipeline's file is wrong; each line of the message names a place in it."""

    code = "invalid_pipeline"


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


class InvalidRecord(InvalidRequest):
    """A record breaks a rule of its topic, such as a missing key in a compacted topic.

    ``records`` names them by their index in the batch; it is empty where the batch itself is wrong.
    """

    code = "invalid_record"

    def __init__(self, message: str = "", records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.records = tuple((index, reason) for index, reason in records)


class InvalidTimestamp(InvalidRecord):
    """A record's timestamp is outside what its topic accepts."""

    code = "invalid_timestamp"


class MessageTooLarge(InvalidRequest):
    """A batch is larger than its topic allows."""

    code = "message_too_large"


class UnsupportedCompression(InvalidRequest):
    """The batch has an unknown compression codec."""

    code = "unsupported_compression"


class UnsupportedFormat(InvalidRequest):
    """The record format is older than batch version 2."""

    code = "unsupported_format"


class PolicyViolation(InvalidRequest):
    """The request is well formed but a policy of this cluster forbids it."""

    code = "policy_violation"


class TopicExists(PenstockError):
    """A topic of that name already exists."""

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
    """Another node coordinates this transaction now."""

    code = "coordinator_fenced"


# -- leadership, replicas, nodes and the quorum ------------------------------------------------------------------------


class NotLeader(PenstockError):
    """This node does not lead the partition; refresh the metadata and ask its leader."""

    code = "not_leader"
    retriable = True


class FencedLeaderEpoch(PenstockError):
    """The request names an older leader epoch of this partition; refresh the metadata."""

    code = "fenced_leader_epoch"
    retriable = True


class UnknownLeaderEpoch(PenstockError):
    """The request names a newer leader epoch of this partition than this node knows."""

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


class ClientGone(PenstockError):
    """The client went away before its request was complete."""

    code = "client_gone"


class RequestTimedOut(PenstockError):
    """The request did not complete within its timeout."""

    code = "request_timed_out"
    retriable = True


class PeerUnavailable(PenstockError):
    """Another node cannot be reached or did not answer; it may or may not have carried out the request."""

    code = "peer_unavailable"
    retriable = True


class PeerNotReached(PeerUnavailable):
    """The request did not get to where another node serves it, so nothing was done."""

    code = "peer_not_reached"


class ControllerUnavailable(PenstockError):
    """The cluster has no controller now, because a majority cannot be reached; the change may or may not be made."""

    code = "controller_unavailable"
    retriable = True


class StaleNodeEpoch(PenstockError):
    """The node has registered again since, or was removed: the request is from before that."""

    code = "stale_node_epoch"


class NodeNotFound(PenstockError):
    """There is no such node in the cluster."""

    code = "node_not_found"


class DuplicateNode(PenstockError):
    """A node with that id is running with another data directory; change the id of one of them."""

    code = "duplicate_node"
    retriable = True  # a wiped node is admitted when its former session has expired


class NodeInUse(PenstockError):
    """The node still has replicas; drain it first."""

    code = "node_in_use"


class StalePartitionEpoch(PenstockError):
    """The partition has changed since the caller looked at it."""

    code = "stale_partition_epoch"
    retriable = True


class IneligibleReplica(PenstockError):
    """A replica cannot be in sync: its node is fenced, unknown, or has restarted."""

    code = "ineligible_replica"
    retriable = True


class LeaderNotAvailable(PenstockError):
    """The partition has no leader now; it gets one when a complete replica is back."""

    code = "leader_not_available"
    retriable = True


class ElectionNotNeeded(PenstockError):
    """The partition already has the requested leader."""

    code = "election_not_needed"


class NoReassignment(PenstockError):
    """The partition's replicas are not being moved."""

    code = "no_reassignment"


class OffsetNotAvailable(PenstockError):
    """A new leader does not know yet which of its records are committed; try again in a moment."""

    code = "offset_not_available"
    retriable = True


class NodeStarting(PenstockError):
    """The node is starting; try again when it has joined its cluster."""

    code = "node_starting"
    retriable = True


# -- disks, and what a node cannot start with --------------------------------------------------------------------------


class StorageError(PenstockError):
    """The disk refused a read or a write."""

    code = "storage_error"
    retriable = True


class UnreadableBytes(StorageError):
    """Some bytes of a file are not what was written; those around them are."""

    code = "unreadable_bytes"
    start: int = 0
    end: int = 0


class ResourcesExhausted(StorageError):
    """The node is short of a resource that may be free again at any moment; try the same request again."""

    code = "resources_exhausted"


class DiskFull(ResourcesExhausted):
    """The disk is full. Reads still work; writes will as soon as there is space."""

    code = "disk_full"


class TooManyOpenFiles(ResourcesExhausted):
    """The process has as many files and connections open as the operating system allows."""

    code = "too_many_open_files"


class LogFailed(StorageError):
    """A sync of this log failed; restart the node to recover the log."""

    code = "log_failed"


class DamagedRecords(StorageError):
    """This replica is damaged at that offset. A sound replica takes over, or the range is declared lost."""

    code = "damaged_records"

    def __init__(self, message: str = "", first_offset: int = -1, next_offset: int = -1) -> None:
        super().__init__(*([message] if message else ()))
        self.first_offset = first_offset  # from here on records may be missing
        self.next_offset = next_offset  # up to before here


class StartupError(PenstockError):
    """The node cannot start as configured."""

    code = "startup_error"


class DataDirectoryError(StartupError):
    """The data directory is in use, belongs to another node, or was written by another version."""

    code = "data_directory_error"


class EncryptionKeyError(StartupError):
    """A master key is missing, malformed or not the one that the data was written with."""

    code = "encryption_key_error"


class DamagedMetadata(DataDirectoryError):
    """A member of the quorum has lost part of its log: it must not take part under the same id again."""

    code = "damaged_metadata"


# -- coordinators and groups -------------------------------------------------------------------------------------------


class CoordinationError(PenstockError):
    """A coordinator refuses the request."""

    code = "coordination_error"


class NotCoordinator(CoordinationError):
    """This node is not the coordinator of the request's group or transaction; look the coordinator up."""

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
    """The member's generation is over; it has to join again."""

    code = "illegal_generation"


class RebalanceInProgress(GroupError):
    """The group is rebalancing; the member has to join again."""

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
    """The group has the largest number of members allowed."""

    code = "group_full"


class PartitionNotAssigned(GroupError):
    """The partition is not assigned to this member in the current generation."""

    code = "partition_not_assigned"


class MemberBusy(GroupError):
    """Another call of this member is still in progress."""

    code = "member_busy"
    retriable = True


class FencedMemberEpoch(GroupError):
    """The member's epoch is not its current one; it has to give up its partitions and join again."""

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
    """The transaction is not in a state that allows this."""

    code = "invalid_transaction_state"


class InvalidTransactionTimeout(TransactionError):
    """The transaction timeout is outside what this cluster allows."""

    code = "invalid_transaction_timeout"


class InvalidProducerIdMapping(TransactionError):
    """The producer id is not the current one of this transactional id; restart the producer."""

    code = "invalid_producer_id_mapping"


class ConcurrentTransactions(TransactionError):
    """The last transaction of this transactional id is still being completed; try again in a moment."""

    code = "concurrent_transactions"
    retriable = True


class TransactionAbortable(TransactionError):
    """The transaction can only be aborted; abort it and begin a new one."""

    code = "transaction_abortable"


class TransactionalIdNotFound(TransactionError):
    """There is no such transactional id."""

    code = "transactional_id_not_found"


class TransactionalIdMissing(TransactionError):
    """Transactional records came in a request that names no transactional id."""

    code = "transactional_id_missing"


class TransactionNotFound(TransactionError):
    """There is no such transaction, or its outcome is no longer remembered."""

    code = "transaction_not_found"


class TransactionEnded(TransactionError):
    """The transaction has ended or is ending; begin a new one."""

    code = "transaction_ended"


class TransactionTimedOut(TransactionEnded):
    """The transaction was open for too long and was aborted; begin a new one."""

    code = "transaction_timed_out"


class UnknownWriter(TransactionError):
    """The request names a writer that has written nothing in this transaction."""

    code = "unknown_writer"


class TransactionLimitReached(TransactionError):
    """The limit of open transactions, or of writers in one transaction, is reached."""

    code = "transaction_limit_reached"
    retriable = True


class IdempotencyKeyReused(TransactionError):
    """The idempotency key was used before for a different request."""

    code = "idempotency_key_reused"


class SeriesFenced(TransactionError):
    """Another run has taken over the series of transactions; stop this one."""

    code = "series_fenced"


# -- dead letters and redrives -----------------------------------------------------------------------------------------


class DeadLetterNotFound(PenstockError):
    """There is no dead letter at that offset."""

    code = "dead_letter_not_found"


class RedriveNotFound(CoordinationError):
    """There is no such redrive, or it ended too long ago."""

    code = "redrive_not_found"


class RedriveRunning(CoordinationError):
    """Another redrive of the same dead letters is running."""

    code = "redrive_running"


# -- schedules ---------------------------------------------------------------------------------------------------------


class ScheduleNotFound(PenstockError):
    """There is no such schedule: it never existed, was cancelled, or its message is in its topic already."""

    code = "schedule_not_found"


class ScheduleExists(PenstockError):
    """Another schedule has this id: choose another id, or change or cancel that schedule."""

    code = "schedule_exists"


class ScheduleBeingFired(PenstockError):
    """The message of this schedule is being written to its topic at this moment."""

    code = "schedule_being_fired"


# -- access ------------------------------------------------------------------------------------------------------------


class AccessError(PenstockError):
    """The caller is not who it has to be, or may not do this."""

    code = "access_error"


class AuthenticationFailed(AccessError):
    """The credentials are missing, wrong or no longer valid. Log in with others."""

    code = "authentication_failed"


class AuthorizationDenied(AccessError):
    """The caller may not do this. Ask an administrator of the cluster for the right."""

    code = "authorization_denied"


class InvalidPrincipal(InvalidRequest):
    """A principal is a kind and a name: User:alice."""

    code = "invalid_principal"


class InvalidCredential(InvalidRequest):
    """The credential is not one that clients can log in with; the message says why."""

    code = "invalid_credential"


class UnknownRole(InvalidRequest):
    """There is no such role, or it says nothing about that kind of resource."""

    code = "unknown_role"


class UserNotFound(AccessError):
    """There is no such user, or it has no credential of that mechanism."""

    code = "user_not_found"


class ApiKeyNotFound(AccessError):
    """There is no such API key: it was never issued, or it was revoked."""

    code = "api_key_not_found"


class LastAdmin(AccessError):
    """No principal could change access any more. Give another principal the role admin on the cluster first."""

    code = "last_admin"


class AccessLimitReached(AccessError):
    """The largest number of users, rules or API keys is reached. Remove some, or use rules with prefixes."""

    code = "access_limit_reached"


class KeysNotRotated(AccessError):
    """The master keys of encryption at rest were not rotated. The message says what to do; nothing is lost."""

    code = "keys_not_rotated"


# -- quotas ------------------------------------------------------------------------------------------------------------


class QuotaExceeded(PenstockError):
    """The client has used more than its quota. Wait as long as the answer says, and try again."""

    code = "quota_exceeded"
    retriable = True

    def __init__(self, message: str = "", retry_after_ms: int = 1_000) -> None:
        super().__init__(*([message] if message else ()))
        self.retry_after_ms = retry_after_ms


class QuotaNotFound(PenstockError):
    """No quota is set for this. List the quotas to see for whom there are some."""

    code = "quota_not_found"


# -- pipelines ---------------------------------------------------------------------------------------------------------


class PipelineNotFound(PenstockError):
    """No pipeline of that name has reported to this cluster."""

    code = "pipeline_not_found"


class PipelineReplaced(PenstockError):
    """A later run of the same pipeline has taken over."""

    code = "pipeline_replaced"


class InvalidLake(PenstockError):
    """A lake does not match its catalog, or two pipelines write to it at once."""

    code = "invalid_lake"


# -- a client's own side -----------------------------------------------------------------------------------------------


class ClientError(PenstockError):
    """Something went wrong between a client and the cluster."""

    code = "client_error"


class NodesUnreachable(ClientError):
    """None of the nodes that the client knows could be reached."""

    code = "nodes_unreachable"
    retriable = True


class UnexpectedAnswer(ClientError):
    """The answer is not that of a Penstock node; check the URL."""

    code = "unexpected_answer"


class WrongPort(ClientError):
    """The address is that of a node's Kafka, gRPC or internal port. Give its HTTP address."""

    code = "wrong_port"


class ClientClosed(ClientError):
    """The client was closed; make a new one."""

    code = "client_closed"


class LeaseLost(ClientError):
    """This consumer no longer holds the message: its lease expired, or the message was settled before."""

    code = "lease_lost"


class DataLost(ClientError):
    """Messages that were still to be read are gone: deleted, damaged, or their topic was deleted and created again."""

    code = "data_lost"


class UnreadableValue(ClientError):
    """A message's value does not have the declared format."""

    code = "unreadable_value"


ALL: Final = tuple(kind for kind in vars().values() if isinstance(kind, type) and issubclass(kind, PenstockError))
