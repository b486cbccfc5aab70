"""The scenario "groups": three members share six partitions, come, go and crash while messages keep coming.

Members are processes that write diaries (``tests/support/group.py``, which the everyday tests of the Python clients use
too). Afterwards nothing may have been skipped, and nothing may have come twice that was committed before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, runtime_checkable

from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import AdminClient
from tests.support.group import Feed, Fleet, Member, Story, check_at_least_once, wait_until

from bench.compat.brokers import Running
from bench.compat.steps import Result, step

PARTITIONS = 6
PATIENCE_S = 60.0
NEW_PROTOCOL = "consumer"  # KIP-848, where the broker shares out the partitions
# Strategies under which a member keeps what it has while others come; under the others it gives up everything.
INCREMENTAL = frozenset({"cooperative-sticky", NEW_PROTOCOL})


@runtime_checkable
class Joins(Protocol):
    """A client that can be a member of a group."""

    name: str
    strategies: Sequence[str]

    def member(self, strategy: str) -> list[str]:
        """The program that is one, to be given --bootstrap, --group, --topic and --diary."""


def play(client: Joins, broker: Running) -> Iterator[Result]:
    """One group for each strategy, all at the same time, because most of what they do is wait."""
    with ThreadPoolExecutor(len(client.strategies)) as threads:
        yield from threads.map(
            lambda strategy: step(client.name, f"group, {strategy}", partial(_live, client, strategy, broker)),
            client.strategies,
        )


def _live(client: Joins, strategy: str, broker: Running) -> str:
    name = f"group-{client.name}-{strategy}"
    broker.create_topic(name, PARTITIONS)
    feed = Feed(broker.bootstrap, name, PARTITIONS, pause_s=0.03)
    fleet = Fleet(broker.scratch / name, broker.bootstrap, name, name)
    join = partial(fleet.start, client.member(strategy))
    try:
        first = join()
        _wait_until_it_reads(first, "the first member")
        second = join()
        _wait_until_it_reads(second, "the second member")
        third = join()
        _wait_until_it_reads(third, "the third member")
        _wait_until_it_reads(first, "the first member, with two others")
        _check_protocol(broker.bootstrap, name, strategy)
        second.leave()
        third.crash()
        fourth = join()
        _wait_until_it_reads(fourth, "the fourth member")
        sent = feed.stop()
        wait_until("everything is read", lambda: fleet.values() >= sent, PATIENCE_S)
        stories = fleet.stories
        first.leave()
        fourth.leave()
    finally:
        feed.stop()
        fleet.end()
    doubled = check_at_least_once(sent, stories)
    if strategy in INCREMENTAL:
        _check_incremental(stories[0])
    return f"{len(sent)} messages, {doubled} of them more than once"


def _wait_until_it_reads(member: Member, who: str) -> None:
    before = len(member.story.got)

    def has_read() -> bool:
        assert member.is_running, f"{who} ended: {member.log_tail()}"
        return len(member.story.got) > before

    wait_until(f"{who} reads", has_read, PATIENCE_S)


def _check_protocol(bootstrap: str, group: str, strategy: str) -> None:
    """Clients fall back to the old protocol without a word where they think that a broker lacks the new one."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # without a name for it, it would end before its answer comes
    found = [each.type for each in admin.list_consumer_groups().result(10).valid if each.group_id == group]
    wanted = ConsumerGroupType.CONSUMER if strategy == NEW_PROTOCOL else ConsumerGroupType.CLASSIC
    assert found == [wanted], f"the group is listed with the types {[each.name for each in found]}"


def _check_incremental(story: Story) -> None:
    """Nobody was asked to give up everything, nor given what it had."""
    for at, partitions in story.assigned:
        assert not story.held_before(at) & partitions, "the first member was given what it had"
    revoked = [(at, partitions) for at, partitions in story.revoked if partitions]  # some clients are told of nothing
    assert revoked, "the others got nothing from the first member"
    for at, partitions in revoked:
        assert partitions < story.held_before(at), "the first member had to give up everything"
