"""Whatever comes in, the door answers with a problem that helps, and goes on."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.doors.rest import HttpConfig

from .conftest import DoorInThread, OpenDoor, http_config

PROBLEM = {"type", "title", "status", "detail", "instance", "code", "retriable"}


def _assert_problem(answer: httpx.Response, status: int, code: str) -> dict[str, object]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, object] = answer.json()
    assert set(problem) == PROBLEM
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["instance"] == answer.request.url.path
    return problem


@pytest.mark.parametrize(
    ("body", "status", "code", "place"),
    [
        (b"", 400, "malformed_body", "no body"),
        (b"{", 400, "malformed_body", "truncated"),
        (b"nonsense", 400, "malformed_body", "byte"),
        (b'{"value": 1,}', 400, "malformed_body", "trailing comma"),
        (b'{"key": "\xff", "value": 1}', 400, "malformed_body", "UTF-8"),
        (b'{"value": ' + b"[" * 100_000, 400, "malformed_body", "nested"),
        (b'{"value": {"a": "\xff"}}', 422, "invalid_body", "$.value"),
        (b"[]", 422, "invalid_body", "object"),
        (b"{}", 422, "invalid_body", "value_base64"),
        (b'{"value": 1, "value_base64": "eA=="}', 422, "invalid_body", "not both"),
        (b'{"key": "a", "key_base64": "eA==", "value": 1}', 422, "invalid_body", "not both"),
        (b'{"value": 1, "vaule": 2}', 422, "invalid_body", "vaule"),
        (b'{"value": 1, "key": 5}', 422, "invalid_body", "$.key"),
        (b'{"value_base64": "@"}', 422, "invalid_body", "$.value_base64"),
        (b'{"value": 1, "partition": -1}', 422, "invalid_body", "$.partition"),
        (b'{"value": 1, "partition": 1e3}', 422, "invalid_body", "$.partition"),
        (b'{"value": 1, "headers": {"a": 1}}', 422, "invalid_body", "$.headers"),
        (b'{"value": 1, "timestamp": "yesterday"}', 422, "invalid_body", "$.timestamp"),
        (b'{"value": 1, "timestamp": "0001-01-01T00:00:00Z"}', 422, "invalid_timestamp", ""),
    ],
)
def test_a_bad_body_is_told_where_it_is_bad(
    client: httpx.Client, body: bytes, status: int, code: str, place: str
) -> None:
    problem = _assert_problem(client.post("/v1/topics/bad/publish", content=body), status, code)
    assert place in str(problem["detail"])


def test_a_bad_message_in_a_batch_is_named_and_nothing_is_published(client: httpx.Client, topic: str) -> None:
    client.post("/v1/topics", json={"name": topic})
    answer = client.post(f"/v1/topics/{topic}/batch", json={"messages": [{"value": "fine"}, {"key": "no value"}]})
    assert "$.messages[1]" in str(_assert_problem(answer, 422, "invalid_body")["detail"])
    assert client.get(f"/v1/topics/{topic}").json()["messages"] == 0


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=-1", "limit=x", "limit=10001", "limit=", "offset=-1", "offset=soon", "offset=1.5",
        "partition=-1", "partition=a", "timeout_ms=-1", "timeout_ms=999999", "colour=red", "limit=1&limit=2",
        "offset=99999999999999999999", "limit=%ff",
    ],
)  # fmt: skip
def test_a_bad_query_parameter_is_refused(client: httpx.Client, query: str) -> None:
    _assert_problem(client.get(f"/v1/topics/bad/messages?{query}"), 400, "invalid_parameter")


@pytest.mark.parametrize(
    "path", ["/nope", "/v1", "/v1/topics/", "/v1/topics/a/b/c", "/static/../server.py", "/static/x"]
)
def test_an_unknown_path_is_a_problem(client: httpx.Client, path: str) -> None:
    _assert_problem(client.get(path), 404, "no_such_route")


def test_a_wrong_method_is_told_the_right_ones(client: httpx.Client) -> None:
    answer = client.put("/v1/topics", json={})
    _assert_problem(answer, 405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


def test_reading_past_the_end_says_what_there_is(client: httpx.Client, topic: str) -> None:
    client.post(f"/v1/topics/{topic}/publish", json={"value": "x", "partition": 0})
    problem = _assert_problem(client.get(f"/v1/topics/{topic}/messages?offset=5"), 416, "offset_out_of_range")
    assert "0 to 1" in str(problem["detail"])


def test_a_body_over_the_limit_is_refused_before_it_is_read(open_door: OpenDoor) -> None:
    door = open_door(http_config(max_body_bytes=1000))
    _assert_problem(door.client.post("/v1/topics/t/publish", content=b"x" * 1001), 413, "body_too_large")

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 500

    _assert_problem(door.client.post("/v1/topics/t/publish", content=endless()), 413, "body_too_large")
    with socket.create_connection(("127.0.0.1", door.server.port), 60) as raw:
        raw.sendall(b"POST /v1/topics/t/publish HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 99999999999\r\n\r\n")
        assert b"413" in raw.recv(100)
    assert door.client.post("/v1/topics/t/publish", json={"value": "x"}).status_code == 200


def test_pages_of_other_sites_change_nothing(client: httpx.Client, topic: str) -> None:
    url = f"/v1/topics/{topic}/publish"
    foreign = client.post(url, json={"value": "x"}, headers={"origin": "https://evil.example"})
    _assert_problem(foreign, 403, "cross_origin")
    own = client.post(url, json={"value": "x"}, headers={"origin": f"http://{client.base_url.netloc.decode()}"})
    assert own.status_code == 200


def test_a_head_too_large_is_cut_off(open_door: OpenDoor) -> None:
    door = open_door(HttpConfig(port=0, head_bytes_max=10_000))
    with socket.create_connection(("127.0.0.1", door.server.port), 60) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nx: " + b"y" * 20_000)
        assert b"431" in raw.recv(100)
    assert door.client.get("/livez").status_code == 200


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", b"POST /v1/topics/t/publish HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 10\r\n\r\nabc"],
)
def test_a_client_that_does_not_finish_its_request_is_cut_off(open_door: OpenDoor, sent: bytes) -> None:
    door = open_door(HttpConfig(port=0, head_timeout_ms=500, body_timeout_ms=500))
    with socket.create_connection(("127.0.0.1", door.server.port), 60) as raw:
        raw.sendall(sent)
        assert b"408" in raw.recv(100)
    assert door.client.get("/livez").status_code == 200


@pytest.mark.parametrize(
    "garbage", [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"CONNECT x:1 HTTP/1.1\r\n\r\n"]
)
def test_garbage_instead_of_http_harms_nobody(door: DoorInThread, garbage: bytes) -> None:
    with socket.create_connection(("127.0.0.1", door.server.port), 60) as raw:
        raw.sendall(garbage)
        raw.shutdown(socket.SHUT_WR)
        raw.recv(1000)
    assert door.client.get("/livez").status_code == 200


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)
_bodies = st.binary(max_size=200) | _json.map(msgspec.json.encode) | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("key", "value", "headers", "partition", "messages", "name", "configs"), _json)
).map(msgspec.json.encode)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=_bodies,
    route=st.sampled_from(
        [
            ("POST", "/v1/topics/fuzz/publish"),
            ("POST", "/v1/topics/fuzz/batch"),
            ("PATCH", "/v1/topics/fuzz"),
            ("POST", "/v1/topics/fuzz/partitions"),
        ]
    ),
)
def test_no_body_makes_the_node_stumble(client: httpx.Client, body: bytes, route: tuple[str, str]) -> None:
    answer = client.request(*route, content=body)
    assert answer.status_code in {200, 207, 400, 404, 413, 422}, answer.text
