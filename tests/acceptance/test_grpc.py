"""The gRPC door of a real node over a real socket."""

from __future__ import annotations

import json
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2
from tests.acceptance.conftest import NodeMaker
from tests.support.cluster import eventually
from tests.support.grpc_client import T_S, GrpcClient, Subscriber
from tests.support.node import Node, free_port
from tests.support.reflection import ReflectionClient

from penstock.grpc.generated import groups_pb2, messages_pb2, queues_pb2, topics_pb2, transactions_pb2
from penstock.grpc.generated.dead_letters_pb2 import (
    ListDeadLettersRequest,
    ListReasonsRequest,
    ListRedrivesRequest,
    RedriveRequest,
    RedriveState,
)
from penstock.grpc.generated.message_pb2 import LogEnd, Message, Start, Ticket
from penstock.grpc.generated.queues_pb2 import Outcome, SubscribeRequest
from penstock.grpc.generated.transactions_pb2 import TransactionState


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[GrpcClient]:
    made = GrpcClient(node.grpc)
    yield made
    made.channel.close()


class Refused(AssertionError):
    """Nothing was refused."""


def refusal(call: Any) -> grpc.RpcError:
    """How a call ends that is to be refused."""
    try:
        answer = call()
        list(answer) if hasattr(answer, "__next__") else None
    except grpc.RpcError as error:
        return error
    raise Refused(f"it was answered: {answer}")


def check_refused(call: Any, code: StatusCode, error: str, *parts: str) -> None:
    ended: Any = refusal(call)
    assert ended.code() is code, ended
    assert dict(ended.trailing_metadata())["penstock-error"] == error
    for part in parts:
        assert part in ended.details()


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
    assert "messages[0].partition is -4" in answers[2].error.message
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


# -- queues ------------------------------------------------------------------------------------------------------------


