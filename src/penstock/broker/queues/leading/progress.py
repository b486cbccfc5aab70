"""How far the queue groups led here are, told once a second to whoever has a use for it.

Only what is committed is told: the groups' offsets are looked at, and handed on once all that was written until then
is on enough replicas. What could still be lost must neither be shown as done nor be removed from the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.coordination.neighbours import Neighbours
from penstock.broker.queues.core.queue import Queue
from penstock.broker.queues.leading.commits import QueueCommits
from penstock.broker.queues.leading.retention import AckedRetention
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger(__name__)

_EVERY_SECONDS: Final = 1.0

_Place = tuple[str, int]


class Led(Protocol):
    """The queues of one partition that this node leads."""

    topic: str
    partition: int
    machines: dict[str, Queue]

    def when_settled(self, done: Callable[[PenstockError | None], None]) -> None:
        """Call ``done`` once all that can be seen now is committed."""


class Progress:
    """Looks at the queues that are led here. Iterating over ``led`` gives those that can be asked."""

    def __init__(self, led: Iterable[Led], commits: QueueCommits, retention: AckedRetention) -> None:
        self._led = led
        self._commits = commits
        self._retention = retention
        self._seen: dict[_Place, tuple[Led, Mapping[str, int]]] = {}  # or about to be
        self._task: asyncio.Task[None] | None = None

    @staticmethod
    def of(broker: Broker, led: Iterable[Led]) -> Progress:
        """The progress of a node's queues, as its groups and logs are told of it. Made once for a node."""
        neighbours = Neighbours(broker.config.node_id, broker.metadata, broker.peers)
        commits = QueueCommits(
            neighbours,
            broker.groups,
            broker.clock,
            broker.ensure_offsets_topic,
            offsets_retention_ms=broker.config.groups.offsets_retention_ms,
        )
        retention = AckedRetention(
            neighbours, broker.clock, lambda topic: broker.topic_settings(topic).queue, broker.trim
        )
        return Progress(led, commits, retention)

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._go_on())

    async def stop(self) -> None:
        """What was not told is told by whoever leads next."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            await self.step()

    async def step(self) -> None:
        """Look once, and have done what follows."""
        self._look()
        for outcome in await asyncio.gather(
            self._commits.commit_due(), self._retention.trim_due(), return_exceptions=True
        ):
            if isinstance(outcome, PenstockError):
                log.debug("The progress of queues is told again: %s", outcome.message)
            elif isinstance(outcome, Exception):
                log.error("The progress of queues could not be told.", exc_info=outcome)

    def _look(self) -> None:
        led = {(each.topic, each.partition): each for each in self._led}
        for place in [place for place in self._seen if place not in led]:
            self._drop(place)
        for place, each in led.items():
            if place in self._seen and self._seen[place][0] is not each:
                self._drop(place)  # leadership was lost and came back, perhaps of another topic of this name
            offsets = {name: queue.committed for name, queue in each.machines.items()}
            if place not in self._seen or self._seen[place][1] != offsets:
                self._seen[place] = (each, offsets)
                each.when_settled(partial(self._tell, each, offsets))

    def _tell(self, each: Led, offsets: Mapping[str, int], error: PenstockError | None) -> None:
        place = (each.topic, each.partition)
        if error is None and place in self._seen and self._seen[place][0] is each:
            self._commits.follow(*place, offsets)
            self._retention.follow(*place, offsets)

    def _drop(self, place: _Place) -> None:
        del self._seen[place]
        self._commits.drop(*place)
        self._retention.drop(*place)
