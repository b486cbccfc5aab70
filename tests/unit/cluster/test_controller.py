"""What the controller decides, case by case: partitions are written as (replicas, in sync, eligible, leader)."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from penstock.cluster.commands import (
    AddPartitions,
    Admitted,
    ChangeInSync,
    Command,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Done,
    DoubtedReplica,
    DoubtReplicas,
    DrainNode,
    ElectLeaders,
    Heartbeat,
    InSyncChange,
    Move,
    Outcome,
    Outcomes,
    Planned,
    Reassign,
    RegisterNode,
    RemoveNode,
)
from penstock.cluster.controller import Decision, Draft, Rules, Situation, decide
from penstock.cluster.controller.elections import give_back_leaders
from penstock.cluster.controller.nodes import fence, is_needed, step_aside, unfence
from penstock.cluster.metadata import ClusterMetadata
from penstock.cluster.records import (
    NO_LEADER,
    ClusterCreated,
    MetadataRecord,
    NodeChanged,
    NodeRegistered,
    PartitionAssigned,
    TopicConfigured,
    TopicCreated,
)
from penstock.errors import (
    DuplicateNode,
    InvalidReplicationFactor,
    InvalidRequest,
    NodeInUse,
    NodeNotFound,
    StaleNodeEpoch,
    TopicExists,
)

ORDERS = UUID(int=1)
State = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]


class World:
    """Metadata with nodes 1 to ``size``, and one topic whose partitions are as given."""

    def __init__(
        self, size: int, *states: State, fenced: tuple[int, ...] = (), configs: dict[str, str] | None = None
    ) -> None:
        self.metadata = ClusterMetadata()
        self.apply([ClusterCreated(cluster_id="c")])
        for node_id in range(1, size + 1):
            is_fenced = node_id in fenced
            disk = f"disk-{node_id}"
            self.apply([NodeRegistered(node_id=node_id, epoch=7, endpoints=(), directory_id=disk, is_fenced=is_fenced)])
        if states:
            self.apply([TopicCreated(name="orders", topic_id=ORDERS)])
        for key, value in (configs or {}).items():
            self.apply([TopicConfigured(topic_id=ORDERS, key=key, value=value)])
        for index, (replicas, in_sync, eligible, leader) in enumerate(states):
            self.apply(
                [
                    PartitionAssigned(
                        topic_id=ORDERS,
                        partition=index,
                        replicas=replicas,
                        in_sync=in_sync,
                        eligible=eligible,
                        leader=leader,
                        leader_epoch=10,
                        partition_epoch=20,
                    )
                ]
            )

    def apply(self, records: list[MetadataRecord]) -> None:
        for record in records:
            self.metadata.apply(record)

    def obey(self, command: Command, situation: Situation | None = None) -> Decision:
        decision = decide(self.metadata, command, situation=situation)
        self.apply(decision.records)
        return decision

    def outcome(self, command: Command) -> Outcome:
        answer = self.obey(command).answer
        assert isinstance(answer, Outcomes)
        (outcome,) = answer.outcomes
        return outcome

    def partition(self, index: int = 0) -> PartitionAssigned:
        return self.metadata.partition("orders", index)

    def state(self, index: int = 0) -> State:
        now = self.partition(index)
        return now.replicas, now.in_sync, now.eligible, now.leader

    def fence(self, *node_ids: int) -> list[MetadataRecord]:
        draft = Draft(self.metadata)
        fence(draft, node_ids)
        self.apply(draft.records())
        return draft.records()

    def unfence(self, node_id: int) -> None:
        draft = Draft(self.metadata)
        unfence(draft, node_id)
        self.apply(draft.records())

    def in_sync(self, *members: int, by: int | None = None, **epochs: int) -> Outcome:
        now = self.partition()
        change = InSyncChange(
            topic_id=ORDERS,
            partition=0,
            leader_epoch=epochs.get("leader_epoch", now.leader_epoch),
            partition_epoch=epochs.get("partition_epoch", now.partition_epoch),
            in_sync=tuple((member, epochs.get("node_epoch", 7)) for member in members),
        )
        return self.outcome(ChangeInSync(node_id=by or now.leader, epoch=7, changes=(change,)))


def register(node_id: int, *, disk: str | None = None, has_lost_writes: bool = False) -> RegisterNode:
    return RegisterNode(
        node_id=node_id,
        directory_id=disk or f"disk-{node_id}",
        endpoints=(),
        rack=None,
        has_lost_writes=has_lost_writes,
    )


# -- nodes that go -----------------------------------------------------------------------------------------------------

R3 = (1, 2, 3)


@pytest.mark.parametrize(
    ("before", "gone", "after"),
    [
        pytest.param((R3, R3, (), 1), (1,), (R3, (2, 3), (), 2), id="a leader: the next in order leads"),
        pytest.param((R3, R3, (), 1), (3,), (R3, (1, 2), (), 1), id="a follower: it falls out"),
        pytest.param((R3, (1, 3), (), 1), (1,), (R3, (3,), (1,), 3), id="too few are left: it stays eligible"),
        pytest.param((R3, (1, 2), (), 1), (3,), (R3, (1, 2), (), 1), id="not in sync: nothing changes"),
        pytest.param((R3, (1,), (), 1), (1,), (R3, (1,), (), NO_LEADER), id="the last one is waited for"),
        pytest.param((R3, (1,), (3,), 1), (1,), (R3, (3,), (1,), 3), id="an eligible one leads instead of the last"),
        pytest.param((R3, (1,), (2, 3), 1), (1, 2), (R3, (3,), (1, 2), 3), id="an eligible one that lives"),
        pytest.param((R3, R3, (), 1), R3, (R3, R3, (), NO_LEADER), id="all at once: each has everything"),
        pytest.param(((1,), (1,), (), 1), (1,), ((1,), (1,), (), NO_LEADER), id="a single replica"),
    ],
)
def test_a_node_that_is_given_up_on(before: State, gone: tuple[int, ...], after: State) -> None:
    world = World(3, before)
    records = world.fence(*gone)
    assert world.state() == after
    is_changed = before != after
    is_other_leader = before[3] != after[3]
    assert world.partition().leader_epoch == 10 + is_other_leader
    assert world.partition().partition_epoch == 20 + is_changed
    assert len(records) == len(gone) + is_changed, "nothing but what changed"
    assert not world.fence(*gone), "it is given up on once"


@pytest.mark.parametrize(
    ("configs", "after"),
    [
        ({"min.insync.replicas": "1"}, (R3, (3,), (), 3)),
        ({"min.insync.replicas": "2"}, (R3, (3,), (1,), 3)),
        ({"min.insync.replicas": "9"}, (R3, (3,), (1,), 3)),  # as many as there are replicas, at most
        ({}, (R3, (3,), (1,), 3)),
    ],
)
def test_eligible_is_who_left_while_nothing_could_be_committed(configs: dict[str, str], after: State) -> None:
    world = World(3, (R3, (1, 3), (), 1), configs=configs)
    world.fence(1)
    assert world.state() == after


def test_the_cluster_s_minimum_counts_where_a_topic_has_none() -> None:
    world = World(3, (R3, (1, 3), (), 1))
    draft = Draft(world.metadata, Rules(min_in_sync=1))
    fence(draft, [1])
    world.apply(draft.records())
    assert world.state() == (R3, (3,), (), 3)


def test_unclean_elections_are_only_for_topics_that_want_them() -> None:
    world = World(3, (R3, (1,), (), 1), configs={"unclean.leader.election.enable": "true"})
    world.fence(1)
    assert world.state() == (R3, (2,), (), 2)
    strict = World(3, (R3, (1,), (), 1))
    strict.fence(1)
    assert strict.state() == (R3, (1,), (), NO_LEADER)
    strict.obey(ConfigureTopic(name="orders", changes={"unclean.leader.election.enable": "true"}))
    assert strict.state() == (R3, (2,), (), 2)


# -- nodes that come ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((R3, (1,), (), NO_LEADER), (R3, (1,), (), 1), id="the last one leads again"),
        pytest.param((R3, R3, (), NO_LEADER), (R3, (1,), (2, 3), 1), id="of all, the first that is back"),
        pytest.param((R3, (2,), (1,), NO_LEADER), (R3, (1,), (2,), 1), id="an eligible one"),
        pytest.param((R3, (2,), (), NO_LEADER), (R3, (2,), (), NO_LEADER), id="one that may lack something"),
        pytest.param((R3, (), (1,), NO_LEADER), (R3, (1,), (), 1), id="the only eligible one"),
    ],
)
def test_a_node_that_is_back(before: State, after: State) -> None:
    world = World(3, before, fenced=R3)
    world.unfence(1)
    assert world.state() == after
    assert not world.metadata.nodes[1].is_fenced


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((R3, R3, (), 1), (R3, (2, 3), (), 2), id="it leads and is in sync: others go on"),
        pytest.param((R3, (1, 2), (), 2), (R3, (2,), (1,), 2), id="it was in sync"),
        pytest.param(((1,), (1,), (), 1), ((1,), (1,), (), NO_LEADER), id="nobody else has it"),
        pytest.param((R3, (2,), (1,), 2), (R3, (2,), (1,), 2), id="it was eligible and still is"),
    ],
)
def test_a_node_that_restarts_is_fenced_until_it_is_let_in(before: State, after: State) -> None:
    world = World(3, before)
    decision = world.obey(register(1), Situation(index=100))
    assert decision.answer == Admitted(epoch=100)
    assert world.state() == after
    assert world.metadata.nodes[1].is_fenced


@pytest.mark.parametrize(
    ("before", "after_loss", "after_wipe"),
    [
        pytest.param((R3, (1, 2), (), 2), (R3, (2,), (), 2), (R3, (2,), (), 2), id="in sync"),
        pytest.param((R3, (2,), (1,), 2), (R3, (2,), (), 2), (R3, (2,), (), 2), id="eligible"),
        pytest.param((R3, (1,), (), 1), (R3, (), (), NO_LEADER), (R3, (), (), NO_LEADER), id="the last"),
        pytest.param((R3, (1,), (3,), 1), (R3, (3,), (), 3), (R3, (3,), (), 3), id="the last, but one is eligible"),
        pytest.param(
            ((1,), (1,), (), 1), ((1,), (1,), (), NO_LEADER), ((1,), (), (), NO_LEADER), id="all there is, or was"
        ),
    ],
)
def test_a_node_that_lost_writes_is_not_counted_on(before: State, after_loss: State, after_wipe: State) -> None:
    world = World(3, before)
    world.obey(register(1, has_lost_writes=True))
    assert world.state() == after_loss
    wiped = World(3, before)
    wiped.fence(1)
    if before[1] == (1,) and before[2]:
        return  # then an eligible one leads already
    wiped.obey(register(1, disk="new"))
    assert wiped.state() == after_wipe


def test_two_nodes_do_not_get_one_id() -> None:
    world = World(3)
    with pytest.raises(DuplicateNode, match="--node-id"):
        world.obey(register(1, disk="another"))
    world.fence(1)
    world.obey(register(1, disk="another"))
    assert world.metadata.nodes[1].directory_id == "another"


def test_an_id_that_is_used_again_gets_a_later_epoch() -> None:
    world = World(3)
    assert world.obey(register(4), Situation(index=30)).answer == Admitted(epoch=30)
    world.obey(RemoveNode(node_id=4))
    assert world.obey(register(4), Situation(index=32)).answer == Admitted(epoch=32)
    assert world.obey(register(4), Situation(index=32)).answer == Admitted(epoch=33)


def test_after_a_power_cut_nobody_falls_out_before_somebody_is_heard() -> None:
    """The controller is new, all nodes restart, and the third never comes back."""
    world = World(3, (R3, R3, (), 3), configs={"min.insync.replicas": "1"})
    world.obey(register(1), Situation(index=50, silent=R3))
    world.obey(register(2), Situation(index=51, silent=(2, 3)))
    assert world.state() == (R3, R3, (), 3)
    world.fence(3)
    assert world.state() == (R3, R3, (), NO_LEADER)
    world.unfence(2)
    assert world.state() == (R3, (2,), (), 2)


# -- doubt -------------------------------------------------------------------------------------------------------------


def doubted(end: int, last_epoch: int = 9) -> tuple[DoubtedReplica, ...]:
    return (DoubtedReplica(topic_id=ORDERS, partition=0, last_epoch=last_epoch, end=end),)


def come_back_doubtful(world: World, node_id: int, end: int, last_epoch: int = 9) -> None:
    command = replace(register(node_id), doubtful=doubted(end, last_epoch))
    world.obey(command)
    world.unfence(node_id)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((R3, R3, (), 2), (R3, (2, 3), (), 2), id="in sync with others"),
        pytest.param((R3, R3, (), 1), (R3, (2, 3), (), 2), id="it led"),
        pytest.param((R3, (1, 2), (), 2), (R3, (2,), (), 2), id="not even eligible"),
        pytest.param((R3, (2,), (1,), 2), (R3, (2,), (), 2), id="eligible no more"),
        pytest.param((R3, (1,), (3,), 1), (R3, (3,), (), 3), id="the last, but one is eligible"),
        pytest.param((R3, (1,), (), 1), (R3, (1,), (), 1), id="nobody else has more"),
        pytest.param(((1,), (1,), (), 1), ((1,), (1,), (), 1), id="all there is"),
        pytest.param((R3, (2, 3), (), 2), (R3, (2, 3), (), 2), id="it had no place"),
    ],
)
def test_a_replica_that_came_back_cut_loses_its_place_to_those_that_did_not(before: State, after: State) -> None:
    world = World(3, before)
    come_back_doubtful(world, 1, 50)
    assert world.state() == after
    assert world.partition().doubtful == ()


@pytest.mark.parametrize(
    ("in_sync", "eligible", "back", "leader"),
    [
        pytest.param(R3, (), {1: (50, 9)}, NO_LEADER, id="one of three"),
        pytest.param(R3, (), {1: (50, 9), 2: (60, 9)}, 2, id="the longer of two of three"),
        pytest.param(R3, (), {1: (50, 9), 2: (60, 8)}, 1, id="a later epoch counts more"),
        pytest.param(R3, (), {2: (50, 9), 1: (50, 9)}, 1, id="the first of equals"),
        pytest.param((1, 2), (), {1: (50, 9)}, NO_LEADER, id="one of two"),
        pytest.param((1, 2), (), {1: (50, 9), 2: (51, 9)}, 2, id="both of two"),
        pytest.param((1,), (2,), {1: (50, 9)}, NO_LEADER, id="an eligible one may have more"),
        pytest.param((1,), (2,), {1: (50, 9), 2: (70, 9)}, 2, id="and has"),
        pytest.param((1,), (), {1: (50, 9)}, 1, id="the only one"),
    ],
)
def test_among_doubtful_replicas_one_leads_that_has_most_once_more_than_half_are_there(
    in_sync: tuple[int, ...], eligible: tuple[int, ...], back: dict[int, tuple[int, int]], leader: int
) -> None:
    """All nodes are down, and come back cut one after the other."""
    world = World(3, (R3, in_sync, eligible, NO_LEADER), fenced=R3)
    for node_id, (end, last_epoch) in back.items():
        come_back_doubtful(world, node_id, end, last_epoch)
    now = world.partition()
    assert now.leader == leader
    if leader == NO_LEADER:
        assert (now.in_sync, now.eligible) == (in_sync, eligible)
        assert {doubt.node_id for doubt in now.doubtful} == set(back)
    else:
        assert now.in_sync == (leader,)
        assert now.doubtful == ()
        assert set(now.eligible) <= {*in_sync, *eligible} - set(back)


def test_a_sound_replica_that_comes_back_leads_though_a_doubtful_one_came_first() -> None:
    world = World(3, (R3, R3, (), NO_LEADER), fenced=R3)
    come_back_doubtful(world, 1, 90)
    world.obey(register(2))
    world.unfence(2)
    assert world.state() == (R3, (2,), (3,), 2)


def test_doubt_outlives_another_restart_and_ends_with_the_disk() -> None:
    world = World(3, (R3, (1, 2), (), NO_LEADER), fenced=R3)
    come_back_doubtful(world, 1, 50)
    world.fence(1)
    world.obey(register(1))
    world.unfence(1)
    assert (world.partition().leader, len(world.partition().doubtful)) == (NO_LEADER, 1)
    world.fence(1)
    world.obey(register(1, disk="new"))
    assert (world.partition().in_sync, world.partition().doubtful) == ((2,), ())


def test_nobody_loses_its_place_to_a_leader_that_may_be_gone() -> None:
    """The whole cluster restarts, so all are silent: who led before is not there, and comes back cut as well."""
    world = World(3, (R3, R3, (), 3))
    for node_id, silent in ((1, (2, 3)), (2, (3,)), (3, ())):
        command = replace(register(node_id), doubtful=doubted(50 + node_id))
        world.obey(command, Situation(index=50 + node_id, silent=silent))
        assert world.partition().in_sync == R3
    for node_id in R3:
        world.unfence(node_id)
    assert world.state()[1:] == ((2,), (), 2)


@pytest.mark.parametrize(
    ("before", "silent", "after"),
    [
        pytest.param((R3, R3, (), 1), (), (R3, (2, 3), (), 2), id="a leader gives way"),
        pytest.param((R3, R3, (), 2), (), (R3, (2, 3), (), 2), id="a follower leaves"),
        pytest.param((R3, (1,), (), 1), (), (R3, (1,), (), 1), id="nobody else could lead"),
        pytest.param((R3, (1, 2), (), 1), (2,), (R3, (1, 2), (), 1), id="nobody else is sure to be there"),
    ],
)
def test_a_replica_that_is_found_damaged_gives_up_its_place_if_somebody_can_take_it(
    before: State, silent: tuple[int, ...], after: State
) -> None:
    world = World(3, before)
    world.obey(DoubtReplicas(node_id=1, epoch=7, doubtful=doubted(5)), Situation(silent=silent))
    assert world.state() == after
    with pytest.raises(StaleNodeEpoch):
        world.obey(DoubtReplicas(node_id=1, epoch=6, doubtful=doubted(5)))


def test_replicas_that_were_to_go_stay_when_the_one_that_was_to_stay_is_removed() -> None:
    world = World(3, (R3, (1, 2), (), 1), configs={"min.insync.replicas": "1"})
    world.obey(Reassign(moves=(Move(topic="orders", partition=0, replicas=(3,)),)))
    assert world.partition().removing == (1, 2)
    world.obey(RemoveNode(node_id=3, is_forced=True))
    assert world.state() == ((1, 2), (1, 2), (), 1)
    assert world.partition().removing == ()


def test_a_doubtful_replica_that_a_leader_does_not_find_in_sync_is_not_eligible_either() -> None:
    world = World(3, (R3, R3, (), 2))
    unheard = Situation(silent={2, 3})  # a new controller: it may be that they are gone, but they lead on
    world.obey(replace(register(1), doubtful=doubted(50)), unheard)
    assert (world.partition().leader, len(world.partition().doubtful)) == (2, 1)
    world.obey(
        ChangeInSync(
            node_id=2,
            epoch=7,
            changes=(
                InSyncChange(
                    topic_id=ORDERS,
                    partition=0,
                    leader_epoch=world.partition().leader_epoch,
                    partition_epoch=world.partition().partition_epoch,
                    in_sync=((2, 7),),
                ),
            ),
        ),
        unheard,
    )
    assert world.state() == (R3, (2,), (3,), 2), "3 has everything, 1 may lack some"


def test_an_operator_may_have_the_best_of_doubtful_replicas_lead() -> None:
    world = World(4, ((1, 2, 3, 4), (1, 2, 3, 4), (), NO_LEADER), fenced=(1, 2, 3, 4))
    come_back_doubtful(world, 1, 50)
    come_back_doubtful(world, 2, 60)
    assert world.partition().leader == NO_LEADER
    world.obey(ElectLeaders(partitions=(("orders", 0),), is_unclean=True))
    assert world.state()[1:] == ((2,), (), 2)


# -- disks that take no writes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((R3, R3, (), 1), (R3, R3, (), 2), id="another leads"),
        pytest.param((R3, (1,), (), 1), (R3, (1,), (), 1), id="nobody else could"),
        pytest.param(((1,), (1,), (), 1), ((1,), (1,), (), 1), id="nobody else has it"),
    ],
)
def test_a_node_that_cannot_write_leads_nothing_that_others_could(before: State, after: State) -> None:
    world = World(3, before)
    draft = Draft(world.metadata, situation=Situation(unable=(1,)))
    step_aside(draft, 1)
    give_back_leaders(draft)
    world.apply(draft.records())
    assert world.state() == after


def test_a_node_that_cannot_write_is_elected_where_nobody_else_can_be() -> None:
    world = World(3, (R3, (1, 2), (), 2))
    draft = Draft(world.metadata, situation=Situation(unable=(1,)))
    fence(draft, [2])
    world.apply(draft.records())
    assert world.state() == (R3, (1,), (2,), 1)


# -- leaving, draining, removing ---------------------------------------------------------------------------------------


def test_a_leaving_node_gives_away_what_others_can_lead() -> None:
    world = World(3, (R3, R3, (), 1), ((1,), (1,), (), 1), ((1, 2), (1,), (), 1))
    draft = Draft(world.metadata, situation=Situation(leaving=(1,)))
    step_aside(draft, 1)
    world.apply(draft.records())
    assert [world.state(index)[3] for index in range(3)] == [2, 1, 1]
    assert is_needed(Draft(world.metadata, situation=Situation(leaving=(1,))), 1), "2 may yet catch up"
    alone = World(2, ((1,), (1,), (), 1), ((1, 2), (1,), (), 1), fenced=(2,))
    assert not is_needed(Draft(alone.metadata, situation=Situation(leaving=(1,))), 1), "nobody else is there"


def test_a_drained_node_loses_its_leaderships_at_once_and_its_replicas_by_moves() -> None:
    world = World(4, ((1, 2), (1, 2), (), 1), ((2, 1), (2, 1), (), 2))
    answer = world.obey(DrainNode(node_id=1)).answer
    assert isinstance(answer, Planned)
    assert [1 in (move.replicas or ()) for move in answer.moves] == [False, False]
    assert world.metadata.nodes[1].is_draining
    assert world.partition(0).leader == 2
    assert [world.partition(index).removing for index in (0, 1)] == [(1,), (1,)]
    assert {world.partition(index).adding for index in (0, 1)} == {(3,), (4,)}, "spread over those with room"
    with pytest.raises(InvalidReplicationFactor):
        world.obey(CreateTopic(name="more", topic_id=UUID(int=2), replication_factor=4))
    world.obey(DrainNode(node_id=1, is_draining=False))
    world.obey(CreateTopic(name="more", topic_id=UUID(int=2), replication_factor=4))


def test_a_drain_leaves_what_has_nowhere_to_go() -> None:
    world = World(3, (R3, R3, (), 1))
    answer = world.obey(DrainNode(node_id=1)).answer
    assert answer == Planned(moves=())
    assert world.state() == (R3, R3, (), 2)


def test_a_node_is_removed_when_it_is_empty_or_by_force() -> None:
    world = World(4, (R3, R3, (), 1), ((1,), (1,), (), 1), ((1, 2), (1,), (2,), 1))
    with pytest.raises(NodeInUse, match="3 partitions"):
        world.obey(RemoveNode(node_id=1))
    with pytest.raises(NodeNotFound):
        world.obey(RemoveNode(node_id=9))
    assert world.obey(RemoveNode(node_id=4)).answer == Done()
    world = World(4, (R3, R3, (), 1), ((1,), (1,), (), 1), ((1, 2), (1,), (2,), 1))
    world.obey(RemoveNode(node_id=1, is_forced=True))
    assert world.state(0) == ((2, 3, 4), (2, 3), (), 2)
    assert world.partition(1).leader == NO_LEADER, "its records are gone, and nobody pretends otherwise"
    assert world.state(2)[1:] == ((2,), (), 2)
    assert 1 not in world.metadata.nodes


# -- who is in sync ----------------------------------------------------------------------------------------------------


def test_a_leader_adds_and_removes_who_is_in_sync() -> None:
    world = World(3, (R3, (1,), (2,), 1))
    assert world.in_sync(3, 1).error is None
    assert world.state() == (R3, (1, 3), (), 1)
    assert world.partition().partition_epoch == 21
    outcome = world.in_sync(1)
    assert outcome.assigned == world.partition()
    assert world.state() == (R3, (1,), (3,), 1)
    assert world.in_sync(1).error is None
    assert world.partition().partition_epoch == 23, "whatever was asked for before is over"
    assert world.partition().leader_epoch == 10


@pytest.mark.parametrize(
    ("members", "epochs", "error"),
    [
        ((1, 2), {"leader_epoch": 9}, "FencedLeaderEpoch"),
        ((1, 2), {"leader_epoch": 11}, "UnknownLeaderEpoch"),
        ((1, 2), {"partition_epoch": 19}, "StalePartitionEpoch"),
        ((1, 2), {"partition_epoch": 21}, "StalePartitionEpoch"),
        ((1, 2), {"node_epoch": 6}, "IneligibleReplica"),
        ((1, 3), {}, "IneligibleReplica"),  # fenced
        ((2,), {}, "InvalidRequest"),  # not without its leader
        ((1, 4), {}, "InvalidRequest"),  # no replica
        ((1, 1), {}, "InvalidRequest"),
        ((1, 2), {"by": 2}, "NotLeader"),
    ],
)
def test_a_change_that_is_out_of_date_is_refused(members: tuple[int, ...], epochs: dict[str, int], error: str) -> None:
    world = World(4, (R3, (1,), (), 1), fenced=(3,))
    outcome = world.in_sync(*members, **epochs)
    assert outcome.error == error
    assert outcome.assigned == world.partition(), "the leader is told what is"
    assert world.partition().partition_epoch == 20


def test_a_change_by_an_earlier_life_is_refused() -> None:
    world = World(3, (R3, R3, (), 1))
    with pytest.raises(StaleNodeEpoch):
        world.obey(ChangeInSync(node_id=1, epoch=6, changes=()))
    unknown = InSyncChange(topic_id=UUID(int=9), partition=0, leader_epoch=0, partition_epoch=0, in_sync=((1, 7),))
    assert world.outcome(ChangeInSync(node_id=1, epoch=7, changes=(unknown,))).error == "UnknownTopic"


@pytest.mark.parametrize(("least", "eligible"), [("3", (2,)), ("2", (2,)), ("1", ())])
def test_nobody_stays_eligible_below_a_lower_minimum(least: str, eligible: tuple[int, ...]) -> None:
    world = World(3, (R3, (1,), (2,), 1))
    world.obey(ConfigureTopic(name="orders", changes={"min.insync.replicas": least}))
    assert world.state() == (R3, (1,), eligible, 1)


def test_a_topic_whose_first_partition_shrinks_asks_for_fewer_in_sync_everywhere() -> None:
    """Leaders go by the first partition's replicas where a topic does not say."""
    world = World(3, (R3, R3, (), 1), (R3, (1,), (2,), 1))
    world.obey(Reassign(moves=(Move(topic="orders", partition=0, replicas=(1,)),)))
    assert world.state(0) == ((1,), (1,), (), 1)
    assert world.state(1) == (R3, (1,), (), 1)
    world.fence(1)
    assert world.partition(1).leader == NO_LEADER


