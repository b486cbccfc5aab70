"""Nodes become one quorum, in whatever order they come, and never two."""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest
from tests.unit.quorum.cluster import Cluster, Node, cluster_id, run, until, voters

from penstock.consensus.quorum.formation import Formation, FormationPlan
from penstock.consensus.quorum.wire import GREET, JOIN, Greet, Greeting, Join, Joined
from penstock.consensus.raft.messages import Members
from penstock.errors import PolicyViolation
from penstock.testing.files import Crash


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_the_first_nodes_form_one_quorum_in_any_order(order: tuple[int, ...]) -> None:
    async def story() -> None:
        cluster = Cluster(3)
        starts = []
        for node_id in order:
            assert not any(task.done() for task in starts), "all of them are needed"
            starts.append(asyncio.ensure_future(cluster.nodes[node_id].start()))
            await asyncio.sleep(0.03)
        await asyncio.gather(*starts)
        await cluster.leader()
        await cluster.agree()
        assert all(node.quorum.members == voters(1, 2, 3) for node in cluster.here())
        await cluster.stop()

    run(story())


def test_nodes_that_stop_and_start_again_while_forming_form_one_quorum() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        for node_id in (2, 1, 3):
            node = cluster.nodes[node_id]
            start = asyncio.ensure_future(node.start())
            await asyncio.sleep(0.02)
            start.cancel()
            await asyncio.wait([start])
            await node.kill()
        await cluster.start()
        await cluster.agree()
        assert all(node.quorum.members == voters(1, 2, 3) for node in cluster.here())
        await cluster.stop()

    run(story())


@pytest.mark.parametrize("victim", [1, 2])
@pytest.mark.parametrize("step", range(1, 16, 2))
def test_a_power_cut_at_any_step_of_forming_leaves_nodes_that_form_one_quorum(victim: int, step: int) -> None:
    async def story() -> None:
        cluster = Cluster(3)
        node = cluster.nodes[victim]
        tasks = [asyncio.ensure_future(other.start()) for other in cluster.nodes.values() if other is not node]
        node.build()
        node.files.crash_at = node.files.steps + step
        try:
            async with asyncio.timeout(0.5):
                await node.formation.begin()
        except (Crash, TimeoutError):
            pass
        await node.kill()
        await node.start()
        await asyncio.gather(*tasks)
        await cluster.leader()
        await cluster.agree()
        await cluster.stop()

    run(story(), is_real=True)


def test_a_formed_voter_that_comes_back_alone_waits_for_the_others() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        await cluster.start()
        await cluster.decide(cluster_id("abc"))
        await cluster.stop()
        alone = cluster.nodes[1]
        await alone.start()
        await asyncio.sleep(0.3)
        assert not alone.quorum.is_leader
        await cluster.nodes[2].start()
        assert (await cluster.leader()).quorum.metadata.cluster_id == "abc"
        await cluster.stop()

    run(story())


def test_wiped_nodes_never_form_a_second_quorum() -> None:
    """Two of three disks are lost: what the third has is not thrown away by the two who remember nothing."""

    async def story() -> None:
        cluster = Cluster(3)
        await cluster.start()
        await cluster.decide(cluster_id("abc"))
        await cluster.stop()
        starts = []
        for node_id in (1, 2):
            cluster.nodes[node_id].wipe()
            starts.append(asyncio.ensure_future(cluster.nodes[node_id].start()))
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in starts), "the third might have something"
        await cluster.nodes[3].start()
        await asyncio.sleep(0.6)
        assert not any(task.done() for task in starts), "the third has something"
        assert not any(node.quorum.is_leader for node in cluster.here())
        for task in starts:
            task.cancel()
        await asyncio.wait(starts)
        await cluster.stop(3)

    run(story())


def test_a_founder_that_is_wiped_takes_its_place_again() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        await cluster.start()
        await cluster.propose()
        founder = cluster.nodes[1]
        await founder.kill()
        founder.wipe()
        await founder.start()
        await cluster.agree()
        leader = await cluster.leader()
        assert leader.quorum.members == Members({2: "disk-2-1", 3: "disk-3-1"}, {1: "disk-1-2"})
        await cluster.stop()

    run(story())


def test_whoever_told_a_new_founder_that_it_is_free_does_not_follow_the_old_one() -> None:
    """The old founder has formed, and its word is on its way, when it loses its disk and begins anew."""

    async def story() -> None:
        cluster = Cluster(3)
        node = cluster.nodes[2]
        node.build()
        old = cluster.exchange.join(1)
        is_late = asyncio.Event()

        async def answer_late(sender: int, greet: Greet, body: memoryview) -> Greeting:
            del sender, greet, body
            await is_late.wait()
            return Greeting(
                node_id=1,
                directory_id="disk-1-1",
                first=(1, 2, 3),
                members=voters(1, 2, 3),
                leader_id=None,
                addresses={},
            )

        old.serve(GREET, answer_late)
        start = asyncio.ensure_future(node.formation.begin())
        await asyncio.sleep(0.02)
        greet = Greet(node_id=1, directory_id="disk-1-2", address=("memory", 1), first=(1, 2, 3))
        told: Greeting = (await old.call(2, GREET, greet)).reply
        assert told.members is None
        is_late.set()
        await asyncio.sleep(0.05)
        assert not node.quorum.store.is_formed
        start.cancel()
        await asyncio.wait([start])

    run(story())


