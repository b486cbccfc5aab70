"""Which heartbeats make sense, before anybody looks at the group."""

from __future__ import annotations

from penstock.errors import InvalidRequest, UnsupportedAssignor
from penstock.features.groups.consumer.assignors import ASSIGNORS
from penstock.features.groups.consumer.messages import JOINING, LEAVING_FOR_NOW, ConsumerHeartbeat
from penstock.features.groups.consumer.topics import compile_pattern


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
