"""A client at the wrong port is told so, in words that it shows; the node's log has it too."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from confluent_kafka import KafkaException, Producer
from tests.support.node import Node, free_port, penstock_command

import penstock
from penstock.errors import WrongPort

DOORS = ("kafka", "http", "grpc", "internal")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node(tmp_path_factory.mktemp("node"))
    made.internal_port = free_port()  # type: ignore[attr-defined]
    made.arguments = ("--internal", f"127.0.0.1:{made.internal_port}")  # type: ignore[attr-defined]
    with made:
        yield made
        assert made.is_running


def port_of(node: Node, door: str) -> int:
    port: int = getattr(node, f"{door}_port")
    return port


@pytest.mark.parametrize(("door", "named"), [("kafka", "the Kafka port"), ("internal", "the internal port")])
@pytest.mark.parametrize("body", [None, b"x" * 600_000], ids=["GET", "POST"])
def test_an_http_client_is_told_the_http_address(node: Node, door: str, named: str, body: bytes | None) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port_of(node, door)}/v1/topics", body, timeout=60)
    problem = json.load(refused.value)
    assert (refused.value.code, problem["code"]) == (400, "wrong_port")
    assert named in problem["detail"]
    assert f"The HTTP address is {node.http_url}." in problem["detail"]


@pytest.mark.parametrize("door", ["kafka", "http", "internal"])
def test_a_grpc_client_says_that_it_met_http(node: Node, door: str) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port_of(node, door)}") as channel:
        call = channel.unary_unary("/penstock.v1.Topics/ListTopics")
        with pytest.raises(grpc.RpcError) as failed:
            call(b"", timeout=60)
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "http1.x server (HTTP status 400)" in failed.value.details()


@pytest.mark.parametrize("door", ["kafka", "http", "internal"])
def test_a_tls_client_says_that_this_is_no_tls(node: Node, door: str) -> None:
    with (
        socket.create_connection(("127.0.0.1", port_of(node, door)), timeout=60) as plain,
        pytest.raises(ssl.SSLError, match=r"(?i)wrong.version.number"),
    ):
        ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")


@pytest.mark.parametrize("door", ["http", "internal"])
def test_a_kafka_client_gets_an_answer_that_it_can_read(node: Node, door: str) -> None:
    with socket.create_connection(("127.0.0.1", port_of(node, door)), timeout=60) as client:
        request = struct.pack(">hhih", 18, 3, 77, -1)
        client.sendall(struct.pack(">i", len(request)) + request)
        answer = client.makefile("rb").read()
    assert struct.unpack(">iihi", answer) == (10, 77, 8, 0), "ApiVersions, version 0: BROKER_NOT_AVAILABLE"


def test_librdkafka_says_that_no_broker_is_there(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    client = Producer({"bootstrap.servers": f"127.0.0.1:{node.http_port}"})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=2)
    assert "ApiVersionRequest failed: Broker: Broker not available" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("door", "told"), [("kafka", "the Kafka port"), ("internal", "the internal port"), ("grpc", "is a gRPC port")]
)
def test_our_own_clients_say_it_at_once(node: Node, door: str, told: str) -> None:
    url = f"http://127.0.0.1:{port_of(node, door)}"
    done = subprocess.run(
        [penstock_command(), "topic", "list", "--url", url], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert told in done.stderr
    assert "HTTP address" in done.stderr
    with penstock.Client(url) as client, pytest.raises(WrongPort, match=told):
        client.publish("orders", "one")


def test_clients_that_speak_late_know_the_internal_port_by_its_greeting(node: Node) -> None:
    """A node speaks first to what says nothing at its internal port, as a client of a busy machine does."""
    with socket.create_connection(("127.0.0.1", port_of(node, "internal")), timeout=60) as late:
        greeting = late.recv(4096)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            for _ in range(2):
                client, _address = server.accept()
                client.recv(1)
                client.sendall(greeting)
                client.recv(65536)
                client.close()

        greeting_all = threading.Thread(target=greet)
        greeting_all.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        done = subprocess.run(
            [penstock_command(), "topic", "list", "--url", url], capture_output=True, text=True, timeout=60, check=False
        )
        with penstock.Client(url) as client, pytest.raises(WrongPort, match="the internal port"):
            client.publish("orders", "one")
        greeting_all.join()
    assert done.returncode == 2
    assert "the internal port" in done.stderr
    assert "HTTP address" in done.stderr


def test_the_log_has_it_for_each_door(node: Node) -> None:
    for _ in range(3):
        for door in ("kafka", "http", "internal"):
            with socket.create_connection(("127.0.0.1", port_of(node, door)), timeout=60) as client:
                client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                assert client.makefile("rb").read().startswith(b"HTTP/1.1 400 ")
    deadline = time.monotonic() + 60
    while node.log_text.count(" speaks gRPC to ") < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    for door in ("the Kafka port", "the HTTP port", "the internal port"):
        assert f"speaks gRPC to {door}" in node.log_text


def test_garbage_is_still_closed_on_and_clients_at_the_right_port_are_served(node: Node) -> None:
    with socket.create_connection(("127.0.0.1", node.kafka_port), timeout=60) as client:
        client.sendall(b"\x7f\xff\xff\xff nothing known")
        assert client.recv(100) == b""
    assert node.is_ready()
