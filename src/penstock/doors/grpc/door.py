"""What every method of the gRPC door shares."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from penstock.broker.broker import Broker
from penstock.doors.grpc.config import GrpcConfig
from penstock.doors.grpc.statuses import NodeStopping
from penstock.doors.grpc.upstreams import Upstreams
from penstock.features.groups.hosted.hosting import HostedMembers
from penstock.features.messages.publishing import Partitioners
from penstock.records import KeyHash, RoundRobin

T = TypeVar("T")

PARTITIONERS: Final = {"key_hash": KeyHash, "round_robin": RoundRobin}


class Door:
    """The broker behind the door, the door's settings, and what lives as long as the door is open."""

    def __init__(self, broker: Broker, config: GrpcConfig) -> None:
        self.broker = broker
        self.config = config
        self.hosted = HostedMembers(broker.ports, broker.groups, broker.hosted_members)
        self.partitioners = Partitioners(PARTITIONERS, "key_hash")
        self.upstreams = Upstreams(config.node.max_body_bytes)
        self.stopping = asyncio.Event()
        self._conversations: set[asyncio.Task[Any]] = set()
        self._errands: set[asyncio.Task[None]] = set()

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

    def errand(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something for a client that is gone, beside everything else; the door closes when it is done."""
        task = asyncio.ensure_future(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def end_conversations(self) -> None:
        """End every stream and everything that waits, and see to it that what they held is given back."""
        self.stopping.set()
        while self._conversations or self._errands:
            await asyncio.wait((*self._conversations, *self._errands))

    async def unless_stopping(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work comes to; if the node stops before that, the work is cancelled, and `NodeStopping`."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise NodeStopping("This node is stopping. Go on with another one, or with this one in a moment.")
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)
