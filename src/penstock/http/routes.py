"""Every operation of the door, in one table. Hot ones stand first, because routes are tried in order."""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec

from penstock.http import (
    admin,
    batches,
    groups,
    health,
    homes,
    membership,
    messages,
    metrics,
    offsets,
    queue_types,
    status_page,
    topics,
    transactions,
)
from penstock.http.cluster_routes import CLUSTER_OPERATIONS
from penstock.http.dead_letters import DEAD_LETTER_OPERATIONS
from penstock.http.description import describe
from penstock.http.door import Door
from penstock.http.exchange import JSON, MSGPACK, Call, Reply
from penstock.http.joint import IDEMPOTENCY_HEADERS, TICKET_HEADERS, WRITER_HEADERS
from penstock.http.message_types import BatchReceipt, MessagesPage, PublishReceipt
from penstock.http.operation import Operation
from penstock.http.pipelines import PIPELINE_OPERATIONS
from penstock.http.queue_routes import HOT_QUEUE_OPERATIONS, QUEUE_OPERATIONS
from penstock.http.schedules import SCHEDULE_OPERATIONS
from penstock.http.series import SERIES_OPERATIONS
from penstock.http.storage import STORAGE_OPERATIONS


async def openapi(_door: Door, _call: Call[None, None]) -> Reply:
    """This description, after OpenAPI 3.1."""
    return Reply(200, _described(), JSON, [])


@cache
def _described() -> bytes:
    return msgspec.json.encode(describe(OPERATIONS))


_WRITE_ERRORS: Final = (400, 403, 404, 408, 409, 413, 422, 503, 504, 507)
_END_ERRORS: Final = (400, 404, 408, 409, 413, 422, 503, 504, 507)
_MEMBER_ERRORS: Final = (400, 403, 404, 408, 409, 413, 422, 503)
_TOPIC_ERRORS: Final = (400, 403, 404, 408, 413, 422, 503, 507)

