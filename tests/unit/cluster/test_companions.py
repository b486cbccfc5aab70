"""The companion of a topic: made like its parent, gone with it, and never far from it in between."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.consensus.commands import (
    AddPartitions,
    ChangeInSync,
    Command,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    DrainNode,
    ElectLeaders,
    InSyncChange,
    Move,
    Outcomes,
    Planned,
    Reassign,
    Rebalance,
    RemoveNode,
)
from penstock.consensus.controller import ControllerView, MetadataDraft, decide
from penstock.consensus.controller.nodes import fence, unfence
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import NO_LEADER, ClusterCreated, MetadataRecord, NodeRegistered, PartitionAssigned
from penstock.errors import InvalidTopicName, PolicyViolation, TopicExists, UnknownTopic
from penstock.model import OFFSETS_TOPIC, is_internal, queue_parent, queue_state_topic

ORDERS, QUEUE = UUID(int=1), UUID(int=2)
NAME = queue_state_topic("orders")


class World:
    """A cluster with topic ``orders`` and its companion."""

    def __init__(self, size: int = 3, assignment: tuple[tuple[int, ...], ...] = ((1, 2, 3),), **configs: str) -> None:
        self.metadata = ClusterMetadata()
        self.apply([ClusterCreated(cluster_id="c")])
        for node_id in range(1, size + 1):
            self.apply([NodeRegistered(node_id=node_id, epoch=7, endpoints=(), directory_id="d", is_fenced=False)])
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        self.obey(CreateTopic(name="orders", topic_id=ORDERS, assignment=assignment, configs=settings))
        self.obey(CreateTopic(name=NAME, topic_id=QUEUE))

    def apply(self, records: list[MetadataRecord]) -> None:
        for record in records:
            self.metadata.apply(record)

    def obey(self, command: Command) -> object:
        decision = decide(self.metadata, command)
        self.apply(decision.records)
        return decision.answer

    def draft(self, situation: ControllerView | None = None) -> MetadataDraft:
        return MetadataDraft(self.metadata, situation=situation)

    def fence(self, *node_ids: int) -> None:
        draft = self.draft()
        fence(draft, node_ids)
        self.apply(draft.records())

    def unfence(self, node_id: int) -> None:
        draft = self.draft()
        unfence(draft, node_id)
        self.apply(draft.records())

    def in_sync(self, name: str, *members: int, index: int = 0) -> None:
        """The leader finds these in sync."""
        now = self.metadata.partition(name, index)
        change = InSyncChange(
            topic_id=now.topic_id,
            partition=index,
            leader_epoch=now.leader_epoch,
            partition_epoch=now.partition_epoch,
            in_sync=tuple((member, 7) for member in members),
        )
        answer = self.obey(ChangeInSync(node_id=now.leader, epoch=7, changes=(change,)))
        assert isinstance(answer, Outcomes)
        assert answer.outcomes[0].error is None, answer

    def move(self, replicas: tuple[int, ...] | None, topic: str = "orders") -> str | None:
        answer = self.obey(Reassign(moves=(Move(topic=topic, partition=0, replicas=replicas),)))
        assert isinstance(answer, Outcomes)
        return answer.outcomes[0].error

    @property
    def both(self) -> tuple[PartitionAssigned, PartitionAssigned]:
        return self.metadata.partition("orders", 0), self.metadata.partition(NAME, 0)

    @property
    def leaders(self) -> tuple[int, int]:
        return self.both[0].leader, self.both[1].leader

    @property
    def replicas(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.both[0].replicas, self.both[1].replicas


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_companion_is_internal_and_tells_its_parent() -> None:
    assert NAME == "__queue.orders"
    assert is_internal(NAME)
    assert queue_parent(NAME) == "orders"
    assert queue_parent("orders") is None
    assert queue_parent(OFFSETS_TOPIC) is None


def test_a_topic_whose_companion_would_have_too_long_a_name_says_so() -> None:
    assert len(queue_state_topic("x" * 241)) == 249
    with pytest.raises(InvalidTopicName, match="at most 241"):
        queue_state_topic("x" * 242)


# -- made, grown, configured, deleted ----------------------------------------------------------------------------------


def test_a_companion_is_made_with_the_replicas_and_leaders_of_its_parent() -> None:
    world = World(4, ((3, 1, 2), (4, 2, 1)), min_insync_replicas="2")
    parent, companion = world.metadata.topic("orders"), world.metadata.topic(NAME)
    assert [one.replicas for one in companion.partitions] == [one.replicas for one in parent.partitions]
    assert [one.leader for one in companion.partitions] == [3, 4]
    assert companion.configs["min.insync.replicas"] == "2"
    assert companion.configs["retention.ms"] == companion.configs["retention.bytes"] == "-1"


def test_a_companion_is_led_by_whoever_leads_its_parent_just_then() -> None:
    world = World(3, ((1, 2, 3),))
    world.obey(DeleteTopic(name="orders"))
    world.obey(CreateTopic(name="orders", topic_id=UUID(int=5), assignment=((1, 2, 3),)))
    world.fence(1)
    world.unfence(1)
    world.in_sync("orders", 1, 2, 3)
    world.obey(CreateTopic(name=NAME, topic_id=UUID(int=6)))
    assert world.leaders == (2, 2)


def test_a_companion_of_a_partition_that_nobody_leads_has_no_leader_until_somebody_comes() -> None:
    world = World(3, ((1,),))
    world.obey(DeleteTopic(name="orders"))
    world.obey(CreateTopic(name="orders", topic_id=UUID(int=5), assignment=((1,),)))
    world.fence(1)
    world.obey(CreateTopic(name=NAME, topic_id=UUID(int=6)))
    assert world.leaders == (NO_LEADER, NO_LEADER)
    world.unfence(1)
    assert world.leaders == (1, 1)


def test_who_asks_for_a_companion_second_hears_that_it_is_there() -> None:
    world = World()
    with pytest.raises(TopicExists):
        world.obey(CreateTopic(name=NAME, topic_id=UUID(int=9)))
    assert decide(world.metadata, CreateTopic(name=NAME, topic_id=QUEUE)).records == []


def test_there_is_no_companion_of_what_is_not_there_or_is_internal_itself() -> None:
    world = World()
    with pytest.raises(UnknownTopic):
        world.obey(CreateTopic(name=queue_state_topic("nothing"), topic_id=UUID(int=9)))
    with pytest.raises(PolicyViolation):
        world.obey(CreateTopic(name=queue_state_topic(NAME), topic_id=UUID(int=9)))


def test_a_topic_that_only_looks_like_a_companion_stands_in_nobodys_way() -> None:
    world = World()
    world.obey(CreateTopic(name="__queue_orders", topic_id=UUID(int=9)))
    world.obey(DeleteTopic(name="orders"))
    world.obey(CreateTopic(name="orders", topic_id=UUID(int=10)))
    world.obey(CreateTopic(name=NAME, topic_id=UUID(int=11)))
    assert {"orders", NAME, "__queue_orders"} <= world.metadata.topics.keys()


def test_a_companion_goes_in_the_decision_in_which_its_topic_does() -> None:
    world = World()
    world.obey(DeleteTopic(name="orders"))
    assert not world.metadata.topics
    world.obey(CreateTopic(name="orders", topic_id=UUID(int=5)))
    assert list(world.metadata.topics) == ["orders"], "the next topic of that name has no queues yet"


def test_a_companion_grows_with_its_topic() -> None:
    world = World(4, ((1, 2, 3),))
    world.obey(AddPartitions(name="orders", count=3, assignment=((4, 1, 2), (2, 3, 4))))
    companion = world.metadata.topic(NAME)
    assert [one.replicas for one in companion.partitions] == [(1, 2, 3), (4, 1, 2), (2, 3, 4)]
    assert [one.leader for one in companion.partitions] == [1, 4, 2]


def test_settings_of_safety_are_those_of_the_topic() -> None:
    world = World()
    changes = {"min.insync.replicas": "3", "unclean.leader.election.enable": "true", "retention.ms": "5"}
    world.obey(ConfigureTopic(name="orders", changes=changes))
    configs = world.metadata.topic(NAME).configs
    assert configs["min.insync.replicas"] == "3"
    assert configs["unclean.leader.election.enable"] == "true"
    assert configs["retention.ms"] == "-1", "what queues remember goes when they say so"
    world.obey(ConfigureTopic(name="orders", changes={"min.insync.replicas": None}))
    assert "min.insync.replicas" not in world.metadata.topic(NAME).configs


@pytest.mark.parametrize(
    "command",
    [
        DeleteTopic(name=NAME),
        AddPartitions(name=NAME, count=5),
        ConfigureTopic(name=NAME, changes={"retention.ms": "1"}),
    ],
    ids=lambda command: type(command).__name__,
)
def test_nobody_sets_a_companion_apart(command: Command) -> None:
    with pytest.raises(PolicyViolation, match="orders"):
        World().obey(command)


def test_nobody_moves_a_companion_alone() -> None:
    world = World(4)
    assert world.move((2, 3, 4), NAME) == "PolicyViolation"
    assert world.replicas == ((1, 2, 3), (1, 2, 3))


# -- leaders -----------------------------------------------------------------------------------------------------------


def test_both_are_taken_over_by_the_same_node() -> None:
    world = World()
    world.fence(1)
    assert world.leaders == (2, 2)


def test_a_companion_is_led_by_another_where_its_parents_leader_lacks_something_and_follows_when_it_does_not() -> None:
    world = World()
    world.in_sync(NAME, 1, 3)
    world.fence(1)
    assert world.leaders == (2, 3)
    world.in_sync(NAME, 2, 3)
    assert world.leaders == (2, 2)
    assert world.both[1].leader_epoch == 2


def test_a_preferred_leader_is_given_back_both() -> None:
    world = World()
    world.fence(1)
    world.unfence(1)
    world.in_sync("orders", 1, 2, 3)
    world.in_sync(NAME, 1, 2, 3)
    assert world.leaders == (2, 2)
    world.obey(ElectLeaders(partitions=(("orders", 0),)))
    assert world.leaders == (1, 1)


def test_a_companion_is_not_given_to_its_preferred_leader_alone() -> None:
    world = World()
    world.fence(1)
    world.unfence(1)
    world.in_sync(NAME, 1, 2, 3)
    answer = world.obey(ElectLeaders(partitions=((NAME, 0),)))
    assert isinstance(answer, Outcomes)
    assert answer.outcomes[0].error == "LeaderNotAvailable"
    assert world.leaders == (2, 2)


def test_those_that_came_apart_are_brought_together_when_nothing_else_happens() -> None:
    world = World()
    world.in_sync(NAME, 1, 3)
    world.fence(1)
    now = world.both[1]
    apart = PartitionAssigned(
        topic_id=QUEUE,
        partition=0,
        replicas=now.replicas,
        in_sync=(2, 3),
        leader=3,
        leader_epoch=now.leader_epoch,
        partition_epoch=now.partition_epoch,
    )
    world.apply([apart])
    draft = world.draft()
    draft.rejoin_companions()
    world.apply(draft.records())
    assert world.leaders == (2, 2)
    again = world.draft()
    again.rejoin_companions()
    assert again.records() == []


def test_an_unclean_election_gives_both_a_leader() -> None:
    world = World(2, ((1, 2),), min_insync_replicas="1")
    world.in_sync("orders", 1)
    world.in_sync(NAME, 1)
    world.fence(1)
    assert world.leaders == (NO_LEADER, NO_LEADER)
    world.obey(ElectLeaders(partitions=(("orders", 0),), is_unclean=True))
    assert world.leaders == (2, 2)


# -- moves -------------------------------------------------------------------------------------------------------------


def test_a_companion_moves_with_its_parent_and_is_led_alike_all_the_way() -> None:
    world = World(6)
    assert world.move((4, 5, 6)) is None
    assert world.replicas == ((4, 5, 6, 1, 2, 3),) * 2
    world.in_sync(NAME, 4, 5, 6, 1, 2, 3)
    assert world.replicas[1] == (4, 5, 6, 1, 2, 3), "the small one waits for the large one"
    assert world.leaders == (1, 1)
    world.in_sync("orders", 4, 5, 6, 1, 2, 3)
    assert world.replicas == ((4, 5, 6), (4, 5, 6))
    assert world.leaders == (4, 4)


def test_a_companion_that_is_late_ends_its_move_when_it_has_caught_up() -> None:
    world = World(6)
    world.move((4, 5, 6))
    world.in_sync("orders", 4, 5, 6, 1, 2, 3)
    assert world.replicas == ((4, 5, 6), (4, 5, 6, 1, 2, 3))
    world.in_sync(NAME, 4, 5, 6, 1, 2, 3)
    assert world.replicas == ((4, 5, 6), (4, 5, 6))
    assert world.leaders == (4, 4)


def test_a_move_that_is_called_off_is_so_for_both() -> None:
    world = World(6)
    world.move((4, 5, 6))
    world.in_sync(NAME, 4, 5, 6, 1, 2, 3)
    assert world.move(None) is None
    assert world.replicas == ((1, 2, 3), (1, 2, 3))
    assert world.both[1].adding == world.both[1].removing == ()


def test_a_move_that_turns_takes_the_companion_along() -> None:
    world = World(6)
    world.move((4, 5, 6))
    world.move((1, 2, 4))
    assert [one.adding for one in world.both] == [(4,), (4,)]
    assert [one.removing for one in world.both] == [(3,), (3,)]


def test_a_companion_created_in_the_middle_of_a_move_ends_it_with_its_parent() -> None:
    world = World(4, ((1, 2),))
    world.obey(DeleteTopic(name="orders"))
    world.obey(CreateTopic(name="orders", topic_id=UUID(int=5), assignment=((1, 2),)))
    world.move((3, 4))
    world.obey(CreateTopic(name=NAME, topic_id=UUID(int=6)))
    assert world.leaders == (1, 1)
    world.in_sync("orders", 3, 4, 1, 2)
    assert world.replicas == ((3, 4), (3, 4))
    assert world.leaders == (3, 3)


def test_a_drain_and_a_removal_take_both() -> None:
    world = World(4)
    answer = world.obey(DrainNode(node_id=1))
    assert isinstance(answer, Planned)
    assert [move.topic for move in answer.moves] == ["orders"], "companions are no plan of their own"
    for name in ("orders", NAME):
        world.in_sync(name, *world.both[0].replicas)
    assert world.replicas[0] == world.replicas[1]
    assert 1 not in world.replicas[0]
    world.obey(RemoveNode(node_id=1))
    assert 1 not in world.metadata.nodes


def test_a_node_removed_by_force_is_replaced_by_the_same_node_in_both() -> None:
    world = World(5)
    world.fence(3)
    world.obey(RemoveNode(node_id=3, is_forced=True))
    assert world.replicas[0] == world.replicas[1]
    assert 3 not in world.replicas[0]
    assert len(world.replicas[0]) == 3


def test_a_rebalance_moves_parents_and_their_companions_follow() -> None:
    world = World(3, ((1,), (1,), (1,), (1,), (1,), (1,)))
    answer = world.obey(Rebalance())
    assert isinstance(answer, Planned)
    assert {move.topic for move in answer.moves} == {"orders"}
    companion = world.metadata.topic(NAME)
    for parent in world.metadata.topic("orders").partitions:
        assert companion.partitions[parent.partition].replicas == parent.replicas
        assert companion.partitions[parent.partition].adding == parent.adding
