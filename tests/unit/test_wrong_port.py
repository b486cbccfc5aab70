"""Protocols are known by their first bytes, and clients of the wrong one are told where to go."""

from __future__ import annotations

import json
import logging
import struct

import pytest

from penstock.wrong_port import Guide, Ports, Protocol, recognise

KAFKA = struct.pack(">ihhih", 10, 18, 3, 1, -1)


@pytest.mark.parametrize(
    ("first", "protocol"),
    [
        (b"GET / HTTP/1.1\r\n", Protocol.HTTP),
        (b"POST", Protocol.HTTP),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Protocol.GRPC),
        (b"\x16\x03\x01\x02\x00\x01", Protocol.TLS),
        (b"\x16\x03\x05\x02\x00\x01", None),
        (KAFKA, Protocol.KAFKA),
        (KAFKA[:8], None),
        (struct.pack(">ihhi", 10, 1800, 3, 1), None),
        (struct.pack(">ihhi", 200 * 1024 * 1024, 18, 3, 1), None),
        (b"\x00" * 12, None),
        (b"", None),
        (b"GETA", None),
    ],
)
def test_each_protocol_begins_in_its_own_way(first: bytes, protocol: Protocol | None) -> None:
    assert recognise(first) is protocol
    assert recognise(memoryview(first)) is protocol


def test_a_door_does_not_turn_its_own_clients_away() -> None:
    guide = Guide("the HTTP port", Protocol.HTTP, Ports(kafka=9092))
    assert guide.answer(b"GET / HTTP/1.1", client="c", host="h") is None
    assert guide.answer(KAFKA, client="c", host="h") is not None


def test_a_protocol_that_the_node_does_not_speak_is_said_to_be_off() -> None:
    answer = Guide("the Kafka port", Protocol.KAFKA, Ports(http=8080)).answer(b"PRI * ", client="c", host="::1")
    assert answer is not None
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["detail"].endswith("This node does not speak gRPC.")


def test_the_log_has_it_once_a_minute_for_each_protocol(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    guide = Guide("the Kafka port", Protocol.KAFKA, Ports(http=8080), lambda: now)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            guide.answer(b"GET ", client="c:1", host="::1")
            guide.answer(b"PRI ", client="c:2", host="::1")
        assert len(caplog.records) == 2
        assert "c:1 speaks HTTP to the Kafka port. The HTTP address is http://[::1]:8080." in caplog.text
        now += 60
        guide.answer(b"GET ", client="c:1", host="::1")
        assert len(caplog.records) == 3
