"""Queues at the gRPC door of a real node: single calls, and streams that messages are pushed on."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from tests.support.cluster import eventually
from tests.support.grpc_client import T_S, GrpcClient, Subscriber, check_refused
from tests.support.node import Node

from penstock.grpc.generated import queues_pb2
from penstock.grpc.generated.dead_letters_pb2 import (
    ListDeadLettersRequest,
    ListReasonsRequest,
    ListRedrivesRequest,
    RedriveRequest,
    RedriveState,
)
from penstock.grpc.generated.message_pb2 import Start
from penstock.grpc.generated.queues_pb2 import Outcome, SubscribeRequest


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[GrpcClient]:
    made = GrpcClient(node.grpc)
    yield made
    made.channel.close()


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
    (second,) = client.receive(topic, wait={"seconds": 20})
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
    assert (job().id, job().moved, job().requested_by) == (begun.id, 1, "a test (127.0.0.1)")
    (back,) = client.receive(topic, wait={"seconds": 20})
    assert back.value == b"poison"


def test_leases_are_extended(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    client.publish(topic, "long work")
    (leased,) = client.receive(topic, visibility_timeout={"seconds": 2})
    extend = queues_pb2.ExtendRequest(receipts=[leased.receipt], visibility_timeout={"seconds": 60})
    assert client.queues.Extend(extend, timeout=T_S).results[0].outcome == Outcome.OUTCOME_DONE
    assert client.receive(topic, wait={"seconds": 3}) == []
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
    (leased,) = client.receive(topic, wait={"seconds": 60})
    assert leased.value == b"late"
    assert 0.3 < time.monotonic() - began < 50


def test_a_long_poll_never_outlives_its_deadline(client: GrpcClient, topic: str) -> None:
    client.create(topic)
    began = time.monotonic()
    request = queues_pb2.ReceiveRequest(topic=topic, wait={"seconds": 30})
    assert client.queues.Receive(request, timeout=5).messages == []
    assert time.monotonic() - began < 20


def test_a_client_that_gave_up_takes_no_message(client: GrpcClient, topic: str) -> None:
    client.create(topic, **{"queue.visibility.timeout.ms": "600000"})
    waiting = [
        client.queues.Receive.future(queues_pb2.ReceiveRequest(topic=topic, wait={"seconds": 60}), timeout=60)
        for _ in range(5)
    ]
    time.sleep(0.5)
    for call in waiting:
        call.cancel()
    time.sleep(1)
    client.publish(topic, *"abcde")
    leased = client.receive(topic, wait={"seconds": 20})
    assert [(each.value, each.delivery_count) for each in leased] == [(each.encode(), 1) for each in "abcde"]


def test_clients_that_give_up_at_any_moment_leave_no_message_with_two_leases(client: GrpcClient, topic: str) -> None:
    client.create(topic, **{"queue.visibility.timeout.ms": "600000", "queue.tries": "0"})
    request = queues_pb2.ReceiveRequest(topic=topic, max_messages=3, wait={"seconds": 20})
    calls = []
    for number in range(60):
        calls.append(client.queues.Receive.future(request, timeout=60))
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
    for number in range(20):  # a break can be taken for the client's closing its side, if it is looked at too early
        client.create(name := f"{topic}-{number}", **{"queue.visibility.timeout.ms": "600000"})
        client.publish(name, *"ab")
        subscriber = Subscriber(client, name, 2)
        done, _ = subscriber.messages(2)
        subscriber.send(ack={"receipts": [done.receipt]})
        subscriber.settled()
        subscriber.call.cancel()
        (again,) = client.receive(name, wait={"seconds": 10})
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
        ([SubscribeRequest(subscription={"topic": "T", "credits": -1})], "subscription.credits: Expected `int` >= 0"),
        (
            [SubscribeRequest(subscription={"topic": "T", "max_bytes": -1})],
            "subscription.max_bytes: Expected `int` >= 1",
        ),
        ([SubscribeRequest(subscription={"topic": "T"}), SubscribeRequest()], "request is missing"),
        ([SubscribeRequest(subscription={"topic": "T"})] * 2, "only the first request"),
        (
            [SubscribeRequest(subscription={"topic": "T"}), SubscribeRequest(credits={"count": -5})],
            "credits.count: Expected `int` >= 1",
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
    assert "ack.receipts is missing" in subscriber.settled().error.message
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

    eventually(acked, 60, "every ack")
    for subscriber in subscribers:
        subscriber.call.cancel()
    for thread in threads:
        thread.join(60)