OPERATIONS: Final = (
    Operation(
        "POST",
        "/v1/topics/{topic}/publish",
        messages.publish_message,
        "messages",
        PublishReceipt,
        errors=_WRITE_ERRORS,
        headers=TICKET_HEADERS,
        home=homes.TICKET,
    ),
    Operation(
        "POST",
        "/v1/topics/{topic}/batch",
        messages.publish_batch,
        "messages",
        BatchReceipt,
        also=(207,),
        errors=_WRITE_ERRORS,
        headers=TICKET_HEADERS,
        home=homes.TICKET,
    ),
    *HOT_QUEUE_OPERATIONS,
    Operation(
        "GET", "/v1/topics/{topic}/messages", messages.read, "messages", MessagesPage, errors=(400, 404, 416, 500, 503)
    ),
    Operation(
        "POST",
        "/v1/groups/{group}/poll",
        membership.poll_group,
        "groups",
        membership.PolledView,
        also_as=MSGPACK,
        errors=(*_MEMBER_ERRORS, 500),
        home=homes.GROUP,
    ),
    Operation(
        "GET",
        "/v1/topics/{topic}/partitions/{partition}/batches",
        batches.read_batches,
        "messages",
        None,
        media_type=MSGPACK,
        errors=(400, 404, 416, 500, 503),
        home=batches.LEADER,
    ),
    Operation(
        "POST",
        "/v1/offsets",
        offsets.find_offsets,
        "messages",
        offsets.OffsetsAnswer,
        errors=(400, 408, 413, 422, 503),
    ),
    Operation("GET", "/v1/topics", topics.list_topics, "topics", topics.TopicList, errors=(400,)),
    Operation(
        "POST", "/v1/topics", topics.create_topic, "topics", topics.TopicDetail, 201, errors=(*_TOPIC_ERRORS, 409)
    ),
    Operation("GET", "/v1/topics/{topic}", topics.describe_topic, "topics", topics.TopicDetail, errors=(404,)),
    Operation("PATCH", "/v1/topics/{topic}", topics.alter_topic, "topics", topics.TopicDetail, errors=_TOPIC_ERRORS),
    Operation("DELETE", "/v1/topics/{topic}", topics.delete_topic, "topics", None, 204, errors=(403, 404, 503)),
    Operation(
        "POST",
        "/v1/topics/{topic}/partitions",
        topics.add_partitions,
        "topics",
        topics.TopicDetail,
        errors=_TOPIC_ERRORS,
    ),
    Operation("GET", "/v1/groups", groups.list_groups, "groups", groups.GroupList, errors=(503,)),
    Operation(
        "GET",
        "/v1/groups/{group}",
        groups.describe_group,
        "groups",
        groups.GroupDetail,
        errors=(404, 503),
        home=homes.GROUP,
    ),
    Operation(
        "DELETE",
        "/v1/groups/{group}",
        groups.delete_group,
        "groups",
        None,
        204,
        errors=(403, 404, 409, 503),
        home=homes.GROUP,
    ),
    Operation(
        "POST",
        "/v1/groups/{group}/reset",
        groups.reset_group,
        "groups",
        groups.ResetResult,
        errors=(400, 403, 404, 408, 409, 413, 416, 422, 503, 507),
        home=homes.GROUP,
    ),
    Operation(
        "DELETE",
        "/v1/groups/{group}/offsets",
        groups.delete_group_offsets,
        "groups",
        groups.DeletedOffsets,
        errors=(400, 403, 404, 409, 503),
        home=homes.GROUP,
    ),
    Operation(
        "POST",
        "/v1/groups/{group}/offsets",
        offsets.report_offsets,
        "groups",
        offsets.ReportedView,
        errors=(*_MEMBER_ERRORS, 507),
        home=homes.NEW_GROUP,
    ),
    Operation(
        "POST",
        "/v1/groups/{group}/join",
        membership.join_group,
        "groups",
        membership.MembershipView,
        errors=(*_MEMBER_ERRORS, 507),
        home=homes.NEW_GROUP,
    ),
    Operation(
        "POST",
        "/v1/groups/{group}/commit",
        membership.commit_group,
        "groups",
        membership.CommittedView,
        errors=(*_MEMBER_ERRORS, 416),
        home=homes.GROUP,
    ),
    Operation(
        "POST",
        "/v1/groups/{group}/heartbeat",
        membership.heartbeat_group,
        "groups",
        membership.MembershipView,
        errors=_MEMBER_ERRORS,
        home=homes.GROUP,
    ),
    Operation(
        "POST",
        "/v1/groups/{group}/leave",
        membership.leave_group,
        "groups",
        None,
        204,
        errors=_MEMBER_ERRORS,
        home=homes.GROUP,
    ),
    Operation(
        "GET",
        "/v1/transactions",
        transactions.list_transactions,
        "transactions",
        transactions.TransactionList,
        errors=(400, 503),
    ),
    Operation(
        "POST",
        "/v1/transactions",
        transactions.open_transaction,
        "transactions",
        transactions.LeaseView,
        201,
        errors=(400, 408, 413, 422, 429, 503, 507),
        is_body_optional=True,
        home=homes.NEW_TRANSACTION,
    ),
    Operation(
        "GET",
        "/v1/transactions/{transaction}",
        transactions.describe_transaction,
        "transactions",
        transactions.TransactionDetail,
        errors=(400, 404, 503),
        home=homes.TRANSACTION,
    ),
    Operation(
        "POST",
        "/v1/transactions/{transaction}/extend",
        transactions.extend_transaction,
        "transactions",
        transactions.LeaseView,
        errors=_END_ERRORS,
        is_body_optional=True,
        home=homes.TRANSACTION,
    ),
    Operation(
        "POST",
        "/v1/transactions/{transaction}/ack",
        transactions.ack_in_transaction,
        "transactions",
        queue_types.ReceiptResults,
        also=(207,),
        errors=_END_ERRORS,
        headers=WRITER_HEADERS,
        home=homes.TRANSACTION,
    ),
    Operation(
        "POST",
        "/v1/transactions/{transaction}/commit",
        transactions.commit_transaction,
        "transactions",
        transactions.EndView,
        errors=_END_ERRORS,
        headers=IDEMPOTENCY_HEADERS,
        is_body_optional=True,
        home=homes.TRANSACTION,
    ),
    Operation(
        "POST",
        "/v1/transactions/{transaction}/abort",
        transactions.abort_transaction,
        "transactions",
        transactions.EndView,
        errors=_END_ERRORS,
        home=homes.TRANSACTION,
    ),
    *SERIES_OPERATIONS,
    *QUEUE_OPERATIONS,
    *SCHEDULE_OPERATIONS,
    *PIPELINE_OPERATIONS,
    *DEAD_LETTER_OPERATIONS,
    *CLUSTER_OPERATIONS,
    *STORAGE_OPERATIONS,
    Operation("GET", "/livez", health.livez, "health", health.Liveness),
    Operation("GET", "/readyz", health.readyz, "health", health.Health, also=(503,)),
    Operation("GET", "/metrics", metrics.metrics, "health", None, media_type="text/plain"),
    Operation("GET", "/v1/admin/health", health.health, "admin", health.Health),
    Operation("GET", "/v1/admin/metrics", admin.metrics, "admin", admin.MetricsView),
    Operation("GET", "/v1/admin/cluster", admin.cluster, "admin", admin.ClusterView),
    Operation("GET", "/openapi.json", openapi, "description", None),
    Operation("GET", "/", status_page.page, "description", None, media_type="text/html"),
    Operation("GET", "/static/{file}", status_page.asset, "description", None, media_type="*/*", errors=(404,)),
)
