"""Clients over their quota are refused by REST, WebSocket and gRPC alike, told when to come back, and then served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import grpc
import httpx
import pytest
from tests.integration.http.conftest import DoorInThread, http_config
from tests.integration.http.websocket.conftest import Talk
from tests.support.operation_stories import text

from penstock import AsyncClient
from penstock.api.messages import Publish
from penstock.api.problems import Problem
from penstock.client.calls import error_in
from penstock.doors.grpc.config import GrpcConfig
from penstock.doors.grpc.server import GrpcServer
from penstock.errors import QuotaExceeded
from penstock.grpc.generated import messages_pb2
from penstock.grpc.generated.messages_pb2_grpc import MessagesStub
from penstock.operations.services import Services

KIB = 1024
SLOW = {"x-client-id": "slow"}


class Site:
    """One node with an HTTP and a gRPC door."""

    def __init__(self, door: DoorInThread) -> None:
        self.door = door
        self.rest = door.client
        self.grpc_server = GrpcServer(Services.of(door.broker), GrpcConfig(host="127.0.0.1", port=0))
        door.run(self.grpc_server.start())
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.grpc_server.port}")

    def limit(self, client_id: str, **rates: float) -> None:
        body = {"client_id": client_id, "quotas": rates}
        self.rest.patch("/v1/quotas", json=body).raise_for_status()

    def free(self, client_id: str) -> None:
        self.rest.delete("/v1/quotas", params={"client_id": client_id}).raise_for_status()

    def publish(self, topic: str, size: int, headers: dict[str, str] = SLOW) -> httpx.Response:
        return self.rest.post(f"/v1/topics/{topic}/publish", json={"value": "x" * size}, headers=headers)

    def close(self) -> None:
        self.channel.close()
        self.door.run(self.grpc_server.stop())
        self.door.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(DoorInThread(tmp_path_factory.mktemp("quotas"), http_config()))
    for topic in ("orders", "others"):
        made.rest.post("/v1/topics", json={"name": topic, "partitions": 1}).raise_for_status()
    yield made
    made.close()


@pytest.fixture
def slow(site: Site) -> Iterator[str]:
    """The id of a client whose quotas are gone when the test is over."""
    yield "slow"
    for each in site.rest.get("/v1/quotas").json()["quotas"]:
        site.free(each["client_id"])


def test_a_publish_over_the_quota_is_refused_until_its_debt_is_paid(site: Site, slow: str) -> None:
    site.limit(slow, producer_byte_rate=10 * KIB)
    assert site.publish("orders", 20 * KIB).status_code == 200, "the first one is never refused"
    began = time.monotonic()
    refused = site.publish("orders", 1)
    assert refused.status_code == 429
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert (problem["code"], problem["retriable"]) == ("quota_exceeded", True)
    assert "producer_byte_rate" in problem["detail"]
    assert int(refused.headers["retry-after"]) == -(-problem["retry_after_ms"] // 1000) == 1
    time.sleep(problem["retry_after_ms"] / 1000)
    assert site.publish("orders", 1).status_code == 200
    assert time.monotonic() - began < 30


def test_other_clients_and_other_operations_are_not_held(site: Site, slow: str) -> None:
    site.limit(slow, producer_byte_rate=1)
    site.publish("orders", KIB)
    assert site.publish("orders", 1).status_code == 429
    assert site.publish("orders", 1, {"x-client-id": "quick"}).status_code == 200
    assert site.publish("orders", 1, {}).status_code == 200
    assert site.rest.get("/v1/topics/orders/messages", headers=SLOW).status_code == 200


def test_refusals_write_nothing_and_cost_nothing(site: Site, slow: str) -> None:
    end = site.rest.get("/v1/topics/others/messages").json()["high_watermark"]
    site.limit(slow, producer_byte_rate=5 * KIB)
    site.publish("others", 10 * KIB)
    waits = [site.publish("others", 10 * KIB).json()["retry_after_ms"] for _ in range(5)]
    assert waits == sorted(waits, reverse=True)
    assert site.rest.get("/v1/topics/others/messages").json()["high_watermark"] == end + 1


def test_what_a_read_hands_out_is_charged_to_the_next_one(site: Site, slow: str) -> None:
    site.publish("others", 64 * KIB, {})
    site.limit(slow, consumer_byte_rate=KIB)
    read = "/v1/topics/others/messages?limit=1000"
    assert site.rest.get(read, headers=SLOW).status_code == 200
    refused = site.rest.get(read, headers=SLOW)
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert 10 <= int(refused.headers["retry-after"]) <= 30, "no debt takes longer than the longest pause"
    received = site.rest.post("/v1/queues/others/receive", json={"group": "q"}, headers=SLOW)
    assert received.status_code == 429, "a read and a receive are one kind of thing"


def test_requests_are_counted_and_acks_are_never_refused(site: Site, slow: str) -> None:
    site.rest.put("/v1/queues/others/groups/acks", json={"start": "earliest"}).raise_for_status()
    site.publish("others", 1, {})
    (message,) = site.rest.post("/v1/queues/others/receive", json={"group": "acks", "max": 1}).json()["messages"]
    site.limit(slow, request_rate=0.1)
    assert site.rest.get("/v1/topics", headers=SLOW).status_code == 200
    assert site.rest.get("/v1/topics", headers=SLOW).status_code == 429
    acked = site.rest.post(
        "/v1/queues/others/ack", json={"group": "acks", "receipts": [message["receipt"]]}, headers=SLOW
    )
    assert acked.status_code == 200
    assert acked.json()["results"][0]["status"] == "done"
    assert site.rest.get("/readyz", headers=SLOW).status_code == 200, "health checks are not counted"


def test_grpc_says_the_same_in_its_own_words(site: Site, slow: str) -> None:
    site.limit(slow, producer_byte_rate=KIB)
    stub = MessagesStub(site.channel)
    request = messages_pb2.PublishBatchRequest(topic="orders", messages=[{"value": b"x" * 3 * KIB}])
    metadata = (("x-client-id", "slow"),)
    stub.PublishBatch(request, timeout=60, metadata=metadata)
    with pytest.raises(grpc.RpcError) as refused:
        stub.PublishBatch(request, timeout=60, metadata=metadata)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers = dict(refused.value.trailing_metadata())
    assert (trailers["penstock-error"], trailers["penstock-retriable"]) == ("quota_exceeded", "true")
    assert 1 <= int(trailers["retry-after"]) <= 3
    stub.PublishBatch(request, timeout=60)


def test_a_grpc_stream_waits_instead_of_ending(site: Site, slow: str) -> None:
    site.rest.post("/v1/topics", json={"name": "streamed", "partitions": 1}).raise_for_status()
    site.publish("streamed", 40 * KIB, {})
    site.limit(slow, consumer_byte_rate=20 * KIB)
    stub = MessagesStub(site.channel)
    began = time.monotonic()
    pages = stub.Read(
        messages_pb2.ReadRequest(topic="streamed", partition=0, follow=True),
        timeout=60,
        metadata=(("x-client-id", "slow"),),
    )
    first = next(iter(pages))
    assert len(first.messages) == 1
    site.publish("streamed", 1, {})
    assert len(next(iter(pages)).messages) == 1
    assert time.monotonic() - began >= 0.9, "the debt of 40 KiB at 20 KiB/s, of which one second was saved up"
    pages.cancel()


def test_a_websocket_is_told_when_to_publish_again_and_waits_to_deliver(site: Site, slow: str) -> None:
    site.limit(slow, producer_byte_rate=10 * KIB, consumer_byte_rate=10 * KIB)
    talk = Talk(site.door.server.port, additional_headers=SLOW)
    talk.ask("publish", topic="orders", messages=[{"value": "x" * 20 * KIB}])
    problem = talk.ask("publish", "error", topic="orders", messages=[{"value": "x"}])["error"]
    assert (problem["code"], problem["status"]) == ("quota_exceeded", 429)
    assert 0 < problem["retry_after_ms"] <= 1_000
    site.rest.post("/v1/topics", json={"name": "pushed", "partitions": 1}).raise_for_status()
    site.publish("pushed", 20 * KIB, {})
    began = time.monotonic()
    talk.ask("subscribe", topic="pushed", credits=10, **{"from": "earliest"})
    assert len(talk.next("messages")["messages"]) == 1
    site.publish("pushed", 1, {})
    assert len(talk.next("messages")["messages"]) == 1
    assert time.monotonic() - began >= 0.9
    talk.close()


def test_the_client_waits_as_long_as_it_is_told_and_then_goes_on(site: Site) -> None:
    async def story() -> float:
        async with AsyncClient(str(site.rest.base_url), timeout=60) as client:
            began = time.monotonic()
            for _ in range(4):
                await client.publish("orders", "x" * 10 * KIB)
            return time.monotonic() - began

    site.rest.patch("/v1/quotas", json={"user": "ANONYMOUS", "quotas": {"producer_byte_rate": 10 * KIB}})
    try:
        assert 1.5 <= asyncio.run(story()) < 50
    finally:
        site.rest.delete("/v1/quotas", params={"user": "ANONYMOUS"}).raise_for_status()


def test_the_client_gives_up_when_its_time_is_over(site: Site) -> None:
    async def story() -> None:
        async with AsyncClient(str(site.rest.base_url), timeout=1) as client:
            await client.topics.list()
            await client.topics.list()

    site.rest.patch("/v1/quotas", json={"user": "ANONYMOUS", "quotas": {"request_rate": 0.05}})
    try:
        with pytest.raises(QuotaExceeded) as refused:
            asyncio.run(story())
        assert refused.value.retry_after_ms > 1_000
    finally:
        site.door.run(site.door.broker.configure_resource("quota", '{"user":"ANONYMOUS"}', {"request_rate": None}))


def test_refusals_are_counted_by_door_and_kind(site: Site, slow: str) -> None:
    site.limit(slow, producer_byte_rate=1)
    site.publish("orders", KIB)
    site.publish("orders", 1)
    figures = site.rest.get("/metrics").text
    assert 'penstock_quota_throttled_total{door="http",kind="produce"}' in figures
    assert 'penstock_quota_throttled_seconds_total{door="http",kind="produce"}' in figures


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"quotas": {"producer_byte_rate": 1}}, "invalid_request"),
        ({"user": "a", "ip": "10.0.0.1", "quotas": {"producer_byte_rate": 1}}, "invalid_request"),
        ({"user": "a", "quotas": {"no_such": 1}}, "invalid_config"),
        ({"user": "a", "quotas": {"producer_byte_rate": 0}}, "invalid_config"),
        ({"user": "a", "quotas": {"producer_byte_rate": True}}, "invalid_config"),
        ({"user": "a", "quotas": {}}, "invalid_body"),
        ({"user": "", "quotas": {"producer_byte_rate": 1}}, "invalid_body"),
    ],
)
def test_quotas_that_make_no_sense_are_refused(site: Site, body: object, code: str) -> None:
    answer = site.rest.patch("/v1/quotas", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)


def test_the_default_of_all_others_is_a_star(site: Site, slow: str) -> None:
    assert site.rest.patch("/v1/quotas", json={"client_id": "*", "quotas": {"request_rate": 1e6}}).json() == {
        "user": None,
        "client_id": "*",
        "ip": None,
        "quotas": {"request_rate": "1000000"},
    }
    assert len(site.rest.get("/v1/quotas?client_id=*").json()["quotas"]) == 1
    assert site.rest.delete("/v1/quotas?user=nobody").status_code == 404


def test_an_error_keeps_how_long_to_wait_on_its_way_to_the_client() -> None:
    told = Problem(
        type="", title="", status=429, detail="", instance="", code="quota_exceeded", retriable=True, retry_after_ms=7
    )
    error = error_in(told)
    assert isinstance(error, QuotaExceeded)
    assert error.retry_after_ms == 7


def test_publishing_needs_a_message_to_be_charged() -> None:
    from penstock.operations.metering import request_bytes

    assert request_bytes(Publish(topic="t", message=text("four", key="k", headers={"a": "b"}))) == 9
