"""The client behind a call, as operations see it: how much time it gives, whether it is still there."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc.aio

from penstock.doors.grpc.door import Door
from penstock.operations.caller import Caller

Context = grpc.aio.ServicerContext[Any, Any]

# Clients take answers of up to 4 MiB unless told otherwise; who asks for more by `max_bytes` gets it.
_ANSWER_BYTES: Final = 3 * 1024 * 1024
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
# So long before the client gives up the answer has to be on its way.
_MARGIN_MS: Final = 100


class GrpcCaller(Caller):
    """The client of one call or stream."""

    __slots__ = ("_context", "_door", "_instance", "answer_bytes", "gone")

    def __init__(self, door: Door, context: Context, instance: str) -> None:
        super().__init__(door.stopping)
        self._door = door
        self._context = context
        self._instance = instance
        self.answer_bytes = _ANSWER_BYTES
        self.gone = asyncio.Event()

    def allow_bytes(self, wanted: int | None) -> None:
        """Note that the client asks for answers of this size."""
        if wanted is not None:
            self.answer_bytes = min(wanted, _ANSWER_BYTES_MAX)

    @property
    def instance(self) -> str:
        return self._instance

    @property
    def host(self) -> str:
        kind, _, where = self._context.peer().partition(":")
        return where.rpartition(":")[0].strip("[]") if kind in {"ipv4", "ipv6"} else ""

    @property
    def trace(self) -> str:
        for name, value in self._context.invocation_metadata() or ():
            if name == "traceparent":
                return str(value)
        return ""

    @property
    def answer_bytes_max(self) -> int:
        return self.answer_bytes

    @property
    def publish_timeout_ms(self) -> int:
        return self._door.config.publish_timeout_ms

    @property
    def is_gone(self) -> bool:
        remaining = self._context.time_remaining()
        return self.gone.is_set() or self._context.cancelled() or (remaining is not None and remaining <= 0)

    async def wait_gone(self) -> None:
        await self.gone.wait()

    def milliseconds_left(self, at_most: int) -> int:
        remaining = self._context.time_remaining()
        return at_most if remaining is None else max(min(int(remaining * 1000) - _MARGIN_MS, at_most), 0)
