"""Reading topics as streams: as a member of a consumer group, or one partition without a group.

A member gets the messages of its share of the partitions, in order within each. Heartbeats run beside the reader, so a
slow handler does not lose its place. A member that the group has forgotten joins again by itself. Partitions may move
to other members at any time; those read again what was not committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TypedDict

import msgspec

from penstock.api.groups import CommitGroup, CommitItem, HeartbeatGroup, JoinGroup, LeaveGroup, PollGroup
from penstock.api.limits import MEMBER_WAIT_MS_MAX
from penstock.api.messages import Read
from penstock.client.calls import unpacked
from penstock.client.messages import DecodedRecord, Message, batches_of, record_of
from penstock.client.transport import Transport
from penstock.errors import ClientClosed, FencedInstance, PenstockError, UnknownMember
from penstock.model import TopicPartition, check_topic_name

log = logging.getLogger(__name__)

Start = int | Literal["earliest", "latest"] | datetime

_PAGE_MESSAGES: Final = 1_000
_FOLLOW_WAIT_MS: Final = 20_000
_POLL_WAIT_MS: Final = 10_000
_HEARTBEATS: Final = 4  # per session timeout


class _PolledBatches(msgspec.Struct, frozen=True):
    """``batches`` are topic, partition, first offset, end offset and the batches themselves."""

    generation: int
    state: str
    poll: int
    partitions: list[tuple[str, int]]
    batches: list[tuple[str, int, int, int, bytes]]


class _MemberFields(TypedDict):
    group: str
    member_id: str


class MembershipOptions(NamedTuple):
    """How a member reads; see `AsyncClient.consume`."""

    topics: Sequence[str]
    group: str
    start: Literal["earliest", "latest"]
    is_committing: bool
    session_timeout_s: float
    max_messages: int
    instance_id: str | None
    client_id: str


class AsyncConsumer:
    """Reads topics as one member of a group; made by `AsyncClient.consume`.

    Iterate over it, or ask for a `batch` at a time. With ``auto_commit`` a message counts as done when the next one is
    asked for; without it, when `commit` says so.
    """

    def __init__(
        self, transport: Transport, options: MembershipOptions, on_closed: Callable[[AsyncConsumer], object]
    ) -> None:
        self._transport = transport
        self._options = options
        self._on_closed = on_closed
        self._member_id: str | None = None
        self._is_member = False
        self._last_poll = 0
        self._page: list[Message] = []
        self._at = 0
        self._done: dict[TopicPartition, int] = {}  # the next offset after what was handed out
        self._committed: dict[TopicPartition, int] = {}
        self._assigned: tuple[TopicPartition, ...] = ()
        self._heartbeats: asyncio.Task[None] | None = None
        self._is_closed = False

    # -- reading ------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncConsumer:
        return self

    async def __anext__(self) -> Message:
        message = self._take()
        if message is None:
            await self._next_page()
            message = self._take()
            assert message is not None, "a page has messages"
        return message

    def _take(self) -> Message | None:
        """The next message, if it is here already."""
        if self._at >= len(self._page) or self._is_closed:
            return None
        message = self._page[self._at]
        self._at += 1
        return message

    async def batch(self) -> list[Message]:
        """The next messages, as many as come together; at least one. They count as done when more are asked for."""
        if self._at >= len(self._page):
            await self._next_page()
        rest = self._page[self._at :]
        self._at = len(self._page)
        return rest

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions that this member reads now."""
        return self._assigned

    async def commit(self) -> None:
        """Commit everything handed out so far, including the last message.

        Raises an error if partitions have moved to another member since; that member reads their messages again.
        """
        self._mark_done()
        await self._commit()

    async def _next_page(self) -> None:
        """Finish one page and wait for the next."""
        if self._is_closed:
            raise StopAsyncIteration
        self._mark_done()
        if self._options.is_committing:
            await self._commit_if_possible()
        self._page, self._at = [], 0
        while not self._page:
            if self._is_closed:
                raise StopAsyncIteration
            if not self._is_member:
                await self._join()
            try:
                self._page = await self._poll()
            except UnknownMember:
                log.info("Group %s has forgotten this member; joining again.", self._options.group)
                self._is_member = False

    def _mark_done(self, count: int | None = None) -> None:
        """Mark the messages that were handed out as done, or the first ``count`` of the page."""
        for message in self._page[: self._at if count is None else count]:
            partition = TopicPartition(message.topic, message.partition)
            self._done[partition] = max(message.offset + 1, self._done.get(partition, 0))

    async def _commit_if_possible(self) -> None:
        try:
            await self._commit()
        except FencedInstance:
            raise
        except PenstockError as error:
            # Other members read moved partitions again; the rest is committed with the next page.
            log.warning("Offsets of group %s could not be committed: %s", self._options.group, error.message)
            self._done = {partition: offset for partition, offset in self._done.items() if partition in self._assigned}

    async def _commit(self) -> None:
        fresh = {
            partition: offset for partition, offset in self._done.items() if self._committed.get(partition) != offset
        }
        if not fresh:
            return
        offsets = [
            CommitItem(topic=partition.topic, partition=partition.partition, offset=offset)
            for partition, offset in fresh.items()
        ]
        await self._transport.call(CommitGroup(**self._member(), offsets=offsets))
        self._committed |= fresh

    async def _poll(self) -> list[Message]:
        request = PollGroup(
            **self._member(),
            max_messages=self._options.max_messages,
            wait_ms=_POLL_WAIT_MS,
            last_poll=self._last_poll,
        )
        polled: _PolledBatches = unpacked((await self._transport.call_packed(request)).body, _PolledBatches)
        self._last_poll = polled.poll
        self._assign(tuple(TopicPartition(*partition) for partition in polled.partitions))
        return [message for batch in polled.batches for message in _messages(*batch)]

    def _assign(self, partitions: tuple[TopicPartition, ...]) -> None:
        if partitions == self._assigned:
            return
        self._assigned = partitions
        # A member that had a partition in between may have moved its offset.
        self._done = {partition: offset for partition, offset in self._done.items() if partition in partitions}
        self._committed = {
            partition: offset for partition, offset in self._committed.items() if partition in partitions
        }

    # -- being a member -----------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        options = self._options
        request = JoinGroup(
            group=options.group,
            topics=list(options.topics),
            member_id=self._member_id,
            instance_id=options.instance_id,
            client_id=options.client_id,
            session_timeout_ms=round(options.session_timeout_s * 1000),
            auto_offset_reset=options.start,
            wait_ms=MEMBER_WAIT_MS_MAX,
        )
        try:
            # A member that joined by a call whose answer was lost ends with its session.
            joined = await self._transport.call(request, can_repeat=True)
        except UnknownMember:
            self._member_id = None
            return
        self._member_id, self._is_member, self._last_poll = joined.member_id, True, 0
        self._assigned, self._done, self._committed = (), {}, {}
        if self._heartbeats is None:
            self._heartbeats = asyncio.get_running_loop().create_task(self._send_heartbeats())

    async def _send_heartbeats(self) -> None:
        """Keep the session alive between polls."""
        while True:
            await asyncio.sleep(self._options.session_timeout_s / _HEARTBEATS)
            if not self._is_member:
                continue
            try:
                await self._transport.call(HeartbeatGroup(**self._member()))
            except UnknownMember:
                self._is_member = False
            except PenstockError as error:
                log.debug("A heartbeat of group %s failed: %s", self._options.group, error.message)

    def _member(self) -> _MemberFields:
        assert self._member_id is not None, "it has joined"
        return {"group": self._options.group, "member_id": self._member_id}

    async def close(self) -> None:
        """Commit what is done if ``auto_commit`` is on, and leave the group."""
        if self._is_closed:
            return
        self._is_closed = True
        self._on_closed(self)
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
        if not self._is_member:
            return
        if self._options.is_committing:
            self._mark_done(max(self._at - 1, 0))  # the last message may still be in work
            await self._commit_if_possible()
        with contextlib.suppress(PenstockError, ClientClosed):
            await self._transport.call(LeaveGroup(**self._member()))
        self._is_member = False

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _messages(topic: str, partition: int, first: int, end: int, data: bytes) -> list[Message]:
    """The messages from ``first`` up to ``end`` in these batches; with gaps, the records have to be read."""
    messages: list[Message] = []
    for header, batch in batches_of(data):
        if header.count == header.last_offset_delta + 1:
            offsets: Sequence[int] = range(max(first, header.base_offset), min(end, header.next_offset))
        else:
            offsets = [record.offset for record in batch.records() if first <= record.offset < end]
        messages += [Message(topic, partition, offset, batch) for offset in offsets]
    return messages


async def read_pages(
    transport: Transport, topic: str, partition: int, start: Start, *, follow: bool
) -> AsyncIterator[list[Message]]:
    """The messages of a partition from ``start`` on, page by page; with ``follow``, for ever."""
    request = Read(
        topic=check_topic_name(topic),
        partition=partition,
        limit=_PAGE_MESSAGES,
        timeout_ms=_FOLLOW_WAIT_MS if follow else 0,
        **({"since": start.astimezone(UTC)} if isinstance(start, datetime) else {"offset": start}),
    )
    end: int | None = None
    while True:
        page = await transport.call(request)
        if end is None:
            end = page.high_watermark
        messages = [Message(topic, partition, each.offset, DecodedRecord(record_of(each))) for each in page.messages]
        if not follow:
            messages = [message for message in messages if message.offset < end]
        if messages:
            yield messages
        request = msgspec.structs.replace(request, offset=page.next_offset, since=None)
        if not follow and (page.next_offset >= end or not page.messages):
            return
