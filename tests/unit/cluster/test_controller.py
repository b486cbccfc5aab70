"""The controller's answers to nodes that come and go, and to doubt about what they have."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.cluster.controller_world import ORDERS, R3, State, World, register

from penstock.consensus.commands import (
    Admitted,
    ChangeInSync,
    ConfigureTopic,
    DoubtedReplica,
    DoubtReplicas,
    ElectLeaders,
    InSyncChange,
    Move,
    Reassign,
    RemoveNode,
)
from penstock.consensus.controller import ControllerView, MetadataDraft, Rules
from penstock.consensus.controller.nodes import fence
from penstock.consensus.records import NO_LEADER
from penstock.errors import (
    DuplicateNode,
    StaleNodeEpoch,
)

# -- nodes that go -----------------------------------------------------------------------------------------------------


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
    draft = MetadataDraft(world.metadata, Rules(min_in_sync=1))
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
    decision = world.obey(register(1), ControllerView(index=100))
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
    assert world.obey(register(4), ControllerView(index=30)).answer == Admitted(epoch=30)
    world.obey(RemoveNode(node_id=4))
    assert world.obey(register(4), ControllerView(index=32)).answer == Admitted(epoch=32)
    assert world.obey(register(4), ControllerView(index=32)).answer == Admitted(epoch=33)


def test_after_a_power_cut_nobody_falls_out_before_somebody_is_heard() -> None:
    """The controller is new, all nodes restart, and the third never comes back."""
    world = World(3, (R3, R3, (), 3), configs={"min.insync.replicas": "1"})
    world.obey(register(1), ControllerView(index=50, silent=R3))
    world.obey(register(2), ControllerView(index=51, silent=(2, 3)))
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
        world.obey(command, ControllerView(index=50 + node_id, silent=silent))
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
    world.obey(DoubtReplicas(node_id=1, epoch=7, doubtful=doubted(5)), ControllerView(silent=silent))
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
    unheard = ControllerView(silent={2, 3})  # a new controller: it may be that they are gone, but they lead on
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
