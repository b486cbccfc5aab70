"""What members of the new protocol say, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.errors import InvalidRequest, UnsupportedAssignor
from penstock.features.groups.consumer.assignors import ASSIGNORS, Place
from penstock.features.groups.consumer.topics import compile_pattern
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


def check_heartbeat(request: ConsumerHeartbeat) -> None:
    """Refuse what contradicts itself, as Kafka does."""
    for name, text in (
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
        *(("A topic name", topic) for topic in request.topics or ()),
    ):
        if text is not None and not text.strip():
            raise InvalidRequest(f"{name} must not be empty.")
    if not request.member_id and (request.epoch != JOINING or request.fresh_id is None):
        raise InvalidRequest("MemberId must not be empty.")
    if request.epoch < LEAVING_FOR_NOW:
        raise InvalidRequest(f"MemberEpoch {request.epoch} is none; 0 joins, -1 leaves, -2 leaves for now.")
    if request.epoch == LEAVING_FOR_NOW and request.instance_id is None:
        raise InvalidRequest("InstanceId must be given by a static member that leaves for now.")
    if request.epoch == JOINING:
        _check_join(request)
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        raise UnsupportedAssignor(f"There is no assignor {request.assignor!r} here; there are {', '.join(ASSIGNORS)}.")
    if request.regex:
        compile_pattern(request.regex)


def _check_join(request: ConsumerHeartbeat) -> None:
    if request.rebalance_timeout_ms < 0:
        raise InvalidRequest("RebalanceTimeoutMs must be given by who joins.")
    if request.owned is None or request.owned:
        raise InvalidRequest("TopicPartitions must be empty for who joins: it owns nothing yet.")
    if request.topics is None and request.regex is None:
        raise InvalidRequest("SubscribedTopicNames or SubscribedTopicRegex must be given by who joins.")
