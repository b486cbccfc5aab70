"""Readers of committed transactions over real sockets: where they stop, what they leave out, when they are woken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from tests.integration.kafka.test_door import TOPIC, Client, fetch, fetched
from tests.support.node import free_port

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.surroundings import alone
from penstock.config.settings import StorageSettings
from penstock.consensus.controller import TopicSpec
from penstock.consensus.records import Endpoint
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.headers import decode_response
from penstock.doors.kafka.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.doors.kafka.protocol.messages.records import FetchRequest
from penstock.doors.kafka.protocol.messages.shared import TopicPartitionIndexes
from penstock.doors.kafka.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
)
from penstock.doors.kafka.server import KafkaConfig, KafkaServer
from penstock.features.messages.reading import read_messages
from penstock.partitions.access import SinceTime, resolve_start
from penstock.partitions.config import PartitionsConfig
from penstock.partitions.partition import Partition
from penstock.records import Record, encode_batch

NOW_MS = 1_700_000_000_000
READ_COMMITTED = 1
Story = Callable[["Reader", Partition], Coroutine[None, None, None]]


class Reader(Client):
    """A connection, and where to open others: clients find the node by the port that its metadata names."""

    port: int


def tell(directory: Path, story: Story) -> None:
    async def run() -> None:
        port = free_port()
        endpoint = Endpoint(door="kafka", host="127.0.0.1", port=port)
        config = BrokerConfig(
            node_id=1,
            data_dir=directory / "data",
            endpoints=(endpoint,),
            partitions=PartitionsConfig(storage=StorageSettings(housekeeping_interval_ms=3_600_000)),
        )
        broker = Broker(config, alone(1))
        await broker.start()
        server = KafkaServer(broker, KafkaConfig(host="127.0.0.1", port=port))
        await server.start()
        try:
            async with asyncio.timeout(100):
                await broker.create_topic(TopicSpec(name=TOPIC, partitions=1))
                streams = await asyncio.open_connection("127.0.0.1", port)
                reader = Reader(*streams, broker)
                reader.port = port
                await story(reader, broker.partition(TOPIC, 0))
                streams[1].close()
        finally:
            await server.stop(0.5)
            await broker.close()

    asyncio.run(run())


def write(
    partition: Partition, value: bytes, producer_id: int = -1, sequence: int = 0, *, time_ms: int = NOW_MS
) -> int:
    is_transactional = producer_id >= 0
    batch = encode_batch(
        [Record(0, time_ms, b"key", value)],
        producer_id=producer_id,
        producer_epoch=0 if is_transactional else -1,
        base_sequence=sequence if is_transactional else -1,
        is_transactional=is_transactional,
    )
    return partition.append(memoryview(batch), NOW_MS, is_durable=False).base_offset


def end(partition: Partition, producer_id: int, *, is_commit: bool, coordinator_epoch: int = 5) -> None:
    partition.end_transaction(
        producer_id, 0, is_commit=is_commit, coordinator_epoch=coordinator_epoch, now_ms=NOW_MS, is_durable=False
    )


def committed(offset: int, **options: int) -> FetchRequest:
    request = fetch(offset, **options)
    return FetchRequest(
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=READ_COMMITTED,
        topics=request.topics,
        forgotten_topics_data=(),
    )


def fill(partition: Partition) -> list[bytes]:
    """Transactions that overlap, some aborted; the values that were committed, in order."""
    write(partition, b"plain 0")  # 0
    write(partition, b"aborted 1", 1)  # 1
    write(partition, b"committed 2", 2)  # 2
    write(partition, b"aborted 3", 1, 1)  # 3
    write(partition, b"plain 4")  # 4
    end(partition, 1, is_commit=False)  # 5
    write(partition, b"committed 6", 1, 2)  # 6
    end(partition, 2, is_commit=True)  # 7
    end(partition, 1, is_commit=True)  # 8
    write(partition, b"aborted 9", 2, 1)  # 9
    end(partition, 2, is_commit=False)  # 10
    write(partition, b"plain 11")  # 11
    return [b"plain 0", b"committed 2", b"plain 4", b"committed 6", b"plain 11"]


@pytest.mark.parametrize("version", [4, 11, 12])
def test_a_fetch_names_the_aborted_transactions_of_what_it_returns(tmp_path: Path, version: int) -> None:
    async def story(client: Reader, partition: Partition) -> None:
        fill(partition)
        client.send(committed(0), version)
        found, values = await fetched(client, version)
        assert (found.high_watermark, found.last_stable_offset, len(values)) == (12, 12, 12)
        assert [(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()] == [(1, 1), (2, 9)]
        client.send(committed(4, max_bytes=1), version)
        found, _ = await fetched(client, version)
        assert [(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()] == [(1, 1)]
        client.send(committed(11), version)
        found, values = await fetched(client, version)
        assert (found.aborted_transactions, values) == ((), [b"plain 11"])

    tell(tmp_path, story)


def test_without_read_committed_everything_is_returned_and_nothing_is_named(tmp_path: Path) -> None:
    async def story(client: Reader, partition: Partition) -> None:
        fill(partition)
        write(partition, b"open", 3)
        client.send(fetch(0), 12)
        found, values = await fetched(client)
        assert (found.high_watermark, found.last_stable_offset) == (13, 12)
        assert found.aborted_transactions is None
        assert values[-1] == b"open"

    tell(tmp_path, story)


def test_a_long_poll_behind_an_open_transaction_is_woken_by_its_end(tmp_path: Path) -> None:
    async def story(client: Reader, partition: Partition) -> None:
        write(partition, b"open", 3)
        client.send(committed(0, max_wait_ms=60_000), 12)
        await asyncio.sleep(0.05)
        write(partition, b"behind it")
        waiting = asyncio.create_task(fetched(client))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        end(partition, 3, is_commit=True)
        found, values = await asyncio.wait_for(waiting, 60)
        assert found.last_stable_offset == 3
        assert values[:2] == [b"open", b"behind it"]

    tell(tmp_path, story)


def test_a_fetch_between_the_last_stable_offset_and_the_high_watermark_finds_nothing_yet(tmp_path: Path) -> None:
    async def story(client: Reader, partition: Partition) -> None:
        write(partition, b"open", 3)
        write(partition, b"behind it")
        client.send(committed(1), 12)
        found, values = await fetched(client)
        assert (found.error_code, found.high_watermark, found.last_stable_offset, values) == (0, 2, 0, [])
        client.send(committed(3), 12)
        found, _ = await fetched(client)
        assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    tell(tmp_path, story)


def test_offsets_for_readers_of_committed_data_end_at_the_last_stable_one(tmp_path: Path) -> None:
    async def ask(client: Client, timestamp: int, isolation_level: int) -> int:
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=(
                ListOffsetsTopic(
                    name=TOPIC, partitions=(ListOffsetsPartition(partition_index=0, timestamp=timestamp),)
                ),
            ),
        )
        client.send(request, 7)
        _, response = decode_response(ListOffsetsResponse, 7, await client.receive())
        return response.topics[0].partitions[0].offset

    async def story(client: Reader, partition: Partition) -> None:
        write(partition, b"a", time_ms=NOW_MS)
        write(partition, b"open", 3, time_ms=NOW_MS + 10)
        write(partition, b"b", time_ms=NOW_MS + 20)
        latest, largest = -1, -3
        assert [await ask(client, latest, level) for level in (0, 1)] == [3, 1]
        assert [await ask(client, NOW_MS + 5, level) for level in (0, 1)] == [1, -1]
        assert [await ask(client, NOW_MS, level) for level in (0, 1)] == [0, 0]
        assert [await ask(client, largest, level) for level in (0, 1)] == [2, -1]
        end(partition, 3, is_commit=True)
        assert [await ask(client, latest, level) for level in (0, 1)] == [4, 4]
        assert await ask(client, NOW_MS + 15, 1) == 2

    tell(tmp_path, story)


def test_producers_are_described_with_their_open_transactions(tmp_path: Path) -> None:
    async def ask(client: Client, topic: str, index: int) -> PartitionResponse:
        request = DescribeProducersRequest(topics=(TopicPartitionIndexes(name=topic, partition_indexes=(index,)),))
        client.send(request, 0)
        _, response = decode_response(DescribeProducersResponse, 0, await client.receive())
        return response.topics[0].partitions[0]

    async def story(client: Reader, partition: Partition) -> None:
        write(partition, b"a", 1)
        end(partition, 1, is_commit=True)
        write(partition, b"b", 1, 1)
        write(partition, b"c", 2)
        end(partition, 4, is_commit=False)
        found = await ask(client, TOPIC, 0)
        assert found.error_code == 0
        facts = [
            (
                each.producer_id,
                each.producer_epoch,
                each.last_sequence,
                each.last_timestamp,
                each.coordinator_epoch,
                each.current_txn_start_offset,
            )
            for each in found.active_producers
        ]
        assert facts == [
            (1, 0, 1, NOW_MS, 5, 2),
            (2, 0, 0, NOW_MS, -1, 3),
            (4, 0, -1, NOW_MS, 5, -1),
        ]
        for topic, index in (("nothing", 0), (TOPIC, 9)):
            assert (await ask(client, topic, index)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    tell(tmp_path, story)


def test_the_doors_that_speak_of_messages_show_only_what_is_committed(tmp_path: Path) -> None:
    async def story(client: Reader, partition: Partition) -> None:
        broker = client.broker
        expected = fill(partition)
        result = await read_messages(broker.ports, TOPIC, 0, 0, limit=100)
        assert [record.value for record in result.messages] == expected
        assert result.next_offset == 12
        result = await read_messages(broker.ports, TOPIC, 0, "earliest", limit=3)
        assert [record.value for record in result.messages] == expected[:3]
        result = await read_messages(broker.ports, TOPIC, 0, result.next_offset, limit=100)
        assert [record.value for record in result.messages] == expected[3:]
        write(partition, b"open", 3, time_ms=NOW_MS + 10)
        write(partition, b"behind it", time_ms=NOW_MS + 20)
        assert await resolve_start(partition, "latest") == 12
        assert await resolve_start(partition, SinceTime(NOW_MS + 15)) == 12
        waiting = asyncio.create_task(read_messages(broker.ports, TOPIC, 0, 12, limit=10, wait_ms=60_000))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        end(partition, 3, is_commit=False)
        result = await asyncio.wait_for(waiting, 60)
        assert [record.value for record in result.messages] == [b"behind it"]

    tell(tmp_path, story)


def consume_confluent(port: int, isolation: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "none",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found = consumer.consume(count + 1, timeout=60)  # one more, for the notice that there is nothing left
    consumer.close()
    return [message.value() for message in found if message.error() is None]


def consume_kafka_python(port: int, isolation: str, count: int) -> list[bytes]:
    consumer: Any = KafkaConsumer(bootstrap_servers=f"127.0.0.1:{port}", isolation_level=isolation, group_id=None)
    where = KafkaPythonPartition(TOPIC, 0)
    consumer.assign([where])
    consumer.seek(where, 0)
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        values += [record.value for record in consumer.poll(timeout_ms=500).get(where, ())]
    values += [record.value for record in consumer.poll(timeout_ms=300).get(where, ())]  # there should be nothing left
    consumer.close()
    return values


@pytest.mark.parametrize("consume", [consume_confluent, consume_kafka_python])
def test_clients_leave_out_what_was_aborted_and_stop_before_what_is_open(
    tmp_path: Path, consume: Callable[[int, str, int], list[bytes]]
) -> None:
    async def story(client: Reader, partition: Partition) -> None:
        expected = fill(partition)
        write(partition, b"open", 3)
        write(partition, b"behind it")
        port = client.port
        assert await asyncio.to_thread(consume, port, "read_committed", len(expected)) == expected
        everything = await asyncio.to_thread(consume, port, "read_uncommitted", 10)
        assert len(everything) == 10
        assert everything[-2:] == [b"open", b"behind it"]
        end(partition, 3, is_commit=True)
        expected += [b"open", b"behind it"]
        assert await asyncio.to_thread(consume, port, "read_committed", len(expected)) == expected

    tell(tmp_path, story)
