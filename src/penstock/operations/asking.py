"""One way to ask: an operation is served by the node that keeps what it is about, this one or another.

A row of the table says `where`. If that is another node, the request goes there over the connections between nodes: as
JSON, a packed body as MessagePack behind it. What comes back is the operation's answer or error, so every door hears
the same wherever it was served. One structure carries what the other node has to know of the client (`Origin`), one
retry policy applies (`Leaders.at_leader`), and the time that the client gives goes along.

A node that is asked by another answers itself or refuses; it never asks a third one, so nothing goes round in circles
while nodes disagree. A refusal, which is the error of the call between nodes, means that nothing was done, and the node
that leads by then is asked. An error of the operation is part of the reply: it is the client's, unless a leader changed
on the way and the request can be repeated without harm. When the client goes away, the call is abandoned, and the
operation learns where it is served that its client is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from penstock.access.principal import ANONYMOUS, Principal
from penstock.api.operation import TABLE, Keeper, Operation, Packed, Repeat, Request
from penstock.api.table import OPERATIONS
from penstock.clock import Clock
from penstock.consensus.records import NO_LEADER
from penstock.errors import (
    AuthenticationFailed,
    InvalidRequest,
    NodeStarting,
    NotCoordinator,
    PeerUnavailable,
    PenstockError,
    RequestTimedOut,
)
from penstock.features.access.forwarding import Identity
from penstock.features.pipelines.board import BOARD
from penstock.machines.leaders import PATIENCE_SECONDS, REFUSED, shard_of
from penstock.model import OFFSETS_TOPIC, PIPELINES_TOPIC, TRANSACTIONS_TOPIC
from penstock.network.frames import Failure
from penstock.network.port import Method, Pieces, Reply
from penstock.operations.caller import Caller, Origin, Waiting
from penstock.operations.guard import guarded
from penstock.operations.metering import metered
from penstock.operations.services import Services
from penstock.operations.serving import SERVED, Serve

A = TypeVar("A")

_LONGEST_MS: Final = 75_000  # longer than any operation waits by itself
_EACH_MS: Final = 5_000
_GRACE_SECONDS: Final = 1.0  # for an operation to end by itself, once its client is gone
_TOPICS: Final = {
    Keeper.GROUP: OFFSETS_TOPIC,
    Keeper.TRANSACTION: TRANSACTIONS_TOPIC,
    Keeper.NEW_TRANSACTION: TRANSACTIONS_TOPIC,
    Keeper.SERIES: TRANSACTIONS_TOPIC,
    Keeper.PIPELINES: PIPELINES_TOPIC,
}
_ROWS: Final = {row.name: row for row in OPERATIONS}

_json: Final = msgspec.json.Encoder()
_msgpack: Final = msgspec.msgpack.Encoder()

# -- between nodes -----------------------------------------------------------------------------------------------------


class Ask(msgspec.Struct, frozen=True):
    """An operation of the table, for one client. Behind it comes the request: JSON, then the packed field if any."""

    operation: str
    json_bytes: int
    wait_ms: int  # how long the client waits for the answer
    origin: Origin
    identity: Identity | None = None  # who asks; None where security is off


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of an operation. Behind it comes the answer as JSON, or as it is if it is packed."""

    error: Failure | None = None
    is_packed: bool = False


ASK: Final = Method("operation.ask", Ask, Outcome, is_bulk=True, ends_with_caller=True)


def pack_request(row: Operation, request: Request[Any]) -> tuple[bytes, bytes]:
    """A request as it travels: JSON, and the field that is packed, if the row has one."""
    if not row.is_body_packed or row.body is None:
        return _json.encode(request), b""
    packed = _msgpack.encode(getattr(request, row.body))
    return _json.encode(msgspec.structs.replace(request, **{row.body: []})), packed


def unpack_request(row: Operation, text: memoryview, packed: memoryview) -> Any:
    """The request as it was asked; `InvalidRequest` if it is none that this node takes."""
    try:
        request = msgspec.json.decode(text, type=row.request)
        if not row.is_body_packed or row.body is None:
            return request
        kind = next(info.type for info in msgspec.structs.fields(row.request) if info.name == row.body)
        return msgspec.structs.replace(request, **{row.body: msgspec.msgpack.decode(packed, type=kind)})
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The request for {row.name} is not what it takes: {error}.") from error


def pack_answer(answer: Any) -> Reply:
    if type(answer) is Packed:
        return Reply(Outcome(is_packed=True), answer.pieces)
    return Reply(Outcome(), (_json.encode(answer),))


