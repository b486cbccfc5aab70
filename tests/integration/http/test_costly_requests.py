"""Requests that are small and would cost much: what a client claims takes no memory, and no work in one go."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.integration.http.conftest import DoorInThread, OpenDoor
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from penstock.config.settings import BrokerSettings
from penstock.doors.rest import HttpConfig
from penstock.doors.websocket.connection import FRAGMENTS_MAX

MIB = 1024 * 1024
ROUNDS = 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("line", ["GET /livez", "POST /v1/topics/claimed/batches", "POST /v1/topics/claimed/publish"])
def test_a_claimed_length_takes_no_memory(door: DoorInThread, line: str) -> None:
    before = resident_bytes()
    with ExitStack() as stack:
        for _ in range(ROUNDS):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", door.server.port), 60))
            raw.sendall(f"{line} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {16 * MIB}\r\n\r\n".encode() + b"x")
        assert door.client.get("/livez").status_code == 200  # they are all read by now, or will be soon
        time.sleep(0)
        assert resident_bytes() - before < ROUNDS * MIB


def test_all_bodies_together_have_a_limit(open_door: OpenDoor) -> None:
    door = open_door(HttpConfig(port=0, node=BrokerSettings(max_body_bytes=3 * MIB), bodies_at_once=1))
    head = f"POST /v1/topics/t/batches HTTP/1.1\r\nhost: localhost\r\ncontent-length: {2 * MIB}\r\n\r\n".encode()
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(socket.create_connection(("127.0.0.1", door.server.port), 60)) for _ in range(2)
        )
        first.sendall(head + bytes(2 * MIB - 1))
        second.sendall(head)
        try:
            second.sendall(bytes(2 * MIB - 1))
        except OSError:
            pass  # it was refused before all was sent
        refused = first if not second.recv(100, socket.MSG_PEEK) else second
        assert refused.recv(100).startswith(b"HTTP/1.1 503")
    assert door.client.post("/v1/topics/t/publish", json={"value": "x" * (2 * MIB - 100)}).status_code == 413
    assert door.client.post("/v1/topics/t/publish", json={"value": "x" * (MIB // 2)}).status_code == 200


def test_what_says_what_to_do_has_a_small_limit(door: DoorInThread) -> None:
    answer = door.client.post("/v1/topics", json={"name": "x", "configs": {"retention.ms": "1" * 2 * MIB}})
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


def test_a_message_in_too_many_fragments_ends_its_socket(door: DoorInThread) -> None:
    with connect(f"ws://127.0.0.1:{door.server.port}/v1/ws") as client:
        client.recv(60)
        client.socket.sendall(b"\x01\x81\0\0\0\0x" + b"\x00\x81\0\0\0\0x" * FRAGMENTS_MAX)
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


def test_a_message_in_some_fragments_is_one(door: DoorInThread) -> None:
    with connect(f"ws://127.0.0.1:{door.server.port}/v1/ws") as client:
        client.recv(60)
        client.send(iter('{"op": "ping", "id": "in pieces"}'))
        assert '"in pieces"' in str(client.recv(60))


def test_a_flood_of_frames_leaves_turns_to_others(door: DoorInThread) -> None:
    """A quarter of a million pings that are never read, and empty messages: others are answered meanwhile."""
    ping = b"\x89\x80\0\0\0\0"
    message = b"\x81\x80\0\0\0\0"
    for frame in (ping, message):
        with connect(f"ws://127.0.0.1:{door.server.port}/v1/ws") as client:
            client.recv(60)
            client.socket.setblocking(False)
            try:
                client.socket.sendall(frame * 250_000)
            except BlockingIOError:
                pass  # it is not taken faster than it is worked on
            assert door.client.get("/livez").status_code == 200
            client.socket.setblocking(True)
            client.socket.shutdown(socket.SHUT_RDWR)
