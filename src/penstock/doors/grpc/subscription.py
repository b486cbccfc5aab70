"""A subscription: messages are pushed as long as there are credits, and settled on the same stream.

Three things go on at once: requests are read, messages are received, answers are sent. However the stream ends, what it
holds is given back. If the client closed its side, that is as if it had never been delivered. If the stream broke, what
was sent counts as a try, for it may be what broke its consumer; what was not sent yet does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final

from google.protobuf.message import Message

from penstock.api.limits import INT32_MAX
from penstock.api.operation import Request
from penstock.api.problems import problem_of
from penstock.api.queues import (
    Ack,
    Extend,
    Nack,
    QueueMessage,
    ReceiptResult,
    ReceiptResults,
    Receive,
    Received,
    Reject,
    Release,
)
from penstock.doors.grpc.caller import GrpcCaller
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.holdings import Holdings
from penstock.doors.grpc.patience import Patience
from penstock.doors.grpc.statuses import NodeStopping
from penstock.errors import PenstockError
from penstock.grpc.converters import InvalidArgument, convert, decode, plain_of
from penstock.grpc.streams import (
    Delivery,
    Settled,
    Subscribed,
    SubscribeRequest,
    SubscribeResponse,
    Subscription,
)
from penstock.operations.guard import check_request
from penstock.operations.table import server_of

log = logging.getLogger(__name__)

BROKEN: Final = "The consumer's stream broke."

_WAIT_MS: Final = 30_000
_MESSAGES_AT_ONCE: Final = 1_000
# Answers that wait to be sent, and requests to settle that wait for an answer; then no more are read.
_UNSENT_MAX: Final = 64
_UNSETTLED_MAX: Final = 64
_SETTLING: Final[dict[str, type[Request[ReceiptResults]]]] = {
    "ack": Ack,
    "nack": Nack,
    "reject": Reject,
    "extend": Extend,
}


async def subscribe(
    door: Door, caller: GrpcCaller, requests: AsyncIterator[Message]
) -> AsyncGenerator[SubscribeResponse, None]:
    wanted = await _first(door, requests)
    caller.allow_bytes(wanted.max_bytes)
    consumer = wanted.consumer or f"grpc-{door.broker.surroundings.new_id().hex}"
    stream = _Stream(door, caller, wanted, consumer, requests)
    await check_request(door.services, Receive(topic=wanted.topic, group=wanted.group), caller)
    door.services.metadata.topic(wanted.topic)
    yield SubscribeResponse(subscribed=Subscribed(consumer=consumer))
    try:
        async for response in stream.responses():
            yield response
    finally:
        await stream.close()


async def _first(door: Door, requests: AsyncIterator[Message]) -> Subscription:
    with suppress(TimeoutError):
        async with asyncio.timeout(door.config.first_request_timeout_ms / 1000):
            async for request in requests:
                if request.WhichOneof("request") == "subscription":
                    first = decode(SubscribeRequest, request).subscription
                    assert first is not None, "it is the one that is set"
                    return first
                break
    raise InvalidArgument("subscription is missing: the first request of the stream has to be one.")


class _Stream:
    """One subscription from its first request on."""

    def __init__(
        self, door: Door, caller: GrpcCaller, wanted: Subscription, consumer: str, requests: AsyncIterator[Message]
    ) -> None:
        self._door = door
        self._caller = caller
        self._wanted = wanted
        self._consumer = consumer
        self._requests = requests
        self._credits = wanted.credits
        self._has_credits = asyncio.Event()
        self._holdings = Holdings()
        self._patience = Patience(door.services.clock)
        self._unsent: asyncio.Queue[SubscribeResponse] = asyncio.Queue(_UNSENT_MAX)
        self._room = asyncio.Semaphore(_UNSETTLED_MAX)
        self._settling: set[asyncio.Task[None]] = set()
        self._is_finished = False  # the client has closed its side
        self._tasks: tuple[asyncio.Task[Any], ...] = ()

    async def responses(self) -> AsyncGenerator[SubscribeResponse, None]:
        """What to send, until the client closes its side and everything that it asked is answered."""
        reading, delivering, _ = self._tasks = (
            asyncio.create_task(self._read()),
            asyncio.create_task(self._deliver()),
            asyncio.create_task(self._door.stopping.wait()),
        )
        while True:
            taking = asyncio.create_task(self._unsent.get())
            try:
                await asyncio.wait((taking, *self._tasks), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not taking.done():
                    taking.cancel()
            if taking.done() and not taking.cancelled():
                response = taking.result()
                if response.delivery is not None:  # held from the moment on when they are handed over to be sent
                    self._holdings.add(response.delivery.messages, self._door.services.clock.now_ms())
                yield response
                continue
            if reading.done():
                reading.result()
                break
            if self._door.stopping.is_set():
                raise NodeStopping("This node is stopping. Subscribe again at another one, or at this one in a moment.")
            delivering.result()
        self._is_finished = True
        self._caller.gone.set()
        while self._settling or not self._unsent.empty():
            if self._unsent.empty():
                await asyncio.wait(tuple(self._settling), return_when=asyncio.FIRST_COMPLETED)
                continue
            response = self._unsent.get_nowait()
            if response.delivery is None:
                yield response
            else:
                await self._give_back(response.delivery.messages)

    # -- messages out -------------------------------------------------------------------------------------------------

    async def _deliver(self) -> None:
        while not self._caller.gone.is_set() and not self._door.stopping.is_set():
            if self._credits <= 0:
                self._has_credits.clear()
                await self._has_credits.wait()
            try:
                messages = await self._receive()
            except PenstockError as error:
                if self._caller.gone.is_set():
                    return
                await self._patience.bear(error)
                continue
            self._patience.renew()
            if not messages:
                continue
            self._credits -= len(messages)
            try:
                await self._unsent.put(SubscribeResponse(delivery=Delivery(messages=messages)))
            except asyncio.CancelledError:
                self._door.finish(self._give_back(messages))
                raise

    async def _receive(self) -> list[QueueMessage]:
        wanted = self._wanted
        request = Receive(
            topic=wanted.topic,
            group=wanted.group,
            consumer=self._consumer,
            max=min(self._credits, _MESSAGES_AT_ONCE),
            max_bytes=wanted.max_bytes,
            wait_ms=_WAIT_MS,
            visibility_timeout_ms=wanted.visibility_timeout_ms,
        )
        answer: Received = await server_of(Receive)(self._door.services, request, self._caller)
        return answer.messages

    # -- requests in --------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        async for request in self._requests:
            kind = request.WhichOneof("request")
            if kind == "credits":
                given = decode(SubscribeRequest, request).credits
                assert given is not None, "it is the one that is set"
                self._credits = min(self._credits + given.count, INT32_MAX)
                self._has_credits.set()
            elif kind == "subscription":
                raise InvalidArgument("subscription: only the first request of a stream is one.")
            elif kind is None:
                raise InvalidArgument("request is missing: give credits, ack, nack, reject or extend.")
            else:
                await self._room.acquire()
                task = asyncio.create_task(self._settle(kind, request))
                self._settling.add(task)
                task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling.discard(task)
        self._room.release()

    async def _settle(self, kind: str, request: Message) -> None:
        number: int = getattr(request, "id")  # noqa: B009
        try:
            answer = Settled(id=number, results=await self._results(kind, request))
        except PenstockError as error:
            answer = Settled(id=number, error=problem_of(error, self._caller.instance))
        except Exception:
            log.exception("A request of a subscription met a bug.")
            answer = Settled(id=number, error=problem_of(PenstockError("Something went wrong inside."), ""))
        await self._unsent.put(SubscribeResponse(settled=answer))

    async def _results(self, kind: str, request: Message) -> list[ReceiptResult]:
        said = plain_of(SubscribeRequest, request)[kind]
        operation = _SETTLING[kind]
        wanted = convert(operation, {**said, "topic": self._wanted.topic, "group": self._wanted.group}, f"{kind}.")
        answer: ReceiptResults = await server_of(operation)(self._door.services, wanted, self._caller)
        if kind == "extend":
            self._holdings.extended(answer.results, self._door.services.clock.now_ms())
        elif "transaction" not in said:  # else they are held until the transaction ends, whichever way
            self._holdings.settled(answer.results)
        return answer.results

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End everything, and give back what is held."""
        self._caller.gone.set()
        self._has_credits.set()
        self._door.finish(self._end())

    async def _end(self) -> None:
        reading, delivering, stopping = self._tasks or (None, None, None)
        for task in (reading, stopping, *self._settling):
            if task is not None:
                task.cancel()
        if delivering is not None:  # it ends by itself, for its client is gone; what it got by then is given back
            while not delivering.done():
                await asyncio.wait((delivering,), timeout=0.05)
                await self._give_back_unsent()
        await asyncio.gather(*self._tasks, *self._settling, return_exceptions=True)
        await self._give_back_unsent()
        receipts = self._holdings.receipts()
        if not receipts:
            return
        if self._is_finished:
            await self._release(receipts)
            return
        nack = Nack(topic=self._wanted.topic, group=self._wanted.group, receipts=receipts, delay_ms=0, reason=BROKEN)
        with suppress(PenstockError):  # then the leases end by themselves
            await server_of(Nack)(self._door.services, nack, self._caller)

    async def _give_back_unsent(self) -> None:
        while not self._unsent.empty():
            response = self._unsent.get_nowait()
            if response.delivery is not None:
                await self._give_back(response.delivery.messages)

    async def _give_back(self, messages: Sequence[QueueMessage]) -> None:
        """Have messages that the client did not see delivered again at once, as if they never had been."""
        await self._release([message.receipt for message in messages])

    async def _release(self, receipts: list[str]) -> None:
        release = Release(topic=self._wanted.topic, group=self._wanted.group, receipts=receipts)
        try:
            await server_of(Release)(self._door.services, release, self._caller)
        except PenstockError as error:
            log.warning("%d messages could not be given back; their leases end by themselves: %s", len(receipts), error)
