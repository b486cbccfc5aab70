"""The lookout: tells queues the labels that they have to know before they choose, and looks ahead where lanes are.

Key order needs to know only as much as is handed out. Lanes need to know of everything, because an urgent message may
be the last of a million: whoever receives looks at the next few ten thousand messages first, and what is behind them is
looked at in the background, a piece at a time, while others have their turn. So a receive never waits for a long log to
be read, and the index is whole soon after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from penstock.broker.queues.core.config import Order
from penstock.broker.queues.core.queue import Queue
from penstock.broker.queues.leading.labels import read_labels
from penstock.broker.queues.leading.sources import Source
from penstock.errors import PenstockError

log = logging.getLogger(__name__)

_PIECES_AT_ONCE: Final = 4  # that a receive looks at itself, of up to 10,000 messages or 4 MiB each
_PAUSE_SECONDS: Final = 0.001  # between pieces in the background


class Looked(Protocol):
    """The shard whose queues look ahead."""

    machines: dict[str, Queue]

    @property
    def is_ready(self) -> bool: ...
    def source(self) -> Source: ...
    def pass_on(self, group: str) -> None: ...


class Lookout:
    """What looks ahead for the groups of one partition."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def look(self, shard: Looked, queue: Queue, source: Source, limit: int, end: int) -> None:
        """Tell a queue what it needs to know to hand out ``limit`` messages; the rest goes on in the background."""
        if queue.settings.order is Order.NONE and not queue.settings.has_shares:
            return
        pieces = 0
        while await _look_once(queue, source, limit, end):
            pieces += 1
            if pieces >= _PIECES_AT_ONCE and queue.supply.pool is not None and queue.supply.pool.shares.total:
                self._begin(queue.id, self._look_ahead(shard, queue))
                return

    def _begin(self, group: str, looking: Coroutine[Any, Any, None]) -> None:
        if group in self._tasks:
            looking.close()
            return
        task = self._tasks[group] = self._loop.create_task(looking)
        task.add_done_callback(lambda done: self._tasks.pop(group) if self._tasks.get(group) is done else None)

    async def _look_ahead(self, shard: Looked, queue: Queue) -> None:
        try:
            while shard.is_ready and shard.machines.get(queue.id) is queue:
                source = shard.source()
                if not await _look_once(queue, source, 1, source.known_end):
                    break
                shard.pass_on(queue.id)
                await asyncio.sleep(_PAUSE_SECONDS)
        except PenstockError as error:  # led elsewhere for a moment; the next receive begins again
            log.debug("Group %s looks no further for now: %s", queue.id, error.message)


async def _look_once(queue: Queue, source: Source, limit: int, end: int) -> bool:
    """Look at one piece; False if there is nothing to look at."""
    wanted = queue.unseen(limit, end)
    if wanted is None:
        return False
    settings = queue.settings
    labels = await read_labels(source, wanted, settings)
    if not labels.size:
        return False
    still = queue.unseen(limit, end)
    # Nobody else told it meanwhile, and it still wants to know the same.
    if still is not None and still.first == wanted.first and queue.settings is settings:
        queue.see(wanted.first, labels.keys, labels.runs)
    return True
