"""Receiving from all partitions of a topic: in turn, and if need be waiting for the first message.

Partitions have their turn one after the other, so that none is served only when the others are empty. Whoever waits
stands in line at the partitions led here, and asks other nodes to say when there is something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.broker.queues.attempts import Attempts
from penstock.broker.queues.leading.companions import ensure_companion
from penstock.broker.queues.leading.polling import Waiter
from penstock.broker.queues.leading.serving import QueueServing
from penstock.broker.queues.leases import Lease
from penstock.broker.queues.routing import Problems, QueueRoutes
from penstock.broker.queues.wire import Abandon, AwaitReady, Take
from penstock.cluster.records import NO_LEADER
from penstock.model import queue_state_topic

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_PATIENCE_SECONDS: Final = 5.0  # with partitions that have no leader now
_PAUSE_SECONDS: Final = 0.05
# Leaders change and partitions are added, so nobody waits for longer than this without looking anew.
_LOOK_AGAIN_SECONDS: Final = 5.0
_TURNS_MAX: Final = 10_000
# A call that finds messages need not wait for anything, and who calls again and again would keep all others from work.
_CALLS_A_TURN: Final = 16
# Whoever is told of something and finds nothing, again and again, asks less often.
_IN_VAIN_SECONDS: Final = 0.002
_IN_VAIN_SECONDS_MAX: Final = 0.1

# Have a group begin in these partitions.
BeginIn = Callable[[str, str, Sequence[int]], Awaitable[None]]


class Receiving:
    """Every call that receives on this node."""

    def __init__(self, broker: Broker, routes: QueueRoutes, serving: QueueServing, begin_in: BeginIn) -> None:
        self._broker = broker
        self._routes = routes
        self._serving = serving
        self._begin_in = begin_in
        self._turns: dict[tuple[str, str], int] = {}  # which partition is next
        self._waiters: dict[Waiter, str] = {}  # all that wait here, and for what topic
        self._attempts = Attempts()  # that were made here
        self._is_stopping = False
        self._calls = 0

    def stop(self) -> None:
        """Let everybody who waits go home with nothing."""
        self._is_stopping = True
        for waiter in self._waiters:
            waiter.wake()

    def on_opened(self, topic: str) -> None:
        """Queues of a topic are led here now: whoever waits has to look again."""
        for waiter, waits_for in self._waiters.items():
            if waits_for == topic:
                waiter.wake()

    async def begin_attempt(self, topic: str, group: str, attempt: str, *, is_repeat: bool) -> None:
        """If an attempt was made before, have everybody give back what it got."""
        is_known = self._attempts.note((topic, group, attempt), [], self._broker.clock.monotonic())
        if is_known or is_repeat:
            await self._routes.abandon(Abandon(topic, group, attempt))

    async def receive(self, request: Take, wait_ms: int) -> list[Lease]:
        """Leases from any partitions; ``request`` tells all but which ones."""
        self._calls += 1
        if self._calls % _CALLS_A_TURN == 0:
            await asyncio.sleep(0)
        clock = self._broker.clock
        began = clock.monotonic()
        deadline = began + wait_ms / 1000
        waiter: Waiter | None = None
        in_vain = 0  # how often there should have been something and was not, one time after the other
        try:
            while True:
                if queue_state_topic(request.topic) not in self._broker.metadata.topics:
                    await ensure_companion(self._broker, request.topic)
                order = self._order(request)
                leases, problems = await self._take_round(request, order)
                if leases:
                    self._note_turn(request, leases[0].partition, len(order))
                    return leases
                if self._is_stopping:
                    return []
                now = clock.monotonic()
                if len(problems) == len(order) and now >= max(deadline, began + _PATIENCE_SECONDS):
                    raise problems[0][1]
                if len(problems) == len(order):
                    await asyncio.sleep(_PAUSE_SECONDS)
                elif now >= deadline:
                    return []
                elif waiter is None:  # get in line first and look once more, so that nothing comes in between
                    waiter = Waiter()
                    self._waiters[waiter] = request.topic
                    self._serving.enter_rooms(waiter, request.topic, request.group, order)
                else:
                    seconds = min(deadline - now, _LOOK_AGAIN_SECONDS, *([_PAUSE_SECONDS * 10] if problems else []))
                    await asyncio.sleep(min(in_vain * _IN_VAIN_SECONDS, _IN_VAIN_SECONDS_MAX, seconds))
                    in_vain = in_vain + 1 if await self._wait(waiter, request, order, seconds) else 0
        finally:
            if waiter is not None:
                del self._waiters[waiter]
                waiter.leave_all()

    # -- one round ----------------------------------------------------------------------------------------------------

    def _order(self, request: Take) -> list[int]:
        count = len(self._broker.metadata.topic(request.topic).partitions)
        first = self._turns.get((request.topic, request.group), 0) % count
        return [*range(first, count), *range(first)]

    def _note_turn(self, request: Take, served: int, count: int) -> None:
        if count > 1:
            if len(self._turns) >= _TURNS_MAX:
                self._turns.clear()
            self._turns[request.topic, request.group] = (served + 1) % count

    async def _take_round(self, request: Take, order: list[int]) -> tuple[list[Lease], Problems]:
        """Ask each node for its partitions, until there is enough."""
        leases: list[Lease] = []
        problems: Problems = []
        messages, size = request.max_messages, request.max_bytes
        for node_id, partitions in self._routes.by_node(request.topic, order).items():
            wanted = Take(
                request.topic,
                request.group,
                request.consumer,
                tuple(partitions),
                messages,
                size,
                request.visibility_timeout_ms,
                request.attempt,
            )
            try:
                found, missing, failed = await self._routes.take(node_id, wanted)
                if missing:
                    await self._begin_in(request.topic, request.group, missing)
                if missing and not found:
                    found, _, failed = await self._routes.take(node_id, wanted)
            except BaseException:
                self._routes.give_back(request.group, leases)
                raise
            leases += found
            problems += failed
            messages -= sum(delivery.size for lease in found for delivery in lease.deliveries)
            size -= sum(len(lease.batches) for lease in found)
            if messages <= 0 or size <= 0:
                break
        return leases, problems

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def _wait(self, waiter: Waiter, request: Take, order: list[int], seconds: float) -> bool:
        """Return once there may be something somewhere, or after a while; whether there may be."""
        self._serving.enter_rooms(waiter, request.topic, request.group, order)
        waiter.pass_on()
        here = self._broker.config.node_id
        calls = [
            asyncio.ensure_future(
                self._routes.await_ready(
                    node_id,
                    AwaitReady(request.topic, request.group, request.consumer, tuple(partitions), int(seconds * 1000)),
                )
            )
            for node_id, partitions in self._routes.by_node(request.topic, order).items()
            if node_id not in {here, NO_LEADER}
        ]
        if not calls:
            try:
                async with asyncio.timeout(seconds):
                    await waiter.sleep()
            except TimeoutError:
                return False
            return True
        calls.append(asyncio.ensure_future(waiter.sleep()))
        try:
            done, _ = await asyncio.wait(calls, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        return bool(done)
