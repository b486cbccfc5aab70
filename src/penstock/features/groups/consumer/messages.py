"""What members of the new protocol say, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.features.groups.consumer.assignors import Place
from penstock.machines.messages import Request

JOINING: Final = 0  # the epoch of who wants to join
LEAVING: Final = -1  # of who leaves
LEAVING_FOR_NOW: Final = -2  # of a static member that will be back


class Beat(NamedTuple):
    """A heartbeat is taken. ``assignment`` is None where it is what the member was told before."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int
    assignment: frozenset[Place] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat(Request[Beat]):
    """A member is alive, or joins, or leaves. What is None (or -1) is as it was."""

    member_id: str
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: frozenset[Place] | None = None
    # The id for a member that brings none, as it may in the first version of the protocol; None if it must bring one.
    fresh_id: str | None = None

    @property
    def is_full(self) -> bool:
        """Whether it tells everything, as after an answer that got lost."""
        has_wishes = self.topics is not None or self.regex is not None
        return self.epoch == JOINING or (self.rebalance_timeout_ms >= 0 and has_wishes and self.owned is not None)
