"""HTTP to nodes, over real sockets: kept-alive connections, and what happens when they break."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from penstock.client.connections import ConnectionPool, HttpAnswer, NotConnected

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers requests as the test says, and counts its connections."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests: list[bytes] = []
        self.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Told: yes\r\n\r\nok"
        self.closes_after: int | None = None  # so many answers on a connection
        self.is_mute = False
        self.lost = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        answered = 0
        try:
            while head := await _head(reader):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                if self.is_mute:
                    await reader.read()
                    return
                writer.write(self.answer)
                answered += 1
                if answered == self.closes_after:
                    return
        finally:
            self.lost.set()
            writer.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def run(story: Callable[[Server, Callable[..., Awaitable[HttpAnswer]]], Awaitable[None]]) -> None:
    async def play() -> None:
        server, pool = Server(), ConnectionPool()
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        address = listener.sockets[0].getsockname()

        async def ask(method: str = "GET", body: bytes = b"", timeout_s: float = 30.0) -> HttpAnswer:
            headers = [(b"x-request-id", b"7")]
            can_repeat = method == "GET"
            return await pool.ask(address, method, b"/v1/x?a=b", headers, body, timeout_s, can_repeat=can_repeat)

        await story(server, ask)
        pool.close()
        listener.close()
        if not server.connections:
            return
        await asyncio.wait_for(server.lost.wait(), 60)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as a node runs
        runner.run(play())


def test_a_connection_is_used_again() -> None:
    async def story(server: Server, ask: Callable[..., Awaitable[HttpAnswer]]) -> None:
        for _ in range(3):
            status, headers, body = await ask("POST", b"hello")
            assert (status, dict(headers)[b"x-told"], body) == (200, b"yes", b"ok")
        assert server.connections == 1
        assert server.requests[0].startswith(b"POST /v1/x?a=b HTTP/1.1\r\nx-request-id: 7\r\n")
        assert server.requests[0].endswith(b"hello")

    run(story)


def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    async def story(server: Server, ask: Callable[..., Awaitable[HttpAnswer]]) -> None:
        await asyncio.gather(*(ask() for _ in range(5)))
        assert server.connections == 5
        await asyncio.gather(*(ask() for _ in range(5)))
        assert server.connections == 5

    run(story)


def test_a_connection_that_the_other_side_closed_is_not_used_again() -> None:
    async def story(server: Server, ask: Callable[..., Awaitable[HttpAnswer]]) -> None:
        server.closes_after = 1
        await ask("POST", b"1")
        await asyncio.sleep(0.05)
        await ask("POST", b"2")
        assert server.connections == 2

    run(story)


def test_an_answer_in_chunks_is_put_together() -> None:
    async def story(server: Server, ask: Callable[..., Awaitable[HttpAnswer]]) -> None:
        server.answer = b"HTTP/1.1 503 Busy\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
        assert (await ask())[0::2] == (503, b"abc")

    run(story)


def test_giving_up_on_an_answer_closes_its_connection() -> None:
    async def story(server: Server, ask: Callable[..., Awaitable[HttpAnswer]]) -> None:
        server.is_mute = True
        asking = asyncio.ensure_future(ask("POST", b"{}"))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(server.lost.wait(), 60)

    run(story)


def test_no_answer_in_time_is_told_as_such() -> None:
    async def story(server: Server, ask: Callable[..., Awaitable[HttpAnswer]]) -> None:
        server.is_mute = True
        with pytest.raises(OSError, match="no answer within"):
            await ask(timeout_s=0.05)

    run(story)


def test_what_is_not_http_is_told_as_such() -> None:
    async def story(server: Server, ask: Callable[..., Awaitable[HttpAnswer]]) -> None:
        server.answer = b"\x00\x01\x02 this is something else\r\n"
        with pytest.raises(OSError, match="not HTTP"):
            await ask()

    run(story)


def test_nobody_there_is_told_as_such() -> None:
    async def play() -> None:
        pool = ConnectionPool()
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        server.close()
        await server.wait_closed()
        with pytest.raises(NotConnected):
            await pool.ask(address, "POST", b"/", [], b"", 5.0, can_repeat=False)

    asyncio.run(play())
