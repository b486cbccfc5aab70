"""A member of a consumer group: messages of its share of the partitions, in order within each.

Heartbeats run beside the reader, so a slow handler does not lose its place. A member that the group has forgotten joins
again by itself. Partitions may move to other members at any time; what was not committed is read again by them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from penstock.client.messages import Message, batches_of
from penstock.client.transport import MSGPACK, Transport, unpacked
from penstock.errors import ClientClosed, FencedInstance, PenstockError, UnknownMember
from penstock.model import TopicPartition

log = logging.getLogger(__name__)

_JOIN_WAIT_SECONDS: Final = 30.0
_POLL_WAIT_SECONDS: Final = 10.0
_HEARTBEATS: Final = 4  # in the time of a session


class Membership(NamedTuple):
    """What a member wants of its group."""

    topics: Sequence[str]
    group: str
    start: Literal["earliest", "latest"]
    is_committing: bool
    session_timeout_s: float
    max_messages: int
    instance_id: str | None
    client_id: str


class _Joined(msgspec.Struct, frozen=True):
    member_id: str
    generation: int


class _Polled(msgspec.Struct, frozen=True):
    generation: int
    state: str
    poll: int
    partitions: list[tuple[str, int]]
    batches: list[tuple[str, int, int, int, bytes]]


class AsyncConsumer:
    """Reads topics as one member of a group; made by `AsyncClient.consume`.

    Iterate over it, or ask for a `batch` at a time. With ``auto_commit`` a message counts as done when the next one is
    asked for; without it, when `commit` says so.
    """

    def __init__(
        self, transport: Transport, membership: Membership, on_closed: Callable[[AsyncConsumer], object]
    ) -> None:
        self._transport = transport
        self._wish = membership
        self._on_closed = on_closed
        self._path = ("v1", "groups", membership.group)
        self._member_id: str | None = None
        self._is_in = False
        self._last_poll = 0
        self._page: list[Message] = []
        self._at = 0
        self._done: dict[TopicPartition, int] = {}  # where to read on, of what was handed out
        self._committed: dict[TopicPartition, int] = {}
        self._assigned: tuple[TopicPartition, ...] = ()
        self._beating: asyncio.Task[None] | None = None
        self._is_closed = False

    # -- reading ------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncConsumer:
        return self

    async def __anext__(self) -> Message:
        message = self.take()
        if message is None:
            await self._turn()
            message = self.take()
            assert message is not None, "a page has messages"
        return message

    def take(self) -> Message | None:
        """The next message, if it is there already."""
        if self._at >= len(self._page) or self._is_closed:
            return None
        message = self._page[self._at]
        self._at += 1
        return message

    async def batch(self) -> list[Message]:
        """The next messages, as many as come together; at least one. They count as done when more are asked for."""
        if self._at >= len(self._page):
            await self._turn()
        rest = self._page[self._at :]
        self._at = len(self._page)
        return rest

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions that this member reads now."""
        return self._assigned

    async def commit(self) -> None:
        """Say that everything handed out so far is done, the message last got included.

        Raises an error if partitions have moved to another member since: who reads there now gets them again.
        """
        self._note()
        await self._commit()

    async def _turn(self) -> None:
        """Be done with one page, and wait for the next."""
        if self._is_closed:
            raise StopAsyncIteration
        self._note()
        if self._wish.is_committing:
            await self._commit_if_possible()
        self._page, self._at = [], 0
        while not self._page:
            if self._is_closed:
                raise StopAsyncIteration
            if not self._is_in:
                await self._join()
            try:
                self._page = await self._poll()
            except UnknownMember:
                log.info("Group %s has forgotten this member; it joins again.", self._wish.group)
                self._is_in = False

    def _note(self, count: int | None = None) -> None:
        """The first messages of the page are done; those handed out, unless ``count`` says how many."""
        for message in self._page[: self._at if count is None else count]:
            place = TopicPartition(message.topic, message.partition)
            self._done[place] = max(message.offset + 1, self._done.get(place, 0))

    async def _commit_if_possible(self) -> None:
        try:
            await self._commit()
        except FencedInstance:
            raise
        except PenstockError as error:
            # Partitions that moved are read again by others; everything else is committed with the next page.
            log.warning("Offsets of group %s could not be committed: %s", self._wish.group, error.message)
            self._done = {place: offset for place, offset in self._done.items() if place in self._assigned}

    async def _commit(self) -> None:
        fresh = {place: offset for place, offset in self._done.items() if self._committed.get(place) != offset}
        if not fresh:
            return
        offsets = [
            {"topic": place.topic, "partition": place.partition, "offset": offset} for place, offset in fresh.items()
        ]
        await self._call(Any, "commit", {"offsets": offsets})
        self._committed |= fresh

    async def _poll(self) -> list[Message]:
        body = {
            "member_id": self._member_id,
            "max_messages": self._wish.max_messages,
            "wait_ms": round(_POLL_WAIT_SECONDS * 1000),
            "last_poll": self._last_poll,
        }
        payload = msgspec.json.encode(body)
        answer = await self._transport.call(
            "POST", (*self._path, "poll"), body=payload, accept=MSGPACK, wait_s=_POLL_WAIT_SECONDS
        )
        polled: _Polled = unpacked(answer.body, _Polled)
        self._last_poll = polled.poll
        self._assign(tuple(TopicPartition(*place) for place in polled.partitions))
        return [message for form in polled.batches for message in _messages(*form)]

    def _assign(self, places: tuple[TopicPartition, ...]) -> None:
        if places == self._assigned:
            return
        self._assigned = places
        # Who held a partition in between may have moved its offset.
        self._done = {place: offset for place, offset in self._done.items() if place in places}
        self._committed = {place: offset for place, offset in self._committed.items() if place in places}

    # -- being a member -----------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        wish = self._wish
        body: dict[str, Any] = {
            "topics": list(wish.topics),
            "client_id": wish.client_id,
            "session_timeout_ms": round(wish.session_timeout_s * 1000),
            "auto_offset_reset": wish.start,
            "wait_ms": round(_JOIN_WAIT_SECONDS * 1000),
        }
        if wish.instance_id is not None:
            body["instance_id"] = wish.instance_id
        if self._member_id is not None:
            body["member_id"] = self._member_id
        try:
            joined = await self._transport.post(_Joined, *self._path, "join", body=body, wait_s=_JOIN_WAIT_SECONDS)
        except UnknownMember:
            self._member_id = None
            return
        self._member_id, self._is_in, self._last_poll = joined.member_id, True, 0
        self._assigned, self._done, self._committed = (), {}, {}
        if self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        """Keep the session going while nobody polls."""
        while True:
            await asyncio.sleep(self._wish.session_timeout_s / _HEARTBEATS)
            if not self._is_in:
                continue
            try:
                await self._call(Any, "heartbeat", {})
            except UnknownMember:
                self._is_in = False
            except PenstockError as error:
                log.debug("A heartbeat of group %s failed: %s", self._wish.group, error.message)

    async def _call(self, kind: Any, verb: str, body: dict[str, Any]) -> Any:
        return await self._transport.post(kind, *self._path, verb, body={"member_id": self._member_id, **body})

    async def close(self) -> None:
        """Commit what is done, if that is automatic, and leave the group."""
        if self._is_closed:
            return
        self._is_closed = True
        self._on_closed(self)
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        if not self._is_in:
            return
        if self._wish.is_committing:
            self._note(max(self._at - 1, 0))  # the last one got may not be done
            await self._commit_if_possible()
        with contextlib.suppress(PenstockError, ClientClosed):
            await self._call(Any, "leave", {})
        self._is_in = False

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _messages(topic: str, partition: int, first: int, end: int, data: bytes) -> list[Message]:
    """The messages from ``first`` up to ``end`` in these batches; which offsets there are, only the records tell."""
    messages: list[Message] = []
    for header, batch in batches_of(data):
        if header.count == header.last_offset_delta + 1:
            offsets: Sequence[int] = range(max(first, header.base_offset), min(end, header.next_offset))
        else:
            offsets = [record.offset for record in batch.records() if first <= record.offset < end]
        messages += [Message(topic, partition, offset, batch) for offset in offsets]
    return messages
