"""Structs survive the way to protobuf and back; values that make no sense are refused by the name of their field."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect as types

from penstock.api.dead_letters import DeadLetterFilter, ListDeadLetters
from penstock.api.groups import MembershipView
from penstock.api.messages import BatchItem, NewMessage, Publish, PublishBatch, PublishReceipt, instant, view_of
from penstock.api.problems import problem_of
from penstock.api.queues import Nack, ReceiptResult, Receive, SeekQueueGroup
from penstock.api.schedules import AddSchedule, NewSchedule
from penstock.api.table import OPERATIONS
from penstock.api.topics import AlterTopic, PartitionView
from penstock.errors import NotLeader
from penstock.features.queues.core.messages import ReceiptOutcome
from penstock.grpc.converters import InvalidArgument, answer_of, decode, encode, words_of
from penstock.grpc.generated import (
    dead_letters_pb2,
    groups_pb2,
    message_pb2,
    messages_pb2,
    queues_pb2,
    schedules_pb2,
    topics_pb2,
)
from penstock.grpc.pool import generated_pool
from penstock.grpc.shapes import Rpc, rpcs_of
from penstock.operations.messages import message_of
from penstock.records import Record

RPCS = rpcs_of(OPERATIONS)


def descriptor(name: str) -> Any:
    return generated_pool().FindMessageTypeByName(f"penstock.v1.{name}")


def sample_of(kind: type[msgspec.Struct]) -> Any:
    """A value with every field set."""
    return msgspec.convert(_sample(types.type_info(kind)), kind)


def _sample(info: types.Type) -> Any:
    match info:
        case types.Metadata(type=inner):
            return _sample(inner)
        case types.UnionType(types=several):
            return _sample(next(each for each in several if not isinstance(each, types.NoneType)))
        case types.StructType(fields=fields):
            return {each.encode_name: _sample(each.type) for each in fields}
        case types.ListType(item_type=item) | types.VarTupleType(item_type=item):
            return [_sample(item)]
        case types.TupleType(item_types=items):
            return [_sample(item) for item in items]
        case types.DictType(value_type=value):
            return {"a": _sample(value)}
        case types.LiteralType(values=values):
            return values[-1]
        case types.IntType(ge=low):
            return max(low or 0, 1)
        case types.StrType(pattern=pattern):
            return "1" if pattern else "x"
    samples: dict[type, Any] = {
        types.FloatType: 0.5,
        types.BoolType: True,
        types.BytesType: b"\xff",
        types.RawType: msgspec.Raw(b'"x"'),
        types.DateTimeType: datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC),
    }
    return samples[type(info)]


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
def test_every_message_of_every_method_can_be_converted(rpc: Rpc) -> None:
    asked = sample_of(rpc.request)
    sent = encode(asked, descriptor(rpc.request_message))
    assert encode(decode(rpc.request, sent), sent.DESCRIPTOR) == sent
    if rpc.answer is not None:
        told = encode(sample_of(rpc.answer), descriptor(rpc.answer_message))
        assert encode(answer_of(rpc.answer, told), told.DESCRIPTOR) == told


def test_zero_and_empty_stand_for_the_tables_default() -> None:
    request = decode(Receive, queues_pb2.ReceiveRequest(topic="t"))
    assert request == Receive(topic="t")
    assert (request.group, request.max, request.wait_ms) == ("default", 10, 0)


@given(st.integers(0, 60_000))
def test_milliseconds_survive_the_way_out_and_in(milliseconds: int) -> None:
    request = Receive(topic="t", wait_ms=milliseconds)
    assert decode(Receive, encode(request, descriptor("ReceiveRequest"))) == request


def test_less_than_a_millisecond_is_not_nothing() -> None:
    assert decode(Receive, queues_pb2.ReceiveRequest(topic="t", wait=Duration(nanos=1))).wait_ms == 1


@pytest.mark.parametrize(
    "value",
    [Duration(seconds=-1), Duration(nanos=-2_000_000), Duration(seconds=1 << 50), Duration(nanos=2_000_000_000)],
)
def test_durations_that_make_no_sense_are_named(value: Duration) -> None:
    with pytest.raises(InvalidArgument, match=r"^delay"):
        decode(Nack, queues_pb2.NackRequest(receipts=["x"], delay=value))


@pytest.mark.parametrize("value", [Timestamp(seconds=-5), Timestamp(nanos=-1), Timestamp(seconds=1 << 60)])
def test_instants_that_make_no_sense_are_named(value: Timestamp) -> None:
    with pytest.raises(InvalidArgument, match=r"timestamp is"):
        decode(Publish, messages_pb2.PublishRequest(topic="t", message={"timestamp": value}))


def test_what_is_out_of_range_is_told_by_protobufs_name() -> None:
    request = messages_pb2.PublishBatchRequest(topic="t", messages=[{}, {"partition": -1}])
    with pytest.raises(InvalidArgument, match=r"^messages\[1\]\.partition: Expected `int` >= 0\.$"):
        decode(PublishBatch, request)
    with pytest.raises(InvalidArgument, match=r"^max_messages: "):
        decode(Receive, queues_pb2.ReceiveRequest(topic="t", max_messages=-1))
    wanted = dead_letters_pb2.DeadLetterFilter(first_origin_offset=-1)
    with pytest.raises(InvalidArgument, match=r"^filter\.first_origin_offset: "):
        decode(ListDeadLetters, dead_letters_pb2.ListDeadLettersRequest(topic="t", filter=wanted))


def test_a_missing_text_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"^topic is missing\.$"):
        decode(Receive, queues_pb2.ReceiveRequest())
    with pytest.raises(InvalidArgument, match=r"^ticket\.transaction is missing\.$"):
        decode(Publish, messages_pb2.PublishRequest(topic="t", message={}, ticket={}))


def test_a_field_that_means_nothing_here_is_refused() -> None:
    request = schedules_pb2.AddScheduleRequest(
        topic="t", message={"delay": {"seconds": 1}}, when={"at": {"seconds": 9}}
    )
    with pytest.raises(InvalidArgument, match=r"message\.delay is not taken here"):
        decode(AddSchedule, request)


def test_starts() -> None:
    def start(**fields: Any) -> tuple[Any, Any]:
        found = decode(SeekQueueGroup, queues_pb2.SeekGroupRequest(topic="t", start=fields))
        assert decode(SeekQueueGroup, encode(found, descriptor("SeekGroupRequest"))) == found
        return found.to, found.since

    assert start(end=message_pb2.LOG_END_LATEST) == ("latest", None)
    assert start(end=message_pb2.LOG_END_EARLIEST) == ("earliest", None)
    assert start(offset=0) == (0, None)
    assert start(since={"seconds": 2}) == (None, datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC))
    for wrong in ({"offset": -1}, {"end": message_pb2.LOG_END_UNSPECIFIED}, {"end": 9}):
        with pytest.raises(InvalidArgument, match=r"start\.offset"):
            start(**wrong)


def test_a_message_keeps_its_bytes_and_the_order_of_its_headers() -> None:
    headers = [("a", b"1"), ("b", b"\xff"), ("a", None), ("c", b"")]
    sent = message_pb2.Message(
        key=b"\xfe", value=b"\x00", headers=[{"name": name, "value": value} for name, value in headers]
    )
    request = decode(Publish, messages_pb2.PublishRequest(topic="t", message=sent))
    again = msgspec.json.decode(msgspec.json.encode(request), type=Publish)  # as it goes from node to node
    message = message_of(again.message, 0)
    assert (message.key, message.value, list(message.headers)) == (b"\xfe", b"\x00", headers)
    view = view_of(Record(0, 1_000, message.key, message.value, message.headers))
    again_view = msgspec.json.decode(msgspec.json.encode(view), type=type(view))
    stored: Any = encode(again_view, descriptor("StoredMessage"))
    assert list(stored.headers) == list(sent.headers)
    assert (stored.key, stored.value, stored.priority) == (sent.key, sent.value, "normal")


def test_no_value_is_not_an_empty_one() -> None:
    for sent, value in ((message_pb2.Message(), None), (message_pb2.Message(value=b""), b"")):
        request = decode(Publish, messages_pb2.PublishRequest(topic="t", message=sent))
        assert message_of(request.message, 0).value == value


def test_settings_are_set_and_unset_and_never_both() -> None:
    request = topics_pb2.UpdateTopicRequest(name="t", configs={"a": "1"}, unset_configs=["b"])
    assert decode(AlterTopic, request) == AlterTopic(topic="t", configs={"a": "1", "b": None})
    assert encode(decode(AlterTopic, request), request.DESCRIPTOR) == request
    with pytest.raises(InvalidArgument, match="both name 'a'"):
        decode(AlterTopic, topics_pb2.UpdateTopicRequest(name="t", configs={"a": "1"}, unset_configs=["a"]))


def test_a_schedule_has_its_message_and_its_time_where_protobuf_has_them() -> None:
    wanted = NewSchedule(topic="t", value_base64=b"x", every_ms=60_000, at=5_000, id="i", missed="all")
    sent: Any = encode(AddSchedule(schedule=wanted), descriptor("AddScheduleRequest"))
    assert (sent.when.every.period.seconds, sent.when.every.first.seconds) == (60, 5)
    assert (sent.message.value, sent.id, sent.missed) == (b"x", "i", schedules_pb2.MISSED_ALL)
    assert decode(AddSchedule, sent).schedule == wanted


def test_a_receipt_is_for_now_or_for_later_or_an_error() -> None:
    for item, kind in (
        (BatchItem(topic="t", partition=0, offset=0, timestamp=instant(1)), "receipt"),
        (BatchItem(topic="t", schedule_id="s", due=instant(1)), "scheduled"),
        (BatchItem(error=problem_of(NotLeader("It moved."), "/")), "error"),
    ):
        told: Any = encode(item, descriptor("PublishResult"))
        assert told.WhichOneof("result") == kind
    told = encode(PublishReceipt(topic="t", partition=0, offset=0, timestamp=None), descriptor("PublishResponse"))
    assert told.HasField("receipt")
    assert not told.HasField("scheduled")


def test_every_fate_has_an_outcome_of_its_name() -> None:
    assert words_of(queues_pb2.Outcome.DESCRIPTOR).keys() == {fate.value for fate in ReceiptOutcome}
    result = ReceiptResult(receipt="r", status="failed", error=problem_of(NotLeader("It moved."), "/"))
    told: Any = encode(result, descriptor("SettleResult"))
    assert told.outcome == queues_pb2.OUTCOME_UNSPECIFIED
    assert (told.error.code, told.error.message, told.error.retriable) == ("not_leader", "It moved.", True)


def test_values_that_stand_for_something_else() -> None:
    standing = MembershipView(group="g", member_id="m", generation=1, state="rebalancing", partitions=[])
    told: Any = encode(standing, descriptor("Membership"))
    assert told.is_rebalancing
    assert answer_of(MembershipView, groups_pb2.Membership(group="g", member_id="m", generation=1)).state == "stable"
    empty = answer_of(PartitionView, topics_pb2.Partition())
    nobody = msgspec.structs.replace(empty, leader=-1)
    assert not encode(nobody, descriptor("Partition")).HasField("leader")


def test_a_filter_by_a_key_that_is_no_text() -> None:
    wanted = DeadLetterFilter(key_base64=b"\xff", first_offset=3)
    sent: Any = encode(wanted, descriptor("DeadLetterFilter"))
    assert (sent.key, sent.first_origin_offset) == (b"\xff", 3)
    assert decode(DeadLetterFilter, sent) == wanted


def test_a_new_message_is_taken_back_as_it_was() -> None:
    message = NewMessage(key_base64=b"k", value_base64=b"v", partition=3, delay_ms=5, schedule_id="s", priority="high")
    assert decode(NewMessage, encode(message, descriptor("Message"))) == message


def test_enums_hold_every_word_that_the_table_has() -> None:
    for rpc in RPCS:
        for field in descriptor(rpc.request_message).fields:
            if field.type == FieldDescriptor.TYPE_ENUM:
                assert words_of(field.enum_type)
