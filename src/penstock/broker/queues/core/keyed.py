"""The supply that keeps the order of each key: one message of a key at a time, the next when it is done.

The shell tells the key of each message, as a hash, in the order of offsets and only as far ahead as it is asked to.
The oldest message of a key that is not done is the key's *head*; the others are held. So a message that fails holds
back its own key alone. Nothing of this is written anywhere: whoever takes over looks again, from the first message that
is not done, and hands out nothing that it has not looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.broker.queues.core.intervals import Interval, IntervalMap, IntervalSet
from penstock.broker.queues.core.pool import Pool, Run

_LOOK_AHEAD_MIN: Final = 500  # messages come in batches, so looking at a few costs as much as looking at many


class KeyedSupply:
    """By offset among the heads of keys. ``rows`` tell what was said of messages, ``held_max`` how many to remember."""

    def __init__(self, rows: IntervalMap, is_done: Callable[[int], bool], held_max: int) -> None:
        self._rows = rows
        self._is_done = is_done
        self._held_max = held_max
        self.reset()

    def reset(self) -> None:
        self._seen_to = 0  # looked at up to here, from where the group stood
        self._keys: set[int] = set()  # that have a head; only ever asked for one of them
        self._heads = IntervalMap("q")  # a row each, with its key: a dict of these would take four times as much
        self._held: dict[int, deque[int]] = {}  # by key, where anything is
        self._held_count = 0
        self._due = IntervalSet()
        self._free = IntervalSet()  # heads that are not in flight
        self._free_count = 0

    # -- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, limit: int, start: int, end: int) -> list[Interval]:
        chosen: list[Interval] = []
        for first, last in self._candidates(start, end - 1):
            if limit <= 0:
                break
            chosen.append(Interval(first, min(last, first + limit - 1)))
            limit -= chosen[-1].size
        return chosen

    def _candidates(self, start: int, last: int) -> Iterator[tuple[int, int]]:
        if self._due:
            for low, high, _ in self._free.within(start, last):
                yield from ((again[0], again[1]) for again in self._due.within(low, high))
        for low, high, _ in self._free.within(start, last):
            yield from self._due.gaps(low, high)

    def is_free(self, first: int, last: int) -> bool:
        return self._free.covers(first, last)

    # -- looking ------------------------------------------------------------------------------------------------------

    def unseen(self, limit: int, start: int, end: int) -> Interval | None:
        begin = max(start, self._seen_to)
        if begin >= end or self._free_count >= limit or self._held_count >= self._held_max:
            return None
        return Interval(begin, min(end, begin + max(limit - self._free_count, _LOOK_AHEAD_MIN)) - 1)

    @property
    def pool(self) -> Pool | None:
        return None

    @property
    def known_to(self) -> int:
        return self._seen_to

    def see(self, first: int, keys: Sequence[int | None], runs: Sequence[Run] = ()) -> None:  # noqa: ARG002
        assert first >= self._seen_to, "messages are looked at once, in order"
        for offset, label in enumerate(keys, first):
            if self._is_done(offset):
                continue
            # A message without a key waits for nobody: it gets a key of its own, which no hash is.
            key = ~offset if label is None else label
            if key not in self._keys:
                self._lead(key, offset)
                continue
            if key not in self._held:
                self._held[key] = deque()
            self._held[key].append(offset)
            self._held_count += 1
        self._seen_to = first + len(keys)

    def _lead(self, key: int, offset: int) -> None:
        self._keys.add(key)
        self._heads.put(offset, offset, (key,))
        if self._rows.at(offset) is None or self._due.covers(offset, offset):
            self._release(offset)

    # -- what happens to messages -------------------------------------------------------------------------------------

    def on_leased(self, first: int, last: int) -> None:
        self._take(first, last)

    def on_due(self, first: int, last: int) -> None:
        self._due.add(first, last)
        for offset, _, _ in list(self._heads.within(first, last)):
            self._release(offset)

    def on_done(self, first: int, last: int) -> None:
        self._take(first, last)
        ended = [key for _, _, (key,) in self._heads.within(first, last)]
        self._heads.clear(first, last)
        for key in ended:
            self._keys.discard(key)
            self._promote(key)

    def _promote(self, key: int) -> None:
        """Let the next message of a key lead, if there is one."""
        held = self._held.get(key)
        while held:
            offset = held.popleft()
            self._held_count -= 1
            if not self._is_done(offset):
                self._lead(key, offset)
                break
        if held is not None and not held:
            del self._held[key]

    def _release(self, offset: int) -> None:
        if not self._free.covers(offset, offset):
            self._free.add(offset, offset)
            self._free_count += 1

    def _take(self, first: int, last: int) -> None:
        self._due.clear(first, last)
        self._free_count -= sum(high - low + 1 for low, high, _ in self._free.within(first, last))
        self._free.clear(first, last)
