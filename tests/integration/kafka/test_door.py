"""The Kafka door over real sockets: order, pipelining, backpressure, long polls and refusals."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.looks import note_looks

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.surroundings import alone
from penstock.config.settings import BrokerSettings, StorageSettings
from penstock.consensus.controller import TopicSpec
from penstock.consensus.records import Endpoint
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.headers import decode_response, encode_request
from penstock.doors.kafka.protocol.messages import records as plain
from penstock.doors.kafka.protocol.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from penstock.doors.kafka.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.doors.kafka.protocol.schema import ApiMessage
from penstock.doors.kafka.server import KafkaConfig, KafkaServer
from penstock.errors import StartupError
from penstock.partitions.config import PartitionsConfig
from penstock.records import Codec, Record, decode_records, encode_batch, iter_batches, parse_header

TOPIC = "t"
Story = Callable[["Client"], Coroutine[None, None, None]]


class Client:
    """A connection that speaks in our own messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, broker: Broker) -> None:
        self.reader = reader
        self.writer = writer
        self.broker = broker
        self._next_id = 0

    def send(self, message: ApiMessage, version: int) -> int:
        self._next_id += 1
        self.writer.write(encode_request(message, version, self._next_id, "test"))
        return self._next_id

    async def receive(self) -> memoryview:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return memoryview(await self.reader.readexactly(length))

    async def is_closed(self) -> bool:
        return await self.reader.read(1) == b""


@asynccontextmanager
async def door(directory: Path, port: int = 0, **options: int) -> AsyncIterator[tuple[Broker, KafkaServer]]:
    endpoint = Endpoint(door="kafka", host="0.0.0.0", port=port)
    broker = Broker(
        BrokerConfig(
            node_id=1,
            data_dir=directory / "data",
            endpoints=(endpoint,),
            partitions=PartitionsConfig(storage=StorageSettings(housekeeping_interval_ms=3_600_000)),
        ),
        alone(1),
    )
    await broker.start()
    settings = BrokerSettings(**options)  # type: ignore[arg-type]
    server = KafkaServer(broker, KafkaConfig(port=port, node=settings, connections_max=settings.max_connections))
    await server.start()
    try:
        yield broker, server
    finally:
        await server.stop(0.5)
        await broker.close()


def tell(directory: Path, story: Story, **options: int) -> None:
    async def run() -> None:
        async with asyncio.timeout(90), door(directory, **options) as (broker, server):
            await broker.create_topic(TopicSpec(name=TOPIC, partitions=2))
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            try:
                await story(Client(reader, writer, broker))
            finally:
                writer.close()

    asyncio.run(run())


def produce(
    *values: bytes, acks: int = 1, topic: str = TOPIC, partition: int = 0, codec: Codec = Codec.NONE
) -> plain.ProduceRequest:
    records = [Record(at, 1_700_000_000_000, None, value) for at, value in enumerate(values)]
    return produce_batch(bytes(encode_batch(records, codec=codec)), acks=acks, topic=topic, partition=partition)


def produce_batch(batch: bytes, *, acks: int = 1, topic: str = TOPIC, partition: int = 0) -> plain.ProduceRequest:
    return plain.ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=5_000,
        topic_data=(
            plain.TopicProduceData(
                name=topic, partition_data=(plain.PartitionProduceData(index=partition, records=batch),)
            ),
        ),
    )


def fetch(
    offset: int, *, max_wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 1 << 20, partition: int = 0
) -> plain.FetchRequest:
    return plain.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=(
            plain.FetchTopic(
                topic=TOPIC,
                partitions=(
                    plain.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes),
                ),
            ),
        ),
        forgotten_topics_data=(),
    )


async def produced(client: Client, version: int = 9) -> plain.PartitionProduceResponse:
    _, response = decode_response(plain.ProduceResponse, version, await client.receive())
    return response.responses[0].partition_responses[0]


async def fetched(client: Client, version: int = 12) -> tuple[plain.PartitionData, list[bytes | None]]:
    _, response = decode_response(plain.FetchResponse, version, await client.receive())
    partition = response.responses[0].partitions[0]
    data = memoryview(partition.records or b"")
    values = [
        record.value for at, header in iter_batches(data) for record in decode_records(data[at : at + header.size])
    ]
    return partition, values


