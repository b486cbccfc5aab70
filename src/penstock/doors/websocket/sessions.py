"""WebSocket sessions: a consumer that outlives its socket for a while.

A client that is cut off and comes back in time with its token is the same consumer as before: its queue subscriptions
go on with the credits they had, its leases are still its own, and deliveries that did not arrive are sent again, under
the same receipts. When it does not come back, what never left this node is given back to the queue.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Protocol

import msgspec

from penstock.access.principal import ANONYMOUS, Principal
from penstock.api.messages import DeliveredMessage
from penstock.api.operation import Request
from penstock.api.queues import QueueMessage
from penstock.doors.websocket.frames import Delivery, Hello, Reply
from penstock.doors.websocket.subscriptions import StreamSubscription, Subscription
from penstock.errors import AccessError
from penstock.features.queues.leases import PartitionLease
from penstock.operations.caller import Caller
from penstock.operations.guard import check_request
from penstock.operations.metering import charge_read, wait_to_read
from penstock.operations.queues import give_back_leases
from penstock.operations.services import Services

_DETACHED_MAX: Final = 10_000
_KEPT_BYTES_MAX: Final = 1024 * 1024
TAKEN_OVER: Final = 4001  # a close code of our own

_encoder: Final = msgspec.json.Encoder()


class Outlet(Protocol):
    """A socket as a session sees it. Sending raises `OSError` once it is closed."""

    async def send(self, data: bytes) -> None: ...

    async def close(self, code: int, reason: str) -> None: ...


class _Kept:
    """A delivery that may have to be sent again."""

    __slots__ = ("data", "group", "is_written", "leases", "number")

    def __init__(self, number: int, group: str, leases: Sequence[PartitionLease], data: bytes) -> None:
        self.number = number
        self.group = group
        self.leases = leases
        self.data = data
        self.is_written = False

    def is_live(self, now_ms: int) -> bool:
        return any(lease.until_ms > now_ms for lease in self.leases)


class Session:
    """One consumer: its subscriptions, its deliveries, and the socket it has at the moment, if any."""

    def __init__(
        self, services: Services, resume_ms: int, consumer: str, token: str, principal: Principal = ANONYMOUS
    ) -> None:
        self.principal = principal  # whose it is: no other one resumes it
        self.caller: Caller | None = None  # the client as it came last: its credential may be a newer one
        self._services = services
        self._resume_ms = resume_ms
        self.consumer = consumer
        self.token = token
        self.subscriptions: dict[str, Subscription] = {}
        self.outlet: Outlet | None = None
        self._number = 0
        self._names = 0
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._changing = asyncio.Lock()  # sockets

    def next_name(self, taken: AbstractSet[str]) -> str:
        """A name for a subscription that the client gave none."""
        while True:
            self._names += 1
            if str(self._names) not in taken:
                return str(self._names)

    async def check(self, wanted: Request[Any]) -> None:
        """Refuse unless the client may do what a subscription does for it."""
        if self.caller is not None:
            await check_request(self._services, wanted, self.caller)

    async def wait_to_read(self) -> None:
        if self.caller is not None:
            await wait_to_read(self._services, self.caller)

    async def _drop_forbidden(self) -> None:
        """End subscriptions that the client may no longer have, and give back what was meant for them."""
        for subscription in tuple(self.subscriptions.values()):
            try:
                await subscription.check()
            except AccessError as error:
                await subscription.refuse(error)
                going = [kept for kept in self._kept if kept.group == subscription.group]
                self._kept = deque(kept for kept in self._kept if kept.group != subscription.group)
                self._kept_bytes = sum(len(kept.data) for kept in self._kept)
                for each in going:
                    await give_back_leases(self._services.queues, each.group, each.leases)

    # -- sockets come and go ------------------------------------------------------------------------------------------

    async def attach(self, outlet: Outlet, *, seen: int | None, is_resumed: bool) -> None:
        """Go on with a socket, in the place of the one before if that is still there.

        ``seen`` is the number of the last delivery that arrived, if the client says so.
        """
        async with self._changing:
            before = self.outlet
            if before is not None:
                await self._let_go()
                await before.close(TAKEN_OVER, "The session was resumed on another connection.")
            self.outlet = outlet
            await self._begin(seen, is_resumed=is_resumed)

    async def _begin(self, seen: int | None, *, is_resumed: bool) -> None:
        hello = Hello(
            consumer=self.consumer,
            token=self.token,
            resumed=is_resumed,
            resume_ms=self._resume_ms,
            subscriptions=list(self.subscriptions),
        )
        await self.send(hello)
        await self._drop_forbidden()
        self._drop_kept()
        if seen is not None:
            self.note_seen(seen)
        for kept in tuple(self._kept):
            if not kept.is_written or (seen is not None and kept.number > seen):
                await self._write(kept)
        for subscription in self.subscriptions.values():
            subscription.start()

    def drop(self, subscription: Subscription) -> bool:
        """Forget a subscription that is over; whether it was one of the session's."""
        return self.subscriptions.pop(subscription.name, None) is subscription

    async def detach(self, outlet: Outlet | None) -> bool:
        """A socket is gone (None: whichever there is); whether the session is without one now."""
        async with self._changing:
            if self.outlet is not None and outlet in (self.outlet, None):
                await self._let_go()
            return self.outlet is None

    async def _let_go(self) -> None:
        """Queue subscriptions rest; streams are over, for their reader knows how far it got."""
        self.outlet = None
        for subscription in tuple(self.subscriptions.values()):
            await subscription.stop()
            if isinstance(subscription, StreamSubscription):
                del self.subscriptions[subscription.name]

    async def end(self) -> None:
        """Nobody comes back: what never left this node is given back."""
        await self.detach(None)
        self.subscriptions.clear()
        kept, self._kept = self._kept, deque()
        for each in kept:
            if not each.is_written:
                await give_back_leases(self._services.queues, each.group, each.leases)

    # -- frames -------------------------------------------------------------------------------------------------------

    async def send(self, frame: Reply) -> bool:
        """Say something, if there is a socket to say it on."""
        return await self._send(_encoder.encode(frame))

    async def _send(self, data: bytes) -> bool:
        if self.outlet is None:
            return False
        try:
            await self.outlet.send(data)
        except OSError:
            return False  # it is about to be noticed
        return True

    async def deliver(
        self,
        subscription: Subscription,
        messages: list[QueueMessage] | list[DeliveredMessage],
        leases: Sequence[PartitionLease],
    ) -> None:
        """Send messages; those under leases are remembered, in case they do not arrive."""
        self._number += 1
        frame = Delivery(
            subscription=subscription.name,
            number=self._number,
            credits=subscription.credits.amount,
            messages=messages,
        )
        data = _encoder.encode(frame)
        if self.caller is not None:
            charge_read(self._services, self.caller, len(data))
        if subscription.group is None:
            await self._send(data)
            return
        kept = _Kept(self._number, subscription.group, leases, data)
        self._kept.append(kept)
        self._kept_bytes += len(data)
        self._drop_kept()
        await self._write(kept)

    async def _write(self, kept: _Kept) -> None:
        kept.is_written = await self._send(kept.data) or kept.is_written

    def note_seen(self, number: int) -> None:
        """Deliveries up to this one have arrived."""
        while self._kept and self._kept[0].number <= number:
            self._kept_bytes -= len(self._kept.popleft().data)

    def _drop_kept(self) -> None:
        """Forget what nobody could use any more, and the oldest where it becomes too much."""
        now_ms = self._services.clock.now_ms()
        live = [kept for kept in self._kept if kept.is_live(now_ms)]
        if len(live) < len(self._kept):
            self._kept = deque(live)
            self._kept_bytes = sum(len(kept.data) for kept in live)
        while self._kept_bytes > _KEPT_BYTES_MAX and len(self._kept) > 1 and self._kept[0].is_written:
            self._kept_bytes -= len(self._kept.popleft().data)