def unpack_answer(row: Operation, outcome: Outcome, body: memoryview) -> Any:
    """The answer; an error is returned as well."""
    if outcome.error is not None:
        return outcome.error.revived()
    if outcome.is_packed:
        return Packed((bytes(body),))
    return msgspec.json.decode(body, type=row.answer)


# -- asking ------------------------------------------------------------------------------------------------------------


def server_of(kind: type[Request[Any]]) -> Serve:
    """What serves an operation for a door, at whichever node that is."""
    serve, row = SERVED[kind], TABLE[kind]
    at_its_node = serve if row.where.keeper is Keeper.ANYONE else partial(_serve_where, row, serve)
    return metered(row, guarded(row, at_its_node))  # the node that hands a call on has counted it


def _serve_where(row: Operation, serve: Serve, services: Services, request: Any, caller: Caller) -> Awaitable[Any]:
    place = place_of(row, request)
    return (
        serve(services, request, caller) if place is None else _serve_at(place, row, serve, services, request, caller)
    )


async def _serve_at(
    place: Place, row: Operation, serve: Serve, services: Services, request: Any, caller: Caller
) -> Any:
    if row.where.makes:
        await services.topics.ensure_internal(place.topic)
    repeats = can_repeat(row, request)
    began, left_ms = services.clock.monotonic(), caller.milliseconds_left(_LONGEST_MS)

    async def attempt(node_id: int) -> Any:
        if node_id == services.node_id:
            if place.topic in services.metadata.topics:
                place.check(services)
            outcome = await _outcome(serve(services, request, caller))
        else:
            spent_ms = round(1000 * (services.clock.monotonic() - began))
            outcome = await _ask(services, node_id, row, request, caller, max(left_ms - spent_ms, 1))
        if repeats and isinstance(outcome, REFUSED):
            raise outcome
        return outcome

    try:
        outcome = await services.ports.leaders.at_leader(
            partial(place.find, services), attempt, repeats=repeats, patience_s=min(PATIENCE_SECONDS, left_ms / 1000)
        )
    except PeerUnavailable as error:
        if services.clock.monotonic() - began >= left_ms / 1000:
            raise RequestTimedOut(f"No answer came within {left_ms} ms: {error.message}") from error
        raise
    if isinstance(outcome, PenstockError):
        raise outcome
    return outcome


async def _outcome(serving: Awaitable[Any]) -> Any:
    """The answer; an error is returned as well, so that it is not taken for a refusal."""
    try:
        return await serving
    except PenstockError as error:
        return error


def can_repeat(row: Operation, request: Request[Any]) -> bool:
    """Whether a request does no harm if it is done twice: because of what it does, or of a key that it carries."""
    if row.key is not None:
        return getattr(request, row.key) is not None
    return row.repeat is not Repeat.AGAIN


async def ask_each(services: Services, node_ids: Iterable[int], request: Request[A], caller: Caller) -> list[A]:
    """What each of these nodes answers for itself; `PeerUnavailable` if one does not."""
    row = TABLE[type(request)]
    wait_ms = caller.milliseconds_left(_EACH_MS)
    outcomes = await asyncio.gather(*(_ask(services, node_id, row, request, caller, wait_ms) for node_id in node_ids))
    for outcome in outcomes:
        if isinstance(outcome, PenstockError):
            raise outcome
    return outcomes


async def _ask(
    services: Services, node_id: int, row: Operation, request: Request[Any], caller: Caller, wait_ms: int
) -> Any:
    """What another node answers, or the error that it has; a refusal is raised."""
    text, packed = pack_request(row, request)
    body: Pieces = (text, packed) if packed else (text,)
    identity = None
    if services.authorizer.is_on:
        identity = services.voucher.sign(caller.principal, caller.host, row.name, text, services.clock.now_ms())
    asked = Ask(row.name, len(text), wait_ms, caller.origin, identity)
    calling = services.ports.peers.call(node_id, ASK, asked, body, timeout_s=wait_ms / 1000)
    async with Waiting(caller, calling) as waiting:
        outcome, answer = await waiting.result()
    return unpack_answer(row, outcome, answer)


# -- where -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """The partition that keeps what an operation is about.

    That of a ``name`` in an internal topic, or a ``partition`` by its number; any of the topic's without either.
    """

    topic: str
    name: str | None = None
    partition: int | None = None

    def find(self, services: Services) -> int:
        """The node that answers, which is the partition's leader."""
        if self.partition is not None:
            return services.ports.leaders.find_leader(self.topic, self.partition)
        topic = services.metadata.topics.get(self.topic)
        if topic is None:
            return services.node_id  # nothing is kept yet, and any node can say so
        if self.name is not None:
            leaders = [topic.partitions[shard_of(self.name, len(topic.partitions))].leader]
        else:
            leaders = sorted((at.leader for at in topic.partitions), key=lambda leader: leader != services.node_id)
        for leader in leaders:
            if leader != NO_LEADER:
                return leader
        raise NotCoordinator(f"No node coordinates {self.name or self.topic!r} now: its partition has no leader.")

    def check(self, services: Services) -> None:
        """Refuse if this node cannot answer: it does not lead the partition, or has not read its log yet."""
        if self.name is not None:
            for coordinator in services.broker.coordinators[self.topic]:
                coordinator.shard(self.name)