def test_pipelined_produces_are_answered_in_order_whatever_their_acks(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        ids = [client.send(produce(b"x", acks=acks), 9) for acks in (-1, 1, -1, 1, 1, -1)]
        for number, expected in enumerate(ids):
            frame = await client.receive()
            correlation_id, response = decode_response(plain.ProduceResponse, 9, frame)
            assert correlation_id == expected
            assert response.responses[0].partition_responses[0].base_offset == number

    tell(tmp_path, story)


@pytest.mark.parametrize("version", [3, 5, 7, 8, 9, 12])
def test_what_is_produced_is_fetched_in_every_version(tmp_path: Path, version: int) -> None:
    async def story(client: Client) -> None:
        for number in range(3):  # the second and third time the request is known by its template
            client.send(produce(b"a%d" % number, b"b%d" % number), version)
            placed = await produced(client, version)
            assert (placed.error_code, placed.base_offset) == (0, 2 * number)
        client.send(fetch(0), 12)
        partition, values = await fetched(client)
        assert values == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]
        assert partition.high_watermark == 6

    tell(tmp_path, story)


def test_a_long_poll_ends_as_soon_as_something_is_appended(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        client.send(fetch(0, max_wait_ms=60_000), 12)
        await asyncio.sleep(0.1)
        batch = encode_batch([Record(0, 1, None, b"late")])
        client.broker.partition(TOPIC, 0).append(memoryview(batch), 1, is_durable=False)
        _, values = await fetched(client)
        assert values == [b"late"]
        assert loop.time() - began < 50

    tell(tmp_path, story)


def test_a_long_poll_that_finds_nothing_ends_on_time_and_empty(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        client.send(fetch(0, max_wait_ms=150), 12)
        partition, values = await fetched(client)
        assert (partition.error_code, values, partition.records) == (0, [], b"")

    tell(tmp_path, story)


def test_a_fetch_waits_for_its_min_bytes(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        partition = client.broker.partition(TOPIC, 0)
        client.send(fetch(0, max_wait_ms=60_000, min_bytes=1_500), 12)
        for _ in range(2):
            await asyncio.sleep(0.05)
            partition.append(memoryview(encode_batch([Record(0, 1, None, b"x" * 900)])), 1, is_durable=False)
        _, values = await fetched(client)
        assert len(values) == 2

    tell(tmp_path, story)


@pytest.mark.parametrize("min_bytes", [10_000, 1_000_000, 3_000_000])
def test_a_fetch_does_not_wait_for_its_min_bytes_while_there_is_more_to_read(tmp_path: Path, min_bytes: int) -> None:
    async def story(client: Client) -> None:
        for _ in range(4):
            client.send(produce(b"x" * 700_000), 9)
            await produced(client)
        loop = asyncio.get_running_loop()
        began = loop.time()
        client.send(fetch(0, max_wait_ms=80_000, min_bytes=min_bytes, max_bytes=2_000_000), 12)
        _, values = await fetched(client)
        assert values
        assert loop.time() - began < 40

    tell(tmp_path, story)


def test_one_batch_is_returned_however_small_the_limit(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        for value in (b"x" * 5_000, b"y" * 5_000):
            client.send(produce(value), 9)
            await produced(client)
        client.send(fetch(0, max_bytes=10), 12)
        _, values = await fetched(client)
        assert values == [b"x" * 5_000]

    tell(tmp_path, story)


def test_a_client_that_does_not_read_is_not_read_from_either(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        for _ in range(8):
            client.send(produce(b"z" * 900_000), 9)
            await produced(client)
        for _ in range(400):
            client.send(fetch(0, max_bytes=8 << 20), 12)
        await asyncio.sleep(0.5)  # the node has sent what the socket takes and stopped there
        for _ in range(3):
            _, values = await fetched(client)
            assert values
        reader, writer = await asyncio.open_connection("127.0.0.1", client.writer.get_extra_info("peername")[1])
        other = Client(reader, writer, client.broker)
        other.send(fetch(0), 12)
        _, values = await asyncio.wait_for(fetched(other), 60)
        assert values
        writer.close()

    tell(tmp_path, story)


def test_an_error_in_one_partition_leaves_the_others_alone(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        good = produce(b"a").topic_data[0].partition_data[0]
        request = plain.ProduceRequest(
            transactional_id=None,
            acks=1,
            timeout_ms=100,
            topic_data=(
                plain.TopicProduceData(
                    name=TOPIC,
                    partition_data=(
                        plain.PartitionProduceData(index=0, records=good.records),
                        plain.PartitionProduceData(index=9, records=good.records),
                        plain.PartitionProduceData(index=1, records=b"no batch at all"),
                    ),
                ),
            ),
        )
        client.send(request, 9)
        _, response = decode_response(plain.ProduceResponse, 9, await client.receive())
        codes = [row.error_code for row in response.responses[0].partition_responses]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.CORRUPT_MESSAGE]

    tell(tmp_path, story)


def test_acks_0_is_not_answered(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        client.send(produce(b"a", acks=0), 9)
        client.send(produce(b"b", acks=1), 9)
        assert (await produced(client)).base_offset == 1

    tell(tmp_path, story)


def test_unknown_acks_are_refused(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        client.send(produce(b"a", acks=2), 9)
        assert (await produced(client)).error_code == ErrorCode.INVALID_REQUIRED_ACKS

    tell(tmp_path, story)


def test_a_newer_api_versions_is_answered_in_the_oldest_format(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        frame = bytearray(encode_request(ApiVersionsRequest(), 4, 1, "test"))
        frame[6:8] = struct.pack(">h", 99)
        client.writer.write(frame)
        _, response = decode_response(ApiVersionsResponse, 0, await client.receive())
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert {row.api_key for row in response.api_keys} >= {0, 1, 3, 18}

    tell(tmp_path, story)


def test_an_unknown_api_closes_the_connection(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        client.writer.write(struct.pack(">ihhih", 10, 999, 0, 1, -1))
        assert await client.is_closed()

    tell(tmp_path, story)


def test_too_long_a_request_closes_the_connection(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        client.writer.write(struct.pack(">i", 2_000))
        assert await client.is_closed()

    tell(tmp_path, story, max_request_bytes=1_000)


def test_connections_past_the_limit_are_refused_and_the_first_stays(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        client.send(produce(b"a"), 9)
        await produced(client)
        reader, writer = await asyncio.open_connection("127.0.0.1", client.writer.get_extra_info("peername")[1])
        assert await reader.read(1) == b""
        writer.close()
        client.send(produce(b"b"), 9)
        assert (await produced(client)).base_offset == 1

    tell(tmp_path, story, max_connections=1)


def test_idle_connections_are_closed(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        assert await asyncio.wait_for(client.is_closed(), 5)

    tell(tmp_path, story, idle_timeout_ms=200)


def test_a_node_that_listens_everywhere_is_found_where_it_was_found(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        client.send(MetadataRequest(topics=(MetadataRequestTopic(name=TOPIC),)), 12)
        _, response = decode_response(MetadataResponse, 12, await client.receive())
        assert response.brokers[0].host == "127.0.0.1"
        assert len(response.topics[0].partitions) == 2

    tell(tmp_path, story)


@pytest.mark.parametrize(("timestamp", "offset"), [(-2, 0), (-1, 3), (1_500, 1), (3_000, 2), (9_999, -1), (-3, 2)])
def test_offsets_are_found_by_time(tmp_path: Path, timestamp: int, offset: int) -> None:
    async def story(client: Client) -> None:
        partition = client.broker.partition(TOPIC, 0)
        for at in (1_000, 2_000, 3_000):
            partition.append(memoryview(encode_batch([Record(0, at, None, b"v")])), 1, is_durable=False)
        wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=TOPIC, partitions=(wanted,)),))
        client.send(request, 7)
        _, response = decode_response(ListOffsetsResponse, 7, await client.receive())
        assert response.topics[0].partitions[0].offset == offset

    tell(tmp_path, story)


def test_a_port_in_use_is_named_with_what_to_do(tmp_path: Path) -> None:
    async def run() -> None:
        async with door(tmp_path) as (broker, server):
            with pytest.raises(StartupError, match="--kafka"):
                await KafkaServer(broker, KafkaConfig(port=server.port)).start()

    asyncio.run(run())


CODECS = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


def settings_of(client: Client, **changes: str) -> Coroutine[None, None, None]:
    return client.broker.configure_topic(TOPIC, {name.replace("_", "."): value for name, value in changes.items()})


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("size", [20, 50_000])
def test_a_topic_stores_batches_with_its_own_codec(tmp_path: Path, name: str, size: int) -> None:
    async def story(client: Client) -> None:
        await settings_of(client, compression_type=name)
        stored = client.broker.partition(TOPIC, 0)
        came = [Codec.NONE, Codec.ZSTD, Codec.GZIP, CODECS[name]]
        for number, codec in enumerate(came):
            values = [b"%d %d " % (number, at) + b"x" * size for at in range(3)]
            client.send(produce(*values, codec=codec), 9)
            client.send(produce(*values, codec=codec), 9)  # by its template, behind one that may be under way
        for number in range(2 * len(came)):
            placed = await produced(client)
            assert (placed.error_code, placed.base_offset) == (0, 3 * number)
        headers = [parse_header(batch.read()) for batch in stored.log.batches(0)]
        assert [header.codec for header in headers] == [CODECS[name]] * 2 * len(came)
        client.send(fetch(0, max_bytes=8 << 20), 12)
        _, values = await fetched(client)
        assert [value[:4] for value in values if value] == [
            b"%d %d " % (number, at) for number in range(len(came)) for _ in range(2) for at in range(3)
        ]

    tell(tmp_path, story)


@pytest.mark.parametrize(
    "changes",
    [
        {"cleanup_policy": "compact"},
        {"message_timestamp_before_max_ms": "1000000000000"},
        {"delay_headers_enable": "true"},
        {"compression_type": "gzip"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_batch_that_takes_long_to_look_into_does_not_keep_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]
) -> None:
    headers = (("penstock-delay-ms", b"3600000"),)
    now_ms = int(time.time() * 1000)
    records = [Record(at, now_ms + at, b"k", None, headers if at == 1 else ()) for at in range(30_000)]
    batch = bytes(encode_batch(records, codec=Codec.ZSTD))

    async def story(client: Client) -> None:
        await settings_of(client, **changes)
        looks = note_looks(monkeypatch)
        for number in range(3):  # the later ones by their shape
            client.send(produce_batch(batch, acks=-1), 9)
            client.send(produce_batch(bytes(encode_batch(records[:1])), partition=1), 9)
            placed, behind = await produced(client), await produced(client)
            assert (placed.error_code, behind.error_code) == (0, 0)
            assert (placed.base_offset, behind.base_offset) == (30_000 * number, number)
        assert not looks.on_loop
        assert looks.beside or "compression_type" in changes, "compressing anew decodes no record"
        wanted = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=now_ms + 29_999)
        client.send(ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=TOPIC, partitions=(wanted,)),)), 7)
        _, found = decode_response(ListOffsetsResponse, 7, await client.receive())
        assert found.topics[0].partitions[0].offset == 29_999
        looks.check()

    tell(tmp_path, story)


def test_a_large_batch_without_keys_is_refused_where_they_are_needed(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        await settings_of(client, cleanup_policy="compact")
        client.send(produce(*[b"x"] * 1_000, codec=Codec.ZSTD), 9)
        refused = await produced(client)
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert len(refused.record_errors) == 1_000
        client.send(produce_batch(bytes(encode_batch([Record(0, 1, b"k", b"v")], codec=Codec.ZSTD))), 9)
        assert (await produced(client)).base_offset == 0

    tell(tmp_path, story)


def test_a_batch_that_is_too_large_once_it_is_stored_otherwise_is_refused(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        await settings_of(client, compression_type="uncompressed", max_message_bytes="10000")
        client.send(produce(b"x" * 50_000, codec=Codec.GZIP), 9)
        assert (await produced(client)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        client.send(produce(b"x" * 500, codec=Codec.GZIP), 9)
        assert (await produced(client)).error_code == 0

    tell(tmp_path, story)


def test_a_level_of_compression_is_heeded(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        value = b"".join(b"%d," % (at * 7919 % 10_007) for at in range(20_000))
        sizes = []
        for level in ("1", "9"):
            await settings_of(client, compression_type="gzip", compression_gzip_level=level)
            client.send(produce(value), 9)
            await produced(client)
            sizes.append(client.broker.partition(TOPIC, 0).log.size_bytes)
        assert sizes[1] - sizes[0] < sizes[0]

    tell(tmp_path, story)


def test_only_the_bad_records_of_a_batch_are_named(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        await settings_of(client, cleanup_policy="compact")
        for _ in range(2):
            records = [Record(at, 1, None if at in (1, 3) else b"k", b"v") for at in range(5)]
            client.send(produce_batch(bytes(encode_batch(records))), 9)
            refused = await produced(client)
            assert refused.error_code == ErrorCode.INVALID_RECORD
            assert [error.batch_index for error in refused.record_errors] == [1, 3]
            assert all(error.batch_index_error_message for error in refused.record_errors)

    tell(tmp_path, story)


def test_records_too_old_or_too_far_ahead_are_refused(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        await settings_of(client, message_timestamp_before_max_ms="60000", message_timestamp_after_max_ms="10000")
        now_ms = client.broker.clock.now_ms()
        times = [now_ms, now_ms - 3_600_000, now_ms + 3_600_000, now_ms - 1_000]
        client.send(produce_batch(bytes(encode_batch([Record(at, ms, None, b"v") for at, ms in enumerate(times)]))), 9)
        refused = await produced(client)
        assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [error.batch_index for error in refused.record_errors] == [1, 2]
        client.send(produce_batch(bytes(encode_batch([Record(0, now_ms, None, b"v")]))), 9)
        assert (await produced(client)).error_code == 0
        await settings_of(client, message_timestamp_type="LogAppendTime")
        client.send(produce_batch(bytes(encode_batch([Record(0, 1, None, b"v")]))), 9)
        assert (await produced(client)).error_code == 0

    tell(tmp_path, story)
