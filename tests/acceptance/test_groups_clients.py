"""Groups of real consumers: members join, leave and crash, and every message is handled at least once.

All groups live at the same time on one node, each with a topic of its own, because most of what they do is wait.
"""

from __future__ import annotations

import threading
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.clients.confluent import ConfluentClient
from tests.support.group import Feed, Fleet, Member, Story, check_at_least_once, wait_until
from tests.support.node import Node

PARTITIONS = frozenset(range(6))


class Variant(NamedTuple):
    """A client library and how it shares out partitions."""

    client: str
    strategy: str

    @property
    def name(self) -> str:
        return f"{self.client}-{self.strategy}"


NAME = attrgetter("name")

VARIANTS = (
    Variant("confluent", "range"),
    Variant("confluent", "cooperative-sticky"),
    Variant("kafka-python", "range"),
    Variant("kafka-python", "cooperative-sticky"),
    Variant("aiokafka", "roundrobin"),
)


class Played(NamedTuple):
    """What a variant's group did."""

    sent: set[str]
    stories: list[Story]


def reads(member: Member, since: int) -> bool:
    return len(member.story.got) > since


def play(variant: Variant, node: Node, directory: Path) -> Played:
    """Two members, a third joins, one leaves, one crashes, the last one finishes the work."""
    topic = f"topic-{variant.name}"
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=len(PARTITIONS))
    feed = Feed(node.bootstrap, topic, len(PARTITIONS))
    fleet = Fleet(directory / variant.name, node.bootstrap, f"group-{variant.name}", topic)
    try:
        first, second = (fleet.join(variant.client, variant.strategy) for _ in range(2))
        wait_until("two members read", lambda: reads(first, 0) and reads(second, 0))
        third = fleet.join(variant.client, variant.strategy)
        wait_until("three members read", lambda: reads(third, 0))
        was_read = len(first.story.got)
        wait_until("the first goes on", lambda: reads(first, was_read))
        second.leave()
        third.crash()
        sent = feed.stop()
        wait_until("the last one finishes the work", lambda: fleet.values() >= sent, patience_s=90)
        first.leave()
        return Played(sent, fleet.stories)
    finally:
        fleet.end()


@pytest.fixture(scope="module")
def played(node: Node, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Played | BaseException]:
    """Every variant's story, all of them played at once."""
    directory = tmp_path_factory.mktemp("groups")
    outcomes: dict[str, Played | BaseException] = {}

    def run(variant: Variant) -> None:
        try:
            outcomes[variant.name] = play(variant, node, directory)
        except BaseException as error:
            outcomes[variant.name] = error

    threads = [threading.Thread(target=run, args=[variant]) for variant in VARIANTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=NAME)
def test_members_come_go_and_crash_and_nothing_is_skipped(
    variant: Variant, played: dict[str, Played | BaseException]
) -> None:
    outcome = played[variant.name]
    if isinstance(outcome, BaseException):
        raise outcome
    doubled = check_at_least_once(outcome.sent, outcome.stories)
    print(f"{variant.name}: {len(outcome.sent)} messages, {doubled} of them more than once")
    assert all(story.got for story in outcome.stories), "some member never got anything"


@pytest.mark.slow
@pytest.mark.parametrize("variant", [each for each in VARIANTS if "cooperative" in each.strategy], ids=NAME)
def test_a_cooperative_member_keeps_what_it_has_when_others_come(
    variant: Variant, played: dict[str, Played | BaseException]
) -> None:
    """Eager members give up everything in each round; cooperative ones only what others are to have."""
    outcome = played[variant.name]
    assert isinstance(outcome, Played)
    first = outcome.stories[0]
    for at, partitions in first.assigned:
        assert not first.held_before(at) & partitions, "it was given what it had"
    in_rounds = [(at, partitions) for at, partitions in first.revoked if at < first.assigned[-1][0]]
    assert in_rounds, "the third member got nothing from the first"
    for at, partitions in in_rounds:
        assert partitions < first.held_before(at), "it had to give up everything"
    assert first.held_before(first.assigned[-1][0] + 0.001) == PARTITIONS


def settled(member: Member, partitions: int) -> bool:
    """Whether a member was last given so many partitions."""
    assigned = member.story.assigned
    return bool(assigned) and len(assigned[-1][1]) == partitions


@pytest.mark.slow
def test_a_static_member_that_crashes_and_comes_back_in_time_disturbs_nobody(node: Node, tmp_path: Path) -> None:
    topic = "topic-static"
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=len(PARTITIONS))
    feed = Feed(node.bootstrap, topic, len(PARTITIONS))
    fleet = Fleet(tmp_path, node.bootstrap, "group-static", topic)
    try:
        one, two = (fleet.join("confluent", "range", instance) for instance in ("one", "two"))
        wait_until("both have three partitions", lambda: settled(one, 3) and settled(two, 3))
        wait_until("both read", lambda: reads(one, 0) and reads(two, 0))
        rounds_before = len(one.story.assigned)
        had = two.story.assigned[-1][1]
        two.crash()
        again = fleet.join("confluent", "range", "two")
        wait_until("it reads again", lambda: reads(again, 0))
        assert again.story.assigned[-1][1] == had
        sent = feed.stop()
        wait_until("everything is read", lambda: fleet.values() >= sent)
        assert len(one.story.assigned) == rounds_before, "the other member had to join again"
        check_at_least_once(sent, fleet.stories)
    finally:
        fleet.end()
