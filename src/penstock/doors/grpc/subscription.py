"""A subscription: messages are pushed as long as there are credits, and settled on the same stream.

Three things go on at once: requests are read, messages are received, answers are sent. However the stream ends, what it
holds is given back. If the client closed its side, that is as if it had never been delivered. If the stream broke, what
was sent counts as a try, for it may be what broke its consumer; what was not sent yet does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from penstock.doors.grpc.call import Call
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.fields import INT32_MAX, group_of, needed, receipts_of, whole
from penstock.doors.grpc.holdings import Holdings
from penstock.doors.grpc.messages import leased_view, views_of
from penstock.doors.grpc.patience import Patience
from penstock.doors.grpc.receiving import Wanted, abandon, ask, give_back, messages_in, release
from penstock.doors.grpc.settling import delay_of, entry_of, results_of, timeout_of
from penstock.doors.grpc.statuses import InvalidArgument, NodeStopping, error_of
from penstock.errors import PenstockError
from penstock.features.queues.leases import LeasedRecord, SettledReceipt
from penstock.grpc.generated import queues_pb2
from penstock.grpc.generated.queues_pb2 import SubscribeRequest, SubscribeResponse

log = logging.getLogger(__name__)

BROKEN: Final = "The consumer's stream broke."

_WAIT_MS: Final = 30_000
_MESSAGES_AT_ONCE: Final = 1_000
_BYTES: Final = 1024 * 1024
_BYTES_MAX: Final = 64 * 1024 * 1024
# Answers that wait to be sent, and requests to settle that wait for an answer; then no more are read.
_UNSENT_MAX: Final = 64
_UNSETTLED_MAX: Final = 64


async def subscribe(
    door: Door, _call: Call, requests: AsyncIterator[SubscribeRequest]
) -> AsyncGenerator[SubscribeResponse, None]:
    first = await _first(door, requests)
    wanted = _wanted(door, first)
    stream = _Stream(door, wanted, whole(first.credits, "subscription.credits"), requests)
    door.broker.metadata.topic(wanted.topic)
    yield SubscribeResponse(subscribed=queues_pb2.Subscribed(consumer=wanted.consumer))
    try:
        async for response in stream.responses():
            yield response
    finally:
        await stream.close()


async def _first(door: Door, requests: AsyncIterator[SubscribeRequest]) -> queues_pb2.Subscription:
    with suppress(TimeoutError):
        async with asyncio.timeout(door.config.first_request_timeout_ms / 1000):
            async for request in requests:
                if request.WhichOneof("request") == "subscription":
                    return request.subscription
                break
    raise InvalidArgument("subscription is missing: the first request of the stream has to be one.")


def _wanted(door: Door, first: queues_pb2.Subscription) -> Wanted:
    return Wanted(
        topic=needed(first.topic, "subscription.topic"),
        group=group_of(first.group),
        consumer=first.consumer or f"grpc-{door.broker.surroundings.new_id().hex}",
        max_messages=_MESSAGES_AT_ONCE,
        max_bytes=whole(first.max_bytes, "subscription.max_bytes", low=1, high=_BYTES_MAX, default=_BYTES),
        visibility_timeout_ms=timeout_of(first, "subscription."),
    )


class _Stream:
    """One subscription from its first request on."""

    def __init__(
        self, door: Door, wanted: Wanted, credits_given: int, requests: AsyncIterator[SubscribeRequest]
    ) -> None:
        self._door = door
        self._wanted = wanted
        self._requests = requests
        self._credits = credits_given
        self._has_credits = asyncio.Event()
        self._holdings = Holdings()
        self._patience = Patience(door.broker.clock)
        self._unsent: asyncio.Queue[SubscribeResponse | list[LeasedRecord]] = asyncio.Queue(_UNSENT_MAX)
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
                yield await self._sent(taking.result())
                continue
            if reading.done():
                reading.result()
                break
            if delivering.done():
                delivering.result()
            raise NodeStopping("This node is stopping. Subscribe again at another one, or at this one in a moment.")
        self._is_finished = True
        delivering.cancel()
        while self._settling or not self._unsent.empty():
            if self._unsent.empty():
                await asyncio.wait(tuple(self._settling), return_when=asyncio.FIRST_COMPLETED)
                continue
            response = self._unsent.get_nowait()
            if isinstance(response, SubscribeResponse):
                yield response
            else:
                give_back(self._door, self._wanted, response)

    async def _sent(self, response: SubscribeResponse | list[LeasedRecord]) -> SubscribeResponse:
        """Messages are held from the moment on when they are handed over to be sent."""
        if isinstance(response, SubscribeResponse):
            return response
        self._holdings.add(response, self._door.broker.clock.now_ms())
        return SubscribeResponse(delivery=queues_pb2.Delivery(messages=await views_of(leased_view, response)))

    # -- messages out -------------------------------------------------------------------------------------------------

    async def _deliver(self) -> None:
        while True:
            if self._credits <= 0:
                self._has_credits.clear()
                await self._has_credits.wait()
            try:
                messages = await self._receive()
            except PenstockError as error:
                await self._patience.bear(error)
                continue
            self._patience.renew()
            if messages:
                self._credits -= len(messages)
                try:
                    await self._unsent.put(messages)
                except asyncio.CancelledError:
                    give_back(self._door, self._wanted, messages)
                    raise

    async def _receive(self) -> list[LeasedRecord]:
        limit = min(self._credits, _MESSAGES_AT_ONCE)
        wanted = replace(self._wanted, max_messages=limit)
        asking = ask(self._door, wanted, _WAIT_MS)
        try:
            await asyncio.wait((asking,))
        except asyncio.CancelledError:
            abandon(self._door, wanted, asking)
            raise
        return await messages_in(self._door, wanted, asking.result())

    # -- requests in --------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        async for request in self._requests:
            kind = request.WhichOneof("request")
            if kind == "credits":
                self._credits = min(self._credits + whole(request.credits.count, "credits.count", low=1), INT32_MAX)
                self._has_credits.set()
            elif kind == "subscription":
                raise InvalidArgument("subscription: only the first request of a stream is one.")
            elif kind is None:
                raise InvalidArgument("request is missing: give credits, ack, nack, reject or extend.")
            else:
                await self._room.acquire()
                task = asyncio.create_task(self._settle(request))
                self._settling.add(task)
                task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling.discard(task)
        self._room.release()

    async def _settle(self, request: SubscribeRequest) -> None:
        try:
            verdicts = await self._verdicts(request)
            answer = queues_pb2.Settled(id=request.id, results=results_of(verdicts))
        except PenstockError as error:
            answer = queues_pb2.Settled(id=request.id, error=error_of(error))
        except Exception:
            log.exception("A request of a subscription met a bug.")
            answer = queues_pb2.Settled(id=request.id, error=error_of(PenstockError("Something went wrong inside.")))
        await self._unsent.put(SubscribeResponse(settled=answer))

    async def _verdicts(self, request: SubscribeRequest) -> Sequence[SettledReceipt]:
        queues, group, topic = self._door.broker.queues, self._wanted.group, self._wanted.topic
        kind = request.WhichOneof("request")
        asking: Coroutine[Any, Any, list[SettledReceipt]]
        if kind == "extend":
            receipts = receipts_of(request.extend.receipts, "extend.receipts")
            timeout_ms = timeout_of(request.extend, "extend.")
            verdicts = await queues.extend(group, receipts, topic=topic, visibility_timeout_ms=timeout_ms)
            self._holdings.extended(verdicts, self._door.broker.clock.now_ms())
            return verdicts
        if kind == "ack":
            receipts, entry = receipts_of(request.ack.receipts, "ack.receipts"), entry_of(request.ack)
            asking = queues.ack(group, receipts, topic=topic, **entry)
            if entry:
                return await asking  # held until the transaction ends, whichever way
        elif kind == "nack":
            receipts, delay_ms = receipts_of(request.nack.receipts, "nack.receipts"), delay_of(request.nack)
            asking = queues.nack(group, receipts, topic=topic, delay_ms=delay_ms, reason=request.nack.reason)
        else:
            receipts = receipts_of(request.reject.receipts, "reject.receipts")
            asking = queues.reject(group, receipts, topic=topic, reason=request.reject.reason)
        verdicts = await asking
        self._holdings.settled(verdicts)
        return verdicts

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End everything, and give back what is held."""
        for task in (*self._tasks, *self._settling):
            task.cancel()
        self._door.errand(self._give_back((*self._tasks, *self._settling)))

    async def _give_back(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        await asyncio.gather(*tasks, return_exceptions=True)
        while not self._unsent.empty():
            response = self._unsent.get_nowait()
            if not isinstance(response, SubscribeResponse):
                give_back(self._door, self._wanted, response)
        receipts = self._holdings.receipts()
        if not receipts:
            return
        if self._is_finished:
            await release(self._door, self._wanted, receipts)
            return
        group, topic = self._wanted.group, self._wanted.topic
        with suppress(PenstockError):  # then the leases end by themselves
            await self._door.broker.queues.nack(group, receipts, topic=topic, delay_ms=0, reason=BROKEN)
