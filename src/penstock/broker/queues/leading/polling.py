"""Whoever waits for messages of a group: in line, so that what comes is handed out in turn.

A message wakes one of them, not all. Whoever was woken tries to receive and then passes the turn on, so everything that
came is taken by somebody. After one event each is woken once at most: if all have as much in flight as they may, they
sleep until the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Waiter:
    """One call that waits, in as many rooms as it likes."""

    __slots__ = ("_rooms", "_woken")

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._rooms: dict[WaitingRoom, None] = {}

    def enter(self, room: WaitingRoom) -> None:
        """Get in line; whoever is in line already keeps the place."""
        if room not in self._rooms:
            self._rooms[room] = None
            room.admit(self)

    def leave_all(self, *, is_passing_on: bool = True) -> None:
        """Wait no more, and let the others have their turn."""
        rooms, self._rooms = self._rooms, {}
        for room in rooms:
            room.dismiss(self, is_passing_on=is_passing_on)

    def pass_on(self) -> None:
        """There was nothing for this one; somebody else may be allowed to take it."""
        for room in self._rooms:
            room.pass_on()

    def wake(self) -> None:
        self._woken.set()

    async def sleep(self) -> None:
        """Return when there may be something, or has been since the last time."""
        await self._woken.wait()
        self._woken.clear()


class WaitingRoom:
    """The line of one group at one partition. ``is_ready`` tells whether anything could be handed out now."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._line: dict[Waiter, int] = {}  # and after which event each was woken last
        self._events = 1

    def __len__(self) -> int:
        return len(self._line)

    def admit(self, waiter: Waiter) -> None:
        self._line[waiter] = 0

    def dismiss(self, waiter: Waiter, *, is_passing_on: bool) -> None:
        if self._line.pop(waiter, None) is not None and is_passing_on:
            self.pass_on()

    def notify(self) -> None:
        """There may be something now."""
        if self._line:
            self._events += 1
            self.pass_on()

    def pass_on(self) -> None:
        """Let the next one in line try, who has not since the last event."""
        if not self._line or not self._is_ready():
            return
        for waiter, woken_at in self._line.items():
            if woken_at < self._events:
                self._line[waiter] = self._events
                waiter.wake()
                return

    def wake_all(self) -> None:
        """Everybody has to look for themselves: nothing is handed out here any more."""
        for waiter in self._line:
            waiter.wake()
