"""Reading over gRPC: the committed messages of one partition as a stream, and on with those that come."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Final

from penstock.doors.grpc.call import Call
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.fields import needed, start_of, whole
from penstock.doors.grpc.messages import stored_view, views_of
from penstock.doors.grpc.method import Method, Streaming
from penstock.doors.grpc.patience import Patience
from penstock.doors.grpc.statuses import NodeStopping
from penstock.errors import PenstockError
from penstock.features.messages.reading import ReadResult, read_messages
from penstock.grpc.generated.messages_pb2 import ReadRequest, ReadResponse
from penstock.partitions.access import Start

_PAGE_MESSAGES: Final = 1_000
_PAGE_BYTES: Final = 1024 * 1024
_PAGE_BYTES_MAX: Final = 64 * 1024 * 1024
_WAIT_MS: Final = 30_000


async def read(door: Door, _call: Call, request: ReadRequest) -> AsyncGenerator[ReadResponse, None]:
    """Pages until the end of the log or the limit; a page without messages comes only first, to tell where one is."""
    reader = _Reader(door, request)
    limit = left = whole(request.limit, "limit", high=(1 << 63) - 1)
    is_first, wait_ms = True, 0
    while True:
        page = await reader.page(min(left, _PAGE_MESSAGES) if limit else _PAGE_MESSAGES, wait_ms)
        if page.messages or is_first:
            yield await reader.view(page)
        is_first = False
        left -= len(page.messages)
        if limit and left <= 0:
            return
        if not page.messages:
            if not request.follow:
                return
            wait_ms = _WAIT_MS


class _Reader:
    """Where one reader is, whoever leads the partition at the moment."""

    def __init__(self, door: Door, request: ReadRequest) -> None:
        self._door = door
        self._topic = needed(request.topic, "topic")
        self._partition = whole(request.partition, "partition")
        self._at: Start = start_of(request.start)
        self._max_bytes = whole(request.max_bytes, "max_bytes", low=1, high=_PAGE_BYTES_MAX, default=_PAGE_BYTES)
        self._patience = Patience(door.broker.clock)

    async def page(self, limit: int, wait_ms: int) -> ReadResult:
        """What comes next; a change of leaders is waited for."""
        while True:
            try:
                page = await self._door.unless_stopping(self._read(limit, wait_ms))
            except NodeStopping:
                raise
            except PenstockError as error:
                await self._patience.bear(error)
                continue
            self._patience.renew()
            self._at = page.next_offset
            return page

    async def _read(self, limit: int, wait_ms: int) -> ReadResult:
        return await read_messages(
            self._door.broker.ports,
            self._topic,
            self._partition,
            self._at,
            limit=limit,
            wait_ms=wait_ms,
            max_bytes=self._max_bytes,
        )

    async def view(self, page: ReadResult) -> ReadResponse:
        return ReadResponse(
            messages=await views_of(partial(stored_view, self._topic, self._partition), page.messages),
            next_offset=page.next_offset,
            high_watermark=page.high_watermark,
            log_start_offset=page.log_start_offset,
        )


METHODS: Final[Mapping[str, Method]] = {"Read": Streaming(read)}
