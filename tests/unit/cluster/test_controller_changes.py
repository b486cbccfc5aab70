"""The controller's answers to full disks, drains, in-sync sets, moves, elections and topics."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.unit.cluster.controller_world import ORDERS, R3, State, World

from penstock.consensus.commands import (
    AddPartitions,
    ChangeInSync,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Done,
    DrainNode,
    ElectLeaders,
    Heartbeat,
    InSyncChange,
    Move,
    Outcomes,
    PartitionLosses,
    Planned,
    Reassign,
    RemoveNode,
    ReportLosses,
)
from penstock.consensus.controller import ControllerView, Decision, MetadataDraft
from penstock.consensus.controller.elections import give_back_leaders
from penstock.consensus.controller.nodes import fence, is_needed, step_aside
from penstock.consensus.records import NO_LEADER, LostRecords, NodeChanged
from penstock.errors import (
    InvalidReplicationFactor,
    InvalidRequest,
    NodeInUse,
    NodeNotFound,
    StaleNodeEpoch,
    TopicExists,
)

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
    draft = MetadataDraft(world.metadata, situation=ControllerView(unable=(1,)))
    step_aside(draft, 1)
    give_back_leaders(draft)
    world.apply(draft.records())
    assert world.state() == after


def test_a_node_that_cannot_write_is_elected_where_nobody_else_can_be() -> None:
    world = World(3, (R3, (1, 2), (), 2))
    draft = MetadataDraft(world.metadata, situation=ControllerView(unable=(1,)))
    fence(draft, [2])
    world.apply(draft.records())
    assert world.state() == (R3, (1,), (2,), 1)


# -- leaving, draining, removing ---------------------------------------------------------------------------------------


def test_a_leaving_node_gives_away_what_others_can_lead() -> None:
    world = World(3, (R3, R3, (), 1), ((1,), (1,), (), 1), ((1, 2), (1,), (), 1))
    draft = MetadataDraft(world.metadata, situation=ControllerView(leaving=(1,)))
    step_aside(draft, 1)
    world.apply(draft.records())
    assert [world.state(index)[3] for index in range(3)] == [2, 1, 1]
    assert is_needed(MetadataDraft(world.metadata, situation=ControllerView(leaving=(1,))), 1), "2 may yet catch up"
    alone = World(2, ((1,), (1,), (), 1), ((1, 2), (1,), (), 1), fenced=(2,))
    assert not is_needed(MetadataDraft(alone.metadata, situation=ControllerView(leaving=(1,))), 1), (
        "nobody else is there"
    )


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
    assert isinstance(answer, Planned)
    assert answer.moves == ()
    (stuck,) = answer.stuck
    assert (stuck.partition, stuck.reason) == (0, "It has 3 replicas, and only 2 other nodes can take them.")
    assert world.state() == (R3, R3, (), 2)


def test_a_leader_reports_what_is_lost_only_where_no_other_replica_counts() -> None:
    world = World(3, ((1, 2), (1, 2), (), 1), ((1, 2), (1,), (2,), 1), ((1, 2), (1,), (), 1), ((1,), (1,), (), 1))
    lost = (LostRecords(first_offset=3, next_offset=5),)

    def report(lost: tuple[LostRecords, ...], epoch_shift: int = 0) -> list[tuple[LostRecords, ...]]:
        partitions = tuple(
            PartitionLosses(
                topic_id=world.partition(index).topic_id,
                partition=index,
                leader_epoch=world.partition(index).leader_epoch + epoch_shift,
                lost=lost,
            )
            for index in range(4)
        )
        world.obey(ReportLosses(node_id=1, epoch=world.metadata.nodes[1].epoch, partitions=partitions))
        return [world.partition(index).lost for index in range(4)]

    assert report(lost, epoch_shift=-1) == [()] * 4, "of an earlier leadership"
    assert report(lost) == [(), (), lost, lost]
    assert report(()) == [()] * 4, "retention has passed them"
    with pytest.raises(StaleNodeEpoch):
        world.obey(ReportLosses(node_id=1, epoch=-5, partitions=()))


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
    draft = MetadataDraft(world.metadata)
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
