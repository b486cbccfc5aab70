"""Where protobuf differs from JSON: the names that the definitions had before they were made from the table.

Everything that is not named here follows the rules of `shapes`: methods and messages are called as the types of
`penstock.api`, fields as theirs. What stands here keeps clients working that were made from earlier definitions; a new
operation needs no line. Numbers, types and labels of fields are kept in `proto/penstock/v1/numbers.lock`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.api import cluster, dead_letters, groups, health, messages, problems, queues, schedules, topics
from penstock.api import transactions as transactions_api
from penstock.api.operation import Request


@dataclass(frozen=True, slots=True)
class At:
    """Where protobuf has a field of a struct: a path, with a dot where it goes into a message.

    ``given`` is the field of the struct that has to be set for this place to be the one. ``unset`` is the value that
    protobuf has by leaving the field out; ``default`` the one that stands for a field that is left out in the struct.
    ``true`` is the word that a flag stands for. ``needed``: it must be there if the message around it is.
    """

    path: str
    given: str | None = None
    unset: Any = None
    default: str | None = None
    true: str | None = None
    needed: bool = False


Places = str | At | tuple[At, ...]

INLINE: Final = ""  # the fields of a struct within a struct, in the same message

# -- what has no method ------------------------------------------------------------------------------------------------

NOT_IN_GRPC: Final[Mapping[type[Request[Any]], str]] = {
    messages.PublishBatches: "Takes and answers MessagePack alone, for the Python client and Spark; use PublishBatch.",
    messages.ReadBatches: "Answers MessagePack alone, for the Python client and Spark; use Read.",
    health.IsAlive: "grpc.health.v1.Health says it.",
    health.IsReady: "grpc.health.v1.Health says it; DescribeHealth tells the reasons.",
}

# -- methods -----------------------------------------------------------------------------------------------------------

METHODS: Final[Mapping[type[Request[Any]], str]] = {
    topics.DescribeTopic: "GetTopic",
    topics.AlterTopic: "UpdateTopic",
    messages.Read: "ReadPage",  # Read is a stream
    queues.DeclareQueueGroup: "DeclareGroup",
    queues.DescribeQueue: "GetStats",
    queues.DescribeLanes: "GetLanes",
    queues.PeekQueueGroup: "Peek",
    queues.PauseQueueGroup: "PauseGroup",
    queues.ResumeQueueGroup: "ResumeGroup",
    queues.PurgeQueue: "PurgeGroup",
    queues.SeekQueueGroup: "SeekGroup",
    queues.ForgetQueueGroup: "DeleteGroup",
    dead_letters.ListDeadLetterReasons: "ListReasons",
    schedules.CountSchedules: "GetScheduleStats",
    groups.JoinGroup: "Join",
    groups.PollGroup: "Poll",
    groups.CommitGroup: "Commit",
    groups.HeartbeatGroup: "Heartbeat",
    groups.LeaveGroup: "Leave",
    groups.DeleteGroup: "DeleteConsumerGroup",  # DeleteGroup is of queues
    transactions_api.OpenTransaction: "BeginTransaction",
    transactions_api.DescribeTransaction: "GetTransaction",
}

# Answers that were messages of their own, of one method.
ANSWERS: Final[Mapping[type[Request[Any]], str]] = {
    queues.DeclareQueueGroup: "DeclareGroupResponse",
    queues.PauseQueueGroup: "PauseGroupResponse",
    queues.ResumeQueueGroup: "ResumeGroupResponse",
    queues.PurgeQueue: "PurgeGroupResponse",
    queues.SeekQueueGroup: "SeekGroupResponse",
}

# -- messages ----------------------------------------------------------------------------------------------------------

MESSAGES: Final[Mapping[type, str]] = {
    problems.Problem: "Error",
    topics.TopicView: "Topic",
    topics.TopicDetail: "Topic",
    topics.TopicList: "ListTopicsResponse",
    topics.PartitionView: "Partition",
    topics.LostView: "LostRecords",
    messages.NewMessage: "Message",
    messages.MessageView: "StoredMessage",
    messages.DeliveredMessage: "StoredMessage",
    messages.PublishReceipt: "PublishResponse",
    messages.BatchItem: "PublishResult",
    messages.BatchReceipt: "PublishBatchResponse",
    queues.QueueMessage: "LeasedMessage",
    queues.Received: "ReceiveResponse",
    queues.ReceiptResult: "SettleResult",
    queues.ReceiptResults: "SettleResponse",
    queues.PartView: "SettlePart",
    queues.PeekedMessages: "PeekResponse",
    queues.QueueView: "GetStatsResponse",
    queues.QueueGroupView: "GroupStats",
    queues.QueuePartitionView: "PartitionStats",
    queues.LanesView: "GetLanesResponse",
    queues.LaneGroupView: "GroupLanes",
    queues.LanePartitionView: "PartitionLanes",
    queues.LaneView: "LaneStats",
    dead_letters.DeadLetterView: "DeadLetter",
    dead_letters.DeadLetterPage: "ListDeadLettersResponse",
    dead_letters.ReasonView: "DeadLetterReason",
    dead_letters.ReasonList: "ListReasonsResponse",
    dead_letters.RedriveView: "RedriveJob",
    dead_letters.RedriveList: "ListRedrivesResponse",
    dead_letters.RedrivePlan: "Rehearsal",
    dead_letters.RedriveReport: "RedriveResponse",
    schedules.ScheduleView: "Schedule",
    schedules.AddedSchedule: "AddScheduleResponse",
    schedules.ScheduleList: "ListSchedulesResponse",
    schedules.CancelledSchedules: "CancelSchedulesResponse",
    schedules.LatenessBucket: "ScheduleStats.LatenessBucket",
    cluster.PlaceView: "TopicPartition",
    groups.MembershipView: "Membership",
    groups.PolledView: "PollResponse",
    groups.CommitItem: "OffsetCommit",
    groups.CommittedView: "CommitResponse",
    health.Health: "NodeHealth",  # Health is a service
    transactions_api.LeaseView: "TransactionLease",
    transactions_api.EndView: "TransactionEnd",
    transactions_api.TransactionDetail: "Transaction",
    transactions_api.WriterView: "TransactionWriter",
}

# What a struct has and its message has not, with what clients take it for.
OMITTED: Final[Mapping[type, Mapping[str, Any]]] = {
    problems.Problem: {"type": "", "title": "", "status": 0, "instance": ""},  # HTTP's
}
# Messages that hold some of the fields of a struct, by the name of the field that holds them.
NESTED: Final[Mapping[str, str]] = {"start": "Start"}


# -- fields ------------------------------------------------------------------------------------------------------------


def _under(message: str, *names: str) -> dict[str, Places]:
    return {name: f"{message}.{name}" for name in names}


START: Final = (At("start.offset"), At("start.end"))
_MESSAGE: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
TICKET: Final[dict[str, Places]] = {
    "transaction": At("ticket.transaction", needed=True),
    "writer": "ticket.writer",
    "sequence": "ticket.sequence",
}
_PLACED: Final[dict[str, Places]] = {
    "topic": (At("receipt.topic", given="partition"), At("scheduled.topic", given="schedule_id")),
    "partition": "receipt.partition",
    "offset": "receipt.offset",
    "timestamp": "receipt.timestamp",
    "schedule_id": "scheduled.schedule_id",
    "due": "scheduled.due",
}
_FILTER: Final[dict[str, Places]] = {
    **_under("filter", "group", "reason", "reason_contains", "key", "since", "until", "origin_partition", "places"),
    "first_offset": "filter.first_origin_offset",
    "last_offset": "filter.last_origin_offset",
}
_PAGE: Final[dict[str, Places]] = {"limit": "page_size", "after": "page_token", "cursor": "page_token"}

# By struct; a struct has the lines of those that it is made from, and its own count first.
FIELDS: Final[Mapping[type, Mapping[str, Places]]] = {
    problems.Problem: {"detail": "message"},
    topics.CreateTopic: {"partitions": "partition_count"},
    topics.AddPartitions: {"topic": "name", "partitions": "partition_count"},
    topics.DescribeTopic: {"topic": "name"},
    topics.AlterTopic: {"topic": "name"},
    topics.DeleteTopic: {"topic": "name"},
    topics.ListTopics: _PAGE,
    topics.TopicList: {"next": "next_page_token"},
    topics.TopicView: {"partitions": "partition_count", "messages": "message_count"},
    topics.TopicDetail: {"partition_details": "partitions"},
    topics.PartitionView: {"leader": At("leader", unset=-1)},
    messages.Publish: TICKET,
    messages.PublishBatch: TICKET,
    messages.PublishReceipt: _PLACED,
    messages.BatchItem: _PLACED,
    messages.Read: {"offset": START, "since": "start.since"},
    messages.MessageView: {"priority": At("priority", default="normal")},
    queues.Receive: {"max": "max_messages", "ack": "ack_receipts"},
    queues.Received: {"acked": "ack_results"},
    queues.QueueMessage: {"lease_until": "lease_expire_time"},
    queues.ReceiptResult: {"status": "outcome"},
    queues.PartView: {"first": "first_offset", "last": "last_offset", "status": "outcome"},
    queues.PeekQueueGroup: {"max": "max_messages"},
    queues.PeekedMessage: {**_under("message", *_MESSAGE), "priority": At("message.priority", default="normal")},
    queues.QueueGroupView: {"paused": "is_paused"},
    queues.LaneView: {"last_served": "last_served_time"},
    queues.DeclareQueueGroup: {"start": START, "since": "start.since"},
    queues.SeekQueueGroup: {"to": START, "since": "start.since"},
    dead_letters.DeadLetterFilter: {
        "first_offset": "first_origin_offset",
        "last_offset": "last_origin_offset",
    },
    dead_letters.ListDeadLetters: {**_FILTER, **_PAGE},
    dead_letters.ListDeadLetterReasons: _FILTER,
    dead_letters.DeadLetterView: {
        **_under("message", *_MESSAGE),
        "priority": At("message.priority", default="normal"),
        "died": "dead_time",
        "origin": INLINE,
    },
    dead_letters.OriginView: {name: f"origin_{name}" for name in ("topic", "partition", "offset", "timestamp")},
    dead_letters.DeadLetterPage: {"topic": "dead_letter_topic", "cursor": "next_page_token"},
    dead_letters.ReasonView: {"count": "message_count", "first": "first_time", "last": "last_time"},
    dead_letters.ReasonList: {"topic": "dead_letter_topic"},
    dead_letters.Redrive: {"by": "requested_by"},
    dead_letters.RedriveReport: {"redrive": "job", "dry_run": "rehearsal"},
    dead_letters.RedrivePlan: {"topic": "dead_letter_topic"},
    dead_letters.RedriveView: {
        "dead_letters": "dead_letter_topic",
        "by": "requested_by",
        "opened": "begin_time",
        "ended": "end_time",
    },
    dead_letters.CancelRedrive: {"redrive": "id"},
    dead_letters.GetRedrive: {"redrive": "id"},
    schedules.AddSchedule: {"schedule": INLINE},
    schedules.Reschedule: {"schedule": "id", "time": INLINE},
    schedules.GetSchedule: {"schedule": "id"},
    schedules.CancelSchedule: {"schedule": "id"},
    schedules.RunSchedule: {"schedule": "id"},
    schedules.ScheduleTime: {
        "at": (At("when.every.first", given="every_ms"), At("when.at")),
        "delay_ms": "when.delay",
        "every_ms": "when.every.period",
        "cron": "when.cron.expression",
        "time_zone": "when.cron.time_zone",
    },
    schedules.NewSchedule: _under("message", "key", "value", "headers", "partition", "priority"),
    schedules.ScheduleView: {
        **_under("message", "key", "value", "headers", "partition", "priority"),
        "every_ms": "every.period",
        "first": "every.first",
        "cron": "cron.expression",
        "time_zone": "cron.time_zone",
    },
    schedules.ListSchedules: _PAGE,
    schedules.ScheduleList: {"next": "next_page_token"},
    schedules.LatenessBucket: {"le_ms": "le_ms"},
    groups.MembershipView: {"state": At("is_rebalancing", true="rebalancing")},
    groups.PolledView: {
        **_under("membership", "group", "member_id", "generation", "partitions"),
        "state": At("membership.is_rebalancing", true="rebalancing"),
        "rebalanced": "is_rebalanced",
    },
    groups.ResetGroup: {"to": START, "since": "start.since"},
    transactions_api.LeaseView: {"expires_at": "expire_time"},
    transactions_api.CommitTransaction: {"key": "idempotency_key"},
    transactions_api.TransactionView: {"started_at": "begin_time"},
    transactions_api.TransactionDetail: {"expires_at": "expire_time"},
}
