"""Reading a partition without a group: nothing is consumed by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from penstock.client.messages import Decoded, Message
from penstock.client.transport import Transport
from penstock.client.values import moment_ms
from penstock.model import check_topic_name
from penstock.records import Record
from penstock.records.batch import Headers

Start = int | Literal["earliest", "latest"] | datetime

_PAGE_MESSAGES: Final = 1_000
_WAIT_SECONDS: Final = 20.0


class MessageForm(msgspec.Struct, frozen=True):
    """A message as JSON has it: docs/reference/rest.md."""

    offset: int
    timestamp: datetime | None = None
    key: str | None = None
    key_base64: bytes | None = None
    value: str | None = None
    value_base64: bytes | None = None
    headers: dict[str, str | list[str | None] | None] = {}
    headers_base64: dict[str, bytes | list[bytes | None] | None] = {}

    def record(self) -> Record:
        """The message as the log has it; of headers that repeat, the order between names is lost."""
        timestamp_ms = moment_ms(self.timestamp)
        return Record(
            self.offset,
            -1 if timestamp_ms is None else timestamp_ms,
            self.key_base64 if self.key is None else self.key.encode(),
            self.value_base64 if self.value is None else self.value.encode(),
            self._headers() if self.headers or self.headers_base64 else (),
        )

    def _headers(self) -> Headers:
        pairs: list[tuple[str, bytes | None]] = []
        for name, text in self.headers.items():
            texts = text if isinstance(text, list) else [text]
            pairs += [(name, None if item is None else item.encode()) for item in texts]
        for name, data in self.headers_base64.items():
            pairs += [(name, item) for item in (data if isinstance(data, list) else [data])]
        return tuple(pairs)


class _Page(msgspec.Struct, frozen=True):
    messages: list[MessageForm]
    next_offset: int
    high_watermark: int


async def read_pages(
    transport: Transport, topic: str, partition: int, start: Start, *, follow: bool
) -> AsyncIterator[list[Message]]:
    """Messages of a partition from ``start`` on, some at a time; up to those there are now, or for ever."""
    path = ("v1", "topics", check_topic_name(topic), "messages")
    query: dict[str, Any] = {"partition": partition, "limit": _PAGE_MESSAGES}
    wait_s = _WAIT_SECONDS if follow else 0.0
    if follow:
        query["timeout_ms"] = round(wait_s * 1000)
    place: dict[str, object] = {"offset": start}
    if isinstance(start, datetime):
        place = {"since": start.astimezone(UTC).isoformat()}
    end: int | None = None
    while True:
        page = await transport.get(_Page, *path, wait_s=wait_s, **query, **place)
        if end is None:
            end = page.high_watermark
        messages = [Message(topic, partition, form.offset, Decoded(form.record())) for form in page.messages]
        if not follow:
            messages = [message for message in messages if message.offset < end]
        if messages:
            yield messages
        place = {"offset": page.next_offset}
        if not follow and (page.next_offset >= end or not page.messages):
            return
