"""Quotas before every operation of the table, at the node that the client asks: REST, WebSocket and gRPC alike.

A client is a principal with the id that it gives itself (``x-client-id``). Its meters are those of the Kafka door, so
one rate holds for all doors of a node together. What a publish brings is charged before it is done; what a read hands
out is charged when it is known. A call that comes while a meter is in debt is refused with `QuotaExceeded`, which says
when the debt is paid: nothing was done for it, and it costs nothing. So the first call is never refused, however large.

Calls that settle or keep what was handed out are counted and never refused: refusing an ack would have the message
delivered again. Health checks are not counted. While no quota is set, all this is one comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from msgspec import UNSET

from penstock.api.groups import CommitGroup, HeartbeatGroup, LeaveGroup
from penstock.api.operation import Action, Admits, Operation, Packed, Request, Resource
from penstock.api.queues import Ack, Extend, Nack, Reject, Release
from penstock.api.series import AbortNumber, CommitNumber
from penstock.api.topics import AddPartitions, CreateTopic, DeleteTopic
from penstock.api.transactions import AbortTransaction, AckInTransaction, CommitTransaction, ExtendTransaction
from penstock.consensus.quota_config import CONSUMER_RATE, MUTATION_RATE, PRODUCER_RATE, REQUEST_RATE
from penstock.errors import QuotaExceeded
from penstock.features.quotas.meter import Meter
from penstock.features.quotas.quotas import CONSUME, MUTATIONS, PRODUCE, REQUESTS, ClientMeters
from penstock.operations.caller import Caller
from penstock.operations.services import Services
from penstock.operations.serving import Serve

_NEVER_REFUSED: Final[frozenset[type[Request[Any]]]] = frozenset(
    {
        Ack,
        Nack,
        Reject,
        Release,
        Extend,
        CommitGroup,
        HeartbeatGroup,
        LeaveGroup,
        AckInTransaction,
        ExtendTransaction,
        CommitTransaction,
        AbortTransaction,
        CommitNumber,
        AbortNumber,
    }
)
_QUOTAS: Final = {
    PRODUCE: PRODUCER_RATE,
    CONSUME: CONSUMER_RATE,
    REQUESTS: REQUEST_RATE,
    MUTATIONS: MUTATION_RATE,
}
_LOOK_SECONDS: Final = 0.5  # a stream that waits looks as often whether it is over, or its quota another one


def metered(row: Operation, serve: Serve) -> Serve:
    """What serves an operation, held to its client's quotas."""
    if row.admits is Admits.EVERYONE:
        return serve
    return partial(_metered, _Metering(row), serve)


def _metered(metering: _Metering, serve: Serve, services: Services, request: Any, caller: Caller) -> Awaitable[Any]:
    if not services.quotas.is_on:
        return serve(services, request, caller)
    return metering.serve(serve, services, request, caller)


class _Metering:
    """What one operation is charged with."""

    def __init__(self, row: Operation) -> None:
        does = {need.action for need in row.needs if need.resource is Resource.TOPIC}
        self._publishes = Action.WRITE in does
        self._reads = Action.READ in does
        self._mutations = _MUTATIONS.get(row.request)
        self._is_refusable = row.request not in _NEVER_REFUSED

    async def serve(self, serve: Serve, services: Services, request: Any, caller: Caller) -> Any:
        meters = meters_of(services, caller)
        self._charge(services, request, caller, meters)
        answer = await serve(services, request, caller)
        if self._reads and meters.consume is not None:
            meters.consume.use(answer_bytes(answer), services.clock.monotonic())
        return answer

    def _charge(self, services: Services, request: Any, caller: Caller, meters: ClientMeters) -> None:
        """All meters are looked at before one is charged, so that a refused call costs nothing."""
        charges: list[tuple[str, Meter, float]] = []
        if meters.requests is not None:
            charges.append((REQUESTS, meters.requests, 1))
        if self._publishes and meters.produce is not None:
            charges.append((PRODUCE, meters.produce, request_bytes(request)))
        if self._mutations is not None and meters.mutations is not None:
            charges.append((MUTATIONS, meters.mutations, self._mutations(request)))
        if self._reads and meters.consume is not None:
            charges.append((CONSUME, meters.consume, 0))
        now = services.clock.monotonic()
        if self._is_refusable:
            for kind, meter, _ in charges:
                _refuse_in_debt(services, caller, kind, meter, now)
        for _, meter, amount in charges:
            meter.use(amount, now)


