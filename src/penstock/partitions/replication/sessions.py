"""Incremental fetch sessions: what both sides remember, so that a partition without news costs nothing. Pure.

The follower's half says what to name in the next fetch and whether an answer belongs to it. The leader's half keeps the
slots and which of them have news, in the order in which they got them, so that none is passed over for long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from penstock.partitions.replication.messages import Added, Fetched, FetchReplica, Moved

KeyT = TypeVar("KeyT", bound=Hashable)
PositionT = TypeVar("PositionT")


class FetchChanges(NamedTuple):
    """What a fetch says of one partition."""

    added: tuple[Added, ...]
    moved: tuple[Moved, ...]
    dropped: tuple[int, ...]
    refused: tuple[int, ...] = ()


class FollowerSession(Generic[KeyT]):
    """What a follower has told one leader. Keys are added, touched and dropped at any time."""

    __slots__ = (
        "_added",
        "_dropped",
        "_keys",
        "_next_slot",
        "_refused",
        "_slots",
        "_touched",
        "is_open",
        "number",
        "session",
    )

    def __init__(self, session: int) -> None:
        self.session = session
        self.number = -1  # of the fetch that is open, or was last
        self.is_open = False
        self._slots: dict[KeyT, int] = {}
        self._keys: dict[int, KeyT] = {}
        self._added: dict[KeyT, None] = {}
        self._touched: dict[KeyT, None] = {}
        self._dropped: list[int] = []
        self._refused: list[int] = []  # those of the dropped that cannot be written here
        self._next_slot = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._slots

    def keys(self) -> tuple[KeyT, ...]:
        return tuple(self._slots)

    def add(self, key: KeyT) -> None:
        """Follow a partition, under a new slot: answers to the old one mean nothing any more."""
        self.drop(key)
        slot = self._next_slot
        self._next_slot += 1
        self._slots[key] = slot
        self._keys[slot] = key
        self._added[key] = None

    def drop(self, key: KeyT) -> None:
        slot = self._slots.pop(key, None)
        if slot is None:
            return
        del self._keys[slot]
        self._touched.pop(key, None)
        if key in self._added:
            del self._added[key]  # the leader never heard of it
        else:
            self._dropped.append(slot)

    def refuse(self, key: KeyT) -> None:
        """Drop a partition because it cannot be written."""
        slot = self.slot(key)
        if slot is not None:
            self._refused.append(slot)
        self.drop(key)

    def touch(self, key: KeyT) -> None:
        """The position has changed, so the next fetch has to tell it."""
        if key in self._slots and key not in self._added:
            self._touched[key] = None

    def slot(self, key: KeyT) -> int | None:
        """The slot under which the leader knows a partition, if it does."""
        return None if key in self._added else self._slots.get(key)

    def key(self, slot: int) -> KeyT | None:
        return self._keys.get(slot)

    def begin(self, describe: Callable[[KeyT, int], Added]) -> FetchChanges:
        """What the next fetch names; ``describe`` tells a partition's position."""
        assert not self.is_open, "one fetch at a time"
        added = tuple(describe(key, self._slots[key]) for key in self._added)
        rows = (describe(key, self._slots[key]) for key in self._touched)
        moved = tuple(Moved(row.slot, row.offset, row.last_epoch, row.stable) for row in rows)
        named = FetchChanges(added, moved, tuple(self._dropped), tuple(self._refused))
        self._forget()
        self.number += 1
        self.is_open = True
        return named

    def accept(self, answer: Fetched) -> bool:
        """Whether an answer is to the fetch that is open. That ends it."""
        if not self.is_open or answer.session != self.session or answer.number != self.number:
            return False
        self.is_open = False
        return answer.is_known

    def restart(self, session: int) -> None:
        """Begin anew under another number, as after an error: the leader may know anything or nothing of ours."""
        self.session = session
        self.number = -1
        self.is_open = False
        keys = self.keys()
        self._slots.clear()
        self._keys.clear()
        self._forget()
        for key in keys:
            self.add(key)

    def _forget(self) -> None:
        self._added.clear()
        self._touched.clear()
        self._dropped.clear()
        self._refused.clear()


class LeaderSession(Generic[PositionT]):
    """What a leader knows of one follower node's fetches."""

    __slots__ = ("_news", "node_epoch", "number", "positions", "session")

    def __init__(self, node_epoch: int, session: int) -> None:
        self.node_epoch = node_epoch
        self.session = session
        self.number = -1
        self.positions: dict[int, PositionT] = {}
        self._news: dict[int, None] = {}

    def is_next(self, fetch: FetchReplica) -> bool:
        """Whether a fetch goes on where the last one of this session ended."""
        return (fetch.node_epoch, fetch.session, fetch.number) == (self.node_epoch, self.session, self.number + 1)

    def is_newer(self, fetch: FetchReplica) -> bool:
        """Whether a fetch begins a session later than this one, in the same life of the follower or a later one."""
        return fetch.number == 0 and (fetch.node_epoch, fetch.session) > (self.node_epoch, self.session)

    def add(self, slot: int, position: PositionT) -> None:
        self.positions[slot] = position

    def drop(self, slot: int) -> PositionT | None:
        self._news.pop(slot, None)
        return self.positions.pop(slot, None)

    def note(self, slot: int) -> None:
        """There is something to tell about a slot."""
        self._news[slot] = None

    def settle(self, slot: int) -> None:
        """It was told."""
        self._news.pop(slot, None)

    def news(self) -> tuple[int, ...]:
        """The slots with something to tell, those first that have waited longest."""
        return tuple(self._news)
