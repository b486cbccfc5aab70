"""How long each member may stay silent, and by when it has to have done what it was told. None of it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class Presence:
    """A member's two clocks: it has to be heard of by one time, and to have acted by the other."""

    heard_by_ms: float
    act_by_ms: float = inf


class Attendance:
    """The clocks of all members."""

    def __init__(self) -> None:
        self._presences: dict[str, Presence] = {}
        self.wake_ms: float = inf  # nobody is late before this time; it may be early, but never late itself

    def touch(self, member_id: str, until_ms: float) -> None:
        """The member was heard of."""
        presence = self._presences.get(member_id)
        if presence is None:
            self._presences[member_id] = Presence(until_ms)
        else:
            presence.heard_by_ms = until_ms
        self.wake_ms = min(self.wake_ms, until_ms)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._presences

    def expect(self, member_id: str, by_ms: float) -> None:
        """The member was told to do something."""
        self._presences[member_id].act_by_ms = by_ms
        self.wake_ms = min(self.wake_ms, by_ms)

    def expect_soon(self, member_id: str, by_ms: float) -> None:
        """The member was told to do something, unless it was told before: then that time stands."""
        self.expect(member_id, min(by_ms, self._presences[member_id].act_by_ms))

    def excuse(self, member_id: str) -> None:
        """The member has done it."""
        self._presences[member_id].act_by_ms = inf

    def forget(self, member_id: str) -> None:
        self._presences.pop(member_id, None)

    def late(self, now_ms: int) -> list[str]:
        """Who was not heard of or has not acted in time; works out anew when to look again."""
        found = []
        self.wake_ms = inf
        for member_id, presence in self._presences.items():
            due_ms = min(presence.heard_by_ms, presence.act_by_ms)
            if due_ms <= now_ms:
                found.append(member_id)
            self.wake_ms = min(self.wake_ms, due_ms)
        return found
