"""The controller on nodes that form a real quorum: registering, failing over, leaving, and asking from anywhere."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace
from tests.unit.quorum.cluster import Cluster, run, until

from penstock.consensus.commands import (
    AddPartitions,
    Admitted,
    ChangeInSync,
    CreateTopic,
    DeleteTopic,
    Done,
    DoubtedReplica,
    DoubtReplicas,
    ElectLeaders,
    Heard,
    Heartbeat,
    InSyncChange,
    Outcomes,
    ProducerIds,
    RegisterNode,
    RemoveNode,
    ReserveProducerIds,
    TransferControl,
)
from penstock.consensus.quorum.client import ControllerClient
from penstock.consensus.quorum.controller import ControllerConfig, ControllerShell
from penstock.consensus.quorum.registration import NodeDescription, Registration, SoundDisk
from penstock.consensus.records import NO_LEADER, PartitionAssigned
from penstock.errors import (
    ControllerUnavailable,
    DuplicateNode,
    InvalidPartitions,
    NodeInUse,
    NotController,
    PolicyViolation,
    StaleNodeEpoch,
    TopicExists,
    UnknownTopic,
)
from penstock.supervision import Supervision
from penstock.testing.clock import SimulatedClock

CONFIG = ControllerConfig(session_ms=600, maintenance_interval_ms=50, settling_ms=300)


class TestDisk(SoundDisk):
    """A disk that is as the test says."""

    __test__ = False

    def __init__(self, has_lost_writes: bool, doubtful: tuple[DoubtedReplica, ...]) -> None:
        self.has_lost_writes = has_lost_writes
        self.doubtful = doubtful
        self.told: list[tuple[DoubtedReplica, ...]] = []

    def on_reported(self, doubtful: tuple[DoubtedReplica, ...]) -> None:
        self.told.append(doubtful)
        self.doubtful = ()


class Controlled:
    """A cluster whose nodes have a controller, a way to it and a registration each."""

    def __init__(self, size: int) -> None:
        self.cluster = Cluster(size)
        self.shells: dict[int, ControllerShell] = {}
        self.clients: dict[int, ControllerClient] = {}
        self.registrations: dict[int, Registration] = {}
        self.told: dict[int, list[bool]] = {}
        self.disks: dict[int, TestDisk] = {}

    async def start(self) -> None:
        await asyncio.gather(*(self.start_node(node_id) for node_id in self.cluster.nodes))

    async def start_node(
        self, node_id: int, *, has_lost_writes: bool = False, doubtful: tuple[DoubtedReplica, ...] = ()
    ) -> None:
        node = self.cluster.nodes[node_id]
        node.build()
        peers = self.cluster.exchange.nodes[node_id]
        clock, random = SimulatedClock(asyncio.get_running_loop()), Random(node_id)
        shell = ControllerShell(node_id, node.quorum, peers, clock, random, CONFIG, supervision=Supervision(clock))
        shell.start()
        await node.formation.begin()
        client = ControllerClient(node.quorum, peers, clock, random)
        self.told[node_id] = []
        self.disks[node_id] = TestDisk(has_lost_writes, doubtful)
        registration = Registration(
            NodeDescription(node_id=node_id, directory_id=node.member.directory_id),
            node.quorum,
            client,
            clock,
            session_ms=CONFIG.session_ms,
            heartbeat_ms=100,
            supervision=Supervision(clock),
            disk=self.disks[node_id],
            on_quorum=self.told[node_id].append,
        )
        self.shells[node_id], self.clients[node_id] = shell, client
        self.registrations[node_id] = registration
        await registration.start()

    async def kill(self, node_id: int) -> None:
        await self.registrations.pop(node_id).stop()
        await self.shells.pop(node_id).stop()
        await self.cluster.nodes[node_id].kill()

    async def stop(self) -> None:
        for node_id in tuple(self.registrations):
            await self.registrations[node_id].stop()
        for shell in self.shells.values():
            await shell.stop()
        await self.cluster.stop()

    async def create(self, by: int, name: str, **options: object) -> None:
        command = CreateTopic(name=name, topic_id=uuid4(), **options)  # type: ignore[arg-type]
        assert await self.clients[by].submit(command) == Done()

    def partition(self, on: int, name: str = "orders", index: int = 0) -> PartitionAssigned:
        return self.cluster.nodes[on].quorum.metadata.partition(name, index)

    async def leader_id(self) -> int:
        return (await self.cluster.leader()).id

    async def others(self) -> list[int]:
        leader = await self.leader_id()
        return [node_id for node_id in self.registrations if node_id != leader]


def test_a_node_alone_is_a_cluster_with_an_id_and_is_let_in() -> None:
    async def story() -> None:
        here = Controlled(1)
        await here.start()
        metadata = here.cluster.nodes[1].quorum.metadata
        assert len(metadata.cluster_id) == 32
        assert not metadata.nodes[1].is_fenced
        await here.create(1, "orders")
        assert here.partition(1).leader == 1
        await here.stop()

    run(story())


def test_commands_are_taken_on_every_node_and_seen_where_they_were_given() -> None:
    async def story() -> None:
        here = Controlled(3)
        await here.start()
        for node_id in (1, 2, 3):
            await here.create(node_id, f"orders-{node_id}", partitions=3)
            assert len(here.cluster.nodes[node_id].quorum.metadata.topic(f"orders-{node_id}").partitions) == 3
            with pytest.raises(TopicExists):
                await here.create(node_id, "orders-1")
        blocks = await asyncio.gather(*(here.clients[n].submit(ReserveProducerIds(node_id=n)) for n in (1, 2, 3)))
        firsts = [block.first for block in blocks if isinstance(block, ProducerIds)]
        assert len(set(firsts)) == 3
        follower = (await here.others())[0]
        with pytest.raises(NotController):
            await here.shells[follower].submit(DeleteTopic(name="orders-1"))
        await here.stop()

    run(story())


def test_a_dead_node_is_fenced_its_partitions_get_leaders_and_it_gets_them_back() -> None:
    async def story() -> None:
        here = Controlled(3)
        await here.start()
        victim, other = await here.others()
        await here.create(other, "orders", assignment=((victim, other, await here.leader_id()),))
        await here.kill(victim)
        await until(lambda: here.partition(other).leader == other)
        assert victim not in here.partition(other).in_sync
        await here.start_node(victim)
        assert not here.cluster.nodes[victim].quorum.metadata.nodes[victim].is_fenced
        await join_in_sync(here, other, victim)
        await until(lambda: here.partition(other).leader == victim)
        await here.stop()

    run(story())


async def join_in_sync(here: Controlled, leader: int, *more: int) -> None:
    """What a leader says once replicas have caught up."""
    now = here.partition(leader)
    nodes = here.cluster.nodes[leader].quorum.metadata.nodes
    change = InSyncChange(
        topic_id=now.topic_id,
        partition=now.partition,
        leader_epoch=now.leader_epoch,
        partition_epoch=now.partition_epoch,
        in_sync=tuple((node_id, nodes[node_id].epoch) for node_id in (*now.in_sync, *more)),
    )
    command = ChangeInSync(node_id=leader, epoch=nodes[leader].epoch, changes=(change,))
    answer = await here.clients[leader].submit(command)
    assert isinstance(answer, Outcomes)
    assert answer.outcomes[0].error is None


def test_commands_go_on_while_leaders_of_the_quorum_die() -> None:
    async def story() -> None:
        here = Controlled(3)
        await here.start()
        leader = await here.leader_id()
        asker = (await here.others())[0]
        creating = [asyncio.ensure_future(here.create(asker, f"t{number}")) for number in range(20)]
        await asyncio.sleep(0.02)
        await here.kill(leader)
        await asyncio.gather(*creating)
        assert len(here.cluster.nodes[asker].quorum.metadata.topics) == 20
        await until(lambda: here.cluster.nodes[asker].quorum.metadata.nodes[leader].is_fenced)
        await here.stop()

    run(story())


def test_a_minority_says_that_nobody_leads_and_knows_that_it_lost_the_quorum() -> None:
    async def story() -> None:
        here = Controlled(3)
        await here.start()
        leader = await here.leader_id()
        here.cluster.isolate(leader)
        with pytest.raises(ControllerUnavailable):
            await here.clients[leader].submit(DeleteTopic(name="x"), timeout_s=0.5)
        await until(lambda: not here.registrations[leader].has_quorum)
        assert here.told[leader] == [True, False]
        others = [node_id for node_id in here.registrations if node_id != leader]
        await until(lambda: here.cluster.nodes[others[0]].quorum.metadata.nodes[leader].is_fenced)
        here.cluster.exchange.heal()
        await until(lambda: here.registrations[leader].has_quorum and not here.registrations[leader].is_fenced)
        assert here.told[leader] == [True, False, True]
        await here.stop()

    run(story())


def test_a_node_that_leaves_first_gives_away_what_it_leads() -> None:
    async def story() -> None:
        here = Controlled(3)
        await here.start()
        leader = await here.leader_id()  # of the quorum as well, which it has to hand over
        other = (await here.others())[0]
        replicas = (leader, *(node_id for node_id in (1, 2, 3) if node_id != leader))
        await here.create(other, "orders", assignment=(replicas,))
        await here.create(other, "alone", assignment=((leader,),))
        await here.registrations[leader].leave()
        assert here.cluster.nodes[leader].quorum.leader_id != leader
        now = here.partition(leader)
        assert now.leader not in (leader, NO_LEADER)
        assert leader not in now.in_sync
        assert here.partition(leader, "alone").leader == NO_LEADER
        assert here.partition(leader, "alone").in_sync == (leader,)
        await here.kill(leader)
        await here.start_node(leader)
        assert here.partition(leader, "alone").leader == leader
        await here.stop()

    run(story())


@pytest.mark.parametrize("leads_quorum", [True, False])
def test_a_node_that_left_in_good_order_is_not_missed(caplog: pytest.LogCaptureFixture, leads_quorum: bool) -> None:
    async def story() -> None:
        here = Controlled(3)
        await here.start()
        leaver = await here.leader_id() if leads_quorum else (await here.others())[0]
        stays = next(node_id for node_id in (1, 2, 3) if node_id != leaver)
        await here.create(stays, "orders", assignment=((leaver, stays),))
        await here.create(stays, "alone", assignment=((leaver,),))
        await here.registrations[leaver].leave()
        await here.kill(leaver)
        # The last of several that had everything stays in sync until others lead: then its place goes, and not before.
        shell = here.shells[await here.leader_id()]
        await shell.commit((replace(here.partition(stays), in_sync=(stays, leaver)),))
        await until(lambda: here.partition(stays).in_sync == (stays,))
        assert here.cluster.nodes[stays].quorum.metadata.nodes[leaver].is_fenced
        await here.stop()

    with caplog.at_level(logging.WARNING, "penstock.consensus.quorum"):
        run(story())
    assert not [record.getMessage() for record in caplog.records if "No heartbeat" in record.getMessage()]


def test_two_nodes_cannot_have_one_id_but_a_wiped_one_comes_back() -> None:
    async def story() -> None:
        here = Controlled(3)
        await here.start()
        victim, other = await here.others()
        twin = RegisterNode(node_id=victim, directory_id="another", endpoints=(), rack=None, has_lost_writes=False)
        with pytest.raises(DuplicateNode, match="another --node-id"):
            await here.clients[victim].submit(twin)  # a twin comes in the name of the one that is there
        await here.create(other, "orders", assignment=((victim, other),))
        await here.kill(victim)
        here.cluster.nodes[victim].wipe()
        await here.start_node(victim)
        now = here.partition(other)
        assert (now.leader, now.in_sync, now.eligible) == (other, (other,), ())
        quorum = here.cluster.nodes[other].quorum
        await until(lambda: victim in quorum.members.voters)
        await here.stop()

    run(story())


def test_an_earlier_life_is_told_so_and_registers_again() -> None:
    async def story() -> None:
        here = Controlled(1)
        await here.start()
        registration = here.registrations[1]
        stale = registration.epoch
        identity = registration.identity
        again = RegisterNode(
            node_id=1, directory_id=identity.directory_id, endpoints=(), rack=None, has_lost_writes=False
        )
        admitted = await here.clients[1].submit(again)
        assert isinstance(admitted, Admitted)
        assert admitted.epoch > stale
        with pytest.raises(StaleNodeEpoch):
            await here.clients[1].submit(Heartbeat(node_id=1, epoch=stale, applied_index=0))
        await until(lambda: registration.epoch > admitted.epoch and not registration.is_fenced)
        await here.stop()

    run(story())


def test_nodes_that_join_become_voters_in_pairs_and_one_that_is_removed_is_none() -> None:
    async def story() -> None:
        here = Controlled(1)
        await here.start()
        quorum = here.cluster.nodes[1].quorum
        here.cluster.add_joiner(2, by=1)
        await here.start_node(2)
        await asyncio.sleep(0.2)
        assert sorted(quorum.members.voters) == [1], "two voters are no safer than one"
        here.cluster.add_joiner(3, by=2)
        await here.start_node(3)
        await until(lambda: sorted(quorum.members.voters) == [1, 2, 3])
        await here.create(3, "orders", assignment=((1, 3), (3, 2)))
        with pytest.raises(NodeInUse, match="force"):
            await here.clients[2].submit(RemoveNode(node_id=3))
        await here.clients[2].submit(RemoveNode(node_id=3, is_forced=True))
        assert 3 not in here.cluster.nodes[2].quorum.metadata.nodes
        assert sorted((await here.cluster.leader()).quorum.members.voters) == [1, 2]
        assert [one.replicas for one in here.cluster.nodes[2].quorum.metadata.topic("orders").partitions] == [
            (1, 2),
            (2, 1),
        ]
        await until(lambda: here.registrations[3].is_removed)
        await here.stop()

    run(story())


def test_a_node_that_was_away_is_let_in_when_it_knows_that_it_was_given_up_on() -> None:
    async def story() -> None:
        here = Controlled(3)
        await here.start()
        leader = await here.leader_id()
        victim, _ = await here.others()
        registration = here.registrations[victim]
        await registration._stop_beats()
        metadata = here.cluster.nodes[leader].quorum.metadata
        await until(lambda: metadata.nodes[victim].is_fenced)
        fenced_at = here.cluster.nodes[leader].quorum.applied_index
        beat = Heartbeat(node_id=victim, epoch=registration.epoch, applied_index=fenced_at - 1)
        assert await here.clients[victim].submit(beat) == Heard(is_fenced=True, may_leave=False)
        beat = Heartbeat(node_id=victim, epoch=registration.epoch, applied_index=fenced_at)
        assert await here.clients[victim].submit(beat) == Heard(is_fenced=False, may_leave=False)
        await here.stop()

    run(story())


def test_whoever_is_refused_sees_why_on_its_own_node() -> None:
    async def story() -> None:
        here = Controlled(3)
        await here.start()
        late = (await here.others())[0]
        for number in range(10):
            await here.create(await here.leader_id(), f"t{number}")
            with pytest.raises(TopicExists):
                await here.create(late, f"t{number}")
            assert f"t{number}" in here.cluster.nodes[late].quorum.metadata.topics
        await here.stop()

    run(story())


def test_control_is_handed_over_on_request() -> None:
    async def story() -> None:
        here = Controlled(3)
        await here.start()
        successor = (await here.others())[0]
        assert await here.clients[successor].submit(TransferControl(node_id=successor)) == Done()
        await until(lambda: here.shells[successor].is_active)
        await here.clients[successor].submit(TransferControl())
        assert await here.leader_id() != successor
        await here.stop()

    run(story())


def test_a_retry_takes_what_the_first_try_did_for_success() -> None:
    async def story() -> None:
        here = Controlled(3)
        await here.start()
        leader = await here.leader_id()
        asker = (await here.others())[0]
        command = CreateTopic(name="orders", topic_id=UUID(int=7), partitions=1)
        client = here.clients[asker]
        for _ in range(2):
            assert await client.submit(command) == Done()
        with pytest.raises(UnknownTopic):
            await client.submit(DeleteTopic(name="nothing"))
        with pytest.raises(InvalidPartitions):
            await client.submit(AddPartitions(name="orders", count=1))

        async def submit_with_lost_answer(command: object) -> object:
            """The leader does it, but the way back is cut until the asker has given the call up."""
            here.cluster.exchange.cut(leader, asker, is_one_way=True, is_noticed=False)
            asking = asyncio.ensure_future(client.submit(command))  # type: ignore[arg-type]
            await asyncio.sleep(0.05)
            here.cluster.exchange.cut(asker, leader, is_one_way=True)  # noticed: the call fails
            here.cluster.exchange.heal()
            return await asking

        assert await submit_with_lost_answer(AddPartitions(name="orders", count=2)) == Done()
        assert await submit_with_lost_answer(DeleteTopic(name="orders")) == Done()
        await here.stop()

    run(story())


def test_elections_asked_for_again_are_no_error_only_after_a_doubt() -> None:
    async def story() -> None:
        here = Controlled(1)
        await here.start()
        await here.create(1, "orders", partitions=1)
        answer = await here.clients[1].submit(ElectLeaders(partitions=(("orders", 0),)))
        assert isinstance(answer, Outcomes)
        assert answer.outcomes[0].error == "ElectionNotNeeded"
        await here.stop()

    run(story())


def test_a_node_that_cannot_write_gives_its_leaderships_away_and_gets_them_back() -> None:
    async def story() -> None:
        here = Controlled(3)
        await here.start()
        full = (await here.others())[0]
        replicas = (full, *(node_id for node_id in (1, 2, 3) if node_id != full))
        await here.create(full, "orders", assignment=(replicas,))
        await here.create(full, "alone", assignment=((full,),))
        here.disks[full].is_unable = True
        await asyncio.sleep(0.5)
        now = here.partition(full)
        assert now.leader not in (full, NO_LEADER)
        assert full in now.in_sync, "it is counted on for all else"
        assert not here.cluster.nodes[full].quorum.metadata.nodes[full].is_fenced
        assert here.partition(full, "alone").leader == full
        here.disks[full].is_unable = False
        await asyncio.sleep(1.0)
        assert here.partition(full).leader == full
        await here.stop()

    run(story())


def test_doubtful_replicas_are_named_at_registration_until_they_were_told() -> None:
    async def story() -> None:
        here = Controlled(3)
        await here.start()
        node_id = (await here.others())[0]
        await here.create(node_id, "orders", replication_factor=3)
        topic_id = here.partition(node_id).topic_id
        await here.kill(node_id)
        doubt = DoubtedReplica(topic_id=topic_id, partition=0, last_epoch=0, end=7)
        await here.start_node(node_id, doubtful=(doubt,))
        assert here.disks[node_id].told == [(doubt,)]
        assert node_id not in here.partition(node_id).in_sync
        await here.stop()

    run(story())


def test_a_node_cannot_speak_for_another() -> None:
    async def story() -> None:
        here = Controlled(3)
        await here.start()
        leader = await here.leader_id()
        victim, other = await here.others()
        registered = here.cluster.nodes[leader].quorum.metadata.nodes[victim]
        for command in (
            Heartbeat(node_id=victim, epoch=registered.epoch, applied_index=1, is_leaving=True),
            RegisterNode(node_id=victim, directory_id="another", endpoints=(), rack=None, has_lost_writes=True),
            ChangeInSync(node_id=victim, epoch=registered.epoch, changes=()),
            DoubtReplicas(node_id=victim, epoch=registered.epoch, doubtful=()),
            ReserveProducerIds(node_id=victim),
        ):
            with pytest.raises(PolicyViolation, match=f"in the name of node {victim}"):
                await here.clients[other].submit(command)
        assert here.cluster.nodes[leader].quorum.metadata.nodes[victim] == registered
        await here.stop()

    run(story())