# -- moves -------------------------------------------------------------------------------------------------------------


def move(*replicas: int) -> Reassign:
    return Reassign(moves=(Move(topic="orders", partition=0, replicas=replicas),))


CANCEL = Reassign(moves=(Move(topic="orders", partition=0, replicas=None),))


def test_a_move_ends_when_all_that_come_are_in_sync() -> None:
    world = World(5, (R3, R3, (), 1))
    assert world.outcome(move(4, 5, 3)).error is None
    now = world.partition()
    assert (now.replicas, now.adding, now.removing) == ((4, 5, 3, 1, 2), (4, 5), (1, 2))
    assert (now.leader, now.leader_epoch) == (1, 10)
    world.in_sync(1, 2, 3, 4)
    assert world.partition().adding == (4, 5), "one is missing"
    world.in_sync(1, 2, 3, 4, 5)
    now = world.partition()
    assert (now.replicas, now.in_sync, now.adding, now.removing) == ((4, 5, 3), (4, 5, 3), (), ())
    assert (now.leader, now.leader_epoch) == (4, 11)


def test_a_move_does_not_ask_for_more_in_sync_than_before() -> None:
    world = World(5, (R3, (1, 2), (), 1))
    world.obey(move(3, 4, 5))
    world.fence(2)
    assert world.partition().eligible == (2,), "two of three, not four of six"
    world.unfence(2)
    world.in_sync(1, 2)
    assert world.partition().eligible == ()