def meters_of(services: Services, caller: Caller) -> ClientMeters:
    """What a caller is measured by."""
    return services.quotas.meters_of(caller.principal.name, caller.client_id)


def _refuse_in_debt(services: Services, caller: Caller, kind: str, meter: Meter, now: float) -> None:
    debt_s = meter.debt_s(now)
    if debt_s <= 0:
        return
    services.quotas.note_throttled(caller.door, kind, debt_s)
    raise QuotaExceeded(
        f"{caller.principal} is over its quota {_QUOTAS[kind]}. Try again in {debt_s:.1f} s.",
        retry_after_ms=max(int(debt_s * 1000 + 1), 1),
    )


# -- streams, which wait instead of being refused ----------------------------------------------------------------------


async def wait_to_read(services: Services, caller: Caller) -> None:
    """Return once the caller may be handed more messages."""
    is_noted = False
    while services.quotas.is_on:
        meter = meters_of(services, caller).consume
        debt_s = 0.0 if meter is None else meter.debt_s(services.clock.monotonic())
        if debt_s <= 0:
            return
        if not is_noted:
            services.quotas.note_throttled(caller.door, CONSUME, debt_s)
            is_noted = True
        await asyncio.sleep(min(debt_s, _LOOK_SECONDS))


def charge_read(services: Services, caller: Caller, size: int) -> None:
    """A stream has handed out so many bytes."""
    if services.quotas.is_on:
        meter = meters_of(services, caller).consume
        if meter is not None:
            meter.use(size, services.clock.monotonic())


async def pause_for(error: QuotaExceeded) -> None:
    """Wait for part of what a refusal says, so that a stream that is over meanwhile ends soon."""
    await asyncio.sleep(min(error.retry_after_ms / 1000, _LOOK_SECONDS))


# -- sizes -------------------------------------------------------------------------------------------------------------


def _partitions_made(request: CreateTopic) -> int:
    return 0 if request.validate_only else request.partitions or 1


_MUTATIONS: Final[Mapping[type[Request[Any]], Callable[[Any], int]]] = {
    CreateTopic: _partitions_made,
    DeleteTopic: lambda _: 1,
    AddPartitions: lambda _: 1,
}


def request_bytes(request: Any) -> int:
    """The bytes of the messages that a request brings."""
    batches = getattr(request, "batches", None)
    if batches is not None:
        return sum(len(batch) for _, batch in batches)
    messages = getattr(request, "messages", None)
    if messages is None:
        message = getattr(request, "message", None) or getattr(request, "schedule", None)
        messages = () if message is None or isinstance(message, str) else (message,)
    return sum(map(_message_bytes, messages))


def answer_bytes(answer: Any) -> int:
    """The bytes of the messages that an answer hands out."""
    if type(answer) is Packed:
        return sum(map(len, answer.pieces))
    messages = getattr(answer, "messages", None) or getattr(answer, "dead_letters", None)
    return sum(map(_message_bytes, messages)) if isinstance(messages, list) else 0


def _message_bytes(message: Any) -> int:
    size = sum(len(part) for part in _parts_of(message))
    return max(size, 1)


def _parts_of(message: Any) -> Iterator[Any]:
    """Keys, values and headers; of text its characters, which is near enough to its bytes."""
    for name in ("key", "key_base64", "value", "value_base64"):
        part = getattr(message, name, None)
        if part is not None and part is not UNSET:
            yield bytes(part) if not isinstance(part, (str, bytes, bytearray)) else part
    for headers in (message.headers, message.headers_base64):
        if headers:
            for name, values in headers.items():
                yield name
                yield from (each for each in (values if isinstance(values, list) else (values,)) if each is not None)
    for name, value in message.headers_in_order or ():
        yield name
        yield value or b""
