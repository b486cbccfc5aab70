"""Requests of every operation as HTTP, made from its row alone, and answers as the type that the row declares."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import msgspec.inspect as types
import pytest

from penstock import errors
from penstock.api.health import Health, IsReady
from penstock.api.messages import PublishBatches, Read
from penstock.api.operation import Operation, Packed, Request, Route, sources_of
from penstock.api.queues import Ack, Receive
from penstock.api.schedules import AddedSchedule, AddSchedule, NewSchedule, RunSchedule, ScheduleView
from penstock.api.table import OPERATIONS
from penstock.client.calls import MSGPACK, Body, answer_of, call_of

EVERY = pytest.mark.parametrize(
    ("operation", "route"),
    [(operation, route) for operation in OPERATIONS for route in operation.routes],
    ids=[route.name for operation in OPERATIONS for route in operation.routes],
)


def sample(info: types.Type, name: str = "x") -> Any:
    """A value that is not the default of any field, as JSON has it."""
    match info:
        case types.Metadata(type=inner):
            return sample(inner, name)
        case types.UnionType(types=members):
            return sample(next(each for each in members if not isinstance(each, types.NoneType)), name)
        case types.StructType(cls=kind, fields=fields):
            taken = {each.encode_name: sample(each.type, each.name) for each in fields}
            return taken if kind.__name__ != "NewMessage" else {"key": "k", "value": {"a": 1}, "partition": 2}
        case types.ListType(item_type=item) | types.VarTupleType(item_type=item):
            return [sample(item)]
        case types.TupleType(item_types=items):
            return [sample(each) for each in items]
        case types.DictType(value_type=value):
            return {"retention.ms": sample(value)}
        case types.LiteralType(values=values):
            return values[-1]
        case types.IntType(ge=least):
            return max(7, least or 0)
        case types.FloatType():
            return 1.5
        case types.BoolType():
            return True
        case types.DateTimeType():
            return "2026-01-31T12:00:00Z"
        case types.BytesType() | types.ByteArrayType():
            return "eA=="
        case types.StrType(pattern=pattern) if pattern is not None and "d{1,9}" in pattern:
            return "0,2"
        case types.StrType(pattern=pattern) if pattern is not None:
            return f"{name}/ &=1%"
        case types.StrType():
            return f"{name}/ü&=1"
        case types.RawType():
            return {"a": 1}
    raise AssertionError(f"what is a sample of {info}?")


def full(operation: Operation, route: Route) -> Request[Any]:
    """A request with every field that the route takes, none of which has its default."""
    struct = types.type_info(operation.request)
    assert isinstance(struct, types.StructType)
    given = {each.name: sample(each.type, each.name) for each in struct.fields if each.name not in route.omits}
    given |= {each.name: not each.default for each in struct.fields if isinstance(each.default, bool)}
    if operation.is_body_packed:
        given["batches"] = [(1, bytearray(b"abc")), (300, bytearray(b"de"))]
        return msgspec.convert(given, operation.request)
    return msgspec.json.decode(msgspec.json.encode(given), type=operation.request)


def whole(body: Body) -> bytes:
    return bytes(body) if isinstance(body, bytes | bytearray) else b"".join(map(bytes, body))


@EVERY
def test_every_field_arrives_where_the_row_says(operation: Operation, route: Route) -> None:
    request, sources = full(operation, route), sources_of(operation, route)
    call = call_of(request)
    parts = urlsplit(call.target)
    in_path = re.fullmatch(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", route.path), parts.path)
    assert (call.method, in_path is not None) == (route.method, True)
    assert in_path is not None
    found: dict[str, Any] = {name: unquote(text) for name, text in in_path.groupdict().items()}
    in_query = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    assert set(in_query) == set(sources.query)
    in_headers = dict(call.headers)
    assert set(in_headers) == {operation.headers[name].name.lower().encode() for name in sources.headers}
    found |= in_query
    found |= {name: in_headers[operation.headers[name].name.lower().encode()].decode() for name in sources.headers}
    if sources.body:
        codec = msgspec.msgpack if operation.is_body_packed else msgspec.json
        body = codec.decode(whole(call.body))
        found |= body if operation.body is None else {operation.body: body}
        assert operation.body is not None or set(body) == set(sources.body)
    else:
        assert whole(call.body) == b""
    if operation.is_body_packed:
        assert msgspec.convert(found, operation.request, strict=False) == request
    else:
        again = msgspec.json.decode(msgspec.json.encode(found), type=operation.request, strict=False)
        assert msgspec.json.encode(again) == msgspec.json.encode(request)


def test_what_has_its_default_is_not_sent() -> None:
    assert call_of(Receive(topic="t")).body == b"{}"
    assert call_of(Read(topic="t")).target == "/v1/topics/t/messages"


def test_the_route_is_the_one_whose_names_are_given() -> None:
    assert call_of(Ack(topic="t", group="g", receipts=["r"])).target == "/v1/queues/t/ack"
    assert call_of(Ack(group="g", receipts=["r"])).target == "/v1/groups/g/ack"
    with pytest.raises(errors.InvalidRequest, match="empty"):
        call_of(Ack(topic="", receipts=["r"]))


def test_a_call_knows_how_long_the_node_may_wait_and_whether_it_can_be_repeated() -> None:
    assert call_of(Receive(topic="t", wait_ms=2_500)).wait_s == 2.5
    assert call_of(Read(topic="t", timeout_ms=1_500)).wait_s == 1.5
    assert call_of(Receive(topic="t")).can_repeat
    assert not call_of(RunSchedule(schedule="x")).can_repeat


def test_one_batch_and_many_are_packed_so_that_a_node_need_not_copy_them() -> None:
    """The forms that `penstock.doors.rest.binary` looks for."""
    batch = bytearray(b"abc")
    one = call_of(PublishBatches(topic="t", batches=[(5, batch)]))
    assert whole(one.body) == b"\xdd\0\0\0\x01\x92\x05\xc6\0\0\0\x03abc"
    assert one.body[-1] is batch
    many = call_of(PublishBatches(topic="t", batches=[(5, batch), (6, batch)]))
    assert whole(many.body) == b"\xdd\0\0\0\x02" + b"".join(
        b"\x92\xce\0\0\0%c\xc6\0\0\0\x03abc" % partition for partition in (5, 6)
    )
    assert one.accept == one.content_type == MSGPACK


def test_a_status_above_400_can_be_an_answer() -> None:
    assert call_of(IsReady()).answers == {503}
    told = Health(status="unready", reasons=[], warnings=[], node_id=1, version="x", uptime_ms=1, partitions=0)
    assert answer_of(IsReady(), 503, msgspec.json.encode(told)) == told


def test_a_status_says_what_the_body_leaves_out() -> None:
    schedule = ScheduleView(id="x", topic="t", due=None, state="pending", runs=0, created=None, partition=None)
    request, body = AddSchedule(schedule=NewSchedule(topic="t")), msgspec.json.encode(schedule)
    assert answer_of(request, 201, body) == AddedSchedule(schedule=schedule, is_new=True)
    assert answer_of(request, 200, body) == AddedSchedule(schedule=schedule, is_new=False)
    with pytest.raises(errors.UnexpectedAnswer):
        answer_of(request, 202, body)


def test_an_answer_that_is_packed_comes_as_it_is() -> None:
    assert answer_of(PublishBatches(topic="t", batches=[]), 200, b"\x90") == Packed((b"\x90",))


def test_an_answer_of_another_kind_is_an_error() -> None:
    with pytest.raises(errors.UnexpectedAnswer):
        answer_of(Read(topic="t"), 200, b'{"messages": 1}')
