"""Publishing as a stream: requests are begun in the order they come, and answered in that order as each is safe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

from google.protobuf.message import Message

from penstock.api.messages import PublishBatch
from penstock.api.problems import problem_of
from penstock.doors.grpc.caller import GrpcCaller
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.statuses import NodeStopping
from penstock.errors import PenstockError
from penstock.grpc.converters import convert, plain_of
from penstock.grpc.streams import PublishStreamRequest, PublishStreamResponse
from penstock.operations.table import server_of

# Requests of one stream that are written and not answered yet; then no more are read.
_UNANSWERED_MAX: Final = 64
_TICKET: Final = ("transaction", "writer", "sequence")

Answering = asyncio.Future[PublishStreamResponse]


async def publish_stream(
    door: Door, caller: GrpcCaller, requests: AsyncIterator[Message]
) -> AsyncGenerator[PublishStreamResponse, None]:
    begun: asyncio.Queue[Answering | None] = asyncio.Queue(_UNANSWERED_MAX)
    reading = asyncio.ensure_future(_begin_each(door, caller, requests, begun))
    stopping = asyncio.ensure_future(door.stopping.wait())
    try:
        while True:
            taking = asyncio.ensure_future(begun.get())
            await asyncio.wait((taking, reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not taking.done() and begun.empty() and (reading.done() or stopping.done()):
                taking.cancel()
                if reading.done():
                    reading.result()
                raise NodeStopping("This node is stopping. Publish what was not answered by another one.")
            answering = await taking
            if answering is None:
                break
            yield await answering
        reading.result()
    finally:
        for task in (reading, stopping):
            task.cancel()
        await asyncio.gather(reading, stopping, return_exceptions=True)


async def _begin_each(
    door: Door, caller: GrpcCaller, requests: AsyncIterator[Message], begun: asyncio.Queue[Answering | None]
) -> None:
    before: dict[str, Any] = {}
    async for request in requests:
        answering = asyncio.ensure_future(_answer(door, caller, request, before))
        await asyncio.sleep(0)  # it takes its first step, in which what it leaves out is taken from those before it
        await begun.put(answering)
        if "transaction" in before or before.get("topic") not in door.services.metadata.topics:
            # What takes several steps before it is written has to be through with them, for the sake of the order.
            await asyncio.wait((answering,))
    await begun.put(None)


async def _answer(door: Door, caller: GrpcCaller, request: Message, before: dict[str, Any]) -> PublishStreamResponse:
    plain: dict[str, Any] = {}
    try:
        plain = plain_of(PublishStreamRequest, request)
        number, messages = plain.pop("id", 0), plain.pop("messages", [])
        if "transaction" in plain:
            for name in _TICKET:
                before.pop(name, None)
        before.update(plain)
        batch = convert(PublishBatch, {**before, "messages": messages})
        answer = await server_of(PublishBatch)(door.services, batch, caller)
    except PenstockError as error:
        return PublishStreamResponse(id=getattr(request, "id"), error=problem_of(error, caller.instance))  # noqa: B009
    return PublishStreamResponse(id=number, results=answer.results)
