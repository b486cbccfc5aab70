"""Which node leads which shard of schedules, and asking it: directly where it is this one.

What is refused because leaders change is tried again for a short while. Where it is not known whether something was
done, it is asked again only if doing it twice does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from penstock.broker.schedules.figures import CalendarStats
from penstock.broker.schedules.leading.serving import ScheduleServing
from penstock.broker.schedules.wire import (
    ADD,
    CANCEL,
    CHANGE,
    FIGURES,
    LIST,
    SHOW,
    AddSchedules,
    AskFigures,
    CancelSchedules,
    ChangeSchedule,
    FiguresTold,
    ListSchedules,
    OneSchedule,
    SchedulesAdded,
    SchedulesCancelled,
    SchedulesListed,
    ShowSchedule,
)
from penstock.cluster.records import NO_LEADER
from penstock.errors import (
    CoordinatorLoading,
    LeaderNotAvailable,
    NotCoordinator,
    PeerNotReached,
    PeerUnavailable,
    PenstockError,
    RequestTimedOut,
)
from penstock.model import SCHEDULES_TOPIC
from penstock.peers.port import Method

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

T = TypeVar("T")

_PATIENCE_SECONDS: Final = 8.0
_PAUSE_SECONDS: Final = 0.05
_COMES_LATER_MS: Final = 60_000  # more than the two times below together
_CALL_SECONDS: Final = 30.0
_FIGURES_SECONDS: Final = 2.0
# Nothing was done.
_REFUSED: Final = (NotCoordinator, CoordinatorLoading, LeaderNotAvailable, PeerNotReached)
# It may have been.
_UNSURE: Final = (PeerUnavailable, RequestTimedOut)


class ScheduleRoutes:
    """The shards of schedules, wherever they are led."""

    def __init__(self, broker: Broker, serving: ScheduleServing) -> None:
        self._broker = broker
        self._serving = serving
        self._node_id = broker.config.node_id

    @property
    def shards(self) -> int:
        """How many there are, 0 before the first schedule."""
        topic = self._broker.metadata.topics.get(SCHEDULES_TOPIC)
        return 0 if topic is None else len(topic.partitions)

    def leader_of(self, shard: int) -> int:
        topic = self._broker.metadata.topics.get(SCHEDULES_TOPIC)
        if topic is None or shard >= len(topic.partitions):
            return NO_LEADER
        return topic.partitions[shard].leader

    def led_shards(self) -> list[int]:
        """Shards for what may go anywhere: those of this node, or else all that have a leader, or else all."""
        leaders = [self.leader_of(shard) for shard in range(self.shards)]
        own = [shard for shard, leader in enumerate(leaders) if leader == self._node_id]
        return own or [shard for shard, leader in enumerate(leaders) if leader != NO_LEADER] or list(range(self.shards))

    # -- each call ----------------------------------------------------------------------------------------------------

    async def add(self, request: AddSchedules) -> SchedulesAdded:
        # An id is known until its message has come: what may come before the last attempt is not asked for again.
        safe_ms = self._broker.clock.now_ms() + _COMES_LATER_MS
        is_repeatable = all(
            new.id and (new.rule is not None or (new.due_ms is not None and new.due_ms > safe_ms))
            for new in request.schedules
        )
        answer: SchedulesAdded = await self._ask(ADD, request, self._serving.add, is_repeatable=is_repeatable)
        return answer

    async def cancel(self, request: CancelSchedules) -> SchedulesCancelled:
        answer: SchedulesCancelled = await self._ask(CANCEL, request, self._serving.cancel)
        return answer

    async def show(self, request: ShowSchedule) -> OneSchedule:
        answer: OneSchedule = await self._ask(SHOW, request, self._serving.show)
        return answer

    async def change(self, request: ChangeSchedule) -> OneSchedule:
        # Running something twice is not what was asked for.
        is_repeatable = request.due_ms is not None or request.rule is not None
        answer: OneSchedule = await self._ask(CHANGE, request, self._serving.change, is_repeatable=is_repeatable)
        return answer

    async def list(self, request: ListSchedules) -> SchedulesListed:
        answer: SchedulesListed = await self._ask(LIST, request, self._serving.list)
        return answer

    async def figures(self) -> CalendarStats:
        """Of all nodes that answer soon."""
        found = self._serving.figures(AskFigures()).figures
        nodes = sorted({self.leader_of(shard) for shard in range(self.shards)} - {NO_LEADER, self._node_id})
        calls = [self._broker.peers.call(node, FIGURES, AskFigures(), timeout_s=_FIGURES_SECONDS) for node in nodes]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, PenstockError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            told: FiguresTold = answer.reply
            found.add(told.figures)
        return found

    async def _ask(
        self,
        method: Method[Any, Any],
        request: Any,
        serve: Callable[[Any], Awaitable[msgspec.Struct]],
        *,
        is_repeatable: bool = True,
    ) -> Any:
        again = (*_REFUSED, *_UNSURE) if is_repeatable else _REFUSED
        deadline = self._broker.clock.monotonic() + _PATIENCE_SECONDS
        while True:
            leader = self.leader_of(request.shard)
            try:
                if leader == NO_LEADER:
                    raise LeaderNotAvailable(f"Nobody leads shard {request.shard} of schedules now. Try again soon.")
                if leader == self._node_id:
                    return await serve(request)
                return (await self._broker.peers.call(leader, method, request, timeout_s=_CALL_SECONDS)).reply
            except again:
                if self._broker.clock.monotonic() + _PAUSE_SECONDS > deadline:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)
