"""How one member gets from what it has to what it is meant to have, at its own pace.

A partition is given to a member only when no other has it, and it counts as somebody's until that member has said
that it let go. So a member first lets go of what it is not meant to have, then takes what is free, and waits for the
rest. The two tables are the whole of it; an epoch is taken on only when nothing is left to let go of.

    STABLE ──behind──▶ UNREVOKED ──let go──▶ UNRELEASED ──all free──▶ STABLE
       └──────────────────nothing to let go of───────────────────────────▲
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from penstock.features.groups.consumer.assignors import Place


class MemberState(Enum):
    """Where a member is on its way."""

    STABLE = "stable"
    UNREVOKED = "unrevoked_partitions"  # it was told to let go of partitions and has not said that it did
    UNRELEASED = "unreleased_partitions"  # it waits for partitions that others have


class Situation(Enum):
    """What a heartbeat finds."""

    LEVEL = "it has reached the target's epoch"
    BEHIND = "there is a newer target"
    HOLDING = "it still has what it was told to let go of, or does not say"
    RELEASED = "it has let go of everything it was told to"
    WAITING = "it waits for others"


class MemberStep(Enum):
    """What comes of it."""

    STAY = "nothing changes"
    ADVANCE = "it goes towards the target"


class TargetGap(Enum):
    """What is left to do on the way to the target."""

    MUST_REVOKE = "there is something to let go of first"
    MUST_WAIT = "others have some of it"
    ARRIVED = "it has all of it"


STABLE, UNREVOKED, UNRELEASED = MemberState

STEPS: Final[Mapping[MemberState, Mapping[Situation, MemberStep]]] = {
    STABLE: {Situation.LEVEL: MemberStep.STAY, Situation.BEHIND: MemberStep.ADVANCE},
    UNREVOKED: {Situation.HOLDING: MemberStep.STAY, Situation.RELEASED: MemberStep.ADVANCE},
    UNRELEASED: {Situation.WAITING: MemberStep.ADVANCE},
}

NEXT: Final[Mapping[TargetGap, MemberState]] = {
    TargetGap.MUST_REVOKE: UNREVOKED,
    TargetGap.MUST_WAIT: UNRELEASED,
    TargetGap.ARRIVED: STABLE,
}

LEFT_FOR_NOW: Final = -2  # the epoch of a static member that said that it will be back


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """What a member has: each partition with the epoch in which it got it."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = STABLE
    assigned: Mapping[Place, int] = field(default_factory=dict)
    revoking: Mapping[Place, int] = field(default_factory=dict)

    def at(self, epoch: int) -> Current:
        """The same in another epoch; the one before is remembered, as the member may not have heard of the new one."""
        return self if epoch == self.epoch else replace(self, epoch=epoch, previous_epoch=self.epoch)

    def is_settled_at(self, epoch: int) -> bool:
        return self.state is STABLE and self.epoch == epoch


def situation_of(current: Current, target_epoch: int, owned: Collection[Place] | None) -> Situation:
    """What a heartbeat finds; ``owned`` is what the member says it has, None if it says nothing."""
    if current.state is STABLE:
        return Situation.LEVEL if current.epoch == target_epoch else Situation.BEHIND
    if current.state is UNREVOKED:
        return Situation.HOLDING if _holds(owned, current.revoking) else Situation.RELEASED
    return Situation.WAITING


def _holds(owned: Collection[Place] | None, places: Mapping[Place, int]) -> bool:
    return owned is None or any(place in places for place in owned)


def reconcile(
    current: Current,
    target: Set[Place],
    target_epoch: int,
    owned: Collection[Place] | None,
    is_free: Callable[[Place], bool],
) -> Current:
    """The next step of a member. ``is_free`` tells whether no other member has a partition."""
    if STEPS[current.state][situation_of(current, target_epoch, owned)] is MemberStep.STAY:
        return current
    kept = {place: epoch for place, epoch in current.assigned.items() if place in target}
    revoking = {place: epoch for place, epoch in current.assigned.items() if place not in target}
    if revoking and _holds(owned, revoking):
        return replace(current, state=NEXT[TargetGap.MUST_REVOKE], assigned=kept, revoking=revoking)
    wanted = target - kept.keys()
    free = {place: target_epoch for place in wanted if is_free(place)}
    finding = TargetGap.ARRIVED if len(free) == len(wanted) else TargetGap.MUST_WAIT
    return replace(current.at(target_epoch), state=NEXT[finding], assigned={**kept, **free}, revoking={})
