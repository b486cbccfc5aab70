"""Members of a quorum at work, on a real event loop."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.quorum.cluster import PATIENT, Cluster, cluster_id, run, until

from penstock.consensus.quorum.wire import RAFT_MESSAGE, pack
from penstock.consensus.raft.messages import AppendEntries, Member
from penstock.errors import ControllerUnavailable, InvalidRequest, NotController


@pytest.mark.parametrize("is_real", [True, False])
def test_a_quorum_of_one_leads_at_once_and_keeps_what_it_decides(is_real: bool) -> None:
    async def story() -> None:
        cluster = Cluster(1, pace=PATIENT)
        leader = await cluster.start()
        quorum = leader.quorum
        index = await quorum.propose([cluster_id("abc"), cluster_id("def")])
        assert quorum.applied_index == index
        assert quorum.metadata.cluster_id == "def"
        assert leader.heard == [(1, []), True, (index, [cluster_id("abc"), cluster_id("def")])]
        assert await quorum.read_index() == index
        await leader.kill()
        await leader.start()
        await cluster.leader()
        assert leader.quorum.metadata.cluster_id == "def"
        assert leader.quorum.metadata is not quorum.metadata
        await cluster.stop()

    run(story(), is_real=is_real)


@pytest.mark.parametrize("size", [3, 5])
def test_members_elect_a_leader_and_agree(size: int) -> None:
    async def story() -> None:
        cluster = Cluster(size)
        leader = await cluster.start()
        await cluster.decide(cluster_id("abc"))
        await asyncio.gather(*(cluster.propose() for _ in range(200)))
        await cluster.agree()
        assert {node.quorum.leader_id for node in cluster.here()} == {leader.id}
        assert {node.quorum.term for node in cluster.here()} == {leader.quorum.term}
        assert {node.quorum.metadata.cluster_id for node in cluster.here()} == {"abc"}
        follower = next(node for node in cluster.here() if node is not leader)
        with pytest.raises(NotController):
            await follower.quorum.propose([cluster_id("no")])
        with pytest.raises(NotController):
            await follower.quorum.read_index()
        await cluster.stop()

    run(story())


def test_another_leads_when_the_leader_dies_and_nothing_is_lost() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        first = await cluster.start()
        await cluster.decide(cluster_id("abc"))
        await first.kill()
        second = await cluster.leader()
        assert second.quorum.metadata.cluster_id == "abc"
        await cluster.propose()
        await first.start()
        await cluster.agree()
        await cluster.stop()

    run(story())


@pytest.mark.parametrize("is_real", [True, False])
@pytest.mark.parametrize("size", [3, 5])
def test_all_come_back_from_a_power_cut_with_what_was_decided(size: int, is_real: bool) -> None:
    async def story() -> None:
        cluster = Cluster(size)
        leader = await cluster.start()
        await cluster.decide(cluster_id("abc"))
        for _ in range(5):
            await cluster.propose()
        await asyncio.gather(*(node.kill() for node in cluster.here()))
        leader = await cluster.start()
        assert leader.quorum.metadata.cluster_id == "abc"
        assert leader.quorum.metadata.next_producer_id == cluster.proposed
        await cluster.agree()
        await cluster.stop()

    run(story(), is_real=is_real)


def test_who_cannot_reach_a_majority_commits_nothing_and_says_so() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        old = await cluster.start()
        cluster.isolate(old.id)
        doubtful = asyncio.ensure_future(old.quorum.propose([cluster_id("lost")]))
        reading = asyncio.ensure_future(old.quorum.read_index())
        new = await cluster.leader(but=old.id)
        await new.quorum.propose([cluster_id("kept")])
        with pytest.raises(ControllerUnavailable):
            await doubtful
        with pytest.raises(ControllerUnavailable):
            await reading
        assert not old.quorum.is_leader
        assert old.heard[-1] is False
        with pytest.raises(NotController):
            await old.quorum.propose([cluster_id("no")])
        cluster.exchange.heal()
        await cluster.agree()
        assert old.quorum.metadata.cluster_id == "kept"
        await cluster.stop()

    run(story())


def test_what_was_said_to_another_disk_is_not_heard() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        leader = await cluster.start()
        term = leader.quorum.term
        message = AppendEntries(
            sender=Member(2, "disk-2-1"),
            to=leader.id,
            term=term + 50,
            previous_index=0,
            previous_term=0,
            entries=(),
            commit=0,
            round=1,
        )
        for directory_id in ("disk-of-old", leader.member.directory_id):
            assert leader.quorum.term == term
            other = next(node for node in cluster.here() if node is not leader)
            other.quorum._peers.tell(leader.id, RAFT_MESSAGE, pack(message, directory_id))
            await asyncio.sleep(0.02)
        assert leader.quorum.term > term, "the same is heard by the disk it is meant for"
        await cluster.stop()

    run(story())


def test_waiting_for_an_index_ends_when_it_is_applied_here() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        leader = await cluster.start()
        follower = next(node for node in cluster.here() if node is not leader)
        waiting = asyncio.ensure_future(follower.quorum.applied(leader.quorum.applied_index + 2))
        await cluster.propose()
        assert not waiting.done()
        await cluster.propose()
        await waiting
        await follower.quorum.applied(1)
        await cluster.stop()

    run(story())


def test_leadership_is_handed_over_and_by_a_stop_as_well() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        first = await cluster.start()
        successor = next(node for node in cluster.here() if node is not first)
        await cluster.agree()
        await first.quorum.transfer(successor.id)
        assert await cluster.leader() is successor
        with pytest.raises(NotController):
            await first.quorum.transfer(successor.id)
        with pytest.raises(InvalidRequest):
            await successor.quorum.transfer(9)
        await cluster.agree()
        before = successor.quorum.term
        heard = [node for node in cluster.here() if node is not successor]
        await cluster.stop(successor.id)
        assert any(node.quorum.leader_id == node.id and node.quorum.term == before + 1 for node in heard)
        await cluster.stop()

    run(story())


def test_one_that_is_far_behind_gets_a_snapshot() -> None:
    async def story() -> None:
        cluster = Cluster(3, snapshot_every=20)
        leader = await cluster.start()
        await cluster.decide(cluster_id("abc"))
        late = next(node for node in cluster.here() if node is not leader)
        await late.kill()
        for _ in range(100):
            await cluster.propose()
        await until(lambda: leader.quorum.store.snapshot.index > 80)
        await late.start()
        await cluster.agree()
        assert "reset" in late.heard
        assert late.quorum.metadata.cluster_id == "abc"
        assert late.quorum.store.snapshot.index > 80
        await late.kill()
        await late.start()
        await cluster.agree()
        await cluster.stop()

    run(story())


def test_a_quorum_starts_from_its_snapshot() -> None:
    async def story() -> None:
        cluster = Cluster(1, snapshot_every=10)
        node = await cluster.start()
        await node.quorum.propose([cluster_id("abc")])
        for _ in range(35):
            await cluster.propose()
        await until(lambda: node.quorum.store.snapshot.index >= 30)
        await node.kill()
        node.build()
        assert len(node.quorum.store.entries) < 10
        await node.formation.begin()
        await cluster.leader()
        assert node.quorum.metadata.cluster_id == "abc"
        assert node.quorum.metadata.next_producer_id == cluster.proposed
        await cluster.stop()

    run(story())


def test_a_wiped_member_comes_back_as_a_learner_and_becomes_a_voter_again() -> None:
    async def story() -> None:
        cluster = Cluster(3, snapshot_every=20)
        leader = await cluster.start()
        for _ in range(50):
            await cluster.propose()
        wiped = next(node for node in cluster.here() if node is not leader)
        await wiped.kill()
        wiped.wipe()
        await wiped.start()
        await cluster.agree()
        leader = await cluster.leader()
        assert leader.quorum.members.learners == {wiped.id: wiped.member.directory_id}
        assert wiped.id not in leader.quorum.members.voters
        await until(lambda: leader.quorum.caught_up(wiped.id))
        await leader.quorum.change_members(leader.quorum.members.with_voter(wiped.member))
        await cluster.agree()
        assert all(node.quorum.members.is_voter(wiped.member) for node in cluster.here())
        await cluster.stop()

    run(story())


def test_members_change_one_voter_at_a_time() -> None:
    async def story() -> None:
        cluster = Cluster(3)
        leader = await cluster.start()
        two_at_once = leader.quorum.members.with_voter(Member(8, "x")).with_voter(Member(9, "y"))
        with pytest.raises(InvalidRequest):
            await leader.quorum.change_members(two_at_once)
        gone = next(node for node in cluster.here() if node is not leader)
        await leader.quorum.change_members(leader.quorum.members.without(gone.id))
        assert leader.quorum.has_settled_members
        assert len(leader.quorum.members.voters) == 2
        await cluster.stop()

    run(story())


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_member_whose_disk_fails_takes_no_part_any_more(is_leader: bool) -> None:
    async def story() -> None:
        cluster = Cluster(3)
        leader = await cluster.start()
        failing = leader if is_leader else next(node for node in cluster.here() if node is not leader)
        failing.files.is_failing_syncs = True
        waiting = asyncio.ensure_future(failing.quorum.applied(10_000))
        await cluster.propose()
        await until(lambda: failing.quorum.failure is not None)
        assert not failing.quorum.is_leader
        assert failing.quorum.leader_id is None
        with pytest.raises(ControllerUnavailable):
            await waiting
        stood_still = failing.quorum.applied_index
        for _ in range(3):
            await cluster.propose()
        assert failing.quorum.applied_index == stood_still
        if is_leader:
            assert failing.heard[-1] is False
        await cluster.stop()

    run(story())


def test_a_member_that_cannot_go_on_takes_no_part_any_more() -> None:
    """Its metadata is not what the entries say, so it must not lead, nor go on as if nothing were wrong."""

    async def story() -> None:
        cluster = Cluster(3)
        leader = await cluster.start()

        def refuse(index: int, records: object) -> None:
            raise KeyError(index, records)

        leader.quorum.listen(refuse, lambda: None, lambda _: None)
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        await cluster.propose()
        assert leader.quorum.failure is not None
        assert (await cluster.leader()) is not leader
        await cluster.stop()

    run(story())


def test_a_full_disk_is_only_slow() -> None:
    async def story() -> None:
        cluster = Cluster(1)
        node = await cluster.start()
        node.files.capacity_bytes = 1
        waiting = asyncio.ensure_future(node.quorum.propose([cluster_id("abc")]))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        node.files.capacity_bytes = None
        await waiting
        assert node.quorum.failure is None
        assert node.quorum.metadata.cluster_id == "abc"
        await cluster.stop()

    run(story())


def test_proposals_at_the_same_time_share_a_write() -> None:
    async def story() -> None:
        cluster = Cluster(1)
        node = await cluster.start()
        before = node.files.steps
        await asyncio.gather(*(node.quorum.propose([cluster_id(str(number))]) for number in range(100)))
        assert node.files.steps - before < 100 + 20, "a write for each, but few syncs"
        await cluster.stop()

    run(story(), is_real=True)


@pytest.mark.parametrize("stood_still", [True, False])
def test_a_leader_that_stood_still_reads_what_was_said_before_it_takes_others_for_gone(stood_still: bool) -> None:
    async def story() -> None:
        cluster = Cluster(3)
        leader = await cluster.start()
        quorum, term = leader.quorum, leader.quorum.term
        raft = quorum._raft
        assert raft is not None
        assert raft.leading is not None
        away_ms = 10 * quorum.pace.silence_ms
        for follower in raft.leading.followers.values():
            follower.heard_ms -= away_ms
        if stood_still:
            assert quorum._ticked_ms is not None
            quorum._ticked_ms -= away_ms
        assert quorum._timer is not None
        quorum._timer.cancel()
        quorum._tick()
        assert raft.is_leader == stood_still
        await asyncio.sleep(quorum.pace.election_ms / 1000)
        assert (quorum.is_leader and quorum.term == term) == stood_still
        await cluster.leader()
        await cluster.stop()

    run(story())
