"""A map from offsets to facts that holds intervals, so that what is true of a million neighbours costs one row.

Rows are disjoint, sorted, and joined where neighbours say the same. They live in columns of machine integers, cut into
chunks of a few hundred rows: a row of six columns takes some 50 bytes where Python objects would take 300, and no
change moves more than one chunk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

_ROWS_MAX: Final = 1024
_ROWS_MIN: Final = 64  # a chunk that shrinks below this joins its neighbour, so that scattered rows stay cheap

Facts = tuple[int, ...]
_Row = tuple[int, int, Facts]


class Interval(NamedTuple):
    """Offsets from the first to the last, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class IntervalMap:
    """Facts about intervals of offsets. ``codes`` are the array type codes of the facts' columns."""

    def __init__(self, codes: str = "") -> None:
        self._codes = "qq" + codes
        self._chunks: list[list[array[int]]] = []
        self._starts: list[int] = []  # the first offset of each chunk
        self._size = 0

    def __len__(self) -> int:
        """How many rows there are."""
        return self._size

    def __iter__(self) -> Iterator[_Row]:
        for columns in self._chunks:
            for row in zip(*columns, strict=True):
                yield row[0], row[1], row[2:]

    def chunks(self) -> Iterator[list[array[int]]]:
        """The columns of all rows, some hundred rows at a time, for who has much to do. Nothing may be changed."""
        return iter(self._chunks)

    def copied_chunks(self) -> list[list[array[int]]]:
        """The same as they are now, whatever is changed later."""
        return [[column[:] for column in columns] for columns in self._chunks]

    def at(self, offset: int) -> _Row | None:
        """The whole row that covers an offset."""
        chunk, at = self._locate(offset)
        if chunk == len(self._chunks) or self._chunks[chunk][0][at] > offset:
            return None
        return self._row(chunk, at)

    def has_any(self, first: int, last: int) -> bool:
        """Whether anything is said of an interval or a part of it."""
        chunk, at = self._locate(first)
        return chunk < len(self._chunks) and self._chunks[chunk][0][at] <= last

    def within(self, first: int, last: int) -> Iterator[_Row]:
        """The rows between two offsets, cut to them. Nothing may be changed meanwhile."""
        chunk, at = self._locate(first)
        while chunk < len(self._chunks):
            rows = len(self._chunks[chunk][0])
            while at < rows:
                begin, end, facts = self._row(chunk, at)
                if begin > last:
                    return
                yield max(begin, first), min(end, last), facts
                at += 1
            chunk, at = chunk + 1, 0

    def gaps(self, first: int, last: int) -> Iterator[Interval]:
        """What no row covers between two offsets. Nothing may be changed meanwhile."""
        chunk, at = self._locate(first)
        while chunk < len(self._chunks) and first <= last:
            firsts, lasts = self._chunks[chunk][:2]
            while at < len(firsts) and firsts[at] <= last:
                if firsts[at] > first:
                    yield Interval(first, firsts[at] - 1)
                first = lasts[at] + 1
                at += 1
            if at < len(firsts):
                break
            chunk, at = chunk + 1, 0
        if first <= last:
            yield Interval(first, last)

    def put(self, first: int, last: int, facts: Facts) -> None:
        """Say something of an interval, whatever was said of it before."""
        self._replace(first, last, facts)

    def clear(self, first: int, last: int) -> None:
        """Say nothing of an interval any more."""
        self._replace(first, last, None)

    def reset(self) -> None:
        self._chunks.clear()
        self._starts.clear()
        self._size = 0

    # -- rows and chunks ----------------------------------------------------------------------------------------------

    def _row(self, chunk: int, at: int) -> _Row:
        first, last, *columns = self._chunks[chunk]
        return first[at], last[at], tuple([column[at] for column in columns])

    def _locate(self, offset: int) -> tuple[int, int]:
        """The first row that ends at an offset or after it."""
        chunk = bisect_right(self._starts, offset) - 1
        if chunk < 0:
            return 0, 0
        firsts, lasts = self._chunks[chunk][:2]
        at = bisect_right(firsts, offset) - 1
        if lasts[at] < offset:
            at += 1
            if at == len(firsts):
                return chunk + 1, 0
        return chunk, at

    def _replace(self, first: int, last: int, facts: Facts | None) -> None:
        assert first <= last, f"{first} to {last} is no interval"
        end_chunk = bisect_right(self._starts, last) - 1
        if end_chunk < 0:  # everything there is comes later
            begin, end = (0, 0), (0, 0)
        else:
            end = (end_chunk, bisect_right(self._chunks[end_chunk][0], last))
            begin = min(self._locate(first), end)
        before: list[_Row] = []
        after: list[_Row] = []
        if begin < end:
            low, _, low_facts = self._row(*begin)
            if low < first:
                before.append((low, first - 1, low_facts))
            _, high, high_facts = self._row(end[0], end[1] - 1)
            if high > last:
                after.append((last + 1, high, high_facts))
        if facts is None:
            self._splice(begin, end, before + after)
            return
        if not before and (previous := self._previous(begin)) is not None:
            low, high, low_facts = self._row(*previous)
            if high == first - 1 and low_facts == facts:
                begin = previous
                first = low
        elif before and before[0][2] == facts:
            first = before.pop()[0]
        if not after and (following := self._following(end)) is not None:
            low, high, high_facts = self._row(*following)
            if low == last + 1 and high_facts == facts:
                end = (following[0], following[1] + 1)
                last = high
        elif after and after[0][2] == facts:
            last = after.pop()[1]
        self._splice(begin, end, [*before, (first, last, facts), *after])

    def _previous(self, place: tuple[int, int]) -> tuple[int, int] | None:
        chunk, at = place
        if at > 0:
            return chunk, at - 1
        return (chunk - 1, len(self._chunks[chunk - 1][0]) - 1) if chunk > 0 else None

    def _following(self, place: tuple[int, int]) -> tuple[int, int] | None:
        chunk, at = place
        if chunk < len(self._chunks) and at < len(self._chunks[chunk][0]):
            return place
        return (chunk + 1, 0) if chunk + 1 < len(self._chunks) else None

    def _splice(self, begin: tuple[int, int], end: tuple[int, int], rows: list[_Row]) -> None:
        """Put rows in the place of those from ``begin`` to before ``end``."""
        (chunk, at), (end_chunk, end_at) = begin, end
        if not self._chunks:
            if not rows:
                return
            self._chunks.append([array(code) for code in self._codes])
            self._starts.append(rows[0][0])
        if chunk < end_chunk:
            self._size -= len(self._chunks[chunk][0]) - at + end_at
            self._size -= sum(len(columns[0]) for columns in self._chunks[chunk + 1 : end_chunk])
            for column, rest in zip(self._chunks[chunk], self._chunks[end_chunk], strict=True):
                column[at:] = rest[end_at:]
            del self._chunks[chunk + 1 : end_chunk + 1]
            del self._starts[chunk + 1 : end_chunk + 1]
            end_at = at
        columns = self._chunks[chunk]
        flat = [(first, last, *facts) for first, last, facts in rows]
        if len(flat) == end_at - at == 1:
            for column, value in zip(columns, flat[0], strict=True):
                column[at] = value
        elif flat:
            for code, column, values in zip(self._codes, columns, zip(*flat, strict=True), strict=True):
                column[at:end_at] = array(code, values)
        elif at < end_at:
            for column in columns:
                del column[at:end_at]
        self._size += len(flat) - (end_at - at)
        self._tidy(chunk)

    def _tidy(self, chunk: int) -> None:
        """Keep a chunk that was changed within its bounds."""
        columns = self._chunks[chunk]
        rows = len(columns[0])
        if rows > _ROWS_MAX:
            pieces = [[column[at : at + _ROWS_MAX // 2] for column in columns] for at in range(0, rows, _ROWS_MAX // 2)]
            self._chunks[chunk : chunk + 1] = pieces
            self._starts[chunk : chunk + 1] = [piece[0][0] for piece in pieces]
            return
        if rows == 0:
            del self._chunks[chunk], self._starts[chunk]
            return
        self._starts[chunk] = columns[0][0]
        if rows < _ROWS_MIN:
            for low in (chunk - 1, chunk):
                if self._join(low):
                    return

    def _join(self, chunk: int) -> bool:
        """Make a chunk and the next one into one, if they are there and small enough."""
        if chunk < 0 or chunk + 1 >= len(self._chunks):
            return False
        columns, more = self._chunks[chunk], self._chunks[chunk + 1]
        if len(columns[0]) + len(more[0]) > _ROWS_MAX // 2:
            return False
        for column, rest in zip(columns, more, strict=True):
            column.extend(rest)
        del self._chunks[chunk + 1], self._starts[chunk + 1]
        return True


class IntervalSet(IntervalMap):
    """Offsets, without anything more to say of them."""

    def __init__(self) -> None:
        super().__init__()

    def add(self, first: int, last: int) -> None:
        self._replace(first, last, ())

    def intervals(self) -> list[Interval]:
        return [Interval(first, last) for first, last, _ in self]

    def covers(self, first: int, last: int) -> bool:
        """Whether all of an interval is in here."""
        row = self.at(first)
        return row is not None and row[1] >= last
