"""Members of classic consumer groups, many in one process: what a consumer tells its coordinator, without the reading.

A member speaks the protocol itself, in the versions that today's clients speak, over a connection of its own. It joins,
takes its share (or shares out, if it leads), sends heartbeats, and joins again as soon as an answer tells it to, which
is what a consumer does. A thousand real consumers would measure themselves; a thousand of these cost a tenth of a core.
Messages go through Penstock's own codec, which is tested against other codecs; every broker hears the same bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from bench.client import LoadError
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.headers import decode_response, encode_request
from penstock.doors.kafka.protocol.messages import groups as wire
from penstock.doors.kafka.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.doors.kafka.protocol.schema import ApiMessage

VERSIONS: Final[dict[type[ApiMessage], int]] = {
    FindCoordinatorRequest: 4,
    wire.JoinGroupRequest: 9,
    wire.SyncGroupRequest: 5,
    wire.HeartbeatRequest: 4,
    wire.LeaveGroupRequest: 5,
}
PROTOCOL_TYPE: Final = "consumer"
PROTOCOL: Final = "range"
REBALANCE_TIMEOUT_MS: Final = 60_000
RETRY_S: Final = 0.05

_PASSING: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
_EVICTED: Final = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}
_JOIN_AGAIN: Final = {ErrorCode.REBALANCE_IN_PROGRESS, *_EVICTED}

M = TypeVar("M", bound=ApiMessage)


class Link:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._correlation = 0

    @classmethod
    async def open(cls, port: int) -> Link:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, request: ApiMessage, answer: type[M]) -> M:
        self._correlation += 1
        version = VERSIONS[type(request)]
        self._writer.write(encode_request(request, version, self._correlation, "bench"))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        correlation, message = decode_response(answer, version, await self._reader.readexactly(size))
        if correlation != self._correlation:
            raise LoadError(f"an answer to request {correlation} came for request {self._correlation}")
        return message

    def close(self) -> None:
        self._writer.close()


async def await_coordinator(port: int, group: str, limit_s: float) -> None:
    """Return once the node coordinates groups; the first who asks makes it create the topic for that."""
    link = await Link.open(port)
    deadline = time.monotonic() + limit_s
    try:
        while True:
            found = await link.ask(FindCoordinatorRequest(coordinator_keys=(group,)), FindCoordinatorResponse)
            code = found.coordinators[0].error_code
            if code == ErrorCode.NONE:
                return
            if code not in _PASSING or time.monotonic() > deadline:
                raise LoadError(f"no coordinator for {group}: error {code}")
            await asyncio.sleep(RETRY_S)
    finally:
        link.close()


# -- what clients of the consumer protocol tell each other; brokers pass it on -----------------------------------------


def encode_subscription(topic: str) -> bytes:
    """Version 0: one topic, no user data."""
    name = topic.encode()
    return struct.pack(f">hih{len(name)}si", 0, 1, len(name), name, -1)


def encode_share(topic: str, partitions: Sequence[int]) -> bytes:
    """Version 0: some partitions of one topic, no user data."""
    name = topic.encode()
    head = struct.pack(f">hih{len(name)}si", 0, 1, len(name), name, len(partitions))
    return head + struct.pack(f">{len(partitions)}ii", *partitions, -1)


def decode_share(data: bytes) -> tuple[int, ...]:
    """The partitions of a share of one topic."""
    _, topics, length = struct.unpack_from(">hih", data)
    if topics != 1:
        raise LoadError(f"a share names {topics} topics")
    (count,) = struct.unpack_from(">i", data, 8 + length)
    return struct.unpack_from(f">{count}i", data, 12 + length)


def share_out(partitions: int, members: Sequence[str]) -> dict[str, range]:
    """Partitions in turn, so that each member has as many as the others or one more."""
    ordered = sorted(members)
    return {member: range(place, partitions, len(ordered)) for place, member in enumerate(ordered)}


# -- members -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Manner:
    """How members behave; the same towards every broker."""

    topic: str
    partitions: int
    heartbeat_s: float
    session_ms: int


@dataclass
class Member:
    """One member. ``phase`` is where in the heartbeat interval its heartbeats are, so that not all come at once."""

    port: int
    group: str
    manner: Manner
    phase: float
    on_assigned: Callable[[], None]
    generation: int = -1
    share: tuple[int, ...] = ()
    assigned_at: float = 0.0
    evictions: int = 0
    heartbeats_ms: list[float] = field(default_factory=list)
    id: str = ""
    _task: asyncio.Task[None] | None = None

    async def start(self) -> float:
        """Connect and begin to join; the time of the first request."""
        link = await Link.open(self.port)
        self._task = asyncio.create_task(self._run(link))
        return time.monotonic()

    async def stop(self) -> None:
        """Fall silent, without a word to the coordinator. An error that ended this member before is raised here."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def check(self) -> None:
        """Raise what ended this member, if anything did."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def _run(self, link: Link) -> None:
        try:
            while True:
                if await self._join(link):
                    await self._beat(link)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise LoadError(f"a member of {self.group} lost its connection: {error}") from error
        finally:
            link.close()
            self.on_assigned()  # whoever waits looks again, and finds this member ended

    async def _join(self, link: Link) -> bool:
        """Join and take a share; whether there is one now."""
        joined = await link.ask(self._join_request(), wire.JoinGroupResponse)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = joined.member_id
            return False
        if not await self._is_accepted(joined.error_code, "join"):
            return False
        self.id = joined.member_id
        shares: dict[str, range] = {}
        if joined.leader == self.id and not joined.skip_assignment:
            shares = share_out(self.manner.partitions, [member.member_id for member in joined.members])
        given = tuple(
            wire.SyncGroupRequestAssignment(member_id=member, assignment=encode_share(self.manner.topic, share))
            for member, share in shares.items()
        )
        sync = wire.SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=self.id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=given,
        )
        synced = await link.ask(sync, wire.SyncGroupResponse)
        if not await self._is_accepted(synced.error_code, "sync"):
            return False
        self.share = decode_share(synced.assignment)
        self.generation = joined.generation_id
        self.assigned_at = time.monotonic()
        self.on_assigned()
        return True

    def _join_request(self) -> wire.JoinGroupRequest:
        metadata = encode_subscription(self.manner.topic)
        return wire.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.manner.session_ms,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.id,
            protocol_type=PROTOCOL_TYPE,
            protocols=(wire.JoinGroupRequestProtocol(name=PROTOCOL, metadata=metadata),),
        )

    async def _beat(self, link: Link) -> None:
        """Send heartbeats until one is answered with more than a nod."""
        beat = wire.HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.id)
        interval = self.manner.heartbeat_s
        while True:
            now = time.monotonic()
            await asyncio.sleep(interval - (now - self.phase * interval) % interval)
            sent_at = time.monotonic()
            code = (await link.ask(beat, wire.HeartbeatResponse)).error_code
            self.heartbeats_ms.append((time.monotonic() - sent_at) * 1000)
            if not await self._is_accepted(code, "heartbeat"):
                return

    async def _is_accepted(self, code: int, what: str) -> bool:
        """Whether a request succeeded; False where joining again is the way on."""
        if code == ErrorCode.NONE:
            return True
        if code in _PASSING:
            await asyncio.sleep(RETRY_S)
        elif code in _EVICTED:
            self.evictions += 1
            self.id = ""
        elif code not in _JOIN_AGAIN:
            raise LoadError(f"{what} in {self.group} failed with error {code}")
        return False
