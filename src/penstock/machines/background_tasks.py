"""Background tasks: what a coordinator has done beside the answering, all of it over when it stops.

Some are done once, as reading the log of a shard that is new here. Others are done again and again for each shard, as
keeping its log short; those end between two steps, for their threads work on files that are closed next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from penstock.errors import PenstockError
from penstock.supervision import Supervision

log = logging.getLogger(__name__)

_UPKEEP_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 5.0


ShardT = TypeVar("ShardT")


class BackgroundTasks:
    """What is under way for one coordinator."""

    def __init__(self, what: str, supervision: Supervision) -> None:
        self._what = what
        self.supervision = supervision
        self._tasks: dict[asyncio.Task[None], None] = {}  # in their order: what they leave behind may depend on it
        self._upkeep: asyncio.Task[None] | None = None
        self._has_stopped = asyncio.Event()

    @property
    def has_stopped(self) -> bool:
        return self._has_stopped.is_set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done beside everything else, until this node stops."""
        if self.has_stopped:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))
        self.supervision.watch(f"work for {self._what}", task)

    def keep_up(self, shards: Iterable[ShardT], upkeep: Callable[[ShardT], Awaitable[None]]) -> None:
        """Do for each shard, once a second, what need not be done at once."""
        name = f"upkeep of {self._what}"
        self._upkeep = self.supervision.start(name, lambda: self._keep_up(name, shards, upkeep))

    async def _keep_up(self, name: str, shards: Iterable[ShardT], upkeep: Callable[[ShardT], Awaitable[None]]) -> None:
        while not self.has_stopped:
            try:
                async with asyncio.timeout(_UPKEEP_SECONDS):
                    await self._has_stopped.wait()
            except TimeoutError:
                pass
            for shard in shards:
                try:
                    await upkeep(shard)
                except PenstockError as error:
                    log.warning("Upkeep of %r is tried again: %s", shard, error.message)
                except Exception as error:  # the other shards are looked after all the same
                    self.supervision.note(name, error)

    async def stop(self) -> None:
        """Begin nothing any more, and end what is under way."""
        self._has_stopped.set()
        if self._upkeep is not None:
            await asyncio.wait([self._upkeep], timeout=_STOP_SECONDS)
            self._upkeep.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
