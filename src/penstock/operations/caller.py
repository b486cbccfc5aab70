"""Who made a call, as far as serving it depends on that; and work that is done only while the caller waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

import msgspec

from penstock.access.principal import ANONYMOUS, Principal
from penstock.errors import ClientGone, NotCoordinator

T = TypeVar("T")

_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
_PUBLISH_TIMEOUT_MS: Final = 30_000


class Origin(msgspec.Struct, frozen=True):
    """What a node that serves an operation for another one has to know of the client; see `Caller` for each."""

    instance: str
    host: str
    trace: str
    wants_packed: bool
    answer_bytes_max: int
    publish_timeout_ms: int


class Caller:
    """One call's client. Doors have their own kinds; this one waits patiently and takes what it gets."""

    __slots__ = ("stopping",)

    def __init__(self, stopping: asyncio.Event) -> None:
        self.stopping = stopping

    @property
    def instance(self) -> str:
        """Where the call came in, for the problems in its answer."""
        return ""

    @property
    def host(self) -> str:
        """The client's address, as far as it is known."""
        return ""

    @property
    def principal(self) -> Principal:
        """Who calls, as far as the door has proved it."""
        return ANONYMOUS

    @property
    def door(self) -> str:
        """Which door the call came through, for metrics."""
        return ""

    @property
    def client_id(self) -> str:
        """What the client calls itself, for quotas; empty if it says nothing."""
        return ""

    @property
    def request_id(self) -> str:
        """What the client calls the request, for the audit log."""
        return self.trace

    @property
    def trace(self) -> str:
        """The trace that the call is part of, as W3C's ``traceparent`` has it; empty if there is none."""
        return ""

    @property
    def wants_packed(self) -> bool:
        """Whether the answer is wanted in MessagePack, where there is that form."""
        return False

    @property
    def is_forwarded(self) -> bool:
        """Whether another node has handed the call on: then this one answers for itself."""
        return False

    @property
    def is_gone(self) -> bool:
        """Whether the client is known to have gone away."""
        return False

    @property
    def answer_bytes_max(self) -> int:
        """How many bytes of messages an answer may hold."""
        return _ANSWER_BYTES_MAX

    @property
    def publish_timeout_ms(self) -> int:
        return _PUBLISH_TIMEOUT_MS

    async def wait_gone(self) -> None:
        """Return when the client has gone away."""
        await asyncio.Event().wait()

    def milliseconds_left(self, at_most: int) -> int:
        """How long the client still waits, or ``at_most`` if that is longer or not known."""
        return at_most

    @property
    def origin(self) -> Origin:
        """What goes along when another node serves the call."""
        return Origin(
            instance=self.instance,
            host=self.host,
            trace=self.trace,
            wants_packed=self.wants_packed,
            answer_bytes_max=self.answer_bytes_max,
            publish_timeout_ms=self.publish_timeout_ms,
        )


class Waiting(Generic[T]):
    """A piece of work beside a watch over its caller. Whatever is left undone is cancelled at the end."""

    def __init__(self, caller: Caller, work: Coroutine[Any, Any, T]) -> None:
        self._work = asyncio.create_task(work)
        self._gone = asyncio.create_task(caller.wait_gone())
        self._stopping = asyncio.create_task(caller.stopping.wait())

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

    async def result_or(self, default: T) -> T:
        """The same, with ``default`` for a client that has gone and a node that stops."""
        await asyncio.wait((self._work, self._gone, self._stopping), return_when=asyncio.FIRST_COMPLETED)
        return self._work.result() if self._work.done() else default
