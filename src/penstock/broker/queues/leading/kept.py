"""Batches of which only a part was handed out, kept so that the next part need not be read again.

Each source has its own; all of a node together have a size. What is kept is committed, so it never changes, and it goes
with its source when the partition is led elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from typing import Final

_BYTES_MAX: Final = 16 * 1024 * 1024


def whole_bytes(view: memoryview) -> bytes:
    """The bytes of a view; no copy where it is a view of all of some."""
    whole = view.obj
    return whole if isinstance(whole, bytes) and len(whole) == len(view) else bytes(view)


class KeptRoom:
    """How much all sources keep; what was used the longest ago goes first."""

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._size = 0
        self._order: OrderedDict[tuple[KeptBatches, int], int] = OrderedDict()

    def enter(self, batches: KeptBatches, base: int, size: int) -> None:
        self._order[batches, base] = size
        self._size += size
        while self._size > self._bytes_max and len(self._order) > 1:
            (oldest, at), gone = self._order.popitem(last=False)
            self._size -= gone
            oldest.drop(at)

    def touch(self, batches: KeptBatches, base: int) -> None:
        self._order.move_to_end((batches, base))


class KeptBatches:
    """Those of one source, by their first offset."""

    def __init__(self, room: KeptRoom) -> None:
        self._room = room
        self._starts: list[int] = []
        self._batches: dict[int, tuple[int, bytes]] = {}

    def at(self, offset: int) -> bytes | None:
        """The batch that holds an offset."""
        place = bisect_right(self._starts, offset) - 1
        if place < 0:
            return None
        base = self._starts[place]
        last, batch = self._batches[base]
        if last < offset:
            return None
        self._room.touch(self, base)
        return batch

    def put(self, base: int, last: int, batch: memoryview) -> None:
        if base not in self._batches:
            insort(self._starts, base)
            self._batches[base] = (last, whole_bytes(batch))
            self._room.enter(self, base, len(batch))

    def drop(self, base: int) -> None:
        del self._batches[base]
        self._starts.remove(base)
