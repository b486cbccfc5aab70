"""Where in the log the schedules of later periods are: four bytes each, and nothing else in memory.

A place that means nothing any more, because its schedule was cancelled or written anew, is not searched for. It is
found out when the period is loaded, or swept once such places are the greater part.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.broker.schedules.columns import from_bytes, to_bytes

_SPAN: Final = 1 << 32


class Chunk(NamedTuple):
    """Places of one period: distances from the first, in the order in which they came."""

    base: int
    distances: array[int]


class Periods:
    """Offsets by the number of a period."""

    def __init__(self) -> None:
        self._chunks: dict[int, list[Chunk]] = {}
        self._size = 0
        self._first: int | None = None

    def __len__(self) -> int:
        """How many places there are, those that mean nothing any more among them."""
        return self._size

    @property
    def first(self) -> int | None:
        """The earliest period that has places."""
        return self._first

    def periods(self) -> list[int]:
        return sorted(self._chunks)

    def add(self, period: int, offset: int) -> None:
        chunks = self._chunks_of(period)
        if not chunks or not 0 <= offset - chunks[-1].base < _SPAN:
            chunks.append(Chunk(offset, array("I")))
        chunks[-1].distances.append(offset - chunks[-1].base)
        self._size += 1

    def _chunks_of(self, period: int) -> list[Chunk]:
        if self._first is None or period < self._first:
            self._first = period
        return self._chunks.setdefault(period, [])

    def offsets(self, period: int) -> Iterator[int]:
        """The places of a period."""
        for base, distances in self._chunks.get(period, ()):
            for distance in distances:
                yield base + distance

    def drop(self, period: int) -> None:
        """Forget a period."""
        self._size -= sum(len(chunk.distances) for chunk in self._chunks.pop(period, ()))
        if period == self._first:
            self._first = min(self._chunks, default=None)

    def sweep(self, is_live: Callable[[int], bool]) -> None:
        """Forget all places but those that mean something."""
        for period in self.periods():
            live = sorted({offset for offset in self.offsets(period) if is_live(offset)})
            self.drop(period)
            for offset in live:
                self.add(period, offset)

    # -- at once ------------------------------------------------------------------------------------------------------

    def pack(self, rows_max: int) -> Iterator[list[bytes]]:
        """All places as bytes, so many of them at once: period, base and size of chunks, and their distances."""
        heads, distances = array("q"), array("I")
        for period in self.periods():
            for chunk in self._chunks[period]:
                for at in range(0, len(chunk.distances), rows_max):
                    piece = chunk.distances[at : at + rows_max]
                    heads.extend((period, chunk.base, len(piece)))
                    distances.extend(piece)
                    if len(distances) >= rows_max:
                        yield [to_bytes(heads), to_bytes(distances)]
                        heads, distances = array("q"), array("I")
        if distances:
            yield [to_bytes(heads), to_bytes(distances)]

    def unpack(self, columns: Sequence[bytes]) -> None:
        """Take over places, after all that were packed before them."""
        heads, distances = from_bytes("q", columns[0]), from_bytes("I", columns[1])
        begin = 0
        for period, base, size in zip(heads[0::3], heads[1::3], heads[2::3], strict=True):
            chunks = self._chunks_of(period)
            if not chunks or chunks[-1].base != base:
                chunks.append(Chunk(base, array("I")))
            chunks[-1].distances.extend(distances[begin : begin + size])
            begin += size
        self._size += len(distances)
