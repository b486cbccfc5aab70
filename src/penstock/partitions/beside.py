"""Work on messages that may take long runs in a thread, so that the event loop goes on serving other clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

from penstock.records import is_quick_to_decode
from penstock.records.batch import Headers
from penstock.records.varint import ReadableBuffer

T = TypeVar("T")

_QUICK_PARTS: Final = 2_000  # messages and headers, of which each takes a few microseconds


class HasHeaders(Protocol):
    """A record or a message, decoded."""

    @property
    def headers(self) -> Headers: ...


async def beside(batches: ReadableBuffer, look: Callable[[], T]) -> T:
    """What ``look`` finds in batches that lie one behind the other. It must touch nothing that the loop may change."""
    return look() if is_quick_to_decode(batches) else await asyncio.to_thread(look)


async def show_beside(messages: Iterable[HasHeaders], show: Callable[[], T]) -> T:
    """What ``show`` makes of decoded messages, for an answer. It must touch nothing that the loop may change."""
    parts = sum(1 + len(message.headers) for message in messages)
    return show() if parts <= _QUICK_PARTS else await asyncio.to_thread(show)
