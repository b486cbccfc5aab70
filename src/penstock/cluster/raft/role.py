"""What a member of a quorum is to the others at a moment."""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    FOLLOWER = "follower"
    TRIAL = "trial"  # asking whether an election would be won
    CANDIDATE = "candidate"
    LEADER = "leader"
