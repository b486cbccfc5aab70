"""Columns of integers as bytes, little-endian whatever machine this is.

A map from ids of schedules to numbers that costs some nine bytes an entry.

Ids are known by digests of 64 bits. Some bits of a digest choose one of 4,096 sorted arrays, 24 more are kept beside
the number: so what is found by a digest is a number that *may* be meant, wrongly so once in billions. The caller
checks that against what it knows of the number.

Where in the log the schedules of later periods are: four bytes each, and nothing else in memory.

A place that means nothing any more, because its schedule was cancelled or written anew, is not searched for. It is
found out when the period is loaded, or swept once such places are the greater part.

The schedules of later days: only where they are in the log is known, by id and by period.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple
from zlib import crc32


def to_bytes(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def from_bytes(code: str, data: bytes) -> array[int]:
    column: array[int] = array(code)
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column


_NUMBERED: Final = ("kafka:", "py-")  # ids that begin so end in a number, after a colon
_ARRAYS: Final = 4_096
_ARRAY_SHIFT: Final = 52
_PACKED_AT_ONCE: Final = 256
_TAG_SHIFT: Final = 28
_TAG_MASK: Final = (1 << 24) - 1
_NUMBER_BITS: Final = 40
_NUMBER_MASK: Final = (1 << _NUMBER_BITS) - 1


def digest_of(schedule_id: str) -> int:
    """What an id is known by."""
    return int.from_bytes(blake2b(schedule_id.encode(), digest_size=8).digest(), "big")


def shard_of_id(schedule_id: str, shards: int) -> int:
    """The shard that an id of a client belongs to.

    Those of Kafka's records and of our own client end in a number, which does not count: what was sent together stays
    together. So it is written as one batch, and fired as one, in the order in which it was sent.
    """
    if schedule_id.startswith(_NUMBERED):
        schedule_id = schedule_id.rpartition(":")[0] or schedule_id
    return crc32(schedule_id.encode()) % shards


class Identities:
    """Numbers, such as places in a log, by digests."""

    def __init__(self) -> None:
        self._arrays: list[array[int] | None] = [None] * _ARRAYS
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def find(self, digest: int) -> list[int]:
        """The numbers that may be meant, nearly always one or none."""
        entries = self._arrays[digest >> _ARRAY_SHIFT]
        if entries is None:
            return []
        tag = digest >> _TAG_SHIFT & _TAG_MASK
        at = bisect_left(entries, tag << _NUMBER_BITS)
        found: list[int] = []
        while at < len(entries) and entries[at] >> _NUMBER_BITS == tag:
            found.append(entries[at] & _NUMBER_MASK)
            at += 1
        return found

    def has(self, digest: int, number: int) -> bool:
        return number in self.find(digest)

    def add(self, digest: int, number: int) -> None:
        assert 0 <= number <= _NUMBER_MASK, f"{number} does not fit into {_NUMBER_BITS} bits"
        place = digest >> _ARRAY_SHIFT
        entries = self._arrays[place]
        if entries is None:
            entries = self._arrays[place] = array("Q")
        insort(entries, _entry(digest, number))
        self._size += 1

    def remove(self, digest: int, number: int) -> bool:
        """Forget an entry; False if there is none."""
        entries = self._arrays[digest >> _ARRAY_SHIFT]
        if entries is None:
            return False
        entry = _entry(digest, number)
        at = bisect_left(entries, entry)
        if at == len(entries) or entries[at] != entry:
            return False
        del entries[at]
        self._size -= 1
        return True

    def numbers(self) -> Iterator[int]:
        """All numbers, in no order that means anything."""
        for entries in self._arrays:
            for entry in entries or ():
                yield entry & _NUMBER_MASK

    # -- at once ------------------------------------------------------------------------------------------------------

    def pack(self) -> Iterator[tuple[int, list[bytes]]]:
        """All arrays as bytes, some at once, with the place of the first."""
        for place in range(0, _ARRAYS, _PACKED_AT_ONCE):
            arrays = self._arrays[place : place + _PACKED_AT_ONCE]
            if any(arrays):
                yield place, [to_bytes(entries) if entries else b"" for entries in arrays]

    def unpack(self, place: int, columns: Sequence[bytes]) -> None:
        """Take over arrays into a map that has nothing there."""
        for at, data in enumerate(columns, place):
            assert not self._arrays[at], "there are entries already"
            if data:
                entries = self._arrays[at] = from_bytes("Q", data)
                self._size += len(entries)


def _entry(digest: int, number: int) -> int:
    return (digest >> _TAG_SHIFT & _TAG_MASK) << _NUMBER_BITS | number


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


_SPARE: Final = 4_096  # places that mean nothing any more are swept once they outnumber the others by this


class Far:
    """Offsets of schedules, some twelve bytes each."""

    def __init__(self) -> None:
        self.identities = Identities()
        self.places = Periods()

    def __len__(self) -> int:
        return len(self.identities)

    def add(self, digest: int, offset: int, period: int) -> None:
        self.identities.add(digest, offset)
        self.places.add(period, offset)
        if len(self.places) > 2 * len(self.identities) + _SPARE:
            self.places.sweep(set(self.identities.numbers()).__contains__)

    def remove(self, digest: int, offset: int) -> bool:
        """Forget a schedule; False if it is not here."""
        return self.identities.remove(digest, offset)

    def find(self, digest: int) -> list[int]:
        """Where the schedule of an id may be."""
        return self.identities.find(digest)

    def has(self, digest: int, offset: int) -> bool:
        return self.identities.has(digest, offset)

    def offsets(self, period: int) -> Iterator[int]:
        """Where the schedules of a period are, among places that mean nothing any more."""
        return self.places.offsets(period)
