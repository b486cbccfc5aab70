"""Assignors: everything is given once, evenly, and moves as little as it can."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.features.groups.consumer.assignors import (
    ASSIGNORS,
    GroupSubscriber,
    Place,
    Target,
    assign_ranges,
    assign_uniformly,
    choose_assignor,
)

TOPICS = ("t1", "t2", "t3", "t4")

subscribers = st.builds(GroupSubscriber, st.frozensets(st.sampled_from(TOPICS)))
groups = st.dictionaries(st.sampled_from([f"m{number}" for number in range(8)]), subscribers, max_size=8)
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7))


def check_complete(members: Mapping[str, GroupSubscriber], partitions: Mapping[str, int], target: Target) -> None:
    """Everybody has an entry, nobody has what it does not want, and every partition that is wanted is given once."""
    assert set(target) == set(members)
    given_out = [place for places in target.values() for place in places]
    assert len(given_out) == len(set(given_out))
    wanted = frozenset[str]().union(*(subscriber.topics for subscriber in members.values()))
    assert set(given_out) == {
        (topic, at) for topic, count in partitions.items() if topic in wanted for at in range(count)
    }
    for member_id, places in target.items():
        assert {topic for topic, _ in places} <= members[member_id].topics


def check_even(members: Mapping[str, GroupSubscriber], target: Target) -> None:
    """Nobody could take over a partition from somebody who has two or more beyond what it has itself."""
    for places in target.values():
        for topic, _ in places:
            readers = [len(target[each]) for each, subscriber in members.items() if topic in subscriber.topics]
            assert len(places) - min(readers) <= 1


@settings(max_examples=80, deadline=None)
@given(groups, groups, counts, counts, st.sampled_from(sorted(ASSIGNORS)))
def test_every_wanted_partition_is_given_once(before, after, old_counts, new_counts, name) -> None:
    assign = ASSIGNORS[name]
    first = assign(before, {}, old_counts)
    check_complete(before, old_counts, first)
    second = assign(after, first, new_counts)
    check_complete(after, new_counts, second)
    if name == "uniform":
        check_even(before, first)
        check_even(after, second)


@settings(max_examples=80, deadline=None)
@given(groups, counts, st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter_and_what_is_even_stays(members, partitions, chance) -> None:
    shuffled = list(members.items())
    chance.shuffle(shuffled)
    first = assign_uniformly(members, {}, partitions)
    assert assign_uniformly(dict(shuffled), {}, partitions) == first
    assert assign_uniformly(members, first, partitions) == first


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(0, 40), st.data())
def test_one_who_comes_or_goes_moves_no_more_than_its_share(size: int, count: int, data) -> None:
    """All want the same: a newcomer takes its share from the others, and only that; a leaver's is shared out."""
    everybody = {f"m{number:02}": GroupSubscriber(frozenset({"t1"})) for number in range(size)}
    partitions = {"t1": count}
    before = assign_uniformly(everybody, {}, partitions)
    newcomer = {**everybody, data.draw(st.sampled_from(["a", "z"])): GroupSubscriber(frozenset({"t1"}))}
    after = assign_uniformly(newcomer, before, partitions)
    assert all(after[each] <= before[each] for each in everybody)
    leaver = data.draw(st.sampled_from(sorted(everybody)))
    rest = {each: subscriber for each, subscriber in everybody.items() if each != leaver}
    left = assign_uniformly(rest, before, partitions)
    assert all(left[each] >= before[each] for each in rest)


def test_a_topic_is_spread_over_members() -> None:
    members = {each: GroupSubscriber(frozenset({"t1", "t2"})) for each in "abc"}
    target = assign_uniformly(members, {}, {"t1": 3, "t2": 3})
    assert all({topic for topic, _ in places} == {"t1", "t2"} for places in target.values())


def places(topic: str, *indexes: int) -> set[Place]:
    return {(topic, index) for index in indexes}


def test_ranges_are_runs_and_the_same_for_topics_that_are_alike() -> None:
    members = {each: GroupSubscriber(frozenset({"t1", "t2"})) for each in "cab"}
    target = assign_ranges(members, {}, {"t1": 7, "t2": 7})
    assert target["a"] == places("t1", 0, 1, 2) | places("t2", 0, 1, 2)
    assert target["b"] == places("t1", 3, 4) | places("t2", 3, 4)
    assert target["c"] == places("t1", 5, 6) | places("t2", 5, 6)


def test_ranges_follow_static_members_not_their_ids() -> None:
    """A static member that was restarted under another id is given the same range."""
    topics = frozenset({"t1"})

    def of_instance(first_id: str) -> Collection[Place]:
        members = {
            "m": GroupSubscriber(topics),
            first_id: GroupSubscriber(topics, "i1"),
            "n": GroupSubscriber(topics, "i2"),
        }
        return assign_ranges(members, {}, {"t1": 6})[first_id]

    assert of_instance("a") == of_instance("z") == places("t1", 0, 1)


@pytest.mark.parametrize(
    ("wishes", "chosen"),
    [
        ([], "uniform"),
        ([None, None], "uniform"),
        (["range", None, None], "range"),
        (["range", "uniform", "range"], "range"),
        (["range", "uniform"], "uniform"),
    ],
)
def test_the_assignor_that_most_ask_for_is_taken(wishes: list[str | None], chosen: str) -> None:
    assert choose_assignor(wishes) == chosen


@pytest.mark.parametrize("is_alike", [True, False])
def test_a_thousand_members_and_ten_thousand_partitions_take_little_time(is_alike: bool) -> None:
    partitions = {f"topic-{number:03}": 100 for number in range(100)}
    everything = frozenset(partitions)
    half = frozenset(sorted(partitions)[:50])
    members = {
        f"m{number:04}": GroupSubscriber(everything if is_alike or number % 2 else half) for number in range(1_000)
    }
    started = time.process_time()
    target = assign_uniformly(members, {}, partitions)
    del members["m0500"]
    previous = {each: places for each, places in target.items() if each in members}
    again = assign_uniformly(members, previous, partitions)
    spent_s = time.process_time() - started
    check_complete(members, partitions, again)
    moved = sum(len(again[each] - target[each]) for each in members)
    print(f"two targets in {spent_s * 1000:.0f} ms, {moved} partitions moved")
    assert moved <= (10 if is_alike else 40)
    assert spent_s < 1.5