def test_a_move_is_called_off_and_redirected() -> None:
    world = World(5, (R3, R3, (), 1))
    assert world.outcome(CANCEL).error == "NoReassignment"
    world.obey(move(1, 2, 4))
    world.in_sync(1, 2, 3)
    world.obey(move(1, 5))
    now = world.partition()
    assert (now.replicas, now.adding, now.removing) == ((1, 5, 2, 3), (5,), (2, 3))
    assert world.outcome(CANCEL).error is None
    now = world.partition()
    assert (sorted(now.replicas), now.adding, now.removing) == ([1, 2, 3], (), ())


def test_a_move_is_not_called_off_if_only_newcomers_have_everything() -> None:
    world = World(5, (R3, R3, (), 1))
    world.obey(move(4, 5))
    world.in_sync(1, 2, 3, 4)
    world.fence(1, 2, 3)
    assert world.partition().in_sync == (4,)
    assert world.outcome(CANCEL).error == "InvalidReplicaAssignment"
    assert world.outcome(move(1, 2)).error == "InvalidReplicaAssignment"
    assert world.partition().leader == 4


def test_a_move_is_not_redirected_while_a_newcomer_is_one_of_the_few_that_have_everything() -> None:
    world = World(5, ((5, 1), (5,), (1,), 5), fenced=(1,), configs={"min.insync.replicas": "2"})
    world.obey(move(4, 1))
    world.in_sync(5, 4, by=5)
    assert set(world.partition().in_sync) == {4, 5}, "what is acknowledged from now on is on these two"
    assert world.outcome(move(3, 1)).error == "InvalidReplicaAssignment"
    assert world.outcome(CANCEL).error == "InvalidReplicaAssignment"
    assert set(world.partition().in_sync) == {4, 5}
    world.unfence(1)
    world.in_sync(5, 4, 1, by=world.partition().leader)
    assert world.outcome(move(3, 1)).error is None


