"""One call as its method sees it: how much time its client gives, and what it sent along."""

from __future__ import annotations

from typing import Any

import grpc.aio


class Call:
    """What a method may know of the client behind a call."""

    __slots__ = ("_context",)

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context

    @property
    def is_gone(self) -> bool:
        """Whether nobody waits for an answer any more: the client gave up, or its time is over."""
        remaining = self._context.time_remaining()
        return self._context.done() or self._context.cancelled() or (remaining is not None and remaining <= 0)

    def seconds_left(self, at_most: float) -> float:
        """How long the client waits, or ``at_most`` if it waits longer than that."""
        remaining = self._context.time_remaining()
        return at_most if remaining is None else max(min(remaining, at_most), 0.0)

    def milliseconds_left(self, at_most: int, margin_ms: int = 0) -> int:
        """The same for work that has to be done some time before the client gives up."""
        remaining = self._context.time_remaining()
        return at_most if remaining is None else max(min(int(remaining * 1000) - margin_ms, at_most), 0)

    def header(self, name: str) -> str | None:
        """What the client sent along under a name."""
        for key, value in self._context.invocation_metadata() or ():
            if key == name:
                return str(value)
        return None

    @property
    def client_host(self) -> str:
        """The client's address without its port, as far as it is known."""
        kind, _, where = self._context.peer().partition(":")
        return where.rpartition(":")[0].strip("[]") if kind in {"ipv4", "ipv6"} else ""
