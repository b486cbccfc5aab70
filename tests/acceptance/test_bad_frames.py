"""Garbage, lies and bad manners on the Kafka port of a real node: it stays up, stays small, and serves the others."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from bench.fuzzing.mutation import mutate
from bench.fuzzing.requests import make_frame
from tests.acceptance.conftest import NodeMaker
from tests.support.clients.confluent import ConfluentClient
from tests.support.clients.contract import Message
from tests.support.node import Node
from tests.support.wire import answers_api_versions, api_versions, ask, connect, framed, read_exactly, read_response

from penstock.doors.kafka.protocol.headers import encode_request
from penstock.doors.kafka.protocol.messages.records import FetchPartition, FetchRequest, FetchTopic

MIB = 1 << 20
GROWTH_MAX = 60 * MIB
CONNECTION_COST_MAX = 100 * 1024
LIMIT_BYTES = 100 * MIB
UNSUPPORTED_VERSION = 35
INT32_MAX = 2**31 - 1


@pytest.fixture(autouse=True)
def unharmed(request: pytest.FixtureRequest, node: Node) -> Iterator[None]:
    """Whatever a test does, afterwards the node serves, has not grown, and has met no bug of ours."""
    before = node.rss_bytes
    yield
    assert node.is_running
    assert answers_api_versions(node.kafka_port, 60)
    assert "Traceback" not in node.log_text
    deadline = time.monotonic() + 60
    while (grown := node.rss_bytes - before) > GROWTH_MAX and time.monotonic() < deadline:
        time.sleep(0.1)
    assert grown < GROWTH_MAX, f"the node grew by {grown / MIB:.0f} MiB"


def is_closed_by_node(conn: socket.socket) -> bool:
    conn.settimeout(60)
    try:
        return conn.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "bad",
    {
        "random bytes": b"\x63\xa1\x0e\x55\x91\x07\xd4\x3b\xe2\x18",
        "a negative length": struct.pack(">i", -1),
        "a length above the limit": struct.pack(">i", LIMIT_BYTES + 1),
        "the largest length": struct.pack(">i", INT32_MAX),
        "an empty frame": framed(b""),
        "half a header": framed(b"\x00\x12"),
        "an unknown API": framed(struct.pack(">hhih", 9_999, 0, 1, -1)),
        "a negative API": framed(struct.pack(">hhih", -5, 0, 1, -1)),
        "an unknown version": framed(struct.pack(">hhih", 3, 999, 1, -1)),
        "a negative version": framed(struct.pack(">hhih", 3, -1, 1, -1)),
        "a client id past the end": framed(struct.pack(">hhih", 18, 0, 1, 5_000) + b"abc"),
        "a client id that is no text": framed(struct.pack(">hhih", 18, 0, 1, 2) + b"\xff\xfe"),
        "a hostile count": framed(struct.pack(">hhih", 3, 9, 1, -1) + b"\0" + b"\xff\xff\xff\xff\x0f"),
        "an endless varint": framed(struct.pack(">hhih", 3, 9, 1, -1) + b"\0" + b"\x80" * 50),
        "a hostile classic count": framed(struct.pack(">hhihi", 3, 1, 1, -1, INT32_MAX)),
    }.items(),
    ids=lambda bad: bad[0],
)
def test_a_bad_frame_closes_its_connection_and_no_other(node: Node, bad: tuple[str, bytes]) -> None:
    with connect(node.kafka_port) as good, connect(node.kafka_port) as evil:
        good.sendall(api_versions(1))
        assert read_response(good) is not None
        evil.sendall(bad[1])
        assert is_closed_by_node(evil)
        good.sendall(api_versions(2))
        assert read_response(good) is not None


def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest_format(node: Node) -> None:
    answer = ask(node.kafka_port, framed(struct.pack(">hhih", 18, 99, 42, -1) + b"\0"))
    assert answer is not None
    assert struct.unpack_from(">ih", answer) == (42, UNSUPPORTED_VERSION)


def test_pipelined_requests_are_all_answered_in_order(node: Node) -> None:
    count = 1_000
    with connect(node.kafka_port) as conn:
        sender = threading.Thread(target=conn.sendall, args=(b"".join(api_versions(n) for n in range(count)),))
        sender.start()
        answers = [read_response(conn) for _ in range(count)]
        sender.join()
    assert [struct.unpack_from(">i", answer or b"")[0] for answer in answers] == list(range(count))


def test_what_comes_before_a_bad_frame_is_answered(node: Node) -> None:
    with connect(node.kafka_port) as conn:
        conn.sendall(api_versions(1) + api_versions(2) + struct.pack(">i", -1))
        assert (read_response(conn) or b"")[:4] == struct.pack(">i", 1)
        read_response(conn)  # the second may be answered or cut off, but nothing hangs
        assert read_response(conn) is None


def test_a_request_may_come_byte_by_byte(node: Node) -> None:
    with connect(node.kafka_port) as conn:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in api_versions(5):
            conn.sendall(bytes([byte]))
        assert (read_response(conn) or b"")[:4] == struct.pack(">i", 5)


def test_half_closed_connections_are_let_go(node: Node) -> None:
    with connect(node.kafka_port) as conn:
        conn.sendall(api_versions(1)[:7])
        conn.shutdown(socket.SHUT_WR)
        assert is_closed_by_node(conn)


def test_memory_follows_the_bytes_received_not_the_length_claimed(node: Node) -> None:
    before = node.rss_bytes
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            conn = stack.enter_context(connect(node.kafka_port))
            conn.sendall(struct.pack(">i", LIMIT_BYTES) + bytes(1_000))
        assert answers_api_versions(node.kafka_port)
        assert node.rss_bytes - before < GROWTH_MAX


def test_thousands_of_idle_connections_leave_room_for_others(make_node: NodeMaker, topic: str) -> None:
    count = 2_000
    with make_node() as crowded:
        before = crowded.rss_bytes
        peaks: list[int] = []
        for turn in range(2):
            with contextlib.ExitStack() as stack:
                for _ in range(count):
                    stack.enter_context(connect(crowded.kafka_port)).sendall(b"\x00\x00")
                assert answers_api_versions(crowded.kafka_port, 5)
                assert ConfluentClient(crowded.bootstrap).produce(topic, [Message(b"through the crowd")]) == [turn]
                peaks.append(crowded.rss_bytes)
        assert peaks[0] - before < count * CONNECTION_COST_MAX
        assert peaks[1] - peaks[0] < 20 * MIB, "a crowd that has left is forgotten"


def test_connections_that_come_and_go_leave_nothing_behind(node: Node) -> None:
    for number in range(3_000):
        with connect(node.kafka_port) as conn:
            if number % 3 == 0:
                conn.sendall(api_versions(1))
            elif number % 3 == 1:
                conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_readers_that_leave_while_they_wait_are_forgotten(make_node: NodeMaker, topic: str) -> None:
    """A fetch may wait for weeks; when its client is gone, it must not."""
    node = make_node().start()
    ConfluentClient(node.bootstrap).create_topic(topic)
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MIB)
    request = FetchRequest(
        max_wait_ms=INT32_MAX,
        min_bytes=1,
        topics=(FetchTopic(topic=topic, partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    frame = bytes(encode_request(request, 11, 1, "leaver"))
    before = node.rss_bytes
    for _ in range(2_000):
        with connect(node.kafka_port) as conn:
            conn.sendall(frame)
    assert answers_api_versions(node.kafka_port, 60)
    assert node.rss_bytes - before < GROWTH_MAX


def test_a_client_that_does_not_read_its_answers_is_held_back(node: Node) -> None:
    with connect(node.kafka_port, 1.0) as conn:
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        many = b"".join(api_versions(n) for n in range(1_000))
        with contextlib.suppress(TimeoutError):
            for _ in range(2_000):
                conn.sendall(many)
        assert answers_api_versions(node.kafka_port)


def test_a_reader_that_does_not_read_costs_no_memory(node: Node, topic: str) -> None:
    client = ConfluentClient(node.bootstrap)
    client.create_topic(topic)
    client.produce(topic, [Message(bytes(900_000)) for _ in range(50)])
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100 * MIB)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=100 * MIB,
        topics=(FetchTopic(topic=topic, partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    before = node.rss_bytes
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            conn = stack.enter_context(connect(node.kafka_port))
            conn.sendall(bytes(encode_request(request, 11, 1, "slow")) * 5)
        assert answers_api_versions(node.kafka_port)
        assert node.rss_bytes - before < GROWTH_MAX + 50 * MIB  # the file's own pages may be mapped in


def test_a_slow_reader_gets_everything_in_the_end(node: Node, topic: str) -> None:
    client = ConfluentClient(node.bootstrap)
    client.create_topic(topic)
    client.produce(topic, [Message(bytes([n]) * 900_000) for n in range(10)])
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100 * MIB)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=9_010_000,
        max_bytes=100 * MIB,
        topics=(FetchTopic(topic=topic, partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    with connect(node.kafka_port) as conn:
        conn.sendall(bytes(encode_request(request, 11, 1, "slow")))
        prefix = read_exactly(conn, 4)
        assert prefix is not None
        (size,) = struct.unpack(">i", prefix)
        assert size > 9_000_000
        assert answers_api_versions(node.kafka_port), "others are served in the meantime"
        time.sleep(0.3)
        data = read_exactly(conn, size)
        assert data is not None
        assert all(bytes([n]) * 900_000 in data for n in range(10))


def test_good_clients_are_not_disturbed_by_bad_ones(node: Node, topic: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    is_over = threading.Event()

    def misbehave() -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError), connect(node.kafka_port, 1.0) as conn:
                conn.sendall(b"".join(mutate(rng, make_frame(rng)) for _ in range(20)))

    vandal = threading.Thread(target=misbehave)
    vandal.start()
    try:
        client = ConfluentClient(node.bootstrap)
        client.create_topic(topic)
        sent = [Message(b"%d" % number) for number in range(2_000)]
        for start in range(0, 2_000, 500):
            client.produce(topic, sent[start : start + 500])
        assert [each.message for each in client.read(topic, 0, 0, 2_000)] == sent
    finally:
        is_over.set()
        vandal.join()


def test_connections_past_the_limit_are_refused_and_the_others_kept(make_node: NodeMaker) -> None:
    with make_node(broker__max_connections=20) as small, contextlib.ExitStack() as stack:
        kept = [stack.enter_context(connect(small.kafka_port)) for _ in range(20)]
        for conn in kept:
            conn.sendall(api_versions(1))
            assert read_response(conn) is not None
        assert is_closed_by_node(stack.enter_context(connect(small.kafka_port)))
        kept[0].sendall(api_versions(2))
        assert read_response(kept[0]) is not None


def test_idle_connections_are_closed_in_time(make_node: NodeMaker) -> None:
    with make_node(broker__idle_timeout_ms=1_000) as impatient, connect(impatient.kafka_port) as conn:
        conn.sendall(api_versions(1)[:6])  # a slow loris that never goes on
        assert is_closed_by_node(conn)


def test_running_out_of_file_descriptors_is_survived(make_node: NodeMaker) -> None:
    with make_node() as poor:
        assert poor.pid is not None
        _, hard = resource.prlimit(poor.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(poor.pid, resource.RLIMIT_NOFILE, (80, hard))
        with contextlib.ExitStack() as stack:
            for _ in range(150):
                stack.enter_context(connect(poor.kafka_port)).sendall(b"\x00")
            time.sleep(0.3)
            assert poor.is_running
        deadline = time.monotonic() + 60
        while not answers_api_versions(poor.kafka_port):
            assert time.monotonic() < deadline, "the node did not recover"
