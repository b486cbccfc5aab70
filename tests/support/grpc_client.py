"""All services of the gRPC door over one channel, as tests speak to them."""

from __future__ import annotations

import queue
from typing import Any

import grpc
from grpc import StatusCode
from grpc_health.v1 import health_pb2_grpc

from penstock.grpc.generated import messages_pb2, queues_pb2, topics_pb2
from penstock.grpc.generated.dead_letters_pb2_grpc import DeadLettersStub
from penstock.grpc.generated.groups_pb2_grpc import GroupsStub
from penstock.grpc.generated.messages_pb2_grpc import MessagesStub
from penstock.grpc.generated.queues_pb2 import SubscribeRequest
from penstock.grpc.generated.queues_pb2_grpc import QueuesStub
from penstock.grpc.generated.topics_pb2_grpc import TopicsStub
from penstock.grpc.generated.transactions_pb2_grpc import TransactionsStub

T_S = 60.0


class GrpcClient:
    """A client of one node."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        grpc.channel_ready_future(self.channel).result(T_S)
        self.topics = TopicsStub(self.channel)
        self.messages = MessagesStub(self.channel)
        self.queues = QueuesStub(self.channel)
        self.groups = GroupsStub(self.channel)
        self.transactions = TransactionsStub(self.channel)
        self.dead_letters = DeadLettersStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        self.topics.CreateTopic(
            topics_pb2.CreateTopicRequest(name=topic, partition_count=partitions, configs=configs), timeout=T_S
        )

    def publish(self, topic: str, *values: str) -> None:
        request = messages_pb2.PublishBatchRequest(topic=topic, messages=[{"value": each.encode()} for each in values])
        answer = self.messages.PublishBatch(request, timeout=T_S)
        assert [result.WhichOneof("result") for result in answer.results] == ["receipt"] * len(values), answer

    def receive(self, topic: str, group: str = "", **fields: Any) -> list[Any]:
        request = queues_pb2.ReceiveRequest(topic=topic, group=group, **{"max_messages": 100, **fields})
        return list(self.queues.Receive(request, timeout=T_S).messages)

    def read(self, topic: str, partition: int = 0) -> list[bytes]:
        pages = self.messages.Read(messages_pb2.ReadRequest(topic=topic, partition=partition), timeout=T_S)
        return [message.value for page in pages for message in page.messages]

    def stats(self, topic: str) -> Any:
        """Of the topic's only group, the first partition."""
        (group,) = self.queues.GetStats(queues_pb2.GetStatsRequest(topic=topic), timeout=T_S).groups
        return group.partitions[0]


class Subscriber:
    """A stream that requests can be put on and answers taken from, one by one."""

    def __init__(self, client: GrpcClient, topic: str, credit: int, **fields: Any) -> None:
        self._requests: queue.Queue[SubscribeRequest | None] = queue.Queue()
        self.call = client.queues.Subscribe(iter(self._requests.get, None), timeout=90)
        self.send(subscription=queues_pb2.Subscription(topic=topic, credits=credit, **fields))
        self.consumer = next(self.call).subscribed.consumer

    def send(self, **request: Any) -> None:
        self._requests.put(SubscribeRequest(**request))

    def messages(self, count: int) -> list[Any]:
        """The next messages, and no more than these."""
        found: list[Any] = []
        while len(found) < count:
            answer = next(self.call)
            assert answer.WhichOneof("response") == "delivery", answer
            found += answer.delivery.messages
        assert len(found) == count
        return found

    def settled(self) -> Any:
        answer = next(self.call)
        assert answer.WhichOneof("response") == "settled", answer
        return answer.settled

    def finish(self) -> list[Any]:
        """Close this side; what still comes."""
        self._requests.put(None)
        return list(self.call)


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
