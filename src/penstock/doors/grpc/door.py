"""What every method of the gRPC door shares."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.doors.grpc.config import GrpcConfig
from penstock.operations.services import Services


class Door:
    """The services behind the door, the door's settings, and what lives as long as the door is open."""

    def __init__(self, services: Services, config: GrpcConfig) -> None:
        self.broker = services.broker
        self.services = services
        self.config = config
        self.stopping = asyncio.Event()
        self._conversations: set[asyncio.Task[Any]] = set()
        self._leftovers: set[asyncio.Task[None]] = set()

    @contextmanager
    def conversing(self) -> Iterator[None]:
        """Note that the running call is one that the door has to see to its end when it closes."""
        task = asyncio.current_task()
        assert task is not None, "calls are tasks"
        self._conversations.add(task)
        try:
            yield
        finally:
            self._conversations.discard(task)

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something for a client that is gone, beside everything else; the door closes when it is done."""
        task = asyncio.ensure_future(work)
        self._leftovers.add(task)
        task.add_done_callback(self._leftovers.discard)

    async def end_conversations(self) -> None:
        """End every stream and everything that waits, and see to it that what they held is given back."""
        self.stopping.set()
        while self._conversations or self._leftovers:
            await asyncio.wait((*self._conversations, *self._leftovers))
