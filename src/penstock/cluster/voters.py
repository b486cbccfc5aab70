"""Which members of the quorum vote: as many as are wanted, and an odd number of them where there are enough nodes.

A voter that is dead stays one: it may be back in a moment, and only people know whether it will be.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.cluster.raft.messages import Member, Members

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
