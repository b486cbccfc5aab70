"""The schedules of the near days, those that are being fired and those that failed: columns in memory.

A row is known by its number in the wheel. It takes 33 bytes, and nine more to be found by its id.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import nsmallest
from typing import Final

from penstock.broker.schedules.columns import from_bytes, to_bytes
from penstock.broker.schedules.identities import Identities
from penstock.broker.schedules.wheel import Wheel

FREE: Final = 0
WAITING: Final = 1  # in the wheel
FAILED: Final = 2
FIRING: Final = 3
FIRING_AGAIN: Final = 4  # and it comes again
FIRING_LAST: Final = 5  # it would have come again but was cancelled, and its id is free

_BEING_FIRED: Final = (FIRING, FIRING_AGAIN, FIRING_LAST)
_NOBODY: Final = 0


class Near:
    """Rows by their number, by id and by time."""

    def __init__(self, periods_ahead: int) -> None:
        self.wheel = Wheel(0, periods_ahead)
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

    def pack(self, rows_max: int) -> Iterator[list[bytes]]:
        """All rows as bytes: kinds, digests, offsets and times. Where all of a stretch wait, it is taken as it is."""
        others: list[int] = []
        for at in range(self.wheel.first_slot, len(self.kinds), rows_max):
            kinds = self.kinds[at : at + rows_max]
            end = at + len(kinds)
            if kinds.count(WAITING) == len(kinds):
                columns = (kinds, self.digests[at:end], self.offsets[at:end], self.wheel.times(at, end))
                yield [to_bytes(column) for column in columns]
                continue
            if slots := [slot for slot, kind in enumerate(kinds, at) if kind == WAITING]:
                yield self._columns(slots)
            others += [slot for slot, kind in enumerate(kinds, at) if kind > WAITING]
        for at in range(0, len(others), rows_max):
            yield self._columns(others[at : at + rows_max])

    def _columns(self, slots: list[int]) -> list[bytes]:
        return [
            to_bytes(array("b", map(self.kinds.__getitem__, slots))),
            to_bytes(array("Q", map(self.digests.__getitem__, slots))),
            to_bytes(array("q", map(self.offsets.__getitem__, slots))),
            to_bytes(array("q", map(self.wheel.time_of, slots))),
        ]

    def unpack(self, pieces: list[list[bytes]]) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
        """Take over all rows; those that are being fired, by offset, and facts of those that are too far away."""
        firing: dict[int, int] = {}
        named = array("i")
        far: list[tuple[int, int, int]] = []
        for columns in pieces:
            kinds, digests, offsets, times = map(from_bytes, "bQqq", columns)
            if kinds.count(WAITING) == len(kinds) and self.wheel.holds(max(times)):
                self._grow(self.wheel.slots)
                named.extend(range(self.wheel.slots, self.wheel.slots + len(kinds)))
                self.wheel.fill(times)
                self.kinds.extend(kinds)
                self.digests.extend(digests)
                self.offsets.extend(offsets)
                continue
            for kind, digest, offset, at_ms in zip(kinds, digests, offsets, times, strict=True):
                if kind == WAITING and not self.wheel.holds(at_ms):
                    far.append((digest, offset, at_ms))
                    continue
                slot = self._reserve(digest, offset, kind)
                if kind != FIRING_LAST:
                    named.append(slot)
                if kind == WAITING:
                    self.wheel.link(slot, at_ms)
                elif kind in _BEING_FIRED:
                    firing[offset] = slot
        self.identities.fill(map(self.digests.__getitem__, named), named)
        return firing, far
