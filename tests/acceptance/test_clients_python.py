"""What every Python Kafka client can do with a node, said once and run with each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.clients.aio import AioKafkaClient
from tests.support.clients.confluent import ConfluentClient
from tests.support.clients.contract import GZIP, LZ4, NONE, NOW_MS, SNAPPY, ZSTD, Client, Message, Refused, in_order
from tests.support.clients.kafka_python import KafkaPythonClient
from tests.support.node import Node
from tests.support.stored import codec_name, stored_batches

CLIENTS = (ConfluentClient, KafkaPythonClient, AioKafkaClient)
CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
TOPIC_ALREADY_EXISTS = 36
INVALID_TOPIC = 17
INVALID_PARTITIONS = 37
INVALID_CONFIG = 40


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest, node: Node) -> Iterator[Client]:
    made: Client = request.param(node.bootstrap)
    yield made
    made.close()


def varied_messages(count: int, partitions: int = 1) -> list[Message]:
    """Messages with and without keys, values and headers, spread over partitions."""
    return [
        Message(
            value=None if number % 7 == 3 else b"value %d " % number + b"x" * (number % 300),
            key=None if number % 5 == 4 and number % 7 != 3 else b"key-%d" % (number % 11),
            headers=(("number", b"%d" % number), ("empty", b""), ("naïve", b"\xff\x00")) if number % 3 == 0 else (),
            partition=number % partitions,
            timestamp_ms=NOW_MS + number,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_whatever_is_produced_with_a_codec_is_read_back_in_order(
    client: Client, node: Node, topic: str, codec: str
) -> None:
    if codec not in client.codecs:
        pytest.skip(f"{client.name} cannot do {codec} with what is installed here")
    client.create_topic(topic, partitions=3)
    sent = varied_messages(900, partitions=3)
    client.produce(topic, sent, codec=codec)
    stored = stored_batches(node, topic)
    assert {codec_name(header) for header in stored} == {codec}, "batches are kept as they came"
    assert all(header.is_idempotent for header in stored)
    for partition in range(3):
        expected = in_order(sent, partition)
        received = client.read(topic, partition, 0, len(expected))
        assert [each.message for each in received] == expected
        assert [each.offset for each in received] == list(range(len(expected)))


def test_a_client_reads_what_the_other_clients_wrote(client: Client, node: Node, topic: str) -> None:
    client.create_topic(topic)
    sent: list[Message] = []
    for writer in (ConfluentClient(node.bootstrap), AioKafkaClient(node.bootstrap)):
        for codec in set(client.codecs) & set(writer.codecs):
            batch = varied_messages(20)
            writer.produce(topic, batch, codec=codec)
            sent += batch
    assert [each.message for each in client.read(topic, 0, 0, len(sent))] == sent


def test_offsets_answered_to_the_producer_are_where_the_messages_are(client: Client, topic: str) -> None:
    client.create_topic(topic)
    first = client.produce(topic, varied_messages(10))
    second = client.produce(topic, varied_messages(10))
    assert first + second == list(range(20))


def test_seeking_into_the_middle_of_a_batch_starts_at_that_very_message(client: Client, topic: str) -> None:
    client.create_topic(topic)
    sent = varied_messages(100)
    client.produce(topic, sent)
    received = client.read(topic, 0, 57, 43)
    assert [each.offset for each in received] == list(range(57, 100))
    assert [each.message for each in received] == sent[57:]


def test_offsets_are_found_by_time(client: Client, topic: str) -> None:
    client.create_topic(topic)
    client.produce(topic, [Message(b"v", timestamp_ms=NOW_MS + 1000 * number) for number in range(50)])
    assert client.offset_at(topic, 0, NOW_MS) == 0
    assert client.offset_at(topic, 0, NOW_MS + 20_500) == 21
    assert client.offset_at(topic, 0, NOW_MS + 49_000) == 49
    # librdkafka says "the end" where there is nothing, the others say nothing at all.
    assert client.offset_at(topic, 0, NOW_MS + 1_000_000_000) in (None, 50)


def test_the_bounds_of_a_partition_are_its_first_and_next_offset(client: Client, topic: str) -> None:
    client.create_topic(topic)
    assert client.bounds(topic, 0) == (0, 0)
    client.produce(topic, varied_messages(12))
    assert client.bounds(topic, 0) == (0, 12)


def test_deleted_records_are_gone_and_the_rest_stays(client: Client, topic: str) -> None:
    client.create_topic(topic)
    sent = varied_messages(30)
    client.produce(topic, sent)
    client.delete_records(topic, 0, 12)
    assert client.bounds(topic, 0) == (12, 30)
    assert [each.message for each in client.read(topic, 0, 12, 18)] == sent[12:]


def test_configs_are_described_and_changed(client: Client, topic: str) -> None:
    client.create_topic(topic, retention_ms="3600000")
    assert client.config(topic)["retention.ms"] == "3600000"
    client.set_config(topic, "retention.ms", "7200000")
    assert client.config(topic)["retention.ms"] == "7200000"


def test_a_config_value_that_makes_no_sense_is_refused(client: Client, topic: str) -> None:
    client.create_topic(topic)
    with pytest.raises(Refused) as refused:
        client.set_config(topic, "retention.ms", "soon")
    assert refused.value.code == INVALID_CONFIG


def test_an_unknown_config_is_refused_when_a_topic_is_created(client: Client, topic: str) -> None:
    with pytest.raises(Refused) as refused:
        client.create_topic(topic, no_such_setting="1")
    assert refused.value.code == INVALID_CONFIG


def test_partitions_can_be_added_and_used(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    client.add_partitions(topic, 4)
    assert client.partition_count(topic) == 4
    sent = varied_messages(40, partitions=4)
    client.produce(topic, sent)
    assert [each.message for each in client.read(topic, 3, 0, 10)] == in_order(sent, 3)


def test_partitions_cannot_be_taken_away(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=4)
    with pytest.raises(Refused) as refused:
        client.add_partitions(topic, 2)
    assert refused.value.code == INVALID_PARTITIONS


def test_a_topic_is_created_once(client: Client, topic: str) -> None:
    client.create_topic(topic)
    with pytest.raises(Refused) as refused:
        client.create_topic(topic)
    assert refused.value.code == TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", ["with space", "..", "x" * 250, "slash/ed"])
def test_an_invalid_topic_name_is_refused(client: Client, name: str) -> None:
    with pytest.raises(Refused) as refused:
        client.create_topic(name)
    assert refused.value.code == INVALID_TOPIC


def test_a_deleted_topic_is_gone_and_its_name_starts_empty(client: Client, topic: str) -> None:
    client.create_topic(topic)
    client.produce(topic, varied_messages(10))
    client.delete_topic(topic)
    with pytest.raises(Refused) as refused:
        client.delete_topic(topic)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION
    client.create_topic(topic, partitions=2)
    assert client.bounds(topic, 0) == (0, 0)


def test_large_messages_come_back_whole(client: Client, topic: str) -> None:
    client.create_topic(topic)
    sent = [Message(bytes([65 + number]) * 900_000) for number in range(4)]
    client.produce(topic, sent)
    assert [each.message for each in client.read(topic, 0, 0, 4)] == sent


def test_a_message_larger_than_its_topic_takes_is_refused(client: Client, topic: str) -> None:
    client.create_topic(topic, max_message_bytes="1000")
    with pytest.raises(Refused) as refused:
        client.produce(topic, [Message(b"x" * 5_000)])
    assert refused.value.code == MESSAGE_TOO_LARGE
    assert client.produce(topic, [Message(b"x" * 500)]) == [0]


def test_a_topic_may_have_many_partitions(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=200)
    sent = [Message(b"%d" % number, partition=number % 200) for number in range(600)]
    client.produce(topic, sent)
    for partition in (0, 99, 199):
        assert [each.message for each in client.read(topic, partition, 0, 3)] == in_order(sent, partition)


def test_a_topic_is_created_by_producing_to_it(client: Client, topic: str) -> None:
    sent = varied_messages(5)
    client.produce(topic, sent)
    assert [each.message for each in client.read(topic, 0, 0, 5)] == sent
    assert client.partition_count(topic) == 3


def test_deleting_records_past_the_end_is_refused(client: Client, topic: str) -> None:
    client.create_topic(topic)
    with pytest.raises(Refused) as refused:
        client.delete_records(topic, 0, 99)
    assert refused.value.code == OFFSET_OUT_OF_RANGE


def test_an_unknown_topic_is_an_error_where_topics_are_not_created_by_themselves(make_node, topic: str) -> None:
    with make_node(broker__auto_create_topics="false") as strict:
        client = ConfluentClient(strict.bootstrap)
        with pytest.raises(Refused) as refused:
            client.partition_count(topic)
        assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION
