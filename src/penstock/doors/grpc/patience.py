"""Patience with a cluster in which leaders change: streams outlast that, and end only when it takes too long."""

from __future__ import annotations

import asyncio
from typing import Final

from grpc import StatusCode

from penstock.clock import Clock
from penstock.doors.grpc.statuses import code_of
from penstock.errors import PenstockError, QuotaExceeded
from penstock.operations.metering import pause_for

_PATIENCE_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.1


class Patience:
    """Counts from the first of a row of failures on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lost_since: float | None = None

    def renew(self) -> None:
        """Something worked."""
        self._lost_since = None

    async def bear(self, error: PenstockError) -> None:
        """Wait a moment before another try; or raise the error, if another try cannot help or there were enough."""
        if isinstance(error, QuotaExceeded):  # a stream goes on when its client's quota allows it
            await pause_for(error)
            return
        now = self._clock.monotonic()
        if self._lost_since is None:
            self._lost_since = now
        if code_of(error) is not StatusCode.UNAVAILABLE or now - self._lost_since >= _PATIENCE_SECONDS:
            raise error
        await asyncio.sleep(_PAUSE_SECONDS)
