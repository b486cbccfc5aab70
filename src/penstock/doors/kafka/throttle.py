"""Holds one connection's client to its quotas, as Kafka does (KIP-219).

What a request uses is measured when it comes, what a fetch returns when it leaves. A client that has used too much is
told so in its response, and nothing more of it is read until the pause is over; its answers are never held back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.clock import Clock
from penstock.doors.kafka.protocol import apis
from penstock.doors.kafka.protocol.messages import topics as wire
from penstock.doors.kafka.protocol.schema import ApiMessage
from penstock.features.quotas.meter import Meter
from penstock.features.quotas.quotas import (
    CONSUME,
    MUTATIONS,
    PRODUCE,
    REQUESTS,
    TIME,
    UNMEASURED,
    ClientMeters,
    Quotas,
)

ANONYMOUS: Final = "ANONYMOUS"
DOOR: Final = "kafka"


class Throttle:
    """One connection's meters; looked up again when quotas change or the client gives another id."""

    __slots__ = ("_client", "_clock", "_meters", "_pause", "_quotas", "_version")

    def __init__(self, pause: Callable[[float], None], quotas: Quotas, clock: Clock) -> None:
        self._pause = pause
        self._quotas = quotas
        self._clock = clock
        self._client: tuple[str, str] | None = None
        self._version = -1
        self._meters: ClientMeters = UNMEASURED

    def identify(self, user: str, client_id: str) -> None:
        """Go by the quotas of this client."""
        if self._version != self._quotas.version or self._client != (user, client_id):
            # The version of before: if meters are dropped meanwhile, the next request looks them up once more.
            self._client, self._version = (user, client_id), self._quotas.version
            self._meters = self._quotas.meters_of(user, client_id)

    def on_request(self, api_key: int, size: int) -> None:
        """A request has come."""
        self._use(self._meters.requests, 1, REQUESTS)
        if api_key == apis.PRODUCE.key:
            self._use(self._meters.produce, size, PRODUCE)

    def on_change(self, request: ApiMessage) -> None:
        """A request was understood; those that create or delete topics cost more than others."""
        if self._meters.mutations is not None:
            self._use(self._meters.mutations, _partitions_in(request), MUTATIONS)

    def on_fetched(self, size: int) -> None:
        """A response with so many bytes of messages is about to leave."""
        self._use(self._meters.consume, size, CONSUME)

    def on_worked(self, seconds: float) -> None:
        """A request took so much of the node's time."""
        self._use(self._meters.time, seconds, TIME)

    def _use(self, meter: Meter | None, amount: float, kind: str) -> None:
        if meter is not None:
            pause = meter.use(amount, self._clock.monotonic())
            if pause > 0:
                self._quotas.note_throttled(DOOR, kind, pause)
                self._pause(pause)


def _partitions_in(request: ApiMessage) -> int:
    """How many partitions a request creates or deletes, as far as it says."""
    match request:
        case wire.CreateTopicsRequest():
            return sum(max(1, topic.num_partitions, len(topic.assignments)) for topic in request.topics)
        case wire.DeleteTopicsRequest():
            return max(len(request.topics), len(request.topic_names))
        case wire.CreatePartitionsRequest():
            return len(request.topics)
    return 0


def with_throttle(response: ApiMessage, throttle_ms: int) -> ApiMessage:
    """The response with the client's pause in it, where it has a field for that."""
    if not throttle_ms or not hasattr(response, "throttle_time_ms"):
        return response
    changed: ApiMessage = msgspec.structs.replace(response, throttle_time_ms=throttle_ms)  # type: ignore[type-var]
    return changed
