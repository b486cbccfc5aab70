"""Work that may take long, done for a client only as long as it is there and the node is not stopping."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Generic, TypeVar

from penstock.errors import NotCoordinator
from penstock.http.door import Door
from penstock.http.exchange import Call
from penstock.http.problems import ClientGone

T = TypeVar("T")


class Waiting(Generic[T]):
    """A piece of work beside a watch over its client. Whatever is left undone is cancelled at the end."""

    def __init__(self, door: Door, call: Call[Any, Any], work: Coroutine[Any, Any, T]) -> None:
        self._work = asyncio.create_task(work)
        self._gone = asyncio.create_task(call.wait_disconnected())
        self._stopping = asyncio.create_task(door.stopping.wait())

    async def __aenter__(self) -> Waiting[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = (self._work, self._gone, self._stopping)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_client_gone(self) -> bool:
        return self._gone.done()

    async def result(self) -> T:
        """What the work comes to, unless the client goes away or the node stops before that."""
        await asyncio.wait((self._work, self._gone, self._stopping), return_when=asyncio.FIRST_COMPLETED)
        if self._work.done():
            return self._work.result()
        if self._gone.done():
            raise ClientGone("The client went away before its answer was there.")
        raise NotCoordinator("This node is stopping. Try again in a moment.")