def test_nodes_that_were_told_of_different_others_do_not_form() -> None:
    async def story() -> None:
        cluster = Cluster(2)
        cluster.nodes[2].plan = FormationPlan(first={**cluster.first, 3: ("memory", 3)}, address=("memory", 2))
        starts = [asyncio.ensure_future(node.start()) for node in cluster.nodes.values()]
        await asyncio.sleep(0.3)
        assert not any(node.quorum.store.is_formed for node in cluster.nodes.values())
        for task in starts:
            task.cancel()
        await asyncio.wait(starts)

    run(story())


# -- joining -----------------------------------------------------------------------------------------------------------


async def join(cluster: Cluster, node_id: int, by: int) -> Node:
    node = cluster.add_joiner(node_id, by)
    await node.start()
    await until(lambda: node.quorum.members.knows(node.member) and node.quorum.leader_id is not None)
    return node


def test_a_node_joins_by_the_address_of_any_other() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        leader = await cluster.start()
        for node_id, by in enumerate((1, 2, 3), 4):
            await join(cluster, node_id, by)
        await cluster.agree()
        assert leader.quorum.members == Members(
            voters(1, 2, 3).voters, {node_id: f"disk-{node_id}-1" for node_id in (4, 5, 6)}
        )
        await cluster.stop()

    run(story())


def test_a_node_that_asks_to_join_before_there_is_a_cluster_holds_nobody_up() -> None:
    """It knows none of the first nodes but one, which is no reason for them to be at odds."""

    async def story() -> None:
        cluster = Cluster(1)
        cluster.nodes[1].build()  # it can be greeted, and has not begun yet
        joiner = cluster.add_joiner(4, 1)
        joining = asyncio.ensure_future(joiner.start())
        await asyncio.sleep(0.3)
        assert not joiner.quorum.store.is_formed
        await asyncio.wait_for(cluster.nodes[1].formation.begin(), 5)
        await joining
        await until(lambda: joiner.quorum.members.knows(joiner.member) and joiner.quorum.leader_id is not None)
        await cluster.stop()

    run(story())


def test_a_quorum_of_one_grows() -> None:
    async def story() -> None:
        cluster = Cluster(1)
        first = await cluster.start()
        await cluster.decide(cluster_id("abc"))
        for node_id in (2, 3):
            node = await join(cluster, node_id, by=1)
            await until(lambda node_id=node_id: first.quorum.caught_up(node_id))  # type: ignore[misc]
            await first.quorum.change_members(first.quorum.members.with_voter(node.member))
        await cluster.agree()
        await first.kill()
        assert (await cluster.leader()).quorum.metadata.cluster_id == "abc"
        await cluster.propose()
        await first.start()
        await cluster.agree()
        await cluster.stop()

    run(story())


def test_a_learner_that_is_started_again_is_found_by_the_leader() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        await cluster.start()
        node = await join(cluster, 4, by=1)
        await node.kill()
        await cluster.propose()
        await node.start()
        await cluster.agree()
        await cluster.stop()

    run(story())


def test_a_member_that_was_removed_while_it_was_away_comes_back_as_a_learner() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        leader = await cluster.start()
        away = next(node for node in cluster.here() if node is not leader)
        await away.kill()
        await leader.quorum.change_members(leader.quorum.members.without(away.id))
        await away.start()
        await cluster.agree()
        assert away.id in leader.quorum.members.learners
        await cluster.stop()

    run(story())


def test_a_second_node_with_the_id_of_a_living_one_is_not_taken_in() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        leader = await cluster.start()
        await cluster.agree()
        for node in cluster.here():
            twin = Join(node_id=node.id, directory_id="another", address=None)
            joined: Joined = (await node.quorum._peers.call(leader.id, JOIN, twin)).reply
            assert joined.members is None
            assert str(node.id) in joined.reason
        assert leader.quorum.members == voters(1, 2, 3)
        await cluster.stop()

    run(story())


def test_a_node_greets_and_joins_in_its_own_name_and_does_not_move_one_that_is_reached() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        leader = await cluster.start()
        await cluster.agree()
        victim, other = [node for node in cluster.here() if node is not leader]
        for method, request in (
            (JOIN, Join(node_id=victim.id, directory_id="another", address=("evil", 1))),
            (GREET, Greet(node_id=victim.id, directory_id="another", address=("evil", 1), first=())),
        ):
            with pytest.raises(PolicyViolation, match="in the name of node"):
                await other.quorum._peers.call(leader.id, method, request)
        moved = Greet(node_id=victim.id, directory_id="another", address=("evil", 1), first=())
        greeting: Greeting = (await victim.quorum._peers.call(leader.id, GREET, moved)).reply
        assert ("evil", 1) not in greeting.addresses.values()
        await cluster.stop()

    run(story())


def test_a_bug_while_settling_does_not_keep_a_replaced_node_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        cluster = Cluster(3)
        await cluster.start()
        await cluster.agree()
        await cluster.stop(3)
        with monkeypatch.context() as patch:
            patch.setattr(Formation, "_greet_all", lambda *_: 1 // 0)
            await cluster.nodes[3].start()
            failures = cluster.nodes[3].formation._supervision.failures
            await until(lambda: failures["settling in the quorum"])
        settling = cluster.nodes[3].formation._settling
        assert settling is not None
        await until(settling.done)
        assert settling.exception() is None
        await cluster.stop()

    run(story())
