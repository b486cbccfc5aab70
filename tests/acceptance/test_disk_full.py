"""A full disk: writes get a clear error that says to try again, reads go on, and writing resumes by itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.conftest import NodeMaker
from tests.support.clients.confluent import ConfluentClient
from tests.support.clients.contract import NOW_MS, Refused
from tests.support.disk import Disk, can_mount
from tests.support.ledger import Books, entries_by_producer, read_partition
from tests.support.node import Node
from tests.support.wire import ask

from penstock.doors.kafka.protocol.headers import decode_response, encode_request
from penstock.doors.kafka.protocol.messages.records import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.records import encode_batch
from penstock.records.batch import Record

KAFKA_STORAGE_ERROR = 56
PRODUCE_VERSION = 9


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if not can_mount():
        pytest.skip("this needs the right to mount a file system")
    with Disk(tmp_path / "disk", size_mb=24) as mounted:
        yield mounted


@pytest.fixture
def node(make_node: NodeMaker, disk: Disk) -> Node:
    return make_node(data_dir=disk.path / "data", storage__retention_check_interval_ms=200).start()


def produce_once(node: Node, topic: str, value: bytes) -> tuple[int, str | None]:
    """One produce without any client that tries again; the error code and message in the answer."""
    batch = bytes(encode_batch([Record(0, NOW_MS, None, value, ())]))
    data = TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=batch),))
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=5_000, topic_data=(data,))
    answer = ask(node.kafka_port, bytes(encode_request(request, PRODUCE_VERSION, 1, "test")))
    assert answer is not None, "the node closed the connection"
    _, response = decode_response(ProduceResponse, PRODUCE_VERSION, answer)
    (partition,) = response.responses[0].partition_responses
    return partition.error_code, partition.error_message


def test_producing_to_a_full_disk_is_refused_with_a_reason(node: Node, disk: Disk, topic: str) -> None:
    ConfluentClient(node.bootstrap).create_topic(topic)
    assert produce_once(node, topic, b"x" * 100_000) == (0, None)
    disk.fill()
    code, message = produce_once(node, topic, b"x" * 100_000)
    assert code == KAFKA_STORAGE_ERROR
    assert message is not None
    assert "No space left" in message
    disk.free()
    assert produce_once(node, topic, b"x" * 100_000) == (0, None)
    assert len(read_partition(node.bootstrap, topic, 0)) == 2


@pytest.mark.slow
def test_producers_go_on_by_themselves_once_there_is_space(node: Node, disk: Disk, topic: str) -> None:
    ConfluentClient(node.bootstrap).create_topic(topic, segment_bytes="262144")
    books = Books("p", node.bootstrap, topic, 1, **{"enable.idempotence": True, "acks": "all"}).start()
    wait_for(lambda: books.acked_count > 500)
    disk.fill()
    settle(books)
    acked_while_full = books.acked_count
    found = entries_by_producer(read_partition(node.bootstrap, topic, 0))["p"]
    assert found[:acked_while_full] == list(range(acked_while_full)), "reads go on while the disk is full"
    disk.free()
    wait_for(lambda: books.acked_count > acked_while_full + 500)
    assert books.finish() == 0
    assert not books.fatal
    assert not books.failed
    found = entries_by_producer(read_partition(node.bootstrap, topic, 0))["p"]
    assert found == books.acked[0] == list(range(books.sent[0]))
    assert node.is_running


def test_what_was_acknowledged_is_there_when_a_full_node_is_killed(node: Node, disk: Disk, topic: str) -> None:
    ConfluentClient(node.bootstrap).create_topic(topic, segment_bytes="262144")
    books = Books("p", node.bootstrap, topic, 1, **{"enable.idempotence": True, "acks": "all"}).start()
    wait_for(lambda: books.acked_count > 500)
    disk.fill()
    settle(books)
    node.kill()
    disk.free()
    node.restart()
    assert books.finish() == 0
    assert entries_by_producer(read_partition(node.bootstrap, topic, 0))["p"] == books.acked[0]


@pytest.mark.slow
def test_a_node_starts_on_a_full_disk_and_serves_what_it_has(node: Node, disk: Disk, topic: str) -> None:
    ConfluentClient(node.bootstrap).create_topic(topic)
    assert produce_once(node, topic, b"first") == (0, None)
    node.kill()
    disk.fill()
    node.restart()
    assert [value for _, value in read_partition(node.bootstrap, topic, 0)] == [b"first"]
    disk.free()
    assert produce_once(node, topic, b"second") == (0, None)


def test_a_topic_asked_for_on_a_full_disk_can_be_used_once_there_is_space(node: Node, disk: Disk, topic: str) -> None:
    client = ConfluentClient(node.bootstrap)
    disk.fill()
    with contextlib.suppress(Refused):
        client.create_topic(topic)
    disk.free()
    with contextlib.suppress(Refused):  # it may exist by now, or not
        client.create_topic(topic)
    wait_for(lambda: produce_once(node, topic, b"x") == (0, None))


def wait_for(condition, limit_s: float = 90.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def settle(books: Books, quiet_s: float = 0.5) -> None:
    """Wait until no further message is acknowledged."""
    count, since = books.acked_count, time.monotonic()
    deadline = since + 90
    while time.monotonic() - since < quiet_s:
        assert time.monotonic() < deadline, "writing went on although the disk is full"
        if books.acked_count != count:
            count, since = books.acked_count, time.monotonic()
        time.sleep(0.02)
