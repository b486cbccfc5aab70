"""Transactions whose partitions, coordinator and groups are on different nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.transactions.nodes import Cluster, Node, play, until

from penstock.errors import ConcurrentTransactions, CoordinatorLoading, NotCoordinator, ProducerFenced
from penstock.features.groups.messages import CommitInTransaction, MemberIdentity, OffsetCommit
from penstock.features.transactions.markers import MARK
from penstock.features.transactions.messages import AddToTransaction
from penstock.features.transactions.states import TransactionState
from penstock.machines.messages import ProducerIdentity
from penstock.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

ALL = (("t", 0), ("t", 1), ("t", 2))


async def begin(cluster: Cluster, name: str = "x", *places: tuple[str, int]) -> ProducerIdentity:
    """A producer that has written ``a`` to partitions, each admitted by the node that leads it."""
    producer = await cluster.leader(TRANSACTIONS_TOPIC, 0).transactions.init(name, 60_000)
    for where in places or ALL:
        assert await cluster.leader(*where).admit(name, producer, where) == frozenset()
        cluster.write(where, producer, "a")
    return producer


def coordinator(cluster: Cluster) -> Any:
    return cluster.leader(TRANSACTIONS_TOPIC, 0).transactions


def state(cluster: Cluster, name: str = "x") -> TransactionState:
    found: TransactionState = coordinator(cluster).find(name).state
    return found


def test_every_partition_hears_of_the_end_wherever_it_is() -> None:
    async def story(cluster: Cluster) -> None:
        for is_commit, verb in ((True, "commits"), (False, "aborts")):
            name = verb
            producer = await begin(cluster, name)
            successor = await coordinator(cluster).end(name, producer, is_commit=is_commit, bumps=True)
            assert successor == ProducerIdentity(producer.producer_id, producer.epoch + 1)
            for where in ALL:
                assert cluster.story(*where)[-2:] == [
                    f"{producer.producer_id}/0: a",
                    f"{producer.producer_id}/1 {verb}",
                ]
                assert cluster.partition(*where).last_stable_offset == cluster.partition(*where).log.end_offset

    play(story)


def test_nodes_are_asked_once_for_all_their_partitions() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.create("wide", *[2] * 20, *[3] * 20)
        places = [("wide", index) for index in range(40)]
        producer = await begin(cluster, "x", *places)
        before = cluster.exchange.delivered
        await coordinator(cluster).end("x", producer, is_commit=True, bumps=True)
        assert cluster.exchange.delivered - before == 4  # a question and an answer for each node
        assert {cluster.story(*where)[-1] for where in places} == {f"{producer.producer_id}/1 commits"}

    play(story)


def test_a_node_out_of_reach_is_told_when_it_is_back_and_keeps_no_other_waiting() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await begin(cluster)
        cluster.exchange.cut(1, 3)
        ending = asyncio.ensure_future(coordinator(cluster).end("x", producer, is_commit=True, bumps=True))
        await until(lambda: cluster.story("t", 1)[-1].endswith("commits"))
        assert cluster.story("t", 0)[-1].endswith("commits")
        await asyncio.sleep(0.1)
        assert cluster.story("t", 2) == [f"{producer.producer_id}/0: a"]
        assert state(cluster) is TransactionState.PREPARE_COMMIT
        cluster.exchange.heal()
        await ending
        await until(lambda: state(cluster) is TransactionState.COMPLETE_COMMIT)
        assert cluster.story("t", 2)[-1].endswith("commits")

    play(story)


def test_markers_follow_leadership() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await begin(cluster)
        cluster.orphan("t", 2)
        ending = asyncio.ensure_future(coordinator(cluster).end("x", producer, is_commit=False, bumps=True))
        await until(lambda: cluster.story("t", 1)[-1].endswith("aborts"))
        cluster.move("t", 2, 2)
        await ending
        await until(lambda: state(cluster) is TransactionState.COMPLETE_ABORT)
        assert cluster.story("t", 2)[-1].endswith("aborts")

    play(story)


def test_a_partition_that_is_not_here_is_not_taken_for_deleted_and_one_that_is_deleted_is() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.create("gone", 3)
        producer = await begin(cluster, "x", ("t", 2), ("gone", 0))
        cluster.delete("gone")
        await coordinator(cluster).end("x", producer, is_commit=True, bumps=True)
        await until(lambda: state(cluster) is TransactionState.COMPLETE_COMMIT)
        assert cluster.story("t", 2)[-1].endswith("commits")

    play(story)


def test_a_leader_that_has_not_heard_of_its_partition_yet_is_asked_again() -> None:
    async def story(cluster: Cluster) -> None:
        late = cluster.nodes[3]
        late.backlog = []
        cluster.create("new", 3)
        producer = await coordinator(cluster).init("x", 60_000)
        await coordinator(cluster).ask("x", AddToTransaction(producer, frozenset({("new", 0)})))
        ending = asyncio.ensure_future(coordinator(cluster).end("x", producer, is_commit=True, bumps=True))
        await asyncio.sleep(0.05)
        assert cluster.story("new", 0) == []
        late.catch_up()
        await ending
        await until(lambda: cluster.story("new", 0) != [])

    play(story)


def test_a_new_coordinator_finishes_what_the_old_one_decided() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await begin(cluster)
        cluster.exchange.cut(1, 3)
        cluster.exchange.cut(1, 2)
        ending = asyncio.ensure_future(coordinator(cluster).end("x", producer, is_commit=True, bumps=True))
        await until(lambda: state(cluster) is TransactionState.PREPARE_COMMIT)
        cluster.move(TRANSACTIONS_TOPIC, 0, 2)
        with pytest.raises(NotCoordinator):
            await ending
        cluster.exchange.heal()
        await coordinator(cluster).await_shard("x")
        await until(lambda: state(cluster) is TransactionState.COMPLETE_COMMIT)
        for where in ALL:
            assert cluster.story(*where)[-1] == f"{producer.producer_id}/1 commits"
            assert not cluster.partition(*where).transactions()

    play(story)


def test_a_marker_that_was_held_up_does_not_end_a_later_transaction() -> None:
    """The anomaly of Kafka before KIP-890: the producer has the same epoch in both transactions."""

    async def story(cluster: Cluster) -> None:
        sent: list[Any] = []
        call = cluster.nodes[1].peers.call

        async def noted(node_id: int, method: Any, request: Any, *arguments: Any, **options: Any) -> Any:
            if method is MARK:
                sent.append(request)
            return await call(node_id, method, request, *arguments, **options)

        cluster.nodes[1].peers.call = noted  # type: ignore[method-assign]
        producer = await begin(cluster, "x", ("t", 1))
        await coordinator(cluster).end("x", producer, is_commit=True, bumps=False)
        cluster.move("t", 1, 3)
        cluster.move("t", 1, 2)
        await cluster.nodes[2].admit("x", producer, ("t", 1))
        cluster.write(("t", 1), producer, "b", sequence=1)
        reply = (await call(2, MARK, sent[0])).reply
        assert [failure.error for failure in reply.failures] == ["FencedLeaderEpoch"]
        assert [tale.split("/")[1] for tale in cluster.story("t", 1)] == ["0: a", "0 commits", "0: b"]

    play(story)


# -- admission ---------------------------------------------------------------------------------------------------------


def test_what_is_not_in_the_transaction_is_named_by_the_coordinator_elsewhere() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await coordinator(cluster).init("x", 60_000)
        await coordinator(cluster).ask("x", AddToTransaction(producer, frozenset({("t", 1)})))
        node = cluster.nodes[2]
        cluster.create("u", 2)
        assert await node.admit("x", producer, ("t", 1), adds=False) == frozenset()
        assert await node.admit("x", producer, ("t", 1), ("u", 0), adds=False) == {("u", 0)}
        assert isinstance(
            await node.admit("x", ProducerIdentity(producer.producer_id, -1), ("t", 1), adds=False), ProducerFenced
        )

    play(story)


class Delay:
    """Keeps the answers to a node's calls back until they are let go."""

    def __init__(self, node: Node) -> None:
        self._call = node.peers.call
        self.answered = 0
        self.is_let_go = asyncio.Event()
        node.peers.call = self.call  # type: ignore[method-assign]

    async def call(self, *arguments: Any, **options: Any) -> Any:
        received = await self._call(*arguments, **options)
        self.answered += 1
        await self.is_let_go.wait()
        return received


