"""TLS at every door, with the clients that people use: certificates of both sides, wrong beginnings, large answers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import grpc
import httpx
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kafka import KafkaConsumer, KafkaProducer
from tests.support.certificates import Authority, Pair
from tests.support.cluster import eventually
from tests.support.node import NodeError
from tests.support.tls_node import TlsNode, tls_settings
from tests.support.wire import api_versions, read_response
from websockets.sync.client import connect as connect_websocket

import penstock
from penstock.api.topics import ListTopics
from penstock.client.trust import Trust
from penstock.spark.connection import transport_to
from penstock.spark.reading.options import SourceOptions
from penstock.spark.writing.options import SinkOptions


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def alice(authority: Authority) -> Pair:
    return authority.issue("alice")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Authority(tmp_path_factory.mktemp("stranger"), "another authority").issue("alice")


@pytest.fixture(scope="module")
def open_node(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[TlsNode]:
    """A node that asks clients for no certificate."""
    with TlsNode(tmp_path_factory.mktemp("open"), authority) as node:
        assert isinstance(node, TlsNode)
        yield node
        assert node.is_running


@pytest.fixture(scope="module")
def strict_node(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[TlsNode]:
    """A node that takes no client without a certificate."""
    with TlsNode(tmp_path_factory.mktemp("strict"), authority, client_auth="need") as node:
        assert isinstance(node, TlsNode)
        yield node
        assert node.is_running


@pytest.fixture(params=["open", "strict"])
def node(request: pytest.FixtureRequest) -> TlsNode:
    found: TlsNode = request.getfixturevalue(f"{request.param}_node")
    return found


def rdkafka(node: TlsNode, pair: Pair, *, shows: bool = True, **more: object) -> dict[str, object]:
    chosen: dict[str, object] = {
        "bootstrap.servers": node.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(pair.ca),
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    if shows:
        chosen |= {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
    return chosen


# -- Kafka clients -----------------------------------------------------------------------------------------------------


def test_confluent_kafka_produces_and_consumes(node: TlsNode, alice: Pair, topic: str) -> None:
    producer = Producer(rdkafka(node, alice))
    for number in range(1_000):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    consumer = Consumer(rdkafka(node, alice, group_id="g", auto_offset_reset="earliest"))
    consumer.assign([TopicPartition(topic, 0, 0)])
    got = [message.value() for message in consumer.consume(1_000, timeout=60)]
    consumer.close()
    assert got == [b"%d" % number for number in range(1_000)]


def test_kafka_python_produces_and_consumes(node: TlsNode, alice: Pair, topic: str) -> None:
    chosen = {
        "bootstrap_servers": node.bootstrap,
        "security_protocol": "SSL",
        "ssl_cafile": str(alice.ca),
        "ssl_certfile": str(alice.certificate),
        "ssl_keyfile": str(alice.key),
    }
    producer = KafkaProducer(**chosen)
    for number in range(300):
        producer.send(topic, b"%d" % number, partition=0)
    producer.flush(60)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=60_000, **chosen)
    got = [next(consumer).value for _ in range(300)]
    consumer.close()
    assert got == [b"%d" % number for number in range(300)]


def test_aiokafka_produces_and_consumes(node: TlsNode, alice: Pair, topic: str) -> None:
    async def work() -> list[bytes | None]:
        chosen = {
            "bootstrap_servers": node.bootstrap,
            "security_protocol": "SSL",
            "ssl_context": alice.client_context(),
        }
        async with aiokafka.AIOKafkaProducer(**chosen) as producer:
            for number in range(300):
                await producer.send(topic, b"%d" % number, partition=0)
        async with aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **chosen) as consumer:
            return [(await asyncio.wait_for(consumer.getone(), 60)).value for _ in range(300)]

    assert asyncio.run(work()) == [b"%d" % number for number in range(300)]


@pytest.mark.parametrize("shown", ["none", "stranger"])
def test_a_kafka_client_without_a_good_certificate_gets_nothing(
    strict_node: TlsNode, alice: Pair, stranger: Pair, shown: str
) -> None:
    pair = Pair(stranger.certificate, stranger.key, alice.ca)
    admin = AdminClient(rdkafka(strict_node, pair, shows=shown == "stranger"))
    with pytest.raises(KafkaException, match=r"(?i)transport|timed out|ssl"):
        admin.list_topics(timeout=5)


def test_a_hundred_megabytes_come_back_as_they_went(open_node: TlsNode, alice: Pair, topic: str) -> None:
    admin = AdminClient(rdkafka(open_node, alice))
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    producer = Producer(rdkafka(open_node, alice, queue_buffering_max_kbytes=300_000, linger_ms=5))
    told = hashlib.sha256()
    for _ in range(200):
        value = os.urandom(500_000)
        told.update(value)
        producer.produce(topic, value, partition=0)
        producer.poll(0)
    assert producer.flush(120) == 0
    fetched = rdkafka(
        open_node,
        alice,
        group_id="large",
        fetch_max_bytes=100_000_000,
        max_partition_fetch_bytes=100_000_000,
        receive_message_max_bytes=200_000_000,
    )
    consumer = Consumer(fetched)
    consumer.assign([TopicPartition(topic, 0, 0)])
    heard = hashlib.sha256()
    for _ in range(200):
        message = consumer.poll(60)
        assert message is not None, "no message within a minute"
        assert message.error() is None
        value = message.value()
        heard.update(value or b"")
        time.sleep(0.005)  # slower than the node sends
    consumer.close()
    assert heard.hexdigest() == told.hexdigest()


def test_a_client_that_does_not_read_holds_little_of_the_node(open_node: TlsNode, alice: Pair, topic: str) -> None:
    producer = Producer(rdkafka(open_node, alice))
    for _ in range(60):
        producer.produce(topic, os.urandom(900_000), partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0
    body = struct.pack(">hhih", 1, 4, 7, -1)  # Fetch, version 4
    body += struct.pack(">iiiib", -1, 100, 1, 100_000_000, 0)
    body += struct.pack(">ih", 1, len(topic)) + topic.encode() + struct.pack(">iiqi", 1, 0, 0, 100_000_000)
    before = open_node.rss_bytes
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", open_node.kafka_port), timeout=60))
            secured = stack.enter_context(alice.client_context().wrap_socket(plain, server_hostname="localhost"))
            secured.sendall(struct.pack(">i", len(body)) + body)
            (length,) = struct.unpack(">i", secured.recv(4))
            assert length > 50_000_000
        assert secured.recv(1), "the last one gets its answer all the same"
        assert open_node.rss_bytes - before < 60_000_000, "twenty answers of fifty megabytes are not in memory"


def test_many_small_requests_in_one_record_are_all_answered(open_node: TlsNode, alice: Pair) -> None:
    count = 3_000
    with (
        socket.create_connection(("127.0.0.1", open_node.kafka_port), timeout=60) as plain,
        alice.client_context().wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.sendall(b"".join(api_versions(number) for number in range(count)))
        for number in range(count):
            answer = read_response(secured)
            assert answer is not None
            assert struct.unpack(">i", answer[:4]) == (number,)


# -- beginnings --------------------------------------------------------------------------------------------------------


def test_a_plain_http_client_is_told_to_use_https(open_node: TlsNode) -> None:
    for port, words in ((open_node.http_port, "https://"), (open_node.kafka_port, open_node.http_url)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/topics", timeout=60)
        problem = json.load(refused.value)
        assert (refused.value.code, problem["code"]) == (400, "wrong_port")
        assert words in problem["detail"]


def test_a_plain_kafka_client_gets_an_answer_and_the_log_says_why(open_node: TlsNode) -> None:
    with socket.create_connection(("127.0.0.1", open_node.kafka_port), timeout=60) as plain:
        plain.sendall(api_versions(77, version=3))
        answer = plain.makefile("rb").read()
    assert struct.unpack(">iihi", answer) == (10, 77, 8, 0), "ApiVersions, version 0: BROKER_NOT_AVAILABLE"
    assert "It speaks TLS only: set security.protocol to SSL" in open_node.log_text


def test_https_at_the_kafka_port_is_told_the_http_address(open_node: TlsNode) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(
            f"https://127.0.0.1:{open_node.kafka_port}/v1/topics", timeout=60, context=open_node.context()
        )
    assert open_node.http_url in json.load(refused.value)["detail"]


@pytest.mark.parametrize("door", ["kafka", "http"])
@pytest.mark.parametrize(
    "rubbish", [b"\x16", b"\x16\x03\x01" + b"\xff" * 600, b"\0" * 100], ids=["one", "long", "zero"]
)
def test_what_is_no_handshake_is_closed(open_node: TlsNode, door: str, rubbish: bytes) -> None:
    with socket.create_connection(("127.0.0.1", getattr(open_node, f"{door}_port")), timeout=60) as plain:
        plain.sendall(rubbish)
        plain.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while plain.recv(1_000):
                pass
    assert open_node.is_ready()


def test_old_versions_of_tls_are_refused(open_node: TlsNode) -> None:
    context = ssl.create_default_context(cafile=open_node.authority.ca)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    for port in (open_node.kafka_port, open_node.http_port):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
            pytest.raises((ssl.SSLError, ConnectionResetError)),
        ):
            context.wrap_socket(plain, server_hostname="localhost")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_each_version_that_is_good_works(open_node: TlsNode, version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context(cafile=open_node.authority.ca)
    context.minimum_version = context.maximum_version = version
    with (
        socket.create_connection(("127.0.0.1", open_node.kafka_port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.sendall(api_versions())
        assert read_response(secured) is not None


# -- HTTP, WebSocket, gRPC ---------------------------------------------------------------------------------------------


def test_rest_and_websocket(node: TlsNode, alice: Pair, topic: str) -> None:
    with httpx.Client(base_url=node.http_url, verify=alice.client_context(), timeout=60) as client:
        assert client.post("/v1/topics", json={"name": topic, "partitions": 1}).status_code == 201
        for number in range(20):
            sent = client.post(f"/v1/topics/{topic}/publish", json={"value": f"{number}"})
            assert sent.status_code in {200, 201}, sent.text
    url = node.http_url.replace("https", "wss") + "/v1/ws"
    with connect_websocket(url, ssl=alice.client_context(), open_timeout=60) as door:
        assert door.recv(60)


@pytest.mark.parametrize("shown", ["none", "stranger"])
def test_https_without_a_good_certificate_is_refused(
    strict_node: TlsNode, alice: Pair, stranger: Pair, shown: str
) -> None:
    context = Pair(stranger.certificate, stranger.key, alice.ca).client_context(shows=shown == "stranger")
    with pytest.raises(httpx.TransportError), httpx.Client(verify=context, timeout=60) as client:
        client.get(f"{strict_node.http_url}/readyz")


def test_a_large_body_goes_both_ways_over_https(open_node: TlsNode, alice: Pair, topic: str) -> None:
    value = os.urandom(400_000).hex()
    with httpx.Client(base_url=open_node.http_url, verify=alice.client_context(), timeout=60) as client:
        sent = client.post(f"/v1/topics/{topic}/publish", json={"value": value})
        assert sent.status_code in {200, 201}, sent.text
        where = {"partition": sent.json()["partition"], "offset": 0}
        found = client.get(f"/v1/topics/{topic}/messages", params=where)
        assert found.json()["messages"][0]["value"] == value


def test_grpc(node: TlsNode, alice: Pair) -> None:
    credentials = grpc.ssl_channel_credentials(
        alice.ca.read_bytes(), alice.key.read_bytes(), alice.certificate.read_bytes()
    )
    with grpc.secure_channel(node.grpc, credentials) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_grpc_without_a_certificate_is_refused_where_one_is_needed(strict_node: TlsNode, alice: Pair) -> None:
    credentials = grpc.ssl_channel_credentials(alice.ca.read_bytes())
    with grpc.secure_channel(strict_node.grpc, credentials) as channel, pytest.raises(grpc.RpcError) as failed:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


# -- clients of ours ---------------------------------------------------------------------------------------------------


def test_the_python_client(node: TlsNode, alice: Pair, topic: str) -> None:
    with penstock.Client(node.http_url, ca=alice.ca, certificate=alice.certificate, key=alice.key) as client:
        assert client.publish(topic, "over TLS").offset == 0
        assert topic in {found.name for found in client.topics.list()}


def test_the_python_client_says_whom_to_trust(open_node: TlsNode, stranger: Pair, topic: str) -> None:
    with (
        penstock.Client(open_node.http_url, ca=stranger.ca, timeout=1, delivery_timeout=1) as client,
        pytest.raises(penstock.errors.PenstockError, match=r"is not trusted .*PENSTOCK_CA"),
    ):
        client.topics.list()


def test_the_connection_of_spark(node: TlsNode, alice: Pair, stranger: Pair, topic: str) -> None:
    chosen = {"servers": node.http_url, "topics": topic, "ca": str(alice.ca)}
    chosen |= {"certificate": str(alice.certificate), "key": str(alice.key)}
    for options in (
        SourceOptions.of(chosen, is_streaming=False),
        SinkOptions.of(
            {"topic" if name == "topics" else name: text for name, text in chosen.items()}, is_streaming=False
        ),
    ):
        portal, transport = transport_to(options.servers, timeout_s=30, trust=options.trust)
        assert portal.call(transport.call(ListTopics())) is not None
    portal, transport = transport_to((node.http_url,), timeout_s=1, trust=Trust.of(stranger.ca))
    with pytest.raises(penstock.errors.PenstockError, match="is not trusted"):
        portal.call(transport.call(ListTopics()))


def run_penstock(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [sys.executable, "-m", "penstock", *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**inherited, **environment},
    )


def test_the_command_line(open_node: TlsNode, strict_node: TlsNode, alice: Pair) -> None:
    listed = run_penstock("topic", "list", "--url", open_node.http_url, "--ca", str(alice.ca))
    assert listed.returncode == 0, listed.stderr
    shown = {"PENSTOCK_CERTIFICATE": str(alice.certificate), "PENSTOCK_KEY": str(alice.key)}
    listed = run_penstock("topic", "list", PENSTOCK_URL=strict_node.http_url, PENSTOCK_CA=str(alice.ca), **shown)
    assert listed.returncode == 0, listed.stderr
    untrusted = run_penstock("topic", "list", PENSTOCK_URL=open_node.http_url)
    assert untrusted.returncode != 0
    assert "--ca" in untrusted.stderr
    missing = run_penstock("topic", "list", "--url", open_node.http_url, "--ca", "/no/such/file")
    assert (missing.returncode, "holds no certificates" in missing.stderr) == (2, True)
    every = run_penstock("cluster", "scrub", "--url", open_node.http_url, "--ca", str(alice.ca))
    assert every.returncode == 0, every.stderr


# -- files -------------------------------------------------------------------------------------------------------------


def test_bad_files_are_told_at_start(tmp_path: Path, authority: Authority, stranger: Pair) -> None:
    node = TlsNode(tmp_path / "node", authority)
    for settings, words in (
        ({"security__tls__key": stranger.key}, "does not belong to the certificate"),
        ({"security__tls__certificate": tmp_path / "none.pem"}, "cannot be read: No such file"),
        ({"security__tls__ca": node.pair.key}, "holds no certificates of authorities"),
        ({"security__tls__certificate": node.pair.key}, "are not a certificate and its private key in PEM"),
    ):
        node.settings = {**tls_settings(node.pair), **settings}
        with pytest.raises(NodeError, match="ended with"):
            node.start()
        assert words in node.log_text
        node.log_path.unlink()


def test_paths_in_a_file_are_as_seen_from_that_file(tmp_path: Path, authority: Authority) -> None:
    pair = authority.issue("node-1", node_id=1)
    place = tmp_path / "etc"
    place.mkdir()
    (place / "node.pem").write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    (place / "penstock.yaml").write_text("security:\n  tls:\n    certificate: node.pem\n")
    node = TlsNode(tmp_path / "node", authority)
    node.settings = {}
    node.environment = {"PENSTOCK_CONFIG": str(place / "penstock.yaml")}
    with node:
        assert node.ask("/readyz")["status"] == "ok"


def serial_at(port: int, context: ssl.SSLContext) -> str:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        return str(secured.getpeercert()["serialNumber"])  # type: ignore[index]


def test_certificates_are_changed_under_load_without_a_failure(tmp_path: Path, authority: Authority) -> None:
    node = TlsNode(tmp_path / "node", authority)
    with node:
        producer = Producer(rdkafka(node, node.own, acks="all"))
        failed: list[object] = []
        sent = 0

        def load(until: float) -> None:
            nonlocal sent
            with httpx.Client(verify=node.context(), timeout=60) as kept:
                while time.monotonic() < until:
                    producer.produce("load", b"x" * 100, on_delivery=lambda error, _: error and failed.append(error))
                    producer.poll(0)
                    sent += 1
                    assert kept.get(f"{node.http_url}/livez").status_code == 200
                    assert httpx.get(f"{node.http_url}/livez", verify=node.context(), timeout=60).status_code == 200

        serials = set()
        for _ in range(3):
            before = serial_at(node.kafka_port, node.context())
            authority.issue("node-1", node_id=1, file=node.pair.certificate.stem)
            load(time.monotonic() + 2.5)
            eventually(lambda old=before: serial_at(node.kafka_port, node.context()) != old, what="a new certificate")
            serials |= {serial_at(port, node.context()) for port in (node.kafka_port, node.http_port, node.grpc_port)}
        assert len(serials) == 3, "every door shows the same new one each time"
        assert producer.flush(60) == 0
        assert sent
        assert not failed
        assert node.ask("/readyz")["status"] == "ok"


def test_a_broken_file_leaves_the_old_certificate_and_is_told(tmp_path: Path, authority: Authority) -> None:
    with TlsNode(tmp_path / "node", authority) as node:
        assert isinstance(node, TlsNode)
        good, before = node.pair.certificate.read_bytes(), serial_at(node.kafka_port, node.context())
        node.pair.certificate.write_bytes(b"no certificate")
        eventually(lambda: node.ask("/readyz")["status"] == "degraded", what="the warning")
        (warning,) = node.ask("/readyz")["warnings"]
        assert warning["code"] == "tls_files"
        assert "are not a certificate and its private key" in warning["detail"]
        assert "those read before stay in use" in node.log_text
        assert serial_at(node.kafka_port, node.context()) == before
        node.pair.certificate.write_bytes(good)
        eventually(lambda: node.ask("/readyz")["status"] == "ok", what="health")