class Sessions:
    """Every session of one door, by token."""

    def __init__(self, services: Services, resume_ms: int) -> None:
        self._services = services
        self._resume_ms = resume_ms
        self._sessions: dict[str, Session] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}  # of those without a socket, the longest gone first
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def connected(self) -> int:
        """How many of them have a socket, or are about to."""
        return len(self._sessions) - len(self._timers)

    def open(self, principal: Principal = ANONYMOUS) -> Session:
        consumer = f"ws-{self._services.broker.surroundings.new_id().hex}"
        session = Session(self._services, self._resume_ms, consumer, secrets.token_urlsafe(24), principal)
        self._sessions[session.token] = session
        return session

    def resume(self, token: str, principal: Principal = ANONYMOUS) -> Session | None:
        """The session of a token, to be attached to a socket; None if it is over, not of here or of another client."""
        session = self._sessions.get(token)
        if session is not None and session.principal != principal:
            return None
        if session is not None:
            self._forget_timer(token)
        return session

    async def detach(self, session: Session, outlet: Outlet, *, is_for_good: bool) -> None:
        """A socket has closed. Unless another took over, its session waits for the client, or ends."""
        if not await session.detach(outlet) or session.token not in self._sessions:
            return
        if is_for_good:
            self._end(session)
            return
        self._forget_timer(session.token)
        delay = self._resume_ms / 1000
        self._timers[session.token] = asyncio.get_running_loop().call_later(delay, self._end, session)
        while len(self._timers) > _DETACHED_MAX:
            self._end(self._sessions[next(iter(self._timers))])

    async def stop(self) -> None:
        """End all of them."""
        for session in tuple(self._sessions.values()):
            self._end(session)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _end(self, session: Session) -> None:
        self._forget_timer(session.token)
        if self._sessions.pop(session.token, None) is session:
            task = asyncio.get_running_loop().create_task(session.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _forget_timer(self, token: str) -> None:
        timer = self._timers.pop(token, None)
        if timer is not None:
            timer.cancel()
