"""The schedules of the near days, those that are being fired and those that failed: columns in memory.

A row is known by its number in the wheel. It takes 33 bytes, and nine more to be found by its id.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import Final, NamedTuple

from penstock.features.schedules.far import Identities, from_bytes, to_bytes
from penstock.features.schedules.wheel import Wheel

FREE: Final = 0
WAITING: Final = 1  # in the wheel
FAILED: Final = 2
FIRING: Final = 3
FIRING_AGAIN: Final = 4  # and it comes again
FIRING_LAST: Final = 5  # it would have come again but was cancelled, and its id is free

_BEING_FIRED: Final = (FIRING, FIRING_AGAIN, FIRING_LAST)
_NOBODY: Final = 0
_CODES: Final = "bQqqii"  # of the columns that are packed: kinds, digests, offsets, and three of the wheel
_SPARSE: Final = 4  # times as many rows as are in use are too many
_ROWS_SPARE: Final = 4_096  # or as many more, if there are few


class WaitingRow(NamedTuple):
    """What is known of a schedule that waits."""

    at_ms: int
    offset: int
    digest: int


class Near:
    """Rows by their number, by id and by time."""

    def __init__(self, periods_ahead: int, lead: int = 0) -> None:
        self.wheel = Wheel(0, periods_ahead, lead)
        self.identities = Identities()
        self.kinds = array("b")
        self.offsets = array("q")
        self.digests = array("Q")
        self.failed: dict[int, None] = {}
        self.firing = 0

    @property
    def waiting(self) -> int:
        return len(self.wheel)

    def find(self, digest: int) -> int | None:
        """The row of an id."""
        for slot in self.identities.find(digest):
            if self.digests[slot] == digest:
                return slot
        return None

    def find_at(self, digest: int, offset: int) -> int | None:
        """The row of an id if its schedule is at this place in the log."""
        for slot in self.identities.find(digest):
            if self.offsets[slot] == offset:
                return slot
        return None

    def is_waiting_at(self, slot: int, offset: int) -> bool:
        return slot < len(self.kinds) and self.kinds[slot] == WAITING and self.offsets[slot] == offset

    def put(self, digest: int, offset: int, kind: int) -> int:
        """A new row, which does not wait yet."""
        slot = self._reserve(digest, offset, kind)
        self.identities.add(digest, slot)
        return slot

    def _reserve(self, digest: int, offset: int, kind: int) -> int:
        slot = self.wheel.reserve()
        self._grow(slot + 1)
        self.offsets[slot], self.digests[slot] = offset, digest
        self.kinds[slot] = FREE
        self._turn(slot, kind)
        return slot

    def _grow(self, slots: int) -> None:
        missing = slots - len(self.kinds)
        if missing > 0:
            self.kinds.extend([FREE] * missing)
            self.offsets.extend([0] * missing)
            self.digests.extend([_NOBODY] * missing)

    def wait(self, digest: int, offset: int, at_ms: int) -> int:
        """A new row that waits for its time. Done for every schedule that is read from the log, so without detours."""
        slot = self.wheel.add(at_ms)
        if slot == len(self.kinds):
            self.kinds.append(WAITING)
            self.offsets.append(offset)
            self.digests.append(digest)
        else:
            self._grow(slot + 1)
            self.kinds[slot], self.offsets[slot], self.digests[slot] = WAITING, offset, digest
        self.identities.add(digest, slot)
        return slot

    def turn(self, slot: int, kind: int) -> None:
        """A row is of another kind, and does not wait."""
        if self.kinds[slot] == WAITING:
            self.wheel.unlink(slot)
        if kind == FIRING_LAST:
            self.identities.remove(self.digests[slot], slot)
        self._turn(slot, kind)

    def await_again(self, slot: int, at_ms: int) -> None:
        """A row that was being fired waits once more."""
        self._turn(slot, WAITING)
        self.wheel.link(slot, at_ms)

    def free(self, slot: int) -> None:
        kind = self.kinds[slot]
        if kind == WAITING:
            self.wheel.unlink(slot)
        if kind != FIRING_LAST:
            self.identities.remove(self.digests[slot], slot)
        self._turn(slot, FREE)
        self.wheel.release(slot)

    def _turn(self, slot: int, kind: int) -> None:
        before = self.kinds[slot]
        self.kinds[slot] = kind
        self.firing += (kind in _BEING_FIRED) - (before in _BEING_FIRED)
        if before == FAILED:
            del self.failed[slot]
        if kind == FAILED:
            self.failed[slot] = None

    def page(self, limit: int, after: tuple[int, int]) -> list[tuple[int, int]]:
        """Times and offsets of what waits, by both, from after one of them on."""
        found: list[tuple[int, int]] = []
        for end_ms, slots in self.wheel.buckets():
            if end_ms < after[0]:
                continue
            rows = ((self.wheel.time_of(slot), self.offsets[slot]) for slot in slots)
            found += nsmallest(limit - len(found), (row for row in rows if row > after))
            if len(found) >= limit:
                break
        return found

    # -- at once ------------------------------------------------------------------------------------------------------

    def wait_all(self, rows: Sequence[WaitingRow]) -> None:
        """As `wait` for each; rows come by time."""
        if self.wheel.has_free:
            for at_ms, offset, digest in rows:
                self.wait(digest, offset, at_ms)
            return
        self._grow(self.wheel.slots)
        first = self.wheel.fill([row.at_ms for row in rows])
        self.kinds.extend([WAITING] * len(rows))
        self.offsets.extend([row.offset for row in rows])
        self.digests.extend([row.digest for row in rows])
        for slot, row in enumerate(rows, first):
            self.identities.add(row.digest, slot)

    @property
    def rows(self) -> int:
        """How many rows there is room for, free ones too."""
        return self.wheel.slots - self.wheel.first_slot

    @property
    def is_sparse(self) -> bool:
        """Whether there were many more rows once than there are now."""
        return self.rows > _SPARSE * len(self.identities) + _ROWS_SPARE

    def pack(self, rows_max: int) -> Iterator[list[bytes]]:
        """All rows as they are, free ones too, so many at once: kinds, digests, offsets, and the wheel's columns."""
        self._grow(self.wheel.slots)
        for at in range(0, len(self.kinds), rows_max):
            end = at + rows_max
            columns = (self.kinds[at:end], self.digests[at:end], self.offsets[at:end], *self.wheel.pack(at, end))
            yield [to_bytes(column) for column in columns]

    def unpack(self, marks: tuple[int, int, int], pieces: Sequence[Sequence[bytes]]) -> None:
        """Take over all rows. Nothing is done for each: a million are to be there in a moment after a crash.

        ``identities`` are filled by the caller.
        """
        columns = [array(code) for code in _CODES]
        for piece in pieces:
            for column, code, data in zip(columns, _CODES, piece, strict=True):
                column.extend(from_bytes(code, data))
        self.kinds, self.digests, self.offsets, *links = columns
        self.wheel.unpack(marks, *links)
        self.firing = sum(map(self.kinds.count, _BEING_FIRED))
        self.failed = dict.fromkeys(self._slots_of(FAILED))

    def being_fired(self) -> dict[int, int]:
        """Rows of what is being fired, by offset."""
        return {self.offsets[slot]: slot for kind in _BEING_FIRED for slot in self._slots_of(kind)}

    def _slots_of(self, kind: int) -> list[int]:
        if not self.kinds.count(kind):
            return []
        return [slot for slot, each in enumerate(self.kinds) if each == kind]

    def copy_to(self, other: Near) -> None:
        """Have the same rows in one that has none, without room for those that were there once."""
        other.wheel.advance(self.wheel.now_ms)
        for slot, kind in enumerate(self.kinds):
            digest, offset = self.digests[slot], self.offsets[slot]
            if kind == WAITING:
                other.wait(digest, offset, self.wheel.time_of(slot))
            elif kind == FIRING_LAST:
                other._reserve(digest, offset, kind)
            elif kind != FREE:
                other.put(digest, offset, kind)
