"""What every group is held to; read once at the composition root."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Limits of every group. The defaults are Kafka's, except that members of the new protocol are heard of oftener."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    # A new group waits this long for more members before it shares out partitions, and again after each that comes.
    initial_delay_ms: int = 3_000
    # Who joins for the first time has no id to send heartbeats with, and may give up unseen: it is kept this long.
    newcomer_timeout_ms: int = 300_000
    members_max: int = 10_000
    # Members of the new protocol are told how often to be heard of, and bring no timeouts of their own.
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    offset_metadata_bytes_max: int = 4_096
    # Offsets are forgotten this long after their group lost its last member (KIP-211).
    offsets_retention_ms: int = 7 * 24 * 3_600_000

    @property
    def member_times(self) -> MemberTimes:
        """Of groups that have no settings of their own."""
        return MemberTimes(self.session_timeout_ms, self.heartbeat_interval_ms)


class MemberTimes(NamedTuple):
    """What members of the new protocol are held to."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


MemberTimesOf = Callable[[str], MemberTimes]  # of a group, as its settings are at this moment
