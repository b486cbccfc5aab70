"""A request is known by its head only where it cannot be anything else than what came before."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.doors.rest.shortcut import SERVES_AGAIN, Heads

HEAD = b"POST /v1/queues/a/ack HTTP/1.1\r\nhost: x\r\naccept: a/b"


def request(body: bytes, head: bytes = HEAD) -> bytes:
    return b"%b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def scope(*headers: tuple[bytes, bytes], version: str = "1.1", is_served: bool = True) -> dict[str, Any]:
    told: dict[str, Any] = {"http_version": version, "headers": [(b"host", b"x"), *headers]}
    return {**told, SERVES_AGAIN: object()} if is_served else told


def heads(data: bytes = request(b"one"), **of: Any) -> Heads:
    known = Heads()
    known.learn(data, scope(**of))
    return known


@pytest.mark.parametrize("body", [b"", b"another", b"x" * 99_999, b"\r\ncontent-length: 3\r\n\r\none"])
def test_the_same_head_with_any_body_is_known(body: bytes) -> None:
    found = heads().find(request(body))
    assert found is not None
    assert found.body == body


@pytest.mark.parametrize(
    "data",
    [
        request(b"one")[:-1],
        request(b"one") + b"P",
        request(b"one") + request(b"two"),
        request(b"one", HEAD.replace(b"/a/", b"/b/")),
        request(b"one", HEAD + b"\r\ncookie: y"),
        request(b"one", HEAD + b"\r\ncontent-length: 3"),
        HEAD + b"\r\nContent-Length: 3\r\n\r\none",
        HEAD + b"\r\ncontent-length: +3\r\n\r\none",
        HEAD + b"\r\ncontent-length: 3 \r\n\r\none",
        HEAD + b"\r\ncontent-length: \r\n\r\none",
        HEAD + b"\r\ncontent-length: 0000000003\r\n\r\none",
        HEAD + b"\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\none",
        HEAD + b"\r\ncontent-length: 3\n\none",
        b"\r\n" + request(b"one"),
        b"one",
        b"",
    ],
)
def test_what_differs_in_more_than_its_body_is_not(data: bytes) -> None:
    assert heads().find(data) is None


def test_a_head_that_no_operation_takes_again_is_not_known() -> None:
    assert heads(is_served=False).find(request(b"two")) is None


@pytest.mark.parametrize("name", [b"transfer-encoding", b"expect", b"upgrade", b"connection"])
def test_heads_that_steer_the_connection_are_not_learnt(name: bytes) -> None:
    known = Heads()
    known.learn(request(b"one"), scope((name, b"y")))
    assert known.find(request(b"two")) is None


def test_an_old_version_is_not_learnt() -> None:
    assert heads(version="1.0").find(request(b"two")) is None


def test_a_connection_keeps_a_few_heads_and_no_large_ones() -> None:
    known = Heads()
    for number in range(1_000):
        known.learn(request(b"one", HEAD + b"\r\nx: %d" % number), scope())
    assert len(known._scopes) <= 16
    assert known.find(request(b"two", HEAD + b"\r\nx: 999")) is not None
    large = HEAD + b"\r\nx: " + b"y" * 5_000
    known.learn(request(b"one", large), scope())
    assert known.find(request(b"two", large)) is None
