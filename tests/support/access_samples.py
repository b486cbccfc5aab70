"""A request for every operation of the table, with names that rules can be written for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from penstock.api.access import AclView
from penstock.api.groups import CommitItem, ReportedOffset
from penstock.api.messages import NewMessage
from penstock.api.operation import Operation, Request, Route, sources_of
from penstock.api.schedules import NewSchedule, ScheduleTime
from penstock.doors.rest.exchange import MSGPACK
from penstock.records import Record, encode_batch

TOPIC = "orders"
GROUP = "workers"
SCHEDULE = "later"
RECEIPT = f"{TOPIC}:0:0:1:1{'0' * 16}"

# By the name of the field; where a request means something else by it, under (request, field).
VALUES: dict[str | tuple[str, str], Any] = {
    "ids": ["no-such-schedule"],
    "topic": TOPIC,
    "topics": [TOPIC],
    "group": GROUP,
    "member_id": "nobody",
    "partition": 0,
    "offset": 0,
    "messages": [NewMessage(value="x")],
    "message": NewMessage(value="x"),
    "batches": [(0, bytearray(encode_batch([Record(0, 1, None, b"x")])))],
    "receipts": [RECEIPT],
    "ack": [RECEIPT],
    "transaction": "t-1",
    "series": "series",
    "number": 1,
    "run": "run",
    "target": TOPIC,
    "redrive": "r-1",
    "schedule": SCHEDULE,
    ("AddSchedule", "schedule"): NewSchedule(topic=TOPIC, value="x", delay_ms=3_600_000),
    "time": ScheduleTime(delay_ms=3_600_000),
    "cron": "0 0 * * *",
    "pipeline": "pipe",
    "name": "made",
    "user": "somebody",
    "password": "a password",
    "acls": [AclView(principal="User:x", action="read", resource="topic", name="x")],
    "role": "reader",
    "principal": "User:x",
    "resource": "topic",
    "key_id": "0" * 16,
    ("CommitGroup", "offsets"): [CommitItem(topic=TOPIC, partition=0, offset=0)],
    ("ReportOffsets", "offsets"): [ReportedOffset(topic=TOPIC, partition=0, offset=0)],
    "node": 99,
    "configs": {"retention.ms": "1000000"},
    ("AddPartitions", "partitions"): 8,
    "state": "running",
    "started_at": datetime(2026, 1, 1, tzinfo=UTC),
    "to": "earliest",
    "quotas": {"producer_byte_rate": 1_000_000_000},
}


def sample(operation: Operation) -> Request[Any]:
    """A request with the fields that it must have, and those that its needs look at."""
    looked_at = {need.name.partition(".")[0] for need in operation.needs if need.name is not None}
    given = {}
    for info in msgspec.structs.fields(operation.request):
        if info.name == "wait_ms":
            given[info.name] = 0
        elif info.required or info.name in looked_at or info.name == "topics":
            key = (operation.request.__name__, info.name)
            given[info.name] = VALUES[key] if key in VALUES else VALUES[info.name]
    return operation.request(**given)


def as_http(operation: Operation, route: Route, request: Request[Any]) -> dict[str, Any]:
    """The request as arguments of an HTTP client's ``request``."""
    sources = sources_of(operation, route)
    path = route.path
    for name in sources.path:
        path = path.replace(f"{{{name}}}", quote(str(getattr(request, name)), safe=""))
    query = {name: getattr(request, name) for name, info in sources.query.items() if _is_given(request, info)}
    headers = {
        operation.headers[name].name: str(getattr(request, name))
        for name, info in sources.headers.items()
        if _is_given(request, info)
    }
    content = b""
    if sources.body and operation.is_body_packed:
        assert operation.body is not None
        content = msgspec.msgpack.encode(getattr(request, operation.body))
        headers["Content-Type"] = MSGPACK
    elif sources.body:
        body = {name: getattr(request, name) for name, info in sources.body.items() if _is_given(request, info)}
        content = msgspec.json.encode(body[operation.body] if operation.body is not None else body)
        headers["Content-Type"] = "application/json"
    return {"method": route.method, "url": path, "params": query, "headers": headers, "content": content}


def _is_given(request: Request[Any], info: msgspec.structs.FieldInfo) -> bool:
    value = getattr(request, info.name)
    return value is not None and value != info.default
