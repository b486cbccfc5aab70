"""The gRPC door of a real node over a real socket."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2
from tests.acceptance.conftest import NodeMaker
from tests.support.cluster import eventually
from tests.support.grpc_client import T_S, GrpcClient, Subscriber, check_refused, refusal
from tests.support.node import Node, free_port
from tests.support.reflection import ReflectionClient

from penstock.grpc.generated import groups_pb2, messages_pb2, queues_pb2, topics_pb2, transactions_pb2
from penstock.grpc.generated.message_pb2 import LogEnd, Message, Start, Ticket
from penstock.grpc.generated.queues_pb2 import Outcome
from penstock.grpc.generated.transactions_pb2 import TransactionState


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[GrpcClient]:
    made = GrpcClient(node.grpc)
    yield made
    made.channel.close()


# -- topics ------------------------------------------------------------------------------------------------------------


def test_topics_from_the_beginning_to_the_end(client: GrpcClient, topic: str) -> None:
    spec = topics_pb2.CreateTopicRequest(name=topic, partition_count=2, configs={"retention.ms": "1000000"})
    made = client.topics.CreateTopic(spec, timeout=T_S)
    assert (made.name, made.partition_count, made.configs["retention.ms"]) == (topic, 2, "1000000")
    assert [(each.partition, each.leader, each.high_watermark) for each in made.partitions] == [(0, 1, 0), (1, 1, 0)]
    check_refused(
        lambda: client.topics.CreateTopic(spec, timeout=T_S), StatusCode.ALREADY_EXISTS, "topic_exists", topic
    )
    grown = client.topics.AddPartitions(topics_pb2.AddPartitionsRequest(name=topic, partition_count=3), timeout=T_S)
    assert len(grown.partitions) == 3
    changed = client.topics.UpdateTopic(
        topics_pb2.UpdateTopicRequest(
            name=topic, configs={"max.message.bytes": "2000"}, unset_configs=["retention.ms"]
        ),
        timeout=T_S,
    )
    assert dict(changed.configs) == {"max.message.bytes": "2000"}
    assert changed.settings["retention.ms"] == "604800000"
    assert client.topics.GetTopic(topics_pb2.GetTopicRequest(name=topic), timeout=T_S) == changed
    client.topics.DeleteTopic(topics_pb2.DeleteTopicRequest(name=topic), timeout=T_S)
    gone = topics_pb2.GetTopicRequest(name=topic)
    check_refused(lambda: client.topics.GetTopic(gone, timeout=T_S), StatusCode.NOT_FOUND, "unknown_topic", topic)


def test_topics_are_listed_page_by_page(client: GrpcClient, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(5)]
    for name in names:
        client.create(name)
    found: list[str] = []
    token = ""
    while True:
        page = client.topics.ListTopics(topics_pb2.ListTopicsRequest(page_size=2, page_token=token), timeout=T_S)
        assert len(page.topics) <= 2
        found += [each.name for each in page.topics]
        token = page.next_page_token
        if not token:
            break
    assert [name for name in found if name.startswith(topic)] == names
    assert found == sorted(found)


def test_a_topic_can_be_checked_without_making_it(client: GrpcClient, topic: str) -> None:
    client.topics.CreateTopic(topics_pb2.CreateTopicRequest(name=topic, validate_only=True), timeout=T_S)
    gone = topics_pb2.GetTopicRequest(name=topic)
    check_refused(lambda: client.topics.GetTopic(gone, timeout=T_S), StatusCode.NOT_FOUND, "unknown_topic")


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_message_comes_out_as_it_went_in(client: GrpcClient, topic: str) -> None:
    client.create(topic, 3)
    sent = Message(
        key=b"\xff\x00",
        value=b"\xfe",
        headers=[{"name": "a", "value": b"1"}, {"name": "a"}, {"name": "ü", "value": b""}],
        partition=2,
        timestamp={"seconds": 1_700_000_000, "nanos": 123_000_000},
    )
    answer = client.messages.Publish(messages_pb2.PublishRequest(topic=topic, message=sent), timeout=T_S)
    assert (answer.receipt.topic, answer.receipt.partition, answer.receipt.offset) == (topic, 2, 0)
    assert answer.receipt.timestamp == sent.timestamp
    (page,) = client.messages.Read(messages_pb2.ReadRequest(topic=topic, partition=2), timeout=T_S)
    (read,) = page.messages
    assert (read.key, read.value, list(read.headers), read.timestamp) == (
        sent.key,
        sent.value,
        list(sent.headers),
        sent.timestamp,
    )
    assert not read.headers[1].HasField("value")
    assert read.headers[2].HasField("value")
    assert (page.next_offset, page.high_watermark, page.log_start_offset) == (1, 1, 0)


def test_no_value_and_an_empty_value_are_two_things(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    for message in (Message(key=b"k"), Message(key=b"k", value=b"")):
        client.messages.Publish(messages_pb2.PublishRequest(topic=topic, message=message), timeout=T_S)
    (page,) = client.messages.Read(messages_pb2.ReadRequest(topic=topic), timeout=T_S)
    assert [message.HasField("value") for message in page.messages] == [False, True]


def test_of_a_batch_each_message_is_told_what_became_of_it(client: GrpcClient, topic: str) -> None:
    client.create(topic, 2, **{"max.message.bytes": "2000"})
    request = messages_pb2.PublishBatchRequest(
        topic=topic,
        messages=[
            {"value": b"fine", "partition": 0},
            {"value": b"x" * 5_000, "partition": 0},
            {"value": b"nowhere", "partition": 9},
            {"value": b"fine too", "partition": 1},
        ],
    )
    results = client.messages.PublishBatch(request, timeout=T_S).results
    assert [result.WhichOneof("result") for result in results] == ["receipt", "error", "error", "receipt"]
    assert [results[at].error.code for at in (1, 2)] == ["message_too_large", "unknown_partition"]
    assert client.read(topic, 0) == [b"fine"]


def test_a_stream_of_publishes_is_answered_in_order_and_written_in_order(client: GrpcClient, topic: str) -> None:
    client.create(topic)

    def requests() -> Iterator[messages_pb2.PublishStreamRequest]:
        for number in range(200):
            yield messages_pb2.PublishStreamRequest(
                id=number, topic="" if number else topic, messages=[{"value": f"{number}-{at}".encode()} for at in "ab"]
            )

    answers = list(client.messages.PublishStream(requests(), timeout=T_S))
    assert [answer.id for answer in answers] == list(range(200))
    offsets = [result.receipt.offset for answer in answers for result in answer.results]
    assert offsets == list(range(400))
    assert client.read(topic) == [f"{number}-{at}".encode() for number in range(200) for at in "ab"]


def test_a_stream_of_publishes_goes_on_after_a_request_that_failed(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    wanted = [
        messages_pb2.PublishStreamRequest(id=1, topic=topic, messages=[{"value": b"a"}]),
        messages_pb2.PublishStreamRequest(id=2),
        messages_pb2.PublishStreamRequest(id=3, messages=[{"value": b"b", "partition": -4}]),
        messages_pb2.PublishStreamRequest(id=4, messages=[{"value": b"c"}]),
    ]
    answers = list(client.messages.PublishStream(iter(wanted), timeout=T_S))
    assert [answer.error.code for answer in answers] == ["", "invalid_argument", "invalid_argument", ""]
    assert "messages[0].partition: Expected `int` >= 0" in answers[2].error.message
    assert client.read(topic) == [b"a", b"c"]


def test_reading_begins_where_it_is_told_to_and_ends_at_its_limit(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    for number in range(6):
        message = Message(value=str(number).encode(), timestamp={"seconds": 1_000 + number})
        client.messages.Publish(messages_pb2.PublishRequest(topic=topic, message=message), timeout=T_S)

    def read(limit: int = 0, **start: Any) -> list[bytes]:
        request = messages_pb2.ReadRequest(topic=topic, start=start, limit=limit, max_bytes=2)
        return [each.value for page in client.messages.Read(request, timeout=T_S) for each in page.messages]

    assert read(offset=4) == [b"4", b"5"]
    assert read(3, offset=1) == [b"1", b"2", b"3"]
    assert read(since={"seconds": 1_003}) == [b"3", b"4", b"5"]
    assert read(end=LogEnd.LOG_END_LATEST) == []


def test_a_reader_that_follows_gets_what_comes(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    request = messages_pb2.ReadRequest(topic=topic, start=Start(end=LogEnd.LOG_END_LATEST), follow=True)
    pages = client.messages.Read(request, timeout=T_S)
    assert next(pages).messages == []  # it is there
    client.publish(topic, "a")
    client.publish(topic, "b")
    assert [next(pages).messages[0].value, next(pages).messages[0].value] == [b"a", b"b"]
    pages.cancel()


# -- groups ------------------------------------------------------------------------------------------------------------


def test_a_member_joins_polls_commits_and_leaves(client: GrpcClient, topic: str) -> None:
    client.create(topic, 2)
    client.publish(topic, *"abc")
    groups, group = client.groups, f"group-{topic}"
    member = groups.Join(groups_pb2.JoinRequest(group=group, topics=[topic]), timeout=T_S)
    assert [(each.topic, each.partition) for each in member.partitions] == [(topic, 0), (topic, 1)]
    found: list[bytes] = []
    poll = groups_pb2.PollRequest(group=group, member_id=member.member_id, wait={"seconds": 20})
    while len(found) < 3:
        found += [each.value for each in groups.Poll(poll, timeout=T_S).messages]
    assert sorted(found) == [b"a", b"b", b"c"]
    commit = groups_pb2.CommitRequest(group=group, member_id=member.member_id)
    assert sum(each.offset for each in groups.Commit(commit, timeout=T_S).offsets) == 3
    beat = groups_pb2.HeartbeatRequest(group=group, member_id=member.member_id)
    assert not groups.Heartbeat(beat, timeout=T_S).is_rebalancing
    groups.Leave(groups_pb2.LeaveRequest(group=group, member_id=member.member_id), timeout=T_S)
    check_refused(lambda: groups.Heartbeat(beat, timeout=T_S), StatusCode.NOT_FOUND, "unknown_member")


def test_offsets_of_a_group_without_members_are_committed(node: Node, client: GrpcClient, topic: str) -> None:
    client.create(topic)
    client.publish(topic, *"abc")
    group = f"group-{topic}"
    commit = groups_pb2.CommitRequest(group=group, offsets=[{"topic": topic, "offset": 2, "metadata": "by hand"}])
    assert client.groups.Commit(commit, timeout=T_S).offsets == commit.offsets
    with urllib.request.urlopen(f"{node.http_url}/v1/groups/{group}", timeout=T_S) as answer:
        (offset,) = json.load(answer)["offsets"]
    assert (offset["committed_offset"], offset["lag"], offset["metadata"]) == (2, 1, "by hand")
    commit.offsets[0].offset = 99
    check_refused(
        lambda: client.groups.Commit(commit, timeout=T_S), StatusCode.OUT_OF_RANGE, "offset_out_of_range", "99"
    )


# -- transactions ------------------------------------------------------------------------------------------------------


def begin(client: GrpcClient) -> str:
    made = client.transactions.BeginTransaction(transactions_pb2.BeginTransactionRequest(), timeout=T_S)
    return str(made.transaction)


def test_acked_and_published_together_or_not_at_all(client: GrpcClient, topic: str) -> None:
    results = f"{topic}-results"
    client.create(topic, **{"queue.visibility.timeout.ms": "600000"})
    client.create(results)
    client.publish(topic, "work")
    for is_committed in (False, True):
        transaction = begin(client)
        (leased,) = client.receive(topic, wait={"seconds": 20})
        publish = messages_pb2.PublishRequest(
            topic=results, message={"value": leased.value.upper()}, ticket=Ticket(transaction=transaction)
        )
        client.messages.Publish(publish, timeout=T_S)
        ack = queues_pb2.AckRequest(receipts=[leased.receipt], transaction=transaction)
        assert client.queues.Ack(ack, timeout=T_S).results[0].outcome == Outcome.OUTCOME_DONE
        assert client.read(results) == []
        if is_committed:
            ended = client.transactions.CommitTransaction(
                transactions_pb2.CommitTransactionRequest(transaction=transaction), timeout=T_S
            )
            assert ended.state == TransactionState.TRANSACTION_STATE_COMMITTED
        else:
            ended = client.transactions.AbortTransaction(
                transactions_pb2.AbortTransactionRequest(transaction=transaction), timeout=T_S
            )
            assert ended.state == TransactionState.TRANSACTION_STATE_ABORTED
            nack = queues_pb2.NackRequest(receipts=[leased.receipt], delay={})
            client.queues.Nack(nack, timeout=T_S)
    assert client.read(results) == [b"WORK"]
    eventually(lambda: client.stats(topic).committed == 1, what="the ack")


def test_a_subscriber_acks_in_a_transaction(client: GrpcClient, topic: str) -> None:
    client.create(topic, **{"queue.visibility.timeout.ms": "600000"})
    client.publish(topic, *"ab")
    subscriber = Subscriber(client, topic, 2)
    first, second = subscriber.messages(2)
    committed, aborted = begin(client), begin(client)
    for message, transaction in ((first, committed), (second, aborted)):
        subscriber.send(ack={"receipts": [message.receipt], "transaction": transaction})
        assert subscriber.settled().results[0].outcome == Outcome.OUTCOME_DONE
    subscriber.send(ack={"receipts": [first.receipt]})
    assert subscriber.settled().results[0].outcome == Outcome.OUTCOME_IN_TRANSACTION
    client.transactions.CommitTransaction(transactions_pb2.CommitTransactionRequest(transaction=committed), timeout=T_S)
    client.transactions.AbortTransaction(transactions_pb2.AbortTransactionRequest(transaction=aborted), timeout=T_S)
    subscriber.finish()
    (left,) = client.receive(topic, wait={"seconds": 10})
    assert (left.value, left.delivery_count) == (b"b", 1)


def test_a_transaction_is_looked_at_extended_and_its_commit_repeated(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    transaction = begin(client)
    extend = transactions_pb2.ExtendTransactionRequest(transaction=transaction, timeout={"seconds": 90})
    assert client.transactions.ExtendTransaction(extend, timeout=T_S).timeout.seconds == 90

    requests = [
        messages_pb2.PublishStreamRequest(
            id=number,
            topic=topic,
            messages=[{"value": str(number).encode()}],
            ticket=Ticket(transaction=transaction, writer="w", sequence=number),
        )
        for number in range(3)
    ]
    answers = list(client.messages.PublishStream(iter(requests), timeout=T_S))
    again = list(client.messages.PublishStream(iter(requests[-1:]), timeout=T_S))
    assert again == answers[-1:], "the last call repeated is told the same and not written twice"
    get = transactions_pb2.GetTransactionRequest(transaction=transaction)
    found = client.transactions.GetTransaction(get, timeout=T_S)
    assert found.state == TransactionState.TRANSACTION_STATE_OPEN
    assert [(each.writer, each.next_sequence) for each in found.writers] == [("w", 3)]
    commit = transactions_pb2.CommitTransactionRequest(transaction=transaction, idempotency_key="once")
    first = client.transactions.CommitTransaction(commit, timeout=T_S)
    assert client.transactions.CommitTransaction(commit, timeout=T_S) == first
    assert list(first.committed_writers) == ["w"]
    assert client.read(topic) == [b"0", b"1", b"2"]
    late = messages_pb2.PublishRequest(topic=topic, message={}, ticket=Ticket(transaction=transaction))
    check_refused(
        lambda: client.messages.Publish(late, timeout=T_S), StatusCode.FAILED_PRECONDITION, "transaction_ended"
    )


# -- reflection and health ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_a_client_that_knows_only_the_address_finds_and_calls_everything(node: Node, topic: str, version: str) -> None:
    with ReflectionClient(node.grpc, version) as tool:
        services = tool.services()
        assert {f"penstock.v1.{name}" for name in ("Topics", "Messages", "Queues", "Groups", "Transactions")} <= set(
            services
        )
        methods = [f"{service}/{name}" for service in services for name in tool.methods(service)]
        assert "penstock.v1.Queues/Subscribe" in methods
        assert "grpc.health.v1.Health/Check" in methods
        assert f"grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" in methods
        assert tool.call("grpc.health.v1.Health/Check") == {"status": "SERVING"}
        made = tool.call("penstock.v1.Topics/CreateTopic", {"name": topic, "partition_count": 1})
        assert made["partitions"][0]["leader"] == 1
        for value in ("b25l", "dHdv"):
            tool.call("penstock.v1.Messages/Publish", {"topic": topic, "message": {"value": value}})
        (page,) = tool.stream("penstock.v1.Messages/Read", {"topic": topic})
        assert [each["value"] for each in page["messages"]] == ["b25l", "dHdv"]
        received = tool.call("penstock.v1.Queues/Receive", {"topic": topic, "wait": "5s"})
        receipt = received["messages"][0]["receipt"]
        acked = tool.call("penstock.v1.Queues/Ack", {"receipts": [receipt]})
        assert acked["results"] == [{"receipt": receipt, "outcome": "OUTCOME_DONE"}]
        answers = tool.converse(
            "penstock.v1.Queues/Subscribe", [{"subscription": {"topic": topic, "consumer": "tool", "credits": 0}}]
        )
        assert list(answers) == [{"subscribed": {"consumer": "tool"}}]


def test_health_is_told_for_the_node_and_for_each_service(client: GrpcClient) -> None:
    for name in ("", "penstock.v1.Queues"):
        answer = client.health.Check(health_pb2.HealthCheckRequest(service=name), timeout=T_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    ended: Any = refusal(lambda: client.health.Check(health_pb2.HealthCheckRequest(service="none"), timeout=T_S))
    assert ended.code() is StatusCode.NOT_FOUND


# -- the node's life ---------------------------------------------------------------------------------------------------


def test_a_node_that_stops_says_so_and_leaves_no_stream_hanging(make_node: NodeMaker) -> None:
    node = make_node().start()
    client = GrpcClient(node.grpc)
    client.create("t", **{"queue.visibility.timeout.ms": "600000"})
    watch = client.health.Watch(health_pb2.HealthCheckRequest(), timeout=60)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    follow = client.messages.Read(messages_pb2.ReadRequest(topic="t", follow=True), timeout=60)
    next(follow)
    subscriber = Subscriber(client, "t", 10)
    client.publish("t", "held")
    subscriber.messages(1)
    client.create("empty")  # what the subscriber holds is given back when its stream ends, to whoever waits then
    polling = client.queues.Receive.future(queues_pb2.ReceiveRequest(topic="empty", wait={"seconds": 60}), timeout=60)
    eventually(lambda: client.stats("empty") is not None, what="the poll")
    stopped: list[int] = []
    stopping = threading.Thread(target=lambda: stopped.append(node.stop()))
    began = time.monotonic()
    stopping.start()
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    for stream in (follow, subscriber.call):
        ended: Any = refusal(lambda stream=stream: list(stream))
        assert ended.code() is StatusCode.UNAVAILABLE
        trailers = dict(ended.trailing_metadata())
        assert (trailers["penstock-error"], trailers["penstock-retriable"]) == ("node_stopping", "true")
    assert polling.result().messages == []
    stopping.join(60)
    assert stopped == [0]
    assert time.monotonic() - began < 50
    node.restart()
    again = GrpcClient(node.grpc)
    (leased,) = again.receive("t", wait={"seconds": 20})
    assert leased.value == b"held"


def test_a_node_that_waits_for_its_cluster_says_so(make_node: NodeMaker) -> None:
    own, absent = free_port(), free_port()
    node = make_node(
        broker__internal=f"127.0.0.1:{own}", cluster__peers=f"1@127.0.0.1:{own},2@127.0.0.1:{absent},3@127.0.0.1:1"
    )
    node.launch()
    client = GrpcClient(node.grpc)
    answer = client.health.Check(health_pb2.HealthCheckRequest(), timeout=T_S)
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
    check_refused(
        lambda: client.topics.ListTopics(topics_pb2.ListTopicsRequest(), timeout=T_S),
        StatusCode.UNAVAILABLE,
        "node_starting",
        "starting",
    )
    watch = client.health.Watch(health_pb2.HealthCheckRequest(), timeout=60)
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert node.stop() == 0
    client.channel.close()


def test_a_node_can_do_without_the_door(make_node: NodeMaker) -> None:
    node = make_node()
    node.arguments = ("--grpc", "null")
    with node:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", node.grpc_port)) != 0
        with urllib.request.urlopen(f"{node.http_url}/v1/nodes", timeout=T_S) as answer:
            (told,) = json.load(answer)["nodes"]
        assert "grpc" not in json.dumps(told)


def test_a_port_in_use_is_named(make_node: NodeMaker) -> None:
    node = make_node()
    with socket.create_server(("127.0.0.1", node.grpc_port)):
        node.launch()
        assert node.wait_for_exit() == 1
    assert f"127.0.0.1:{node.grpc_port}" in node.log_text
    assert "--grpc" in node.log_text
    assert "Traceback" not in node.log_text
