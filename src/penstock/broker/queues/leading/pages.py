"""A walk through the batches of a source, only ever forward, reading not much more than is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.broker.queues.leading.sources import Found, Source
from penstock.records import BatchHeader, iter_batches
from penstock.storage.aborted import AbortedRanges

_READ_BYTES_MIN: Final = 16 * 1024


class Pages:
    """Where the walk stands."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._batches: Iterator[tuple[int, BatchHeader]] = iter(())
        self._aborted = AbortedRanges([])
        self.data = memoryview(b"")
        self.position = 0
        self.header: BatchHeader | None = None

    async def batch_at(self, offset: int, wanted: int, max_bytes: int) -> BatchHeader | None:
        """The batch that holds an offset, or the first one behind it; None if there is none yet.

        ``wanted`` tells how many messages from there on are, so that not much more than those is read.
        """
        if self.header is not None and self.header.next_offset > offset:
            return self.header
        if self._advance(offset):
            return self.header
        size = max(min(wanted * self._source.message_bytes + _READ_BYTES_MIN, max_bytes), 1)
        found = await self._source.read(offset, size)
        if found is None:
            self.header = None
            return None
        self._open(found)
        return self.header if self._advance(offset) else None

    def _open(self, found: Found) -> None:
        self.data = memoryview(found.data)
        self._aborted = AbortedRanges(found.aborted)
        self._batches = iter_batches(self.data)

    def _advance(self, offset: int) -> bool:
        for self.position, header in self._batches:  # noqa: B020 - where the walk stands is what is kept
            self.header = header
            if header.next_offset > offset:
                self._source.message_bytes = max(header.size // max(header.count, 1), 1)
                return True
        return False

    @property
    def is_void(self) -> bool:
        """Whether the present batch holds no message at all."""
        header = self.header
        return header is None or header.is_control or header in self._aborted

    @property
    def batch(self) -> memoryview:
        assert self.header is not None
        return self.data[self.position : self.position + self.header.size]
