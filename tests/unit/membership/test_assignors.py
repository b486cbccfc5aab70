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

from penstock.features.groups.hosted.assignors import ASSIGNORS, Shares, Subscriber, assign_in_turn, assign_ranges

TOPICS = ("orders", "payments", "zebra", "émile")
names = st.sampled_from([f"{letter}-{number}" for letter in "bca" for number in (10, 2, 1)])
# A busy machine is no reason to fail.
patiently = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9))


@st.composite
def groups(draw: st.DrawFn, *, with_static: bool = True, alike: bool = False) -> list[Subscriber]:
    ids = draw(st.lists(names, min_size=1, max_size=7, unique=True))
    some = st.frozensets(st.sampled_from(TOPICS), min_size=1)
    shared = draw(some)
    members = []
    for number, member_id in enumerate(ids):
        instance = draw(st.one_of(st.none(), names)) if with_static else None
        instance = None if instance is None else f"{instance}-{number}"
        members.append(Subscriber(member_id, instance, shared if alike else draw(some)))
    return members


class Cluster:
    """What other libraries' assignors ask for."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._counts[topic])) if topic in self._counts else None


def by_kafka_python(assignor: Any, subscribers: list[Subscriber], counts: dict[str, int]) -> Shares:
    # Static members first, because kafka-python groups leaders only.
    ordered = sorted(subscribers, key=lambda one: one.instance_id is None)
    members = [
        SimpleNamespace(
            member_id=one.member_id,
            group_instance_id=one.instance_id,
            metadata=SimpleNamespace(topics=sorted(one.topics)),
        )
        for one in ordered
    ]
    return {
        member_id: [(topic, index) for topic, index in found.partitions()]
        for member_id, found in assignor.assign(Cluster(counts), members).items()
    }


def in_order(shares: Shares) -> Shares:
    return {member_id: sorted(places) for member_id, places in shares.items()}


@patiently
@given(groups(), partition_counts)
def test_ranges_are_those_of_kafka_python(subscribers: list[Subscriber], counts: dict[str, int]) -> None:
    expected = by_kafka_python(RangePartitionAssignor, subscribers, counts)
    assert in_order(assign_ranges(subscribers, counts)) == in_order(expected)


@patiently
@given(groups(alike=True), partition_counts)
def test_turns_are_those_of_kafka_python(subscribers: list[Subscriber], counts: dict[str, int]) -> None:
    """Where all want the same: kafka-python stumbles over members that have to be passed over."""
    expected = by_kafka_python(RoundRobinPartitionAssignor, subscribers, counts)
    assert in_order(assign_in_turn(subscribers, counts)) == in_order(expected)


@patiently
@given(groups(with_static=False), partition_counts)
def test_turns_with_different_wishes_are_those_of_aiokafka(
    subscribers: list[Subscriber], counts: dict[str, int]
) -> None:
    """Without static members, which aiokafka does not treat apart."""
    members = {one.member_id: ConsumerProtocolMemberMetadata(0, sorted(one.topics), b"") for one in subscribers}
    found = AioRoundRobin.assign(Cluster(counts), members)  # type: ignore[arg-type]
    expected = {
        member_id: [(topic, index) for topic, indexes in each.assignment for index in indexes]
        for member_id, each in found.items()
    }
    assert in_order(assign_in_turn(subscribers, counts)) == in_order(expected)


@patiently
@given(groups(), partition_counts, st.sampled_from(sorted(ASSIGNORS)))
def test_everything_wanted_is_given_once_and_to_somebody_who_wants_it(
    subscribers: list[Subscriber], counts: dict[str, int], name: str
) -> None:
    shares = ASSIGNORS[name](subscribers, counts)
    topics = {one.member_id: one.topics for one in subscribers}
    assert shares.keys() == topics.keys()
    given_out = [where for places in shares.values() for where in places]
    wanted = frozenset[str]().union(*topics.values())
    assert sorted(given_out) == sorted(
        (topic, index) for topic, count in counts.items() if topic in wanted for index in range(count)
    )
    assert all(where[0] in topics[member_id] for member_id, places in shares.items() for where in places)


@patiently
@given(groups(alike=True), partition_counts)
def test_turns_differ_by_one_at_most(subscribers: list[Subscriber], counts: dict[str, int]) -> None:
    sizes = {len(places) for places in assign_in_turn(subscribers, counts).values()}
    assert max(sizes) - min(sizes) <= 1


@patiently
@given(groups(), partition_counts, st.randoms(use_true_random=False), st.sampled_from(sorted(ASSIGNORS)))
def test_the_order_in_which_members_came_does_not_matter(
    subscribers: list[Subscriber], counts: dict[str, int], rng: Any, name: str
) -> None:
    before = ASSIGNORS[name](subscribers, counts)
    rng.shuffle(subscribers)
    assert ASSIGNORS[name](subscribers, counts) == before
