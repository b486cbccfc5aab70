"""What the gRPC door of a real node refuses, and how it says so."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from grpc import StatusCode
from tests.support.grpc_client import T_S, GrpcClient, check_refused, refusal
from tests.support.node import Node

from penstock.grpc.generated import groups_pb2, messages_pb2, queues_pb2, topics_pb2, transactions_pb2


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[GrpcClient]:
    made = GrpcClient(node.grpc)
    yield made
    made.channel.close()


# -- bad input ---------------------------------------------------------------------------------------------------------

BAD: list[tuple[str, Any, str]] = [
    ("topics.CreateTopic", topics_pb2.CreateTopicRequest(), "name is missing"),
    ("topics.CreateTopic", topics_pb2.CreateTopicRequest(name="t", partition_count=-1), "partition_count:"),
    ("topics.CreateTopic", topics_pb2.CreateTopicRequest(name="t", replication_factor=0), "replication_factor:"),
    ("topics.CreateTopic", topics_pb2.CreateTopicRequest(name="no spaces here"), "no spaces here"),
    ("topics.CreateTopic", topics_pb2.CreateTopicRequest(name="t", configs={"no.such": "1"}), "no.such"),
    ("topics.ListTopics", topics_pb2.ListTopicsRequest(page_size=-1), "page_size:"),
    ("messages.Publish", messages_pb2.PublishRequest(topic="t"), "message is missing"),
    ("messages.Publish", messages_pb2.PublishRequest(message={}), "topic is missing"),
    ("messages.Publish", messages_pb2.PublishRequest(topic="t", message={"partition": -1}), "message.partition:"),
    (
        "messages.Publish",
        messages_pb2.PublishRequest(topic="t", message={"timestamp": {"seconds": -1}}),
        "message.timestamp is before 1970",
    ),
    ("messages.Publish", messages_pb2.PublishRequest(topic="t", message={}, partitioner=9), "'9'"),
    (
        "messages.Publish",
        messages_pb2.PublishRequest(topic="t", message={}, ticket={}),
        "ticket.transaction is missing",
    ),
    ("messages.PublishBatch", messages_pb2.PublishBatchRequest(topic="t"), "messages is missing"),
    (
        "messages.PublishBatch",
        messages_pb2.PublishBatchRequest(topic="t", messages=[{}] * 10_001),
        "messages: Expected `array` of length <= 10000",
    ),
    ("messages.Read", messages_pb2.ReadRequest(topic="t", partition=-1), "partition:"),
    ("messages.Read", messages_pb2.ReadRequest(topic="t", limit=-1), "limit:"),
    ("messages.Read", messages_pb2.ReadRequest(topic="t", start={"offset": -7}), "start.offset:"),
    ("queues.Receive", queues_pb2.ReceiveRequest(), "topic is missing"),
    ("queues.Receive", queues_pb2.ReceiveRequest(topic="t", max_messages=-1), "max_messages:"),
    ("queues.Receive", queues_pb2.ReceiveRequest(topic="t", max_messages=10_001), "max_messages:"),
    ("queues.Receive", queues_pb2.ReceiveRequest(topic="t", wait={"seconds": -1}), "wait:"),
    ("queues.Receive", queues_pb2.ReceiveRequest(topic="t", wait={"seconds": 61}), "wait:"),
    (
        "queues.Receive",
        queues_pb2.ReceiveRequest(topic="t", visibility_timeout={"seconds": -3}),
        "visibility_timeout:",
    ),
    ("queues.Receive", queues_pb2.ReceiveRequest(topic="t", visibility_timeout={}), "visibility_timeout:"),
    ("queues.Ack", queues_pb2.AckRequest(), "receipts is missing"),
    ("queues.Ack", queues_pb2.AckRequest(receipts=["x"] * 10_001), "receipts: Expected `array` of length <= 10000"),
    ("queues.Nack", queues_pb2.NackRequest(receipts=["x"], delay={"seconds": -1}), "delay:"),
    ("queues.Extend", queues_pb2.ExtendRequest(receipts=["x"], visibility_timeout={}), "visibility_timeout:"),
    ("queues.SeekGroup", queues_pb2.SeekGroupRequest(topic="t", start={"offset": -1}), "start.offset:"),
    ("groups.Join", groups_pb2.JoinRequest(topics=["t"]), "group is missing"),
    ("groups.Join", groups_pb2.JoinRequest(group="g"), "topics is missing"),
    ("groups.Commit", groups_pb2.CommitRequest(group="g"), "name `offsets`"),
    (
        "groups.Commit",
        groups_pb2.CommitRequest(group="g", offsets=[{"topic": "t", "offset": -1}]),
        "offsets[0].offset:",
    ),
    ("transactions.CommitTransaction", transactions_pb2.CommitTransactionRequest(), "transaction is missing"),
    (
        "transactions.BeginTransaction",
        transactions_pb2.BeginTransactionRequest(timeout={"seconds": -1}),
        "timeout:",
    ),
]


@pytest.mark.parametrize(("method", "request_", "part"), BAD, ids=[f"{name}: {part}" for name, _, part in BAD])
def test_values_that_make_no_sense_are_refused_by_name(
    client: GrpcClient, method: str, request_: Any, part: str
) -> None:
    service, _, name = method.partition(".")
    call = getattr(getattr(client, service), name)
    ended: Any = refusal(lambda: call(request_, timeout=T_S))
    assert ended.code() is StatusCode.INVALID_ARGUMENT, ended
    assert part in ended.details()


def test_text_that_is_not_utf8_is_refused_by_the_name_of_its_field(client: GrpcClient) -> None:
    call = client.channel.unary_unary("/penstock.v1.Messages/Publish")
    check_refused(
        lambda: call(b"\x0a\x02\xff\xff", timeout=T_S), StatusCode.INVALID_ARGUMENT, "invalid_argument", "topic is text"
    )
    check_refused(
        lambda: call(b"\xff" * 20, timeout=T_S), StatusCode.INVALID_ARGUMENT, "invalid_argument", "PublishRequest"
    )


def test_a_request_larger_than_the_node_takes_is_refused_clearly(client: GrpcClient, topic: str) -> None:
    huge = messages_pb2.PublishRequest(topic=topic, message={"value": b"x" * (17 << 20)})
    ended: Any = refusal(lambda: client.messages.Publish(huge, timeout=T_S))
    assert ended.code() is StatusCode.RESOURCE_EXHAUSTED
    assert "16777216" in ended.details()


def test_a_message_larger_than_its_topic_takes_is_refused_clearly(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    large = messages_pb2.PublishRequest(topic=topic, message={"value": b"x" * (2 << 20)})
    check_refused(
        lambda: client.messages.Publish(large, timeout=T_S), StatusCode.INVALID_ARGUMENT, "message_too_large", topic
    )


def test_the_brokers_own_topics_are_left_alone(client: GrpcClient) -> None:
    for name in ("__consumer_offsets", "__queue.t"):
        request = messages_pb2.PublishRequest(topic=name, message={})
        check_refused(
            lambda request=request: client.messages.Publish(request, timeout=T_S),
            StatusCode.PERMISSION_DENIED,
            "policy_violation",
        )


def test_unknown_topics_and_groups_are_not_found(client: GrpcClient, topic: str) -> None:
    receive = queues_pb2.ReceiveRequest(topic=topic)
    check_refused(lambda: client.queues.Receive(receive, timeout=T_S), StatusCode.NOT_FOUND, "unknown_topic", topic)
    client.create(topic)
    ack = queues_pb2.AckRequest(group="nobody", receipts=[f"{topic}:0:0:1:1{'0' * 16}"])
    check_refused(lambda: client.queues.Ack(ack, timeout=T_S), StatusCode.NOT_FOUND, "group_not_found", "nobody")
    get = transactions_pb2.GetTransactionRequest(transaction="none")
    check_refused(
        lambda: client.transactions.GetTransaction(get, timeout=T_S), StatusCode.NOT_FOUND, "transaction_not_found"
    )
    check_refused(
        lambda: list(client.messages.Read(messages_pb2.ReadRequest(topic=topic, partition=7), timeout=T_S)),
        StatusCode.NOT_FOUND,
        "unknown_partition",
    )


def test_bytes_that_are_not_http2_do_not_disturb_anybody(node: Node, client: GrpcClient) -> None:
    for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 1000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100):
        with socket.create_connection(("127.0.0.1", node.grpc_port), timeout=60) as connection:
            connection.sendall(junk)
    assert client.topics.ListTopics(topics_pb2.ListTopicsRequest(), timeout=T_S) is not None