def test_fewer_replicas_only_if_enough_of_those_that_stay_are_in_sync() -> None:
    world = World(3, (R3, (1, 3), (), 1))
    world.obey(move(1, 2))
    assert world.partition().removing == (3,)
    assert world.partition().in_sync == (1, 3)
    world.in_sync(1, 2, 3)
    assert world.state() == ((1, 2), (1, 2), (), 1)


@pytest.mark.parametrize("replicas", [(), (1, 1), (1, 9)])
def test_a_move_to_nowhere_is_refused(replicas: tuple[int, ...]) -> None:
    world = World(3, (R3, R3, (), 1))
    assert world.outcome(move(*replicas)).error == "InvalidReplicaAssignment"
    unknown = Reassign(moves=(Move(topic="nothing", partition=0, replicas=(1,)),))
    assert world.outcome(unknown).error == "UnknownTopic"


# -- elections ---------------------------------------------------------------------------------------------------------

THIS = (("orders", 0),)


@pytest.mark.parametrize(
    ("before", "fenced", "is_unclean", "after", "error"),
    [
        ((R3, R3, (), 2), (), False, (R3, R3, (), 1), None),
        ((R3, R3, (), 1), (), False, (R3, R3, (), 1), "ElectionNotNeeded"),
        ((R3, (2, 3), (), 2), (), False, (R3, (2, 3), (), 2), "LeaderNotAvailable"),
        ((R3, (2, 3), (), 2), (1,), False, (R3, (2, 3), (), 2), "LeaderNotAvailable"),
        ((R3, (1,), (), NO_LEADER), (1,), True, (R3, (2,), (), 2), None),
        ((R3, (1,), (3,), NO_LEADER), (1, 3), True, (R3, (2,), (), 2), None),
        ((R3, (1,), (), NO_LEADER), R3, True, (R3, (1,), (), NO_LEADER), "LeaderNotAvailable"),
        ((R3, (2,), (), 2), (), True, (R3, (2,), (), 2), "ElectionNotNeeded"),
    ],
)
def test_elections_that_are_asked_for(
    before: State, fenced: tuple[int, ...], is_unclean: bool, after: State, error: str | None
) -> None:
    world = World(3, before, fenced=fenced)
    assert world.outcome(ElectLeaders(partitions=THIS, is_unclean=is_unclean)).error == error
    assert world.state() == after


