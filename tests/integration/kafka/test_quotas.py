"""Clients over their quota are told so and paused; others are not; and nothing of theirs is refused or lost."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer
from tests.integration.kafka.test_admin import ask
from tests.integration.kafka.test_door import TOPIC, Client, door, fetch, produce, tell
from tests.support.node import free_port

from penstock.consensus.controller import TopicSpec
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.headers import decode_response
from penstock.doors.kafka.protocol.messages import quotas as wire
from penstock.doors.kafka.protocol.messages import records as plain
from penstock.doors.kafka.protocol.messages import topics as topics

KIB = 1024


def part(kind: str, name: str | None) -> wire.QuotaPart:
    return wire.QuotaPart(entity_type=kind, entity_name=name)


async def alter(client: Client, *parts: wire.QuotaPart, remove: bool = False, **rates: float) -> ErrorCode:
    ops = tuple(wire.QuotaChange(key=key, value=value, remove=remove) for key, value in rates.items())
    request = wire.AlterClientQuotasRequest(entries=(wire.AlteredQuota(entity=parts, ops=ops),), validate_only=False)
    response = await ask(client, request, 1, wire.AlterClientQuotasResponse)
    return ErrorCode(response.entries[0].error_code)


async def describe(client: Client, *matches: tuple[str, int, str | None], strict: bool = False) -> set[tuple[str, ...]]:
    components = tuple(wire.QuotaMatch(entity_type=kind, match_type=how, match=name) for kind, how, name in matches)
    request = wire.DescribeClientQuotasRequest(components=components, strict=strict)
    response = await ask(client, request, 1, wire.DescribeClientQuotasResponse)
    assert response.entries is not None
    return {tuple(f"{each.entity_type}={each.entity_name}" for each in entry.entity) for entry in response.entries}


def test_quotas_are_set_described_and_removed(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        assert await alter(client, part("user", "alice"), producer_byte_rate=1024) == ErrorCode.NONE
        assert await alter(client, part("user", None), consumer_byte_rate=1.5) == ErrorCode.NONE
        assert await alter(client, part("user", "alice"), part("client-id", "app"), request_rate=5) == ErrorCode.NONE
        assert await alter(client, part("ip", "10.1.2.3"), connection_creation_rate=5) == ErrorCode.NONE
        alice, both, default = ("user=alice",), ("user=alice", "client-id=app"), ("user=None",)
        assert await describe(client, ("user", 2, None)) == {alice, both, default}
        assert await describe(client, ("user", 2, None), strict=True) == {alice, default}
        assert await describe(client, ("user", 0, "alice")) == {alice, both}
        assert await describe(client, ("user", 1, None)) == {default}
        assert await describe(client) == {alice, both, default, ("ip=10.1.2.3",)}
        assert await alter(client, part("user", "alice"), remove=True, producer_byte_rate=0) == ErrorCode.NONE
        assert alice not in await describe(client)

    tell(tmp_path, story)


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        assert await alter(client, part("planet", "mars"), producer_byte_rate=1) == ErrorCode.INVALID_REQUEST
        assert await alter(client, part("user", ""), producer_byte_rate=1) == ErrorCode.INVALID_REQUEST
        assert await alter(client, producer_byte_rate=1) == ErrorCode.INVALID_REQUEST
        assert await alter(client, part("user", "a"), part("user", "b"), producer_byte_rate=1) == (
            ErrorCode.INVALID_REQUEST
        )
        assert await alter(client, part("user", "a"), bytes=1) == ErrorCode.INVALID_CONFIG
        assert await alter(client, part("user", "a"), producer_byte_rate=float("nan")) == ErrorCode.INVALID_CONFIG
        request = wire.DescribeClientQuotasRequest(
            components=(wire.QuotaMatch(entity_type="user", match_type=7, match=None),), strict=False
        )
        response = await ask(client, request, 1, wire.DescribeClientQuotasResponse)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert response.entries is None

    tell(tmp_path, story)


def test_quotas_outlive_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with door(tmp_path) as (broker, _):
            await broker.configure_resource("quota", '{"client_id":"test"}', {"producer_byte_rate": "1024"})
        async with door(tmp_path) as (broker, _):
            assert broker.quotas.is_on
            meter = broker.quotas.meters_of("", "test").produce
            assert meter is not None
            assert meter.rate == 1024

    asyncio.run(run())


def test_a_producer_over_its_quota_is_told_and_paused_and_nothing_is_lost(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        assert await alter(client, part("client-id", "test"), producer_byte_rate=100 * KIB) == ErrorCode.NONE
        began = time.monotonic()
        told_ms = []
        for _ in range(4):  # 50 KiB each: the first two are saved up, each of the others takes half a second
            client.send(produce(b"x" * 50 * KIB), 9)
            _, response = decode_response(plain.ProduceResponse, 9, await client.receive())
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
            told_ms.append(response.throttle_time_ms)
        assert told_ms[0] == 0
        assert 300 < told_ms[-1] < 2_000
        assert time.monotonic() - began > 0.4
        assert client.broker.partition(TOPIC, 0).high_watermark == 4

    tell(tmp_path, story)


def test_a_consumer_over_its_quota_gets_its_messages_and_is_paused_after_them(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        client.send(produce(b"x" * 200 * KIB), 9)
        await client.receive()
        assert await alter(client, part("client-id", "test"), consumer_byte_rate=100 * KIB) == ErrorCode.NONE
        client.send(fetch(0), 12)
        _, response = decode_response(plain.FetchResponse, 12, await client.receive())
        assert response.responses[0].partitions[0].records is not None
        assert 500 < response.throttle_time_ms < 1_500
        began = time.monotonic()
        client.send(fetch(1), 12)
        await client.receive()
        assert time.monotonic() - began > 0.5

    tell(tmp_path, story)


def test_topics_are_created_at_the_pace_of_the_quota(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        assert await alter(client, part("client-id", "test"), controller_mutation_rate=5) == ErrorCode.NONE
        topic = topics.CreatableTopic(name="new", num_partitions=10, replication_factor=1, assignments=(), configs=())
        request = topics.CreateTopicsRequest(topics=(topic,), timeout_ms=5_000)
        response = await ask(client, request, 5, topics.CreateTopicsResponse)
        assert response.topics[0].error_code == ErrorCode.NONE
        assert response.throttle_time_ms > 500

    tell(tmp_path, story)


def test_librdkafka_keeps_to_a_quota_and_a_client_beside_it_does_not_notice(tmp_path: Path) -> None:
    """A noisy client with a quota, and a neighbour without: the first is slowed down, the other is not."""

    def publish(port: int, client_id: str, count: int) -> float:
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "client.id": client_id, "linger.ms": 5})
        failures: list[object] = []
        began = time.monotonic()
        for _ in range(count):
            producer.produce(TOPIC, b"x" * KIB, on_delivery=lambda error, _: failures.append(error) if error else None)
        assert producer.flush(30) == 0
        assert not failures
        return time.monotonic() - began

    def drain(port: int, count: int) -> None:
        consumer = Consumer(
            {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([TOPIC])
        found = 0
        deadline = time.monotonic() + 30
        while found < count and time.monotonic() < deadline:
            found += sum(not message.error() for message in consumer.consume(500, 1))
        consumer.close()
        assert found == count

    async def run() -> None:
        async with door(tmp_path, port=free_port()) as (broker, server):
            await broker.create_topic(TopicSpec(name=TOPIC, partitions=1))
            await broker.configure_resource("quota", '{"client_id":"noisy"}', {"producer_byte_rate": str(256 * KIB)})
            noisy = asyncio.create_task(asyncio.to_thread(publish, server.port, "noisy", 1_024))
            quick = await asyncio.to_thread(publish, server.port, "quick", 1_024)
            slow = await noisy
            assert slow > 2  # a mebibyte at a quarter of it a second, a second saved up
            assert quick < slow / 2
            await asyncio.to_thread(drain, server.port, 2_048)

    asyncio.run(run())
