"""The gRPC doors of a cluster of three: any node takes any call, whoever has to answer it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle

import grpc
import pytest
from tests.support.cluster import Cluster, eventually
from tests.support.grpc_client import T_S, GrpcClient, Subscriber

from penstock.grpc.generated import groups_pb2, messages_pb2, queues_pb2, transactions_pb2
from penstock.grpc.generated.message_pb2 import Ticket
from penstock.grpc.generated.queues_pb2 import Outcome
from penstock.grpc.generated.transactions_pb2 import TransactionState


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def clients(cluster: Cluster) -> Iterator[list[GrpcClient]]:
    made = [GrpcClient(node.grpc) for node in cluster.nodes.values()]
    yield made
    for client in made:
        client.channel.close()


def everywhere(clients: list[GrpcClient], topic: str) -> None:
    """Wait until every node knows a topic."""
    for client in clients:
        eventually(lambda client=client: client.read(topic, 2) == [], what="the topic")


def test_any_node_publishes_to_and_reads_from_any_partition(clients: list[GrpcClient], topic: str) -> None:
    clients[0].create(topic, 3)
    everywhere(clients, topic)
    for number, client in enumerate(clients):
        for partition in range(3):
            message = {"value": f"{number}".encode(), "partition": partition}
            request = messages_pb2.PublishRequest(topic=topic, message=message)
            assert client.messages.Publish(request, timeout=T_S).receipt.offset == number
    for client in clients:
        assert [client.read(topic, partition) for partition in range(3)] == [[b"0", b"1", b"2"]] * 3


def test_a_stream_to_partitions_elsewhere_keeps_its_order(clients: list[GrpcClient], topic: str) -> None:
    clients[0].create(topic, 3)
    everywhere(clients, topic)
    requests = [
        messages_pb2.PublishStreamRequest(
            id=number,
            topic=topic,
            messages=[{"value": str(number).encode(), "partition": partition} for partition in range(3)],
        )
        for number in range(100)
    ]
    answers = list(clients[1].messages.PublishStream(iter(requests), timeout=60))
    assert [answer.id for answer in answers] == list(range(100))
    for partition in range(3):
        assert clients[2].read(topic, partition) == [str(number).encode() for number in range(100)]


def test_received_at_one_node_and_acked_at_another(clients: list[GrpcClient], topic: str) -> None:
    clients[0].create(topic, 3)
    everywhere(clients, topic)
    clients[1].publish(topic, *map(str, range(30)))
    found: list[bytes] = []
    turns = cycle(clients)
    while len(found) < 30:
        leased = next(turns).receive(topic, max_messages=7, wait={"seconds": 5})
        ack = queues_pb2.AckRequest(topic=topic, receipts=[each.receipt for each in leased])
        results = next(turns).queues.Ack(ack, timeout=T_S).results
        assert {each.outcome for each in results} == {Outcome.OUTCOME_DONE}
        found += [each.value for each in leased]
    assert sorted(map(int, found)) == list(range(30))


def test_a_transaction_is_begun_written_and_ended_at_different_nodes(clients: list[GrpcClient], topic: str) -> None:
    clients[0].create(topic, 3)
    everywhere(clients, topic)
    for first in range(3):
        turns = clients[first:] + clients[:first]
        begun = turns[0].transactions.BeginTransaction(transactions_pb2.BeginTransactionRequest(), timeout=T_S)
        ticket = Ticket(transaction=begun.transaction)
        for client in turns:
            request = messages_pb2.PublishBatchRequest(
                topic=topic, messages=[{"value": b"x", "partition": partition} for partition in range(3)], ticket=ticket
            )
            results = client.messages.PublishBatch(request, timeout=T_S).results
            assert [result.error.code for result in results] == [""] * 3
            stream = messages_pb2.PublishStreamRequest(topic=topic, messages=[{"partition": 0}], ticket=ticket)
            (answer,) = client.messages.PublishStream(iter([stream]), timeout=T_S)
            assert answer.error.code == ""
        commit = transactions_pb2.CommitTransactionRequest(transaction=begun.transaction)
        ended = turns[1].transactions.CommitTransaction(commit, timeout=T_S)
        assert ended.state == TransactionState.TRANSACTION_STATE_COMMITTED
        get = transactions_pb2.GetTransactionRequest(transaction=begun.transaction)
        assert turns[2].transactions.GetTransaction(get, timeout=T_S).state == ended.state
    assert [len(clients[2].read(topic, partition)) for partition in range(3)] == [18, 9, 9]


def test_a_refusal_of_the_node_that_answers_is_told_as_it_is(clients: list[GrpcClient]) -> None:
    for client in clients:
        for name in "abcdef":  # coordinated by different nodes
            get = transactions_pb2.GetTransactionRequest(transaction=name)
            with pytest.raises(grpc.RpcError) as refused:
                client.transactions.GetTransaction(get, timeout=T_S)
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            trailers = dict(refused.value.trailing_metadata())
            assert trailers["penstock-error"] == "transaction_not_found"
            assert trailers["penstock-retriable"] == "false"


def test_a_member_is_spoken_for_at_any_node(clients: list[GrpcClient], topic: str) -> None:
    clients[0].create(topic, 3)
    everywhere(clients, topic)
    clients[0].publish(topic, *"abc")
    for number, client in enumerate(clients):
        group = f"{topic}-{number}"
        others = cycle(clients)
        member = client.groups.Join(groups_pb2.JoinRequest(group=group, topics=[topic]), timeout=T_S)
        found: list[bytes] = []
        poll = groups_pb2.PollRequest(group=group, member_id=member.member_id, wait={"seconds": 5})
        while len(found) < 3:
            found += [each.value for each in next(others).groups.Poll(poll, timeout=T_S).messages]
        commit = groups_pb2.CommitRequest(group=group, member_id=member.member_id)
        committed = next(others).groups.Commit(commit, timeout=T_S).offsets
        assert sum(each.offset for each in committed) == 3
        next(others).groups.Leave(groups_pb2.LeaveRequest(group=group, member_id=member.member_id), timeout=T_S)


def test_streams_outlast_the_death_of_a_leader(tmp_path_factory: pytest.TempPathFactory, topic: str) -> None:
    with Cluster(tmp_path_factory.mktemp("mortal")) as cluster:
        cluster_clients = {number: GrpcClient(node.grpc) for number, node in cluster.nodes.items()}
        cluster_clients[1].create(topic, 1)
        (leader,) = cluster.leaders(topic)
        client = next(each for number, each in cluster_clients.items() if number != leader)
        eventually(lambda: client.read(topic) == [], what="the topic")
        follow = client.messages.Read(messages_pb2.ReadRequest(topic=topic, follow=True), timeout=90)
        seen: queue.Queue[bytes] = queue.Queue()

        def reading() -> None:
            with suppress(grpc.RpcError):
                for page in follow:
                    for message in page.messages:
                        seen.put(message.value)

        threading.Thread(target=reading, daemon=True).start()
        subscriber = Subscriber(client, topic, 100)
        client.publish(topic, "before")
        (first,) = subscriber.messages(1)
        assert (first.value, seen.get(timeout=T_S)) == (b"before", b"before")
        cluster.nodes[leader].kill()
        eventually(lambda: client.publish(topic, "after") is None, 40, "another leader")
        values = {subscriber.messages(1)[0].value}
        assert values == {b"after"}
        assert seen.get(timeout=T_S) == b"after"
        subscriber.send(ack={"receipts": [first.receipt]})
        assert subscriber.settled().results[0].outcome == Outcome.OUTCOME_DONE, "the lease survived its leader"
        subscriber.finish()
        follow.cancel()
