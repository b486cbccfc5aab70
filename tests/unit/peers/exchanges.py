"""What the tests of peers ask each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from penstock.clock import SystemClock
from penstock.errors import GroupNotFound
from penstock.network.port import Method, Nothing, Reply
from penstock.network.tcp import TcpPeers


class Question(msgspec.Struct, frozen=True):
    text: str
    number: int = 0


class Answer(msgspec.Struct, frozen=True):
    text: str
    asked_by: int


ECHO = Method("test.echo", Question, Answer)
ECHO_BULK = Method("test.echo_bulk", Question, Answer, is_bulk=True)
OPEN = Method("test.open", Question, Answer, is_for_visitors=True)
LATER = Method("test.later", Question, Answer)
NEVER = Method("test.never", Question, Answer)
REFUSE = Method("test.refuse", Question, Answer)
BREAK = Method("test.break", Question, Answer)
NOTE = Method("test.note", Question, Nothing)


def node(node_id: int, port: int | None = 0, token: str | None = None) -> TcpPeers:
    return TcpPeers(node_id, host="127.0.0.1", port=port, token=token, clock=SystemClock())


class Talker:
    """A node that answers the methods above and remembers what it was told."""

    def __init__(self, peers: Any) -> None:
        self.peers = peers
        self.noted: list[tuple[int, str, bytes]] = []
        peers.serve(ECHO, self.echo)
        peers.serve(OPEN, self.echo)
        peers.serve(ECHO_BULK, self.echo)
        peers.serve(LATER, self.later)
        peers.serve(NEVER, self.never)
        peers.serve(REFUSE, self.refuse)
        peers.serve(BREAK, self.break_down)
        peers.serve(NOTE, self.note)

    def echo(self, caller: int, question: Question, body: memoryview) -> Reply:
        return Reply(Answer(question.text, caller), [body] if body else ())

    async def later(self, caller: int, question: Question, body: memoryview) -> Reply:
        await asyncio.sleep(0.001)
        return self.echo(caller, question, body)

    async def never(self, caller: int, question: Question, body: memoryview) -> Reply:
        await asyncio.sleep(3600)
        raise AssertionError

    def refuse(self, caller: int, question: Question, body: memoryview) -> Reply:
        raise GroupNotFound("There is no group of that name.")

    async def break_down(self, caller: int, question: Question, body: memoryview) -> Reply:
        raise ZeroDivisionError

    def note(self, caller: int, question: Question, body: memoryview) -> Nothing:
        self.noted.append((caller, question.text, bytes(body)))
        return Nothing()


@asynccontextmanager
async def two_nodes(token: str | None = None, port: int = 0) -> AsyncIterator[tuple[Talker, Talker]]:
    """Both listen wherever there is room, unless the second one has to be found at its ``port`` again."""
    one, two = Talker(node(1, token=token)), Talker(node(2, port=port, token=token))
    try:
        for talker in (one, two):
            await talker.peers.start()
        one.peers.introduce(2, "127.0.0.1", two.peers.port)
        two.peers.introduce(1, "127.0.0.1", one.peers.port)
        yield one, two
    finally:
        await one.peers.stop()
        await two.peers.stop()


async def until(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def run(story: Awaitable[None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(90):
            await story

    asyncio.run(within())


class Wire:
    """A proxy in front of a node that can go dead without closing anything, as a pulled cable does."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._is_dead: list[bool] = []  # by connection, in the order of their coming
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def connections(self) -> int:
        return len(self._is_dead)

    def go_dead(self, connection: int) -> None:
        self._is_dead[connection] = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, there_writer]
        self._is_dead.append(False)
        connection = len(self._is_dead) - 1
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            self._tasks.append(asyncio.ensure_future(self._pump(connection, source, sink)))

    async def _pump(self, connection: int, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if not self._is_dead[connection]:
                sink.write(data)
                await sink.drain()
        if not self._is_dead[connection]:
            sink.close()

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
