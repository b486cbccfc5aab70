"""Binds the table to gRPC: a request is decoded as declared, served as by every door, and its answer encoded.

Everything that does not depend on the call is looked up when a method is bound. Requests come in as bytes, so that one
that cannot be read is refused with the name of the field. What goes wrong is told by its status.

The library cancels a call when its client is gone. An operation is not cancelled by that: it learns that its client is
gone, and gives back what it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
import msgspec
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.doors.grpc.caller import Context, GrpcCaller
from penstock.doors.grpc.decoding import parse
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.statuses import status_of
from penstock.errors import NodeStarting
from penstock.grpc.converters import decode, encode
from penstock.grpc.definitions import PACKAGE
from penstock.grpc.shapes import Rpc, service_name
from penstock.operations.table import server_of

# What runs a stream: requests in, answers out.
Conversation = Callable[[Door, GrpcCaller, AsyncIterator[Message]], AsyncGenerator[msgspec.Struct, None]]

_GRACE_SECONDS: Final = 5.0  # for an operation to end by itself, once its client is gone
_QUICK_PARTS: Final = 2_000  # messages and headers, of which each takes a few microseconds


def handlers_of(
    door: Door, rpcs: Sequence[Rpc], streams: Mapping[str, Conversation], pool: DescriptorPool
) -> list[grpc.GenericRpcHandler[Any, Any]]:
    """What the library finds the methods in."""
    methods: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
    for rpc in rpcs:
        service = f"{PACKAGE}.{service_name(rpc.service)}"
        bound = Bound(door, rpc, pool.FindMethodByName(f"{service}.{rpc.name}"))
        methods.setdefault(service, {})[rpc.name] = bound.handler(streams.get(rpc.name))
    return [grpc.method_handlers_generic_handler(service, found) for service, found in methods.items()]


class Bound:
    """A method with everything looked up that a call of it needs."""

    def __init__(self, door: Door, rpc: Rpc, described: MethodDescriptor) -> None:
        self._door = door
        self._rpc = rpc
        self._path = f"/{described.containing_service.full_name}/{described.name}"
        self._described = described
        self._answer = described.output_type
        self._serve = None if rpc.operation is None else server_of(rpc.operation.request)
        self._is_early = rpc.operation is not None and rpc.operation.is_early
        self._has_bytes = "max_bytes" in rpc.request.__struct_fields__

    # Classes of messages are made with the first call of a method: most are never called, and each costs memory.

    @cached_property
    def _request(self) -> type[Message]:
        return GetMessageClass(self._described.input_type)

    @cached_property
    def _nothing(self) -> bytes:
        return GetMessageClass(self._answer)().SerializeToString()

    def handler(self, conversation: Conversation | None) -> grpc.RpcMethodHandler[Any, Any]:
        """What the library calls."""
        if conversation is None:
            return grpc.unary_unary_rpc_method_handler(self._unary)
        if self._rpc.has_many_requests:
            return grpc.stream_stream_rpc_method_handler(self._conversing(conversation))
        return grpc.unary_stream_rpc_method_handler(self._streaming(conversation))

    async def _unary(self, data: bytes, context: Context) -> bytes:
        try:
            self._check_started()
            caller = GrpcCaller(self._door, context, self._path)
            await caller.log_in()
            request = decode(self._rpc.request, parse(self._request, data))
            if self._has_bytes:
                caller.allow_bytes(getattr(request, "max_bytes", None))
            answer = await self._served(request, caller)
            if answer is None:
                return self._nothing
            if parts_of(answer) > _QUICK_PARTS:
                return await asyncio.to_thread(self._encoded, answer)
            return self._encoded(answer)
        except Exception as error:
            await self._end(context, error)

    def _encoded(self, answer: msgspec.Struct) -> bytes:
        return encode(answer, self._answer).SerializeToString()

    async def _served(self, request: Any, caller: GrpcCaller) -> Any:
        assert self._serve is not None, "streams are not served by one operation"
        serving = asyncio.ensure_future(self._serve(self._door.services, request, caller))
        try:
            return await asyncio.shield(serving)
        except asyncio.CancelledError:
            caller.gone.set()
            self._door.finish(_see_to_the_end(serving))
            raise

    def _streaming(self, conversation: Conversation) -> Callable[[bytes, Context], Awaitable[None]]:
        async def run(data: bytes, context: Context) -> None:
            async def one() -> AsyncIterator[bytes]:
                yield data

            await self._converse(conversation, self._requests(one()), context)

        return run

    def _conversing(self, conversation: Conversation) -> Callable[[AsyncIterator[bytes], Context], Awaitable[None]]:
        async def run(incoming: AsyncIterator[bytes], context: Context) -> None:
            async def until_closed() -> AsyncIterator[bytes]:
                async for data in incoming:
                    yield data
                # A stream that broke has no more requests either, and the library tells this first, the break a moment
                # later. It tells everything in order, so when it has answered once more, a break would have cancelled
                # this call.
                await context.read()

            await self._converse(conversation, self._requests(until_closed()), context)

        return run

    async def _requests(self, incoming: AsyncIterator[bytes]) -> AsyncGenerator[Message, None]:
        async for data in incoming:
            yield parse(self._request, data)

    async def _converse(self, conversation: Conversation, requests: AsyncIterator[Message], context: Context) -> None:
        """Send answers as they come. However that ends, what makes them ends before this returns."""
        caller = GrpcCaller(self._door, context, self._path)
        try:
            self._check_started()
            await caller.log_in()
            with self._door.conversing():
                async with aclosing(conversation(self._door, caller, requests)) as answers:
                    async for answer in answers:
                        if parts_of(answer) > _QUICK_PARTS:
                            await context.write(await asyncio.to_thread(self._encoded, answer))
                        else:
                            await context.write(self._encoded(answer))
        except Exception as error:
            await self._end(context, error)
        finally:
            caller.gone.set()

    def _check_started(self) -> None:
        if not self._is_early and not self._door.broker.is_started:
            raise NodeStarting("This node is starting and does not know its topics yet. Try again in a moment.")

    async def _end(self, context: Context, error: Exception) -> NoReturn:
        if isinstance(error, (grpc.aio.AbortError, grpc.aio.BaseError)):
            raise error
        status = status_of(error, self._path)
        await context.abort(status.code, status.details, status.trailers)
        raise AssertionError("an aborted call goes no further")


async def _see_to_the_end(serving: asyncio.Future[Any]) -> None:
    await asyncio.wait((serving,), timeout=_GRACE_SECONDS)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


def parts_of(answer: Any) -> int:
    """How many messages and headers are to be encoded."""
    messages = getattr(getattr(answer, "delivery", None) or answer, "messages", ())
    return sum(map(_parts_of, messages)) if isinstance(messages, list) else 0


def _parts_of(message: Any) -> int:
    headers: Mapping[str, Any] = message.headers
    if not headers:
        return 1
    return 1 + sum(len(values) if type(values) is list else 1 for values in headers.values())
