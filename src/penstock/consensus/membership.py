"""Which nodes are alive, as far as the controller has heard, and which of them vote. It has no clock of its own.

Sessions are known to the leading controller alone and die with its lead, so a new one gives every node a whole session
from when it began. Time in which the controller itself did not run counts against no node: it is added to every
session.

Voters are as many as are wanted, and an odd number of them where there are enough nodes. A voter that is dead stays
one: it may be back in a moment, and only an operator knows whether it will be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.consensus.raft.messages import Member, Members


@dataclass(slots=True)
class NodeSession:
    """What is known of one node."""

    until_ms: int
    admitted_ms: int  # since when it is let in, as far as this controller knows
    is_heard: bool = False
    is_leaving: bool = False
    is_unable: bool = False  # it cannot write to its disk
    must_have_applied: int = 0  # the index up to which it must know the metadata before it is let in


class NodeSessions:
    """The sessions of all nodes."""

    def __init__(self, session_ms: int) -> None:
        self._session_ms = session_ms
        self._sessions: dict[int, NodeSession] = {}
        self._required: dict[int, int] = {}
        self._begun_at = 0
        self._looked_ms = 0

    def begin(self, node_ids: Iterable[int], now_ms: int, index: int) -> None:
        """Begin to lead, at an index: no node was heard yet."""
        until_ms = now_ms + self._session_ms
        self._sessions = {node_id: NodeSession(until_ms, now_ms, must_have_applied=index) for node_id in node_ids}
        self._required.clear()
        self._begun_at = index
        self._looked_ms = now_ms

    def renew(self, node_id: int, now_ms: int) -> NodeSession:
        """A node is alive."""
        session = self._sessions.get(node_id)
        if session is None:
            index = self._required.get(node_id, self._begun_at)
            session = self._sessions[node_id] = NodeSession(0, now_ms, must_have_applied=index)
        session.until_ms = now_ms + self._session_ms
        session.is_heard = True
        return session

    def suspect(self, node_id: int, now_ms: int, patience_ms: int) -> None:
        """Give a node less time to be heard: the connection to it broke, so it may have died."""
        session = self._sessions.get(node_id)
        if session is not None:
            session.until_ms = min(session.until_ms, now_ms + patience_ms)

    def end(self, node_id: int) -> None:
        """A node is given up on, until it is heard again."""
        self._sessions.pop(node_id, None)

    def require(self, node_id: int, index: int) -> None:
        """Let a node in only once it knows the metadata up to an index."""
        self._required[node_id] = index
        session = self._sessions.get(node_id)
        if session is not None:
            session.must_have_applied = index

    def expired(self, now_ms: int) -> list[int]:
        """The nodes whose session is over, and that were not given up on yet."""
        passed_ms = now_ms - self._looked_ms
        self._looked_ms = now_ms
        if passed_ms > self._session_ms // 2:
            for session in self._sessions.values():
                session.until_ms += passed_ms - self._session_ms // 4
        return [node_id for node_id, session in sorted(self._sessions.items()) if session.until_ms <= now_ms]

    def silent(self) -> frozenset[int]:
        """Nodes that were not heard since this controller leads."""
        return frozenset(node_id for node_id, session in self._sessions.items() if not session.is_heard)

    def leaving(self) -> frozenset[int]:
        return frozenset(node_id for node_id, session in self._sessions.items() if session.is_leaving)

    def unable(self) -> frozenset[int]:
        return frozenset(node_id for node_id, session in self._sessions.items() if session.is_unable)

    def admitted_since(self, time_ms: int) -> frozenset[int]:
        """Nodes that were let in after a point in time."""
        return frozenset(node_id for node_id, session in self._sessions.items() if session.admitted_ms > time_ms)


Predicate = Callable[[int], bool]


def next_members(members: Members, wanted: int, *, is_living: Predicate, is_ready: Predicate) -> Members | None:
    """The next step to as many living voters as are wanted; None if there is none to take.

    ``is_ready`` tells whether a learner has caught up and lives. An even number of voters survives no more losses than
    one less does, so a second learner has to be ready where the first would make it even.
    """
    ready = [node_id for node_id in sorted(members.learners) if is_ready(node_id)]
    if not ready:
        return None
    living = sum(is_living(node_id) for node_id in members.voters)
    is_even = len(members.voters) % 2 == 0
    if is_even or (living < wanted and len(ready) > 1):
        return members.with_voter(Member(ready[0], members.learners[ready[0]]))
    return None
