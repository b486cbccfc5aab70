"""The rules of a classic group as two tables; everything else in this package carries them out.

`VERDICTS` says how an event is met in each state, `TRANSITIONS` which steps lead from one state to the next. A pair
that a table leaves out cannot happen, because members exist exactly when the group is not empty.

    EMPTY ──begin──▶ PREPARING ──joined──▶ COMPLETING ──assigned──▶ STABLE
      ▲                │  ▲                     │                      │
      └────emptied─────┘  └───────begin─────────┴──────────────────────┘
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class GroupState(Enum):
    """Where a group is in its round. The values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"  # members are joining
    COMPLETING = "CompletingRebalance"  # members wait for the leader's assignment
    STABLE = "Stable"


class GroupEvent(Enum):
    """What happens to a group."""

    NEWCOMER = "a member joins for the first time"
    RETURN = "a static member was restarted, wanting what it wanted before"
    CHANGE = "a member joins again, wanting something else"
    REJOIN = "a follower joins again, as it was"
    LEADER_REJOIN = "the leader joins again: it may have seen something that its assignment depends on"
    SYNC = "a member asks for its assignment"
    HEARTBEAT = "a member is alive"
    COMMIT = "a member commits offsets"
    LONE_COMMIT = "somebody who is no member commits offsets"
    LOSS = "a member left, or its time ran out"
    DELETE = "somebody deletes the group"


class GroupVerdict(Enum):
    """How an event is met."""

    ANSWER = "at once"
    WAIT = "the answer comes with the next step of the round"
    BEGIN = "a new round begins"
    REBALANCING = "refused: a round is under way, join it"
    REFUSE = "refused: that is for empty groups only"


class RoundStep(Enum):
    """What moves a group from one state to another."""

    BEGIN = "a round begins"
    JOINED = "everybody is in, or the time to join is up"
    EMPTIED = "no member is left: stored"
    ASSIGNED = "everybody has an assignment: stored"


EMPTY, PREPARING, COMPLETING, STABLE = GroupState

VERDICTS: Final[Mapping[GroupEvent, Mapping[GroupState, GroupVerdict]]] = {
    GroupEvent.NEWCOMER: {
        EMPTY: GroupVerdict.BEGIN,
        PREPARING: GroupVerdict.WAIT,
        COMPLETING: GroupVerdict.BEGIN,
        STABLE: GroupVerdict.BEGIN,
    },
    # Not answered while COMPLETING: the leader may be assigning to the id that is gone (KAFKA-9801).
    GroupEvent.RETURN: {PREPARING: GroupVerdict.WAIT, COMPLETING: GroupVerdict.BEGIN, STABLE: GroupVerdict.ANSWER},
    GroupEvent.CHANGE: {PREPARING: GroupVerdict.WAIT, COMPLETING: GroupVerdict.BEGIN, STABLE: GroupVerdict.BEGIN},
    GroupEvent.REJOIN: {PREPARING: GroupVerdict.WAIT, COMPLETING: GroupVerdict.ANSWER, STABLE: GroupVerdict.ANSWER},
    GroupEvent.LEADER_REJOIN: {
        PREPARING: GroupVerdict.WAIT,
        COMPLETING: GroupVerdict.ANSWER,
        STABLE: GroupVerdict.BEGIN,
    },
    GroupEvent.SYNC: {PREPARING: GroupVerdict.REBALANCING, COMPLETING: GroupVerdict.WAIT, STABLE: GroupVerdict.ANSWER},
    GroupEvent.HEARTBEAT: {
        PREPARING: GroupVerdict.REBALANCING,
        COMPLETING: GroupVerdict.ANSWER,
        STABLE: GroupVerdict.ANSWER,
    },
    # Members may commit what they did in the last generation until the next one has begun.
    GroupEvent.COMMIT: {
        PREPARING: GroupVerdict.ANSWER,
        COMPLETING: GroupVerdict.REBALANCING,
        STABLE: GroupVerdict.ANSWER,
    },
    GroupEvent.LONE_COMMIT: {
        EMPTY: GroupVerdict.ANSWER,
        PREPARING: GroupVerdict.REFUSE,
        COMPLETING: GroupVerdict.REFUSE,
        STABLE: GroupVerdict.REFUSE,
    },
    GroupEvent.LOSS: {PREPARING: GroupVerdict.ANSWER, COMPLETING: GroupVerdict.BEGIN, STABLE: GroupVerdict.BEGIN},
    GroupEvent.DELETE: {
        EMPTY: GroupVerdict.ANSWER,
        PREPARING: GroupVerdict.REFUSE,
        COMPLETING: GroupVerdict.REFUSE,
        STABLE: GroupVerdict.REFUSE,
    },
}

TRANSITIONS: Final[Mapping[RoundStep, Mapping[GroupState, GroupState]]] = {
    RoundStep.BEGIN: {EMPTY: PREPARING, COMPLETING: PREPARING, STABLE: PREPARING},
    RoundStep.JOINED: {PREPARING: COMPLETING},
    # From STABLE and EMPTY as well: a log that is read again holds one stored generation after the other.
    RoundStep.EMPTIED: {PREPARING: EMPTY, STABLE: EMPTY, EMPTY: EMPTY},
    RoundStep.ASSIGNED: {COMPLETING: STABLE, STABLE: STABLE, EMPTY: STABLE},
}