def test_an_election_of_all_leaves_out_those_that_need_none() -> None:
    world = World(3, (R3, R3, (), 2), (R3, R3, (), 1), (R3, (2, 3), (), 2))
    answer = world.obey(ElectLeaders(partitions=None)).answer
    assert isinstance(answer, Outcomes)
    assert [(one.partition, one.error) for one in answer.outcomes] == [(0, None), (2, "LeaderNotAvailable")]


def test_leaders_are_given_back_to_nodes_that_are_settled_and_in_sync() -> None:
    world = World(3, (R3, R3, (), 2), (R3, (2, 3), (), 2), ((3, 2), (3, 2), (), 2))
    draft = Draft(world.metadata)
    give_back_leaders(draft, unsettled=(3,))
    world.apply(draft.records())
    assert [world.partition(index).leader for index in range(3)] == [1, 2, 2]
    assert [world.partition(index).leader_epoch for index in range(3)] == [11, 10, 10]


# -- topics ------------------------------------------------------------------------------------------------------------


def test_a_topic_asked_for_again_with_its_id_is_there() -> None:
    world = World(3)
    command = CreateTopic(name="orders", topic_id=ORDERS)
    assert len(world.obey(command).records) == 2
    assert world.obey(command) == Decision([], Done())
    with pytest.raises(TopicExists):
        world.obey(CreateTopic(name="orders", topic_id=UUID(int=2)))
    world.obey(DeleteTopic(name="orders"))
    assert world.metadata.topics == {}