def place_of(row: Operation, request: Any) -> Place | None:
    """The partition whose leader answers a request; None if any node does."""
    where = row.where
    if where.keeper is Keeper.ANYONE:
        return None
    if where.keeper is Keeper.LEADER:
        return Place(request.topic, partition=request.partition)
    if where.name is None:
        return Place(_TOPICS[where.keeper], BOARD if where.keeper is Keeper.PIPELINES else None)
    name = getattr(request, where.name)
    return None if name is None else Place(_TOPICS[where.keeper], name)


def coordinators(services: Services, topic_name: str) -> list[int]:
    """Every other node that coordinates something of a topic; `NotCoordinator` while some partition has no leader."""
    topic = services.metadata.topics.get(topic_name)
    leaders = [] if topic is None else [at.leader for at in topic.partitions]
    if NO_LEADER in leaders:
        raise NotCoordinator(f"Some partitions of {topic_name} have no leader now. Try again in a moment.")
    return sorted(set(leaders) - {services.node_id})


# -- being asked -------------------------------------------------------------------------------------------------------


class RemoteCaller(Caller):
    """A client at another node."""

    __slots__ = ("_clock", "_deadline", "gone", "principal", *Origin.__struct_fields__)

    instance: str
    host: str
    trace: str
    wants_packed: bool
    answer_bytes_max: int
    publish_timeout_ms: int
    principal: Principal

    def __init__(self, asked: Ask, clock: Clock, stopping: asyncio.Event, principal: Principal) -> None:
        super().__init__(stopping)
        self.principal = principal
        for name in Origin.__struct_fields__:
            setattr(self, name, getattr(asked.origin, name))
        self._clock = clock
        self._deadline = clock.monotonic() + asked.wait_ms / 1000
        self.gone = asyncio.Event()

    @property
    def is_forwarded(self) -> bool:
        return True

    @property
    def is_gone(self) -> bool:
        return self.gone.is_set()

    def milliseconds_left(self, at_most: int) -> int:
        return max(min(at_most, round(1000 * (self._deadline - self._clock.monotonic()))), 0)

    async def wait_gone(self) -> None:
        await self.gone.wait()


class OperationService:
    """Serves operations to other nodes, for their clients."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._stopping = asyncio.Event()
        services.ports.peers.serve(ASK, self._serve)

    def stop(self) -> None:
        """End what waits, as doors do when they close."""
        self._stopping.set()

    def _identify(self, asked: Ask, text: bytes) -> Principal:
        """Who asks, as the other node vouches for it; never what a message merely says."""
        services = self._services
        if not services.authorizer.is_on or asked.identity is None:
            return ANONYMOUS
        if asked.identity.host != asked.origin.host:
            raise AuthenticationFailed("A forwarded call names another address than its identity.")
        return services.voucher.verify(asked.identity, asked.operation, text, services.clock.now_ms())

    async def _serve(self, node_id: int, asked: Ask, body: memoryview) -> Reply:
        services = self._services
        row = _ROWS.get(asked.operation)
        if row is None:
            raise InvalidRequest(
                f"Node {services.node_id} does not know the operation {asked.operation} that node {node_id} asks for: "
                "run the same release of Penstock on all nodes."
            )
        request = unpack_request(row, body[: asked.json_bytes], body[asked.json_bytes :])
        if not services.broker.is_started:
            raise NodeStarting(f"Node {services.node_id} is starting. Try again in a moment.")
        principal = self._identify(asked, bytes(body[: asked.json_bytes]))
        place = place_of(row, request)
        if place is not None:
            place.check(services)
        caller = RemoteCaller(asked, services.clock, self._stopping, principal)
        serving = asyncio.ensure_future(_outcome(guarded(row, SERVED[row.request])(services, request, caller)))
        try:
            outcome = await asyncio.shield(serving)
        except asyncio.CancelledError:
            caller.gone.set()
            await asyncio.wait((serving,), timeout=_GRACE_SECONDS)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            raise
        if isinstance(outcome, PenstockError):
            return Reply(Outcome(Failure.of(outcome)))
        return pack_answer(outcome)
