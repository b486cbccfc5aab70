"""One method of a service: what runs it, whose it is, and everything that goes wrong on the way told by its status.

The definitions say which methods there are and what they take; a method here adds what it does. Requests come in as
bytes, so that they can be refused by the name of a field, or handed on as they are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.doors.grpc.call import Call
from penstock.doors.grpc.decoding import parse
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.forwarding import hand_on
from penstock.doors.grpc.statuses import status_of
from penstock.errors import NodeStarting
from penstock.machines.addresses import CoordinatorAddress

Context = grpc.aio.ServicerContext[Any, Any]
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Unary:
    """A request, an answer. ``home`` finds the node that has to answer, where not every node can."""

    run: Callable[[Door, Call, Any], Awaitable[Message]]
    home: Callable[[Any], CoordinatorAddress | None] | None = None


@dataclass(frozen=True, slots=True)
class Streaming:
    """A request, any number of answers."""

    run: Callable[[Door, Call, Any], AsyncGenerator[Message, None]]


@dataclass(frozen=True, slots=True)
class Conversing:
    """Any number of requests, any number of answers."""

    run: Callable[[Door, Call, AsyncIterator[Any]], AsyncGenerator[Message, None]]


Method = Unary | Streaming | Conversing


def handler_of(door: Door, described: MethodDescriptor, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
    """What the library calls for a method."""
    runner = Runner(door, described)
    if isinstance(method, Unary):
        return grpc.unary_unary_rpc_method_handler(runner.unary(method))
    if isinstance(method, Streaming):
        return grpc.unary_stream_rpc_method_handler(runner.streaming(method))
    return grpc.stream_stream_rpc_method_handler(runner.conversing(method))


class Runner:
    """A method with everything looked up that a call of it needs."""

    def __init__(self, door: Door, described: MethodDescriptor) -> None:
        self._door = door
        self._path = f"/{described.containing_service.full_name}/{described.name}"
        self._request = GetMessageClass(described.input_type)

    def unary(self, method: Unary) -> Callable[[bytes, Context], Awaitable[bytes]]:
        async def run(data: bytes, context: Context) -> bytes:
            try:
                return await self._answer(method, data, Call(context))
            except Exception as error:
                await self._end(context, error)

        return run

    async def _answer(self, method: Unary, data: bytes, call: Call) -> bytes:
        self._check_started()
        request = parse(self._request, data)
        home = None if method.home is None else method.home(request)
        if home is not None:
            handed_on = await hand_on(self._door, home, call, self._path, data)
            if handed_on is not None:
                return handed_on
        return (await method.run(self._door, call, request)).SerializeToString()

    def streaming(self, method: Streaming) -> Callable[[bytes, Context], Awaitable[None]]:
        async def run(data: bytes, context: Context) -> None:
            try:
                self._check_started()
                answers = method.run(self._door, Call(context), parse(self._request, data))
                await _send(answers, context)
            except Exception as error:
                await self._end(context, error)

        return run

    def conversing(self, method: Conversing) -> Callable[[AsyncIterator[bytes], Context], Awaitable[None]]:
        async def run(incoming: AsyncIterator[bytes], context: Context) -> None:
            try:
                self._check_started()
                with self._door.conversing():
                    await _send(method.run(self._door, Call(context), self._requests(incoming, context)), context)
            except Exception as error:
                await self._end(context, error)

        return run

    async def _requests(self, incoming: AsyncIterator[bytes], context: Context) -> AsyncGenerator[Message, None]:
        """The requests of a stream, until its client closes its side."""
        async for data in incoming:
            yield parse(self._request, data)
        # A stream that broke has no more requests either, and the library tells this first, the break a moment later.
        # It tells everything in order, so when it has answered once more, a break would have cancelled this call.
        await context.read()

    def _check_started(self) -> None:
        if not self._door.broker.is_started:
            raise NodeStarting("This node is starting and does not know its topics yet. Try again in a moment.")

    async def _end(self, context: Context, error: Exception) -> NoReturn:
        if isinstance(error, (grpc.aio.AbortError, grpc.aio.BaseError)):
            raise error
        status = status_of(error, self._path)
        await context.abort(status.code, status.details, status.trailers)
        raise AssertionError("an aborted call goes no further")


async def _send(answers: AsyncGenerator[Message, None], context: Context) -> None:
    """Send answers as they come. However that ends, what makes them ends before this returns."""
    async with aclosing(answers):
        async for answer in answers:
            await context.write(answer.SerializeToString())
