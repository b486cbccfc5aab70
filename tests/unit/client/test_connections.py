"""Answers as they arrive, in whatever pieces; what is not HTTP ends the connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.client.connections import HttpAnswer, HttpConnection

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
LARGE_BODY = bytes(range(256)) * 1000
LARGE = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(LARGE_BODY), LARGE_BODY)


class Wire(asyncio.Transport):
    """The other end: keeps what is written, and says what it is told to."""

    def __init__(self, connection: HttpConnection) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_closed = False
        self._connection = connection
        connection.connection_made(self)

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    def say(self, data: bytes, step: int) -> None:
        while data:
            room = self._connection.get_buffer(-1)
            count = min(len(room), step, len(data))
            room[:count] = data[:count]
            self._connection.buffer_updated(count)
            data = data[count:]


def ask(*said: bytes, step: int = 1 << 20) -> tuple[list[HttpAnswer], Wire, HttpConnection]:
    """What comes back when each of these is the answer to a question."""

    async def run() -> tuple[list[HttpAnswer], Wire, HttpConnection]:
        connection = HttpConnection()
        wire = Wire(connection)
        answers = []
        for each in said:
            asking = asyncio.ensure_future(connection.ask((b"GET / HTTP/1.1\r\n\r\n",)))
            await asyncio.sleep(0)
            wire.say(each, step)
            answers.append(await asyncio.wait_for(asking, 5))
        return answers, wire, connection

    return asyncio.run(run())


@pytest.mark.parametrize("step", [1, 2, 7, 50, 1000, 1 << 20])
@pytest.mark.parametrize(("said", "body"), [(PLAIN, b"hello"), (CHUNKED, b"hello"), (LARGE, LARGE_BODY)])
def test_an_answer_in_any_pieces(said: bytes, body: bytes, step: int) -> None:
    if said is LARGE and step < 50:
        step = 997
    answers, wire, connection = ask(said, PLAIN, said, step=step)
    assert [bytes(answer.body) for answer in answers] == [body, b"hello", body]
    assert [answer.status for answer in answers] == [200] * 3
    assert (b"content-type", b"a/b") in answers[1].headers
    assert connection.is_open
    assert not wire.is_closed


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_answers_without_a_body(status: bytes) -> None:
    answers, _, connection = ask(b"HTTP/1.1 " + status + b"\r\n\r\n", PLAIN)
    assert [answer.body for answer in answers] == [b"", b"hello"]
    assert connection.is_open


@pytest.mark.parametrize(
    "said",
    [
        PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n"),
        PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
        PLAIN + b"HTTP/1.1 200 OK",
    ],
)
def test_a_connection_that_is_not_used_again(said: bytes) -> None:
    answers, wire, connection = ask(said)
    assert answers[0].body == b"hello"
    assert not connection.is_open
    assert wire.is_closed


@pytest.mark.parametrize(
    "said",
    [
        b"SMTP ready\r\n\r\n",
        b"\0\1 something else, and no end of it",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 20x OK\r\n\r\n",
        b"HTTP/2 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
    ],
)
def test_what_is_no_answer_breaks_the_connection(said: bytes) -> None:
    with pytest.raises(ConnectionError):
        ask(said)


def test_data_without_a_request_ends_the_connection() -> None:
    _, wire, connection = ask(PLAIN)
    wire.say(PLAIN, 100)
    assert not connection.is_open
    assert wire.is_closed
