"""DNS rebinding: a browser that was sent here under a foreign name gets nothing, whatever it asks."""

from __future__ import annotations

import socket

import httpx
import pytest

from .conftest import DoorInThread, OpenDoor, http_config

EVIL = {"host": "evil.example", "origin": "http://evil.example", "sec-fetch-site": "same-origin"}


def _refusal(answer: httpx.Response) -> str:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (421, "host_not_allowed"), answer.text
    return str(problem["detail"])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/livez"),
        ("GET", "/v1/topics"),
        ("HEAD", "/metrics"),
        ("PUT", "/v1/topics/rebound"),
        ("POST", "/v1/topics/rebound/publish"),
        ("DELETE", "/v1/topics/rebound"),
        ("OPTIONS", "/v1/topics"),
        ("GET", "/nowhere"),
    ],
)
def test_a_foreign_name_gets_nothing_by_any_method(door: DoorInThread, method: str, path: str) -> None:
    answer = door.client.request(method, path, headers=EVIL, json={"value": "x"} if method == "POST" else None)
    assert answer.status_code == 421
    if method != "HEAD":
        assert "broker.http_allowed_hosts" in _refusal(answer)
    assert "rebound" not in door.look(lambda broker: set(broker.metadata.topics))


def test_a_foreign_name_opens_no_websocket(door: DoorInThread) -> None:
    head = (
        "GET /v1/ws HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", door.server.port), 60) as raw:
        raw.sendall(head.encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 421")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8080", "localhost", "LOCALHOST:80", "localhost.", "a.localhost", "[::1]:8080", "10.1.2.3"],
)
def test_loopback_names_and_literal_addresses_are_taken(door: DoorInThread, host: str) -> None:
    assert door.client.get("/livez", headers={"host": host}).status_code == 200


def test_the_machine_s_own_name_is_taken(door: DoorInThread) -> None:
    assert door.client.get("/livez", headers={"host": f"{socket.gethostname()}:8080"}).status_code == 200


def test_a_request_without_a_host_is_no_browser_s(door: DoorInThread) -> None:
    with socket.create_connection(("127.0.0.1", door.server.port), 60) as raw:
        raw.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 200")


def test_two_host_headers_are_both_looked_at(door: DoorInThread) -> None:
    with socket.create_connection(("127.0.0.1", door.server.port), 60) as raw:
        raw.sendall(b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\nhost: evil.example\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 421")


@pytest.mark.parametrize(
    ("allowed", "host", "status"),
    [
        ("queue.example", "queue.example:80", 200),
        ("queue.example", "Queue.Example", 200),
        ("queue.example", "x.queue.example", 421),
        ("*.queue.example", "a.b.queue.example", 200),
        ("*.queue.example", "queue.example", 421),
        ("*.queue.example", "evilqueue.example", 421),
        ("*", "evil.example", 200),
    ],
)
def test_names_are_allowed_by_setting(open_door: OpenDoor, allowed: str, host: str, status: int) -> None:
    client = open_door(http_config(http_allowed_hosts=(allowed,))).client
    assert client.get("/livez", headers={"host": host}).status_code == status


def test_a_forwarded_host_counts_only_from_a_proxy_that_is_trusted(open_door: OpenDoor) -> None:
    told = {"x-forwarded-host": "shop.example", "origin": "http://shop.example"}
    names = ("shop.example",)
    stranger = open_door(http_config(http_allowed_hosts=names)).client
    assert stranger.post("/v1/topics", json={"name": "a"}, headers=told).status_code == 403
    trusted = open_door(http_config(http_allowed_hosts=names, http_trusted_proxies=("127.0.0.0/8",))).client
    assert trusted.post("/v1/topics", json={"name": "a"}, headers=told).status_code == 201
    assert (
        trusted.post("/v1/topics", json={"name": "b"}, headers={**told, "origin": "http://x.example"}).status_code
        == 403
    )
    assert trusted.get("/livez", headers={"x-forwarded-host": "evil.example"}).status_code == 421
