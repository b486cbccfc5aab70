"""Reading as a stream: the committed messages of one partition, page by page, and on with those that come."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import msgspec
from google.protobuf.message import Message
from msgspec.structs import asdict

from penstock.api.messages import DeliveredMessage, MessagesPage, Read
from penstock.doors.grpc.caller import GrpcCaller
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.patience import Patience
from penstock.doors.grpc.statuses import NodeStopping
from penstock.errors import PenstockError
from penstock.grpc.converters import decode
from penstock.grpc.streams import ReadRequest, ReadResponse
from penstock.operations.table import server_of

_PAGE_MESSAGES: Final = 1_000
_WAIT_MS: Final = 30_000


async def read(door: Door, caller: GrpcCaller, requests: AsyncIterator[Message]) -> AsyncGenerator[ReadResponse, None]:
    """Pages until the end of the log or the limit; a page without messages comes only first, to tell where one is."""
    wanted = decode(ReadRequest, await anext(requests))
    caller.allow_bytes(wanted.max_bytes)
    page = Read(topic=wanted.topic, partition=wanted.partition, offset=wanted.offset, since=wanted.since)
    left = wanted.limit
    is_first = True
    while True:
        page = msgspec.structs.replace(page, limit=min(left, _PAGE_MESSAGES) if wanted.limit else _PAGE_MESSAGES)
        found = await _page(door, caller, page)
        if found.messages or is_first:
            yield _answer(found)
        is_first = False
        left -= len(found.messages)
        if wanted.limit and left <= 0:
            return
        if not found.messages and not wanted.follow:
            return
        wait_ms = 0 if found.messages else _WAIT_MS
        page = msgspec.structs.replace(page, offset=found.next_offset, since=None, timeout_ms=wait_ms)


async def _page(door: Door, caller: GrpcCaller, wanted: Read) -> MessagesPage:
    """What comes next; a change of leaders is waited for."""
    patience = Patience(door.services.clock)
    while True:
        if door.stopping.is_set():
            raise NodeStopping("This node is stopping. Go on with another one, or with this one in a moment.")
        try:
            page: MessagesPage = await server_of(Read)(door.services, wanted, caller)
        except PenstockError as error:
            await patience.bear(error)
            continue
        return page


def _answer(page: MessagesPage) -> ReadResponse:
    fields: dict[str, Any] = {"topic": page.topic, "partition": page.partition}
    return ReadResponse(
        messages=[DeliveredMessage(**asdict(message), **fields) for message in page.messages],
        next_offset=page.next_offset,
        high_watermark=page.high_watermark,
        log_start_offset=page.log_start_offset,
    )
