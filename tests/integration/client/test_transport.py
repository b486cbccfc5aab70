"""Calls to nodes over real sockets: fail-over, retries, and the error when no node answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.support.node import free_port

from penstock import errors
from penstock.api.groups import DeleteGroupOffsets, GroupList, ListGroups
from penstock.api.messages import PublishBatches
from penstock.api.problems import problem_of
from penstock.api.schedules import RunSchedule
from penstock.client.calls import call_of
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


def problem(error: errors.PenstockError) -> bytes:
    told = problem_of(error, "/v1/groups")
    return answer(told.status, msgspec.json.encode(told))


FINE = answer(200, b'{"groups": []}')
STARTING = problem(errors.NodeStarting("Wait."))
UNKNOWN = problem(errors.UnknownTopic("No."))
ASKED = ListGroups()


def test_a_node_that_is_not_there_is_passed_over_and_not_asked_again() -> None:
    async def test() -> None:
        async with Server(lambda _: FINE) as there:
            transport = Transport([f"http://127.0.0.1:{free_port()}", there.url], timeout_s=30)
            for _ in range(3):
                assert await transport.call(ASKED) == GroupList(groups=[])
            assert len(there.requests) == 3
            transport.close()

    run(test)


def test_a_connection_that_breaks_is_tried_elsewhere() -> None:
    async def test() -> None:
        async with Server(lambda _: None) as broken, Server(lambda _: FINE) as there:
            transport = Transport([broken.url, there.url], timeout_s=30)
            assert await transport.call(ASKED) == GroupList(groups=[])
            transport.close()

    run(test)


@pytest.mark.parametrize("is_kept", [False, True], ids=["new connection", "kept connection"])
def test_what_would_be_done_twice_is_not_sent_again(is_kept: bool) -> None:
    """Nodes that break connections may have run the schedule; a node that cannot be reached has not."""
    answers = [FINE] if is_kept else []

    async def test() -> None:
        async with Server(lambda _: answers.pop(0) if answers else None) as broken, Server(lambda _: FINE) as there:
            transport = Transport([f"http://127.0.0.1:{free_port()}", broken.url, there.url], timeout_s=30)
            if is_kept:
                await transport.call(ASKED)
            with pytest.raises(errors.NodesUnreachable, match="It may have done what it was asked to"):
                await transport.call(RunSchedule(schedule="daily"))
            assert len(broken.requests) == 1 + is_kept
            assert there.requests == []
            transport.close()

    run(test)


def test_a_node_that_asks_for_patience_gets_it() -> None:
    answers = [STARTING, STARTING, FINE]

    async def test() -> None:
        async with Server(lambda _: answers.pop(0)) as slow:
            transport = Transport([slow.url], timeout_s=30)
            assert await transport.call(ASKED) == GroupList(groups=[])
            assert len(slow.requests) == 3
            transport.close()

    run(test)


def test_patience_ends_with_the_nodes_own_error() -> None:
    async def test() -> None:
        async with Server(lambda _: STARTING) as never:
            transport = Transport([never.url], timeout_s=1.5)
            with pytest.raises(errors.NodeStarting, match="Wait"):
                await transport.call(ASKED)
            assert len(never.requests) > 1
            transport.close()

    run(test)


def test_a_refusal_is_final() -> None:
    async def test() -> None:
        async with Server(lambda _: UNKNOWN) as there:
            transport = Transport([there.url], timeout_s=30)
            with pytest.raises(errors.UnknownTopic):
                await transport.call(ASKED)
            assert len(there.requests) == 1
            transport.close()

    run(test)


def test_who_was_tried_is_told() -> None:
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]

    async def test() -> None:
        transport = Transport(urls, timeout_s=1.5)
        with pytest.raises(errors.NodesUnreachable) as caught:
            await transport.call(ASKED)
        for url in urls:
            assert url in caught.value.message
        transport.close()
        with pytest.raises(errors.ClientClosed):
            await transport.call(ASKED)

    run(test)


def test_what_goes_into_a_path_is_quoted_and_a_prefix_is_kept() -> None:
    async def test() -> None:
        async with Server(lambda _: FINE) as there:
            transport = Transport([there.url + "/proxy/"], timeout_s=30)
            with pytest.raises(errors.UnexpectedAnswer):
                await transport.call(DeleteGroupOffsets(group="a/b c?", topic="x y"))
            assert there.requests[0].startswith(b"DELETE /proxy/v1/groups/a%2Fb%20c%3F/offsets?topic=x+y HTTP/1.1\r\n")
            assert b"\r\nhost: 127.0.0.1:" in there.requests[0]
            transport.close()

    run(test)


@pytest.mark.parametrize("url", ["", "ftp://x", "https://", "http://", "http://x:99999", "http://x?y=1"])
def test_what_is_no_url_of_a_node_is_refused(url: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        Transport([url], timeout_s=30)


@pytest.mark.parametrize("body", [b"nonsense", b'{"groups": "text"}', b"\xff"])
def test_an_answer_of_another_kind_is_an_error(body: bytes) -> None:
    async def test() -> None:
        async with Server(lambda _: answer(200, body)) as odd:
            transport = Transport([odd.url], timeout_s=30)
            with pytest.raises(errors.UnexpectedAnswer):
                await transport.call(ASKED)
            transport.close()

    run(test)


BEGUN = PublishBatches(topic="x", batches=[])


async def begun(transport: Transport, body: bytes = b"{}") -> Any:
    """What `Transport.begin` hands to its caller; None if nothing was sent."""
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if transport.begin(call_of(BEGUN)._replace(body=body), told.set_result) is None:
        return None
    return await told


def test_what_is_begun_needs_a_connection_and_says_the_same_as_a_call() -> None:
    answers = [FINE, FINE, UNKNOWN, STARTING, FINE]

    async def test() -> None:
        async with Server(lambda _: answers.pop(0)) as there:
            transport = Transport([there.url], timeout_s=30)
            assert await begun(transport) is None
            assert there.requests == []
            await transport.call(ASKED)
            assert (await begun(transport, b"abc")).body == b'{"groups": []}'
            assert there.requests[-1].startswith(b"POST /v1/topics/x/batches HTTP/1.1\r\n")
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
            await transport.call(ASKED)
            assert isinstance(await begun(transport), errors.NodesUnreachable)
            assert await transport.call(ASKED) == GroupList(groups=[])
            assert len(there.requests) == 1
            transport.close()

    run(test)


def test_what_is_begun_has_its_time() -> None:
    async def test() -> None:
        async with Server(lambda head: FINE if b"/groups" in head else b"") as silent:
            transport = Transport([silent.url], timeout_s=1.5)
            await transport.call(ASKED)
            late = await begun(transport)
            assert isinstance(late, errors.NodesUnreachable)
            assert "within 1.5 s" in late.message
            transport.close()

    run(test)
