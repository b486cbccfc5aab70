"""Health: whether the node serves, asked once or watched. Watching ends when the node does."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc.aio
from grpc import StatusCode
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

SERVICE: Final = "grpc.health.v1.Health"

Context = grpc.aio.ServicerContext[Any, Any]


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """One state for the node and all of its services: they serve together or not at all."""

    def __init__(self, services: tuple[str, ...]) -> None:
        self._services = frozenset(("", *services))
        self._is_serving = False
        self._is_over = False
        self._changed = asyncio.Event()

    def start(self) -> None:
        """Serve from now on."""
        self._tell(is_serving=True)

    def stop(self) -> None:
        """Serve no more; who watches is told, and sent away."""
        self._is_over = True
        self._tell(is_serving=False)

    def _tell(self, *, is_serving: bool) -> None:
        self._is_serving = is_serving
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _state(self, service: str) -> HealthCheckResponse:
        if service not in self._services:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        status = HealthCheckResponse.SERVING if self._is_serving else HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse(status=status)

    async def Check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:  # noqa: N802
        if request.service not in self._services:
            await context.abort(StatusCode.NOT_FOUND, f"There is no service {request.service!r}.")
        return self._state(request.service)

    async def Watch(self, request: HealthCheckRequest, context: Context) -> None:  # noqa: N802
        told: HealthCheckResponse | None = None
        while True:
            changed, state = self._changed, self._state(request.service)
            if state != told:
                await context.write(state)
                told = state
            if self._is_over:
                return
            await changed.wait()
