"""What the caller got wrong, and records that cannot be trusted."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors.root import PenstockError


class InvalidRequest(PenstockError):
    """The request does not make sense as it stands."""

    code = "invalid_request"


class InvalidConfig(InvalidRequest):
    """A setting has an unknown name or a value out of range."""

    code = "invalid_config"


class InvalidPipeline(InvalidRequest):
    """The file of a pipeline does not say what it should; each line of the message names a place in it."""

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
    """A record breaks a rule of its topic, such as a missing key on a compacted one.

    ``records`` names those of the batch that do, by their place in it; empty where the batch itself is wrong.
    """

    code = "invalid_record"

    def __init__(self, message: str = "", records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.records = tuple(records)


class InvalidTimestamp(InvalidRecord):
    """A record's timestamp is outside what its topic accepts."""

    code = "invalid_timestamp"


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


class CorruptRecords(PenstockError):
    """Record bytes fail their checksum or contradict their own header."""

    code = "corrupt_records"
