"""Kafka producers delay records by headers, and Kafka consumers see them when they are due and not before."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition
from tests.acceptance.conftest import NodeMaker
from tests.support.cluster import eventually
from tests.support.node import Node
from tests.support.wire import ask

from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.headers import decode_response, encode_request
from penstock.doors.kafka.protocol.messages import records as plain
from penstock.records import Record, encode_batch

Headers = tuple[tuple[str, bytes | None], ...]
HOUR: Headers = (("penstock-delay-ms", b"3600000"),)
PRODUCER_ID = 4_711
VERSION = 9


def create(node: Node, topic: str, **configs: str) -> None:
    config = {"delay.headers.enable": "true", **configs}
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(60)


def send(node: Node, topic: str, *messages: tuple[str, Headers], **config: Any) -> list[tuple[str, int | None]]:
    """Send messages together; the error, if any, and the offset of each, by its delivery report."""
    reports: dict[str, tuple[str, int | None]] = {}

    def note(error: KafkaError | None, message: Any) -> None:
        told = "" if error is None else error.name()
        reports[message.value().decode()] = (told, message.offset())

    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 100, "log_level": 2, **config})
    for value, headers in messages:
        producer.produce(topic, value, headers=list(headers), on_delivery=note)
    assert producer.flush(60) == 0
    return [reports[value] for value, _ in messages]


def schedules_of(node: Node, topic: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{node.http_url}/v1/schedules", params={"topic": topic, "limit": 1000}, timeout=60)
    found: list[dict[str, Any]] = answer.json()["schedules"]
    return found


@pytest.fixture
def consumer(node: Node, topic: str) -> Iterator[Consumer]:
    made = Consumer({"bootstrap.servers": node.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    yield made
    made.close()


def read(consumer: Consumer, count: int, patience_s: float = 60.0) -> list[tuple[int, str, dict[str, bytes], float]]:
    """Messages with their offsets and headers, and when each was seen."""
    found: list[tuple[int, str, dict[str, bytes], float]] = []
    deadline = time.monotonic() + patience_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {found} of {count} came"
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            headers: Any = dict(message.headers() or [])
            found.append((message.offset(), message.value().decode(), headers, time.time()))
    return found


def test_a_consumer_sees_a_delayed_record_when_it_is_due_and_not_before(
    node: Node, topic: str, consumer: Consumer
) -> None:
    create(node, topic)
    consumer.subscribe([topic])
    assert send(node, topic, ("warm", ())) == [("", 0)]
    read(consumer, 1)  # it is a member of its group now
    moment = datetime.now(UTC) + timedelta(seconds=2)
    delayed: Headers = (("kept", b"yes"), ("penstock-delay-ms", b"1500"))
    began = time.time()
    send(
        node,
        topic,
        ("at", (("penstock-deliver-at", moment.isoformat().encode()),)),
        ("delayed", delayed),
        ("now", (("penstock-delay-ms", b"0"),)),
    )
    seen = {value: (headers, at) for _, value, headers, at in read(consumer, 3)}
    assert seen["delayed"][1] >= began + 1.5
    assert seen["at"][1] >= moment.timestamp()
    assert seen["now"][1] <= seen["delayed"][1]
    headers = seen["delayed"][0]
    assert headers["kept"] == b"yes"
    assert "penstock-delay-ms" not in headers, "or whoever copies it would delay it again"
    assert headers["penstock-schedule-id"].startswith(b"kafka:") or headers["penstock-schedule-id"].startswith(
        b"sched-"
    )
    eventually(lambda: schedules_of(node, topic) == [])  # a moment after its message can be read


@pytest.mark.parametrize(
    "config",
    [
        {"enable.idempotence": True},
        {"acks": "all"},
        {"acks": 1, "compression.type": "zstd"},
        {"acks": 0},
        {"enable.idempotence": True, "compression.type": "lz4"},
    ],
)
def test_records_around_delayed_ones_keep_their_offsets_and_every_client_reads_across_the_gaps(
    node: Node, topic: str, consumer: Consumer, config: dict[str, Any]
) -> None:
    create(node, topic)
    consumer.assign([TopicPartition(topic, 0, 0)])
    first = send(node, topic, ("a", ()), ("later 1", HOUR), ("later 2", HOUR), ("b", ()), **config)
    found = read(consumer, 2)  # nobody tells a producer without acks when it is there
    send(node, topic, ("later 3", HOUR), ("later 4", HOUR), **config)  # nothing of this batch is left
    eventually(lambda: len(schedules_of(node, topic)) == 4)
    last = send(node, topic, ("c", ()), **config)
    if config.get("acks") != 0:
        assert [error for error, _ in (*first, *last)] == [""] * 5
    places = {value: offset for offset, value, _, _ in [*found, *read(consumer, 1)]}
    assert list(places) == ["a", "b", "c"]
    if config.get("acks") != 0:
        assert [places["a"], places["b"], places["c"]] == [first[0][1], first[3][1], last[0][1]]
    assert sorted(each["value"] for each in schedules_of(node, topic)) == ["later 1", "later 2", "later 3", "later 4"]

    queue = httpx.post(f"{node.http_url}/v1/queues/{topic}/receive", json={"max": 10, "wait_ms": 20_000}, timeout=60)
    assert [message["value"] for message in queue.json()["messages"]] == ["a", "b", "c"]


def test_records_of_one_producer_for_the_same_moment_come_in_their_order(
    node: Node, topic: str, consumer: Consumer
) -> None:
    create(node, topic)
    due: Headers = (("penstock-deliver-at", b"%d" % int(time.time() * 1000 + 5_000)),)
    send(node, topic, *((str(number), due) for number in range(200)), **{"enable.idempotence": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [value for _, value, _, _ in read(consumer, 200)] == [str(number) for number in range(200)]


def test_other_clients_read_across_the_gaps_too(node: Node, topic: str) -> None:
    create(node, topic)
    for value in ("x", "y", "z"):  # each with a batch between them of which nothing is left
        send(node, topic, (value, ()), ("gap", HOUR), **{"enable.idempotence": True})
        send(node, topic, ("all", HOUR), **{"enable.idempotence": True})
    wanted = [b"x", b"y", b"z"]

    python = KafkaConsumer(bootstrap_servers=node.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=60_000)
    python.assign([PythonTopicPartition(topic, 0)])
    try:
        assert [record.value for _, record in zip(range(3), python, strict=False)] == wanted
    finally:
        python.close()

    async def aio() -> list[bytes]:
        reader = AIOKafkaConsumer(bootstrap_servers=node.bootstrap, auto_offset_reset="earliest")
        await reader.start()
        try:
            reader.assign([AioTopicPartition(topic, 0)])
            return [(await asyncio.wait_for(reader.getone(), 60)).value for _ in range(3)]
        finally:
            await reader.stop()

    assert asyncio.run(aio()) == wanted
    if shutil.which("kcat"):
        command = ["kcat", "-b", node.bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q"]
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        assert done.stdout.split() == wanted


def test_what_makes_no_sense_is_refused_and_the_producer_goes_on(node: Node, topic: str, consumer: Consumer) -> None:
    create(node, topic)
    producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True, "log_level": 2})
    told: list[str] = []
    for headers in ((("penstock-delay-ms", b"soon"),), (("penstock-deliver-at", b"2099-01-01"),), ()):
        producer.produce(
            topic, "v", headers=list(headers), on_delivery=lambda error, _: told.append(error.name() if error else "")
        )
        assert producer.flush(60) == 0
    assert told == ["INVALID_RECORD", "INVALID_RECORD", ""]
    assert schedules_of(node, topic) == []


def test_records_of_a_transaction_cannot_be_for_later(node: Node, topic: str) -> None:
    create(node, topic)
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": topic, "log_level": 2})
    producer.init_transactions(30)
    producer.begin_transaction()
    told: list[str] = []
    producer.produce(topic, "v", headers=list(HOUR), on_delivery=lambda error, _: told.append(error.name()))
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    producer.abort_transaction(30)
    assert told == ["INVALID_RECORD"]
    assert schedules_of(node, topic) == []


def test_only_topics_that_say_so_delay_and_that_can_be_changed(node: Node, topic: str, consumer: Consumer) -> None:
    create(node, topic, **{"delay.headers.enable": "false"})
    assert send(node, topic, ("at once", HOUR)) == [("", 0)]
    admin = AdminClient({"bootstrap.servers": node.bootstrap})

    def resource(value: str) -> ConfigResource:
        entry = ConfigEntry("delay.headers.enable", value, incremental_operation=AlterConfigOpType.SET)
        return ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])

    (changed,) = admin.incremental_alter_configs([resource("true")]).values()
    changed.result(60)
    (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    assert described.result(60)["delay.headers.enable"].value == "true"
    send(node, topic, ("later", HOUR), ("also at once", ()))
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen = read(consumer, 2)
    assert [value for _, value, _, _ in seen] == ["at once", "also at once"]
    assert seen[0][2]["penstock-delay-ms"] == b"3600000"
    (refused,) = admin.incremental_alter_configs([resource("sometimes")]).values()
    with pytest.raises(KafkaException):
        refused.result(60)


# -- sent again --------------------------------------------------------------------------------------------------------


def produce(node: Node, topic: str, sequence: int, *headers: Headers, acks: int = -1) -> tuple[int, int]:
    """Send a numbered batch once, on a connection of its own; the error and the base offset."""
    records = [Record(at, 1_700_000_000_000, None, b"%d" % (sequence + at), each) for at, each in enumerate(headers)]
    batch = encode_batch(records, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence)
    data = plain.PartitionProduceData(index=0, records=bytes(batch))
    topics = (plain.TopicProduceData(name=topic, partition_data=(data,)),)
    request = plain.ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=topics)
    answer = ask(node.kafka_port, bytes(encode_request(request, VERSION, 1, "test")))
    assert answer is not None
    _, response = decode_response(plain.ProduceResponse, VERSION, answer)
    (partition,) = response.responses[0].partition_responses
    return partition.error_code, partition.base_offset


def test_a_numbered_batch_that_is_sent_again_is_scheduled_once(make_node: NodeMaker, topic: str) -> None:
    """Also when the node was killed in between; and the numbers go on as if nothing had been taken out."""
    shapes: list[tuple[Headers, ...]] = [((), HOUR, ()), (HOUR, HOUR), ((),), (HOUR,)]
    node = make_node().start()
    create(node, topic)
    sent: list[tuple[int, tuple[Headers, ...], int]] = []
    sequence = 0
    for shape in shapes:
        code, offset = produce(node, topic, sequence, *shape)
        assert code == ErrorCode.NONE
        sent.append((sequence, shape, offset))
        sequence += len(shape)
    assert [offset for _, _, offset in sent] == [0, 3, 5, 6]
    for number, shape, offset in sent:
        assert produce(node, topic, number, *shape) == (ErrorCode.NONE, offset)
    assert produce(node, topic, sequence + 5, HOUR)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    node.kill()
    node.start()
    for number, shape, offset in sent:
        assert produce(node, topic, number, *shape) == (ErrorCode.NONE, offset)
    assert sorted(each["value"] for each in schedules_of(node, topic)) == ["1", "3", "4", "6"]
    assert produce(node, topic, sequence, (), acks=1) == (ErrorCode.NONE, 7)
    with httpx.Client(base_url=node.http_url, timeout=60) as rest:
        page = rest.get(f"/v1/topics/{topic}/messages").json()
    assert [message["value"] for message in page["messages"]] == ["0", "2", "5", "7"]


def test_a_batch_whose_records_have_come_already_is_not_scheduled_again(make_node: NodeMaker, topic: str) -> None:
    """Its producer was not answered, and the node died; when it is asked again, nothing is for later any more."""
    node = make_node().start()
    create(node, topic)
    soon: Headers = (("penstock-deliver-at", b"%d" % int(time.time() * 1000 + 1_500)),)
    assert produce(node, topic, 0, (), soon, HOUR) == (ErrorCode.NONE, 0)
    assert produce(node, topic, 3, soon) == (ErrorCode.NONE, 3)
    eventually(lambda: [each["value"] for each in schedules_of(node, topic)] == ["2"])  # the others have come
    node.kill()
    node.start()
    assert produce(node, topic, 0, (), soon, HOUR) == (ErrorCode.NONE, 0)
    assert produce(node, topic, 3, soon) == (ErrorCode.NONE, 3)
    assert [each["value"] for each in schedules_of(node, topic)] == ["2"]
    page = httpx.get(f"{node.http_url}/v1/topics/{topic}/messages", timeout=60).json()
    assert sorted(message["value"] for message in page["messages"]) == ["0", "1", "3"]


def test_a_request_with_two_batches_for_a_partition_loses_none_of_them_to_delays(node: Node, topic: str) -> None:
    create(node, topic)
    batches = [encode_batch([Record(0, 1_700_000_000_000, None, value, HOUR)]) for value in (b"one", b"two")]
    data = tuple(plain.PartitionProduceData(index=0, records=bytes(batch)) for batch in batches)
    topics = (plain.TopicProduceData(name=topic, partition_data=data),)
    request = plain.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
    answer = ask(node.kafka_port, bytes(encode_request(request, VERSION, 1, "test")))
    assert answer is not None
    _, response = decode_response(plain.ProduceResponse, VERSION, answer)
    codes = [partition.error_code for partition in response.responses[0].partition_responses]
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST]
    assert schedules_of(node, topic) == []


def test_many_batches_of_which_nothing_is_left_do_not_look_too_large_to_a_consumer(node: Node, topic: str) -> None:
    """librdkafka doubles its fetch size for every response without a record, and in the end reports an error."""
    create(node, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": topic,
            "fetch.message.max.bytes": 1_000_000_000,  # the next doubling is the last
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    told: list[str] = []

    def read_to(end: int) -> None:
        """Poll until the consumer says that it has read to an offset, and note what else it says."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                told.append(message.value().decode())
            elif error.code() != KafkaError._PARTITION_EOF:
                told.append(error.name())
            elif message.offset() == end:
                return
        raise AssertionError(f"the consumer did not reach offset {end}: {told}")

    try:
        for number in range(5):
            send(node, topic, (f"later {number}", HOUR), **{"enable.idempotence": True})
            read_to(number + 1)
        send(node, topic, ("now", ()), **{"enable.idempotence": True})
        read_to(6)
    finally:
        consumer.close()
    assert told == ["now"]
