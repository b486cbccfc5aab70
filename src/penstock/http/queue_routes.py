"""The operations on queues, in two tables: those that move messages, and those that steer groups."""

from __future__ import annotations

from typing import Final

from penstock.http import binary, homes, queue_figures, queue_lanes, queue_types, queues, websocket
from penstock.http.exchange import MSGPACK
from penstock.http.joint import TICKET_HEADERS
from penstock.http.operation import Handler, Operation

_QUEUE_ERRORS: Final = (400, 403, 404, 408, 413, 422, 503, 504, 507)
_RECEIPT_ERRORS: Final = (400, 403, 404, 408, 409, 413, 422, 503, 504, 507)


def _receipts(path: str, handler: Handler) -> Operation:
    """An operation that answers what became of each receipt."""
    return Operation(
        "POST",
        path,
        handler,
        "queues",
        queue_types.ReceiptResults,
        also=(207,),
        errors=_RECEIPT_ERRORS,
    )


HOT_QUEUE_OPERATIONS: Final = (
    Operation("GET", "/v1/ws", websocket.open_websocket, "messages", None, 101, errors=(400, 403, 426, 503)),
    Operation(
        "POST",
        "/v1/topics/{topic}/batches",
        binary.publish_batches,
        "messages",
        media_type=MSGPACK,
        body_media_type=MSGPACK,
        errors=(400, 403, 404, 408, 409, 413, 415, 422, 503, 507),
        headers=TICKET_HEADERS[:2],
        home=homes.TICKET,
    ),
    Operation(
        "POST",
        "/v1/queues/{topic}/receive",
        queues.receive_messages,
        "queues",
        queue_types.Received,
        also=(207,),
        also_as=MSGPACK,
        errors=_QUEUE_ERRORS,
        is_body_optional=True,
    ),
    _receipts("/v1/queues/{topic}/ack", queues.ack_messages),
    _receipts("/v1/queues/{topic}/nack", queues.nack_messages),
    _receipts("/v1/queues/{topic}/reject", queues.reject_messages),
    _receipts("/v1/queues/{topic}/extend", queues.extend_messages),
    _receipts("/v1/queues/{topic}/release", queues.release_messages),
    _receipts("/v1/groups/{group}/ack", queues.ack_group),
    _receipts("/v1/groups/{group}/nack", queues.nack_group),
    _receipts("/v1/groups/{group}/reject", queues.reject_group),
    _receipts("/v1/groups/{group}/extend", queues.extend_group),
    _receipts("/v1/groups/{group}/release", queues.release_group),
)


def _group(method: str, tail: str, handler: Handler, *, is_body_optional: bool = False) -> Operation:
    """An operation on one group that answers how the group stands."""
    return Operation(
        method,
        f"/v1/queues/{{topic}}/groups/{{group}}{tail}",
        handler,
        "queues",
        queue_figures.QueueGroupView,
        errors=_QUEUE_ERRORS,
        is_body_optional=is_body_optional,
    )


QUEUE_OPERATIONS: Final = (
    Operation("GET", "/v1/ws", websocket.open_websocket, "messages", None, 101, errors=(400, 403, 426, 503)),
    Operation("POST", "/v1/producers", binary.create_producer, "messages", binary.ProducerView, errors=(403, 503)),
    Operation("GET", "/v1/queues", queues.list_queues, "queues", queue_figures.QueueList, errors=(503,)),
    Operation("GET", "/v1/queues/{topic}", queues.describe_queue, "queues", queue_figures.QueueView, errors=(404, 503)),
    Operation(
        "GET",
        "/v1/queues/{topic}/lanes",
        queue_lanes.describe_lanes,
        "queues",
        queue_lanes.LanesView,
        errors=(400, 404, 503),
    ),
    Operation(
        "POST",
        "/v1/queues/{topic}/purge",
        queues.purge_queue,
        "queues",
        queue_figures.QueueGroupView,
        errors=_QUEUE_ERRORS,
        is_body_optional=True,
    ),
    _group("GET", "", queues.describe_queue_group),
    _group("PUT", "", queues.declare_queue_group, is_body_optional=True),
    Operation(
        "DELETE",
        "/v1/queues/{topic}/groups/{group}",
        queues.forget_queue_group,
        "queues",
        None,
        204,
        errors=(403, 404, 503, 507),
    ),
    _group("POST", "/pause", queues.pause_queue_group, is_body_optional=True),
    _group("POST", "/resume", queues.resume_queue_group),
    _group("POST", "/seek", queues.seek_queue_group),
    Operation(
        "GET",
        "/v1/queues/{topic}/groups/{group}/peek",
        queues.peek_queue_group,
        "queues",
        queue_types.PeekedMessages,
        errors=(400, 404, 503),
    ),
)
