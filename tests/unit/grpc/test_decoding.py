"""Requests that cannot be read are refused by the name of the field that is wrong."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.doors.grpc.decoding import parse
from penstock.grpc.converters import InvalidArgument
from penstock.grpc.generated.messages_pb2 import PublishBatchRequest
from penstock.grpc.generated.queues_pb2 import AckRequest, SubscribeRequest
from penstock.grpc.generated.topics_pb2 import CreateTopicRequest

MARK = "MARK"


def broken(request: object) -> bytes:
    """The request with its marked text spoilt."""
    data: bytes = request.SerializeToString()  # type: ignore[attr-defined]
    assert data.count(MARK.encode()) == 1
    return data.replace(MARK.encode(), b"\xff\xfe\xfd\xfc")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (PublishBatchRequest(topic=MARK), "topic"),
        (PublishBatchRequest(topic="t", messages=[{}, {"headers": [{"name": "n"}, {"name": MARK}]}]), None),
        (AckRequest(topic="t", receipts=["a", MARK, "c"]), "receipts[1]"),
        (SubscribeRequest(subscription={"topic": "t", "consumer": MARK}), "subscription.consumer"),
        (CreateTopicRequest(name="t", configs={"retention.ms": MARK}), "configs[0].value"),
    ],
)
def test_text_that_is_not_utf8_is_named(request_: object, field: str | None) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse(type(request_), broken(request_))  # type: ignore[type-var]
    assert refused.value.message.startswith((field or "messages[1].headers[1].name") + " is text")


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"penstock\.v1\.AckRequest"):
        parse(AckRequest, b"\x0a\xff\xff\xff\xff\x0f")


def test_what_is_fine_is_parsed_and_bytes_may_hold_anything() -> None:
    request = PublishBatchRequest(topic="t", messages=[{"key": b"\xff", "value": b"\x00\xfe"}])
    assert parse(PublishBatchRequest, request.SerializeToString()) == request


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for kind in (PublishBatchRequest, SubscribeRequest, CreateTopicRequest):
        with suppress(InvalidArgument):
            assert isinstance(parse(kind, data), kind)