def test_received_and_acked_once(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    client.publish(topic, *"abc")
    leased = client.receive(topic)
    assert [(each.value, each.delivery_count) for each in leased] == [(b"a", 1), (b"b", 1), (b"c", 1)]
    assert all(each.lease_expire_time.seconds > time.time() for each in leased)
    assert client.receive(topic) == []
    receipts = [each.receipt for each in leased]
    acked = client.queues.Ack(queues_pb2.AckRequest(receipts=receipts, topic=topic), timeout=T_S)
    assert [(each.receipt, each.outcome) for each in acked.results] == [
        (each, Outcome.OUTCOME_DONE) for each in receipts
    ]
    stats = client.stats(topic)
    assert (stats.committed, stats.ready, stats.in_flight) == (3, 0, 0)


def test_every_receipt_has_a_result_of_its_own(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    client.publish(topic, *"ab")
    first, second = (each.receipt for each in client.receive(topic))
    forged = first[:-1] + ("0" if first[-1] != "0" else "1")
    foreign = first.replace(topic, "elsewhere")
    receipts = [first, first, "nonsense", forged, foreign, second]
    results = client.queues.Ack(queues_pb2.AckRequest(receipts=receipts, topic=topic), timeout=T_S).results
    assert [each.outcome for each in results] == [
        Outcome.OUTCOME_DONE,
        Outcome.OUTCOME_REPEATED,
        Outcome.OUTCOME_MALFORMED,
        Outcome.OUTCOME_UNKNOWN,
        Outcome.OUTCOME_FOREIGN,
        Outcome.OUTCOME_DONE,
    ]
    again = client.queues.Ack(queues_pb2.AckRequest(receipts=[first]), timeout=T_S).results
    assert [each.outcome for each in again] == [Outcome.OUTCOME_ALREADY_ACKED]


def test_nacked_comes_again_rejected_goes_to_the_dead_letters_and_back(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    client.publish(topic, "again", "poison")
    again, poison = client.receive(topic)
    nack = queues_pb2.NackRequest(receipts=[again.receipt], delay={}, reason="not yet")
    assert client.queues.Nack(nack, timeout=T_S).results[0].outcome == Outcome.OUTCOME_DONE
    reject = queues_pb2.RejectRequest(receipts=[poison.receipt], reason="cannot be read")
    assert client.queues.Reject(reject, timeout=T_S).results[0].outcome == Outcome.OUTCOME_DONE
    (second,) = client.receive(topic, wait={"seconds": 5})
    assert (second.value, second.delivery_count) == (b"again", 2)
    client.queues.Ack(queues_pb2.AckRequest(receipts=[second.receipt]), timeout=T_S)

    listing = ListDeadLettersRequest(topic=topic)
    eventually(lambda: len(client.dead_letters.ListDeadLetters(listing, timeout=T_S).dead_letters) == 1, what="burial")
    (letter,) = client.dead_letters.ListDeadLetters(listing, timeout=T_S).dead_letters
    assert (letter.message.value, letter.reason, letter.group, letter.origin_topic) == (
        b"poison",
        "cannot be read",
        "default",
        topic,
    )
    (reason,) = client.dead_letters.ListReasons(ListReasonsRequest(topic=topic), timeout=T_S).reasons
    assert (reason.reason, reason.message_count) == ("cannot be read", 1)
    dry = client.dead_letters.Redrive(RedriveRequest(topic=topic, dry_run=True), timeout=T_S)
    assert (dry.rehearsal.matched, dict(dry.rehearsal.targets)) == (1, {topic: 1})
    begun = client.dead_letters.Redrive(RedriveRequest(topic=topic, requested_by="a test"), timeout=T_S).job

    def job() -> Any:
        (found,) = client.dead_letters.ListRedrives(ListRedrivesRequest(topic=topic), timeout=T_S).redrives
        return found

    eventually(lambda: job().state == RedriveState.REDRIVE_STATE_DONE, what="the redrive")
    assert (job().id, job().moved, job().requested_by) == (begun.id, 1, "a test")
    (back,) = client.receive(topic, wait={"seconds": 5})
    assert back.value == b"poison"


def test_leases_are_extended(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    client.publish(topic, "long work")
    (leased,) = client.receive(topic, visibility_timeout={"seconds": 1})
    extend = queues_pb2.ExtendRequest(receipts=[leased.receipt], visibility_timeout={"seconds": 60})
    assert client.queues.Extend(extend, timeout=T_S).results[0].outcome == Outcome.OUTCOME_DONE
    assert client.receive(topic, wait={"seconds": 2}) == []
    ack = queues_pb2.AckRequest(receipts=[leased.receipt])
    assert client.queues.Ack(ack, timeout=T_S).results[0].outcome == Outcome.OUTCOME_DONE


def test_a_consumers_loop_is_one_call(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    client.publish(topic, *"ab")
    (first,) = client.receive(topic, max_messages=1)
    request = queues_pb2.ReceiveRequest(topic=topic, ack_receipts=[first.receipt])
    answer = client.queues.Receive(request, timeout=T_S)
    assert [each.value for each in answer.messages] == [b"b"]
    assert [each.outcome for each in answer.ack_results] == [Outcome.OUTCOME_DONE]
    again = client.queues.Receive(request, timeout=T_S)
    assert [each.outcome for each in again.ack_results] == [Outcome.OUTCOME_ALREADY_ACKED]
    assert again.messages == []


def test_a_long_poll_ends_with_the_first_message(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    threading.Timer(0.5, client.publish, (topic, "late")).start()
    began = time.monotonic()
    (leased,) = client.receive(topic, wait={"seconds": 15})
    assert leased.value == b"late"
    assert 0.3 < time.monotonic() - began < 10


def test_a_long_poll_never_outlives_its_deadline(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    began = time.monotonic()
    request = queues_pb2.ReceiveRequest(topic=topic, wait={"seconds": 30})
    assert client.queues.Receive(request, timeout=1.5).messages == []
    assert time.monotonic() - began < 5


def test_a_client_that_gave_up_takes_no_message(client: GrpcClient, topic: str) -> None:
    client.create(topic, **{"queue.visibility.timeout.ms": "600000"})
    waiting = [
        client.queues.Receive.future(queues_pb2.ReceiveRequest(topic=topic, wait={"seconds": 60}), timeout=60)
        for _ in range(5)
    ]
    time.sleep(0.5)
    for call in waiting:
        call.cancel()
    time.sleep(0.3)
    client.publish(topic, *"abcde")
    leased = client.receive(topic, wait={"seconds": 5})
    assert [(each.value, each.delivery_count) for each in leased] == [(each.encode(), 1) for each in "abcde"]


def test_clients_that_give_up_at_any_moment_leave_no_message_with_two_leases(client: GrpcClient, topic: str) -> None:
    client.create(topic, **{"queue.visibility.timeout.ms": "600000", "queue.tries": "0"})
    request = queues_pb2.ReceiveRequest(topic=topic, max_messages=3, wait={"seconds": 20})
    calls = []
    for number in range(60):
        calls.append(client.queues.Receive.future(request, timeout=30))
        client.publish(topic, str(number))
        if number % 3 == 0:
            calls[number // 2].cancel()
    answered = [call for call in calls if call.done() and not call.cancelled()]
    for call in calls:
        call.cancel()
    leased = [message for call in answered for message in call.result().messages]
    while client.stats(topic).ready + client.stats(topic).waiting:
        leased += client.receive(topic)
    assert len({each.offset for each in leased}) == len(leased)
    # What a client that gave up did not get was given back, but for answers that were on their way already.
    assert len(leased) >= 40


def test_groups_are_declared_paused_moved_purged_and_forgotten(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    client.publish(topic, *"abc")
    queues = client.queues
    declare = queues_pb2.DeclareGroupRequest(topic=topic, group="g", start=Start(offset=2), settings={"tries": "7"})
    queues.DeclareGroup(declare, timeout=T_S)
    (stats,) = queues.GetStats(queues_pb2.GetStatsRequest(topic=topic, group="g"), timeout=T_S).groups
    assert (stats.settings["tries"], stats.partitions[0].committed, stats.partitions[0].ready) == ("7", 2, 1)
    assert stats.partitions[0].HasField("oldest_age")
    assert stats.partitions[0].oldest_age.seconds < 60
    queues.PauseGroup(queues_pb2.PauseGroupRequest(topic=topic, group="g", reason="tests"), timeout=T_S)
    (stats,) = queues.GetStats(queues_pb2.GetStatsRequest(topic=topic, group="g"), timeout=T_S).groups
    assert (stats.is_paused, stats.pause_reason) == (True, "tests")
    assert client.receive(topic, "g") == []
    queues.ResumeGroup(queues_pb2.ResumeGroupRequest(topic=topic, group="g"), timeout=T_S)
    seek = queues_pb2.SeekGroupRequest(topic=topic, group="g", start=Start(offset=1))
    queues.SeekGroup(seek, timeout=T_S)
    peeked = queues.Peek(queues_pb2.PeekRequest(topic=topic, group="g"), timeout=T_S).messages
    assert [(each.message.value, each.state) for each in peeked] == [
        (b"b", queues_pb2.MESSAGE_STATE_READY),
        (b"c", queues_pb2.MESSAGE_STATE_READY),
    ]
    assert [each.value for each in client.receive(topic, "g")] == [b"b", b"c"]
    queues.PurgeGroup(queues_pb2.PurgeGroupRequest(topic=topic, group="g"), timeout=T_S)
    (stats,) = queues.GetStats(queues_pb2.GetStatsRequest(topic=topic, group="g"), timeout=T_S).groups
    assert (stats.partitions[0].committed, stats.partitions[0].in_flight) == (3, 0)
    queues.DeleteGroup(queues_pb2.DeleteGroupRequest(topic=topic, group="g"), timeout=T_S)
    gone = queues_pb2.GetStatsRequest(topic=topic, group="g")
    check_refused(lambda: queues.GetStats(gone, timeout=T_S), StatusCode.NOT_FOUND, "group_not_found", "g")


# -- subscriptions -----------------------------------------------------------------------------------------------------


def test_a_subscriber_gets_as_many_as_it_has_credits_for(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    client.publish(topic, *"abcde")
    subscriber = Subscriber(client, topic, 2)
    assert subscriber.consumer.startswith("grpc-")
    first = subscriber.messages(2)
    assert [each.value for each in first] == [b"a", b"b"]
    time.sleep(0.3)
    assert client.stats(topic).in_flight == 2
    subscriber.send(credits={"count": 1})
    (third,) = subscriber.messages(1)
    subscriber.send(id=7, ack={"receipts": [each.receipt for each in first]})
    settled = subscriber.settled()
    assert (settled.id, [each.outcome for each in settled.results]) == (7, [Outcome.OUTCOME_DONE] * 2)
    subscriber.send(id=8, extend={"receipts": [third.receipt], "visibility_timeout": {"seconds": 90}})
    assert subscriber.settled().results[0].outcome == Outcome.OUTCOME_DONE
    subscriber.send(id=9, nack={"receipts": [third.receipt], "delay": {}})
    assert subscriber.settled().results[0].outcome == Outcome.OUTCOME_DONE
    subscriber.send(credits={"count": 1})
    subscriber.messages(1)
    subscriber.finish()


def test_a_subscriber_waits_for_messages_that_come(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    subscriber = Subscriber(client, topic, 10)
    for value in "abc":
        client.publish(topic, value)
        (message,) = subscriber.messages(1)
        assert message.value == value.encode()
    subscriber.finish()


def test_what_a_subscriber_hands_back_never_counted(client: GrpcClient, topic: str) -> None:
    client.create(topic, **{"queue.visibility.timeout.ms": "600000"})
    client.publish(topic, *"abcd")
    for _ in range(5):  # more often than a message may be tried
        subscriber = Subscriber(client, topic, 3)
        assert [each.delivery_count for each in subscriber.messages(3)] == [1, 1, 1]
        subscriber.finish()
        eventually(lambda: client.stats(topic).in_flight == 0, what="all is given back")
    assert [(each.value, each.delivery_count) for each in client.receive(topic)] == [
        (each.encode(), 1) for each in "abcd"
    ]


def test_what_a_broken_stream_held_is_delivered_again_at_once_and_counted(client: GrpcClient, topic: str) -> None:
    client.create(topic, **{"queue.visibility.timeout.ms": "600000"})
    client.publish(topic, *"ab")
    subscriber = Subscriber(client, topic, 2)
    done, _ = subscriber.messages(2)
    subscriber.send(ack={"receipts": [done.receipt]})
    subscriber.settled()
    subscriber.call.cancel()
    (again,) = client.receive(topic, wait={"seconds": 10})
    assert (again.value, again.delivery_count) == (b"b", 2)


KILLED = """
import sys, grpc
from penstock.grpc.generated.queues_pb2 import SubscribeRequest, Subscription
from penstock.grpc.generated.queues_pb2_grpc import QueuesStub
import threading
address, topic = sys.argv[1:]
forever = threading.Event()
def requests():
    yield SubscribeRequest(subscription=Subscription(topic=topic, credits=100))
    forever.wait()
for answer in QueuesStub(grpc.insecure_channel(address)).Subscribe(requests()):
    print(len(answer.delivery.messages), flush=True)
"""


def test_what_a_killed_subscriber_held_is_delivered_again_at_once(node: Node, client: GrpcClient, topic: str) -> None:
    client.create(topic, **{"queue.visibility.timeout.ms": "600000"})
    client.publish(topic, *"abc")
    command = [sys.executable, "-c", KILLED, node.grpc, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        taken = 0
        while taken < 3:
            taken += int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
    found: list[Any] = []
    while len(found) < 3:
        found += client.receive(topic, wait={"seconds": 10})
    assert {each.value for each in found} == {b"a", b"b", b"c"}


@pytest.mark.parametrize(
    ("requests", "part"),
    [
        ([], "subscription is missing"),
        ([SubscribeRequest(credits={"count": 1})], "subscription is missing"),
        ([SubscribeRequest(subscription={"topic": ""})], "subscription.topic is missing"),
        ([SubscribeRequest(subscription={"topic": "T", "credits": -1})], "subscription.credits is -1"),
        ([SubscribeRequest(subscription={"topic": "T", "max_bytes": -1})], "subscription.max_bytes is -1"),
        ([SubscribeRequest(subscription={"topic": "T"}), SubscribeRequest()], "request is missing"),
        ([SubscribeRequest(subscription={"topic": "T"})] * 2, "only the first request"),
        (
            [SubscribeRequest(subscription={"topic": "T"}), SubscribeRequest(credits={"count": -5})],
            "credits.count is -5",
        ),
    ],
)
def test_subscriptions_that_make_no_sense_are_refused(
    client: GrpcClient, topic: str, requests: list[SubscribeRequest], part: str
) -> None:
    client.create(topic)
    sent: list[SubscribeRequest] = []
    for request in requests:
        copy = SubscribeRequest.FromString(request.SerializeToString())
        if copy.subscription.topic:
            copy.subscription.topic = topic
        sent.append(copy)
    check_refused(
        lambda: client.queues.Subscribe(iter(sent), timeout=T_S), StatusCode.INVALID_ARGUMENT, "invalid_argument", part
    )


def test_a_subscription_to_no_topic_is_refused(client: GrpcClient, topic: str) -> None:
    request = SubscribeRequest(subscription={"topic": topic, "credits": 1})
    check_refused(
        lambda: client.queues.Subscribe(iter([request]), timeout=T_S), StatusCode.NOT_FOUND, "unknown_topic", topic
    )


def test_what_is_wrong_with_one_settlement_does_not_end_the_stream(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    subscriber = Subscriber(client, topic, 0)
    subscriber.send(id=1, ack={})
    assert "ack.receipts has 0 entries" in subscriber.settled().error.message
    subscriber.send(id=2, nack={"receipts": ["x"], "delay": {"seconds": -1}})
    settled = subscriber.settled()
    assert (settled.id, settled.error.code) == (2, "invalid_argument")
    subscriber.send(id=3, ack={"receipts": ["nonsense"]})
    assert subscriber.settled().results[0].outcome == Outcome.OUTCOME_MALFORMED
    assert subscriber.finish() == []


def test_many_streams_at_once_share_the_work(client: GrpcClient, topic: str) -> None:
    client.create(topic, 3, **{"queue.visibility.timeout.ms": "600000"})
    total, streams = 600, 40
    done: queue.Queue[bytes] = queue.Queue()

    def work(subscriber: Subscriber) -> None:
        with suppress(grpc.RpcError):  # it is cancelled at the end
            for answer in subscriber.call:
                received = answer.delivery.messages
                if received:
                    subscriber.send(ack={"receipts": [each.receipt for each in received]})
                    subscriber.send(credits={"count": len(received)})
                for each in received:
                    done.put(each.value)

    subscribers = [Subscriber(client, topic, 5) for _ in range(streams)]
    threads = [threading.Thread(target=work, args=(each,)) for each in subscribers]
    for thread in threads:
        thread.start()
    for begin in range(0, total, 100):
        client.publish(topic, *map(str, range(begin, begin + 100)))
    found = [done.get(timeout=60) for _ in range(total)]
    assert sorted(map(int, found)) == list(range(total))

    def acked() -> bool:
        (group,) = client.queues.GetStats(queues_pb2.GetStatsRequest(topic=topic), timeout=T_S).groups
        return sum(each.committed for each in group.partitions) == total

    eventually(acked, 30, "every ack")
    for subscriber in subscribers:
        subscriber.call.cancel()
    for thread in threads:
        thread.join(20)


# -- groups ------------------------------------------------------------------------------------------------------------


def test_a_member_joins_polls_commits_and_leaves(client: GrpcClient, topic: str) -> None:
    client.create(topic, 2)
    client.publish(topic, *"abc")
    groups, group = client.groups, f"group-{topic}"
    member = groups.Join(groups_pb2.JoinRequest(group=group, topics=[topic]), timeout=T_S)
    assert [(each.topic, each.partition) for each in member.partitions] == [(topic, 0), (topic, 1)]
    found: list[bytes] = []
    poll = groups_pb2.PollRequest(group=group, member_id=member.member_id, wait={"seconds": 5})
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
        (leased,) = client.receive(topic, wait={"seconds": 5})
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


# -- bad input ---------------------------------------------------------------------------------------------------------

BAD: list[tuple[str, Any, str]] = [
    ("topics.CreateTopic", topics_pb2.CreateTopicRequest(), "name is missing"),
    ("topics.CreateTopic", topics_pb2.CreateTopicRequest(name="t", partition_count=-1), "partition_count is -1"),
    ("topics.CreateTopic", topics_pb2.CreateTopicRequest(name="t", replication_factor=0), "replication_factor is 0"),
    ("topics.CreateTopic", topics_pb2.CreateTopicRequest(name="no spaces here"), "no spaces here"),
    ("topics.CreateTopic", topics_pb2.CreateTopicRequest(name="t", configs={"no.such": "1"}), "no.such"),
    ("topics.ListTopics", topics_pb2.ListTopicsRequest(page_size=-1), "page_size is -1"),
    ("messages.Publish", messages_pb2.PublishRequest(topic="t"), "message is missing"),
    ("messages.Publish", messages_pb2.PublishRequest(message={}), "topic is missing"),
    ("messages.Publish", messages_pb2.PublishRequest(topic="t", message={"partition": -1}), "message.partition is -1"),
    (
        "messages.Publish",
        messages_pb2.PublishRequest(topic="t", message={"timestamp": {"seconds": -1}}),
        "message.timestamp is before 1970",
    ),
    ("messages.Publish", messages_pb2.PublishRequest(topic="t", message={}, partitioner=9), "partitioner 9"),
    ("messages.Publish", messages_pb2.PublishRequest(topic="t", message={}, ticket={}), "ticket.transaction is"),
    ("messages.PublishBatch", messages_pb2.PublishBatchRequest(topic="t"), "messages has 0 entries"),
    (
        "messages.PublishBatch",
        messages_pb2.PublishBatchRequest(topic="t", messages=[{}] * 10_001),
        "messages has 10001 entries",
    ),
    ("messages.Read", messages_pb2.ReadRequest(topic="t", partition=-1), "partition is -1"),
    ("messages.Read", messages_pb2.ReadRequest(topic="t", limit=-1), "limit is -1"),
    ("messages.Read", messages_pb2.ReadRequest(topic="t", start={"offset": -7}), "start.offset is -7"),
    ("queues.Receive", queues_pb2.ReceiveRequest(), "topic is missing"),
    ("queues.Receive", queues_pb2.ReceiveRequest(topic="t", max_messages=-1), "max_messages is -1"),
    ("queues.Receive", queues_pb2.ReceiveRequest(topic="t", max_messages=10_001), "max_messages is 10001"),
    ("queues.Receive", queues_pb2.ReceiveRequest(topic="t", wait={"seconds": -1}), "wait is"),
    ("queues.Receive", queues_pb2.ReceiveRequest(topic="t", wait={"seconds": 61}), "wait is 61000 ms"),
    (
        "queues.Receive",
        queues_pb2.ReceiveRequest(topic="t", visibility_timeout={"seconds": -3}),
        "visibility_timeout is",
    ),
    ("queues.Receive", queues_pb2.ReceiveRequest(topic="t", visibility_timeout={}), "visibility_timeout is 0 ms"),
    ("queues.Ack", queues_pb2.AckRequest(), "receipts has 0 entries"),
    ("queues.Ack", queues_pb2.AckRequest(receipts=["x"] * 10_001), "receipts has 10001 entries"),
    ("queues.Nack", queues_pb2.NackRequest(receipts=["x"], delay={"seconds": -1}), "delay is"),
    ("queues.Extend", queues_pb2.ExtendRequest(receipts=["x"], visibility_timeout={}), "visibility_timeout is 0 ms"),
    ("queues.SeekGroup", queues_pb2.SeekGroupRequest(topic="t", start={"offset": -1}), "start.offset is -1"),
    ("groups.Join", groups_pb2.JoinRequest(topics=["t"]), "group is missing"),
    ("groups.Join", groups_pb2.JoinRequest(group="g"), "topics has 0 entries"),
    ("groups.Commit", groups_pb2.CommitRequest(group="g"), "offsets is missing"),
    (
        "groups.Commit",
        groups_pb2.CommitRequest(group="g", offsets=[{"topic": "t", "offset": -1}]),
        "offsets[0].offset is -1",
    ),
    ("transactions.CommitTransaction", transactions_pb2.CommitTransactionRequest(), "transaction is missing"),
    (
        "transactions.BeginTransaction",
        transactions_pb2.BeginTransactionRequest(timeout={"seconds": -1}),
        "timeout is",
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
        with socket.create_connection(("127.0.0.1", node.grpc_port), timeout=5) as connection:
            connection.sendall(junk)
    assert client.topics.ListTopics(topics_pb2.ListTopicsRequest(), timeout=T_S) is not None


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
    stopping.join(25)
    assert stopped == [0]
    assert time.monotonic() - began < 15
    node.restart()
    again = GrpcClient(node.grpc)
    (leased,) = again.receive("t", wait={"seconds": 5})
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