def test_what_is_only_checked_changes_nothing() -> None:
    world = World(3, (R3, R3, (), 1))
    for command in (
        CreateTopic(name="new", topic_id=UUID(int=2), is_only_checked=True),
        AddPartitions(name="orders", count=3, is_only_checked=True),
        ConfigureTopic(name="orders", changes={"retention.ms": "1"}, is_only_checked=True),
    ):
        assert world.obey(command) == Decision([], Done())
    with pytest.raises(InvalidRequest):
        world.obey(Heartbeat(node_id=1, epoch=7, applied_index=0))


def test_a_node_that_is_away_gets_replicas_only_where_they_are_needed_and_leads_none() -> None:
    world = World(4, fenced=(4,))
    world.obey(CreateTopic(name="orders", topic_id=ORDERS, partitions=12, replication_factor=3))
    assert not [one for one in world.metadata.topic("orders").partitions if 4 in one.replicas]
    world.obey(CreateTopic(name="wide", topic_id=UUID(int=2), replication_factor=4))
    wide = world.metadata.partition("wide", 0)
    assert wide.replicas[-1] == 4
    assert wide.in_sync == wide.replicas[:3]
    world = World(3, fenced=(2, 3))
    world.obey(CreateTopic(name="orders", topic_id=ORDERS))
    assert len(world.partition().replicas) == 3, "they are away for a moment, the topic stays for years"
    with pytest.raises(InvalidReplicationFactor, match="lead"):
        World(2, fenced=(1, 2)).obey(CreateTopic(name="orders", topic_id=ORDERS))


def test_node_changes_are_for_one_life() -> None:
    world = World(1)
    world.fence(1)
    world.apply([NodeChanged(node_id=1, epoch=6, is_fenced=False, is_draining=False)])
    assert world.metadata.nodes[1].is_fenced
