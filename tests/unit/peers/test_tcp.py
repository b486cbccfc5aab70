"""Nodes over real sockets of this machine."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import msgspec
import pytest
from tests.unit.peers.exchanges import (
    BREAK,
    ECHO,
    ECHO_BULK,
    LATER,
    NEVER,
    NOTE,
    OPEN,
    REFUSE,
    Answer,
    Question,
    Talker,
    Wire,
    node,
    run,
    two_nodes,
    until,
)

from penstock.errors import GroupNotFound, InvalidRequest, MessageTooLarge, PeerUnavailable, PenstockError
from penstock.network.port import Method, Nothing, Reply
from penstock.storage.files import DiskFiles, FileSlice
from penstock.testing.files import MemoryFiles


class Other(msgspec.Struct, frozen=True):
    missing: int


def test_a_call_is_answered_with_its_body() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            received = await one.peers.call(2, ECHO, Question("hello"), [b"some ", memoryview(b"bytes")])
            assert received.reply == Answer("hello", 1)
            assert bytes(received.body) == b"some bytes"
            assert one.peers.is_connected(2)
            assert not two.peers.is_connected(1)
            back = await two.peers.call(1, LATER, Question("back"))
            assert back.reply == Answer("back", 2)
            assert bytes(back.body) == b""

    run(story())


def test_what_is_told_arrives_in_order_once_connected() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            await one.peers.call(2, ECHO, Question(""))
            for number in range(500):
                one.peers.tell(2, NOTE, Question(str(number)), [b"x" * number])
            await until(lambda: len(two.noted) == 500)
            assert two.noted == [(1, str(number), b"x" * number) for number in range(500)]

    run(story())


def test_telling_a_node_that_is_not_connected_begins_to_connect() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            connected: list[int] = []
            one.peers.on_connected(connected.append)
            one.peers.tell(2, NOTE, Question("lost"))
            await until(lambda: one.peers.is_connected(2))
            one.peers.tell(2, NOTE, Question("heard"))
            await until(lambda: bool(two.noted))
            assert [text for _, text, _ in two.noted] == ["heard"]
            assert connected == [2]

    run(story())


def test_errors_keep_their_class_and_message() -> None:
    async def story() -> None:
        async with two_nodes() as (one, _):
            with pytest.raises(GroupNotFound, match="no group of that name"):
                await one.peers.call(2, REFUSE, Question(""))
            with pytest.raises(PenstockError, match=r"bug while it served test\.break"):
                await one.peers.call(2, BREAK, Question(""))
            with pytest.raises(PeerUnavailable, match=r"does not answer test\.unknown"):
                await one.peers.call(2, Method("test.unknown", Question, Answer), Question(""))
            with pytest.raises(InvalidRequest, match="same release"):
                await one.peers.call(2, Method("test.echo", Nothing, Answer), Nothing())
            with pytest.raises(PeerUnavailable, match="same release"):
                await one.peers.call(2, Method("test.echo", Question, Other), Question(""))

    run(story())


def test_a_call_times_out_and_the_link_goes_on() -> None:
    async def story() -> None:
        async with two_nodes() as (one, _):
            await one.peers.call(2, ECHO, Question("connect"))
            with pytest.raises(PeerUnavailable, match=r"did not answer test\.never within 0\.05 s"):
                await one.peers.call(2, NEVER, Question(""), timeout_s=0.05)
            assert (await one.peers.call(2, ECHO, Question("still"))).reply.text == "still"

    run(story())


def test_a_node_serves_itself() -> None:
    async def story() -> None:
        alone = Talker(node(7, port=None))
        await alone.peers.start()
        assert alone.peers.port is None
        received = await alone.peers.call(7, LATER, Question("me"), [b"a", b"b"])
        assert received.reply == Answer("me", 7)
        assert bytes(received.body) == b"ab"
        with pytest.raises(GroupNotFound):
            await alone.peers.call(7, REFUSE, Question(""))
        with pytest.raises(PeerUnavailable, match="not finish"):
            await alone.peers.call(7, NEVER, Question(""), timeout_s=0.01)
        alone.peers.tell(7, NOTE, Question("told"))
        assert alone.noted == []
        await until(lambda: alone.noted == [(7, "told", b"")])
        with pytest.raises(PeerUnavailable, match="not known"):
            await alone.peers.call(8, ECHO, Question(""))
        alone.peers.tell(8, NOTE, Question("into the void"))
        await alone.peers.stop()

    run(story())


def test_an_address_can_be_asked_before_its_node_is_known() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            reply = (await one.peers.call_address("127.0.0.1", two.peers.port, OPEN, Question("who"))).reply
            assert reply == Answer("who", 1)
            own = (await one.peers.call_address("127.0.0.1", one.peers.port, OPEN, Question("me"))).reply
            assert own == Answer("me", 1)
            with socket.create_server(("127.0.0.1", 0)) as deaf:
                free = deaf.getsockname()[1]
            with pytest.raises(PeerUnavailable, match="Cannot connect"):
                await one.peers.call_address("127.0.0.1", free, OPEN, Question("who"))

    run(story())


def test_bodies_of_many_megabytes_arrive_whole() -> None:
    async def story() -> None:
        async with two_nodes() as (one, _):
            body = os.urandom(30_000_000)
            received = await one.peers.call(2, ECHO_BULK, Question("big"), [body[:7], memoryview(body)[7:]])
            assert received.body == body
            with pytest.raises(MessageTooLarge):
                await one.peers.call(2, ECHO_BULK, Question("too big"), [bytes(128 * 1024 * 1024)])
            assert (await one.peers.call(2, ECHO_BULK, Question("after"))).reply.text == "after"

    run(story())


def test_slices_of_files_are_sent_as_they_are(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)

    async def story() -> None:
        async with two_nodes() as (one, two):
            slices: list[FileSlice] = []
            for files in (DiskFiles(), MemoryFiles()):
                files.make_directory(tmp_path)
                file = files.open(tmp_path / "segment", create=True)
                file.write(content)
                slices.append(FileSlice(file, 1000, 2_000_000))
            read = Method("test.read", Question, Answer, is_bulk=True)
            two.peers.serve(read, lambda *_: Reply(Answer("", 0), [b"<", slices[0], b"|", slices[1], b">"]))
            body = bytes((await one.peers.call(2, read, Question(""))).body)
            cut = content[1000:2_001_000]
            assert body == b"<" + cut + b"|" + cut + b">"

    run(story())


def test_a_reply_that_is_too_large_is_told_as_an_error() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            huge = Method("test.huge", Question, Nothing)
            two.peers.serve(huge, lambda *_: Reply(Nothing(), [bytes(128 * 1024 * 1024)]))
            with pytest.raises(MessageTooLarge):
                await one.peers.call(2, huge, Question(""))

    run(story())


def test_a_node_reads_on_when_it_has_sent_what_it_was_asked_for() -> None:
    """More is asked for than may wait to be sent, so questions are held back in between."""

    async def story() -> None:
        async with two_nodes() as (one, two):
            large = Method("test.large", Question, Nothing)
            two.peers.serve(large, lambda *_: Reply(Nothing(), [bytes(20_000_000)]))
            for _ in range(2):
                answers = await asyncio.gather(*(one.peers.call(2, large, Question("")) for _ in range(8)))
                assert [len(answer.body) for answer in answers] == [20_000_000] * 8
            assert (await one.peers.call(2, ECHO, Question("on"))).reply.text == "on"

    run(story())


def test_a_file_that_ends_early_breaks_the_connection_and_not_the_frame(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            file = DiskFiles().open(tmp_path / "cut", create=True)
            file.write(bytes(100))
            short = Method("test.short", Question, Nothing)
            two.peers.serve(short, lambda *_: Reply(Nothing(), [FileSlice(file, 0, 1000)]))
            with pytest.raises(PeerUnavailable, match="broke before it answered"):
                await one.peers.call(2, short, Question(""))
            assert (await one.peers.call(2, ECHO, Question("anew"))).reply.text == "anew"

    run(story())


def test_many_calls_are_in_flight_at_once() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            calls = [
                one.peers.call(2, method, Question(str(number)), [str(number).encode() * 50])
                for number in range(1000)
                for method in (ECHO, LATER, ECHO_BULK)
            ]
            calls += [two.peers.call(1, LATER, Question(str(number))) for number in range(1000)]
            answers = await asyncio.gather(*calls)
            assert [answer.reply.text for answer in answers] == [
                *(str(number) for number in range(1000) for _ in range(3)),
                *(str(number) for number in range(1000)),
            ]

    run(story())


def test_bulk_has_a_connection_of_its_own() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            wire = Wire(two.peers.port)
            await wire.start()
            one.peers.introduce(2, "127.0.0.1", wire.port)
            lost: list[int] = []
            one.peers.on_lost(lost.append)
            await one.peers.call(2, ECHO, Question(""))
            await one.peers.call(2, ECHO_BULK, Question(""))
            assert wire.connections == 2
            wire.go_dead(1)
            stuck = asyncio.ensure_future(one.peers.call(2, ECHO_BULK, Question(""), [bytes(20_000_000)]))
            for number in range(20):
                answer = await one.peers.call(2, ECHO, Question(str(number)), timeout_s=20)
                assert answer.reply.text == str(number)
            with pytest.raises(PeerUnavailable):
                await stuck
            assert one.peers.is_connected(2)
            assert lost == []
            await wire.stop()

    run(story())


def test_whoever_moves_is_found_at_the_new_address() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            await one.peers.call(2, ECHO, Question(""))
            moved = Talker(node(2))
            await moved.peers.start()
            await two.peers.stop()
            one.peers.introduce(2, "127.0.0.1", moved.peers.port)
            one.peers.introduce(2, "127.0.0.1", moved.peers.port)
            assert (await one.peers.call(2, ECHO, Question("new"))).reply.text == "new"
            one.peers.forget(2)
            assert not one.peers.is_connected(2)
            with pytest.raises(PeerUnavailable, match="not known"):
                await one.peers.call(2, ECHO, Question(""))
            await moved.peers.stop()

    run(story())


def test_stopping_fails_the_calls_that_wait() -> None:
    async def story() -> None:
        async with two_nodes() as (one, two):
            ours = asyncio.ensure_future(one.peers.call(2, NEVER, Question("")))
            theirs = asyncio.ensure_future(two.peers.call(1, NEVER, Question("")))
            await until(lambda: one.peers.is_connected(2) and two.peers.is_connected(1))
            await asyncio.sleep(0.02)
            await one.peers.stop()
            for call in (ours, theirs):
                with pytest.raises(PeerUnavailable):
                    await call
            with pytest.raises(PeerUnavailable):
                await one.peers.call(2, ECHO, Question(""))

    run(story())
