"""Heartbeats that contradict themselves are refused, and leave no trace."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.groups.consumer.topics import MemoryTopics
from tests.unit.groups.journal import MemoryJournal

from penstock.config.settings import GroupSettings
from penstock.errors import (
    GroupFull,
    InvalidRegularExpression,
    InvalidRequest,
    PenstockError,
    UnknownMember,
    UnsupportedAssignor,
)
from penstock.features.groups.consumer.messages import Beat, ConsumerHeartbeat
from penstock.features.groups.consumer.topics import compile_pattern
from penstock.features.groups.coordinator import GroupShard

JOIN = ConsumerHeartbeat(
    member_id="a",
    epoch=0,
    client_id="client",
    client_host="/here",
    rebalance_timeout_ms=60_000,
    topics=("orders",),
    owned=frozenset(),
)


def new_shard(config: GroupSettings | None = None) -> GroupShard:
    shard = GroupShard(
        MemoryJournal(), config or GroupSettings(), lambda: 0, lambda: 0, lambda work: work(), MemoryTopics(orders=2)
    )
    shard.open({})
    return shard


def ask(shard: GroupShard, request: ConsumerHeartbeat) -> Beat:
    answers: list[Beat] = []
    shard.ask("g", request, answers.append)
    (answer,) = answers
    return answer


@pytest.mark.parametrize(
    ("request_", "error", "says"),
    [
        (replace(JOIN, member_id=""), InvalidRequest, "MemberId"),
        (replace(JOIN, member_id="", fresh_id="x", epoch=3), InvalidRequest, "MemberId"),
        (replace(JOIN, instance_id=""), InvalidRequest, "InstanceId"),
        (replace(JOIN, rack_id=" "), InvalidRequest, "RackId"),
        (replace(JOIN, topics=("orders", "")), InvalidRequest, "topic name"),
        (replace(JOIN, epoch=-3), InvalidRequest, "MemberEpoch"),
        (replace(JOIN, epoch=-2), InvalidRequest, "InstanceId"),
        (replace(JOIN, rebalance_timeout_ms=-1), InvalidRequest, "RebalanceTimeoutMs"),
        (replace(JOIN, owned=None), InvalidRequest, "TopicPartitions"),
        (replace(JOIN, owned=frozenset({("orders#0", 0)})), InvalidRequest, "TopicPartitions"),
        (replace(JOIN, topics=None), InvalidRequest, "SubscribedTopic"),
        (replace(JOIN, assignor="best"), UnsupportedAssignor, "uniform, range"),
        (replace(JOIN, regex="("), InvalidRegularExpression, "RE2"),
        (replace(JOIN, regex=r"(a)\1"), InvalidRegularExpression, "RE2"),
        (replace(JOIN, regex="a" * 20_000), InvalidRegularExpression, "10000"),
        (replace(JOIN, epoch=1), UnknownMember, "join again"),
        (replace(JOIN, epoch=-1), UnknownMember, "join again"),
        (replace(JOIN, epoch=-2, instance_id="i1"), UnknownMember, "join again"),
    ],
)
def test_what_makes_no_sense_is_refused(request_: ConsumerHeartbeat, error: type[PenstockError], says: str) -> None:
    shard = new_shard()
    with pytest.raises(error, match=says):
        ask(shard, request_)
    assert not shard.machines


def test_a_member_without_an_id_is_given_one_where_the_protocol_allows() -> None:
    assert ask(new_shard(), replace(JOIN, member_id="", fresh_id="fresh")).member_id == "fresh"


def test_a_group_takes_no_more_members_than_it_may() -> None:
    shard = new_shard(GroupSettings(members_max=1))
    ask(shard, JOIN)
    with pytest.raises(GroupFull):
        ask(shard, replace(JOIN, member_id="b"))
    assert ask(shard, JOIN).epoch == 1, "who is in may join again"


def test_an_empty_subscription_is_one() -> None:
    assert ask(new_shard(), replace(JOIN, topics=())).assignment == frozenset()


def test_a_hostile_pattern_costs_next_to_nothing() -> None:
    """In Python's own engine this one takes longer than the universe has."""
    assert not compile_pattern("(a*)*(a|aa)+$b").fullmatch("a" * 249)
