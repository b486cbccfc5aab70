"""The WebSocket at ``/v1/ws``: publish, subscribe with credits, and settle receipts over one connection.

Frames are worked on side by side, so that one that waits for a disk keeps no other back; each answer repeats the id of
its frame. Up to a limit: then nothing more is read until some are done. Frames: docs/reference/websocket.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.access.principal import Principal
from penstock.api import queues
from penstock.api.limits import DEFAULT_GROUP
from penstock.api.messages import PublishBatch, Read, instant, to_ms
from penstock.api.queues import Ack, Extend, Nack, ReceiptResults, Reject, Release
from penstock.api.schedules import AddSchedule
from penstock.doors.rest.decoding import decode_body, decode_query, refuse_foreign_page
from penstock.doors.rest.door import Door
from penstock.doors.rest.exchange import refuse_socket
from penstock.doors.rest.login import client_id_of, host_of, principal_of, request_id_of
from penstock.doors.rest.problems import InternalError, TooManyConnections, problem_of, problem_reply
from penstock.doors.websocket import frames
from penstock.doors.websocket.frames import WEBSOCKET_PATH
from penstock.doors.websocket.sessions import Session, Sessions
from penstock.doors.websocket.subscriptions import QueueSubscription, StreamSubscription, Subscription
from penstock.errors import InvalidRequest, NodeStarting, PenstockError
from penstock.operations.caller import Caller
from penstock.operations.guard import check_logged_in
from penstock.operations.schedules import cancel_each, cancel_result
from penstock.operations.table import server_of
from penstock.partitions.access import SinceTime, Start

log = logging.getLogger(__name__)

_UNDER_WAY_MAX: Final = 100
_UNDER_WAY_BYTES_MAX: Final = 32 * 1024 * 1024
_SUBSCRIPTIONS_MAX: Final = 100
_STREAM_PARTITIONS_MAX: Final = 1_000
# A new group is written in every partition of its topic, at about 0.1 ms each.
_BEGINNINGS_PER_SECOND: Final = 1_000
_NORMAL_CLOSURE: Final = 1000
_SWITCHING_PROTOCOLS: Final = 101
_OPERATION: Final = "open_websocket"

_decoder: Final = msgspec.json.Decoder(frames.Request)


class _Named(msgspec.Struct, frozen=True):
    """What can be told of a frame that is not as it should be."""

    id: frames.FrameId = None


_names: Final = msgspec.json.Decoder(_Named)


class SocketCaller(Caller):
    """The client behind a WebSocket."""

    __slots__ = ("_door", "client_id", "host", "principal", "request_id")

    principal: Principal
    host: str
    client_id: str
    request_id: str

    def __init__(self, door: Door, scope: Scope) -> None:
        super().__init__(door.stopping)
        self._door = door
        self.principal = principal_of(scope)
        self.host = host_of(scope)
        self.client_id = client_id_of(scope)
        self.request_id = request_id_of(scope)

    @property
    def door(self) -> str:
        return "websocket"

    @property
    def instance(self) -> str:
        return WEBSOCKET_PATH

    @property
    def publish_timeout_ms(self) -> int:
        return self._door.config.publish_timeout_ms


class _Socket:
    """An accepted connection, as sessions use it."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, data: bytes) -> None:
        await self._send({"type": "websocket.send", "text": data.decode()})

    async def close(self, code: int, reason: str) -> None:
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except (OSError, RuntimeError):
            pass  # it is closed already