@pytest.mark.parametrize("adds", [True, False])
def test_an_answer_that_a_marker_has_overtaken_does_not_count(adds: bool) -> None:
    async def story(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        producer = await coordinator(cluster).init("x", 60_000)
        if not adds:
            await coordinator(cluster).ask("x", AddToTransaction(producer, frozenset({("t", 1)})))
        delay = Delay(node)
        asking = asyncio.ensure_future(node.admit("x", producer, ("t", 1), adds=adds))
        await until(lambda: delay.answered == 1)
        await coordinator(cluster).end("x", producer, is_commit=False, bumps=False)
        assert cluster.story("t", 1) == [f"{producer.producer_id}/0 aborts"]
        delay.is_let_go.set()
        assert isinstance(await asking, ConcurrentTransactions)
        assert await node.admit("x", producer, ("t", 1), adds=True) == frozenset()  # in the next transaction

    play(story)


def test_an_answer_from_before_another_leadership_does_not_count() -> None:
    async def story(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        producer = await coordinator(cluster).init("x", 60_000)
        delay = Delay(node)
        asking = asyncio.ensure_future(node.admit("x", producer, ("t", 1)))
        await until(lambda: delay.answered == 1)
        cluster.move("t", 1, 3)
        cluster.move("t", 1, 2)
        delay.is_let_go.set()
        assert isinstance(await asking, ConcurrentTransactions)

    play(story)


def test_the_word_of_a_coordinator_that_was_replaced_does_not_count() -> None:
    async def story(cluster: Cluster) -> None:
        stale, partition_leader = cluster.nodes[1], cluster.nodes[2]
        producer = await begin(cluster, "x", ("t", 1))
        stale.backlog, partition_leader.backlog = [], []
        cluster.move(TRANSACTIONS_TOPIC, 0, 3, resigns=False)
        new = cluster.nodes[3].transactions
        await new.await_shard("x")
        await new.end("x", producer, is_commit=False, bumps=False)
        await until(lambda: cluster.story("t", 1)[-1].endswith("aborts"))
        assert stale.transactions.find("x").state is TransactionState.ONGOING  # it does not know better
        verdict = await partition_leader.admit("x", producer, ("t", 1), adds=False)
        assert isinstance(verdict, NotCoordinator)
        # The same where the coordinator that was replaced leads the partition itself.
        cluster.nodes[3].partitions["t", 1] = cluster.nodes[2].partitions["t", 1]
        stale.partitions["t", 1] = cluster.nodes[2].partitions["t", 1]
        assert isinstance(await stale.admit("x", producer, ("t", 1), adds=False), NotCoordinator)

    play(story)


def test_a_coordinator_takes_in_only_what_it_knows() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await coordinator(cluster).init("x", 60_000)
        cluster.nodes[1].backlog = []
        cluster.create("new", 2)
        assert isinstance(await cluster.nodes[2].admit("x", producer, ("new", 0)), CoordinatorLoading)
        cluster.nodes[1].catch_up()
        assert await cluster.nodes[2].admit("x", producer, ("new", 0)) == frozenset()

    play(story)


def test_who_cannot_reach_the_coordinator_has_to_try_again() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await coordinator(cluster).init("x", 60_000)
        cluster.exchange.cut(1, 2)
        assert isinstance(await cluster.nodes[2].admit("x", producer, ("t", 1)), NotCoordinator)
        cluster.exchange.heal()
        cluster.orphan(TRANSACTIONS_TOPIC, 0)
        assert isinstance(await cluster.nodes[2].admit("x", producer, ("t", 1)), NotCoordinator)
        waiting = Delay(cluster.nodes[3])
        cluster.move(TRANSACTIONS_TOPIC, 0, 1)
        asking = asyncio.ensure_future(cluster.nodes[3].admit("x", producer, ("t", 2)))
        await until(lambda: waiting.answered == 1)
        await cluster.nodes[3].transactions.stop()
        assert isinstance(await asking, NotCoordinator)

    play(story)


def test_a_node_that_knows_of_no_coordinators_yet_says_so() -> None:
    async def story(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        producer = await coordinator(cluster).init("x", 60_000)
        topic = node.metadata.topics.pop(TRANSACTIONS_TOPIC)
        assert isinstance(await node.admit("x", producer, ("t", 1)), CoordinatorLoading)
        node.metadata.topics[TRANSACTIONS_TOPIC] = topic
        assert await node.admit("x", producer, ("t", 1)) == frozenset()

    play(story)


# -- offsets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, False])
def test_offsets_of_a_group_elsewhere_take_effect_with_the_transaction(is_commit: bool) -> None:
    async def story(cluster: Cluster) -> None:
        producer = await coordinator(cluster).init("x", 60_000)
        node = cluster.leader(OFFSETS_TOPIC, 0)
        await node.groups.await_shard("g")
        told: list[Any] = []
        identity = MemberIdentity(member_id="", instance_id=None, generation=-1)
        commit = CommitInTransaction(identity, producer, (OffsetCommit("t", 0, 42, -1, "", "00" * 16),))

        def then() -> None:
            node.groups.shard("g").ask("g", commit, told.append)

        assert await node.admit("x", producer, (OFFSETS_TOPIC, 0), then=then) == frozenset()
        assert len(told) == 1
        group = node.groups.find("g")
        assert group is not None
        assert ("t", 0) not in group.offsets
        await coordinator(cluster).end("x", producer, is_commit=is_commit, bumps=True)
        await until(
            lambda: (
                state(cluster) is (TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT)
            )
        )
        found = node.groups.find("g")
        if is_commit:
            assert found is not None
            assert found.offsets.get(("t", 0)).offset == 42
        else:
            assert found is None or ("t", 0) not in found.offsets

    play(story)


def test_a_coordinator_that_has_handed_over_passes_on_what_still_comes_to_it() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await begin(cluster)
        await coordinator(cluster).end("x", producer, is_commit=True, bumps=False)
        old = coordinator(cluster)
        cluster.move(TRANSACTIONS_TOPIC, 0, 2)
        assert coordinator(cluster) is not old
        await old.add("x", producer, frozenset({("t", 1)}))
        # The producer asks the new coordinator for the end, which knows of what it ends.
        await until(lambda: state(cluster) is TransactionState.ONGOING)
        await coordinator(cluster).end("x", producer, is_commit=False, bumps=False)
        await until(lambda: state(cluster) is TransactionState.COMPLETE_ABORT)

    play(story)


def test_what_is_passed_on_waits_for_the_new_coordinator() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await begin(cluster)
        await coordinator(cluster).end("x", producer, is_commit=True, bumps=False)
        old = coordinator(cluster)
        cluster.move(TRANSACTIONS_TOPIC, 0, 2)
        cluster.exchange.cut(1, 2)
        adding = asyncio.ensure_future(old.add("x", producer, frozenset({("t", 1)})))
        await asyncio.sleep(0.1)
        cluster.exchange.heal()
        await adding
        assert state(cluster) is TransactionState.ONGOING

    play(story)


def test_a_producer_is_sent_away_if_nobody_takes_over_and_told_if_it_is_refused() -> None:
    async def story(cluster: Cluster) -> None:
        producer = await begin(cluster)
        old = coordinator(cluster)
        cluster.move(TRANSACTIONS_TOPIC, 0, 2)
        with pytest.raises(ProducerFenced):
            await old.add("x", ProducerIdentity(producer.producer_id, producer.epoch + 7), frozenset({("t", 1)}))
        cluster.exchange.cut(1, 2)
        with pytest.raises(NotCoordinator):
            await old.add("x", producer, frozenset({("t", 1)}))

    play(story)
