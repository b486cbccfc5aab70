"""Sharing out partitions: the same result as other clients come to, and always fair."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from penstock.features.groups.consumer.assignors import (
    CLIENT_ASSIGNORS,
    GroupSubscriber,
    Target,
    assign_in_turn,
    assign_ranges,
)

TOPICS = ("orders", "payments", "zebra", "émile")
names = st.sampled_from([f"{letter}-{number}" for letter in "bca" for number in (10, 2, 1)])
# A busy machine is no reason to fail.
patiently = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9))


@st.composite
def groups(draw: st.DrawFn, *, with_static: bool = True, alike: bool = False) -> dict[str, GroupSubscriber]:
    ids = draw(st.lists(names, min_size=1, max_size=7, unique=True))
    some = st.frozensets(st.sampled_from(TOPICS), min_size=1)
    shared = draw(some)
    members: dict[str, GroupSubscriber] = {}
    for number, member_id in enumerate(ids):
        instance = draw(st.one_of(st.none(), names)) if with_static else None
        instance = None if instance is None else f"{instance}-{number}"
        members[member_id] = GroupSubscriber(shared if alike else draw(some), instance)
    return members


class Cluster:
    """What other libraries' assignors ask for."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._counts[topic])) if topic in self._counts else None


def by_kafka_python(assignor: Any, subscribers: dict[str, GroupSubscriber], counts: dict[str, int]) -> Target:
    # Static members first, because kafka-python groups leaders only.
    ordered = sorted(subscribers.items(), key=lambda item: item[1].instance_id is None)
    members = [
        SimpleNamespace(
            member_id=member_id,
            group_instance_id=one.instance_id,
            metadata=SimpleNamespace(topics=sorted(one.topics)),
        )
        for member_id, one in ordered
    ]
    return {
        member_id: frozenset((topic, index) for topic, index in found.partitions())
        for member_id, found in assignor.assign(Cluster(counts), members).items()
    }


@patiently
@given(groups(), partition_counts)
def test_ranges_are_those_of_kafka_python(subscribers: dict[str, GroupSubscriber], counts: dict[str, int]) -> None:
    expected = by_kafka_python(RangePartitionAssignor, subscribers, counts)
    assert assign_ranges(subscribers, {}, counts) == expected


@patiently
@given(groups(alike=True), partition_counts)
def test_turns_are_those_of_kafka_python(subscribers: dict[str, GroupSubscriber], counts: dict[str, int]) -> None:
    """Where all want the same: kafka-python stumbles over members that have to be passed over."""
    expected = by_kafka_python(RoundRobinPartitionAssignor, subscribers, counts)
    assert assign_in_turn(subscribers, {}, counts) == expected


@patiently
@given(groups(with_static=False), partition_counts)
def test_turns_with_different_wishes_are_those_of_aiokafka(
    subscribers: dict[str, GroupSubscriber], counts: dict[str, int]
) -> None:
    """Without static members, which aiokafka does not treat apart."""
    members = {
        member_id: ConsumerProtocolMemberMetadata(0, sorted(one.topics), b"") for member_id, one in subscribers.items()
    }
    found = AioRoundRobin.assign(Cluster(counts), members)  # type: ignore[arg-type]
    expected = {
        member_id: frozenset((topic, index) for topic, indexes in each.assignment for index in indexes)
        for member_id, each in found.items()
    }
    assert assign_in_turn(subscribers, {}, counts) == expected


@patiently
@given(groups(), partition_counts, st.sampled_from(sorted(CLIENT_ASSIGNORS)))
def test_everything_wanted_is_given_once_and_to_somebody_who_wants_it(
    subscribers: dict[str, GroupSubscriber], counts: dict[str, int], name: str
) -> None:
    shares = CLIENT_ASSIGNORS[name](subscribers, {}, counts)
    topics = {member_id: one.topics for member_id, one in subscribers.items()}
    assert shares.keys() == topics.keys()
    given_out = [where for places in shares.values() for where in places]
    wanted = frozenset[str]().union(*topics.values())
    assert sorted(given_out) == sorted(
        (topic, index) for topic, count in counts.items() if topic in wanted for index in range(count)
    )
    assert all(where[0] in topics[member_id] for member_id, places in shares.items() for where in places)


@patiently
@given(groups(alike=True), partition_counts)
def test_turns_differ_by_one_at_most(subscribers: dict[str, GroupSubscriber], counts: dict[str, int]) -> None:
    sizes = {len(places) for places in assign_in_turn(subscribers, {}, counts).values()}
    assert max(sizes) - min(sizes) <= 1


@patiently
@given(groups(), partition_counts, st.randoms(use_true_random=False), st.sampled_from(sorted(CLIENT_ASSIGNORS)))
def test_the_order_in_which_members_came_does_not_matter(
    subscribers: dict[str, GroupSubscriber], counts: dict[str, int], rng: Any, name: str
) -> None:
    before = CLIENT_ASSIGNORS[name](subscribers, {}, counts)
    shuffled = list(subscribers.items())
    rng.shuffle(shuffled)
    assert CLIENT_ASSIGNORS[name](dict(shuffled), {}, counts) == before