class WebSocketEndpoint:
    """Takes connections in."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.sessions = Sessions(door.services, door.config.node.websocket_resume_ms)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door = self._door
        caller = SocketCaller(door, scope)
        try:
            query = self._admit(scope, caller)
        except Exception as error:
            refusal = problem_reply(error, WEBSOCKET_PATH)
            door.requests[_OPERATION, refusal.status] += 1
            await refuse_socket(refusal, receive, send)
            return
        await receive()  # the wish to connect
        door.requests[_OPERATION, _SWITCHING_PROTOCOLS] += 1
        await send({"type": "websocket.accept"})
        session = self.sessions.resume(query.resume, caller.principal) if query.resume is not None else None
        is_resumed = session is not None
        session = session or self.sessions.open(caller.principal)
        session.caller = caller
        socket = _Socket(send)
        code = 0
        try:
            await session.attach(socket, seen=query.seen if is_resumed else None, is_resumed=is_resumed)
            code = await _Conversation(door, session, caller).listen(receive)
        finally:
            await self.sessions.detach(session, socket, is_for_good=code == _NORMAL_CLOSURE)

    def _admit(self, scope: Scope, caller: SocketCaller) -> frames.SocketQuery:
        refuse_foreign_page(scope, self._door.hosts)
        if self._door.services.authorizer.is_on:
            check_logged_in(self._door.services, caller, _OPERATION)
        if not self._door.broker.is_started or self._door.stopping.is_set():
            raise NodeStarting("This node is starting or stopping. Try again in a moment, or another node.")
        if self.sessions.connected >= self._door.config.connections_max:
            raise TooManyConnections("This node has as many WebSockets as it takes. Try again later, or another node.")
        return decode_query(frames.SocketQuery, scope)


class _Conversation:
    """What one socket is used for."""

    def __init__(self, door: Door, session: Session, caller: SocketCaller) -> None:
        self._door = door
        self._services = door.services
        self._caller = caller
        self._session = session
        self._under_way: dict[asyncio.Task[None], int] = {}  # and how large their frames are
        self._starting: set[str] = set()  # subscriptions whose groups are being begun
        self._beginning = asyncio.Lock()
        self._begin_at = 0.0  # the loop's time from which the next new group may begin
        self._closed = asyncio.Event()

    async def listen(self, receive: Receive) -> int:
        """Work on what comes until the socket closes; the code it was closed with."""
        try:
            while True:
                message = await receive()
                if message["type"] != "websocket.receive":
                    return int(message.get("code") or 0)
                text = message.get("text")
                data: bytes = text.encode() if text is not None else message.get("bytes") or b""
                task = asyncio.create_task(self._work(data))
                self._under_way[task] = len(data)
                task.add_done_callback(self._under_way.pop)
                while self._is_full:
                    await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Frames that were received are worked on to the end, even if the client can no longer read the answers.
            self._closed.set()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    @property
    def _is_full(self) -> bool:
        sizes = self._under_way.values()
        return len(sizes) >= _UNDER_WAY_MAX or sum(sizes) >= _UNDER_WAY_BYTES_MAX

    async def _work(self, data: bytes) -> None:
        operation, frame_id, status = "", None, 200
        started: Subscription | None = None
        answer: frames.Reply
        try:
            frame_id = _id_of(data)
            request = decode_body(_decoder, data)
            operation = str(type(request).__struct_config__.tag)
            answer, started = await self._answer(request)
        except PenstockError as error:
            problem = problem_of(error, WEBSOCKET_PATH)
            answer, status = frames.Failure(id=frame_id, error=problem), problem.status
        except Exception:
            log.exception("A WebSocket frame met a bug.")
            problem = problem_of(InternalError("Something went wrong inside the node; its log says more."), "")
            answer, status = frames.Failure(id=frame_id, error=problem), problem.status
        self._door.requests[f"websocket_{operation}", status] += 1
        await self._session.send(answer)
        if started is not None and self._session.outlet is not None:
            started.start()  # no message comes before the answer that names its subscription

    async def _answer(self, request: frames.Request) -> tuple[frames.Reply, Subscription | None]:
        match request:
            case frames.Publish():
                return await self._publish(request), None
            case frames.Subscribe():
                return await self._subscribe(request)
            case frames.Next():
                return self._next(request), None
            case frames.Unsubscribe():
                return await self._unsubscribe(request), None
            case frames.Schedule():
                wanted = AddSchedule(schedule=request.schedule)
                added = await server_of(AddSchedule)(self._services, wanted, self._caller)
                return frames.Result(id=request.id, schedule=added.schedule), None
            case frames.Cancel():
                return await self._cancel(request), None
            case frames.Ping():
                now = instant(self._services.clock.now_ms())
                assert now is not None
                return frames.Result(id=request.id, time=now), None
            case _:
                return await self._settle(request), None

    async def _publish(self, request: frames.Publish) -> frames.Result:
        batch = PublishBatch(topic=request.topic, messages=request.messages)
        receipt = await server_of(PublishBatch)(self._services, batch, self._caller)
        return frames.Result(id=request.id, results=receipt.results)

    async def _cancel(self, request: frames.Cancel) -> frames.Result:
        fates = await cancel_each(self._services, request.schedules, self._caller)
        told = [cancel_result(name, fate) for name, fate in zip(request.schedules, fates, strict=True)]
        return frames.Result(id=request.id, results=told)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    async def _subscribe(self, request: frames.Subscribe) -> tuple[frames.Result, Subscription]:
        name = self._free_name(request.subscription)
        check = self._check_of(request)
        await check()
        if request.is_stream:
            made: Subscription = self._stream(request, name)
        else:
            made = await self._queue(request, name)
        made.check = check
        self._session.subscriptions[name] = made
        return frames.Result(id=request.id, subscription=name, credits=request.credits), made

    def _check_of(self, request: frames.Subscribe) -> Callable[[], Awaitable[None]]:
        """What refuses a subscription whose client may not read; asked again while it lasts."""
        wanted: Read | queues.Receive
        if request.is_stream:
            wanted = Read(topic=request.topic, partition=request.partition or 0)
        else:
            wanted = queues.Receive(topic=request.topic, group=request.group or DEFAULT_GROUP)
        return partial(self._session.check, wanted)

    def _free_name(self, wanted: str | None) -> str:
        taken = self._session.subscriptions.keys() | self._starting
        if wanted is not None and wanted in taken:
            raise InvalidRequest(f"There is a subscription {wanted!r} already. Choose another name, or none.")
        if len(taken) >= _SUBSCRIPTIONS_MAX:
            raise InvalidRequest(f"A session has at most {_SUBSCRIPTIONS_MAX} subscriptions. End one first.")
        return wanted or self._session.next_name(taken)

    async def _queue(self, request: frames.Subscribe, name: str) -> QueueSubscription:
        if request.partition is not None:
            raise InvalidRequest("A queue is read in all partitions; `partition` goes with `from` or `since`.")
        group = request.group or DEFAULT_GROUP
        self._starting.add(name)
        try:
            if not self._services.queues.has_begun_here(request.topic, group):
                await self._begin(request.topic, group)
        finally:
            self._starting.discard(name)
        return QueueSubscription(
            self._services, self._session, name, request.topic, request.credits, group, request.visibility_timeout_ms
        )

    async def _begin(self, topic: str, group: str) -> None:
        """Begin new groups one after the other and at a bounded pace, while the socket is open."""
        async with self._beginning:
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout_at(self._begin_at):
                    await self._closed.wait()
            except TimeoutError:
                pass
            if self._closed.is_set():
                raise InvalidRequest(f"The socket closed before group {group!r} could begin. Subscribe again.")
            await self._services.queues.declare(topic, group)
            partitions = len(self._services.metadata.topic(topic).partitions)
            self._begin_at = loop.time() + partitions / _BEGINNINGS_PER_SECOND

    def _stream(self, request: frames.Subscribe, name: str) -> StreamSubscription:
        if request.group is not None or request.visibility_timeout_ms is not None:
            raise InvalidRequest("`from` and `since` read a stream, which has no group and no leases. Leave one out.")
        if request.start is not None and request.since is not None:
            raise InvalidRequest("Give `from` or `since`, not both.")
        partitions = self._services.metadata.topic(request.topic).partitions
        if request.partition is not None:
            self._services.metadata.partition(request.topic, request.partition)
            indexes = [request.partition]
        elif isinstance(request.start, int) and len(partitions) > 1:
            raise InvalidRequest("An offset means something in one partition only; give `partition` as well.")
        else:
            indexes = [at.partition for at in partitions]
        if len(indexes) > _STREAM_PARTITIONS_MAX:
            raise InvalidRequest(f"A stream reads at most {_STREAM_PARTITIONS_MAX} partitions; give `partition`.")
        start: Start = "earliest"
        if request.since is not None:
            start = SinceTime(to_ms(request.since))
        elif request.start is not None:
            start = request.start
        places = [(index, start) for index in indexes]
        return StreamSubscription(self._services, self._session, name, request.topic, request.credits, places)

    def _next(self, request: frames.Next) -> frames.Result:
        subscription = self._find(request.subscription)
        if subscription.credits.amount + request.credits > frames.CREDITS_MAX:
            raise InvalidRequest(f"A subscription has at most {frames.CREDITS_MAX} credits at a time.")
        if request.seen is not None:
            self._session.note_seen(request.seen)
        subscription.credits.add(request.credits)
        return frames.Result(id=request.id, subscription=subscription.name, credits=subscription.credits.amount)

    async def _unsubscribe(self, request: frames.Unsubscribe) -> frames.Result:
        subscription = self._find(request.subscription)
        del self._session.subscriptions[subscription.name]
        await subscription.stop()
        return frames.Result(id=request.id, subscription=subscription.name)

    def _find(self, name: str) -> Subscription:
        subscription = self._session.subscriptions.get(name)
        if subscription is None:
            raise InvalidRequest(f"There is no subscription {name!r} here. Subscribe first.")
        return subscription

    # -- receipts -----------------------------------------------------------------------------------------------------

    async def _settle(self, request: frames.Settlement) -> frames.Result:
        group, receipts = self._group_of(request), request.receipts
        wanted: Ack | Nack | Reject | Release | Extend
        match request:
            case frames.Ack():
                wanted = Ack(group=group, receipts=receipts)
            case frames.Nack():
                wanted = Nack(group=group, receipts=receipts, delay_ms=request.delay_ms, reason=request.reason)
            case frames.Reject():
                wanted = Reject(group=group, receipts=receipts, reason=request.reason)
            case frames.Release():
                wanted = Release(group=group, receipts=receipts)
            case frames.Extend():
                timeout_ms = request.visibility_timeout_ms
                wanted = Extend(group=group, receipts=receipts, visibility_timeout_ms=timeout_ms)
        settled: ReceiptResults = await server_of(type(wanted))(self._services, wanted, self._caller)
        return frames.Result(id=request.id, results=settled.results)

    def _group_of(self, request: frames.Settlement) -> str:
        if request.subscription is None:
            return request.group or DEFAULT_GROUP
        group = self._find(request.subscription).group
        if group is None or request.group not in (None, group):
            raise InvalidRequest(f"Subscription {request.subscription!r} is not one of that group.")
        return group


def _id_of(data: bytes) -> frames.FrameId:
    """The id of a frame, so that even one that is refused can be answered by it."""
    try:
        return _names.decode(data).id
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
