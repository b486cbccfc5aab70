"""Calls to nodes over real sockets: fail-over, retries, and what is said when nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.node import free_port

from penstock import errors
from penstock.client.transport import Transport

Respond = Callable[[bytes], bytes | None]


class Server:
    """Answers each request with what ``respond`` says; None closes the connection instead."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self.requests: list[bytes] = []
        self.url = ""

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            length = next(
                int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length")
            )
            self.requests.append(head + await reader.readexactly(length))
            answer = self._respond(head)
            if answer is None:
                break
            writer.write(answer)
        writer.close()


def answer(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def run(test: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(test(), 90))


FINE = answer(200, b'{"ok": 1}')
STARTING = answer(503, b'{"code": "node_starting", "detail": "Wait.", "retriable": true}')
UNKNOWN = answer(404, b'{"code": "unknown_topic", "detail": "No.", "retriable": true}')


def test_a_node_that_is_not_there_is_passed_over_and_not_asked_again() -> None:
    async def test() -> None:
        async with Server(lambda _: FINE) as there:
            transport = Transport([f"http://127.0.0.1:{free_port()}", there.url], timeout_s=30)
            for _ in range(3):
                assert await transport.get(dict[str, int], "v1", "x") == {"ok": 1}
            assert len(there.requests) == 3
            transport.close()

    run(test)


def test_a_connection_that_breaks_is_tried_elsewhere() -> None:
    async def test() -> None:
        async with Server(lambda _: None) as broken, Server(lambda _: FINE) as there:
            transport = Transport([broken.url, there.url], timeout_s=30)
            assert await transport.post(dict[str, int], "v1", "x", body={}) == {"ok": 1}
            transport.close()

    run(test)


def test_a_node_that_asks_for_patience_gets_it() -> None:
    answers = [STARTING, STARTING, FINE]

    async def test() -> None:
        async with Server(lambda _: answers.pop(0)) as slow:
            transport = Transport([slow.url], timeout_s=30)
            assert await transport.get(dict[str, int], "v1", "x") == {"ok": 1}
            assert len(slow.requests) == 3
            transport.close()

    run(test)


def test_patience_ends_with_the_nodes_own_error() -> None:
    async def test() -> None:
        async with Server(lambda _: STARTING) as never:
            transport = Transport([never.url], timeout_s=1.5)
            with pytest.raises(errors.NodeStarting, match="Wait"):
                await transport.get(dict[str, int], "v1", "x")
            assert len(never.requests) > 1
            transport.close()

    run(test)


def test_a_refusal_is_final() -> None:
    async def test() -> None:
        async with Server(lambda _: UNKNOWN) as there:
            transport = Transport([there.url], timeout_s=30)
            with pytest.raises(errors.UnknownTopic):
                await transport.get(dict[str, int], "v1", "topics", "x")
            assert len(there.requests) == 1
            transport.close()

    run(test)


def test_who_was_tried_is_told() -> None:
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]

    async def test() -> None:
        transport = Transport(urls, timeout_s=1.5)
        with pytest.raises(errors.NodesUnreachable) as caught:
            await transport.get(dict[str, int], "v1", "x")
        for url in urls:
            assert url in caught.value.message
        transport.close()
        with pytest.raises(errors.ClientClosed):
            await transport.get(dict[str, int], "v1", "x")

    run(test)


def test_what_goes_into_a_path_is_quoted_and_a_prefix_is_kept() -> None:
    async def test() -> None:
        async with Server(lambda _: FINE) as there:
            transport = Transport([there.url + "/proxy/"], timeout_s=30)
            await transport.get(dict[str, int], "v1", "groups", "a/b c?", since="x y")
            assert there.requests[0].startswith(b"GET /proxy/v1/groups/a%2Fb%20c%3F?since=x+y HTTP/1.1\r\n")
            assert b"\r\nhost: 127.0.0.1:" in there.requests[0]
            transport.close()

    run(test)


@pytest.mark.parametrize("url", ["", "ftp://x", "https://", "http://", "http://x:99999", "http://x?y=1"])
def test_what_is_no_url_of_a_node_is_refused(url: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        Transport([url], timeout_s=30)


@pytest.mark.parametrize("body", [b"nonsense", b'{"ok": "text"}', b"\xff"])
def test_an_answer_of_another_kind_is_an_error(body: bytes) -> None:
    async def test() -> None:
        async with Server(lambda _: answer(200, body)) as odd:
            transport = Transport([odd.url], timeout_s=30)
            with pytest.raises(errors.UnexpectedAnswer):
                await transport.get(dict[str, int], "v1", "x")
            transport.close()

    run(test)


async def begun(transport: Transport, body: bytes = b"{}") -> Any:
    """What `Transport.begin` hands to whoever asked; None if nothing was asked."""
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if transport.begin(("v1", "x"), body, content_type=b"a/b", accept=b"a/b", done=told.set_result) is None:
        return None
    return await told


def test_what_is_begun_needs_a_connection_and_says_the_same_as_a_call() -> None:
    answers = [FINE, FINE, UNKNOWN, STARTING, FINE]

    async def test() -> None:
        async with Server(lambda _: answers.pop(0)) as there:
            transport = Transport([there.url], timeout_s=30)
            assert await begun(transport) is None
            assert there.requests == []
            await transport.post(dict[str, int], "v1", "x", body={})
            assert (await begun(transport, b"abc")).body == b'{"ok": 1}'
            assert there.requests[-1].startswith(b"POST /v1/x HTTP/1.1\r\n")
            assert there.requests[-1].endswith(b"content-length: 3\r\n\r\nabc")
            assert isinstance(await begun(transport), errors.UnknownTopic)
            assert isinstance(await begun(transport), errors.NodeStarting)
            assert (await begun(transport)).status == 200
            transport.close()
            assert await begun(transport) is None

    run(test)


def test_what_is_begun_and_breaks_is_told_once_and_the_next_node_is_asked() -> None:
    answers = [FINE, None]

    async def test() -> None:
        async with Server(lambda _: answers.pop(0)) as breaking, Server(lambda _: FINE) as there:
            transport = Transport([breaking.url, there.url], timeout_s=30)
            await transport.post(dict[str, int], "v1", "x", body={})
            assert isinstance(await begun(transport), errors.NodesUnreachable)
            assert await transport.post(dict[str, int], "v1", "x", body={}) == {"ok": 1}
            assert len(there.requests) == 1
            transport.close()

    run(test)


def test_what_is_begun_has_its_time() -> None:
    async def test() -> None:
        async with Server(lambda head: FINE if b"/first" in head else b"") as silent:
            transport = Transport([silent.url], timeout_s=1.5)
            await transport.post(dict[str, int], "v1", "first", body={})
            late = await begun(transport)
            assert isinstance(late, errors.NodesUnreachable)
            assert "within 1.5 s" in late.message
            transport.close()

    run(test)
