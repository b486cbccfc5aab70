"""How often members of the new protocol send heartbeats, where groups can have their own times."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.config.settings import GroupSettings


class MemberTimes(NamedTuple):
    """What members of the new protocol are told."""

    session_timeout_ms: int
    heartbeat_interval_ms: int

    @classmethod
    def of(cls, config: GroupSettings) -> MemberTimes:
        """Those of groups that have none of their own."""
        return cls(config.session_timeout_ms, config.heartbeat_interval_ms)


MemberTimesOf = Callable[[str], MemberTimes]  # of a group, as its settings are at this moment
