"""Links that break, go dead, are refused, or carry garbage."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import struct
import time

import pytest
from tests.support.node import free_port
from tests.unit.peers.exchanges import (
    ECHO,
    NEVER,
    NOTE,
    OPEN,
    Question,
    Talker,
    Wire,
    node,
    run,
    two_nodes,
    until,
)

from penstock.errors import PeerUnavailable, PolicyViolation, StartupError
from penstock.network.frames import FrameKind, encode_head
from penstock.network.link import UNSENT_BYTES_MAX, Link


def test_a_node_that_restarts_is_found_again_by_itself() -> None:
    async def story() -> None:
        port = free_port()
        async with two_nodes(port=port) as (one, two):
            heard: list[tuple[str, int]] = []
            one.peers.on_connected(lambda node_id: heard.append(("up", node_id)))
            one.peers.on_lost(lambda node_id: heard.append(("down", node_id)))
            await one.peers.call(2, ECHO, Question(""))
            waiting = asyncio.ensure_future(one.peers.call(2, NEVER, Question("")))
            await asyncio.sleep(0.01)
            await two.peers.stop()
            with pytest.raises(PeerUnavailable):
                await waiting
            await until(lambda: not one.peers.is_connected(2))
            with pytest.raises(PeerUnavailable, match="Cannot connect to node 2"):
                await one.peers.call(2, ECHO, Question(""))
            again = Talker(node(2, port=port))
            await again.peers.start()
            await until(lambda: one.peers.is_connected(2))  # nobody has to ask
            assert (await one.peers.call(2, ECHO, Question("again"))).reply.text == "again"
            assert heard == [("up", 2), ("down", 2), ("up", 2)]
            await again.peers.stop()

    run(story())


def test_a_node_that_connects_to_us_is_connected_to_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.network.route._BACKOFF_MIN_S", 3_600.0)
    monkeypatch.setattr("penstock.network.route._BACKOFF_MAX_S", 3_600.0)

    async def story() -> None:
        one, port = Talker(node(1)), free_port()
        await one.peers.start()
        one.peers.introduce(2, "127.0.0.1", port)
        with pytest.raises(PeerUnavailable):  # and then there is a long pause before the next try
            await one.peers.call(2, ECHO, Question(""))
        two = Talker(node(2, port=port))
        await two.peers.start()
        two.peers.introduce(1, "127.0.0.1", one.peers.port)
        await two.peers.call(1, ECHO, Question(""))
        await until(lambda: one.peers.is_connected(2))
        await one.peers.stop()
        await two.peers.stop()

    run(story())


def test_a_link_that_goes_dead_without_closing_is_noticed() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            wire = Wire(two.peers.port)
            await wire.start()
            one.peers.introduce(2, "127.0.0.1", wire.port)
            await one.peers.call(2, ECHO, Question(""))
            wire.go_dead(0)
            begin = time.monotonic()
            with pytest.raises(PeerUnavailable, match="silent"):
                await one.peers.call(2, ECHO, Question(""))
            assert time.monotonic() - begin < 20
            assert (await one.peers.call(2, ECHO, Question("anew"))).reply.text == "anew"
            await wire.stop()

    run(story())


def test_an_idle_link_stays_up() -> None:
    async def story() -> None:
        async with two_nodes() as (one, _):
            lost: list[int] = []
            one.peers.on_lost(lost.append)
            await one.peers.call(2, ECHO, Question(""))
            await asyncio.sleep(3)
            assert lost == []
            assert one.peers.is_connected(2)

    run(story())


def test_telling_a_node_that_does_not_read_is_bounded() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            wire = Wire(two.peers.port)
            await wire.start()
            one.peers.introduce(2, "127.0.0.1", wire.port)
            await one.peers.call(2, ECHO, Question(""))
            body = bytes(1_000_000)
            for _ in range(200):
                one.peers.tell(2, NOTE, Question("much"), [body])
            with pytest.raises(PeerUnavailable, match="too far behind"):
                await one.peers.call(2, ECHO, Question(""))
            allowed = UNSENT_BYTES_MAX // len(body) + 1
            await until(lambda: len(two.noted) == allowed)
            await one.peers.call(2, ECHO, Question(""))
            assert len(two.noted) == allowed
            await wire.stop()

    run(story())


@pytest.mark.parametrize(("ours", "theirs"), [("secret", "other"), (None, "secret"), ("secret", None)])
def test_a_different_token_is_refused(ours: str | None, theirs: str | None, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        one, two = Talker(node(1, token=ours)), Talker(node(2, token=theirs))
        await two.peers.start()
        one.peers.introduce(2, "127.0.0.1", two.peers.port)
        with pytest.raises(PeerUnavailable, match=r"set cluster\.token"):
            await one.peers.call(2, ECHO, Question(""))
        with pytest.raises(PeerUnavailable, match=r"set cluster\.token"):
            await one.peers.call_address("127.0.0.1", two.peers.port, ECHO, Question(""))
        await one.peers.stop()
        await two.peers.stop()

    with caplog.at_level(logging.WARNING):
        run(story())
    assert [entry.message for entry in caplog.records if "Refusing node 1 at 127.0.0.1" in entry.message]
    assert "secret" not in caplog.text


def test_the_same_token_is_let_in() -> None:
    async def story() -> None:
        async with two_nodes(token="secret") as (one, _):
            assert (await one.peers.call(2, ECHO, Question("in"))).reply.text == "in"

    run(story())


def test_whoever_is_not_who_it_should_be_is_refused() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            one.peers.introduce(3, "127.0.0.1", two.peers.port)
            with pytest.raises(PeerUnavailable, match="is node 2, not node 3"):
                await one.peers.call(3, ECHO, Question(""))
            twin = node(1)
            with pytest.raises(PeerUnavailable, match="another --node-id"):
                await twin.call_address("127.0.0.1", one.peers.port, ECHO, Question(""))
            one.peers.cluster_id = "first"
            assert (await two.peers.call(1, ECHO, Question("joining"))).reply.text == "joining"
            two.peers.cluster_id = "second"
            stranger = node(9)
            stranger.cluster_id = "second"
            with pytest.raises(PeerUnavailable, match="belongs to cluster first"):
                await stranger.call_address("127.0.0.1", one.peers.port, ECHO, Question(""))
            await stranger.stop()
            await twin.stop()

    run(story())


def test_who_turns_out_to_be_of_another_cluster_is_dropped() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            one.peers.cluster_id = "first"
            await one.peers.call(2, ECHO, Question(""))
            two.peers.cluster_id = "second"
            await until(lambda: not one.peers.is_connected(2))
            with pytest.raises(PeerUnavailable, match="belongs to cluster second"):
                await one.peers.call(2, ECHO, Question(""))

    run(story())


def test_nothing_is_heard_on_an_old_connection_once_there_is_a_new_one() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            await one.peers.call(2, ECHO, Question(""))
            lost: list[int] = []
            one.peers.on_lost(lost.append)
            await one.peers.call_address("127.0.0.1", two.peers.port, OPEN, Question("a visit"))
            assert lost == []
            again = Talker(node(1, port=None))
            again.peers._instance = one.peers._instance  # the same process, which has connected anew
            again.peers.introduce(2, "127.0.0.1", two.peers.port)
            await again.peers.call(2, ECHO, Question(""))
            one.peers.tell(2, NOTE, Question("late"))
            await until(lambda: lost == [2])
            assert two.noted == []
            await again.peers.stop()

    run(story())


def test_nobody_evicts_a_node_that_lives_by_claiming_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            await one.peers.call(2, ECHO, Question(""))
            lost: list[int] = []
            one.peers.on_lost(lost.append)
            claimant = Talker(node(1, port=None))
            claimant.peers.introduce(2, "127.0.0.1", two.peers.port)
            with pytest.raises(PeerUnavailable, match="Another node 1 is connected"):
                await claimant.peers.call(2, ECHO, Question("it is me"))
            with pytest.raises(PeerUnavailable, match="Another node 1 is connected"):
                await claimant.peers.call_address("127.0.0.1", two.peers.port, OPEN, Question("a visit"))
            assert (await one.peers.call(2, ECHO, Question("still here"))).reply.asked_by == 1
            assert lost == []
            # One that has gone, though its connection does not say so, is replaced.
            monkeypatch.setattr(Link, "is_alive", False)
            assert (await claimant.peers.call(2, ECHO, Question("back"))).reply.asked_by == 1
            await claimant.peers.stop()

    run(story())


def test_a_visitor_is_served_only_what_is_for_visitors() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            received = await one.peers.call_address("127.0.0.1", two.peers.port, OPEN, Question("hello"))
            assert received.reply.text == "hello"
            with pytest.raises(PolicyViolation, match="Only nodes of the cluster"):
                await one.peers.call_address("127.0.0.1", two.peers.port, ECHO, Question("hello"))

    run(story())


def garbage(chance: random.Random) -> bytes:
    """Bytes that a stranger might send: noise, web requests, and frames with something wrong in them."""
    frame = encode_head(FrameKind(chance.randrange(7)), 1, "test.echo", Question("x"), 0)
    which = chance.randrange(7)
    if which == 0:
        return chance.randbytes(chance.randrange(1, 5000))
    if which == 1:
        return b"GET / HTTP/1.1\r\nHost: penstock\r\n\r\n"
    if which == 2:
        return struct.pack(">I", 0xFFFFFFFF) + chance.randbytes(100)
    if which == 3:
        return struct.pack(">I", chance.randrange(20)) + chance.randbytes(100)
    if which == 4:
        at = chance.randrange(len(frame))
        return frame[:at] + bytes([frame[at] ^ (1 << chance.randrange(8))]) + frame[at + 1 :]
    if which == 5:
        return frame
    return struct.pack(">I", 100_000_000) + chance.randbytes(100)


def test_garbage_closes_its_connection_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(4)

    async def story() -> None:
        async with two_nodes() as (one, two):
            for _ in range(150):
                reader, writer = await asyncio.open_connection("127.0.0.1", two.peers.port)
                writer.write(garbage(chance))
                writer.write_eof()
                async with asyncio.timeout(30):
                    await reader.read()
                writer.close()
            assert (await one.peers.call(2, ECHO, Question("fine"))).reply.text == "fine"

    with caplog.at_level(logging.WARNING):
        run(story())
    assert "Closing the connection with 127.0.0.1" in caplog.text
    assert "bug" not in caplog.text


def test_whoever_does_not_introduce_itself_is_sent_away() -> None:
    async def story() -> None:
        async with two_nodes() as (_, two):
            reader, writer = await asyncio.open_connection("127.0.0.1", two.peers.port)
            async with asyncio.timeout(30):
                await reader.read()
            writer.close()

    run(story())


def test_a_server_that_says_nothing_is_given_up() -> None:
    async def story() -> None:
        one = Talker(node(1))
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            begin = time.monotonic()
            with pytest.raises(PeerUnavailable, match="no answer within 2 s"):
                await one.peers.call_address("127.0.0.1", deaf.getsockname()[1], ECHO, Question(""))
            assert time.monotonic() - begin < 20
        await one.peers.stop()

    run(story())


def test_a_server_that_is_no_node_is_named_as_such() -> None:
    async def story() -> None:
        one = Talker(node(1))

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail.example.org ESMTP\r\n" + os.urandom(100))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        with pytest.raises(PeerUnavailable, match="Cannot connect"):
            await one.peers.call_address("127.0.0.1", server.sockets[0].getsockname()[1], ECHO, Question(""))
        server.close()
        await one.peers.stop()

    run(story())


def test_a_port_in_use_is_told_as_such() -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(StartupError, match="--internal"):
            await node(1, port=other.getsockname()[1]).start()

    run(story())
